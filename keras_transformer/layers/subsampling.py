"""Convolutional subsampling of frames."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.layers import initializers
from keras_transformer.layers.feed_forward import activation_function, get_activation
from keras_transformer.layers.masks import check_lengths, zero_padding
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_positive_integer, is_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class ConvolutionalSubsampling(ConfiguredLayer):
    r"""Shorten a sequence of frames by convolutions with strides, each followed by an activation.

    $$x^{(l)}_t = f\Bigl(b_l + \sum_{k=-(K-1)/2}^{(K-1)/2} x^{(l-1)}_{s_l t + k}\, W_{lk}\Bigr)$$

    Padding does not change the outputs of frames: values after the end of a sequence are zero for every convolution.

    Args:
        filters: D, the number of features of the output.
        kernel_size: K, the number of frames that a convolution reads, odd.
        strides: the stride of each convolution; their product is the factor by which sequences get shorter. Whisper has
            (1, 2).
        activation: f, as in `FeedForward`; of a gated one, such as "swiglu", the activation of its gate.
        kernel_initializer: initializer of the W.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: frames (B, T, F).
        lengths: integers (B,), the numbers of frames of sequences padded at the end, by default all.

    Shapes:
        inputs: (B, T, F)
        output: (B, T', D), T' = ⌈…⌈⌈T / s₁⌉ / s₂⌉…⌉; zeros after the end of a sequence

    Example:
        >>> ConvolutionalSubsampling(16)(keras.ops.ones((2, 10, 80))).shape
        TensorShape([2, 3, 16])

    References:
        Radford et al., "Whisper" (2022), section 2.2; Gulati et al., "Conformer" (2020), section 2.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: int = 3,
        strides: Sequence[int] = (2, 2),
        activation: Any = "gelu",
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer(filters=filters, kernel_size=kernel_size)
        check(kernel_size % 2 == 1, "be odd", kernel_size=kernel_size)
        is_list = isinstance(strides, list | tuple) and len(strides) > 0
        check(
            is_list and all(is_integer(stride) and stride > 0 for stride in strides),
            "be a list of positive integers",
            strides=strides,
        )
        self.filters = filters
        self.kernel_size = kernel_size
        self.strides = tuple(strides)
        self.activation = get_activation(activation)
        self.kernel_initializer = initializers.get(kernel_initializer)

    def build(self, inputs_shape: Any, lengths_shape: Any = None) -> None:
        """Create the convolutions for frames of size F, as Dense layers, which support LoRA and quantization."""
        self.convolutions = []
        size = inputs_shape[-1]
        for i in range(len(self.strides)):
            convolution = keras.layers.Dense(
                self.filters,
                activation=activation_function(self.activation),
                kernel_initializer=initializers.clone(self.kernel_initializer),
                dtype=self.dtype_policy,
                name=f"convolution_{i}",
            )
            convolution.build((*inputs_shape[:2], self.kernel_size * size))
            self.convolutions.append(convolution)
            size = self.filters

    def call(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the shorter sequence (B, T', D)."""
        if len(inputs.shape) != 3:
            raise ValueError(
                f"`inputs` must be frames (B, T, F). Received: inputs.shape={tuple(inputs.shape)}"
            )
        check_lengths(lengths, inputs)
        margin = self.kernel_size // 2
        hidden = zero_padding(inputs, lengths)
        for convolution, stride in zip(self.convolutions, self.strides, strict=True):
            padded = ops.pad(hidden, [[0, 0], [margin, margin], [0, 0]])
            end = ops.shape(hidden)[1]  # the window of the last frame begins before it
            windows = [padded[:, place : place + end : stride] for place in range(self.kernel_size)]
            hidden = convolution(ops.concatenate(windows, axis=-1))
            lengths = None if lengths is None else _shortened(lengths, stride)
            hidden = zero_padding(hidden, lengths)
        return hidden

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Return the lengths (B,) of the outputs for sequences of these lengths."""
        for stride in self.strides:
            lengths = _shortened(lengths, stride)
        return lengths

    def compute_output_shape(self, inputs_shape: Any, lengths_shape: Any = None) -> tuple[int | None, ...]:
        """Return the output shape (B, T', D)."""
        length = inputs_shape[1]
        return inputs_shape[0], None if length is None else self.output_lengths(length), self.filters


def _shortened(length: Any, stride: int) -> Any:
    return (length + stride - 1) // stride
