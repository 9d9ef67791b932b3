"""Conversion of masks with other conventions to boolean masks in which True means "may attend"."""

import numpy as np
from keras import backend, ops

from keras_transformer.typing import Tensor


def from_additive(mask: Tensor) -> Tensor:
    """Return the boolean mask (True = may attend) of an additive mask (0 = may attend, very negative = may not)."""
    return _tensor(mask) > -1.0


def from_hidden(mask: Tensor) -> Tensor:
    """Return the boolean mask (True = may attend) of a mask of the same shape in which True means masked out."""
    mask = _tensor(mask)
    if isinstance(mask, np.ndarray):
        return np.logical_not(mask)
    return ops.logical_not(ops.cast(mask, "bool"))


def _tensor(mask: Tensor) -> Tensor:
    """Return tensors and symbolic tensors unchanged, other arrays as NumPy arrays."""
    return mask if backend.is_keras_tensor(mask) or ops.is_tensor(mask) else np.asarray(mask)
