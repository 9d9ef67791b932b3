"""The Transformer's encoder and decoder blocks."""

from typing import Any

import keras

from keras_transformer import ops as kt_ops
from keras_transformer.layers.base_block import BaseBlock
from keras_transformer.layers.cached_attention import Cache
from keras_transformer.layers.rematerialization import rematerializable
from keras_transformer.layers.retrieval_attention import RetrievalMemory
from keras_transformer.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(BaseBlock):
    """Self-attention and a feed-forward network, each with a residual connection and normalisation.

    Args:
        num_heads: number of attention heads, a divisor of D.
        hidden_dim: hidden size of the feed-forward network.
        relation: which positions of the self-attention may attend to which (see `relations`), by default all.
        activation: activation of the feed-forward network, gated ones too (see `FeedForward`).
        normalization: "pre" (normalise the input of each sublayer), "post" (normalise after the residual addition, as
            in the paper) or "sandwich" (normalise the input and the output of each sublayer).
        dropout: dropout rate for attention weights, hidden units and sublayer outputs.
        norm: "layer" or "rms".
        num_kv_heads: number of key/value heads, see `MultiHeadAttention`, also for the three arguments below.
        position_encoding: position encoding of the self-attention.
        score: score of queries and keys.
        kernel: the attention implementation.
        key_dim: the size of a head, by default D / `num_heads`.
        use_bias: whether attention and feed-forward network have biases.
        epsilon: epsilon of the normalisations.
        hidden_dropout: dropout rate for hidden units, by default `dropout`.
        attention_dropout: dropout rate for attention weights, by default `dropout`.
        qkv_bias: whether the query, key and value projections have biases, by default `use_bias`.
        kernel_initializer: initializer of the matrices of attention and feed-forward network.
        query_initializer: initializer of the query projection's matrix, by default `kernel_initializer`.
        output_initializer: initializer of the output projections of attention and feed-forward network, by default
            `kernel_initializer`.
        rematerialize: whether to compute activations again in the backward pass instead of keeping them.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: (B, T, D).
        padding_mask: booleans (B, T), False at padding; merged with the mask that Keras propagates.
        key_lengths: integers (B,), the lengths of inputs padded at the end, see `MultiHeadAttention`.
        attention_mask: mask of the self-attention, see `MultiHeadAttention`, also for the three arguments below.
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

    @rematerializable
    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        *,
        key_lengths: Tensor | None = None,
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
            key_lengths=key_lengths,
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

    If it is built without a memory, it has no cross-attention: the block of decoder-only models such as GPT.

    Args:
        num_heads: number of heads of both attentions, a divisor of D.
        hidden_dim: hidden size of the feed-forward network.
        relation: which positions of the self-attention may attend to which (see `relations`), by default causal.
        **kwargs: the other arguments of `EncoderBlock`, and those of `keras.layers.Layer`.

    Call arguments:
        inputs: (B, T, D).
        memory: (B, S, D'), the encoder's output, or a `RetrievalMemory` of it; None in all calls of a block without
            cross-attention.
        padding_mask: booleans (B, T), False at padding of the inputs.
        memory_padding_mask: booleans (B, S), False at padding of the memory.
        key_lengths: integers (B,), the lengths of inputs padded at the end, see `MultiHeadAttention`.
        memory_lengths: integers (B,), the lengths of memories padded at the end.
        memory_attention_mask: mask of the cross-attention, booleans (B, T, S); not for a `RetrievalMemory`.
        attention_mask: mask of the self-attention, see `MultiHeadAttention`, also for the two arguments below.
        segment_ids: integers (B, T).
        positions: integers (T,) or (B, T).

    Shapes:
        input and output: (B, T, D)

    Raises:
        ValueError: if D is not divisible by `num_heads`, or a memory is passed to a block without cross-attention.

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

    @rematerializable
    def call(
        self,
        inputs: Tensor,
        memory: Tensor | None = None,
        padding_mask: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
        *,
        key_lengths: Tensor | None = None,
        memory_lengths: Tensor | None = None,
        memory_attention_mask: Tensor | None = None,
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
            key_lengths=key_lengths,
            attention_mask=attention_mask,
            segment_ids=segment_ids,
            positions=positions,
            mask=inputs_mask,
            training=training,
        )
        hidden = self.self_attention_residual.leave(inputs, attended, training)
        hidden = self._cross_attend(
            hidden,
            memory,
            memory_padding_mask,
            memory_lengths,
            memory_attention_mask,
            memory_mask,
            training,
        )
        return self._feed(hidden, training)

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
        """Return the output for T new tokens, and the cache with these tokens.

        Args:
            inputs: (B, T, D), the new tokens.
            cache: the cache of the self-attention, see `MultiHeadAttention.step`.
            projected: the memory as returned by `cross_attention.project`, or a `RetrievalMemory`; None without
                cross-attention.
            cache_index: integer scalar, the number of tokens written before.
            positions: integers (B, T), the positions of the new tokens.
            padding_mask: booleans (B, T), False at padding of the new tokens.
            memory_padding_mask: booleans (B, S), False at padding of the memory.
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
        lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Return the output of the cross-attention sublayer for any type of memory, or `hidden` without a memory."""
        if not self._crosses(memory):
            return hidden
        query = self.cross_attention_residual.enter(hidden)
        if isinstance(memory, RetrievalMemory):
            attended = memory.attend(self.cross_attention, query, padding_mask, training)
        elif isinstance(memory, dict):
            attended = self.cross_attention.attend(query, memory, padding_mask)
        else:
            attended = self.cross_attention(
                query,
                memory,
                attention_mask=attention_mask,
                padding_mask=padding_mask,
                key_lengths=lengths,
                value_mask=memory_mask,
                training=training,
            )
        return self.cross_attention_residual.leave(hidden, attended, training)

    def _crosses(self, memory: Any) -> bool:
        """Return whether there is a memory; raise a ValueError unless the block was built accordingly."""
        if (memory is None) != (self.cross_attention is None):
            given = "none for a block built with" if memory is None else "one for a block built without"
            raise ValueError(
                f"`memory` must be given if and only if the block was built with one. Received: {given}"
            )
        return memory is not None
