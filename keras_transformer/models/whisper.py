"""Whisper, an encoder–decoder from audio to text."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers import (
    ConvolutionalSubsampling,
    DecoderBlock,
    Dropout,
    EncoderBlock,
    FeedForward,
    LearnedPositions,
    LogMelSpectrogram,
    MultiHeadAttention,
    SinusoidalPositions,
    TokenEmbedding,
)
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.rematerialization import check_mode
from keras_transformer.layers.residual import new_norm
from keras_transformer.models.encoder_decoder import EncoderDecoder, size_of_decoder
from keras_transformer.models.input_specs import InputSpec, InputSpecs
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_positive_integer

_EPSILON = 1e-5


@keras.saving.register_keras_serializable(package="keras_transformer")
class Whisper(EncoderDecoder):
    r"""Encoder–decoder that reads audio of a fixed duration and writes text.

    $$\mathrm{logits} = \mathrm{Decoder}(\mathrm{target}, \mathrm{Encoder}(\mathrm{Subsampling}(\mathrm{LogMel}(a))))\,
    E^\top$$

    Audio is padded with zeros, or cut, to 320 · `max_source_length` samples: the frames are subsampled by 2. Blocks are
    pre-norm; the encoder adds fixed sinusoids, the decoder learned positions.

    Args:
        vocabulary_size: the size of the vocabulary.
        num_layers: the number of encoder blocks, and by default of decoder blocks.
        num_heads: the number of attention heads, a divisor of `model_dim`; by default also in the decoder.
        model_dim: D.
        hidden_dim: the hidden size of the feed-forward networks, by default also in the decoder.
        dropout: dropout rate for embeddings and sublayer outputs.
        activation: the activation of convolutions and feed-forward networks.
        attention_dropout: dropout rate for attention weights, by default `dropout`.
        hidden_dropout: dropout rate for hidden units of the feed-forward networks, by default `dropout`.
        num_decoder_layers: the number of decoder blocks, by default `num_layers`.
        num_decoder_heads: the number of attention heads in the decoder, by default `num_heads`.
        decoder_hidden_dim: the hidden size of the decoder's feed-forward networks, by default `hidden_dim`.
        num_mels: the number of mel bands.
        max_source_length: the number of hidden states of the encoder.
        max_length: the number of positions of the decoder.
        pad_id: the padding id, which may be the `end_id`.
        start_id: the id of the decoder's first input.
        end_id: the id that ends a text.
        rematerialize: "blocks" to recompute activations of blocks in the backward pass, which saves memory; or None.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: {"audio": floats (B, N), "target_ids": integers (B, T)}, or with "frames" (B, 2 · `max_source_length`,
            `num_mels`), the output of `features`, in place of "audio"; optionally "target_lengths" (B,).

    Attributes:
        features: the `LogMelSpectrogram`.

    Shapes:
        output: (B, T, vocabulary_size), float32 logits of the next token at each target position

    Raises:
        ValueError: if a number of heads does not divide `model_dim`, or that is odd; in a call, if audio or frames are
            missing or not finite.

    Example:
        >>> model = Whisper(100, 1, 2, 16, 32, max_source_length=20, max_length=8, pad_id=0, start_id=1, end_id=2)
        >>> model({"audio": keras.ops.zeros((1, 6400)), "target_ids": keras.ops.array([[1, 5]])}).shape
        TensorShape([1, 2, 100])

    References:
        Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 2.2.
    """

    source_is_ids = False
    sample_rate = 16000

    def __init__(
        self,
        vocabulary_size: int = 51865,
        num_layers: int = 4,
        num_heads: int = 6,
        model_dim: int = 384,
        hidden_dim: int = 1536,
        dropout: float = 0.0,
        activation: Any = "gelu",
        *,
        attention_dropout: float | None = None,
        hidden_dropout: float | None = None,
        num_decoder_layers: int | None = None,
        num_decoder_heads: int | None = None,
        decoder_hidden_dim: int | None = None,
        num_mels: int = 80,
        max_source_length: int = 1500,
        max_length: int = 448,
        pad_id: int = 50257,
        start_id: int = 50258,
        end_id: int = 50257,
        rematerialize: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            vocabulary_size,
            num_layers,
            num_decoder_layers,
            pad_id,
            start_id,
            end_id,
            autocast=False,  # audio needs more precision than float16
            **kwargs,
        )
        check_positive_integer(
            num_heads=num_heads,
            model_dim=model_dim,
            hidden_dim=hidden_dim,
            max_source_length=max_source_length,
        )
        check(model_dim % 2 == 0, "be even", model_dim=model_dim)
        self.num_heads = num_heads
        self.num_decoder_heads = size_of_decoder("num_decoder_heads", num_decoder_heads, num_heads)
        self.model_dim = model_dim
        self.hidden_dim = hidden_dim
        self.decoder_hidden_dim = size_of_decoder("decoder_hidden_dim", decoder_hidden_dim, hidden_dim)
        if num_decoder_heads is not None:
            divides = model_dim % num_decoder_heads == 0
            check(divides, "divide {model_dim}", num_decoder_heads=num_decoder_heads, model_dim=model_dim)
        self.dropout = check_rate("dropout", dropout)
        self.attention_dropout = check_rate("attention_dropout", attention_dropout, dropout)
        self.hidden_dropout = check_rate("hidden_dropout", hidden_dropout, dropout)
        self.activation = get_activation(activation)
        self.num_mels = num_mels
        self.max_source_length, self.max_length = max_source_length, max_length
        self.rematerialize = check_mode(rematerialize)
        dtype = {"dtype": self.dtype_policy}
        self.features = LogMelSpectrogram(num_mels, self.sample_rate, name="features", **dtype)
        self.subsampling = ConvolutionalSubsampling(
            model_dim, 3, (1, 2), activation, name="subsampling", **dtype
        )
        self.embedding = TokenEmbedding(
            vocabulary_size, model_dim, scale=False, pad_id=self._masked_id, name="embedding", **dtype
        )
        lengths = {"encoder": max_source_length, "decoder": max_length}
        self.positions = {
            side: LearnedPositions(length, name=f"{side}_positions", **dtype)
            for side, length in lengths.items()
        }
        self.positions["encoder"].trainable = False
        self.drop = Dropout(dropout, name="dropout", **dtype)

        def attention(heads: int, name: str, relation: Any = None) -> MultiHeadAttention:
            return MultiHeadAttention(
                heads,
                relation=relation,
                dropout=self.attention_dropout,
                key_bias=False,
                name=name,
                **dtype,
            )

        def feed_forward(size: int) -> FeedForward:
            return FeedForward(size, activation, self.hidden_dropout, name="feed_forward", **dtype)

        block = {
            "epsilon": _EPSILON,
            "dropout": dropout,
            "rematerialize": rematerialize == "blocks",
            **dtype,
        }
        self.encoder_blocks = [
            EncoderBlock(
                attention(num_heads, "attention"), feed_forward(hidden_dim), name=f"encoder_{i}", **block
            )
            for i in range(num_layers)
        ]
        self.decoder_blocks = [
            DecoderBlock(
                attention(self.num_decoder_heads, "self_attention", self.decoder_relation),
                feed_forward(self.decoder_hidden_dim),
                attention(self.num_decoder_heads, "cross_attention"),
                name=f"decoder_{i}",
                **block,
            )
            for i in range(self.num_decoder_layers)
        ]
        self.final_norms = {
            name: new_norm("layer", _EPSILON, name=name, **dtype) for name in ("encoder_norm", "decoder_norm")
        }
        self._build_weights()

    @property
    def max_samples(self) -> int:
        """The number of samples that the encoder reads."""
        return 2 * self.max_source_length * int(self.features.hop_length)

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Return the logits of every target position (teacher forcing)."""
        named = self.named_inputs(inputs)
        if ("audio" in named) == ("frames" in named):
            raise ValueError(
                f"`inputs` must have either 'audio' or 'frames'. Received: the keys {sorted(named)}"
            )
        memory, padding_mask = self.encoder_states(named.get("audio", named.get("frames")), training)
        hidden = self.decoder_states(
            named["target_ids"], memory, padding_mask, training, target_lengths=named.get("target_lengths")
        )
        return self.logits(hidden)

    def input_specs(self) -> InputSpecs:
        """Return the inputs of a call, by name."""
        frames = ("B", str(2 * self.max_source_length), str(self.num_mels))
        return {
            "audio": InputSpec(None, ("B", "N"), required=False, exported=True, dtype="float32"),
            "frames": InputSpec(None, frames, required=False, dtype="float32"),
            "target_ids": InputSpec(self.vocabulary_size, max_length=self.max_length),
            "target_lengths": InputSpec(None, ("B",), required=False),
        }

    def encoder_states(
        self,
        source_ids: Tensor,
        training: bool | None = None,
        source_lengths: Tensor | None = None,
        *,
        segment_ids: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the encoder's output (B, S, D) for audio (B, N) or frames, and its mask (B, S), True everywhere.

        The other arguments are for encoders of ids.
        """
        frames = source_ids
        if len(frames.shape) == 2:
            frames = self.features(_with_length(frames, self.max_samples))
        frames = ops.cast(frames, self.compute_dtype)
        hidden = self.drop(self.positions["encoder"](self.subsampling(frames)), training=training)
        padding_mask = ops.ones_like(hidden[..., 0], "bool")
        for block in self.encoder_blocks:
            hidden = block(hidden, training=training)
        return self._final_norm("encoder_norm", hidden, training), padding_mask

    def logits(self, hidden: Tensor, kernel: Tensor | None = None) -> Tensor:
        """Return float32 logits (B, T, vocabulary_size) of last hidden states (B, T, D)."""
        return self.embedding.logits(hidden, kernel)

    def cross_attention_weights(self, source_ids: Tensor, target_ids: Tensor) -> list[Tensor]:
        """Return the cross-attention weights of each decoder block for audio (B, N), float32 (B, N, T, S)."""
        return self.attention_weights({"audio": source_ids, "target_ids": target_ids}).cross

    def _embed(
        self, side: str, ids: Tensor, positions: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        if (
            positions is not None
        ):  # a row that has ended goes on with those of others, whose prompts are shorter
            positions = ops.minimum(positions, self.positions[side].max_length - 1)
        hidden = self.positions[side](self.embedding(ids), positions=positions)
        return self.drop(hidden, training=training)

    def _build_weights(self) -> None:
        self.features.build((None, None))
        self.subsampling.build((None, None, self.num_mels))
        for layer in self.positions.values():
            layer.build((None, None, self.model_dim))
        sinusoids = SinusoidalPositions(layout="halves", endpoint=True)
        self.positions["encoder"].table.assign(
            sinusoids.encode(ops.arange(self.max_source_length), self.model_dim)
        )
        super()._build_weights()


def _with_length(audio: Tensor, length: int) -> Tensor:
    """Pad audio (B, N) with zeros, or cut it, to `length` samples."""
    silence = ops.zeros((ops.shape(audio)[0], length), audio.dtype)
    return ops.concatenate([audio, silence], axis=1)[:, :length]
