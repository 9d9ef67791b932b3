"""The validated inputs of `attention`, which every kernel takes.

Axes: B batch, T queries, S keys, N query heads, K key/value heads, G = N / K, F features, V value size.
"""

import dataclasses
import functools
import operator
from typing import Any

import numpy as np
from keras import backend, ops

from keras_transformer.ops.biases import PositionBias
from keras_transformer.ops.random import check_rate, drop, keep_mask
from keras_transformer.ops.scores import Score
from keras_transformer.relations import Full, Relation
from keras_transformer.typing import Tensor

# Finite, to keep fully masked rows free of NaN, and far enough below the lowest score for a weight of exactly 0.
UNRELATED = -1e30
LOWEST_SCORE = -1e25


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionInputs:
    """The validated arguments of `attention`."""

    query: Tensor
    key: Tensor
    value: Tensor
    relation: Relation
    score: Score
    bias: Tensor | PositionBias | None = None
    mask: Tensor | None = None
    padding_mask: Tensor | None = None
    key_lengths: Tensor | None = None
    segment_ids: Tensor | None = None
    edges: Tensor | None = None
    query_positions: Tensor | None = None
    key_positions: Tensor | None = None
    dropout: float = 0.0
    seed: Tensor | None = None

    def __post_init__(self) -> None:
        _check_tensors(self.query, self.key, self.value)
        _check_masks(self.query, self.key, self.mask, self.padding_mask, self.segment_ids)
        _check_key_lengths(self.query, self.key_lengths)
        check_edges(self.query, self.edges)
        _check_positions(self.query, self.key, self.query_positions, self.key_positions)
        if isinstance(self.bias, PositionBias):
            _check_heads("bias", self.bias.num_heads, self.num_heads)
        else:
            _check_bias(self.query, self.key, self.bias)
        _check_heads("score", self.score.num_heads, self.num_heads)
        check_rate("dropout", self.dropout)
        if self.dropout and self.seed is None:
            raise ValueError(
                f"`seed` must be passed if `dropout` > 0. Received: dropout={self.dropout}, seed=None"
            )

    @property
    def batch_size(self) -> int | None:
        """B, or None if not static; JAX's symbolic sizes count as not static."""
        size = self.query.shape[0]
        return size if isinstance(size, int) else None

    @property
    def num_queries(self) -> Any:
        """T, or None if not static."""
        return self.query.shape[1]

    @property
    def num_keys(self) -> Any:
        """S, or None if not static."""
        return self.key.shape[1]

    @property
    def num_heads(self) -> int:
        """N."""
        heads: int = self.query.shape[2]
        return heads

    @property
    def kv_heads(self) -> int:
        """K."""
        heads: int = self.key.shape[2]
        return heads

    @property
    def accumulator_dtype(self) -> str:
        """The dtype of softmax and sums: float64 for float64 inputs, else float32."""
        return "float64" if backend.standardize_dtype(self.query.dtype) == "float64" else "float32"

    @property
    def at_indices(self) -> bool:
        """True if positions are the indices 0, 1, 2, …, to which block classes and edges refer."""
        return self.query_positions is None and self.key_positions is None

    def with_padding_mask(self) -> "AttentionInputs":
        """Return the same inputs with a padding mask in place of `key_lengths`."""
        if self.key_lengths is None:
            return self
        lengths = ops.cast(self.key_lengths, "int32")
        padding_mask = ops.arange(ops.shape(self.key)[1], dtype="int32") < lengths[:, None]
        if self.padding_mask is not None:
            padding_mask = ops.logical_and(padding_mask, ops.cast(self.padding_mask, "bool"))
        return dataclasses.replace(self, padding_mask=padding_mask, key_lengths=None)

    def features(self) -> tuple[Tensor, Tensor]:
        """Return the features of queries (B, T, N, F) and keys (B, S, K, F) that the score compares."""
        return self.score.features(self.query, self.key)

    def mask_of_four_axes(self) -> Tensor | None:
        """Return the mask as booleans (B|1, N|1, T|1, S|1), or None without a mask."""
        return None if self.mask is None else _with_four_axes(ops.cast(self.mask, "bool"))

    def bias_of_four_axes(self) -> Tensor | None:
        """Return the bias tensor as (B|1, N|1, T|1, S|1), or None without a bias tensor."""
        if self.bias is None or isinstance(self.bias, PositionBias):
            return None
        return _with_four_axes(ops.cast(self.bias, self.accumulator_dtype))

    def bias_parameters(self) -> tuple[Tensor, ...]:
        """Return the parameters of a `PositionBias`; a bias tensor has none."""
        return self.bias.parameters if isinstance(self.bias, PositionBias) else ()

    def positions(self) -> tuple[Tensor, Tensor]:
        """Return the positions of queries, ([B,] T), and of keys, ([B,] S)."""
        return (
            _positions(self.query, self.query_positions),
            _positions(self.key, self.key_positions),
        )

    def allowed(self) -> Tensor | None:
        """Return the mask of pairs that may attend, booleans that broadcast to (B, N, T, S), or None for all pairs."""
        masks = []
        if not isinstance(self.relation, Full):
            queries, keys = self.positions()
            related = self.relation.related(
                ops.expand_dims(queries, -1), ops.expand_dims(keys, -2)
            )  # ([B,] T, S)
            masks.append(related[:, None] if len(related.shape) == 3 else related[None, None])
        if self.edges is not None:
            masks.append(edges_to_mask(self.edges, ops.shape(self.query)[1], ops.shape(self.key)[1]))
        if self.mask is not None:
            masks.append(self.mask_of_four_axes())
        if self.padding_mask is not None:
            masks.append(ops.cast(self.padding_mask, "bool")[:, None, None, :])
        if self.segment_ids is not None:
            segments = ops.convert_to_tensor(self.segment_ids)
            masks.append(ops.equal(segments[:, None, :, None], segments[:, None, None, :]))
        return functools.reduce(operator.and_, masks) if masks else None

    def drop(self, weights: Tensor, samples: Tensor, heads: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        """Apply dropout to weights at indices of samples, heads, queries and keys."""
        return drop(
            weights, keep_mask(self.dropout, self.seed, (samples, heads, queries, keys)), self.dropout
        )


def edges_to_mask(edges: Tensor, num_queries: Any, num_keys: Any) -> Tensor:
    """Convert edges (B, E, 2), pairs [source, target], to a boolean mask (B, 1, T, S)."""
    edges = ops.cast(edges, "int32")
    source, target = edges[..., 0], edges[..., 1]
    batch = ops.shape(edges)[0]
    is_valid = (source >= 0) & (target >= 0) & (source < num_keys) & (target < num_queries)
    row = ops.arange(batch, dtype="int32")[:, None]
    flat = ops.where(
        is_valid, (row * num_queries + target) * num_keys + source, batch * num_queries * num_keys
    )
    count = ops.segment_sum(
        ops.ones_like(ops.reshape(flat, [-1])), ops.reshape(flat, [-1]), batch * num_queries * num_keys + 1
    )
    return ops.reshape(count[:-1] > 0, [batch, 1, num_queries, num_keys])


def _with_four_axes(tensor: Tensor) -> Tensor:
    return ops.reshape(tensor, [1] * (4 - len(tensor.shape)) + list(ops.shape(tensor)))


def _positions(tensor: Tensor, positions: Tensor | None) -> Tensor:
    """Return positions as integers (L,) or (B, L), by default 0, 1, 2, …"""
    if positions is None:
        return ops.arange(ops.shape(tensor)[1], dtype="int32")
    return ops.cast(positions, "int32")


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise a ValueError unless the shapes are (B, T, N, H), (B, S, K, H) and (B, S, K, V), K a divisor of N."""
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        if len(tensor.shape) != 4:
            raise ValueError(
                f"`{name}` must have four axes (batch, length, heads, size). "
                f"Received: {name}.shape={tuple(tensor.shape)}"
            )
    shapes = ", ".join(f"{name}.shape={tuple(tensor.shape)}" for name, tensor in tensors.items())
    if not (_same(query.shape[0], key.shape[0]) and _same(key.shape[0], value.shape[0])):
        raise ValueError(f"`query`, `key` and `value` must have the same batch size. Received: {shapes}")
    if not _same(key.shape[1], value.shape[1]):
        raise ValueError(f"`key` and `value` must have the same length. Received: {shapes}")
    dtype = backend.standardize_dtype(query.dtype)
    if "float" not in dtype:
        raise ValueError(f"`query` must have a floating-point dtype. Received: query.dtype={dtype}")
    if query.shape[3] != key.shape[3]:
        raise ValueError(f"`query` and `key` must have heads of the same size. Received: {shapes}")
    if key.shape[2] != value.shape[2] or query.shape[2] % key.shape[2]:
        raise ValueError(
            "`key` and `value` must have the same number of heads, a divisor of the number of query heads. "
            f"Received: {shapes}"
        )


def _check_masks(
    query: Tensor, key: Tensor, mask: Tensor | None, padding_mask: Tensor | None, segment_ids: Tensor | None
) -> None:
    """Raise a ValueError unless the masks are boolean or integer and fit queries and keys."""
    batch, queries, heads = query.shape[:3]
    keys = key.shape[1]
    if padding_mask is not None:
        _check_fit("padding_mask", padding_mask, ("B", "S"), (batch, keys))
        _check_not_float("padding_mask", padding_mask, "boolean, False at padding")
    if segment_ids is not None:
        _check_fit("segment_ids", segment_ids, ("B", "T"), (batch, queries))
        _check_fit("segment_ids", segment_ids, ("B", "S"), (batch, keys))
        _check_not_float("segment_ids", segment_ids, "integers")
    if mask is not None:
        mask = ops.convert_to_tensor(mask)
        rank = len(mask.shape)
        _check_not_float(
            "mask",
            mask,
            "boolean, True where a query may attend; `relations.from_additive` converts an additive mask",
        )
        if rank > 4:
            raise ValueError(f"`mask` must have at most four axes. Received: mask.shape={tuple(mask.shape)}")
        axes, sizes = ("B", "N", "T", "S")[4 - rank :], (batch, heads, queries, keys)[4 - rank :]
        _check_fit("mask", mask, axes, sizes, may_broadcast=True)


def _check_key_lengths(query: Tensor, key_lengths: Tensor | None) -> None:
    """Raise a ValueError unless the lengths are integers (B,)."""
    if key_lengths is not None:
        _check_fit("key_lengths", key_lengths, ("B",), query.shape[:1])
        _check_not_float("key_lengths", key_lengths, "integers")


def _check_positions(
    query: Tensor, key: Tensor, query_positions: Tensor | None, key_positions: Tensor | None
) -> None:
    """Raise a ValueError unless positions are integers (L,) or (B, L)."""
    for name, positions, tensor in (
        ("query_positions", query_positions, query),
        ("key_positions", key_positions, key),
    ):
        if positions is not None:
            positions = ops.convert_to_tensor(positions)
            axes = ("B", "L")[-max(1, len(positions.shape)) :]
            _check_fit(name, positions, axes, tensor.shape[:2][-len(axes) :])
            _check_not_float(name, positions, "integers")


def _check_bias(query: Tensor, key: Tensor, bias: Tensor | None) -> None:
    """Raise a ValueError unless a bias tensor broadcasts to (B, N, T, S)."""
    if bias is None:
        return
    rank = len(ops.convert_to_tensor(bias).shape)
    sizes = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    axes = ("B", "N", "T", "S")
    _check_fit("bias", bias, axes[max(0, 4 - rank) :], sizes[max(0, 4 - rank) :], may_broadcast=True)


def _check_heads(name: str, heads: int | None, expected: int) -> None:
    """Raise a ValueError unless `heads` is None or the query's number of heads."""
    if heads is not None and heads != expected:
        raise ValueError(
            f"`{name}` must have as many heads as the query, {expected}. Received: {heads} heads"
        )


def known_values(tensor: Tensor) -> np.ndarray | None:
    """Return the values of a tensor, or None if it is symbolic."""
    try:
        return np.asarray(tensor)
    except (NotImplementedError, TypeError, ValueError):  # raised by TensorFlow, JAX and Keras, in turn
        return None


def check_edges(query: Tensor, edges: Tensor | None) -> None:
    """Raise a ValueError unless the edges are integers (B, E, 2)."""
    if edges is None:
        return
    edges = ops.convert_to_tensor(edges)
    _check_fit("edges", edges, ("B", "E", "2"), (query.shape[0], None, 2))
    if "int" not in backend.standardize_dtype(edges.dtype):
        raise ValueError(f"`edges` must be integers [source, target]. Received: edges.dtype={edges.dtype}")


def _check_not_float(name: str, tensor: Tensor, expected: str) -> None:
    dtype = backend.standardize_dtype(ops.convert_to_tensor(tensor).dtype)
    if "float" in dtype:
        raise ValueError(f"`{name}` must be {expected}. Received: {name}.dtype={dtype}")


def _check_fit(
    name: str,
    tensor: Tensor,
    axes: tuple[str, ...],
    sizes: tuple[int | None, ...],
    may_broadcast: bool = False,
) -> None:
    shape = tuple(ops.convert_to_tensor(tensor).shape)
    fits = len(shape) == len(sizes) and all(
        _same(actual, size) or (may_broadcast and actual == 1)
        for actual, size in zip(shape, sizes, strict=True)
    )
    if not fits:
        raise ValueError(
            f"`{name}` must {'broadcast to' if may_broadcast else 'be'} ({', '.join(axes)}) = {sizes}. "
            f"Received: {name}.shape={shape}"
        )


def _same(size: int | None, other: int | None) -> bool:
    """Return False if both sizes are static and differ."""
    return size is None or other is None or size == other
