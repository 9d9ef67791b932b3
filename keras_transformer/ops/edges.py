"""The edges kernel: attention along E edges in O(E) time and memory, by gather, softmax per query and scatter.

Axes: B batch, E edges, T queries, S keys, N query heads, K key/value heads, F features, V value size.
"""

import functools
import operator
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.ops.attention_inputs import LOWEST_SCORE, UNRELATED, AttentionInputs
from keras_transformer.ops.biases import PositionBias
from keras_transformer.relations import Full
from keras_transformer.typing import Tensor


def attend(inputs: AttentionInputs) -> Tensor:
    """Compute attention (B, T, N, V)."""
    edges = _Edges(inputs)
    query, key = inputs.features()
    compared = inputs.score.compare_pairs(
        edges.at_query(query), edges.at_key(key), inputs.score.parameters
    )  # (B·E, N)
    logits = inputs.score.transform(ops.cast(compared, inputs.accumulator_dtype))
    bias = edges.bias()
    if bias is not None:
        logits = ops.maximum(logits + ops.cast(bias, logits.dtype), LOWEST_SCORE)
    allowed = edges.allowed()
    if allowed is not None:
        allowed = ops.broadcast_to(allowed, ops.shape(logits))
        logits = ops.where(allowed, logits, ops.full_like(logits, UNRELATED))
    largest = edges.max_per_query(ops.stop_gradient(logits))  # (B·T, N)
    largest = ops.where(largest > LOWEST_SCORE * 10, largest, ops.zeros_like(largest))
    weights = ops.exp(logits - ops.take(largest, edges.queries, axis=0))
    total = ops.expand_dims(edges.sum_per_query(weights), -1)  # (B·T, N, 1)
    normalizer = 1.0 / (total + ops.cast(total == 0, total.dtype))  # finite for a query without edges
    if inputs.dropout:
        weights = edges.drop(weights)
    values = ops.cast(edges.at_key(inputs.value), weights.dtype)  # (B·E, N, V)
    output = edges.sum_per_query(ops.expand_dims(weights, -1) * values) * normalizer
    output = ops.reshape(output, [-1, edges.num_queries, inputs.num_heads, inputs.value.shape[-1]])
    return ops.cast(output, inputs.value.dtype)


class _Edges:
    """The edges of all graphs of a batch as one list, with duplicates masked."""

    def __init__(self, inputs: AttentionInputs) -> None:
        self.inputs = inputs
        self.num_queries, self.num_keys = ops.shape(inputs.query)[1], ops.shape(inputs.key)[1]
        batch = ops.shape(inputs.query)[0]
        self.segments = batch * self.num_queries
        rows = ops.arange(batch, dtype="int32")[:, None]
        self.exists = None
        if inputs.edges is None:
            pairs = [
                (s, t)
                for s, t in inputs.relation.edges() or ()
                if s < inputs.num_keys and t < inputs.num_queries
            ]
            source, target = np.array(sorted(pairs, key=lambda edge: edge[::-1]), "int32").reshape(-1, 2).T
            source, target = rows * 0 + source, rows * 0 + target
        else:
            source, target, exists = _without_duplicates(inputs.edges, self.num_queries, self.num_keys)
            self.exists = ops.reshape(exists, [-1])
        rows = ops.broadcast_to(rows, ops.shape(source))
        self.source, self.target, self.rows = (ops.reshape(x, [-1]) for x in (source, target, rows))  # (B·E,)
        self.queries = self.rows * self.num_queries + self.target
        self.keys = self.rows * self.num_keys + self.source

    def at_query(self, tensor: Tensor) -> Tensor:
        """Gather (B·E, N, …) from (B, T, N, …) at the query of each edge."""
        return ops.take(ops.reshape(tensor, [-1, *tensor.shape[2:]]), self.queries, axis=0)

    def at_key(self, tensor: Tensor) -> Tensor:
        """Gather (B·E, N, …) from (B, S, K, …) at the key of each edge."""
        keys = ops.take(ops.reshape(tensor, [-1, *tensor.shape[2:]]), self.keys, axis=0)
        groups = self.inputs.num_heads // self.inputs.kv_heads
        return keys if groups == 1 else ops.repeat(keys, groups, axis=1)

    def sum_per_query(self, tensor: Tensor) -> Tensor:
        """Sum (B·E, …) over the edges of each query to (B·T, …)."""
        return ops.segment_sum(tensor, self.queries, self.segments)

    def max_per_query(self, tensor: Tensor) -> Tensor:
        """Return the maximum of (B·E, …) over the edges of each query, (B·T, …).

        A query without edges has the lowest finite number.
        """
        return ops.segment_max(tensor, self.queries, self.segments)

    def bias(self) -> Tensor | None:
        """Return the bias of each edge (B·E, N|1), or None if there is none."""
        if isinstance(self.inputs.bias, PositionBias):
            queries, keys = (positions[:, None, None] for positions in self._positions())
            bias = self.inputs.bias.block(self.inputs.bias.parameters, queries, keys)  # (B·E, N, 1, 1)
            return bias[..., 0, 0]
        bias = self.inputs.bias_of_four_axes()
        return None if bias is None else self._gather_pairs(bias)

    def allowed(self) -> Tensor | None:
        """Return booleans that broadcast to (B·E, N), or None if every edge is allowed."""
        inputs = self.inputs
        masks = []
        if self.exists is not None:
            masks.append(self.exists[:, None])
        if inputs.edges is not None and not isinstance(inputs.relation, Full):
            masks.append(inputs.relation.related(*self._positions())[:, None])
        if inputs.padding_mask is not None:
            padding_mask = ops.reshape(ops.cast(inputs.padding_mask, "bool"), [-1])
            masks.append(ops.take(padding_mask, self.keys, axis=0)[:, None])
        if inputs.segment_ids is not None:
            segments = ops.reshape(inputs.segment_ids, [-1])
            same = ops.equal(ops.take(segments, self.queries, axis=0), ops.take(segments, self.keys, axis=0))
            masks.append(same[:, None])
        mask = inputs.mask_of_four_axes()
        if mask is not None:
            masks.append(self._gather_pairs(mask))
        return functools.reduce(operator.and_, masks) if masks else None

    def drop(self, weights: Tensor) -> Tensor:
        """Apply dropout to the weights (B·E, N)."""
        heads = ops.arange(self.inputs.num_heads, dtype="int32")
        return self.inputs.drop(
            weights, self.rows[:, None], heads, self.target[:, None], self.source[:, None]
        )

    def _positions(self) -> tuple[Tensor, Tensor]:
        """Return the positions of the query and of the key of each edge, both (B·E,)."""
        if self.inputs.at_indices:
            return self.target, self.source
        query_positions, key_positions = self.inputs.positions()
        return (
            self._gather_positions(query_positions, self.target, self.queries),
            self._gather_positions(key_positions, self.source, self.keys),
        )

    @staticmethod
    def _gather_positions(positions: Tensor, index: Tensor, index_in_batch: Tensor) -> Tensor:
        """Gather (B·E,) from positions (L,) or (B, L)."""
        index = index if len(positions.shape) == 1 else index_in_batch
        return ops.take(ops.reshape(positions, [-1]), index, axis=0)

    def _gather_pairs(self, tensor: Tensor) -> Tensor:
        """Gather (B·E, N|1) from a mask or bias (B|1, N|1, T|1, S|1)."""
        heads_last = ops.transpose(tensor, (0, 2, 3, 1))
        _, queries, keys, heads = ops.shape(heads_last)
        row, target, source = (
            0 if size == 1 else index
            for size, index in zip(heads_last.shape, (self.rows, self.target, self.source), strict=False)
        )
        index = (row * queries + target) * keys + source + ops.zeros_like(self.rows)
        return ops.take(ops.reshape(heads_last, [-1, heads]), index, axis=0)


def _without_duplicates(edges: Tensor, num_queries: Any, num_keys: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return sources and targets (B, E) sorted by target, and a mask, False at padding and duplicates.

    Padding also has a valid source and target, so that it can be gathered.
    """
    edges = ops.cast(edges, "int32")
    source, target = edges[..., 0], edges[..., 1]
    exists = (source >= 0) & (target >= 0) & (source < num_keys) & (target < num_queries)
    source, target = ops.where(exists, source, num_keys), ops.where(exists, target, num_queries - 1)
    source, target = _by_target(source, target, num_queries, num_keys + 1)
    repeated = (source[:, 1:] == source[:, :-1]) & (target[:, 1:] == target[:, :-1])
    first = ops.concatenate([source[:, :1] >= 0, ~repeated], axis=1)
    return ops.minimum(source, num_keys - 1), target, first & (source < num_keys)


def _by_target(source: Tensor, target: Tensor, num_targets: Any, num_sources: Any) -> tuple[Tensor, Tensor]:
    """Sort pairs (B, E) by target and then by source."""
    sizes = num_targets, num_sources
    if all(isinstance(size, int) for size in sizes) and num_targets * num_sources < 2**31:
        both = ops.sort(target * num_sources + source, axis=1)  # one sort, of one number a pair
        return both % num_sources, both // num_sources
    for is_target in (False, True):  # argsort is stable
        order = ops.argsort(target if is_target else source, axis=1)
        source, target = (ops.take_along_axis(tensor, order, axis=1) for tensor in (source, target))
    return source, target
