"""Writing new keys and values into a cache.

One signature, three ways: XLA wants a slice written in place, TensorFlow Serving and ONNX have no such operation
and take a selection, and a decoder that ONNX Runtime calls token by token grows its cache.
"""

from typing import Any

from keras import ops

Tensor = Any


def slice_update(cache: Tensor, new: Tensor, slot: Tensor) -> Tensor:
    """Write `new` (B, T, …) over `cache` (B, S, …) from index `slot` on, in place under XLA."""
    start = [slot] + [0] * (len(cache.shape) - 2)
    return ops.slice_update(cache, [0, *start], ops.cast(new, cache.dtype))


def select_update(cache: Tensor, new: Tensor, slot: Tensor) -> Tensor:
    """The same by comparing every index with `slot`: converts to ONNX and runs without XLA."""
    behind = (
        ops.arange(ops.shape(cache)[1]) - slot
    )  # how far each entry stands from the first of the new ones
    count = ops.shape(new)[1]
    if new.shape[1] != 1:  # one token broadcasts over the entries
        new = ops.take(new, ops.clip(behind, 0, count - 1), axis=1)
    fresh = ops.logical_and(behind >= 0, behind < count)
    fresh = ops.reshape(fresh, [1, -1] + [1] * (len(cache.shape) - 2))
    return ops.where(fresh, ops.cast(new, cache.dtype), cache)


def append_update(cache: Tensor, new: Tensor, slot: Tensor) -> Tensor:
    """Append `new` (B, T, …) to a cache that holds exactly the `slot` entries written so far."""
    return ops.concatenate([cache, ops.cast(new, cache.dtype)], axis=1)


def rolling_update(cache: Tensor, new: Tensor, slot: Tensor) -> Tensor:
    """Write `new` (B, T, …) over `cache` (B, S, …) from index `slot` mod S on and round its end: the last S stay."""
    size, count = cache.shape[1], ops.shape(new)[1]
    # How many tokens came after each entry's. Nothing negative: as ONNX, `mod` rounds towards zero.
    behind = ops.mod(slot + count - 1 + size - ops.arange(size), size)
    entry = ops.take(new, ops.maximum(count - 1 - behind, 0), axis=1)
    fresh = ops.reshape(behind < count, [1, -1] + [1] * (len(cache.shape) - 2))
    return ops.where(fresh, ops.cast(entry, cache.dtype), cache)
