"""Masks of attention, and of padding in sequences."""

import functools

import keras
from keras import ops

from keras_transformer.typing import Tensor


def merge(*masks: Tensor | None) -> Tensor | None:
    """Return the logical and of the masks that are not None, or None if all are None."""
    booleans = [ops.cast(mask, "bool") for mask in masks if mask is not None]
    return functools.reduce(ops.logical_and, booleans) if booleans else None


def with_head_axis(mask: Tensor | None) -> Tensor | None:
    """Reshape a mask (B, T, S) to (B, 1, T, S); return masks of other shapes unchanged."""
    return mask[:, None] if mask is not None and len(mask.shape) == 3 else mask


def check_lengths(lengths: Tensor | None, inputs: Tensor) -> None:
    """Raise a ValueError unless lengths are None or integers (B,) for inputs (B, …)."""
    if lengths is None:
        return
    dtype, shape = keras.backend.standardize_dtype(lengths.dtype), tuple(lengths.shape)
    size, expected = shape[:1], tuple(inputs.shape[:1])
    if "int" not in dtype or len(shape) != 1 or (None not in size + expected and size != expected):
        raise ValueError(
            f"`lengths` must be integers of shape (B,), one for each row of `inputs`. Received: lengths.shape={shape}, "
            f"dtype={dtype}, inputs.shape={tuple(inputs.shape)}"
        )


def zero_padding(values: Tensor, lengths: Tensor | None, padding_value: float = 0.0) -> Tensor:
    """Replace the values (B, T, D) after the lengths (B,) of sequences padded at the end; keep all if it is None."""
    if lengths is None:
        return values
    is_real = ops.arange(ops.shape(values)[1], dtype="int32") < ops.cast(lengths, "int32")[:, None]
    return ops.where(is_real[..., None], values, ops.cast(padding_value, values.dtype))
