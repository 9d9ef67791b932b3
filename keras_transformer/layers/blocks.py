"""The Transformer's encoder and decoder blocks."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import keras

from keras_transformer import ops as kt_ops
from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.rematerialization import rematerializable
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.retrieval_attention import RetrievalMemory
from keras_transformer.ops.kv_cache import State
from keras_transformer.typing import Tensor


class BaseBlock(ConfiguredLayer):
    """Base class of encoder and decoder blocks: sublayers, each with a residual connection and a normalization.

    A subclass lists the names of its `sublayers` in order. The attribute of a sublayer is a layer, or None if the
    block does not have it, and the attribute `NAME_residual` its `Residual`.
    """

    sublayers: ClassVar[tuple[str, ...]]
    feed_forward: Any
    feed_forward_residual: Residual

    def __init__(
        self,
        layers: dict[str, Any],
        normalization: str | Sequence[str],
        norm: str,
        epsilon: float,
        dropout: float,
        rematerialize: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        normalizations = (
            (normalization,) * len(layers) if isinstance(normalization, str) else tuple(normalization)
        )
        if len(normalizations) != len(layers):
            raise ValueError(
                f"`normalization` must be one for all sublayers, or one for each of {', '.join(layers)}. "
                f"Received: normalization={normalization!r}"
            )
        self.normalization = normalization
        self.norm = norm
        self.epsilon = epsilon
        self.dropout = dropout
        self.rematerialize = rematerialize
        self.supports_masking = True
        for name, normalization in zip(self.sublayers, normalizations, strict=True):
            layer, residual = layers[name], None
            if layer is not None and not isinstance(layer, keras.layers.Layer):
                raise TypeError(f"`{name}` must be a layer. Received: {name}={layer!r}")
            setattr(self, name, layer)
            if layer is not None:
                residual = Residual(
                    normalization, dropout, epsilon, norm, dtype=self.dtype_policy, name=f"{name}_residual"
                )
            setattr(self, f"{name}_residual", residual)

    def _build(self, name: str, *shapes: Any) -> None:
        """Build a sublayer, unless it is built already, and its residual connection."""
        layer = getattr(self, name)
        if not layer.built:
            layer.build(*shapes)
        getattr(self, f"{name}_residual").build(shapes[0])

    def _feed(self, hidden: Tensor, training: bool | None = None) -> Tensor:
        normalized = self.feed_forward_residual.normalize_input(hidden)
        output = self.feed_forward(normalized, training=training)
        return self.feed_forward_residual.add_residual(hidden, output, training)

    def compute_output_shape(self, inputs_shape: Any, *_: Any, **__: Any) -> Any:
        """Return the shape of the inputs."""
        return inputs_shape

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the first input."""
        return previous_mask

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Create a block from its config; configs of version 0.1 have the arguments of the sublayers."""
        if "num_heads" in config:
            return cls(**_with_sublayers(config, cls.sublayers))
        sublayers = {name: keras.saving.deserialize_keras_object(config[name]) for name in cls.sublayers}
        return cls(**{**config, **sublayers})


@keras.saving.register_keras_serializable(package="keras_transformer")
class EncoderBlock(BaseBlock):
    """Self-attention and a feed-forward network, each with a residual connection and normalization.

    Args:
        attention: the self-attention, such as a `MultiHeadAttention`.
        feed_forward: the feed-forward network, such as a `FeedForward`.
        normalization: "pre" (normalize the input of each sublayer), "post" (normalize after the residual addition, as
            in the paper), "sandwich" (normalize the input and the output of each sublayer) or "none"; or a list with
            one for each sublayer.
        norm: "layer", "layer_without_bias" or "rms".
        epsilon: the epsilon of the norms.
        dropout: dropout rate for the outputs of sublayers.
        rematerialize: whether to recompute activations in the backward pass instead of storing them.
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

    Example:
        >>> block = EncoderBlock(MultiHeadAttention(4), FeedForward(64), normalization="post")
        >>> block(keras.ops.ones((2, 5, 16))).shape
        TensorShape([2, 5, 16])

    References:
        Vaswani et al. (2017), section 3.1.
    """

    sublayers: ClassVar[tuple[str, ...]] = ("attention", "feed_forward")
    attention: Any
    attention_residual: Residual

    def __init__(
        self,
        attention: Any,
        feed_forward: Any,
        *,
        normalization: str | Sequence[str] = "pre",
        norm: str = "layer",
        epsilon: float = 1e-6,
        dropout: float = 0.0,
        rematerialize: bool = False,
        **kwargs: Any,
    ) -> None:
        layers = {"attention": attention, "feed_forward": feed_forward}
        super().__init__(layers, normalization, norm, epsilon, dropout, rematerialize, **kwargs)

    def build(self, inputs_shape: Any) -> None:
        """Build the sublayers."""
        self._build("attention", inputs_shape)
        self._build("feed_forward", inputs_shape)

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
            self.attention_residual.normalize_input(inputs),
            padding_mask=padding_mask,
            key_lengths=key_lengths,
            attention_mask=attention_mask,
            segment_ids=segment_ids,
            edges=edges,
            positions=positions,
            mask=mask,
            training=training,
        )
        return self._feed(self.attention_residual.add_residual(inputs, attended, training), training)


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderBlock(BaseBlock):
    """Self-attention to earlier positions, cross-attention to a memory, and a feed-forward network.

    Without `cross_attention` it is the block of decoder-only models such as GPT.

    Args:
        self_attention: the self-attention, such as a `MultiHeadAttention` with relation="causal".
        feed_forward: the feed-forward network, such as a `FeedForward`.
        cross_attention: the attention to the memory, such as a `MultiHeadAttention`, or None.
        normalization: see `EncoderBlock`, also for the arguments below.
        norm: "layer" or "rms".
        epsilon: the epsilon of the norms.
        dropout: dropout rate for the outputs of sublayers.
        rematerialize: whether to recompute activations in the backward pass instead of storing them.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: (B, T, D).
        memory: (B, S, D'), the encoder's output, or a `RetrievalMemory` of it; None for a block without
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

    Example:
        >>> block = DecoderBlock(MultiHeadAttention(4, relation="causal"), FeedForward(64), MultiHeadAttention(4))
        >>> block(keras.ops.ones((2, 5, 16)), keras.ops.ones((2, 7, 16))).shape
        TensorShape([2, 5, 16])

    References:
        Vaswani et al. (2017), section 3.1; without a memory: Liu et al., "Generating Wikipedia by Summarizing
        Long Sequences" (2018), section 4.2.3.
    """

    sublayers: ClassVar[tuple[str, ...]] = ("self_attention", "cross_attention", "feed_forward")
    self_attention: Any
    self_attention_residual: Residual
    cross_attention: Any
    cross_attention_residual: Residual

    def __init__(
        self,
        self_attention: Any,
        feed_forward: Any,
        cross_attention: Any = None,
        *,
        normalization: str | Sequence[str] = "pre",
        norm: str = "layer",
        epsilon: float = 1e-6,
        dropout: float = 0.0,
        rematerialize: bool = False,
        **kwargs: Any,
    ) -> None:
        layers = {
            "self_attention": self_attention,
            "cross_attention": cross_attention,
            "feed_forward": feed_forward,
        }
        super().__init__(layers, normalization, norm, epsilon, dropout, rematerialize, **kwargs)

    @property
    def position_encoding(self) -> Any:
        """The position encoding of the self-attention; Keras' weight files store its weights under this name."""
        return getattr(self.self_attention, "position_encoding", None)

    def build(self, inputs_shape: Any, memory_shape: Any = None) -> None:
        """Build the sublayers; without the shape of a memory, the block has no cross-attention."""
        self._build("self_attention", inputs_shape)
        if memory_shape is None:
            self.cross_attention = None
        elif self.cross_attention is not None:
            self._build("cross_attention", inputs_shape, memory_shape)
        self._build("feed_forward", inputs_shape)

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
        attended = self.self_attention(
            self.self_attention_residual.normalize_input(inputs),
            padding_mask=padding_mask,
            key_lengths=key_lengths,
            attention_mask=attention_mask,
            segment_ids=segment_ids,
            positions=positions,
            mask=inputs_mask,
            training=training,
        )
        hidden = self.self_attention_residual.add_residual(inputs, attended, training)
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
        cache: State,
        projected: dict[str, Tensor] | RetrievalMemory | None = None,
        *,
        cache_index: Tensor,
        positions: Tensor,
        padding_mask: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
        trace: bool = False,
    ) -> tuple[Tensor, State]:
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
            trace: whether to keep the states after each token, see `RecurrentMixer.step`.

        Returns:
            The output (B, T, D) and the new cache.
        """
        attended, cache = self.self_attention.step(
            self.self_attention_residual.normalize_input(inputs),
            cache,
            cache_index=cache_index,
            positions=positions,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            kv_cache=kv_cache,
            trace=trace,
        )
        hidden = self.self_attention_residual.add_residual(inputs, attended)
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
        if not self._has_memory(memory):
            return hidden
        query = self.cross_attention_residual.normalize_input(hidden)
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
        return self.cross_attention_residual.add_residual(hidden, attended, training)

    def _has_memory(self, memory: Any) -> bool:
        """Return whether there is a memory; raise a ValueError unless the block was built accordingly."""
        if (memory is None) != (self.cross_attention is None):
            received = "none for a block built with" if memory is None else "one for a block built without"
            raise ValueError(
                f"`memory` must be passed if and only if the block was built with one. Received: {received}"
            )
        return memory is not None


def _with_sublayers(config: dict[str, Any], sublayers: tuple[str, ...]) -> dict[str, Any]:
    """Convert a config of version 0.1, which has the arguments of the sublayers, to arguments with the sublayers."""
    config = dict(config)
    dtype = {"dtype": config.get("dtype")}
    shared = {name: config.pop(name) for name in ("use_bias", "kernel_initializer", "output_initializer")}
    self_attention_only = {name: config.pop(name) for name in ("relation", "position_encoding")}
    names = ("num_heads", "key_dim", "num_kv_heads", "score", "kernel", "qkv_bias", "query_initializer")
    attention = {name: config.pop(name) for name in names}
    attention |= {"dropout": config.pop("attention_dropout"), **shared, **dtype}
    feed_forward = {name: config.pop(name) for name in ("hidden_dim", "activation")}
    feed_forward |= {"dropout": config.pop("hidden_dropout"), **shared, **dtype}

    def layer(name: str) -> keras.layers.Layer:
        if name == "feed_forward":
            return FeedForward.from_config({**feed_forward, "name": name})
        options = {} if name == "cross_attention" else self_attention_only
        return MultiHeadAttention.from_config({**attention, **options, "name": name})

    return {**config, **{name: layer(name) for name in sublayers}}
