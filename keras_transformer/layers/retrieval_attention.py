"""Cross-attention of each query to the k keys of largest score in a long memory."""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.configuration import ConfiguredLayer, serialized
from keras_transformer.layers import masks
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.ops.scores import ScaledDotProduct, Score
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class RetrievalAttention(ConfiguredLayer):
    r"""Cross-attention in which each head of each query attends only to the k keys of largest score.

    $$h_n = \sum_{j \in \operatorname{top-}k} \alpha_{ij}\, y_j W^V_n, \quad
    \alpha_{i \cdot} = \operatorname{softmax}_{j \in \operatorname{top-}k}(s_{ij}), \quad
    s_{ij} = (x_i W^Q_n) \cdot (y_j W^K_n) / \sqrt{H}$$

    A decoder trained on short inputs can thus attend to memories of any length, as each head attends to as many tokens
    as in training. The weights are in the same order as in `MultiHeadAttention`, so `set_weights` accepts the weights
    of a trained layer; if k is at least the memory's length, the outputs are equal.

    Args:
        num_heads: N.
        key_dim: H, the size of a head's queries and keys.
        k: the number of keys that each head of a query attends to.
        value_dim: V, the size of a head's values, by default H.
        num_kv_heads: K, a divisor of N: grouped-query attention; 1 is multi-query. By default N.
        score: the score of queries and keys, see `MultiHeadAttention`.
        dropout: probability of dropping an attention weight while training.
        use_bias: whether the four projections have biases.
        seed: an integer for reproducible dropout.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        query: (B, T, D).
        value: (B, S, D'), the memory.
        padding_mask: booleans (B, S), False at keys that are padding, which are never chosen.
        value_mask: passed by Keras and merged with `padding_mask`.

    Shapes:
        output: (B, T, D)

    Example:
        >>> layer = RetrievalAttention(num_heads=4, key_dim=8, k=16)
        >>> layer(keras.ops.ones((2, 5, 32)), keras.ops.ones((2, 1000, 24))).shape
        TensorShape([2, 5, 32])

    References:
        Bertsch et al., "Unlimiformer: Long-Range Transformers with Unlimited Length Input" (2023), section 2. They
        fold W^K into the query, so that one index of the memory serves all layers and heads; the scores are the same.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        k: int,
        value_dim: int | None = None,
        num_kv_heads: int | None = None,
        score: Any = "scaled_dot_product",
        dropout: float = 0.0,
        use_bias: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer(k=k)
        self.k = k
        self.attention = MultiHeadAttention(
            num_heads,
            key_dim,
            value_dim,
            num_kv_heads,
            score=score,
            dropout=dropout,
            use_bias=use_bias,
            seed=seed,
            dtype=self.dtype_policy,
            name="attention",
        )
        self.supports_masking = True

    def build(self, query_shape: Any, value_shape: Any) -> None:
        """Create the four projections."""
        self.attention.build(query_shape, value_shape)

    def call(
        self,
        query: Tensor,
        value: Tensor,
        padding_mask: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Return the attention of the query to the memory, projected to the size of the query."""
        return self.attend(
            query, self.project(value), masks.merge(padding_mask, value_mask), training=training
        )

    def project(self, memory: Tensor) -> dict[str, Tensor]:
        """Project a memory (B, S, D') to keys and values (B, K, S, ·), for `attend`."""
        return self.attention.project(memory)

    def attend(
        self,
        query: Tensor,
        projected: dict[str, Tensor],
        padding_mask: Tensor | None = None,
        *,
        training: bool | None = None,
    ) -> Tensor:
        """Return the attention of a query (B, T, D) to a memory projected by `project`."""
        attention = self.attention
        heads = _retrieve(
            attention,
            attention.queries(query),
            ops.transpose(projected["key"], (0, 2, 1, 3)),
            ops.transpose(projected["value"], (0, 2, 1, 3)),
            self.k,
            attention.score,
            padding_mask,
            training,
        )  # (B, T, N, V)
        merged = ops.reshape(heads, [-1, ops.shape(query)[1], attention.num_heads * attention.value_dim])
        return attention.output_projection(merged)

    def compute_output_shape(self, query_shape: tuple[int | None, ...], *_: Any, **__: Any) -> Any:
        """Return the shape of the query."""
        return query_shape

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the query."""
        return previous_mask

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        names = ("num_heads", "key_dim", "value_dim", "num_kv_heads", "score", "dropout", "use_bias", "seed")
        return {
            **super().get_config(),
            **serialized({name: getattr(self.attention, name) for name in names}),
        }


@dataclasses.dataclass(frozen=True)
class RetrievalMemory:
    r"""Hidden states shared as memory by any number of cross-attention layers.

    Each head n retrieves, for each query $x_i$, the k states $y_j$ with the highest scores:

    $$s_{nij} = c\,(x_i W^Q_n)\,(y_j W^K_n)^\top = c\,(x_i W^Q_n W^{K\top}_n)\, y_j^\top, \quad
    h_{ni} = \Big( \sum_j \operatorname{softmax}_j (s_{nij})\, y_j \Big) W^V_n$$

    c is the scale of the attention's score, by default $1/\sqrt{H}$.
    The key projection is folded into the query, and the value projection is applied to the weighted sum, so that one
    tensor of states serves all layers and heads, and no keys and values of the memory are stored. The key bias shifts
    all scores of a query equally and is omitted. A `DecoderBlock` takes it as `memory`.

    Args:
        states: (B, S, D).
        k: the number of states that each head retrieves for a query.
        key_matrix: the matrix that the function `key_matrix` returns for the cross-attention, if precomputed.

    References:
        Bertsch et al., "Unlimiformer: Long-Range Transformers with Unlimited Length Input" (2023), section 2.3.
    """

    states: Tensor
    k: int
    key_matrix: Tensor | None = None

    def attend(
        self,
        attention: MultiHeadAttention,
        query: Tensor,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Return the output (B, T, D) for a query (B, T, D), with the weights of a cross-attention layer.

        The `padding_mask` is booleans (B, S), False at states that are padding; by default, none are.
        """
        length, size = ops.shape(query)[1], self.states.shape[-1]
        kv_heads = attention.num_kv_heads
        groups = attention.num_heads // kv_heads  # each key/value head serves several query heads
        matrix = key_matrix(attention, size) if self.key_matrix is None else self.key_matrix
        queries, _ = attention.score.features(attention.queries(query), matrix)  # scaled
        matrix = ops.repeat(ops.reshape(matrix, [size, kv_heads, attention.key_dim]), groups, axis=1)
        queries = ops.einsum("btnh,dnh->btnd", queries, ops.cast(matrix, queries.dtype))
        states = self.states[:, :, None]  # (B, S, 1, D): keys and values of one head
        mixed = _retrieve(
            attention, queries, states, states, self.k, ScaledDotProduct(1.0), padding_mask, training
        )  # (B, T, N, D)
        values = ops.reshape(
            attention.value_projection(ops.reshape(mixed, [-1, length * attention.num_heads, size])),
            [-1, length, kv_heads, groups, kv_heads, attention.value_dim],
        )
        identity = ops.cast(
            ops.eye(kv_heads), values.dtype
        )  # selects the values of the head's own projection
        values = ops.einsum("btkgjv,kj->btkgv", values, identity)
        if padding_mask is not None:
            has_state = ops.any(padding_mask, axis=1)[:, None, None, None, None]
            values = ops.where(has_state, values, ops.zeros_like(values))
        merged = ops.reshape(values, [-1, length, attention.num_heads * attention.value_dim])
        return attention.output_projection(merged)


def key_matrix(attention: MultiHeadAttention, size: int) -> Tensor:
    """Return the matrix (D, K·H) of an attention layer's key projection for states of `size` D, quantized or not."""
    basis = ops.concatenate([ops.eye(size), ops.zeros((1, size))])[None]
    matrix = attention.key_projection(ops.cast(basis, attention.compute_dtype))[0]
    return matrix[:-1] - matrix[-1:]  # without the bias


def _retrieve(
    attention: MultiHeadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    k: int,
    score: Score,
    padding_mask: Tensor | None,
    training: bool | None,
) -> Tensor:
    """Return `ops.retrieval_attention` with the dropout of an attention layer."""
    dropout = attention.dropout if training else 0.0
    seed = attention.seed_generator.next() if dropout else None
    return kt_ops.retrieval_attention(
        query, key, value, k, score=score, padding_mask=padding_mask, dropout=dropout, seed=seed
    )
