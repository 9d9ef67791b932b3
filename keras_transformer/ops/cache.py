"""Writing new keys and values into a cache.

One signature, several ways: XLA wants a slice written in place; TensorFlow Serving and ONNX have no such operation, and
copy least where a cache grows.

Entries stand on the last axis but one of keys and values, (B·K, S, H) or (B, K, S, H), as the products of a step read
them, and on the last of what has two axes, such as positions (B, S).
"""

from typing import Any

from keras import ops

Tensor = Any


def slice_update(cache: Tensor, new: Tensor, slot: Tensor) -> Tensor:
    """Write `new` (…, T, H) over `cache` (…, S, H) from index `slot` on, in place under XLA."""
    start = [0] * len(cache.shape)
    start[_axis(cache)] = slot
    return ops.slice_update(cache, start, ops.cast(new, cache.dtype))


def select_update(cache: Tensor, new: Tensor, slot: Tensor) -> Tensor:
    """The same by comparing every index with `slot`: converts to ONNX and runs without XLA."""
    axis = _axis(cache)
    # How far each entry stands from the first of the new ones.
    behind = ops.arange(ops.shape(cache)[axis]) - slot
    count = ops.shape(new)[axis]
    if new.shape[axis] != 1:  # one token broadcasts over the entries
        new = ops.take(new, ops.clip(behind, 0, count - 1), axis=axis)
    fresh = ops.logical_and(behind >= 0, behind < count)
    return ops.where(_along(axis, fresh, cache), ops.cast(new, cache.dtype), cache)


def append_update(cache: Tensor, new: Tensor, slot: Tensor) -> Tensor:
    """Append `new` (…, T, H) to a cache that holds exactly the `slot` entries written so far."""
    return ops.concatenate([cache, ops.cast(new, cache.dtype)], axis=_axis(cache))


def grow_update(cache: Tensor, new: Tensor, slot: Tensor) -> Tensor:
    """`append_update` for the cache of a TensorFlow loop, which may change its size from step to step.

    Layers that look back no further than a window keep no more than that.
    """
    return append_update(cache, new, slot)


def rolling_update(cache: Tensor, new: Tensor, slot: Tensor) -> Tensor:
    """Write `new` (…, T, H) over `cache` (…, S, H) from index `slot` mod S on and round its end: the last S stay."""
    axis = _axis(cache)
    size, count = cache.shape[axis], ops.shape(new)[axis]
    # How many tokens came after each entry's. Nothing negative: as ONNX, `mod` rounds towards zero.
    behind = ops.mod(slot + count - 1 + size - ops.arange(size), size)
    entry = ops.take(new, ops.maximum(count - 1 - behind, 0), axis=axis)
    return ops.where(_along(axis, behind < count, cache), ops.cast(entry, cache.dtype), cache)


def _axis(cache: Tensor) -> int:
    """Where the entries stand."""
    return max(len(cache.shape) - 2, 1)


def _along(axis: int, values: Tensor, cache: Tensor) -> Tensor:
    """(S,) as a tensor that broadcasts to the cache."""
    shape = [1] * len(cache.shape)
    shape[axis] = -1
    return ops.reshape(values, shape)
