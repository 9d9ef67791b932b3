"""Cross-attention to the few tokens of a long memory that suit each query best."""

from typing import Any

import keras
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.arguments import check_positive
from keras_transformer.layers import masks
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.score_layers import ScoreLayer

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_transformer")
class RetrievalAttention(keras.layers.Layer):
    r"""Cross-attention in which every head of every query attends to the k keys of largest score only.

    $$h_n = \sum_{j \in \operatorname{top-}k} \alpha_{ij}\, y_j W^V_n, \quad
    \alpha_{i \cdot} = \operatorname{softmax}_{j \in \operatorname{top-}k}(s_{ij}), \quad
    s_{ij} = (x_i W^Q_n) \cdot (y_j W^K_n) / \sqrt{H}$$

    So a decoder trained on short inputs reads memories of any length: it sees as many tokens as it is used to, each
    head those it asks for. The weights are those of `MultiHeadAttention`, in its order, so `set_weights` takes them
    from a trained one; with k as large as the memory the two are the same.

    Args:
        num_heads: N.
        key_dim: H, the size of a head's queries and keys.
        k: how many keys a head of a query attends to.
        value_dim: V, the size of a head's values, by default H.
        num_kv_heads: K, a divisor of N: grouped-query attention; 1 is multi-query. By default N.
        score: how query and key are compared, as for `MultiHeadAttention`.
        dropout: probability of dropping an attention weight while training.
        use_bias: True for biases in the four projections.
        seed: makes dropout reproducible.
        **kwargs: for `keras.layers.Layer`.

    Call arguments:
        query: (B, T, D).
        value: (B, S, D'), the memory.
        padding_mask: booleans (B, S), False at keys that are padding, which are never chosen.
        value_mask: passed by Keras and merged with `padding_mask`.

    Shapes:
        output: (B, T, D)

    Raises:
        ValueError: if a size is not positive or `num_kv_heads` does not divide `num_heads`.

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
        check_positive(k=k)
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
        """Keys and values (B, K, S, ·) of a memory (B, S, D'), for `attend`."""
        return self.attention.project(memory)

    def attend(
        self,
        query: Tensor,
        projected: dict[str, Tensor],
        padding_mask: Tensor | None = None,
        *,
        training: bool | None = None,
    ) -> Tensor:
        """Return the attention of a query (B, T, D) to a memory from `project`."""
        attention = self.attention
        dropout = attention.dropout if training else 0.0
        length = ops.shape(query)[1]
        heads = kt_ops.retrieval_attention(
            ops.reshape(
                attention.query_projection(query), [-1, length, attention.num_heads, attention.key_dim]
            ),
            ops.transpose(projected["key"], (0, 2, 1, 3)),
            ops.transpose(projected["value"], (0, 2, 1, 3)),
            self.k,
            score=attention.score.score() if isinstance(attention.score, ScoreLayer) else attention.score,
            padding_mask=padding_mask,
            dropout=dropout,
            seed=attention.seed_generator.next() if dropout else None,
        )  # (B, T, N, V)
        merged = ops.reshape(heads, [-1, length, attention.num_heads * attention.value_dim])
        return attention.output_projection(merged)

    def compute_output_shape(self, query_shape: tuple[int | None, ...], *_: Any, **__: Any) -> Any:
        """The query's."""
        return query_shape

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """The mask of the query."""
        return previous_mask

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        names = ("num_heads", "key_dim", "value_dim", "num_kv_heads", "score", "dropout", "use_bias", "seed")
        of_attention = self.attention.get_config()
        return {**super().get_config(), "k": self.k, **{name: of_attention[name] for name in names}}
