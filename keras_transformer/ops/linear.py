"""The linear kernel: attention as a product of positive features, in time linear in the lengths.

Axes: B batch, T queries, S keys, N query heads, K key/value heads, G = N / K, F features, V value size, C blocks, b
positions of a block.

References:
    Katharopoulos et al., "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention" (2020),
    equations 6 and 10 to 12.
"""

from keras import ops

from keras_transformer.ops.attention_inputs import AttentionInputs
from keras_transformer.ops.dense import group
from keras_transformer.relations import Causal
from keras_transformer.typing import Tensor

BLOCK_SIZE = 128


def attend(inputs: AttentionInputs) -> Tensor:
    """Compute attention (B, T, N, V)."""
    dtype = inputs.accumulator_dtype
    query, key = (ops.cast(features, dtype) for features in inputs.features())
    value = ops.cast(inputs.value, dtype)
    if inputs.padding_mask is not None:
        is_token = ops.cast(inputs.padding_mask, "bool")[:, :, None, None]
        key, value = ops.where(is_token, key, 0.0), ops.where(is_token, value, 0.0)
    value = ops.concatenate(
        [value, ops.ones_like(value[..., :1])], axis=-1
    )  # the sum of the ones is the denominator
    sums = _causal if isinstance(inputs.relation, Causal) else _full
    output = sums(query, key, value)  # (B, T, N, V + 1)
    total = output[..., -1:]
    output = ops.where(total > 0, output[..., :-1] / ops.where(total > 0, total, 1.0), 0.0)
    return ops.cast(output, inputs.value.dtype)


def _full(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    state = ops.einsum("bskf,bskv->bkfv", key, value)
    return _ungroup(ops.matmul(group(query, key.shape[2]), state), query)


def _causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend within a block by its weight matrix, and to earlier blocks by the sum of their states."""
    length, kv_heads = query.shape[1], key.shape[2]
    size = min(BLOCK_SIZE, length)
    count = -(-length // size)
    query, key, value = (_blocks(tensor, count, size) for tensor in (query, key, value))
    groups = query.shape[3] // kv_heads
    shape = ops.shape(query)
    query = ops.reshape(query, [-1, count, size, kv_heads, groups, shape[-1]])
    states = ops.einsum("bcskf,bcskv->bckfv", key, value)
    # Exclusive, not the inclusive sum minus the block itself, whose rounding would depend on later keys.
    before = ops.cumsum(ops.pad(states, [[0, 0], [1, 0], [0, 0], [0, 0], [0, 0]])[:, :-1], axis=1)
    output = ops.einsum("bctkgf,bckfv->bctkgv", query, before)
    matrix = ops.einsum("bctkgf,bcskf->bckgts", query, key)
    matrix = matrix * ops.cast(ops.tril(ops.ones((size, size))), matrix.dtype)
    output = output + ops.einsum("bckgts,bcskv->bctkgv", matrix, value)
    return ops.reshape(output, [-1, count * size, kv_heads * groups, value.shape[-1]])[:, :length]


def _blocks(tensor: Tensor, count: int, size: int) -> Tensor:
    """Split (B, L, …) into (B, C, b, …), zero-padded at the end."""
    tensor = ops.pad(tensor, [[0, 0], [0, count * size - tensor.shape[1]], [0, 0], [0, 0]])
    return ops.reshape(tensor, [-1, count, size, *tensor.shape[2:]])


def _ungroup(output: Tensor, query: Tensor) -> Tensor:
    """Reshape (B, K, G·T, V) to (B, T, N, V)."""
    by_head = ops.reshape(output, [-1, query.shape[2], ops.shape(query)[1], output.shape[-1]])
    return ops.transpose(by_head, (0, 2, 1, 3))
