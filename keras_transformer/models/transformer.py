"""The original Transformer: an encoder and a decoder."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.layers import DecoderBlock, Dropout, EncoderBlock, SinusoidalPositions, TokenEmbedding
from keras_transformer.layers.blocks import head_dim
from keras_transformer.layers.feed_forward import get_activation, serialize_activation
from keras_transformer.layers.multi_head_attention import Cache
from keras_transformer.layers.residual import new_norm
from keras_transformer.ops.dropout import check_rate

Tensor = Any
Context = dict[str, Any]


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(keras.Model):
    r"""Encoder–decoder for sequence-to-sequence tasks, with one vocabulary and one embedding matrix.

    $$\mathrm{logits} = \mathrm{Decoder}(\mathrm{target}, \mathrm{Encoder}(\mathrm{source}))\, E^\top$$

    Args:
        vocabulary_size: of source and target alike.
        num_layers: blocks in the encoder, and in the decoder.
        num_heads: heads of every attention, a divisor of `model_dim`.
        model_dim: D.
        hidden_dim: width of the feed-forward networks.
        dropout: probability, everywhere the paper drops and on attention weights.
        activation: of the feed-forward networks, gated ones too ("swiglu", …).
        normalization: "pre" (trains without a long warm-up), "post" (the paper's) or "sandwich".
        norm: "layer" or "rms".
        pad_id: fills up short rows; never attended to.
        start_id: what the decoder starts from.
        end_id: ends a sequence.
        **kwargs: for `keras.Model`.

    Call arguments:
        inputs: {"source_ids": (B, S), "target_ids": (B, T)} of integers. The target starts with `start_id`.

    Shapes:
        output: (B, T, vocabulary_size), float32 logits of the token that follows each target token

    Raises:
        ValueError: where `num_heads` does not divide `model_dim` or a size is not positive.

    Example:
        >>> model = Transformer(100, num_layers=1, num_heads=2, model_dim=16, hidden_dim=32)
        >>> ids = keras.ops.array([[5, 6, 3]])
        >>> model({"source_ids": ids, "target_ids": ids}).shape
        TensorShape([1, 3, 100])

    References:
        Vaswani et al., "Attention Is All You Need" (2017).
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 6,
        num_heads: int = 8,
        model_dim: int = 512,
        hidden_dim: int = 2048,
        dropout: float = 0.1,
        activation: Any = "relu",
        normalization: str = "pre",
        norm: str = "layer",
        *,
        pad_id: int = 0,
        start_id: int = 2,
        end_id: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, size in (("vocabulary_size", vocabulary_size), ("num_layers", num_layers)):
            if size < 1:
                raise ValueError(f"`{name}` must be positive. Received: {name}={size}")
        if model_dim % 2:
            raise ValueError(f"`model_dim` must be even. Received: model_dim={model_dim}")
        for name, id_ in (("pad_id", pad_id), ("start_id", start_id), ("end_id", end_id)):
            if not 0 <= id_ < vocabulary_size:
                raise ValueError(f"`{name}` must be in [0, {vocabulary_size}). Received: {name}={id_}")
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.model_dim = model_dim
        self.hidden_dim = hidden_dim
        self.dropout = check_rate("dropout", dropout)
        self.activation = get_activation(activation)
        self.normalization = normalization
        self.norm = norm
        self.pad_id, self.start_id, self.end_id = pad_id, start_id, end_id
        dtype = {"dtype": self.dtype_policy}
        self.embedding = TokenEmbedding(vocabulary_size, model_dim, pad_id=pad_id, name="embedding", **dtype)
        self.positions = SinusoidalPositions(name="positions", **dtype)
        self.drop = Dropout(dropout, name="dropout", **dtype)
        block = {
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "activation": activation,
            "normalization": normalization,
            "norm": norm,
            "dropout": dropout,
            **dtype,
        }
        self.encoder_blocks = [EncoderBlock(name=f"encoder_{i}", **block) for i in range(num_layers)]
        self.decoder_blocks = [DecoderBlock(name=f"decoder_{i}", **block) for i in range(num_layers)]
        # Without post-norm a stack leaves its sum of residuals unnormalised.
        final_norms = () if normalization == "post" else ("encoder_norm", "decoder_norm")
        self.final_norms = {name: new_norm(norm, epsilon=1e-6, name=name, **dtype) for name in final_norms}
        self._build_weights()

    @classmethod
    def small(cls, vocabulary_size: int, **kwargs: Any) -> "Transformer":
        """3+3 layers, D 256: trains on a CPU. 7.6 million parameters at a vocabulary of 8,000."""
        sizes = {"num_layers": 3, "num_heads": 8, "model_dim": 256, "hidden_dim": 1024}
        return cls(vocabulary_size, **{**sizes, **kwargs})

    @classmethod
    def base(cls, vocabulary_size: int = 37000, **kwargs: Any) -> "Transformer":
        """The paper's base model: 6+6 layers, D 512, post-norm, ReLU (table 3: 65 million parameters)."""
        sizes = {"num_layers": 6, "num_heads": 8, "model_dim": 512, "hidden_dim": 2048, "dropout": 0.1}
        return cls(vocabulary_size, **{**sizes, "normalization": "post", **kwargs})

    @classmethod
    def big(cls, vocabulary_size: int = 37000, **kwargs: Any) -> "Transformer":
        """The paper's big model: 6+6 layers, D 1024, post-norm, ReLU (table 3: 213 million parameters)."""
        sizes = {"num_layers": 6, "num_heads": 16, "model_dim": 1024, "hidden_dim": 4096, "dropout": 0.3}
        return cls(vocabulary_size, **{**sizes, "normalization": "post", **kwargs})

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Logits for every target position (teacher forcing)."""
        memory, source_padding = self._encode(inputs["source_ids"], training)
        target_ids = inputs["target_ids"]
        hidden = self.drop(self.positions(self.embedding(target_ids)), training=training)
        for block in self.decoder_blocks:
            hidden = block(
                hidden,
                memory,
                padding_mask=ops.not_equal(target_ids, self.pad_id),
                memory_padding_mask=source_padding,
                training=training,
            )
        return self.embedding.logits(self._final_norm("decoder_norm", hidden))

    def encode(self, source_ids: Tensor) -> Context:
        """What decoding needs of the source: every layer's projected memory, and which of it is padding.

        Args:
            source_ids: integers (B, S).

        Returns:
            {"projected": [{"key", "value"}: (B, S, N, H)] per layer, "padding_mask": bool (B, S)}.
        """
        memory, padding_mask = self._encode(source_ids, training=False)
        projected = [block.cross_attention.project(memory) for block in self.decoder_blocks]
        return {"projected": projected, "padding_mask": padding_mask}

    def empty_cache(self, batch_size: Any, length: Any, hypotheses: int = 1) -> list[Cache]:
        """A cache for `step` with room for `length` tokens, `hypotheses` of them for each position."""
        return [
            block.self_attention.empty_cache(batch_size, length, hypotheses) for block in self.decoder_blocks
        ]

    def step(
        self,
        target_ids: Tensor,
        cache: list[Cache],
        context: Context,
        *,
        slot: Tensor,
        positions: Tensor,
        attention_mask: Tensor | None = None,
        update: Callable[[Tensor, Tensor, Tensor], Tensor] = kt_ops.slice_update,
    ) -> tuple[Tensor, list[Cache]]:
        """Logits of the tokens that follow T new target tokens, given those in the cache.

        Args:
            target_ids: integers (B, T), the new tokens.
            cache: as `empty_cache` makes it and earlier steps return it.
            context: as `encode` returns it.
            slot: integer scalar, where in the cache to write.
            positions: integers (B, T) of the new tokens.
            attention_mask: booleans (B, T, S), which of the tokens in the cache, the new ones included, each new
                token may attend to, where they are alternatives for one position.
            update: how to write into the cache.

        Returns:
            Logits (B, T, vocabulary_size) in float32, and the cache with the new tokens in it.
        """
        hidden = self.positions(self.embedding(target_ids), positions=positions)
        new_cache = []
        for block, block_cache, projected in zip(
            self.decoder_blocks, cache, context["projected"], strict=True
        ):
            hidden, block_cache = block.step(
                hidden,
                block_cache,
                projected,
                slot=slot,
                positions=positions,
                padding_mask=ops.not_equal(target_ids, self.pad_id),
                memory_padding_mask=context["padding_mask"],
                attention_mask=attention_mask,
                update=update,
            )
            new_cache.append(block_cache)
        return self.embedding.logits(self._final_norm("decoder_norm", hidden)), new_cache

    def cross_attention_weights(self, source_ids: Tensor, target_ids: Tensor) -> list[Tensor]:
        """How each decoder block attends to the source: float32 (B, N, T, S) per block, for looking."""
        memory, source_padding = self._encode(source_ids, training=False)
        padding_mask = ops.not_equal(target_ids, self.pad_id)
        hidden = self.positions(self.embedding(target_ids))
        weights = []
        for block in self.decoder_blocks:
            weights.append(block.cross_attention_weights(hidden, memory, padding_mask, source_padding))
            hidden = block(hidden, memory, padding_mask=padding_mask, memory_padding_mask=source_padding)
        return weights

    def compute_output_shape(self, input_shape: dict[str, Any]) -> tuple[int | None, ...]:
        """(B, T, vocabulary_size)."""
        return (*input_shape["target_ids"], self.vocabulary_size)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "model_dim": self.model_dim,
            "hidden_dim": self.hidden_dim,
            "dropout": self.dropout,
            "activation": serialize_activation(self.activation),
            "normalization": self.normalization,
            "norm": self.norm,
            "pad_id": self.pad_id,
            "start_id": self.start_id,
            "end_id": self.end_id,
        }

    def _build_weights(self) -> None:
        head_dim(self.model_dim, self.num_heads)
        shape = (None, None, self.model_dim)
        self.embedding.build((None, None))
        self.positions.build(shape)
        self.drop.build(shape)
        for block in self.encoder_blocks:
            block.build(shape)
        for block in self.decoder_blocks:
            block.build(shape, shape)
        for norm in self.final_norms.values():
            norm.build(shape)
        self.built = True

    def _encode(self, source_ids: Tensor, training: bool | None) -> tuple[Tensor, Tensor]:
        padding_mask = ops.not_equal(source_ids, self.pad_id)
        hidden = self.drop(self.positions(self.embedding(source_ids)), training=training)
        for block in self.encoder_blocks:
            hidden = block(hidden, padding_mask=padding_mask, training=training)
        return self._final_norm("encoder_norm", hidden), padding_mask

    def _final_norm(self, name: str, hidden: Tensor) -> Tensor:
        return self.final_norms[name](hidden) if name in self.final_norms else hidden
