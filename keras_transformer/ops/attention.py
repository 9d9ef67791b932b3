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
    segment_ids: Tensor | None = None,
    edges: Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    kernel: str = "auto",
) -> Tensor:
    r"""Attention over a relation.

    $$h_i = \sum_{j \in N(i)} \alpha_{ij} v_j, \quad
    \alpha_{ij} = \frac{\exp(s_{ij})}{\sum_{l \in N(i)} \exp(s_{il})}, \quad
    s_{ij} = \log \kappa(q_i, k_j) + b_{ij}$$

    N(i) holds the keys that the relation, the edges and every mask allow (`True` means "may attend"). A query
    without neighbours gets zeros. log κ is the score, by default q_i · k_j / √H. The softmax is computed in float32
    whatever the inputs' type, from scores in that type. Masked keys and values
    change nothing if they are finite. All kernels compute the same result and drop the same weights; they differ in
    time and memory.

    Args:
        query: (B, T, N, H).
        key: (B, S, K, H), K a divisor of N: each key head serves N / K query heads.
        value: (B, S, K, V).
        relation: a relation over positions, its name, or None for every pair.
        score: a value of `ops.scores`, or the name of one without weights: "scaled_dot_product", "exponential" (the
            same), "cosine", "rbf", "polynomial", "linear".
        bias: added to the scores: a tensor that broadcasts to (B, N, T, S), or a `PositionBias` such as
            `ops.LinearBias` (ALiBi), which is computed block by block.
        mask: booleans, broadcast to (B, N, T, S).
        padding_mask: booleans (B, S), False at keys that are padding.
        segment_ids: integers (B, T) for self-attention: only equal segments attend to each other.
        edges: integers (B, E, 2), a graph for each row: [source, target] lets the query `target` attend to the key
            `source`, both as indices; −1 is padding; duplicate edges count once.
        query_positions: integers (T,) or (B, T) that relation and bias compare, by default 0, 1, 2, …
        key_positions: integers (S,) or (B, S), likewise.
        dropout: probability that an attention weight is dropped.
        seed: two integers, needed if `dropout` > 0.
        kernel: "auto" (see `explain`), "dense", "chunked" (memory linear in the lengths), "banded" (for windows:
            time linear too), "edges" (time and memory by the number of edges), or "linear" (for the score of that
            name, in time linear in the lengths).

    Shapes:
        output: (B, T, N, V)

    Returns:
        One tensor of the value's type.

    Raises:
        ValueError: if shapes do not fit together, `dropout` has no `seed`, or a kernel other than "auto" cannot
            compute this.

    Example:
        >>> x = keras.random.normal((2, 5, 4, 8))
        >>> attention(x, x, x, "causal").shape
        TensorShape([2, 5, 4, 8])

    References:
        Vaswani et al., "Attention Is All You Need" (2017), equation 1. As kernels: Tsai et al., "Transformer
        Dissection" (2019), equation 2. Grouped heads: Ainslie et al., "GQA" (2023).
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
    segment_ids: Tensor | None = None,
    edges: Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
) -> Tensor:
    """Return the weights α of `attention`, for inspection.

    Args:
        query: (B, T, N, H).
        key: (B, S, K, H).
        relation: as for `attention`; so are the arguments below.
        score: log κ.
        bias: added to the scores.
        mask: booleans, broadcast to (B, N, T, S).
        padding_mask: booleans (B, S).
        segment_ids: integers (B, T).
        edges: integers (B, E, 2).
        query_positions: integers (T,) or (B, T).
        key_positions: integers (S,) or (B, S).

    Shapes:
        output: (B, N, T, S)

    Returns:
        float32 rows that sum to one, or to zero where a query has no neighbour.

    Raises:
        ValueError: if shapes do not fit together.
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
        segment_ids,
        edges,
        query_positions,
        key_positions,
    )
    return dense.weights(inputs)


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
    """Return the kernel that `attention` uses, the reason, and its costs.

    Args:
        query: (B, T, N, H); only the shapes of tensors are used.
        key: (B, S, K, H).
        value: (B, S, K, V).
        relation: as for `attention`; so are the arguments below.
        score: log κ.
        kernel: "auto", or the one to be explained.
        **options: the other arguments of `attention`.

    Returns:
        The kernel's name, the reason, the operations of the forward pass and the bytes of weights stored at one time.

    Raises:
        ValueError: as `attention` does.

    Example:
        >>> x = keras.ops.zeros((1, 8192, 4, 64))
        >>> explain(x, x, x, relations.SlidingWindow(128)).kernel
        'banded'
    """
    inputs = AttentionInputs(query, key, value, relations.get(relation), scores.get(score), **options)
    return dispatch.explain(inputs, kernel)
