"""Attention on tiles of the T×S matrix: what the blockwise kernels share.

A tile is C blocks of queries beside C blocks of keys. Its weights are computed, used and forgotten; the backward
pass computes them again from the logarithm of each query's sum.

Axes: C blocks, B batch, N query heads, K key/value heads, G = N / K, b queries and s keys of a block, F features,
V value size. Parameters are the tensors that gradients flow to.
"""

import dataclasses
import functools
import operator
from typing import Any

from keras import ops

from keras_transformer.ops.attention_inputs import LOWEST_SCORE, UNRELATED, Problem
from keras_transformer.ops.biases import PositionBias
from keras_transformer.ops.random import keep_mask

Tensor = Any
State = tuple[Tensor, Tensor, Tensor]
Parameters = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]  # of the position bias, of the score


@dataclasses.dataclass(frozen=True, eq=False)
class Tile:
    """C blocks of queries and of keys, and what is said about their pairs."""

    query: Tensor  # (C, B, K, G·b, F)
    key: Tensor  # (C, B, K, s, F)
    value: Tensor  # (C, B, K, s, V)
    query_indices: Tensor  # (C, b)
    key_indices: Tensor  # (C, s)
    query_positions: Tensor | None = None  # (C, B|1, b)
    key_positions: Tensor | None = None  # (C, B|1, s)
    padding_mask: Tensor | None = None  # (C, B, s)
    query_segments: Tensor | None = None  # (C, B, b)
    key_segments: Tensor | None = None  # (C, B, s)
    mask: Tensor | None = None  # (C, B|1, N|1, b|1, s|1)
    bias: Tensor | None = None  # (C, B|1, N|1, b|1, s|1)
    seed: Tensor | None = None  # two integers


@dataclasses.dataclass(frozen=True, eq=False)
class Arithmetic:
    """The computations of a problem on one tile.

    Args:
        problem: what is computed.
        key_limit: S, where tiles reach beyond the last key or before the first; None where they do not.
    """

    problem: Problem
    key_limit: int | None

    def start(self, query: Tensor, value: Tensor) -> State:
        """The state of queries (…, B, K, G·b, F) that have met no key: largest logit, sum, expectation."""
        rows = self._by_head(ops.cast(query[..., :1], self.problem.exact_dtype))  # (…, B, N, b, 1)
        zero = ops.zeros_like(rows)
        return zero + UNRELATED, zero, ops.repeat(zero, value.shape[-1], axis=-1)

    def meet(self, state: State, tile: Tile, parameters: Parameters, predicate: bool) -> State:
        """The state after a tile of keys more: the online softmax.

        Args:
            state: (C, B, N, b, ·) three times.
            tile: of the same queries.
            parameters: of bias and score.
            predicate: whether the relation has to be applied; not where it holds all over the tile.
        """
        largest, total, output = state
        _, logits = self._logits(tile, parameters, predicate)
        # Backends fuse the softmax; the largest of its weights, exp(0) over their sum, tells the sum.
        weights = ops.softmax(logits, axis=-1)
        met = ops.max(logits, axis=-1, keepdims=True)
        total_met = 1.0 / ops.max(weights, axis=-1, keepdims=True)
        if self.problem.dropout:
            weights = self._drop(weights, self._kept(tile))
        summed = ops.matmul(self.by_group(ops.cast(weights, tile.value.dtype), tile.query), tile.value)
        summed = self._by_head(ops.cast(summed, output.dtype))
        new_largest = ops.maximum(largest, met)
        reference = _finite(new_largest)
        total, total_met = total * ops.exp(largest - reference), total_met * ops.exp(met - reference)
        share = total_met / ops.maximum(total + total_met, 1.0)  # the largest adds 1, so no sum is smaller
        return new_largest, total + total_met, output + share * (summed - output)

    @staticmethod
    def finish(state: State) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The output (…, N, b, V), zeros where no key was met, and what `gradients` needs of the sum.

        That is, the largest logit and the sum of exponentials above it, (…, N, b, 1) both: their combination would lose
        the sum beside a logit of −10⁹.
        """
        largest, total, output = state
        return output, (_finite(largest), ops.where(total > 0, total, ops.ones_like(total)))

    def gradients(
        self,
        tile: Tile,
        parameters: Parameters,
        predicate: bool,
        upstream: Tensor,
        largest: Tensor,
        expectation: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Parameters]:
        """What a tile adds to the gradients by query, key, value, bias tensor and parameters.

        Args:
            tile: as `meet` got it.
            parameters: of bias and score.
            predicate: as `meet` got it.
            upstream: the gradient by the output over the sum, (C, B, K, G·b, V) in the value's type.
            largest: as `finish` gave it, (C, B, N, b, 1).
            expectation: Σ_j α_ij ⟨upstream_i, v_j⟩ = ⟨upstream_i, output_i⟩, (C, B, N, b, 1).
        """
        compared, logits = self._logits(tile, parameters, predicate)
        weights = ops.exp(logits - largest)  # times the sum
        by_weight = self._by_head(ops.matmul(upstream, _swap(tile.value)))
        by_weight = ops.cast(by_weight, self.problem.exact_dtype)
        kept_weights = weights
        if self.problem.dropout:
            kept = self._kept(tile)
            kept_weights, by_weight = self._drop(weights, kept), self._drop(by_weight, kept)
        by_value = ops.matmul(
            _swap(self.by_group(ops.cast(kept_weights, upstream.dtype), tile.query)), upstream
        )
        by_logit = weights * (by_weight - expectation)  # (C, B, N, b, s)
        if self.problem.bias is not None:
            by_logit = ops.where(logits > LOWEST_SCORE, by_logit, ops.zeros_like(by_logit))
        by_bias, by_bias_parameters = self._bias_gradients(tile, parameters[0], by_logit)
        by_compared = self.problem.score.link_gradient(compared, by_logit)
        by_query, by_key, by_score_parameters = self.problem.score.compare_gradient(
            tile.query,
            tile.key,
            parameters[1],
            self.by_group(ops.cast(by_compared, tile.query.dtype), tile.query),
        )
        return by_query, by_key, by_value, by_bias, (by_bias_parameters, by_score_parameters)

    def _logits(self, tile: Tile, parameters: Parameters, predicate: bool) -> tuple[Tensor, Tensor]:
        """(C, B, N, b, s) twice: what the score compared, and the logits, very low where unrelated."""
        score = self.problem.score
        compared = self._by_head(score.compare(tile.query, tile.key, parameters[1]))
        compared = ops.cast(compared, self.problem.exact_dtype)
        logits = score.link(compared)
        bias = self._position_bias(tile, parameters[0]) if tile.bias is None else tile.bias
        if bias is not None:
            logits = ops.maximum(logits + bias, LOWEST_SCORE)
        allowed = self._allowed(tile, predicate)
        if allowed is not None:
            logits = ops.where(allowed, logits, ops.cast(UNRELATED, logits.dtype))
        return compared, logits

    def _allowed(self, tile: Tile, predicate: bool) -> Tensor | None:
        """Booleans that broadcast to (C, B, N, b, s), or None where every pair may attend."""
        parts = []
        if predicate:
            queries, keys = self._positions(tile)
            related = self.problem.relation.related(queries[..., :, None], keys[..., None, :])
            parts.append(related[:, :, None])  # (C, B|1, 1, b, s)
        if self.key_limit is not None:
            exists = (tile.key_indices >= 0) & (tile.key_indices < self.key_limit)
            parts.append(exists[:, None, None, None, :])
        if tile.padding_mask is not None:
            parts.append(tile.padding_mask[:, :, None, None, :])
        if tile.query_segments is not None and tile.key_segments is not None:
            same = ops.equal(tile.query_segments[..., :, None], tile.key_segments[..., None, :])
            parts.append(same[:, :, None])
        if tile.mask is not None:
            parts.append(tile.mask)
        return functools.reduce(operator.and_, parts) if parts else None

    def _positions(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """(C, B|1, b) and (C, B|1, s)."""
        queries = tile.query_indices[:, None] if tile.query_positions is None else tile.query_positions
        keys = tile.key_indices[:, None] if tile.key_positions is None else tile.key_positions
        return queries, keys

    def _position_bias(self, tile: Tile, parameters: tuple[Tensor, ...]) -> Tensor | None:
        """(C, B|1, N, b, s)."""
        bias = self.problem.bias
        if not isinstance(bias, PositionBias):
            return None
        queries, keys, rows = self._flat_positions(tile)
        found = bias.block(parameters, queries, keys)  # (C·rows, N, b, s)
        shape = ops.shape(found)
        return ops.reshape(ops.cast(found, self.problem.exact_dtype), [tile.query.shape[0], rows, *shape[1:]])

    def _bias_gradients(
        self, tile: Tile, parameters: tuple[Tensor, ...], by_logit: Tensor
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """By the tile of a bias tensor, and by the parameters of a position bias."""
        if tile.bias is not None:
            return _sum_to(by_logit, tile.bias.shape), ()
        bias = self.problem.bias
        if not (isinstance(bias, PositionBias) and parameters):
            return None, ()
        queries, keys, rows = self._flat_positions(tile)
        if isinstance(rows, int) and rows == 1:
            by_logit = ops.sum(by_logit, axis=1)  # (C, N, b, s)
        else:
            by_logit = ops.reshape(by_logit, [-1, *ops.shape(by_logit)[2:]])  # (C·B, N, b, s)
        return None, bias.backward(parameters, queries, keys, by_logit)

    def _flat_positions(self, tile: Tile) -> tuple[Tensor, Tensor, Any]:
        """(C·rows, b, 1), (C·rows, 1, s) and rows, which is B or 1."""
        queries, keys = self._positions(tile)
        shared = queries.shape[1] == 1 and keys.shape[1] == 1
        rows = 1 if shared else ops.shape(tile.query)[1]
        if not shared:
            shape = [tile.query.shape[0], rows]
            queries = ops.broadcast_to(queries, [*shape, queries.shape[-1]])
            keys = ops.broadcast_to(keys, [*shape, keys.shape[-1]])
        return (
            ops.reshape(queries, [-1, queries.shape[-1], 1]),
            ops.reshape(keys, [-1, 1, keys.shape[-1]]),
            rows,
        )

    def _kept(self, tile: Tile) -> Tensor:
        """Which weights dropout keeps, (C, B, N, b, s)."""
        rows = ops.arange(ops.shape(tile.query)[1], dtype="int32")
        heads = ops.arange(self.problem.num_heads, dtype="int32")
        return keep_mask(
            self.problem.dropout,
            tile.seed,
            (
                rows[:, None, None, None],
                heads[:, None, None],
                tile.query_indices[:, None, None, :, None],
                tile.key_indices[:, None, None, None, :],
            ),
        )

    def _drop(self, weights: Tensor, kept: Tensor) -> Tensor:
        return ops.where(kept, weights * (1.0 / (1.0 - self.problem.dropout)), ops.zeros_like(weights))

    def _by_head(self, tensor: Tensor) -> Tensor:
        """(…, K, G·b, ·) → (…, N, b, ·)."""
        groups = self.problem.num_heads // self.problem.kv_heads
        if groups == 1:
            return tensor
        *leading, kv_heads, rows, size = ops.shape(tensor)
        return ops.reshape(tensor, [*leading, kv_heads * groups, rows // groups, size])

    def by_group(self, tensor: Tensor, query: Tensor) -> Tensor:
        """(…, N, b, ·) → (…, K, G·b, ·), as `query` is."""
        if self.problem.num_heads == self.problem.kv_heads:
            return tensor
        *leading, _, _, size = ops.shape(tensor)
        return ops.reshape(tensor, [*leading, *query.shape[-3:-1], size])


def _finite(largest: Tensor) -> Tensor:
    """The largest logit, or zero where no key was related."""
    return ops.where(largest > LOWEST_SCORE * 10, largest, ops.zeros_like(largest))


def _sum_to(tensor: Tensor, shape: tuple[int | None, ...]) -> Tensor:
    """The sum over the axes along which a tensor of `shape` was broadcast."""
    axes = [axis for axis, size in enumerate(shape) if size == 1 and tensor.shape[axis] != 1]
    return ops.sum(tensor, axis=axes, keepdims=True) if axes else tensor


def _swap(tensor: Tensor) -> Tensor:
    axes = list(range(len(tensor.shape)))
    return ops.transpose(tensor, [*axes[:-2], axes[-1], axes[-2]])
