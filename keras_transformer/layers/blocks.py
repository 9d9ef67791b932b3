"""The Transformer's encoder and decoder blocks."""

from typing import Any

import keras

from keras_transformer import ops as kt_ops
from keras_transformer.layers.base_block import BaseBlock
from keras_transformer.layers.multi_head_attention import Cache
from keras_transformer.layers.retrieval_attention import RetrievalMemory
from keras_transformer.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(BaseBlock):
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
        kernel_initializer: of the matrices of attention and feed-forward network.
        query_initializer: of the query projection's matrix, by default `kernel_initializer`.
        output_initializer: of the matrices that end attention and feed-forward network, by default
            `kernel_initializer`.
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
class DecoderBlock(BaseBlock):
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
        self.cross_attention: Any = None
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
