"""Attention of each query to its k keys of largest score.

Axes: B batch, T queries, S keys, N query heads, K key/value heads, G = N / K, H head size, V value size, k keys chosen.
"""

from typing import Any

from keras import ops

from keras_transformer import relations
from keras_transformer.arguments import check_positive
from keras_transformer.ops import dense, dispatch, scores
from keras_transformer.ops.attention_inputs import UNRELATED, AttentionInputs

Tensor = Any


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
    r"""Attention of every head of every query to its own k keys of largest score.

    $$h_i = \sum_{j \in N(i)} \alpha_{ij} v_j, \quad N(i) = \operatorname{top-}k_j \; s_{ij}, \quad
    \alpha_{ij} = \frac{\exp(s_{ij})}{\sum_{l \in N(i)} \exp(s_{il})}$$

    With at most k keys, it equals `attention`. Permuting the memory changes only the choice between equal scores.
    Gradients flow through the chosen keys and values. All scores are computed, in memory B·N·T·S, and B·N·T·k values
    gathered, so use it for short T.

    Args:
        query: (B, T, N, H).
        key: (B, S, K, H), K a divisor of N: each key head serves N / K query heads.
        value: (B, S, K, V).
        k: number of keys that a query attends to, at most S.
        score: a value of `ops.scores`, or the name of one without weights.
        padding_mask: booleans (B, S), False at keys that are padding, which are never chosen.
        dropout: probability that an attention weight is dropped, the same ones as in `attention`.
        seed: two integers, needed if `dropout` > 0.

    Shapes:
        output: (B, T, N, V)

    Returns:
        One tensor of the value's type; zeros where there is no key.

    Raises:
        ValueError: if `k` is not positive, shapes do not fit together, or `dropout` has no `seed`.

    Example:
        >>> query, memory = keras.random.normal((2, 3, 4, 8)), keras.random.normal((2, 100, 4, 8))
        >>> retrieval_attention(query, memory, memory, k=5).shape
        TensorShape([2, 3, 4, 8])

    References:
        Bertsch et al., "Unlimiformer: Long-Range Transformers with Unlimited Length Input" (2023), section 2.
    """
    check_positive(k=k)
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
    if inputs.num_keys is not None and inputs.num_keys <= k:
        return dispatch.attend(inputs, "auto")
    logits = dense.logits(inputs)  # (B, N, T, S)
    allowed = inputs.allowed()
    if allowed is not None:
        logits = ops.where(allowed, logits, ops.cast(UNRELATED, logits.dtype))
    count = k if inputs.num_keys is not None else ops.minimum(k, ops.shape(key)[1])
    logits, chosen = ops.top_k(logits, count)  # (B, N, T, k), the largest first
    weights = ops.exp(logits - ops.stop_gradient(logits[..., :1]))
    weights = ops.where(logits > UNRELATED / 2, weights, ops.zeros_like(weights))
    total = ops.sum(weights, axis=-1, keepdims=True)
    weights = weights / ops.where(total > 0, total, ops.ones_like(total))
    if dropout:
        weights = _drop(inputs, weights, chosen)
    values = _gather(value, chosen, inputs.num_heads // inputs.kv_heads)
    output = ops.matmul(ops.cast(weights, values.dtype)[..., None, :], values)[..., 0, :]  # (B, N, T, V)
    return ops.transpose(output, (0, 2, 1, 3))


def _drop(inputs: AttentionInputs, weights: Tensor, chosen: Tensor) -> Tensor:
    """Drop some of the weights (B, N, T, k)."""
    rows, heads, queries = (ops.arange(size, dtype="int32") for size in ops.shape(chosen)[:3])
    kept = inputs.keep(rows[:, None, None, None], heads[:, None, None], queries[:, None], chosen)
    return ops.where(kept, weights * (1.0 / (1.0 - inputs.dropout)), ops.zeros_like(weights))


def _gather(value: Tensor, chosen: Tensor, groups: int) -> Tensor:
    """(B, N, T, k, V) from values (B, S, K, V) and indices (B, N, T, k)."""
    batch, num_keys, kv_heads, size = ops.shape(value)
    rows = ops.arange(batch, dtype="int32")[:, None, None, None]
    heads = ops.arange(kv_heads * groups, dtype="int32")[:, None, None] // groups
    index = (rows * num_keys + ops.cast(chosen, "int32")) * kv_heads + heads
    return ops.take(ops.reshape(value, [-1, size]), index, axis=0)
