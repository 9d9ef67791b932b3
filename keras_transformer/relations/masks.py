"""Masks of other conventions as masks in which True means "may attend"."""

from typing import Any

import numpy as np
from keras import backend, ops

Tensor = Any


def from_additive(mask: Tensor) -> Tensor:
    """The boolean mask (True = may attend) of an additive one (0 = may attend, very negative = may not)."""
    return _tensor(mask) > -1.0


def from_hidden(mask: Tensor) -> Tensor:
    """The boolean mask (True = may attend) of one in which True means hidden."""
    mask = _tensor(mask)
    if isinstance(mask, np.ndarray):
        return np.logical_not(mask)
    return ops.logical_not(ops.cast(mask, "bool"))


def _tensor(mask: Tensor) -> Tensor:
    """Tensors, symbolic ones too, as they are; anything else as a NumPy array."""
    return mask if backend.is_keras_tensor(mask) or ops.is_tensor(mask) else np.asarray(mask)
