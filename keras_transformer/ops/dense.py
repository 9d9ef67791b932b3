"""The dense kernel, the reference implementation: it computes all T×S weights at once."""

from collections.abc import Callable

from keras import ops

from keras_transformer.ops.attention_inputs import LOWEST_SCORE, UNRELATED, AttentionInputs
from keras_transformer.ops.biases import PositionBias
from keras_transformer.ops.random import dropout as drop_elements
from keras_transformer.typing import Tensor

FEW_QUERIES = 32  # per key head


def attend(inputs: AttentionInputs) -> Tensor:
    """Compute attention (B, T, N, V)."""
    allowed = inputs.allowed()
    weights = _softmax(logits(inputs), allowed)
    if inputs.dropout:
        weights = drop_elements(weights, inputs.dropout, inputs.seed)
    output = _weighted_sum(ops.cast(weights, inputs.value.dtype), inputs.value)
    if allowed is not None:
        has_neighbour = ops.any(allowed, axis=-1, keepdims=True)  # (B|1, N|1, T|1, 1)
        output = ops.where(has_neighbour, output, ops.cast(0, output.dtype))
    return ops.transpose(output, (0, 2, 1, 3))


def weights(inputs: AttentionInputs) -> Tensor:
    """Return weights (B, N, T, S) whose rows sum to one, or to zero for queries without neighbours."""
    allowed = inputs.allowed()
    weights = _softmax(logits(inputs), allowed)
    return weights if allowed is None else ops.where(allowed, weights, ops.cast(0, weights.dtype))


def logits(inputs: AttentionInputs) -> Tensor:
    """Return the logits of every pair, score plus bias, (B, N, T, S), in float32 or float64."""
    query, key = inputs.features()
    compared = _with_merged_axes(
        lambda query, key: inputs.score.compare(query, key, inputs.score.parameters),
        group(query, inputs.kv_heads),
        ops.transpose(key, (0, 2, 1, 3)),
        inputs.score.parameters,
    )  # (B, K, G·T, S)
    compared = ops.cast(ungroup(compared, query), inputs.accumulator_dtype)
    scores = inputs.score.transform(compared)  # (B, N, T, S)
    if inputs.bias is None:
        return scores
    if isinstance(inputs.bias, PositionBias):
        queries, keys = inputs.positions()
        bias = inputs.bias.block(
            inputs.bias.parameters, ops.expand_dims(queries, -1), ops.expand_dims(keys, -2)
        )
    else:
        bias = inputs.bias_of_four_axes()
    # A bias may be an additive mask, as low as −∞; unrelated pairs must stay below it.
    return ops.maximum(scores + ops.cast(bias, scores.dtype), LOWEST_SCORE)


def group(query: Tensor, kv_heads: int) -> Tensor:
    """Reshape (B, T, N, F) to (B, K, G·T, F), with the G query heads of a key head concatenated."""
    heads_first = ops.transpose(query, (0, 2, 1, 3))  # (B, N, T, F)
    if query.shape[2] == kv_heads:
        return heads_first
    groups = query.shape[2] // kv_heads
    return ops.reshape(heads_first, [-1, kv_heads, groups * ops.shape(query)[1], query.shape[3]])


def ungroup(scores: Tensor, query: Tensor) -> Tensor:
    """Reshape (B, K, G·T, S) to (B, N, T, S)."""
    if scores.shape[1] == query.shape[2]:
        return scores
    return ops.reshape(scores, [-1, query.shape[2], ops.shape(query)[1], ops.shape(scores)[3]])


def _softmax(scores: Tensor, allowed: Tensor | None) -> Tensor:
    if allowed is not None:
        scores = ops.where(allowed, scores, ops.cast(UNRELATED, scores.dtype))
    if scores.shape[-1] == 1:
        return ops.ones_like(scores) + 0 * scores  # Keras warns of a softmax over one element
    return ops.softmax(scores, axis=-1)


def _weighted_sum(weights: Tensor, value: Tensor) -> Tensor:
    """Return the sums (B, N, T, V) of values (B, S, K, V) weighted by (B, N, T, S)."""
    _, num_heads, num_queries, num_keys = ops.shape(weights)
    kv_heads = value.shape[2]
    if num_heads != kv_heads:
        weights = ops.reshape(weights, [-1, kv_heads, num_heads // kv_heads * num_queries, num_keys])
    output = _with_merged_axes(ops.matmul, weights, ops.transpose(value, (0, 2, 1, 3)))  # (B, K, G·T, V)
    if num_heads != kv_heads:
        output = ops.reshape(output, [-1, num_heads, num_queries, value.shape[3]])
    return output


def _with_merged_axes(
    product: Callable[[Tensor, Tensor], Tensor],
    left: Tensor,
    right: Tensor,
    parameters: tuple[Tensor, ...] = (),
) -> Tensor:
    """Compute a product of two tensors of four axes; for few queries, merge the first two axes (B, K) into one.

    XLA on CPU copies transposed matrices, and the carry of a loop, before a matrix multiplication, but not tensors of
    three axes. With few queries, as in a step of generation, the copy costs more than it saves.
    """
    shapes = [*left.shape, *right.shape]
    if None in shapes or parameters or left.shape[2] > FEW_QUERIES:
        return product(left, right)
    output = product(*(ops.reshape(tensor, [-1, *tensor.shape[2:]]) for tensor in (left, right)))
    return ops.reshape(output, [*left.shape[:2], *output.shape[1:]])
