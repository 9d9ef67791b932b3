"""Attention as one operator: an expectation of values over each query's neighbourhood.

Axes: B batch, T queries, S keys, N query heads, K key/value heads, H head size, V value size.
"""

import functools
import operator
from typing import Any

from keras import backend, ops

from keras_transformer import relations
from keras_transformer.ops.dropout import check_rate
from keras_transformer.ops.dropout import dropout as drop_elements
from keras_transformer.ops.shapes import check_masks, check_tensors

Tensor = Any

# Finite, so that no row turns to NaN, and so far below the lowest score that softmax makes it an exact 0.
_UNRELATED = -1e30
_LOWEST_SCORE = -1e25


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relation: relations.Relation | str | None = None,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    segment_ids: Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    r"""Scaled dot-product attention over a relation.

    $$h_i = \sum_{j \in N(i)} \alpha_{ij} v_j, \quad
    \alpha_{ij} = \frac{\exp(s_{ij})}{\sum_{l \in N(i)} \exp(s_{il})}, \quad
    s_{ij} = \frac{q_i \cdot k_j}{\sqrt{H}} + b_{ij}$$

    N(i) holds the keys that the relation and every mask allow (`True` means "may attend"). A query without any
    gets zeros. The softmax is computed in float32 whatever the inputs' type.

    Args:
        query: (B, T, N, H).
        key: (B, S, K, H), K a divisor of N: each key head serves N / K query heads.
        value: (B, S, K, V).
        relation: a relation over positions, its name, or None for every pair.
        bias: added to the scores, broadcast to (B, N, T, S).
        mask: booleans, broadcast to (B, N, T, S).
        padding_mask: booleans (B, S), False at keys that are padding.
        segment_ids: integers (B, T) for self-attention: only equal segments attend to each other.
        query_positions: integers (T,) or (B, T) that the relation compares, by default 0, 1, 2, …
        key_positions: integers (S,) or (B, S), likewise.
        scale: factor on the dot products, by default 1/√H.
        dropout: probability that an attention weight is dropped.
        seed: two integers that decide which; needed where `dropout` > 0.

    Shapes:
        output: (B, T, N, V)

    Returns:
        One tensor of the query's type.

    Raises:
        ValueError: where shapes do not fit together, or `dropout` has no `seed`.

    Example:
        >>> x = keras.random.normal((2, 5, 4, 8))
        >>> attention(x, x, x, "causal").shape
        TensorShape([2, 5, 4, 8])

    References:
        Vaswani et al., "Attention Is All You Need" (2017), equation 1. Grouped heads: Ainslie et al. (2023).
    """
    check_tensors(query, key, value)
    check_masks(query, key, mask, padding_mask, segment_ids)
    check_rate("dropout", dropout)
    if dropout and seed is None:
        raise ValueError(f"`seed` must be given where `dropout` > 0. Received: dropout={dropout}, seed=None")
    relation = relations.get(relation)
    allowed = _allowed(query, key, relation, mask, padding_mask, segment_ids, query_positions, key_positions)
    weights = _softmax(_scores(query, key, bias, scale), allowed)
    if dropout:
        weights = drop_elements(weights, dropout, seed)
    output = _weighted_sum(ops.cast(weights, value.dtype), value)
    if allowed is None:
        return output
    has_neighbour = ops.any(allowed, axis=-1, keepdims=True)  # (B|1, N|1, T|1, 1)
    return ops.where(ops.transpose(has_neighbour, (0, 2, 1, 3)), output, ops.zeros_like(output))


def attention_weights(
    query: Tensor,
    key: Tensor,
    relation: relations.Relation | str | None = None,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    segment_ids: Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The weights α that `attention` gives the values, for looking.

    Args:
        query: (B, T, N, H).
        key: (B, S, K, H).
        relation: as for `attention`; so are the arguments below.
        bias: added to the scores.
        mask: booleans, broadcast to (B, N, T, S).
        padding_mask: booleans (B, S).
        segment_ids: integers (B, T).
        query_positions: integers (T,) or (B, T).
        key_positions: integers (S,) or (B, S).
        scale: factor on the dot products.

    Shapes:
        output: (B, N, T, S)

    Returns:
        float32 rows that sum to one, or to zero where a query has no neighbour.
    """
    check_tensors(query, key, key)
    check_masks(query, key, mask, padding_mask, segment_ids)
    relation = relations.get(relation)
    allowed = _allowed(query, key, relation, mask, padding_mask, segment_ids, query_positions, key_positions)
    weights = _softmax(_scores(query, key, bias, scale), allowed)
    return weights if allowed is None else ops.where(allowed, weights, ops.zeros_like(weights))


def _allowed(
    query: Tensor,
    key: Tensor,
    relation: relations.Relation,
    mask: Tensor | None,
    padding_mask: Tensor | None,
    segment_ids: Tensor | None,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
) -> Tensor | None:
    """Which pairs may attend, broadcastable to (B, N, T, S); None where all may."""
    parts = []
    if not isinstance(relation, relations.Full):
        queries = _positions(query, query_positions)
        keys = _positions(key, key_positions)
        related = relation.related(ops.expand_dims(queries, -1), ops.expand_dims(keys, -2))  # ([B,] T, S)
        parts.append(ops.expand_dims(related, 1) if len(related.shape) == 3 else related[None, None])
    if mask is not None:
        mask = ops.cast(mask, "bool")
        parts.append(ops.reshape(mask, [1] * (4 - len(mask.shape)) + list(ops.shape(mask))))
    if padding_mask is not None:
        parts.append(ops.cast(padding_mask, "bool")[:, None, None, :])
    if segment_ids is not None:
        parts.append(ops.equal(segment_ids[:, None, :, None], segment_ids[:, None, None, :]))
    return functools.reduce(operator.and_, parts) if parts else None


def _positions(tensor: Tensor, positions: Tensor | None) -> Tensor:
    """Integers (L,) or (B, L): those given, or 0, 1, 2, …"""
    return ops.arange(ops.shape(tensor)[1]) if positions is None else ops.cast(positions, "int32")


def _scores(query: Tensor, key: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """(B, N, T, S), in float32 or better."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    queries = _group(query * ops.convert_to_tensor(scale, query.dtype), key.shape[2])  # (B, K, G·T, H)
    scores = ops.matmul(queries, ops.transpose(key, (0, 2, 3, 1)))  # (B, K, G·T, S)
    scores = _ungroup(ops.cast(scores, _softmax_dtype(scores)), query)  # (B, N, T, S)
    if bias is None:
        return scores
    # A bias may be an additive mask, as low as −∞; what is unrelated must stay below even that.
    return ops.maximum(scores + ops.cast(bias, scores.dtype), _LOWEST_SCORE)


def _softmax(scores: Tensor, allowed: Tensor | None) -> Tensor:
    if allowed is not None:
        scores = ops.where(allowed, scores, ops.cast(_UNRELATED, scores.dtype))
    if scores.shape[-1] == 1:
        return ops.ones_like(scores)  # Keras warns of a softmax over one element
    return ops.softmax(scores, axis=-1)


def _weighted_sum(weights: Tensor, value: Tensor) -> Tensor:
    """(B, T, N, V) from weights (B, N, T, S) and values (B, S, K, V)."""
    _, num_heads, num_queries, num_keys = ops.shape(weights)
    kv_heads = value.shape[2]
    if num_heads != kv_heads:
        weights = ops.reshape(weights, [-1, kv_heads, num_heads // kv_heads * num_queries, num_keys])
    output = ops.matmul(weights, ops.transpose(value, (0, 2, 1, 3)))  # (B, K, G·T, V)
    if num_heads != kv_heads:
        output = ops.reshape(output, [-1, num_heads, num_queries, value.shape[3]])
    return ops.transpose(output, (0, 2, 1, 3))


def _group(query: Tensor, kv_heads: int) -> Tensor:
    """(B, T, N, H) → (B, K, G·T, H): the G query heads of a key head, one after the other."""
    heads_first = ops.transpose(query, (0, 2, 1, 3))  # (B, N, T, H)
    if query.shape[2] == kv_heads:
        return heads_first
    groups = query.shape[2] // kv_heads
    return ops.reshape(heads_first, [-1, kv_heads, groups * ops.shape(query)[1], query.shape[3]])


def _ungroup(scores: Tensor, query: Tensor) -> Tensor:
    """(B, K, G·T, S) → (B, N, T, S)."""
    if scores.shape[1] == query.shape[2]:
        return scores
    return ops.reshape(scores, [-1, query.shape[2], ops.shape(query)[1], ops.shape(scores)[3]])


def _softmax_dtype(tensor: Tensor) -> str:
    return "float64" if backend.standardize_dtype(tensor.dtype) == "float64" else "float32"
