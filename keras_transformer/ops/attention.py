"""Attention as one operator: an expectation of values over each query's neighbourhood.

Axes: B batch, T queries, S keys, N query heads, K key/value heads, H head size, V value size, E edges.
"""

from typing import Any

from keras_transformer import relations
from keras_transformer.ops import dense, dispatch, scores
from keras_transformer.ops.attention_inputs import AttentionInputs
from keras_transformer.ops.biases import PositionBias
from keras_transformer.typing import Tensor

AnyRelation = relations.Relation | str | dict[str, Any] | None
AnyScore = scores.Score | str | dict[str, Any] | None


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relation: AnyRelation = None,
    *,
    score: AnyScore = "scaled_dot_product",
    bias: Tensor | PositionBias | None = None,
    mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    key_lengths: Tensor | None = None,
    segment_ids: Tensor | None = None,
    edges: Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    kernel: str = "auto",
) -> Tensor:
    r"""Compute multi-head attention of each query to the keys that a relation and masks allow.

    $$h_i = \sum_{j \in \mathcal{N}(i)} \alpha_{ij} v_j, \quad
    \alpha_{ij} = \frac{\exp(s_{ij})}{\sum_{l \in \mathcal{N}(i)} \exp(s_{il})}, \quad
    s_{ij} = \log \kappa(q_i, k_j) + b_{ij}$$

    The neighbourhood $\mathcal{N}(i)$ holds the keys that the relation, a set of (query, key) pairs, the edges and
    every mask allow (`True` means "may attend"). The output of a query without neighbours is zero. The score log κ,
    the logarithm of a positive similarity function κ, is by default q_i · k_j / √H. Scores are computed in the inputs'
    dtype, their softmax in float32 (float64 for float64 inputs). Masked keys and values do not affect the output if
    they are finite. All kernels, the implementations of attention, compute the same result and drop the same
    weights; they differ in time and memory.

    Args:
        query: (B, T, N, H).
        key: (B, S, K, H); K divides N, and each key head is shared by N / K query heads.
        value: (B, S, K, V).
        relation: which positions may attend to which: a `relations.Relation`, its name, or None for every pair.
        score: an object of `ops.scores`, or the name of one without weights: "scaled_dot_product", "exponential" (the
            same), "cosine", "rbf", "polynomial", "linear".
        bias: added to the scores: a tensor that broadcasts to (B, N, T, S), or a `PositionBias` such as
            `ops.LinearBias` (ALiBi), which is computed block by block.
        mask: booleans, broadcast to (B, N, T, S).
        padding_mask: booleans (B, S), False at keys that are padding.
        key_lengths: integers (B,), the number of keys of each sample, whose padding must be at the end. Unlike a
            `padding_mask`, the kernel "fused" supports it.
        segment_ids: integers (B, T) for self-attention: positions attend only within the same segment.
        edges: integers (B, E, 2), the graph of each sample: [source, target] lets the query with index `target`
            attend to the key with index `source`; edges of other indices, such as the padding −1, are ignored;
            duplicate edges count once.
        query_positions: integers (T,) or (B, T) that the relation and a `PositionBias` compare, by default 0, 1, 2, …
        key_positions: integers (S,) or (B, S), likewise.
        dropout: probability of dropping an attention weight.
        seed: two integers, required if `dropout` > 0.
        kernel: the implementation: "auto" (see `explain`), "dense", "chunked" (memory linear in the lengths),
            "banded" (for windows: time linear too), "edges" (time and memory proportional to the number of edges),
            "linear" (for the score of that name: time linear in the lengths), or "fused" (cuDNN's attention, on JAX
            and NVIDIA GPUs from Ampere on, in float16 or bfloat16).

    Shapes:
        output: (B, T, N, V)

    Returns:
        The output, in the dtype of `value`.

    Raises:
        ValueError: if shapes do not match, `dropout` > 0 without a `seed`, or the named kernel does not support these
            arguments.

    Example:
        >>> import keras
        >>> x = keras.random.normal((2, 5, 4, 8))
        >>> attention(x, x, x, "causal").shape
        TensorShape([2, 5, 4, 8])

    References:
        Vaswani et al., "Attention Is All You Need" (2017), equation 1. Similarity functions κ: Tsai et al.,
        "Transformer Dissection" (2019), equation 2. Grouped heads: Ainslie et al., "GQA" (2023).
    """
    inputs = AttentionInputs(
        query,
        key,
        value,
        relations.get(relation),
        scores.get(score),
        bias,
        mask,
        padding_mask,
        key_lengths,
        segment_ids,
        edges,
        query_positions,
        key_positions,
        dropout,
        seed,
    )
    return dispatch.attend(inputs, kernel)


def attention_weights(
    query: Tensor,
    key: Tensor,
    relation: AnyRelation = None,
    *,
    score: AnyScore = "scaled_dot_product",
    bias: Tensor | PositionBias | None = None,
    mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    key_lengths: Tensor | None = None,
    segment_ids: Tensor | None = None,
    edges: Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
) -> Tensor:
    """Return the weights α of `attention`, for inspection.

    Args:
        query: (B, T, N, H).
        key: (B, S, K, H).
        relation: see `attention`, also for the arguments below.
        score: log κ.
        bias: added to the scores.
        mask: booleans, broadcast to (B, N, T, S).
        padding_mask: booleans (B, S).
        key_lengths: integers (B,).
        segment_ids: integers (B, T).
        edges: integers (B, E, 2).
        query_positions: integers (T,) or (B, T).
        key_positions: integers (S,) or (B, S).

    Shapes:
        output: (B, N, T, S)

    Returns:
        float32 weights, whose rows sum to one, or to zero for queries without neighbours.
    """
    inputs = AttentionInputs(
        query,
        key,
        key,
        relations.get(relation),
        scores.get(score),
        bias,
        mask,
        padding_mask,
        key_lengths,
        segment_ids=segment_ids,
        edges=edges,
        query_positions=query_positions,
        key_positions=key_positions,
    )
    return dense.weights(inputs.with_padding_mask())


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relation: AnyRelation = None,
    *,
    score: AnyScore = "scaled_dot_product",
    kernel: str = "auto",
    **options: Any,
) -> dispatch.Explanation:
    """Return the kernel that `attention` uses for these arguments, the reason, and its costs.

    Args:
        query: (B, T, N, H); only the shapes of tensors are used.
        key: (B, S, K, H).
        value: (B, S, K, V).
        relation: see `attention`, also for the arguments below.
        score: log κ.
        kernel: "auto", or the name of the kernel to explain.
        **options: the other arguments of `attention`.

    Returns:
        An `Explanation`: the kernel's name, the reason, the operations of the forward pass, the bytes of attention
        weights stored at one time, and the reasons why other kernels cannot be used.

    Example:
        >>> import keras
        >>> x = keras.ops.zeros((1, 8192, 4, 64))
        >>> explain(x, x, x, relations.SlidingWindow(128)).kernel
        'banded'
    """
    inputs = AttentionInputs(query, key, value, relations.get(relation), scores.get(score), **options)
    return dispatch.explain(inputs, kernel)
