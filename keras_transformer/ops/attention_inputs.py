"""What `attention` was asked for, once it has been checked: the form in which kernels take it.

Axes: B batch, T queries, S keys, N query heads, K key/value heads, G = N / K, F features, V value size.
"""

import dataclasses
import functools
import operator
from typing import Any

from keras import backend, ops

from keras_transformer.ops.biases import PositionBias
from keras_transformer.ops.random import check_rate, keep_mask
from keras_transformer.ops.scores import Score
from keras_transformer.ops.shapes import (
    check_bias,
    check_edges,
    check_heads,
    check_masks,
    check_positions,
    check_tensors,
)
from keras_transformer.relations import Bipartite, Full, Relation

Tensor = Any

# Finite, so that no row turns to NaN, and so far below the lowest score that softmax makes it an exact 0.
UNRELATED = -1e30
LOWEST_SCORE = -1e25


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionInputs:
    """The arguments of `attention`; see there.

    Raises:
        ValueError: where they do not fit together.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    relation: Relation
    score: Score
    bias: Tensor | PositionBias | None = None
    mask: Tensor | None = None
    padding_mask: Tensor | None = None
    segment_ids: Tensor | None = None
    edges: Tensor | None = None
    query_positions: Tensor | None = None
    key_positions: Tensor | None = None
    dropout: float = 0.0
    seed: Tensor | None = None

    def __post_init__(self) -> None:
        check_tensors(self.query, self.key, self.value)
        check_masks(self.query, self.key, self.mask, self.padding_mask, self.segment_ids)
        check_edges(self.query, self.edges)
        check_positions(self.query, self.key, self.query_positions, self.key_positions)
        if isinstance(self.bias, PositionBias):
            check_heads("bias", self.bias.num_heads, self.num_heads)
        else:
            check_bias(self.query, self.key, self.bias)
        check_heads("score", self.score.num_heads, self.num_heads)
        check_rate("dropout", self.dropout)
        if self.dropout and self.seed is None:
            raise ValueError(
                f"`seed` must be given where `dropout` > 0. Received: dropout={self.dropout}, seed=None"
            )

    @property
    def batch_size(self) -> int | None:
        """B, or None where only the computation will tell: JAX has symbols for that."""
        size = self.query.shape[0]
        return size if isinstance(size, int) else None

    @property
    def num_queries(self) -> Any:
        """T, or None where only the computation will tell."""
        return self.query.shape[1]

    @property
    def num_keys(self) -> Any:
        """S, likewise."""
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
        """The type of softmax and of what is summed up: float32, or better where the inputs are."""
        return "float64" if backend.standardize_dtype(self.query.dtype) == "float64" else "float32"

    @property
    def at_indices(self) -> bool:
        """Whether positions are the indices 0, 1, 2, …, so that a block map says what may be skipped."""
        return self.query_positions is None and self.key_positions is None

    def features(self) -> tuple[Tensor, Tensor]:
        """What the score compares: (B, T, N, F) and (B, S, K, F)."""
        return self.score.features(self.query, self.key)

    def mask_of_four_axes(self) -> Tensor | None:
        """The mask as booleans (B|1, N|1, T|1, S|1)."""
        return None if self.mask is None else _with_four_axes(ops.cast(self.mask, "bool"))

    def bias_of_four_axes(self) -> Tensor | None:
        """A bias that is a tensor, as (B|1, N|1, T|1, S|1)."""
        if self.bias is None or isinstance(self.bias, PositionBias):
            return None
        return _with_four_axes(ops.cast(self.bias, self.accumulator_dtype))

    def bias_parameters(self) -> tuple[Tensor, ...]:
        """Of a bias that depends on positions."""
        return self.bias.parameters if isinstance(self.bias, PositionBias) else ()

    def positions(self) -> tuple[Tensor, Tensor]:
        """Of queries, ([B,] T), and of keys, ([B,] S)."""
        return (
            _positions(self.query, self.query_positions),
            _positions(self.key, self.key_positions),
        )

    def allowed(self) -> Tensor | None:
        """Which pairs may attend, broadcastable to (B, N, T, S); None where all may."""
        parts = []
        if not isinstance(self.relation, Full | Bipartite):
            queries, keys = self.positions()
            related = self.relation.related(
                ops.expand_dims(queries, -1), ops.expand_dims(keys, -2)
            )  # ([B,] T, S)
            parts.append(related[:, None] if len(related.shape) == 3 else related[None, None])
        if self.edges is not None:
            parts.append(edges_to_mask(self.edges, ops.shape(self.query)[1], ops.shape(self.key)[1]))
        if self.mask is not None:
            parts.append(self.mask_of_four_axes())
        if self.padding_mask is not None:
            parts.append(ops.cast(self.padding_mask, "bool")[:, None, None, :])
        if self.segment_ids is not None:
            segments = ops.convert_to_tensor(self.segment_ids)
            parts.append(ops.equal(segments[:, None, :, None], segments[:, None, None, :]))
        return functools.reduce(operator.and_, parts) if parts else None

    def keep(self, rows: Tensor, heads: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        """Which attention weights dropout keeps, by batch row, head, query index and key index."""
        return keep_mask(self.dropout, self.seed, (rows, heads, queries, keys))


def edges_to_mask(edges: Tensor, num_queries: Any, num_keys: Any) -> Tensor:
    """Booleans (B, 1, T, S) of edges (B, E, 2) [source, target]."""
    edges = ops.cast(edges, "int32")
    source, target = edges[..., 0], edges[..., 1]
    batch = ops.shape(edges)[0]
    real = (source >= 0) & (target >= 0) & (source < num_keys) & (target < num_queries)
    row = ops.arange(batch, dtype="int32")[:, None]
    flat = ops.where(real, (row * num_queries + target) * num_keys + source, batch * num_queries * num_keys)
    count = ops.segment_sum(
        ops.ones_like(ops.reshape(flat, [-1])), ops.reshape(flat, [-1]), batch * num_queries * num_keys + 1
    )
    return ops.reshape(count[:-1] > 0, [batch, 1, num_queries, num_keys])


def _with_four_axes(tensor: Tensor) -> Tensor:
    return ops.reshape(tensor, [1] * (4 - len(tensor.shape)) + list(ops.shape(tensor)))


def _positions(tensor: Tensor, positions: Tensor | None) -> Tensor:
    """Integers (L,) or (B, L): those given, or 0, 1, 2, …"""
    if positions is None:
        return ops.arange(ops.shape(tensor)[1], dtype="int32")
    return ops.cast(positions, "int32")
