"""Rotary positions: queries and keys rotated by their positions."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.positions import rotary_scaling
from keras_transformer.layers.positions.position_encoding import PositionEncoding
from keras_transformer.layers.positions.sinusoids import (
    LAYOUTS,
    geometric,
    pair_up,
    waves,
)
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of, check_positive


@keras.saving.register_keras_serializable(package="keras_transformer")
class RotaryPositions(PositionEncoding):
    r"""Rotary position embedding (RoPE): rotate pairs of a head's features by angles proportional to the position.

    $$R_p\, (x_a, x_b)_i = (x_a \cos p\omega_i - x_b \sin p\omega_i,\ x_b \cos p\omega_i + x_a \sin p\omega_i),
    \quad \omega_i = \lambda^{-2i/R}$$

    Queries and keys are rotated, values are not. $R_p^\top R_{p'} = R_{p'-p}$, so $(R_p q) \cdot (R_{p'} k)$ depends on
    the positions only through p′ − p, and norms are unchanged. The layer has no weights and no maximum length, and
    computes in float32 for any dtype of the heads.

    Args:
        max_wavelength: λ.
        scaling: for sequences longer than in training: `LinearScaling(factor)`, `NTKScaling(factor)`,
            `YaRNScaling(factor, original_length)`, `Llama3Scaling(factor, original_length)`, or a dict such as
            {"name": "linear", "factor": 4.0}.
        layout: which features form a pair: "halves" (i and i + R/2, as in GPT-NeoX and LLaMA) or "interleaved" (2i and
            2i + 1, as in RoFormer and GPT-J).
        rotary_dim: R, the number of features of a head that are rotated, from the first; by default all.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        heads: (B, T, N, H).
        positions: integers (T,) or (B, T), by default 0, 1, 2, …

    Shapes:
        input and output: (B, T, N, H), R ≤ H even

    Raises:
        ValueError: if the number of rotated features is odd or more than H, or T is more than the `max_length` of the
            scaling.

    Example:
        >>> RotaryPositions()(keras.ops.ones((2, 5, 4, 8))).shape
        TensorShape([2, 5, 4, 8])

    References:
        Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021), equations 15 and 34;
        partly rotated heads: Black et al., "GPT-NeoX-20B" (2022), section 2.1.
    """

    def __init__(
        self,
        max_wavelength: float = 10000.0,
        scaling: rotary_scaling.RotaryScaling | dict[str, Any] | None = None,
        layout: str = "halves",
        rotary_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if rotary_dim is not None and (rotary_dim < 2 or rotary_dim % 2):
            raise ValueError(f"`rotary_dim` must be positive and even. Received: rotary_dim={rotary_dim}")
        check_positive(max_wavelength=max_wavelength)
        check_one_of(LAYOUTS, layout=layout)
        self.max_wavelength = max_wavelength
        self.scaling = rotary_scaling.get(scaling)
        self.layout = layout
        self.rotary_dim = rotary_dim
        self.supports_masking = True

    def check(self, num_heads: int, key_dim: int | None) -> None:
        """Check that all features of a head can be rotated in pairs."""
        if self.rotary_dim is None and key_dim and key_dim % 2:
            raise ValueError(f"`key_dim` must be even for rotary positions. Received: key_dim={key_dim}")

    def build(self, heads_shape: Any) -> None:
        """Check the size of a head."""
        if len(heads_shape) != 4:
            raise ValueError(
                f"`heads` must have four axes (B, T, N, H). Received: heads.shape={tuple(heads_shape)}"
            )
        size = heads_shape[-1]
        if self.rotary_dim is None and size % 2:
            raise ValueError(
                f"`heads` must have an even last axis. Received: heads.shape={tuple(heads_shape)}"
            )
        if self.rotary_dim is not None and self.rotary_dim > size:
            raise ValueError(
                "`rotary_dim` must be at most the size of a head. "
                f"Received: rotary_dim={self.rotary_dim}, heads.shape={tuple(heads_shape)}"
            )

    def call(self, heads: Tensor, positions: Tensor | None = None) -> Tensor:
        """Rotate heads by `positions`, by default 0, 1, 2, …"""
        if positions is None:
            self._check_length(heads.shape[1])
            positions = ops.arange(ops.shape(heads)[1])
        size = self.rotary_dim or heads.shape[-1]
        sines, cosines = waves(positions, self.frequencies(size))
        magnitude = 1.0 if self.scaling is None else self.scaling.magnitude()
        # A head axis for the angles: (T, 1, R/2) or (B, T, 1, R/2).
        sines, cosines = (ops.expand_dims(wave * magnitude, -2) for wave in (sines, cosines))
        rotated = heads if size == heads.shape[-1] else heads[..., :size]
        rotated = self._rotate(ops.cast(rotated, "float32"), sines, cosines)
        rotated = ops.cast(rotated, heads.dtype)
        return rotated if size == heads.shape[-1] else ops.concatenate([rotated, heads[..., size:]], axis=-1)

    def queries(self, heads: Tensor, positions: Tensor | None = None) -> Tensor:
        """Rotate queries."""
        return self(heads, positions)

    def keys(self, heads: Tensor, positions: Tensor | None = None) -> Tensor:
        """Rotate keys."""
        return self(heads, positions)

    def frequencies(self, size: int) -> Any:
        """Return the frequencies ω of `size` rotated features, NumPy float64 (size / 2,)."""
        if self.scaling is None:
            return geometric(self.max_wavelength, size)
        return self.scaling.frequencies(self.max_wavelength, size)

    def compute_output_shape(self, heads_shape: tuple[int | None, ...], **_: Any) -> tuple[int | None, ...]:
        """Return the shape of the inputs."""
        return heads_shape

    def _check_length(self, length: int | None) -> None:
        limit = None if self.scaling is None else self.scaling.max_length
        if limit is not None and length is not None and length > limit:
            raise ValueError(
                f"`heads` must have at most {limit} positions with a {type(self.scaling).__name__}. "
                f"Received: {length} positions"
            )

    def _rotate(self, heads: Tensor, sines: Tensor, cosines: Tensor) -> Tensor:
        half = heads.shape[-1] // 2
        if self.layout == "halves":
            first, second = heads[..., :half], heads[..., half:]
        else:
            first, second = heads[..., ::2], heads[..., 1::2]
        return pair_up(
            first * cosines - second * sines, second * cosines + first * sines, self.layout
        )  # (B, T, N, R)
