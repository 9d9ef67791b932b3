"""Key/value caches: strategies to store the keys and values of earlier tokens during generation."""

import abc
import dataclasses
from typing import Any

import keras
from keras import ops

from keras_transformer import xla
from keras_transformer.typing import Tensor

State = dict[str, Tensor]


class KVCache(abc.ABC):
    """Base class of the strategies to store the keys and values of a self-attention layer.

    A strategy is an immutable object that holds no tensors. The state of a layer is a dictionary of tensors, which
    `keras.ops.while_loop` can carry on every backend: "key", "value" and "positions" (B, S), −1 for empty entries.

    Keys are (B, K, S, H) and values (B, K, S, V); if the cache is written in place, their first two axes are merged to
    one of size B × K, since XLA copies a tensor with an axis of size one, such as the axis of a single sample.

    Attributes:
        in_place: True if entries are written by an operation that XLA runs in place.
        drops_rows: True if rows of the batch that have ended may leave it.
        appends: True if all entries are tokens that were written before the new ones.
    """

    in_place: bool
    drops_rows: bool = False
    appends: bool = False

    def allocate(
        self,
        batch_size: Any,
        length: Any,
        *,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        dtype: str,
        window: int | None = None,
        hypotheses: int = 1,
    ) -> State:
        """Return the state of a layer with empty entries.

        Args:
            batch_size: B.
            length: S, the number of entries, returned by `loop_length` for the cache of a loop.
            num_heads: K, the number of key/value heads.
            key_dim: H.
            value_dim: V.
            dtype: the dtype of keys and values.
            window: the relation's bandwidth on the left, if bounded; window + 1 positions are then enough.
            hypotheses: the number of entries of each position.

        Returns:
            The state of the layer.
        """
        length = self._num_entries(length, window, hypotheses)
        shape = (batch_size * num_heads, length) if self.in_place else (batch_size, num_heads, length)
        return {
            "key": ops.zeros((*shape, key_dim), dtype),
            "value": ops.zeros((*shape, value_dim), dtype),
            "positions": ops.full((batch_size, length), -1, "int32"),
        }

    def write(
        self, state: State, new: State, cache_index: Any, are_candidates: bool = False
    ) -> tuple[State, State]:
        """Write the keys, values and positions of T new tokens into the cache.

        Args:
            state: the state of the layer.
            new: "key" (B, T, K, H), "value" (B, T, K, V) and "positions" (B, T), −1 for padding.
            cache_index: integer scalar, the number of tokens written before; it may exceed the size of the cache.
            are_candidates: True if the new tokens are candidates for one position. Otherwise they are consecutive, and
                the first of them may attend to entries that later ones replace.

        Returns:
            The entries that the new tokens may attend to, for `read`, and the new state.

        Raises:
            ValueError: if the cache is too small and all sizes are static.
        """
        new = {
            name: self._to_layout(values) if len(values.shape) == 4 else values
            for name, values in new.items()
        }
        return self._write(state, new, cache_index, are_candidates)

    def read(self, entries: State, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the keys (B, S, K, H), values (B, S, K, V) and positions (B, S) of entries."""
        keys, values = (self._from_layout(entries[name], num_heads) for name in ("key", "value"))
        return keys, values, entries["positions"]

    def for_window(self, window: int | None, size: int | None) -> "KVCache":
        """Return the strategy for a layer with a bandwidth of `window` on the left and a cache of `size` entries."""
        del window, size
        return self

    def loop_length(self, length: Any, inputs: Tensor) -> Any:
        """Return the `length` to allocate for a loop over at most `length` tokens.

        Args:
            length: the largest number of tokens.
            inputs: any tensor of the loop that is not a constant.

        Returns:
            An integer, or an integer scalar tensor.

        Raises:
            ValueError: if loops of the backend cannot carry the cache.
        """
        del inputs
        return length

    def entries_mask(self, attention_mask: Tensor, count: Any, size: int | None) -> Tensor:
        """Select the columns of an attention mask (B, T, `count`) over all tokens for the entries of the cache."""
        del count, size
        return attention_mask

    @abc.abstractmethod
    def _write(self, state: State, new: State, cache_index: Any, are_candidates: bool) -> tuple[State, State]:
        """Implement `write` for new entries in the layout of the cache."""

    def _num_entries(self, length: Any, window: int | None, hypotheses: int) -> Any:
        """Return the number of entries to allocate; see `allocate`."""
        if window is None:
            return length
        enough = (window + 1) * hypotheses
        return min(length, enough) if isinstance(length, int) else enough

    def _to_layout(self, heads: Tensor) -> Tensor:
        """Convert (B, T, K, …) to the layout of the cache."""
        heads = _swapped(heads)
        return ops.reshape(heads, [-1, *ops.shape(heads)[2:]]) if self.in_place else heads

    def _from_layout(self, entries: Tensor, num_heads: int) -> Tensor:
        """Convert the layout of the cache to (B, S, K, …)."""
        if self.in_place:
            entries = ops.reshape(entries, [-1, num_heads, *ops.shape(entries)[1:]])
        return _swapped(entries)


@dataclasses.dataclass(frozen=True)
class StaticCache(KVCache):
    """A cache with a fixed number of entries; layers with a bounded window use a `RollingCache`.

    Args:
        in_place: True to update a slice, which XLA does in place, where it is enabled (see `xla`); False to select by
            index, for ONNX and for TensorFlow without XLA.
    """

    in_place: bool = True

    def insert(self, tensor: Tensor, new: Tensor, index: Any) -> Tensor:
        """Write `new` (…, T, H) over `tensor` (…, S, H), or (B, T) over (B, S), from `index` on."""
        axis = _axis(tensor)
        new = ops.cast(new, tensor.dtype)
        if self.in_place and xla.is_enabled():
            start = [0] * len(tensor.shape)
            start[axis] = index
            return ops.slice_update(tensor, start, new)
        # The offset of each entry from the first new one.
        offset = ops.arange(ops.shape(tensor)[axis]) - index
        count = ops.shape(new)[axis]
        if new.shape[axis] != 1:  # one token broadcasts over the entries
            new = ops.take(new, ops.clip(offset, 0, count - 1), axis=axis)
        is_new = ops.logical_and(offset >= 0, offset < count)
        return ops.where(_along(axis, is_new, tensor), new, tensor)

    def for_window(self, window: int | None, size: int | None) -> KVCache:
        """Return a rolling cache if the cache has more entries than the window; see the base class."""
        return self if window is None or size is None or size <= window else RollingCache(self.in_place)

    def _write(self, state: State, new: State, cache_index: Any, are_candidates: bool) -> tuple[State, State]:
        size, count = state["positions"].shape[1], new["positions"].shape[1]
        known = all(isinstance(number, int) for number in (size, count, cache_index))
        if known and cache_index + count > size:
            raise ValueError(
                f"`cache_index` must be at most {size - count} to write {count} entries into a cache of {size}. "
                f"Received: cache_index={cache_index}"
            )
        state = {name: self.insert(values, new[name], cache_index) for name, values in state.items()}
        return state, state


@dataclasses.dataclass(frozen=True)
class RollingCache(KVCache):
    """A cache of the last S tokens, for a layer with a bounded window: token t is stored in entry t mod S.

    Args:
        in_place: as in `StaticCache`.
    """

    in_place: bool = True

    def entries_mask(self, attention_mask: Tensor, count: Any, size: int | None) -> Tensor:
        """Select the columns of the tokens stored in the entries; see the base class."""
        return ops.take(attention_mask, ops.maximum(token_indices(count, size), 0), axis=2)

    def _write(self, state: State, new: State, cache_index: Any, are_candidates: bool) -> tuple[State, State]:
        size, count = state["positions"].shape[1], new["positions"].shape[1]
        if count == 1 and self.in_place:
            index = ops.mod(cache_index, size)
            rolled = {name: StaticCache().insert(values, new[name], index) for name, values in state.items()}
        else:
            rolled = {name: _roll(values, new[name], cache_index) for name, values in state.items()}
        if count == 1 or are_candidates:
            return rolled, rolled
        return {name: _append(values, new[name]) for name, values in state.items()}, rolled


@dataclasses.dataclass(frozen=True)
class GrowingCache(KVCache):
    """A cache that starts empty and grows by concatenation, which copies least in TensorFlow without XLA and in ONNX.

    Loops of TensorFlow may carry tensors that grow; those of JAX may not.

    Args:
        rolling: True to use a `RollingCache` for layers with a bounded window; False to keep all tokens, for graphs of
            a single step whose caller keeps the cache.
        drops_rows: True if rows of the batch that have ended may leave it; False to keep all rows, for converters that
            do not support a loop in a loop.
    """

    rolling: bool = True
    drops_rows: bool = True
    in_place = False
    appends = True

    def for_window(self, window: int | None, size: int | None) -> KVCache:
        """Return a rolling cache for a bounded window; see the base class."""
        return RollingCache(self.in_place) if window is not None and self.rolling else self

    def loop_length(self, length: Any, inputs: Tensor) -> Any:
        """Return zero as a tensor that is not static: TensorFlow loops require static sizes to stay constant."""
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"`kv_cache` must have a fixed size on the {keras.backend.backend()} backend: use `ops.StaticCache`. "
                f"Received: kv_cache={self}"
            )
        return zero_size(inputs)

    def entries_mask(self, attention_mask: Tensor, count: Any, size: int | None) -> Tensor:
        """Select the columns of the tokens written so far; see the base class."""
        return ops.take(attention_mask, ops.arange(count), axis=2)  # in ONNX fewer operations than a slice

    def _write(self, state: State, new: State, cache_index: Any, are_candidates: bool) -> tuple[State, State]:
        state = {name: _append(values, new[name]) for name, values in state.items()}
        return state, state

    def _num_entries(self, length: Any, window: int | None, hypotheses: int) -> Any:
        return (window + 1) * hypotheses if window is not None and self.rolling else length


def zero_size(values: Tensor) -> Tensor:
    """Return 0 as a size that is not static, computed from values (B,) of any integers or booleans."""
    # ONNX Runtime cannot reduce an empty axis on a GPU.
    return ops.sum(ops.pad(ops.cast(values[:0], "int32"), [[0, 1]]))


def token_indices(count: Any, size: Any) -> Tensor:
    """Return the index of the token in each entry of a rolling cache after `count` tokens, (S,); negative if empty."""
    last = count - 1
    return last - ops.mod(last + size - ops.arange(size), size)


def _append(cache: Tensor, new: Tensor) -> Tensor:
    return ops.concatenate([cache, ops.cast(new, cache.dtype)], axis=_axis(cache))


def _roll(cache: Tensor, new: Tensor, cache_index: Any) -> Tensor:
    """Write `new` (…, T, H) cyclically over `cache` (…, S, H) from entry `cache_index` mod S on; keep the last S."""
    axis = _axis(cache)
    size, count = cache.shape[axis], ops.shape(new)[axis]
    # The age of each entry in tokens. The dividend is not negative, since `mod` rounds towards zero in ONNX.
    age = ops.mod(cache_index + count - 1 + size - ops.arange(size), size)
    entry = ops.take(new, ops.maximum(count - 1 - age, 0), axis=axis)
    return ops.where(_along(axis, age < count, cache), ops.cast(entry, cache.dtype), cache)


def _axis(cache: Tensor) -> int:
    """Return the axis of entries: the second to last, or the last of two axes."""
    return max(len(cache.shape) - 2, 1)


def _along(axis: int, values: Tensor, cache: Tensor) -> Tensor:
    """Reshape (S,) to broadcast to the cache."""
    shape = [1] * len(cache.shape)
    shape[axis] = -1
    return ops.reshape(values, shape)


def _swapped(tensor: Tensor) -> Tensor:
    """Transpose (B, S, K, …) to (B, K, S, …) or back; two transposes cancel in a compiled graph."""
    return ops.transpose(tensor, (0, 2, 1, 3))
