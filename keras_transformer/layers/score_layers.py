"""Layers with the weights of a score, whose `score` returns the value of `ops.scores` for attention.

Axes: N query heads, K key/value heads, H head size.
"""

import abc
import math
from typing import Any

import keras
from keras import ops

from keras_transformer.ops import scores
from keras_transformer.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class ScoreLayer(keras.layers.Layer):
    """A score whose weights are learned, for the argument `score` of an attention layer.

    The attention layer builds it with its own sizes, and takes `score()` anew in every call. Subclasses implement
    `create_weights` and `score`. One score may serve several attentions of equal sizes; to be saved it has to be given
    to them by a layer or model of your own, as Keras keeps no track of what layers of a functional model share inside.

    Args:
        kernel_regularizer: of all weights, for subclasses to pass to `add_weight`.
        **kwargs: for `keras.layers.Layer`.
    """

    def __init__(self, kernel_regularizer: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.sizes: tuple[int, ...] | None = None

    def build(self, sizes: tuple[int, ...]) -> None:
        """Create the weights for (N, K, H), once.

        Args:
            sizes: the attention's `num_heads`, `num_kv_heads` and `key_dim`.

        Raises:
            ValueError: if another attention has built it with other sizes.
        """
        sizes = tuple(sizes)
        if self.sizes is None:
            self.create_weights(*sizes)
            self.sizes = sizes
        elif self.sizes != sizes:
            raise ValueError(
                "`score` must be a layer of its own where attentions differ in (num_heads, num_kv_heads, key_dim); "
                f"{self.name!r} was built for {self.sizes}. Received: sizes={sizes}"
            )

    @abc.abstractmethod
    def create_weights(self, num_heads: int, num_kv_heads: int, key_dim: int) -> None:
        """Add the weights."""

    @abc.abstractmethod
    def score(self) -> scores.Score:
        """The score with the present weights as tensors, for `ops.attention`; the layer must be built."""

    def _add_vectors(self, name: str, num_heads: int, key_dim: int) -> keras.Variable:
        """(N, H): a map from H numbers to one for each head, initialised by Glorot and Bengio's rule."""
        limit = math.sqrt(6 / (key_dim + 1))
        return self.add_weight(
            name=name,
            shape=(num_heads, key_dim),
            initializer=keras.initializers.RandomUniform(-limit, limit),
            regularizer=self.kernel_regularizer,
        )

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        regularizer = keras.regularizers.serialize(self.kernel_regularizer)
        return {**super().get_config(), "kernel_regularizer": regularizer}


@keras.saving.register_keras_serializable(package="keras_transformer")
class AdditiveScore(ScoreLayer):
    r"""A small network of query and key.

    $$\log \kappa(q, k) = a_n \cdot f(q + k)$$

    Args:
        activation: f: "tanh" (Bahdanau's) or "leaky_relu" (GATv2's).
        **kwargs: for `ScoreLayer`.

    Shapes:
        vectors: (N, H)

    Raises:
        ValueError: for another activation.

    Example:
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
        """a, for each query head."""
        self.vectors = self._add_vectors("vectors", num_heads, key_dim)

    def score(self) -> scores.Additive:
        """The score with the present weights as tensors, for `ops.attention`; the layer must be built."""
        return scores.Additive(_value_of(self.vectors), self.activation)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "activation": self.activation}


@keras.saving.register_keras_serializable(package="keras_transformer")
class BilinearScore(ScoreLayer):
    r"""A general bilinear form, at first the scaled dot product.

    $$\log \kappa(q, k) = q^\top W_n k, \quad W_n = I / \sqrt{H} \text{ at first}$$

    Args:
        **kwargs: for `ScoreLayer`.

    Shapes:
        matrices: (N, H, H)

    References:
        Luong et al., "Effective Approaches to Attention-based Neural Machine Translation" (2015), equation 8,
        "general".
    """

    def create_weights(self, num_heads: int, num_kv_heads: int, key_dim: int) -> None:
        """W, for each query head."""
        self.matrices = self.add_weight(
            name="matrices",
            shape=(num_heads, key_dim, key_dim),
            initializer=_scaled_identities,
            regularizer=self.kernel_regularizer,
        )

    def score(self) -> scores.Bilinear:
        """The score with the present weights as tensors, for `ops.attention`; the layer must be built."""
        return scores.Bilinear(_value_of(self.matrices))


@keras.saving.register_keras_serializable(package="keras_transformer")
class GATScore(ScoreLayer):
    r"""Graph attention's score: a LeakyReLU of the sum of a query term and a key term.

    $$\log \kappa(q, k) = \mathrm{LeakyReLU}(a_n \cdot q + b_n \cdot k)$$

    Every query ranks the keys alike, static attention in the words of Brody et al., unlike
    `AdditiveScore("leaky_relu")`.

    Args:
        negative_slope: of the LeakyReLU.
        **kwargs: for `ScoreLayer`.

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
        """a, for each query head, and b, for each key head."""
        self.query_vectors = self._add_vectors("query_vectors", num_heads, key_dim)
        self.key_vectors = self._add_vectors("key_vectors", num_kv_heads, key_dim)

    def score(self) -> scores.GAT:
        """The score with the present weights as tensors, for `ops.attention`; the layer must be built."""
        return scores.GAT(
            _value_of(self.query_vectors),
            _value_of(self.key_vectors),
            self.negative_slope,
        )

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "negative_slope": self.negative_slope}


_LAYERS: dict[str, Any] = {
    "additive": AdditiveScore,
    "bilinear": BilinearScore,
    "gat": GATScore,
    "gatv2": lambda: AdditiveScore("leaky_relu"),
}
_VALUES = ("scaled_dot_product", "exponential", "cosine", "rbf", "polynomial", "linear")


def get(identifier: scores.Score | ScoreLayer | str | dict[str, Any] | None) -> scores.Score | ScoreLayer:
    """The score, with weights or without, that an identifier stands for.

    Args:
        identifier: a score of `ops.scores` or a `ScoreLayer`; the name of one; its serialised config; or None for the
            scaled dot product. "additive", "bilinear", "gat" and "gatv2" have weights, and give a new layer each time.

    Returns:
        A `ScoreLayer`, which its user must build, or a value of `ops.scores`.

    Raises:
        ValueError: for anything else.

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
    """Create the weights of a score that has some, for (N, K, H)."""
    if isinstance(score, ScoreLayer):
        score.build(sizes)


def value(score: scores.Score | ScoreLayer) -> scores.Score:
    """Return the score for `ops.attention`, with its present weights as tensors."""
    return score.score() if isinstance(score, ScoreLayer) else score


def serialize(score: scores.Score | ScoreLayer) -> dict[str, Any]:
    """Return the config of a score for `get`; restore the weights and sizes of a layer separately.

    Args:
        score: what `get` gives.

    Returns:
        A dictionary for JSON.

    Raises:
        ValueError: for `ops.scores.Additive`, `Bilinear` and `GAT`, which contain tensors.
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
    """Return a tensor: on TensorFlow, `convert_to_tensor` returns the variable, refused by a custom gradient."""
    return ops.copy(variable)


def _scaled_identities(shape: tuple[int, ...], dtype: Any = None) -> Tensor:
    """I / √H, as often as the first axis is long."""
    return ops.broadcast_to(ops.eye(shape[-1], dtype=dtype) / math.sqrt(shape[-1]), shape)
