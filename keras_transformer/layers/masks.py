"""Masks of the attention layers."""

import functools

from keras import ops

from keras_transformer.typing import Tensor


def merge(*masks: Tensor | None) -> Tensor | None:
    """Return the logical and of the masks that are not None, or None without any."""
    given = [ops.cast(mask, "bool") for mask in masks if mask is not None]
    return functools.reduce(ops.logical_and, given) if given else None


def with_head_axis(mask: Tensor | None) -> Tensor | None:
    """Return a mask (B, T, S) as (B, 1, T, S), and other shapes unchanged."""
    return mask[:, None] if mask is not None and len(mask.shape) == 3 else mask
