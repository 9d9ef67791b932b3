"""The Transformer's encoder and decoder blocks."""

from typing import Any

import keras

from keras_transformer import ops as kt_ops
from keras_transformer import relations
from keras_transformer.arguments import check_one_of, check_positive
from keras_transformer.layers import score_layers
from keras_transformer.layers.feed_forward import FeedForward, get_activation, serialize_activation
from keras_transformer.layers.multi_head_attention import Cache, MultiHeadAttention
from keras_transformer.layers.positions import attention_encodings
from keras_transformer.layers.residual import NORMALIZATIONS, NORMS, Residual
from keras_transformer.layers.retrieval_attention import RetrievalMemory
from keras_transformer.ops.random import check_rate

Tensor = Any


class _Block(keras.layers.Layer):
    """The configuration that encoder and decoder blocks share."""

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        relation: relations.Relation | str | dict[str, Any] | None,
        activation: Any = "relu",
        normalization: str = "pre",
        dropout: float = 0.0,
        norm: str = "layer",
        num_kv_heads: int | None = None,
        position_encoding: Any = None,
        score: Any = "scaled_dot_product",
        kernel: str = "auto",
        *,
        key_dim: int | None = None,
        use_bias: bool = True,
        epsilon: float = 1e-6,
        hidden_dropout: float | None = None,
        attention_dropout: float | None = None,
        qkv_bias: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive(num_heads=num_heads)
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.relation = relations.get(relation)
        self.activation = get_activation(activation)
        check_one_of(NORMALIZATIONS, normalization=normalization)
        check_one_of(tuple(NORMS), norm=norm)
        self.normalization = normalization
        self.dropout = check_rate("dropout", dropout)
        self.norm = norm
        self.num_kv_heads = num_kv_heads
        self.position_encoding = attention_encodings.get(position_encoding, num_heads)
        self.score = score_layers.get(score)
        self.kernel = kt_ops.check_kernel(kernel)
        self.key_dim = key_dim
        self.use_bias = use_bias
        self.epsilon = epsilon
        self.hidden_dropout = check_rate("hidden_dropout", hidden_dropout, dropout)
        self.attention_dropout = check_rate("attention_dropout", attention_dropout, dropout)
        self.qkv_bias = use_bias if qkv_bias is None else qkv_bias
        self.supports_masking = True

    def _attention(
        self, name: str, model_dim: int, relation: Any = None, position_encoding: Any = None
    ) -> MultiHeadAttention:
        return MultiHeadAttention(
            self.num_heads,
            head_dim(model_dim, self.num_heads) if self.key_dim is None else self.key_dim,
            num_kv_heads=self.num_kv_heads,
            relation=relation,
            position_encoding=position_encoding,
            # Each attention has weights of its own.
            score=score_layers.get(score_layers.serialize(self.score)),
            kernel=self.kernel,
            dropout=self.attention_dropout,
            use_bias=self.use_bias,
            qkv_bias=self.qkv_bias,
            dtype=self.dtype_policy,
            name=name,
        )

    def _residual(self, name: str, shape: Any) -> Residual:
        residual = Residual(
            self.normalization, self.dropout, self.epsilon, self.norm, dtype=self.dtype_policy, name=name
        )
        residual.build(shape)
        return residual

    def _feed_forward(self, shape: Any) -> FeedForward:
        layer = FeedForward(
            self.hidden_dim,
            self.activation,
            self.hidden_dropout,
            self.use_bias,
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        layer.build(shape)
        return layer

    def _feed(self, hidden: Tensor, training: bool | None = None) -> Tensor:
        output = self.feed_forward(self.feed_forward_residual.enter(hidden), training=training)
        return self.feed_forward_residual.leave(hidden, output, training)

    def compute_output_shape(self, inputs_shape: Any, *_: Any, **__: Any) -> Any:
        """Return the shape of the inputs."""
        return inputs_shape

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the first input."""
        return previous_mask

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "relation": keras.saving.serialize_keras_object(self.relation),
            "activation": serialize_activation(self.activation),
            "normalization": self.normalization,
            "dropout": self.dropout,
            "norm": self.norm,
            "num_kv_heads": self.num_kv_heads,
            "position_encoding": keras.saving.serialize_keras_object(self.position_encoding),
            "score": score_layers.serialize(self.score),
            "kernel": self.kernel,
            "key_dim": self.key_dim,
            "use_bias": self.use_bias,
            "epsilon": self.epsilon,
            "hidden_dropout": self.hidden_dropout,
            "attention_dropout": self.attention_dropout,
            "qkv_bias": self.qkv_bias,
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(_Block):
    """Self-attention and a feed-forward network, each in a residual connection.

    Args:
        num_heads: heads of the attention, a divisor of D.
        hidden_dim: width of the feed-forward network.
        relation: of the self-attention, by default every pair.
        activation: of the feed-forward network, gated ones too (see `FeedForward`).
        normalization: "pre" (normalise before each sublayer), "post" (after adding, as in the paper) or "sandwich"
            (before the sublayer and again its output).
        dropout: probability, for attention weights, hidden units and sublayer outputs.
        norm: "layer" or "rms".
        num_kv_heads: key/value heads, see `MultiHeadAttention`; so are the three arguments below.
        position_encoding: of the self-attention, see `MultiHeadAttention`.
        score: the score of queries and keys.
        kernel: how attention is computed.
        key_dim: the size of a head, by default D / `num_heads`.
        use_bias: True for biases in attention and feed-forward network.
        epsilon: of the normalisations.
        hidden_dropout: probability for hidden units, by default `dropout`.
        attention_dropout: probability for attention weights, by default `dropout`.
        qkv_bias: True for biases in the query, key and value projections, by default `use_bias`.
        **kwargs: for `keras.layers.Layer`.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: booleans (B, T), False where there is padding; merged with the mask Keras propagates.
        attention_mask: of the self-attention, see `MultiHeadAttention`; so are the three arguments below.
        segment_ids: integers (B, T).
        edges: integers (B, E, 2).
        positions: integers (T,) or (B, T).

    Shapes:
        input and output: (B, T, D)

    Raises:
        ValueError: if D is not divisible by `num_heads`.

    References:
        Vaswani et al. (2017), section 3.1.
    """

    def __init__(self, num_heads: int, hidden_dim: int, relation: Any = None, **kwargs: Any) -> None:
        super().__init__(num_heads, hidden_dim, relation, **kwargs)

    def build(self, inputs_shape: Any) -> None:
        """Create the sublayers."""
        self.attention = self._attention("attention", inputs_shape[-1], self.relation, self.position_encoding)
        self.attention.build(inputs_shape)
        self.attention_residual = self._residual("attention_residual", inputs_shape)
        self.feed_forward = self._feed_forward(inputs_shape)
        self.feed_forward_residual = self._residual("feed_forward_residual", inputs_shape)

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        edges: Tensor | None = None,
        positions: Tensor | None = None,
        training: bool | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the block's output."""
        attended = self.attention(
            self.attention_residual.enter(inputs),
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            segment_ids=segment_ids,
            edges=edges,
            positions=positions,
            mask=mask,
            training=training,
        )
        return self._feed(self.attention_residual.leave(inputs, attended, training), training)


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(_Block):
    """Causal self-attention, cross-attention to a memory, and a feed-forward network.

    Built without a memory, it has no cross-attention: the block of decoder-only models such as GPT.

    Args:
        num_heads: heads of both attentions, a divisor of D.
        hidden_dim: width of the feed-forward network.
        relation: of the self-attention, by default causal.
        **kwargs: the other arguments of `EncoderBlock`, and those of `keras.layers.Layer`.

    Call arguments:
        inputs: (B, T, D).
        memory: (B, S, D'), the encoder's output, or a `RetrievalMemory` of it; or None, always or never.
        padding_mask: booleans (B, T) of the inputs.
        memory_padding_mask: booleans (B, S) of the memory.
        attention_mask: of the self-attention, see `MultiHeadAttention`; so are the two arguments below.
        segment_ids: integers (B, T).
        positions: integers (T,) or (B, T).

    Shapes:
        input and output: (B, T, D)

    Raises:
        ValueError: if D is not divisible by `num_heads`, or a memory is given to a block that was built without.

    References:
        Vaswani et al. (2017), section 3.1; without a memory: Liu et al., "Generating Wikipedia by Summarizing
        Long Sequences" (2018), section 4.2.3.
    """

    def __init__(self, num_heads: int, hidden_dim: int, relation: Any = "causal", **kwargs: Any) -> None:
        super().__init__(num_heads, hidden_dim, relation, **kwargs)

    def build(self, inputs_shape: Any, memory_shape: Any = None) -> None:
        """Create the sublayers."""
        self.self_attention = self._attention(
            "self_attention", inputs_shape[-1], self.relation, self.position_encoding
        )
        self.self_attention.build(inputs_shape)
        self.self_attention_residual = self._residual("self_attention_residual", inputs_shape)
        self.cross_attention = None
        if memory_shape is not None:
            self.cross_attention = self._attention("cross_attention", inputs_shape[-1])
            self.cross_attention.build(inputs_shape, memory_shape)
            self.cross_attention_residual = self._residual("cross_attention_residual", inputs_shape)
        self.feed_forward = self._feed_forward(inputs_shape)
        self.feed_forward_residual = self._residual("feed_forward_residual", inputs_shape)

    def call(
        self,
        inputs: Tensor,
        memory: Tensor | None = None,
        padding_mask: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        positions: Tensor | None = None,
        training: bool | None = None,
        inputs_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the block's output."""
        entered = self.self_attention_residual.enter(inputs)
        attended = self.self_attention(
            entered,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            segment_ids=segment_ids,
            positions=positions,
            mask=inputs_mask,
            training=training,
        )
        hidden = self.self_attention_residual.leave(inputs, attended, training)
        hidden = self._cross_attend(hidden, memory, memory_padding_mask, memory_mask, training)
        return self._feed(hidden, training)

    def cross_attention_weights(
        self,
        inputs: Tensor,
        memory: Tensor,
        padding_mask: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the weights (B, N, T, S) of the cross-attention in `call`, for inspection."""
        self._crosses(memory)
        attended = self.self_attention(self.self_attention_residual.enter(inputs), padding_mask=padding_mask)
        hidden = self.self_attention_residual.leave(inputs, attended)
        return self.cross_attention.attention_weights(
            self.cross_attention_residual.enter(hidden), memory, padding_mask=memory_padding_mask
        )

    def step(
        self,
        inputs: Tensor,
        cache: Cache,
        projected: dict[str, Tensor] | RetrievalMemory | None = None,
        *,
        cache_index: Tensor,
        positions: Tensor,
        padding_mask: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
    ) -> tuple[Tensor, Cache]:
        """The output for T new tokens, and the cache with them in it.

        Args:
            inputs: (B, T, D), the new tokens.
            cache: of the self-attention, see `MultiHeadAttention.step`.
            projected: the memory, by `cross_attention.project` or a `RetrievalMemory`, where there is one.
            cache_index: integer scalar, where in the cache to write.
            positions: integers (B, T) of the new tokens.
            padding_mask: booleans (B, T) of the new tokens.
            memory_padding_mask: booleans (B, S) of the memory.
            attention_mask: booleans over the tokens in the cache, see `MultiHeadAttention.step`.
            kv_cache: how the cache is stored, see `MultiHeadAttention.step`.

        Returns:
            The output (B, T, D) and the new cache.
        """
        entered = self.self_attention_residual.enter(inputs)
        attended, cache = self.self_attention.step(
            entered,
            cache,
            cache_index=cache_index,
            positions=positions,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            kv_cache=kv_cache,
        )
        hidden = self.self_attention_residual.leave(inputs, attended)
        return self._feed(self._cross_attend(hidden, projected, memory_padding_mask)), cache

    def _cross_attend(
        self,
        hidden: Tensor,
        memory: Any,
        padding_mask: Tensor | None,
        memory_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Return the output of the cross-attention sublayer for any form of memory, `hidden` without one."""
        if not self._crosses(memory):
            return hidden
        query = self.cross_attention_residual.enter(hidden)
        if isinstance(memory, RetrievalMemory):
            attended = memory.attend(self.cross_attention, query, padding_mask, training)
        elif isinstance(memory, dict):
            attended = self.cross_attention.attend(query, memory, padding_mask)
        else:
            attended = self.cross_attention(
                query, memory, padding_mask=padding_mask, value_mask=memory_mask, training=training
            )
        return self.cross_attention_residual.leave(hidden, attended, training)

    def _crosses(self, memory: Any) -> bool:
        """Return True if the block has a cross-attention; raise a ValueError unless it has one for a memory."""
        if (memory is None) != (self.cross_attention is None):
            given = "none for a block built with" if memory is None else "one for a block built without"
            raise ValueError(
                f"`memory` must be given exactly if the block was built with one. Received: {given}"
            )
        return memory is not None


def head_dim(model_dim: int, num_heads: int) -> int:
    """Return the size of a head that splits `model_dim` evenly."""
    if model_dim % num_heads:
        raise ValueError(
            f"`num_heads` must divide the model's size. Received: num_heads={num_heads}, model_dim={model_dim}"
        )
    return model_dim // num_heads
