"""The base class of position encodings within attention."""

import keras

from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.ops import PositionBias
from keras_transformer.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionEncoding(ConfiguredLayer):
    r"""Base class of position encodings within attention: transformed queries and keys, a bias of the scores, or both.

    $$s_{ij} = \mathrm{score}(f(q_i, i),\ g(k_j, j)) + b_{ij}$$

    with `queries` as f, `keys` as g and `bias` as b. By default f and g return their inputs, and b is zero. Keys are
    encoded before they are written to the cache of generation, so g depends on a key and its position only. An encoding
    creates its weights in `build`, which is called once, with the shape (B, T, N, H) of the heads, even if several
    attention layers share the encoding.

    Example:
        A decay with the distance, $s_{ij} = \gamma^{i - j} q_i \cdot k_j / \sqrt{H}$, as in RetNet without rotation:

        >>> class Decay(PositionEncoding):
        ...     def queries(self, heads, positions=None):
        ...         return heads * self.powers(heads, positions)
        ...
        ...     def keys(self, heads, positions=None):
        ...         return heads / self.powers(heads, positions)
        ...
        ...     def powers(self, heads, positions):
        ...         positions = keras.ops.arange(heads.shape[1]) if positions is None else positions
        ...         return keras.ops.power(0.97, keras.ops.cast(positions, heads.dtype))[..., None, None]
    """

    def check(self, num_heads: int, key_dim: int | None) -> None:
        """Raise a ValueError if the encoding does not fit the heads of an attention layer.

        Args:
            num_heads: N, the number of heads of the queries.
            key_dim: H, the size of a head, or None if it is not known yet.
        """

    def encoded_dim(self, key_dim: int) -> int:
        """Return the size of an encoded head, by default that of the head, H."""
        return key_dim

    def queries(self, heads: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the encoded queries.

        Args:
            heads: (B, T, N, H).
            positions: integers (T,) or (B, T), by default 0, 1, 2, …

        Returns:
            (B, T, N, H), or with the last size `encoded_dim(H)`.
        """
        return heads

    def keys(self, heads: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the encoded keys (B, S, K, H) of K key/value heads; see `queries`."""
        return heads

    def bias(self) -> PositionBias | None:
        """Return the bias for `ops.attention`, or None."""
        return None
