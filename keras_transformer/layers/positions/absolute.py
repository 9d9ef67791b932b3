"""Positional encodings that are added to the inputs."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.layers.embeddings import take_rows
from keras_transformer.layers.positions.sinusoids import LAYOUTS, geometric, paired_waves
from keras_transformer.ops.attention_inputs import known_values
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import (
    check,
    check_not_negative,
    check_one_of,
    check_positive,
    check_positive_integer,
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositions(ConfiguredLayer):
    r"""Add sinusoidal encodings of the position, with one frequency for each pair of features.

    $$PE(p, 2i) = \sin(p / \lambda^{2i/D}), \quad PE(p, 2i+1) = \cos(p / \lambda^{2i/D})$$

    The layer has no weights and no maximum length. The dot product of two encodings depends on their distance only,
    $PE(p) \cdot PE(p+k) = \sum_i \cos(k / \lambda^{2i/D})$, and a shift by k is the same matrix for every p (see
    `shift_matrix`).

    Args:
        max_wavelength: λ.
        layout: "interleaved" (alternating sines and cosines, as in the paper) or "halves" (all sines, then all cosines,
            as in Marian and Tensor2Tensor).
        endpoint: whether the lowest frequency is 1/λ, with exponents 2i/(D − 2) instead of 2i/D, as in Tensor2Tensor
            and fairseq.
        first_position: the position of the first token (in fairseq, the padding id + 1).
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: (B, T, D).
        positions: integers (T,) or (B, T), by default 0, 1, 2, …

    Shapes:
        input and output: (B, T, D), D even

    Example:
        >>> SinusoidalPositions()(keras.ops.zeros((1, 3, 8))).shape
        TensorShape([1, 3, 8])

    References:
        Vaswani et al. (2017), section 3.5.
    """

    def __init__(
        self,
        max_wavelength: float = 10000.0,
        layout: str = "interleaved",
        endpoint: bool = False,
        first_position: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive(max_wavelength=max_wavelength)
        check_one_of(LAYOUTS, layout=layout)
        check_not_negative(first_position=first_position)
        self.max_wavelength = max_wavelength
        self.layout = layout
        self.endpoint, self.first_position = endpoint, first_position
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        """Check D."""
        minimum = 4 if self.endpoint else 2
        if input_shape[-1] % 2 or input_shape[-1] < minimum:
            raise ValueError(
                f"`inputs` must have an even last axis of at least {minimum}. "
                f"Received: inputs.shape={tuple(input_shape)}"
            )

    def call(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        """Add the encoding of `positions`, by default 0, 1, 2, …"""
        positions = ops.arange(ops.shape(inputs)[1]) if positions is None else positions
        return inputs + ops.cast(self.encode(positions, inputs.shape[-1]), inputs.dtype)

    def encode(self, positions: Tensor, model_dim: int) -> Tensor:
        """Return the encodings of positions (…), counted from `first_position`, float32 (…, D)."""
        frequencies = geometric(self.max_wavelength, model_dim, self.endpoint)
        if self.first_position:
            positions = positions + self.first_position
        return paired_waves(positions, frequencies, self.layout)

    def shift_matrix(self, offset: int, model_dim: int) -> np.ndarray:
        r"""Return the matrix that maps every encoding to the encoding `offset` positions later.

        $$PE(p + k) = M_k\, PE(p), \quad M_k = \bigoplus_i \begin{pmatrix}
        \cos k\omega_i & \sin k\omega_i \\ -\sin k\omega_i & \cos k\omega_i \end{pmatrix}$$

        Attention can thus learn with one linear map to attend at a fixed distance. $M_k M_l = M_{k+l}$ and
        $M_k^{-1} = M_k^\top = M_{-k}$.

        Args:
            offset: k, positive or negative.
            model_dim: D.

        Returns:
            float32 (D, D).

        References:
            Vaswani et al. (2017), section 3.5: "for any fixed offset k, PE(pos+k) can be represented as a linear
            function of PE(pos)".
        """
        check(model_dim >= 2 and model_dim % 2 == 0, "be positive and even", model_dim=model_dim)
        angles = offset * geometric(self.max_wavelength, model_dim, self.endpoint)
        pairs = np.arange(model_dim)
        sines, cosines = (
            (pairs[::2], pairs[1::2])
            if self.layout == "interleaved"
            else (pairs[: model_dim // 2], pairs[model_dim // 2 :])
        )
        matrix = np.zeros((model_dim, model_dim))
        matrix[sines, sines] = matrix[cosines, cosines] = np.cos(angles)
        matrix[sines, cosines] = np.sin(angles)
        matrix[cosines, sines] = -np.sin(angles)
        return matrix.astype("float32")

    def compute_output_shape(self, input_shape: tuple[int | None, ...], **_: Any) -> tuple[int | None, ...]:
        """Return the shape of the inputs."""
        return input_shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPositions(ConfiguredLayer):
    r"""Add a trainable vector for each position.

    $$y_t = x_t + P_{p_t}$$

    Lengths and positions beyond `max_length` raise an error if they are known before the graph runs: lengths from
    static shapes, positions from concrete values. Otherwise the behaviour depends on the backend.

    Args:
        max_length: the number of rows of the table P; positions are 0 … `max_length` − 1.
        initializer: initializer of P, by default normal with a standard deviation of 0.02 (as in BERT and GPT).
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: (B, T, D).
        positions: integers (T,) or (B, T), by default 0, 1, 2, …

    Shapes:
        input and output: (B, T, D)

    Example:
        >>> LearnedPositions(512)(keras.ops.zeros((1, 3, 8))).shape
        TensorShape([1, 3, 8])

    References:
        Gehring et al., "Convolutional Sequence to Sequence Learning" (2017), section 3.1; Devlin et al., "BERT"
        (2019).
    """

    def __init__(self, max_length: int, initializer: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive_integer(max_length=max_length)
        self.max_length = max_length
        self.initializer = table_initializer(initializer)
        self.supports_masking = True

    def build(self, inputs_shape: Any, positions_shape: Any = None) -> None:
        """Create the table."""
        self.table = self.add_weight(
            name="table", shape=(self.max_length, inputs_shape[-1]), initializer=self.initializer
        )

    def call(self, inputs: Tensor, positions: Tensor | None = None, training: bool | None = None) -> Tensor:
        """Add the vectors of `positions`, by default 0, 1, 2, …"""
        if positions is None:
            self._check_length(inputs.shape)
            positions = ops.arange(ops.shape(inputs)[1])
        else:
            self._check_values(positions)
        return inputs + ops.cast(take_rows(self.table, positions, training), inputs.dtype)

    def compute_output_shape(self, inputs_shape: Any, positions_shape: Any = None) -> Any:
        """Return the shape of the inputs."""
        if positions_shape is None:
            self._check_length(inputs_shape)
        return inputs_shape

    def _check_length(self, shape: Any) -> None:
        if shape[1] is not None and shape[1] > self.max_length:
            raise ValueError(
                f"`inputs` must be at most max_length={self.max_length} long. "
                f"Received: inputs.shape={tuple(shape)}"
            )

    def _check_values(self, positions: Tensor) -> None:
        known = known_values(positions)
        if known is not None and known.size and (known.min() < 0 or known.max() >= self.max_length):
            raise ValueError(
                f"`positions` must be in [0, max_length={self.max_length}). "
                f"Received: positions from {known.min()} to {known.max()}"
            )


def table_initializer(initializer: Any) -> Any:
    """Return a Keras initializer, by default normal with a standard deviation of 0.02."""
    return keras.initializers.get(
        keras.initializers.RandomNormal(stddev=0.02) if initializer is None else initializer
    )
