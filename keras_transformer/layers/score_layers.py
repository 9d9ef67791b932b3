"""Scores as layers with trainable weights.

Axes: N query heads, K key/value heads, H head size.
"""

import abc
import math
from typing import Any

import keras
from keras import ops

from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.ops import scores
from keras_transformer.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class ScoreLayer(ConfiguredLayer, scores.Score):
    """Base class of scores with trainable weights, for the argument `score` of an attention layer, which builds it.

    Subclasses implement `create_weights`, and the methods of `ops.scores.Score` that use the weights. Once built, the
    layer is also a score for `ops.attention`. Attention layers of equal sizes may share one score, but only in a
    subclassed layer or model: Keras cannot save functional models whose layers share a sublayer.

    Args:
        kernel_regularizer: regularizer of all weights, which subclasses pass to `add_weight`.
        **kwargs: arguments of `keras.layers.Layer`.
    """

    def __init__(self, kernel_regularizer: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.sizes: tuple[int, ...] | None = None

    def build(self, sizes: tuple[int, ...]) -> None:
        """Create the weights, unless they exist.

        Args:
            sizes: the attention's `num_heads` N, `num_kv_heads` K and `key_dim` H.

        Raises:
            ValueError: if the layer was built for different sizes.
        """
        sizes = tuple(sizes)
        if self.sizes is None:
            self.create_weights(*sizes)
            self.sizes = sizes
        elif self.sizes != sizes:
            raise ValueError(
                "`score` must be shared only by attention layers of equal (num_heads, num_kv_heads, key_dim); "
                f"{self.name!r} was built for {self.sizes}. Received: sizes={sizes}"
            )

    @property
    def num_heads(self) -> int:
        """The number of query heads that the layer was built for."""
        if self.sizes is None:
            raise ValueError(
                "`score` must be built for `ops.attention`, by `build((num_heads, num_kv_heads, key_dim))`. "
                f"Received: score={self!r}"
            )
        return self.sizes[0]

    def get_build_config(self) -> None:
        """Return None: the attention layer builds the score."""

    @abc.abstractmethod
    def create_weights(self, num_heads: int, num_kv_heads: int, key_dim: int) -> None:
        """Add the weights."""

    def _add_vectors(self, name: str, num_heads: int, key_dim: int) -> keras.Variable:
        """Add a weight (N, H): for each head a projection from H features to one, with Glorot initialisation."""
        limit = math.sqrt(6 / (key_dim + 1))
        return self.add_weight(
            name=name,
            shape=(num_heads, key_dim),
            initializer=keras.initializers.RandomUniform(-limit, limit),
            regularizer=self.kernel_regularizer,
        )


@keras.saving.register_keras_serializable(package="keras_transformer")
class AdditiveScore(ScoreLayer, scores.Additive):
    """Additive attention: `ops.scores.Additive` with trainable vectors.

    Args:
        activation: f: "tanh" (Bahdanau et al.) or "leaky_relu" (GATv2).
        **kwargs: arguments of `ScoreLayer`.

    Shapes:
        vectors: (N, H)

    Example:
        >>> import keras_transformer
        >>> x = keras.random.normal((2, 5, 4, 8))
        >>> score = AdditiveScore()
        >>> score.build((4, 4, 8))
        >>> keras_transformer.ops.attention(x, x, x, score=score).shape
        TensorShape([2, 5, 4, 8])
    """

    def __init__(self, activation: str = "tanh", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = activation
        self.__post_init__()

    def create_weights(self, num_heads: int, num_kv_heads: int, key_dim: int) -> None:
        """Add a, (N, H)."""
        self.vectors = self._add_vectors("vectors", num_heads, key_dim)


@keras.saving.register_keras_serializable(package="keras_transformer")
class BilinearScore(ScoreLayer, scores.Bilinear):
    r"""Bilinear attention: `ops.scores.Bilinear` with trainable matrices, initialized to $I / \sqrt{H}$.

    A new layer thus equals the scaled dot product.

    Args:
        **kwargs: arguments of `ScoreLayer`.

    Shapes:
        matrices: (N, H, H)
    """

    def create_weights(self, num_heads: int, num_kv_heads: int, key_dim: int) -> None:
        """Add W, (N, H, H)."""
        self.matrices = self.add_weight(
            name="matrices",
            shape=(num_heads, key_dim, key_dim),
            initializer=_scaled_identities,
            regularizer=self.kernel_regularizer,
        )


@keras.saving.register_keras_serializable(package="keras_transformer")
class GATScore(ScoreLayer, scores.GAT):
    """The score of graph attention networks: `ops.scores.GAT` with trainable vectors.

    All queries rank the keys in the same order ("static attention" in Brody et al.), unlike
    `AdditiveScore("leaky_relu")`.

    Args:
        negative_slope: the negative slope of the LeakyReLU.
        **kwargs: arguments of `ScoreLayer`.

    Shapes:
        query_vectors: (N, H)
        key_vectors: (K, H)
    """

    def __init__(self, negative_slope: float = 0.2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.negative_slope = negative_slope

    def create_weights(self, num_heads: int, num_kv_heads: int, key_dim: int) -> None:
        """Add a, (N, H), and b, (K, H)."""
        self.query_vectors = self._add_vectors("query_vectors", num_heads, key_dim)
        self.key_vectors = self._add_vectors("key_vectors", num_kv_heads, key_dim)


_LAYERS: dict[str, Any] = {
    "additive": AdditiveScore,
    "bilinear": BilinearScore,
    "gat": GATScore,
    "gatv2": lambda: AdditiveScore("leaky_relu"),
}


def get(identifier: scores.Score | str | dict[str, Any] | None) -> scores.Score:
    """Retrieve a score with or without weights.

    Args:
        identifier: a score; the name of one; its serialised config; or None for the scaled dot product. The names of
            scores with weights, "additive", "bilinear", "gat" and "gatv2", return a new layer each time.

    Returns:
        A score. The caller must build it if it is a `ScoreLayer`.

    Example:
        >>> get("cosine")
        Cosine(scale=10.0)
        >>> get("gatv2").activation
        'leaky_relu'
    """
    if isinstance(identifier, str) and identifier in _LAYERS:
        return _LAYERS[identifier]()
    return scores.get(identifier, tuple(_LAYERS))


def _scaled_identities(shape: tuple[int, ...], dtype: Any = None) -> Tensor:
    """Return I / √H for each head, in the shape (N, H, H)."""
    return ops.broadcast_to(ops.eye(shape[-1], dtype=dtype) / math.sqrt(shape[-1]), shape)
