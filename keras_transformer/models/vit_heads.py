"""A Vision Transformer that classifies every pixel."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers import Dropout
from keras_transformer.models.input_specs import InputSpecs
from keras_transformer.models.model import Model
from keras_transformer.models.vit import ViT
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageSegmenter(Model):
    r"""Classify every pixel of an image (semantic segmentation) by the logits of its patch.

    $$\mathrm{logits} = \mathrm{resize}\big(\mathrm{grid}(z_1 W + b, \dots, z_N W + b)\big)$$

    The $z_i$ are the encoder's last hidden states of the N patches. Their logits are interpolated bilinearly to the
    pixels. Train it with `keras.losses.SparseCategoricalCrossentropy(from_logits=True)` on integers (B, height, width);
    `keras.metrics.MeanIoU(num_classes, sparse_y_pred=False)` is the mean intersection over union.

    Args:
        encoder: a `ViT` with `num_classes=None`.
        num_classes: C, the number of classes of pixels, including the background.
        dropout: dropout rate before the head, by default the encoder's.
        **kwargs: arguments of `keras.Model`; the default dtype policy is the encoder's.

    Call arguments:
        inputs: the inputs of the encoder.

    Shapes:
        output: (B, height, width, C), float32 logits

    Example:
        >>> encoder = ViT(8, patch_size=4, num_classes=None, num_layers=1, num_heads=2, model_dim=16, hidden_dim=32)
        >>> ImageSegmenter(encoder, num_classes=3)(keras.ops.zeros((2, 8, 8, 3))).shape
        TensorShape([2, 8, 8, 3])

    References:
        Strudel et al., "Segmenter: Transformer for Semantic Segmentation" (2021), section 3.2, the linear decoder.
    """

    returns_logits = True
    parts = ("encoder",)

    def __init__(self, encoder: ViT, num_classes: int, dropout: float | None = None, **kwargs: Any) -> None:
        if not isinstance(encoder, ViT):
            raise TypeError(f"`encoder` must be a `models.ViT`. Received: a {type(encoder).__name__}")
        if encoder.head is not None:
            raise ValueError(
                "`encoder` must have no head: create it with num_classes=None. "
                f"Received: a ViT with num_classes={encoder.num_classes}"
            )
        super().__init__(**{"dtype": encoder.dtype_policy, **kwargs})
        check_positive_integer(num_classes=num_classes)
        self.encoder, self.num_classes = encoder, num_classes
        encoder.build_as_sublayer()
        self.dropout = check_rate("dropout", dropout, encoder.dropout)
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")
        self.head = keras.layers.Dense(num_classes, dtype="float32", name="head")
        for layer in (self.drop, self.head):
            layer.build((None, None, encoder.model_dim))
        self.built = True

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Return the logits (B, height, width, C) of the pixels."""
        encoder = self.encoder
        hidden = encoder.encode(inputs, training)
        patches = hidden[:, 1:] if encoder.pooling == "token" else hidden
        logits = self.head(self.drop(patches, training=training))  # (B, N, C)
        grid = ops.reshape(logits, [-1, *encoder.grid_shape, self.num_classes])
        return ops.image.resize(grid, encoder.image_size, "bilinear", data_format="channels_last")

    def input_specs(self) -> InputSpecs:
        """Return the spec of the images, by name."""
        return self.encoder.input_specs()

    def input_signature(self) -> keras.InputSpec:
        """Return the spec of the images."""
        return self.encoder.input_signature()

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the output shape (B, height, width, C)."""
        return (input_shape[0], *self.encoder.image_size, self.num_classes)
