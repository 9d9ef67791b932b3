r"""Scores: the logarithms of positive similarity functions of a query and a key.

The attention weights are α_ij = κ(q_i, k_j) / Σ_l κ(q_i, k_l) for a positive similarity function κ, "kernel" in the
literature. A score computes log κ in three steps, so that all kernels of `attention`, including the blockwise ones, can
compute it and its gradient: `features` of each token, `compare` for each pair of a query and a key, and an elementwise
`transform`.

Axes: B batch, T queries, S keys, N query heads, K key/value heads, G = N / K, H head size, F features.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import keras
from keras import ops

from keras_transformer.configuration import ConfiguredValue, retrieve
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of, check_positive

Map = Callable[[Tensor], Tensor]

_TINY = 1e-30  # a lower bound of κ, so that its logarithm is finite


class Score(ConfiguredValue):
    r"""Base class of scores: log κ(q, k) = transform(compare(features of q, features of k)).

    By default the comparison is the dot product and the transform is the identity.
    """

    @property
    def pair_size(self) -> int:
        """The number of elements that `compare` stores for each (query, key) pair."""
        return 1

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The trainable tensors or variables of `compare`."""
        return ()

    @property
    def num_heads(self) -> int | None:
        """The number of query heads that the parameters are for, or None without parameters."""
        return None

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, T, N, F) and (B, S, K, F) of queries (B, T, N, H) and keys (B, S, K, H)."""
        return query, key

    def compare(self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Compare features (…, K, G·T, F) of queries, grouped by key head, with (…, K, S, F): (…, K, G·T, S)."""
        return ops.matmul(query, _swap(key))

    def compare_gradient(
        self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...], upstream: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Return the gradients of `compare` with respect to queries, keys and parameters."""
        return ops.matmul(upstream, key), ops.matmul(_swap(upstream), query), ()

    def compare_pairs(self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """Return (…, N) for pairs of query and key features (…, N, F)."""
        return ops.sum(query * key, axis=-1)

    def transform(self, compared: Tensor) -> Tensor:
        """Return log κ from the output of `compare`, elementwise."""
        return compared

    def transform_gradient(self, compared: Tensor, upstream: Tensor) -> Tensor:
        """Return the gradient of `transform` with respect to `compared`."""
        return upstream

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        if self.num_heads is not None:
            raise ValueError(
                "`score` must be a layer to be saved with its weights, such as layers.AdditiveScore. "
                f"Received: score={type(self).__name__}"
            )
        return super().get_config()


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class ScaledDotProduct(Score):
    r"""Scaled dot product, optionally with a soft cap c; the softmax of the score log κ is the weight.

    $$\log \kappa(q, k) = \mathrm{scale}\; q \cdot k, \quad \text{with a cap: }
    \log \kappa(q, k) = c \tanh(\mathrm{scale}\; q \cdot k / c)$$

    Args:
        scale: factor on the dot product, by default 1/√H.
        soft_cap: c, the bound on the absolute value of scores; None for no bound.

    References:
        Vaswani et al. (2017), equation 1; Gemma Team, "Gemma 2" (2024), section 2, for the cap.
    """

    scale: float | None = None
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        if self.soft_cap is not None:
            check_positive(soft_cap=self.soft_cap)

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return _scaled(query, self.scale), key

    def transform(self, compared: Tensor) -> Tensor:
        if self.soft_cap is None:
            return compared
        return self.soft_cap * ops.tanh(compared / self.soft_cap)

    def transform_gradient(self, compared: Tensor, upstream: Tensor) -> Tensor:
        if self.soft_cap is None:
            return upstream
        return upstream * (1.0 - ops.square(ops.tanh(compared / self.soft_cap)))


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Cosine(Score):
    r"""Scaled cosine similarity of query and key.

    $$\log \kappa(q, k) = \mathrm{scale} \; \frac{q \cdot k}{\lVert q \rVert \lVert k \rVert}$$

    Args:
        scale: the largest score, an inverse temperature.

    References:
        Henry et al., "Query-Key Normalization for Transformers" (2020); Liu et al., "Swin Transformer V2" (2022).
    """

    scale: float = 10.0

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return _scaled(_unit(query), self.scale), _unit(key)


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class RBF(Score):
    r"""The radial basis function (Gaussian) kernel.

    $$\kappa(q, k) = \exp\left(-\lVert q - k \rVert^2 / 2 w^2\right)$$

    The factor of ‖q‖² is the same for all keys of a query, so it is omitted: the rest is the dot product of
    [q/w², 1] and [k, −‖k‖²/2w²].

    Args:
        width: w, by default H^¼, which equals scaled dot-product attention if all keys have the same norm.

    References:
        Tsai et al., "Transformer Dissection" (2019), section 3.2.
    """

    width: float | None = None

    def __post_init__(self) -> None:
        if self.width is not None:
            check_positive(width=self.width)

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        variance = query.shape[-1] ** 0.5 if self.width is None else self.width**2
        lengths = ops.sum(ops.square(_exact(key)), axis=-1, keepdims=True)
        penalty = ops.cast(lengths * (-0.5 / variance), key.dtype)
        return (
            ops.concatenate([_scaled(query, 1.0 / variance), ops.ones_like(query[..., :1])], axis=-1),
            ops.concatenate([key, penalty], axis=-1),
        )


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Polynomial(Score):
    r"""The polynomial kernel.

    $$\kappa(q, k) = (\mathrm{scale}\; q \cdot k + \mathrm{offset})^{\mathrm{degree}}$$

    Args:
        degree: an even number, so that κ is non-negative.
        offset: added to the dot product.
        scale: factor on the dot product, by default 1/√H.

    References:
        Tsai et al., "Transformer Dissection" (2019), section 3.2.
    """

    degree: int = 2
    offset: float = 0.0
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.degree < 2 or self.degree % 2:
            raise ValueError(
                f"`degree` must be a positive even number, or the kernel could be negative. "
                f"Received: degree={self.degree}"
            )

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return _scaled(query, self.scale), key

    def transform(self, compared: Tensor) -> Tensor:
        return self.degree * ops.log(ops.maximum(ops.abs(compared + self.offset), _TINY))

    def transform_gradient(self, compared: Tensor, upstream: Tensor) -> Tensor:
        base = compared + self.offset
        defined = ops.abs(base) > _TINY
        return ops.where(
            defined, upstream * self.degree / ops.where(defined, base, 1.0), ops.zeros_like(base)
        )


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class LinearFeatures(Score):
    r"""A dot product of positive features, for which attention takes time linear in the lengths.

    $$\kappa(q, k) = \phi(q) \cdot \phi(k), \qquad
    h_i = \frac{\phi(q_i)^\top \sum_j \phi(k_j) v_j^\top}{\phi(q_i)^\top \sum_j \phi(k_j)}$$

    Args:
        feature_map: φ: "elu" for elu(x) + 1, or "softplus".

    References:
        Katharopoulos et al., "Transformers are RNNs" (2020), equations 5 to 7.
    """

    feature_map: str = "elu"

    def __post_init__(self) -> None:
        check_one_of(sorted(_FEATURE_MAPS), feature_map=self.feature_map)

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        positive = _FEATURE_MAPS[self.feature_map]
        return positive(query), positive(key)

    def transform(self, compared: Tensor) -> Tensor:
        return ops.log(ops.maximum(compared, _TINY))

    def transform_gradient(self, compared: Tensor, upstream: Tensor) -> Tensor:
        return upstream / ops.maximum(compared, _TINY)


@dataclasses.dataclass(eq=False)
class Additive(Score):
    r"""Additive attention: a network with one hidden layer, for each head n.

    $$\log \kappa(q, k) = a_n \cdot f(q + k)$$

    The query and the key are the projections that Bahdanau et al. write W s_{i−1} and U h_j. With f = LeakyReLU this
    is GATv2's score.

    Args:
        vectors: a, (N, H).
        activation: f: "tanh" or "leaky_relu" (negative slope 0.2).

    References:
        Bahdanau et al. (2015), section A.1.2; Brody et al., "How Attentive Are Graph Attention Networks?" (2022),
        equation 7.
    """

    vectors: Tensor
    activation: str = "tanh"

    @property
    def num_heads(self) -> int | None:
        return int(self.vectors.shape[0])

    def __post_init__(self) -> None:
        check_one_of(sorted(_ACTIVATIONS), activation=self.activation)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.vectors,)

    @property
    def pair_size(self) -> int:
        return int(self.vectors.shape[-1])

    def compare(self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        activation, _ = _ACTIVATIONS[self.activation]
        sums, vectors = self._unfold(query, key, parameters[0])
        return _fold(ops.sum(activation(sums) * vectors, axis=-1))

    def compare_gradient(
        self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...], upstream: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        activation, slope = _ACTIVATIONS[self.activation]
        sums, vectors = self._unfold(query, key, parameters[0])  # (…, K, G, T, S, H)
        upstream = ops.reshape(upstream, [*ops.shape(sums)[:-1], 1])
        d_sum = slope(sums) * vectors * upstream
        other_axes = (*range(len(sums.shape) - 5), -3, -2)
        d_vectors = ops.sum(activation(sums) * upstream, axis=other_axes)  # (K, G, H)
        return (
            _fold(ops.sum(d_sum, axis=-2)),
            ops.sum(d_sum, axis=(-4, -3)),
            (ops.reshape(d_vectors, parameters[0].shape),),
        )

    def compare_pairs(self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        activation, _ = _ACTIVATIONS[self.activation]
        return ops.sum(activation(query + key) * ops.cast(parameters[0], query.dtype), axis=-1)

    def _unfold(self, query: Tensor, key: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of every query and every key (…, K, G, T, S, H), and the vectors (K, G, 1, 1, H)."""
        kv_heads, size = key.shape[-3], key.shape[-1]
        groups = vectors.shape[0] // kv_heads
        *leading, rows, _ = ops.shape(query)
        query = ops.reshape(query, [*leading, groups, rows // groups, 1, size])
        vectors = ops.reshape(ops.cast(vectors, query.dtype), [kv_heads, groups, 1, 1, size])
        return query + key[..., None, None, :, :], vectors


@dataclasses.dataclass(eq=False)
class GAT(Score):
    r"""The score of graph attention networks: a LeakyReLU of the sum of a query term and a key term.

    $$\log \kappa(q, k) = \mathrm{LeakyReLU}(a_n \cdot q + b_n \cdot k)$$

    Args:
        query_vectors: a, (N, H).
        key_vectors: b, (K, H).
        negative_slope: the negative slope of the LeakyReLU.

    References:
        Veličković et al., "Graph Attention Networks" (2018), equation 3.
    """

    query_vectors: Tensor
    key_vectors: Tensor
    negative_slope: float = 0.2

    @property
    def num_heads(self) -> int | None:
        return int(self.query_vectors.shape[0])

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        query_term = ops.sum(query * ops.cast(self.query_vectors, query.dtype), axis=-1, keepdims=True)
        key_term = ops.sum(key * ops.cast(self.key_vectors, key.dtype), axis=-1, keepdims=True)
        return (
            ops.concatenate([query_term, ops.ones_like(query_term)], axis=-1),
            ops.concatenate([ops.ones_like(key_term), key_term], axis=-1),
        )

    def transform(self, compared: Tensor) -> Tensor:
        return ops.where(compared > 0, compared, compared * self.negative_slope)

    def transform_gradient(self, compared: Tensor, upstream: Tensor) -> Tensor:
        return ops.where(compared > 0, upstream, upstream * self.negative_slope)


@dataclasses.dataclass(eq=False)
class Bilinear(Score):
    r"""Bilinear attention ("general" in the paper): a learned bilinear form of query and key for each head n.

    $$\log \kappa(q, k) = q^\top W_n k$$

    Args:
        matrices: W, (N, H, H).

    References:
        Luong et al., "Effective Approaches to Attention-based Neural Machine Translation" (2015), equation 8.
    """

    matrices: Tensor

    @property
    def num_heads(self) -> int | None:
        return int(self.matrices.shape[0])

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return ops.einsum("btnh,nhf->btnf", query, ops.cast(self.matrices, query.dtype)), key


def get(identifier: Score | str | dict[str, Any] | None, other_names: Iterable[str] = ()) -> Score:
    """Retrieve a score, as `keras.initializers.get` retrieves an initializer.

    Args:
        identifier: a score; the name of one without weights; its serialised config; or None for
            `ScaledDotProduct()`.
        other_names: names that the caller accepts, too, for the error message.
    """
    if identifier is None:
        return ScaledDotProduct()
    expectation = (
        f"be an ops.scores.Score, its config or one of {sorted((*_NAMES, *other_names))}; scores with weights are "
        "ops.scores.Additive, Bilinear and GAT, or layers"
    )
    return retrieve(Score, _NAMES, expectation, score=identifier)


_NAMES: dict[str, type[Score]] = {
    "scaled_dot_product": ScaledDotProduct,
    "exponential": ScaledDotProduct,
    "cosine": Cosine,
    "rbf": RBF,
    "polynomial": Polynomial,
    "linear": LinearFeatures,
}


_FEATURE_MAPS: dict[str, Map] = {"elu": lambda x: ops.elu(x) + 1.0, "softplus": ops.softplus}


def _scaled(query: Tensor, scale: float | None) -> Tensor:
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    return query * ops.convert_to_tensor(scale, query.dtype)


def _unit(tensor: Tensor) -> Tensor:
    """Scale vectors to unit norm."""
    square = ops.sum(ops.square(_exact(tensor)), axis=-1, keepdims=True)
    return ops.cast(_exact(tensor) * ops.rsqrt(ops.maximum(square, 1e-12)), tensor.dtype)


def _exact(tensor: Tensor) -> Tensor:
    """Cast to float32, but keep float64."""
    is_float64 = keras.backend.standardize_dtype(tensor.dtype) == "float64"
    return tensor if is_float64 else ops.cast(tensor, "float32")


def _fold(tensor: Tensor) -> Tensor:
    """Reshape (…, G, T, ·) to (…, G·T, ·)."""
    *leading, groups, queries, size = ops.shape(tensor)
    return ops.reshape(tensor, [*leading, groups * queries, size])


def _leaky(inputs: Tensor) -> Tensor:
    return ops.where(inputs > 0, inputs, 0.2 * inputs)


def _leaky_slope(inputs: Tensor) -> Tensor:
    return ops.where(inputs > 0, ops.ones_like(inputs), 0.2 * ops.ones_like(inputs))


_ACTIVATIONS: dict[str, tuple[Map, Map]] = {
    "tanh": (ops.tanh, lambda x: 1.0 - ops.square(ops.tanh(x))),
    "leaky_relu": (_leaky, _leaky_slope),
}


def _swap(tensor: Tensor) -> Tensor:
    """Transpose the last two axes."""
    axes = list(range(len(tensor.shape)))
    return ops.transpose(tensor, [*axes[:-2], axes[-1], axes[-2]])
