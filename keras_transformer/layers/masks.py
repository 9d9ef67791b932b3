"""Masks of the attention layers."""

import functools

from keras import ops

from keras_transformer.typing import Tensor


def merge(*masks: Tensor | None) -> Tensor | None:
    """Return the logical and of the masks that are not None, or None if all are None."""
    booleans = [ops.cast(mask, "bool") for mask in masks if mask is not None]
    return functools.reduce(ops.logical_and, booleans) if booleans else None


def with_head_axis(mask: Tensor | None) -> Tensor | None:
    """Reshape a mask (B, T, S) to (B, 1, T, S); return masks of other shapes unchanged."""
    return mask[:, None] if mask is not None and len(mask.shape) == 3 else mask
