"""Writing new keys and values into a cache.

One signature, several ways: XLA wants a slice written in place; TensorFlow Serving and ONNX have no such operation, and
copy least where a cache grows.

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
    """The same by comparing every index with `cache_index`: converts to ONNX and runs without XLA."""
    axis = _axis(cache)
    # How far each entry stands from the first of the new ones.
    behind = ops.arange(ops.shape(cache)[axis]) - cache_index
    count = ops.shape(new)[axis]
    if new.shape[axis] != 1:  # one token broadcasts over the entries
        new = ops.take(new, ops.clip(behind, 0, count - 1), axis=axis)
    fresh = ops.logical_and(behind >= 0, behind < count)
    return ops.where(_along(axis, fresh, cache), ops.cast(new, cache.dtype), cache)


def append_update(cache: Tensor, new: Tensor, cache_index: Tensor) -> Tensor:
    """Append `new` (…, T, H) to a cache that holds exactly the `cache_index` entries written so far."""
    return ops.concatenate([cache, ops.cast(new, cache.dtype)], axis=_axis(cache))


def grow_update(cache: Tensor, new: Tensor, cache_index: Tensor) -> Tensor:
    """`append_update` for the cache of a TensorFlow loop, which may change its size from step to step.

    Layers that look back no further than a window keep no more than that.
    """
    return append_update(cache, new, cache_index)


def rolling_update(cache: Tensor, new: Tensor, cache_index: Tensor) -> Tensor:
    """Write `new` (…, T, H) over `cache` (…, S, H) from `cache_index` mod S on, round its end: the last S stay."""
    axis = _axis(cache)
    size, count = cache.shape[axis], ops.shape(new)[axis]
    # How many tokens came after each entry's. Nothing negative: as ONNX, `mod` rounds towards zero.
    behind = ops.mod(cache_index + count - 1 + size - ops.arange(size), size)
    entry = ops.take(new, ops.maximum(count - 1 - behind, 0), axis=axis)
    return ops.where(_along(axis, behind < count, cache), ops.cast(entry, cache.dtype), cache)


def grows(update: Update) -> bool:
    """Whether what is written so holds the entries written and no others, and starts with none."""
    return update in (append_update, grow_update)


def write(
    cache: Entries,
    new: Entries,
    cache_index: Any,
    update: Update = slice_update,
    window: int | None = None,
    alternatives: bool = False,
) -> tuple[Entries, Entries]:
    """The entries of T new tokens in the cache of a layer.

    Where the layer looks back no further than a window, a cache larger than that is overwritten from its beginning
    again: the last S entries stay.

    Args:
        cache: S entries, by name; "positions" (B, S) is among them.
        new: T of each.
        cache_index: integer scalar, how many entries were written before, whatever the cache's size.
        update: any of the functions above.
        window: how far back the layer looks, if that is bounded.
        alternatives: whether the new tokens are alternatives for one position; else they come one after the other,
            and the first of them may attend to entries that the last of them replace.

    Returns:
        What the new tokens may attend to, and the cache.

    Raises:
        ValueError: where the cache is too small, if that is known.
    """
    size, count = cache["positions"].shape[1], new["positions"].shape[1]
    rolling = rolls(size, window, update)
    if rolling and not alternatives and count != 1:
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
    """Whether a cache of `size` entries is overwritten from its beginning again."""
    return window is not None and size is not None and size > window and update is not append_update


def held(count: Any, size: int) -> Tensor:
    """Integers (S,): which of `count` tokens each entry of a cache holds that is overwritten again; < 0 for none."""
    last = count - 1
    return last - ops.mod(last + size - ops.arange(size), size)


def _axis(cache: Tensor) -> int:
    """Where the entries stand."""
    return max(len(cache.shape) - 2, 1)


def _along(axis: int, values: Tensor, cache: Tensor) -> Tensor:
    """(S,) as a tensor that broadcasts to the cache."""
    shape = [1] * len(cache.shape)
    shape[axis] = -1
    return ops.reshape(values, shape)
