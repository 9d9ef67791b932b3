"""Relative positions of Transformer-XL: a term of the score for the distance of query and key."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.positions.position_encoding import PositionEncoding
from keras_transformer.layers.positions.sinusoids import geometric, waves
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_positive


@keras.saving.register_keras_serializable(package="keras_transformer")
class RelativeSinusoidalPositions(PositionEncoding):
    r"""The relative positions of Transformer-XL: sinusoids of the distance, compared with the query.

    $$s_{ij} = \frac{(q_i + u) \cdot k_j + (q_i + v) \cdot W r_{i-j}}{\sqrt{H}}, \qquad
    r_d = (\sin d\omega,\ \cos d\omega), \quad \omega_f = \lambda^{-2f/F}$$

    u and v are biases of each head for contents and positions, and W maps the F features of the distance to a head. By
    the addition theorems of sine and cosine, $W r_{i-j}$ is a product of features of i and features of j, so that the
    score stays a dot product: queries and keys have H + F features, with any kernel and with a cache. There is no
    maximum length.

    Args:
        features: F, the number of features of the distance, even; by default the size of all heads, N · H.
        max_wavelength: λ.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        heads: (B, T, N, H).
        positions: integers (T,) or (B, T), by default 0, 1, 2, …

    Shapes:
        content_bias, position_bias: (N, H)
        kernel: (N, H, F)

    Example:
        >>> from keras_transformer.layers import MultiHeadAttention
        >>> attention = MultiHeadAttention(4, relation="causal", position_encoding=RelativeSinusoidalPositions())
        >>> attention(keras.ops.ones((2, 5, 32))).shape
        TensorShape([2, 5, 32])

    References:
        Dai et al., "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context" (2019), section 3.3.
    """

    def __init__(self, features: int | None = None, max_wavelength: float = 10000.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check(
            features is None or (features > 0 and features % 2 == 0),
            "be positive and even",
            features=features,
        )
        check_positive(max_wavelength=max_wavelength)
        self.features, self.max_wavelength = features, max_wavelength

    def build(self, heads_shape: Any) -> None:
        """Create u, v and W."""
        num_heads, key_dim = heads_shape[-2:]
        features = self.features or num_heads * key_dim
        check(features % 2 == 0, "be even", features=features)
        self.frequencies = geometric(self.max_wavelength, features)
        self.content_bias, self.position_bias = (
            self.add_weight(name=name, shape=(num_heads, key_dim), initializer="zeros")
            for name in ("content_bias", "position_bias")
        )
        scale = keras.initializers.VarianceScaling(1.0, "fan_avg", "uniform")
        self.kernel = self.add_weight(name="kernel", shape=(num_heads, key_dim, features), initializer=scale)

    def encoded_dim(self, key_dim: int) -> int:
        """Return H + F."""
        return key_dim + 2 * len(self.frequencies)

    def queries(self, heads: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the queries (B, T, N, H + F)."""
        content_bias, position_bias, kernel = (
            ops.cast(weight, heads.dtype) for weight in (self.content_bias, self.position_bias, self.kernel)
        )
        sines, cosines = self._waves(heads, positions)
        # (q + v) W r_(i-j) = a · sin((i - j) ω) + b · cos((i - j) ω)
        a, b = ops.split(ops.einsum("btnh,nhf->btnf", heads + position_bias, kernel), 2, axis=-1)
        encoded = [heads + content_bias, b * sines - a * cosines, a * sines + b * cosines]
        # The scores divide by the root of the number of features.
        size = heads.shape[-1]
        return ops.concatenate(encoded, axis=-1) * (self.encoded_dim(size) / size) ** 0.5

    def keys(self, heads: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the keys (B, S, K, H + F)."""
        shape = [*ops.shape(heads)[:3], len(self.frequencies)]
        waves_ = [ops.broadcast_to(wave, shape) for wave in self._waves(heads, positions)]
        return ops.concatenate([heads, *waves_], axis=-1)

    def _waves(self, heads: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return sines and cosines of the positions, (T, 1, F/2) or (B, T, 1, F/2)."""
        positions = ops.arange(ops.shape(heads)[1]) if positions is None else positions
        sines, cosines = waves(positions, self.frequencies)
        return tuple(ops.expand_dims(ops.cast(wave, heads.dtype), -2) for wave in (sines, cosines))
