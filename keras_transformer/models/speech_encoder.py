"""A Transformer encoder of audio."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer.layers import (
    ConvolutionalSubsampling,
    Dropout,
    EncoderBlock,
    FeedForward,
    LogMelSpectrogram,
    MultiHeadAttention,
)
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.rematerialization import check_mode
from keras_transformer.layers.residual import new_norm
from keras_transformer.models.input_specs import InputSpec, InputSpecs
from keras_transformer.models.model import Model
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class SpeechEncoder(Model):
    r"""Encode audio, or frames of features of it, by subsampling and Transformer blocks.

    $$z_0 = \mathrm{Subsampling}(\mathrm{LogMel}(a)), \qquad z_l = \mathrm{Block}_l(z_{l-1}), \qquad
    h = \mathrm{norm}(z_L)$$

    Args:
        num_layers: L, the number of blocks.
        num_heads: the number of attention heads, a divisor of `model_dim`.
        model_dim: D.
        hidden_dim: the hidden size of the feed-forward networks.
        dropout: dropout rate for the subsampled frames, attention weights, hidden units and sublayer outputs.
        features: the layer that converts audio to frames, by default `LogMelSpectrogram(normalization="utterance")`.
        num_features: F, the size of frames, for a model that reads frames instead of audio; then without `features`.
        strides: the strides of the convolutions, see `ConvolutionalSubsampling`.
        kernel_size: the number of frames that a convolution reads.
        activation: the activation of convolutions and feed-forward networks.
        position_encoding: the position encoding within the attention, see `MultiHeadAttention`.
        relation: which frames may attend to which (see `relations`), by default all.
        epsilon: the epsilon of the norms.
        rematerialize: "blocks" to recompute activations of blocks in the backward pass, which saves memory; or None.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: {"audio": floats (B, N)}, usually in [−1, 1], or {"frames": floats (B, T, F)} with `num_features`; and
            optionally "lengths" (B,), the numbers of samples or frames of rows padded at the end.

    Shapes:
        output: (B, T', D), float32; the hidden states after the end of a row are undefined, see `output_lengths`

    Raises:
        ValueError: if `num_heads` does not divide `model_dim`, or both `features` and `num_features` are given; in a
            call, if inputs have another name or shape, or are not finite.

    Example:
        >>> model = SpeechEncoder(num_layers=1, num_heads=2, model_dim=16, hidden_dim=32)
        >>> model({"audio": keras.ops.zeros((2, 16000))}).shape
        TensorShape([2, 25, 16])

    References:
        Dong, Xu and Xu, "Speech-Transformer" (2018); Radford et al., "Whisper" (2022), section 2.2.
    """

    parts = ("features",)

    def __init__(
        self,
        num_layers: int = 6,
        num_heads: int = 4,
        model_dim: int = 256,
        hidden_dim: int = 1024,
        dropout: float = 0.1,
        *,
        features: Any = None,
        num_features: int | None = None,
        strides: Sequence[int] = (2, 2),
        kernel_size: int = 3,
        activation: Any = "gelu",
        position_encoding: Any = "rotary",
        relation: Any = None,
        epsilon: float = 1e-6,
        rematerialize: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)  # audio needs more precision than float16
        check_positive_integer(num_layers=num_layers, model_dim=model_dim)
        if num_features is None:
            features = LogMelSpectrogram(normalization="utterance") if features is None else features
        elif features is not None:
            raise ValueError(
                "`num_features` must be None for a model with `features`. "
                f"Received: num_features={num_features}, features={features!r}"
            )
        else:
            check_positive_integer(num_features=num_features)
        if features is not None and not hasattr(features, "output_lengths"):
            raise TypeError(
                f"`features` must be a layer such as `LogMelSpectrogram`. Received: features={features!r}"
            )
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.model_dim = model_dim
        self.hidden_dim = hidden_dim
        self.dropout = check_rate("dropout", dropout)
        self.features, self.num_features = features, num_features
        self.kernel_size = kernel_size
        self.activation, self.position_encoding = get_activation(activation), position_encoding
        self.epsilon = epsilon
        self.rematerialize = check_mode(rematerialize)
        dtype = {"dtype": self.dtype_policy}
        self.subsampling = ConvolutionalSubsampling(
            model_dim, kernel_size, strides, activation, name="subsampling", **dtype
        )
        self.strides = self.subsampling.strides
        self.drop = Dropout(dropout, name="dropout", **dtype)
        self.blocks = [
            EncoderBlock(
                MultiHeadAttention(
                    num_heads,
                    relation=relation,
                    position_encoding=position_encoding,
                    dropout=dropout,
                    name="attention",
                    **dtype,
                ),
                FeedForward(hidden_dim, activation, dropout, name="feed_forward", **dtype),
                epsilon=epsilon,
                dropout=dropout,
                rematerialize=rematerialize == "blocks",
                name=f"block_{i}",
                **dtype,
            )
            for i in range(num_layers)
        ]
        self.relation = self.blocks[0].attention.relation
        self.final_norm = new_norm("layer", epsilon, name="final_norm", **dtype)
        self._build_weights()

    @property
    def sample_rate(self) -> int | None:
        """The number of samples in a second of audio; None for a model that reads frames."""
        return None if self.features is None else int(self.features.sample_rate)

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        """Return the last hidden states (B, T', D)."""
        named = self.named_inputs(inputs)
        lengths = named.get("lengths")
        if self.features is None:
            frames = named["frames"]
        else:
            frames = self.features(named["audio"], lengths)
            lengths = None if lengths is None else self.features.output_lengths(lengths)
        frames = keras.ops.cast(frames, self.compute_dtype)
        hidden = self.drop(self.subsampling(frames, lengths), training=training)
        lengths = None if lengths is None else self.subsampling.output_lengths(lengths)
        for block in self.blocks:
            hidden = block(hidden, key_lengths=lengths, training=training)
        return keras.ops.cast(self.final_norm(hidden), "float32")

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Return the numbers of hidden states (B,) of audio of these numbers of samples, or of these frames."""
        if self.features is not None:
            lengths = self.features.output_lengths(lengths)
        return self.subsampling.output_lengths(lengths)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Tensor | None:
        """Return the mask (B, T') of hidden states, False after the end of a row; None without lengths."""
        if not isinstance(inputs, dict) or inputs.get("lengths") is None:
            return None
        source = inputs["frames" if self.features is None else "audio"]
        size = keras.ops.shape(source)[1]
        if size is None:  # a symbolic tensor: the mask is computed again with its values
            return None
        states = keras.ops.arange(self.output_lengths(size), dtype="int32")
        return states < keras.ops.cast(self.output_lengths(inputs["lengths"]), "int32")[:, None]

    def input_specs(self) -> InputSpecs:
        """Return the inputs of a call, by name."""
        if self.features is None:
            inputs = {"frames": InputSpec(None, ("B", "T", str(self.num_features)), dtype="float32")}
        else:
            inputs = {"audio": InputSpec(None, ("B", "N"), dtype="float32")}
        return {**inputs, "lengths": InputSpec(None, ("B",), required=False, exported=True)}

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the output shape (B, T', D)."""
        name = "frames" if self.features is None else "audio"
        shape = input_shape[name] if isinstance(input_shape, dict) else input_shape
        length = None if shape[1] is None else self.output_lengths(shape[1])
        return shape[0], length, self.model_dim

    def _build_weights(self) -> None:
        if self.features is not None:
            self.features.build((None, None))
        size = self.num_features or self.features.num_mels
        self.subsampling.build((None, None, size))
        shape = (None, None, self.model_dim)
        for layer in (self.drop, *self.blocks, self.final_norm):
            layer.build(shape)
        self.built = True
