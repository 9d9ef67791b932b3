"""Attention on one block of the T×S matrix: the computations common to the blockwise kernels.

A block is C query blocks, each with its key blocks (see `schedule.BlockSchedule`). Its weights are not stored:
the backward pass recomputes them from each query's softmax statistics.

Axes: C query blocks, B batch, N query heads, K key/value heads, G = N / K, b queries and s keys of a query block,
F features, V value size; · is an axis of any size.
"""

import functools
import operator
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.ops.attention_inputs import LOWEST_SCORE, UNRELATED, AttentionInputs
from keras_transformer.ops.biases import PositionBias
from keras_transformer.ops.random import drop, keep_mask
from keras_transformer.typing import Tensor


class Block(NamedTuple):
    """The tensors of one block."""

    query: Tensor  # (C, B, K, G·b, F)
    key: Tensor  # (C, B, K, s, F)
    value: Tensor  # (C, B, K, s, V)
    query_indices: Tensor  # (C, b)
    key_indices: Tensor  # (C, s)
    is_key: Tensor | None = None  # (C, s), False at the padding of the first and last blocks
    query_positions: Tensor | None = None  # (C, B|1, b)
    key_positions: Tensor | None = None  # (C, B|1, s)
    padding_mask: Tensor | None = None  # (C, B, s)
    query_segments: Tensor | None = None  # (C, B, b)
    key_segments: Tensor | None = None  # (C, B, s)
    mask: Tensor | None = None  # (C, B|1, N|1, b|1, s|1)
    bias: Tensor | None = None  # (C, B|1, N|1, b|1, s|1)
    seed: Tensor | None = None  # two integers


class Parameters(NamedTuple):
    """The trainable tensors of the position bias and of the score or, in the backward pass, their gradients."""

    bias: tuple[Tensor, ...]
    score: tuple[Tensor, ...]


class ScanState(NamedTuple):
    """The state of the online softmax of queries over the keys accumulated so far."""

    max_logit: Tensor  # (…, B, N, b, 1)
    sum_exp: Tensor  # (…, B, N, b, 1), of exp(logit − max_logit)
    output: Tensor  # (…, B, N, b, V)


class OutputGradients(NamedTuple):
    """The tensors for each query from which the backward pass computes a block's gradients."""

    d_output: Tensor  # (…, B, K, G·b, V), divided by sum_exp
    max_logit: Tensor  # (…, B, N, b, 1)
    delta: Tensor  # (…, B, N, b, 1): Σ_j α_ij ⟨d_output_i, v_j⟩ = ⟨d_output_i, output_i⟩


class Gradients(NamedTuple):
    """The gradients of the loss with respect to each differentiable input."""

    d_query: Tensor
    d_key: Tensor
    d_value: Tensor
    d_bias: tuple[Tensor, ...]  # one if the bias is a tensor
    d_parameters: Parameters


def initial_state(inputs: AttentionInputs, query: Tensor, value: Tensor) -> ScanState:
    """Return the state of queries (…, B, K, G·b, F) before the first key."""
    column = split_heads(inputs, ops.cast(query[..., :1], inputs.accumulator_dtype))  # (…, B, N, b, 1)
    zero = ops.zeros_like(column)
    return ScanState(zero + UNRELATED, zero, ops.repeat(zero, value.shape[-1], axis=-1))


def accumulate(
    inputs: AttentionInputs,
    state: ScanState,
    block: Block,
    parameters: Parameters,
    is_partial: bool,
) -> ScanState:
    """Return the state after accumulating the keys of one more block.

    Args:
        inputs: the inputs of the attention.
        state: the state of the block's queries.
        block: the queries, keys and values.
        parameters: the parameters of bias and score.
        is_partial: True to apply the relation; False for a full block.
    """
    _, logits = _logits(inputs, block, parameters, is_partial)
    # Backends fuse the softmax. Its largest weight is exp(0) / sum_exp, so no second pass over the logits is needed.
    weights = ops.softmax(logits, axis=-1)
    block_max = ops.max(logits, axis=-1, keepdims=True)
    block_sum = 1.0 / ops.max(weights, axis=-1, keepdims=True)
    if inputs.dropout:
        weights = drop(weights, _keep_mask(inputs, block), inputs.dropout)
    output = ops.matmul(merge_groups(inputs, ops.cast(weights, block.value.dtype), block.query), block.value)
    output = split_heads(inputs, ops.cast(output, state.output.dtype))
    max_logit = ops.maximum(state.max_logit, block_max)
    reference = _finite(max_logit)
    sum_exp = state.sum_exp * ops.exp(state.max_logit - reference)
    block_sum = block_sum * ops.exp(block_max - reference)
    # The largest logit adds 1, so only a query without keys has a sum below 1.
    fraction = block_sum / ops.maximum(sum_exp + block_sum, 1.0)
    return ScanState(max_logit, sum_exp + block_sum, state.output + fraction * (output - state.output))


def softmax_statistics(state: ScanState) -> tuple[Tensor, Tensor]:
    """Return max_logit and sum_exp with finite values for queries without keys, whose output is zero.

    They are separate because max_logit + log(sum_exp) would lose the sum to rounding next to a logit of −10⁹.
    """
    ones = ops.ones_like(state.sum_exp)
    return _finite(state.max_logit), ops.where(state.sum_exp > 0, state.sum_exp, ones)


def block_gradients(
    inputs: AttentionInputs,
    block: Block,
    parameters: Parameters,
    is_partial: bool,
    gradients: OutputGradients,
) -> Gradients:
    """Return the gradients of one block from the gradients of its queries' outputs.

    Args:
        inputs: the inputs of the attention.
        block: as in `accumulate`.
        parameters: the parameters of bias and score.
        is_partial: as in `accumulate`.
        gradients: the output gradients of the block's queries.
    """
    d_output = gradients.d_output
    compared, logits = _logits(inputs, block, parameters, is_partial)
    weights = ops.exp(logits - gradients.max_logit)  # times sum_exp
    d_weights = split_heads(inputs, ops.matmul(d_output, _swap(block.value)))
    d_weights = ops.cast(d_weights, inputs.accumulator_dtype)
    dropped = weights
    if inputs.dropout:
        keep = _keep_mask(inputs, block)
        dropped, d_weights = drop(weights, keep, inputs.dropout), drop(d_weights, keep, inputs.dropout)
    d_value = ops.matmul(
        _swap(merge_groups(inputs, ops.cast(dropped, d_output.dtype), block.query)), d_output
    )
    d_logits = weights * (d_weights - gradients.delta)  # (C, B, N, b, s)
    if inputs.bias is not None:
        d_logits = ops.where(logits > LOWEST_SCORE, d_logits, ops.zeros_like(d_logits))
    d_bias, d_bias_parameters = _bias_gradients(inputs, block, parameters.bias, d_logits)
    d_compared = inputs.score.transform_gradient(compared, d_logits)
    d_query, d_key, d_score_parameters = inputs.score.compare_gradient(
        block.query,
        block.key,
        parameters.score,
        merge_groups(inputs, ops.cast(d_compared, block.query.dtype), block.query),
    )
    return Gradients(d_query, d_key, d_value, d_bias, Parameters(d_bias_parameters, d_score_parameters))


def split_heads(inputs: AttentionInputs, tensor: Tensor) -> Tensor:
    """Reshape (…, K, G·b, ·) to (…, N, b, ·)."""
    groups = inputs.num_heads // inputs.kv_heads
    if groups == 1:
        return tensor
    *leading, kv_heads, rows, size = ops.shape(tensor)
    return ops.reshape(tensor, [*leading, kv_heads * groups, rows // groups, size])


def merge_groups(inputs: AttentionInputs, tensor: Tensor, query: Tensor) -> Tensor:
    """Reshape (…, N, b, ·) to (…, K, G·b, ·), the layout of `query`."""
    if inputs.num_heads == inputs.kv_heads:
        return tensor
    *leading, _, _, size = ops.shape(tensor)
    return ops.reshape(tensor, [*leading, *query.shape[-3:-1], size])


def _logits(
    inputs: AttentionInputs, block: Block, parameters: Parameters, is_partial: bool
) -> tuple[Tensor, Tensor]:
    """Return the score before its transform, and the logits, `UNRELATED` where masked, both (C, B, N, b, s)."""
    compared = split_heads(inputs, inputs.score.compare(block.query, block.key, parameters.score))
    compared = ops.cast(compared, inputs.accumulator_dtype)
    logits = inputs.score.transform(compared)
    bias = _position_bias(inputs, block, parameters.bias) if block.bias is None else block.bias
    if bias is not None:
        logits = ops.maximum(logits + bias, LOWEST_SCORE)
    allowed = _allowed(inputs, block, is_partial)
    if allowed is not None:
        logits = ops.where(allowed, logits, ops.cast(UNRELATED, logits.dtype))
    return compared, logits


def _allowed(inputs: AttentionInputs, block: Block, is_partial: bool) -> Tensor | None:
    """Return booleans that broadcast to (C, B, N, b, s), or None if every pair may attend."""
    masks = []
    if is_partial:
        queries, keys = _positions(block)
        related = inputs.relation.related(queries[..., :, None], keys[..., None, :])
        masks.append(related[:, :, None])  # (C, B|1, 1, b, s)
    if block.is_key is not None:
        masks.append(block.is_key[:, None, None, None, :])
    if block.padding_mask is not None:
        masks.append(block.padding_mask[:, :, None, None, :])
    if block.query_segments is not None and block.key_segments is not None:
        same = ops.equal(block.query_segments[..., :, None], block.key_segments[..., None, :])
        masks.append(same[:, :, None])
    if block.mask is not None:
        masks.append(block.mask)
    return functools.reduce(operator.and_, masks) if masks else None


def _positions(block: Block) -> tuple[Tensor, Tensor]:
    """Return the positions of queries (C, B|1, b) and of keys (C, B|1, s)."""
    queries = block.query_indices[:, None] if block.query_positions is None else block.query_positions
    keys = block.key_indices[:, None] if block.key_positions is None else block.key_positions
    return queries, keys


def _position_bias(inputs: AttentionInputs, block: Block, parameters: tuple[Tensor, ...]) -> Tensor | None:
    """Return the position bias (C, B|1, N, b, s), or None if there is none."""
    if not isinstance(inputs.bias, PositionBias):
        return None
    queries, keys, batch = _flat_positions(block)
    bias = inputs.bias.block(parameters, queries, keys)  # (C·batch, N, b, s)
    shape = [block.query.shape[0], batch, *ops.shape(bias)[1:]]
    return ops.reshape(ops.cast(bias, inputs.accumulator_dtype), shape)


def _bias_gradients(
    inputs: AttentionInputs, block: Block, parameters: tuple[Tensor, ...], d_logits: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the gradients of a bias tensor and of a position bias' parameters."""
    if block.bias is not None:
        return (_sum_to(d_logits, block.bias.shape),), ()
    if not (isinstance(inputs.bias, PositionBias) and parameters):
        return (), ()
    queries, keys, batch = _flat_positions(block)
    if isinstance(batch, int) and batch == 1:
        d_logits = ops.sum(d_logits, axis=1)  # (C, N, b, s)
    else:
        d_logits = ops.reshape(d_logits, [-1, *ops.shape(d_logits)[2:]])  # (C·B, N, b, s)
    return (), inputs.bias.backward(parameters, queries, keys, d_logits)


def _flat_positions(block: Block) -> tuple[Tensor, Tensor, Any]:
    """Return the positions of queries (C·batch, b, 1) and of keys (C·batch, 1, s), and batch, which is B or 1."""
    queries, keys = _positions(block)
    is_shared = queries.shape[1] == 1 and keys.shape[1] == 1
    batch = 1 if is_shared else ops.shape(block.query)[1]
    if not is_shared:
        shape = [block.query.shape[0], batch]
        queries = ops.broadcast_to(queries, [*shape, queries.shape[-1]])
        keys = ops.broadcast_to(keys, [*shape, keys.shape[-1]])
    return (
        ops.reshape(queries, [-1, queries.shape[-1], 1]),
        ops.reshape(keys, [-1, 1, keys.shape[-1]]),
        batch,
    )


def _keep_mask(inputs: AttentionInputs, block: Block) -> Tensor:
    """Return the dropout mask (C, B, N, b, s), False at dropped weights."""
    batch = ops.arange(ops.shape(block.query)[1], dtype="int32")
    heads = ops.arange(inputs.num_heads, dtype="int32")
    return keep_mask(
        inputs.dropout,
        block.seed,
        (
            batch[:, None, None, None],
            heads[:, None, None],
            block.query_indices[:, None, None, :, None],
            block.key_indices[:, None, None, None, :],
        ),
    )


def _finite(max_logit: Tensor) -> Tensor:
    """Replace the largest logit of queries without keys by zero."""
    return ops.where(max_logit > LOWEST_SCORE * 10, max_logit, ops.zeros_like(max_logit))


def _sum_to(tensor: Tensor, shape: tuple[int | None, ...]) -> Tensor:
    """Sum over the axes along which a tensor of `shape` was broadcast."""
    axes = [axis for axis, size in enumerate(shape) if size == 1 and tensor.shape[axis] != 1]
    return ops.sum(tensor, axis=axes, keepdims=True) if axes else tensor


def _swap(tensor: Tensor) -> Tensor:
    axes = list(range(len(tensor.shape)))
    return ops.transpose(tensor, [*axes[:-2], axes[-1], axes[-2]])
