"""Positional encodings."""

from typing import Any

import keras
from keras import ops

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositions(keras.layers.Layer):
    r"""Adds sines and cosines of the position, one frequency for each pair of features.

    $$PE(p, 2i) = \sin(p / \lambda^{2i/D}), \quad PE(p, 2i+1) = \cos(p / \lambda^{2i/D})$$

    No weights and no longest length.

    Args:
        max_wavelength: λ.
        **kwargs: for `keras.layers.Layer`.

    Shapes:
        input and output: (B, T, D), D even
        positions: (T,) or (B, T)

    Raises:
        ValueError: where D is odd.

    Example:
        >>> SinusoidalPositions()(keras.ops.zeros((1, 3, 8))).shape
        TensorShape([1, 3, 8])

    References:
        Vaswani et al. (2017), section 3.5.
    """

    def __init__(self, max_wavelength: float = 10000.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if max_wavelength <= 0:
            raise ValueError(f"`max_wavelength` must be positive. Received: max_wavelength={max_wavelength}")
        self.max_wavelength = max_wavelength
        self.supports_masking = True

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Check that the size is even; there are no weights."""
        if input_shape[-1] % 2:
            raise ValueError(
                f"`inputs` must have an even last axis. Received: inputs.shape={tuple(input_shape)}"
            )

    def call(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        """Inputs plus the encoding of `positions`, by default 0, 1, 2, …"""
        positions = ops.arange(ops.shape(inputs)[1]) if positions is None else positions
        return inputs + ops.cast(self.encode(positions, inputs.shape[-1]), inputs.dtype)

    def encode(self, positions: Tensor, model_dim: int) -> Tensor:
        """PE(positions): float32 (…, D) for integers (…)."""
        rates = [self.max_wavelength ** (-2 * i / model_dim) for i in range(model_dim // 2)]
        angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * ops.convert_to_tensor(rates, "float32")
        pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # (…, D/2, 2)
        return ops.reshape(pairs, [*ops.shape(positions), model_dim])

    def compute_output_shape(self, input_shape: tuple[int | None, ...], **_: Any) -> tuple[int | None, ...]:
        """The input's."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "max_wavelength": self.max_wavelength}
