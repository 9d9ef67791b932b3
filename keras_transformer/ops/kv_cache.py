"""Updates of a key/value cache, all of one signature.

XLA writes a slice in place; TensorFlow Serving and ONNX have no such operation, and copy least if the cache grows.

Entries stand on the last axis but one of keys and values, (B·K, S, H) or (B, K, S, H), as the products of a step read
them, and on the last of what has two axes, such as positions (B, S).
"""

from collections.abc import Callable
from typing import Any

from keras import ops

Tensor = Any
Entries = dict[str, Tensor]
Update = Callable[[Tensor, Tensor, Tensor], Tensor]


def slice_update(cache: Tensor, new: Tensor, cache_index: Tensor) -> Tensor:
    """Write `new` (…, T, H) over `cache` (…, S, H) from index `cache_index` on, in place under XLA."""
    start = [0] * len(cache.shape)
    start[_axis(cache)] = cache_index
    return ops.slice_update(cache, start, ops.cast(new, cache.dtype))


def select_update(cache: Tensor, new: Tensor, cache_index: Tensor) -> Tensor:
    """Write as `slice_update` does, by comparing every index with `cache_index`: for ONNX and without XLA."""
    axis = _axis(cache)
    # The distance of each entry to the first of the new ones.
    offset = ops.arange(ops.shape(cache)[axis]) - cache_index
    count = ops.shape(new)[axis]
    if new.shape[axis] != 1:  # one token broadcasts over the entries
        new = ops.take(new, ops.clip(offset, 0, count - 1), axis=axis)
    fresh = ops.logical_and(offset >= 0, offset < count)
    return ops.where(_along(axis, fresh, cache), ops.cast(new, cache.dtype), cache)


def append_update(cache: Tensor, new: Tensor, cache_index: Tensor) -> Tensor:
    """Append `new` (…, T, H) to a cache of exactly the `cache_index` entries written so far."""
    return ops.concatenate([cache, ops.cast(new, cache.dtype)], axis=_axis(cache))


def grow_update(cache: Tensor, new: Tensor, cache_index: Tensor) -> Tensor:
    """`append_update` for the cache of a TensorFlow loop, which may change its size from step to step.

    Layers with a bounded window keep no more than that.
    """
    return append_update(cache, new, cache_index)


def rolling_update(cache: Tensor, new: Tensor, cache_index: Tensor) -> Tensor:
    """Write `new` (…, T, H) over `cache` (…, S, H) from `cache_index` mod S on, cyclically: the last S stay."""
    axis = _axis(cache)
    size, count = cache.shape[axis], ops.shape(new)[axis]
    # The age of each entry in tokens. The dividend is not negative, since `mod` rounds towards zero in ONNX.
    age = ops.mod(cache_index + count - 1 + size - ops.arange(size), size)
    entry = ops.take(new, ops.maximum(count - 1 - age, 0), axis=axis)
    return ops.where(_along(axis, age < count, cache), ops.cast(entry, cache.dtype), cache)


def grows(update: Update) -> bool:
    """Return True if an update appends to a cache that starts empty."""
    return update in (append_update, grow_update)


def write(
    cache: Entries,
    new: Entries,
    cache_index: Any,
    update: Update = slice_update,
    window: int | None = None,
    are_candidates: bool = False,
) -> tuple[Entries, Entries]:
    """Write the entries of T new tokens into the cache of a layer.

    If the layer has a bounded window, a cache larger than that is a rolling one: the last S entries stay.

    Args:
        cache: S entries, by name; "positions" (B, S) is among them.
        new: T of each.
        cache_index: integer scalar, the number of entries written before, at any size of the cache.
        update: any of the functions above.
        window: the bandwidth of the layer on the left, if bounded.
        are_candidates: True if the new tokens are candidates for one position; otherwise they are consecutive, and
            the first of them may attend to entries that the last of them replace.

    Returns:
        The entries that the new tokens may attend to, and the cache.

    Raises:
        ValueError: if the cache is known to be too small.
    """
    size, count = cache["positions"].shape[1], new["positions"].shape[1]
    rolling = rolls(size, window, update)
    if rolling and not are_candidates and count != 1:
        seen = {name: append_update(cache[name], new[name], cache_index) for name in cache}
        return seen, {name: rolling_update(cache[name], new[name], cache_index) for name in cache}
    if rolling and (count != 1 or update is grow_update):
        cache = {name: rolling_update(cache[name], new[name], cache_index) for name in cache}
        return cache, cache
    known = all(isinstance(number, int) for number in (size, count, cache_index))
    if known and not rolling and not grows(update) and cache_index + count > size:
        raise ValueError(
            f"`cache_index` must leave room for {count} entries in a cache of {size}. "
            f"Received: cache_index={cache_index}"
        )
    at = ops.mod(cache_index, size) if rolling else cache_index
    cache = {name: update(cache[name], new[name], at) for name in cache}
    return cache, cache


def rolls(size: int | None, window: int | None, update: Update) -> bool:
    """Return True if a cache of `size` entries is a rolling one."""
    return window is not None and size is not None and size > window and update is not append_update


def rolling_token_indices(count: Any, size: int) -> Tensor:
    """Return the index of each entry's token among `count` in a rolling cache, (S,); negative for empty entries."""
    last = count - 1
    return last - ops.mod(last + size - ops.arange(size), size)


def _axis(cache: Tensor) -> int:
    """The axis of entries."""
    return max(len(cache.shape) - 2, 1)


def _along(axis: int, values: Tensor, cache: Tensor) -> Tensor:
    """(S,) as a tensor that broadcasts to the cache."""
    shape = [1] * len(cache.shape)
    shape[axis] = -1
    return ops.reshape(values, shape)
