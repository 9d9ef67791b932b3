"""The Vision Transformer, an encoder of image patches."""

import math
import sys
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer import relations
from keras_transformer.layers import Dropout, EncoderBlock, FeedForward, MultiHeadAttention, Positions2D
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.multi_head_attention import recorded_attention_weights
from keras_transformer.layers.rematerialization import check_mode
from keras_transformer.layers.residual import new_norm
from keras_transformer.models.input_specs import InputSpec, InputSpecs
from keras_transformer.models.model import Model, PublishedSizes
from keras_transformer.models.problem_types import check_problem_type
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import (
    check,
    check_not_negative,
    check_one_of,
    check_positive_integer,
    is_integer,
)

POOLINGS = ("token", "mean")


@keras.saving.register_keras_serializable(package="keras_transformer")
class ViT(PublishedSizes, Model):
    r"""Vision Transformer: classify images by the class token of a sequence of patches.

    $$z_0 = [x_{class};\; x^1_p E;\; \dots;\; x^N_p E] + P, \qquad z_l = \mathrm{Block}_l(z_{l-1}), \qquad
    \mathrm{logits} = \mathrm{norm}(z_L)_0\, W + b$$

    The $x_p$ are the N patches of the image, E is their linear projection and P the position encoding.

    Args:
        image_size: height and width of images, or one number for both; multiples of `patch_size`.
        patch_size: height and width of patches, or one number for both.
        num_classes: C, or None for a model without head, which returns the pooled features.
        num_layers: the number of blocks.
        num_heads: the number of attention heads, a divisor of `model_dim`.
        model_dim: D.
        hidden_dim: the hidden size of the feed-forward networks.
        dropout: dropout rate for embeddings, attention weights, hidden units and sublayer outputs.
        pooling: "token" (a class token, as in the paper) or "mean" (over all patches, without class token).
        positions: "learned" (a table P) or "sinusoidal" (encodings of row and column, without weights).
        window: the number of rows and columns of patches on each side that a patch attends to; None for all patches.
            The class token attends to all patches, and all patches attend to it.
        relation: instead of `window`, which tokens may attend to which (see `relations`), in their order: the class
            token, if there is one, then the patches row by row.
        activation: the activation of the feed-forward networks.
        num_channels: the number of image channels.
        value_range: the range of the images' values, scaled to [−1, 1].
        epsilon: the epsilon of the norms.
        attention_dropout: dropout rate for attention weights, by default `dropout`.
        qkv_bias: whether the projections to queries, keys and values have biases.
        problem_type: the problem type of the head, with the losses of `SequenceClassifier`.
        rematerialize: "blocks" to recompute activations of blocks in the backward pass, which saves memory; or None.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: images (B, height, width, channels), integers or floats in `value_range`.

    Shapes:
        output: (B, C), float32 logits, or for regression the predicted numbers; (B, D) without head

    Raises:
        ValueError: if `image_size` is not a multiple of `patch_size`, or an argument has an unknown value; in a call,
            if images have a different size, or are integers and `value_range` is within [−1, 1].

    Example:
        >>> model = ViT(8, patch_size=4, num_classes=10, num_layers=1, num_heads=2, model_dim=16, hidden_dim=32)
        >>> model(keras.ops.zeros((2, 8, 8, 3))).shape
        TensorShape([2, 10])

    References:
        Dosovitskiy et al., "An Image is Worth 16x16 Words" (2021), equations 1 to 4, and section 3.2 for other image
        sizes. The class token has its own row of P, as in the paper.
    """

    # Table 1; "s16" and "ti16" as in Steiner et al., "How to Train Your ViT?" (2022), table 2.
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        name: {
            "image_size": 224,
            "patch_size": patch_size,
            "num_classes": 1000,
            "num_layers": layers,
            "num_heads": heads,
            "model_dim": size,
            "hidden_dim": 4 * size,
        }
        for name, patch_size, layers, heads, size in (
            ("ti16", 16, 12, 3, 192),
            ("s16", 16, 12, 6, 384),
            ("b16", 16, 12, 12, 768),
            ("b32", 32, 12, 12, 768),
            ("l16", 16, 24, 16, 1024),
            ("h14", 14, 32, 16, 1280),
        )
    }

    def __init__(
        self,
        image_size: int | tuple[int, int],
        patch_size: int | tuple[int, int],
        num_classes: int | None,
        num_layers: int = 12,
        num_heads: int = 12,
        model_dim: int = 768,
        hidden_dim: int = 3072,
        dropout: float = 0.0,
        pooling: str = "token",
        positions: str = "learned",
        window: int | None = None,
        *,
        relation: Any = None,
        activation: Any = "gelu",
        num_channels: int = 3,
        value_range: tuple[float, float] = (0.0, 255.0),
        epsilon: float = 1e-6,
        attention_dropout: float | None = None,
        qkv_bias: bool = True,
        problem_type: str | None = None,
        rematerialize: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer(num_layers=num_layers, num_channels=num_channels)
        self.image_size, self.patch_size = _pair("image_size", image_size), _pair("patch_size", patch_size)
        fits = not any(size % patch for size, patch in zip(self.image_size, self.patch_size, strict=True))
        check(fits, "be a multiple of {patch_size}", image_size=image_size, patch_size=patch_size)
        check_one_of(POOLINGS, pooling=pooling)
        if window is not None:
            check_not_negative(window=window)
            is_full = relations.get(relation) == relations.Full()
            check(is_full, "be None if {window} is passed", relation=relation, window=window)
        if len(value_range) != 2 or value_range[0] >= value_range[1]:
            raise ValueError(
                f"`value_range` must be a minimum and a maximum. Received: value_range={value_range}"
            )
        self.num_classes = num_classes
        self.returns_logits = num_classes is not None
        self.problem_type = None if num_classes is None else check_problem_type(problem_type, num_classes)
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.model_dim = model_dim
        self.hidden_dim = hidden_dim
        self.dropout = check_rate("dropout", dropout)
        self.attention_dropout = check_rate("attention_dropout", attention_dropout, dropout)
        self.qkv_bias = qkv_bias
        self.pooling = pooling
        self.positions_kind = positions
        self.window, self.relation = window, relations.get(relation)
        self.activation = get_activation(activation)
        self.num_channels = num_channels
        self.value_range = (float(value_range[0]), float(value_range[1]))
        self.epsilon = epsilon
        height, width = self.patch_size
        self.grid_shape = (self.image_size[0] // height, self.image_size[1] // width)
        self.rematerialize = check_mode(rematerialize)
        dtype = {"dtype": self.dtype_policy}
        # A convolution with stride equal to its size, as a Dense layer, which supports LoRA and quantization.
        self.embedding = keras.layers.Dense(model_dim, name="embedding", **dtype)
        self.positions = Positions2D(positions, self.grid_shape, name="positions", **dtype)
        self.drop = Dropout(dropout, name="dropout", **dtype)
        attended = self.relation if window is None else self._windows(window)
        self.blocks = [
            EncoderBlock(
                MultiHeadAttention(
                    num_heads,
                    relation=attended,
                    dropout=self.attention_dropout,
                    qkv_bias=qkv_bias,
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
        self.final_norm = new_norm("layer", epsilon, name="final_norm", **dtype)
        self.head = (
            None if num_classes is None else keras.layers.Dense(num_classes, dtype="float32", name="head")
        )
        self._build_weights()

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Return the logits (B, C), or the pooled features (B, D) of a model without head."""
        hidden = self.encode(inputs, training)
        pooled = hidden[:, 0] if self.pooling == "token" else ops.mean(hidden, axis=1)
        return ops.cast(pooled if self.head is None else self.head(pooled), "float32")

    def input_specs(self) -> InputSpecs:
        """Return the spec of the images, by name."""
        axes = ("B", *map(str, (*self.image_size, self.num_channels)))
        return {"images": InputSpec(None, axes, dtype="float32", any_number=True)}

    def input_signature(self) -> keras.InputSpec:
        """Return the spec of the images."""
        return self.input_specs()["images"].for_keras("images")

    def encode(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Return the last hidden states (B, T, D) of the class token, if there is one, and the patches."""
        hidden = self._embed(inputs, training)
        for block in self.blocks:
            hidden = block(hidden, training=training)
        return self.final_norm(hidden)

    def attention_weights(self, inputs: Tensor) -> list[Tensor]:
        """Return the attention weights of each block, float32 (B, N, T, T), for inspection; a class token is first."""
        with recorded_attention_weights([block.attention for block in self.blocks]) as weights:
            self.encode(inputs, training=False)
        return weights

    def resized(self, image_size: int | tuple[int, int], interpolation: str = "bicubic") -> "ViT":
        """Copy the model for a different image size, with interpolated learned positions.

        Args:
            image_size: height and width, or one number for both.
            interpolation: the method of `keras.ops.image.resize`.

        Returns:
            A new model, not compiled. The weights are copies.
        """
        config = self.get_config()
        model = type(self).from_config({**config, "image_size": image_size})
        for old, new in zip(self.weights, model.weights, strict=True):
            value = old.value
            if old.path.endswith("positions/table"):
                value = ops.image.resize(
                    value, model.grid_shape, interpolation=interpolation, data_format="channels_last"
                )
            new.assign(value)
        return model

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the output shape (B, C), or (B, D) without head."""
        return (input_shape[0], self.model_dim if self.num_classes is None else self.num_classes)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "positions": self.positions_kind}

    def _build_weights(self) -> None:
        height, width = self.grid_shape
        self.embedding.build((None, height, width, math.prod(self.patch_size) * self.num_channels))
        self.positions.build((None, height, width, self.model_dim))
        if self.pooling == "token":
            self.class_token, self.class_position = (
                self.add_weight(name=name, shape=(self.model_dim,), initializer=initializer)
                for name, initializer in (
                    ("class_token", "zeros"),
                    ("class_position", self.positions.initializer),
                )
            )
        shape = (None, height * width + (self.pooling == "token"), self.model_dim)
        for layer in (self.drop, *self.blocks, self.final_norm):
            layer.build(shape)
        if self.head is not None:
            self.head.build((None, self.model_dim))
        self.built = True

    def _embed(self, images: Tensor, training: bool | None) -> Tensor:
        """Embed patches and class token with their positions, (B, T, D)."""
        images = ops.convert_to_tensor(images)
        images = self._checked(images)
        low, high = self.value_range
        images = (ops.cast(images, "float32") - low) * (2 / (high - low)) - 1
        (height, width), (rows, columns) = self.grid_shape, self.patch_size
        grid = ops.reshape(images, [-1, height, rows, width, columns, self.num_channels])
        patches = ops.reshape(
            ops.transpose(grid, (0, 1, 3, 2, 4, 5)), [-1, height, width, rows * columns * self.num_channels]
        )
        hidden = self.positions(self.embedding(ops.cast(patches, self.compute_dtype)))
        hidden = ops.reshape(hidden, [-1, height * width, self.model_dim])
        if self.pooling == "token":
            token = ops.cast(self.class_token + self.class_position, hidden.dtype)
            token = ops.zeros_like(hidden[:, :1]) + token  # (B, 1, D)
            hidden = ops.concatenate([token, hidden], axis=1)
        return self.drop(hidden, training=training)

    def _checked(self, images: Tensor) -> Tensor:
        """Return the images after a check of their shape; in a graph for images of any size, when it runs."""
        expected, shape = (*self.image_size, self.num_channels), tuple(images.shape)
        if len(shape) != 4 or any(
            actual not in (None, size) for actual, size in zip(shape[1:], expected, strict=True)
        ):
            raise ValueError(
                f"`inputs` must be images (B, height, width, channels) = (B, {', '.join(map(str, expected))}); "
                f"`resized` copies the model for a different size. Received: inputs.shape={shape}"
            )
        dtype = keras.backend.standardize_dtype(images.dtype)
        if "float" not in dtype and max(map(abs, self.value_range)) <= 1:
            raise ValueError(
                f"`inputs` must be floats in value_range={self.value_range}. Received: inputs.dtype={dtype}"
            )
        if None in shape[1:] and keras.backend.backend() == "tensorflow":
            return sys.modules["tensorflow"].ensure_shape(images, (None, *expected))
        return images

    def _windows(self, window: int) -> relations.Adjacency:
        """Return the relation of patches within a window; a class token, at 0, is related to all patches."""
        rows, columns = np.divmod(np.arange(self.grid_shape[0] * self.grid_shape[1]), self.grid_shape[1])
        near = (abs(rows[:, None] - rows) <= window) & (abs(columns[:, None] - columns) <= window)
        if self.pooling == "token":
            near = np.pad(near, [(1, 0), (1, 0)], constant_values=True)
        return relations.Adjacency(np.argwhere(near).tolist(), len(near))


def _pair(name: str, size: int | tuple[int, int]) -> tuple[int, int]:
    """Return a size as (height, width)."""
    pair = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if len(pair) != 2 or not all(map(is_integer, pair)) or min(pair) < 1:
        raise ValueError(f"`{name}` must be a positive height and width. Received: {name}={size!r}")
    return int(pair[0]), int(pair[1])
