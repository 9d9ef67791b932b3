"""The retrieval kernel: attention of each query to its k keys of largest score.

Axes: B batch, T queries, S keys, N query heads, K key/value heads, G = N / K, H head size, V value size, F features,
k keys per query.
"""

from typing import Any

from keras import ops

from keras_transformer import relations
from keras_transformer.ops import dense, dispatch, scores
from keras_transformer.ops.attention_inputs import UNRELATED, AttentionInputs
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer

# The number of keys compared with the queries at a time.
BLOCK_SIZE = 256


def retrieval_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    k: int,
    *,
    score: scores.Score | str | dict[str, Any] | None = "scaled_dot_product",
    padding_mask: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    r"""Compute attention of each head of each query to its own k keys of largest score.

    $$h_i = \sum_{j \in \mathcal{N}(i)} \alpha_{ij} v_j, \quad \mathcal{N}(i) = \operatorname{top-}k_j \; s_{ij}, \quad
    \alpha_{ij} = \frac{\exp(s_{ij})}{\sum_{l \in \mathcal{N}(i)} \exp(s_{il})}$$

    With at most k keys, it equals `attention`. Gradients flow through the chosen keys and values only. The queries are
    compared with one block of keys at a time and the chosen keys and values are gathered: temporary memory does not
    grow with S but is proportional to T × k, so T should be small.

    Args:
        query: (B, T, N, H).
        key: (B, S, K, H); K divides N, and each key head is shared by N / K query heads.
        value: (B, S, K, V).
        k: the number of keys each query attends to; all keys if there are fewer.
        score: an object of `ops.scores`, or the name of one without weights.
        padding_mask: booleans (B, S), False at keys that are padding, which are never chosen.
        dropout: probability of dropping an attention weight; drops the same weights as `attention`.
        seed: two integers, required if `dropout` > 0.

    Shapes:
        output: (B, T, N, V)

    Returns:
        The output, in the dtype of `value`; zero for a query without keys.

    Example:
        >>> import keras
        >>> query, memory = keras.random.normal((2, 3, 4, 8)), keras.random.normal((2, 100, 4, 8))
        >>> retrieval_attention(query, memory, memory, k=5).shape
        TensorShape([2, 3, 4, 8])

    References:
        Bertsch et al., "Unlimiformer: Long-Range Transformers with Unlimited Length Input" (2023), section 2.
    """
    check_positive_integer(k=k)
    inputs = AttentionInputs(
        query,
        key,
        value,
        relations.Full(),
        scores.get(score),
        padding_mask=padding_mask,
        dropout=dropout,
        seed=seed,
    )
    if query.shape[0] == 0 or (inputs.num_keys is not None and inputs.num_keys <= k):
        return dispatch.attend(inputs, "auto")
    query, key = inputs.features()
    query = ops.cast(query, inputs.accumulator_dtype)
    index, exists = _search(inputs, ops.stop_gradient(query), ops.stop_gradient(key), k)  # (B, T, N, k)
    keys = _gather(key, index)  # (B, T, N, k, F)
    values = keys if value is key else _gather(value, index)  # (B, T, N, k, V)
    compared = inputs.score.compare(
        query[..., None, :], ops.cast(keys, query.dtype), inputs.score.parameters
    )  # (B, T, N, 1, k)
    weights = _drop(inputs, _softmax(inputs.score.transform(compared)[..., 0, :], exists), index)
    return ops.matmul(ops.cast(weights, values.dtype)[..., None, :], values)[..., 0, :]


def _search(inputs: AttentionInputs, query: Tensor, key: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the indices (B, T, N, k) of the keys of largest score, in descending order, and their validity mask."""
    batch, length, kv_heads, num_features = ops.shape(key)
    # XLA copies a tensor of a loop that has an axis of size one, such as a single key head.
    flat = ops.reshape(key, [batch, length, kv_heads * num_features])
    size = min(BLOCK_SIZE, length) if isinstance(length, int) else ops.minimum(BLOCK_SIZE, length)
    grouped = dense.group(query, kv_heads)  # (B, K, G·T, F)
    parameters = tuple(ops.stop_gradient(parameter) for parameter in inputs.score.parameters)

    def merge(block: Tensor, best: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        # The last block may overlap the previous one; keys in both are compared only once.
        position = ops.minimum(block * size, length - size) + ops.arange(size)
        allowed = (position >= block * size)[None]
        if inputs.padding_mask is not None:
            padding_mask = ops.cast(inputs.padding_mask, "bool")
            allowed = allowed & ops.take(padding_mask, position, axis=1)
        keys = ops.reshape(ops.take(flat, position, axis=1), [batch, size, kv_heads, num_features])
        keys = ops.cast(keys, query.dtype)
        compared = inputs.score.compare(grouped, ops.transpose(keys, (0, 2, 1, 3)), parameters)
        logits = inputs.score.transform(dense.ungroup(compared, query))  # (B, N, T, block)
        logits = ops.where(allowed[:, None, None], logits, ops.cast(UNRELATED, logits.dtype))
        index = ops.zeros_like(logits, "int32") + position
        logits, order = ops.top_k(ops.concatenate([best[0], logits], axis=-1), k)
        return logits, ops.take_along_axis(ops.concatenate([best[1], index], axis=-1), order, axis=-1)

    zeros = ops.repeat(
        ops.zeros_like(ops.transpose(query, (0, 2, 1, 3))[..., :1]), k, axis=-1
    )  # (B, N, T, k)
    best = (zeros + ops.cast(UNRELATED, zeros.dtype), ops.cast(zeros, "int32"))
    logits, index = ops.fori_loop(0, (length + BLOCK_SIZE - 1) // BLOCK_SIZE, merge, best)
    return ops.transpose(index, (0, 2, 1, 3)), ops.transpose(logits > UNRELATED / 2, (0, 2, 1, 3))


def _softmax(logits: Tensor, exists: Tensor) -> Tensor:
    """Return weights that sum to one over the last axis, or to zero where no key exists."""
    logits = ops.where(exists, logits, ops.cast(UNRELATED, logits.dtype))
    largest = ops.max(logits, axis=-1, keepdims=True, initial=UNRELATED)  # of an empty batch too
    weights = ops.exp(logits - ops.stop_gradient(largest))
    weights = ops.where(exists, weights, ops.zeros_like(weights))
    total = ops.sum(weights, axis=-1, keepdims=True)
    return weights / ops.where(total > 0, total, ops.ones_like(total))


def _drop(inputs: AttentionInputs, weights: Tensor, index: Tensor) -> Tensor:
    """Apply dropout to the weights (B, T, N, k)."""
    if not inputs.dropout:
        return weights
    rows, queries, heads = (ops.arange(size, dtype="int32") for size in ops.shape(index)[:3])
    return inputs.drop(weights, rows[:, None, None, None], heads[:, None], queries[:, None, None], index)


def _gather(tensor: Tensor, index: Tensor) -> Tensor:
    """Gather (B, T, N, k, …) from keys or values (B, S, K, …) at indices (B, T, N, k)."""
    batch, num_keys, kv_heads, size = ops.shape(tensor)
    rows = ops.arange(batch, dtype="int32")[:, None, None, None]
    num_heads = index.shape[2]
    heads = ops.arange(num_heads, dtype="int32")[:, None] // (num_heads // kv_heads)
    index = (rows * num_keys + index) * kv_heads + heads
    return ops.take(ops.reshape(tensor, [-1, size]), index, axis=0)
