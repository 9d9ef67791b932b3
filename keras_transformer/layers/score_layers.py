"""Layers that hold the weights of a score; their method `score` returns the score of `ops.scores`.

Axes: N query heads, K key/value heads, H head size.
"""

import abc
import math
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.configuration import ConfiguredLayer
from keras_transformer.ops import scores
from keras_transformer.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class ScoreLayer(ConfiguredLayer):
    """Base class of scores with trainable weights, for the argument `score` of an attention layer.

    The attention layer builds it and calls `score()` in every call. Subclasses implement `create_weights` and `score`.
    Several attentions of equal sizes may share one score, but only in a subclassed layer or model: Keras cannot save
    functional models whose layers share a sublayer.

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
                "`score` must be shared only by attentions of equal (num_heads, num_kv_heads, key_dim); "
                f"{self.name!r} was built for {self.sizes}. Received: sizes={sizes}"
            )

    @abc.abstractmethod
    def create_weights(self, num_heads: int, num_kv_heads: int, key_dim: int) -> None:
        """Add the weights."""

    @abc.abstractmethod
    def score(self) -> scores.Score:
        """Return the score for `ops.attention`, with the current weights of this built layer as tensors."""

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
class AdditiveScore(ScoreLayer):
    r"""Additive attention: a network with one hidden layer, for each head n.

    $$\log \kappa(q, k) = a_n \cdot f(q + k)$$

    Args:
        activation: f: "tanh" (Bahdanau et al.) or "leaky_relu" (GATv2).
        **kwargs: arguments of `ScoreLayer`.

    Shapes:
        vectors: (N, H)

    Raises:
        ValueError: if `activation` is unknown.

    Example:
        >>> import keras_transformer
        >>> x = keras.random.normal((2, 5, 4, 8))
        >>> layer = AdditiveScore()
        >>> layer.build((4, 4, 8))
        >>> keras_transformer.ops.attention(x, x, x, score=layer.score()).shape
        TensorShape([2, 5, 4, 8])

    References:
        Bahdanau et al. (2015), section A.1.2; Brody et al., "How Attentive Are Graph Attention Networks?" (2022),
        equation 7.
    """

    def __init__(self, activation: str = "tanh", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = scores.Additive(None, activation).activation  # checks it

    def create_weights(self, num_heads: int, num_kv_heads: int, key_dim: int) -> None:
        """Add a, (N, H)."""
        self.vectors = self._add_vectors("vectors", num_heads, key_dim)

    def score(self) -> scores.Additive:
        """Return the score for `ops.attention`, with the current weights of this built layer as tensors."""
        return scores.Additive(_value_of(self.vectors), self.activation)


@keras.saving.register_keras_serializable(package="keras_transformer")
class BilinearScore(ScoreLayer):
    r"""Bilinear attention ("general" in the paper), initialised as the scaled dot product, for each head n.

    $$\log \kappa(q, k) = q^\top W_n k, \quad W_n = I / \sqrt{H} \text{ at initialisation}$$

    Args:
        **kwargs: arguments of `ScoreLayer`.

    Shapes:
        matrices: (N, H, H)

    References:
        Luong et al., "Effective Approaches to Attention-based Neural Machine Translation" (2015), equation 8.
    """

    def create_weights(self, num_heads: int, num_kv_heads: int, key_dim: int) -> None:
        """Add W, (N, H, H)."""
        self.matrices = self.add_weight(
            name="matrices",
            shape=(num_heads, key_dim, key_dim),
            initializer=_scaled_identities,
            regularizer=self.kernel_regularizer,
        )

    def score(self) -> scores.Bilinear:
        """Return the score for `ops.attention`, with the current weights of this built layer as tensors."""
        return scores.Bilinear(_value_of(self.matrices))


@keras.saving.register_keras_serializable(package="keras_transformer")
class GATScore(ScoreLayer):
    r"""The score of graph attention networks: a LeakyReLU of the sum of a query term and a key term.

    $$\log \kappa(q, k) = \mathrm{LeakyReLU}(a_n \cdot q + b_n \cdot k)$$

    All queries rank the keys in the same order ("static attention" in Brody et al.), unlike
    `AdditiveScore("leaky_relu")`.

    Args:
        negative_slope: the negative slope of the LeakyReLU.
        **kwargs: arguments of `ScoreLayer`.

    Shapes:
        query_vectors: (N, H)
        key_vectors: (K, H)

    References:
        Veličković et al., "Graph Attention Networks" (2018), equation 3.
    """

    def __init__(self, negative_slope: float = 0.2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.negative_slope = negative_slope

    def create_weights(self, num_heads: int, num_kv_heads: int, key_dim: int) -> None:
        """Add a, (N, H), and b, (K, H)."""
        self.query_vectors = self._add_vectors("query_vectors", num_heads, key_dim)
        self.key_vectors = self._add_vectors("key_vectors", num_kv_heads, key_dim)

    def score(self) -> scores.GAT:
        """Return the score for `ops.attention`, with the current weights of this built layer as tensors."""
        return scores.GAT(
            _value_of(self.query_vectors),
            _value_of(self.key_vectors),
            self.negative_slope,
        )


_LAYERS: dict[str, Any] = {
    "additive": AdditiveScore,
    "bilinear": BilinearScore,
    "gat": GATScore,
    "gatv2": lambda: AdditiveScore("leaky_relu"),
}
_VALUES = ("scaled_dot_product", "exponential", "cosine", "rbf", "polynomial", "linear")


def get(identifier: scores.Score | ScoreLayer | str | dict[str, Any] | None) -> scores.Score | ScoreLayer:
    """Retrieve a score with or without weights.

    Args:
        identifier: a score of `ops.scores` or a `ScoreLayer`; the name of one; its serialised config; or None for the
            scaled dot product. The names of scores with weights, "additive", "bilinear", "gat" and "gatv2", return a
            new layer each time.

    Returns:
        A `ScoreLayer`, which the caller must build, or a score of `ops.scores`.

    Raises:
        ValueError: if the identifier is none of these.

    Example:
        >>> get("cosine")
        Cosine(scale=10.0)
        >>> get("gatv2").activation
        'leaky_relu'
    """
    if isinstance(identifier, str) and identifier in _LAYERS:
        return _LAYERS[identifier]()
    if identifier is None or (isinstance(identifier, str) and identifier in _VALUES):
        return scores.get(identifier)
    score = identifier
    if isinstance(identifier, dict):
        score = keras.saving.deserialize_keras_object(identifier)
    if isinstance(score, scores.Score | ScoreLayer):
        return score
    raise ValueError(
        "`score` must be a layers.ScoreLayer, an ops.scores.Score, the config of one, or one of "
        f"{sorted((*_LAYERS, *_VALUES))}. Received: score={identifier!r}"
    )


def build(score: scores.Score | ScoreLayer, sizes: tuple[int, int, int]) -> None:
    """Create the weights of a score for sizes (N, K, H), if it has any."""
    if isinstance(score, ScoreLayer):
        score.build(sizes)


def value(score: scores.Score | ScoreLayer) -> scores.Score:
    """Return the score for `ops.attention`, with its current weights as tensors."""
    return score.score() if isinstance(score, ScoreLayer) else score


def serialize(score: scores.Score | ScoreLayer) -> dict[str, Any]:
    """Return the config of a score for `get`; restore the weights and sizes of a layer separately.

    Args:
        score: a score or layer returned by `get`.

    Returns:
        A dictionary that JSON can represent.

    Raises:
        ValueError: if the score is an `ops.scores.Additive`, `Bilinear` or `GAT`, which contain tensors.
    """
    if isinstance(score, scores.Additive | scores.Bilinear | scores.GAT):
        raise ValueError(
            "`score` must be a layer to be saved with its weights: AdditiveScore, BilinearScore or GATScore. "
            f"Received: score={type(score).__name__}"
        )
    config = keras.saving.serialize_keras_object(score)
    config.pop("build_config", None)
    return config


def _value_of(variable: keras.Variable) -> Tensor:
    """Return a copy: TensorFlow's `convert_to_tensor` returns the variable, which a custom gradient rejects."""
    return ops.copy(variable)


def _scaled_identities(shape: tuple[int, ...], dtype: Any = None) -> Tensor:
    """Return I / √H for each head, in the shape (N, H, H)."""
    return ops.broadcast_to(ops.eye(shape[-1], dtype=dtype) / math.sqrt(shape[-1]), shape)
