r"""How strongly a query and a key are related: scores as values.

Attention weighs by a positive kernel, α_ij = κ(q_i, k_j) / Σ_l κ(q_i, k_l). A score gives log κ in three steps, so
that every kernel of `attention`, blockwise ones too, can compute it and its gradient: per-token `features`, a
`compare` of each query with each key, and an elementwise `link`.

Axes: B batch, T queries, S keys, N query heads, K key/value heads, G = N / K, H head size, F features.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.arguments import check_one_of, check_positive

Tensor = Any
Map = Callable[[Tensor], Tensor]

_TINY = 1e-30  # below every kernel that is not zero, so that its logarithm is finite


class Score:
    r"""log κ(q, k) = link(compare(features of q, features of k)).

    By default the comparison is the dot product and the link the identity.
    """

    @property
    def pair_size(self) -> int:
        """How many numbers `compare` holds for each pair."""
        return 1

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors that `compare` uses and gradients flow to."""
        return ()

    @property
    def num_heads(self) -> int | None:
        """For how many query heads there are parameters; None where there are none."""
        return None

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """What is compared: (B, T, N, F) and (B, S, K, F) of queries (B, T, N, H) and keys (B, S, K, H)."""
        return query, key

    def compare(self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """(…, K, G·T, S) from features (…, K, G·T, F), the query heads of a key head one by one, and (…, K, S, F)."""
        return ops.matmul(query, _swap(key))

    def compare_gradient(
        self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...], upstream: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """The gradients of `compare` by queries, keys and parameters, from its own (…, K, G·T, S)."""
        return ops.matmul(upstream, key), ops.matmul(_swap(upstream), query), ()

    def compare_pairs(self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """`compare` for single pairs: (…, N) from (…, N, F) twice."""
        return ops.sum(query * key, axis=-1)

    def link(self, compared: Tensor) -> Tensor:
        """Log κ of what `compare` gives, elementwise."""
        return compared

    def link_gradient(self, compared: Tensor, upstream: Tensor) -> Tensor:
        """The gradient of `link`."""
        return upstream

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Score":
        """The score whose `get_config` this is."""
        return cls(**config)


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class ScaledDotProduct(Score):
    r"""The exponential kernel: log κ = q · k · scale, optionally capped softly.

    $$\log \kappa(q, k) = c \tanh(\mathrm{scale}\; q \cdot k / c)$$

    Args:
        scale: factor on the dot product, by default 1/√H.
        soft_cap: c, a bound that scores approach but never pass; None for none.

    Raises:
        ValueError: where `soft_cap` is not positive.

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

    def link(self, compared: Tensor) -> Tensor:
        if self.soft_cap is None:
            return compared
        return self.soft_cap * ops.tanh(compared / self.soft_cap)

    def link_gradient(self, compared: Tensor, upstream: Tensor) -> Tensor:
        if self.soft_cap is None:
            return upstream
        return upstream * (1.0 - ops.square(ops.tanh(compared / self.soft_cap)))


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Cosine(Score):
    r"""The angle between query and key, not their lengths.

    $$\log \kappa(q, k) = \mathrm{scale} \; \frac{q \cdot k}{\lVert q \rVert \lVert k \rVert}$$

    Args:
        scale: the largest score, the inverse of a temperature.

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

    ‖q‖² weighs all keys of a query alike, so it is left out: a dot product of [q/w², 1] and [k, −‖k‖²/2w²].

    Args:
        width: w, by default H^¼, which makes it scaled dot-product attention where all keys have one length.

    Raises:
        ValueError: where `width` is not positive.

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
    r"""The polynomial kernel, normalised by its sum.

    $$\kappa(q, k) = (\mathrm{scale}\; q \cdot k + \mathrm{offset})^{\mathrm{degree}}$$

    Args:
        degree: an even number, so that κ is not negative.
        offset: added to the dot product.
        scale: factor on the dot product, by default 1/√H.

    Raises:
        ValueError: where `degree` is odd or not positive.

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

    def link(self, compared: Tensor) -> Tensor:
        return self.degree * ops.log(ops.maximum(ops.abs(compared + self.offset), _TINY))

    def link_gradient(self, compared: Tensor, upstream: Tensor) -> Tensor:
        base = compared + self.offset
        defined = ops.abs(base) > _TINY
        return ops.where(
            defined, upstream * self.degree / ops.where(defined, base, 1.0), ops.zeros_like(base)
        )


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class LinearFeatures(Score):
    r"""A kernel that is a dot product of positive features, which attention can compute in O(n).

    $$\kappa(q, k) = \phi(q) \cdot \phi(k), \qquad
    h_i = \frac{\phi(q_i)^\top \sum_j \phi(k_j) v_j^\top}{\phi(q_i)^\top \sum_j \phi(k_j)}$$

    Args:
        feature_map: φ: "elu" for elu(x) + 1, or "softplus".

    Raises:
        ValueError: for another feature map.

    References:
        Katharopoulos et al., "Transformers are RNNs" (2020), equations 5 to 7.
    """

    feature_map: str = "elu"

    def __post_init__(self) -> None:
        check_one_of(sorted(_FEATURE_MAPS), feature_map=self.feature_map)

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        positive = _FEATURE_MAPS[self.feature_map]
        return positive(query), positive(key)

    def link(self, compared: Tensor) -> Tensor:
        return ops.log(ops.maximum(compared, _TINY))

    def link_gradient(self, compared: Tensor, upstream: Tensor) -> Tensor:
        return upstream / ops.maximum(compared, _TINY)


_FEATURE_MAPS: dict[str, Map] = {"elu": lambda x: ops.elu(x) + 1.0, "softplus": ops.softplus}


@dataclasses.dataclass(frozen=True, eq=False)
class Additive(Score):
    r"""A small network of query and key.

    $$\log \kappa(q, k) = a_n \cdot f(q + k)$$

    The paper's W s_{i−1} and U h_j are the query and the key as given: a layer has projected them already. With
    f = LeakyReLU this is GATv2's score.

    Args:
        vectors: a, (N, H).
        activation: f: "tanh" or "leaky_relu" (of slope 0.2).

    Raises:
        ValueError: for another activation.

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
        by_sum = slope(sums) * vectors * upstream
        other_axes = (*range(len(sums.shape) - 5), -3, -2)
        by_vector = ops.sum(activation(sums) * upstream, axis=other_axes)  # (K, G, H)
        return (
            _fold(ops.sum(by_sum, axis=-2)),
            ops.sum(by_sum, axis=(-4, -3)),
            (ops.reshape(by_vector, parameters[0].shape),),
        )

    def compare_pairs(self, query: Tensor, key: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        activation, _ = _ACTIVATIONS[self.activation]
        return ops.sum(activation(query + key) * ops.cast(parameters[0], query.dtype), axis=-1)

    def _unfold(self, query: Tensor, key: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of every query and every key (…, K, G, T, S, H), and the vectors (K, G, 1, 1, H)."""
        kv_heads, size = key.shape[-3], key.shape[-1]
        groups = vectors.shape[0] // kv_heads
        *leading, rows, _ = ops.shape(query)
        query = ops.reshape(query, [*leading, groups, rows // groups, 1, size])
        vectors = ops.reshape(ops.cast(vectors, query.dtype), [kv_heads, groups, 1, 1, size])
        return query + key[..., None, None, :, :], vectors


@dataclasses.dataclass(frozen=True, eq=False)
class GAT(Score):
    r"""Graph attention's score: a nonlinear sum of what query and key are worth alone.

    $$\log \kappa(q, k) = \mathrm{LeakyReLU}(a_n \cdot q + b_n \cdot k)$$

    Args:
        query_vectors: a, (N, H).
        key_vectors: b, (K, H).
        negative_slope: of the LeakyReLU.

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
        by_query = ops.sum(query * ops.cast(self.query_vectors, query.dtype), axis=-1, keepdims=True)
        by_key = ops.sum(key * ops.cast(self.key_vectors, key.dtype), axis=-1, keepdims=True)
        return (
            ops.concatenate([by_query, ops.ones_like(by_query)], axis=-1),
            ops.concatenate([ops.ones_like(by_key), by_key], axis=-1),
        )

    def link(self, compared: Tensor) -> Tensor:
        return ops.where(compared > 0, compared, compared * self.negative_slope)

    def link_gradient(self, compared: Tensor, upstream: Tensor) -> Tensor:
        return ops.where(compared > 0, upstream, upstream * self.negative_slope)


@dataclasses.dataclass(frozen=True, eq=False)
class Bilinear(Score):
    r"""A general bilinear form.

    $$\log \kappa(q, k) = q^\top W_n k$$

    Args:
        matrices: W, (N, H, H).

    References:
        Luong et al., "Effective Approaches to Attention-based Neural Machine Translation" (2015), equation 8,
        "general".
    """

    matrices: Tensor

    @property
    def num_heads(self) -> int | None:
        return int(self.matrices.shape[0])

    def features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return ops.einsum("btnh,nhf->btnf", query, ops.cast(self.matrices, query.dtype)), key


_NAMES: dict[str, type[Score]] = {
    "scaled_dot_product": ScaledDotProduct,
    "exponential": ScaledDotProduct,
    "cosine": Cosine,
    "rbf": RBF,
    "polynomial": Polynomial,
    "linear": LinearFeatures,
}


def get(identifier: "Score | str | dict[str, Any] | None") -> Score:
    """The score that an identifier stands for.

    Args:
        identifier: a score; the name of one without weights; its serialised config; or None for
            `ScaledDotProduct()`.

    Returns:
        A score.

    Raises:
        ValueError: for anything else.
    """
    if identifier is None:
        return ScaledDotProduct()
    if isinstance(identifier, Score):
        return identifier
    if isinstance(identifier, str) and identifier in _NAMES:
        return _NAMES[identifier]()
    score = None
    if isinstance(identifier, dict):
        with contextlib.suppress(TypeError):  # Keras' answer to a class it does not know
            score = keras.saving.deserialize_keras_object(identifier)
    if isinstance(score, Score):
        return score
    raise ValueError(
        f"`score` must be an ops.scores.Score, its config or one of {sorted(_NAMES)}; scores with weights are "
        f"ops.scores.Additive, Bilinear and GAT, or layers. Received: score={identifier!r}"
    )


def _fold(tensor: Tensor) -> Tensor:
    """(…, G, T, ·) → (…, G·T, ·)."""
    *leading, groups, queries, size = ops.shape(tensor)
    return ops.reshape(tensor, [*leading, groups * queries, size])


def _swap(tensor: Tensor) -> Tensor:
    """The last two axes exchanged."""
    axes = list(range(len(tensor.shape)))
    return ops.transpose(tensor, [*axes[:-2], axes[-1], axes[-2]])


def _scaled(query: Tensor, scale: float | None) -> Tensor:
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    return query * ops.convert_to_tensor(scale, query.dtype)


def _unit(tensor: Tensor) -> Tensor:
    """Vectors of length one."""
    square = ops.sum(ops.square(_exact(tensor)), axis=-1, keepdims=True)
    return ops.cast(_exact(tensor) * ops.rsqrt(ops.maximum(square, 1e-12)), tensor.dtype)


def _exact(tensor: Tensor) -> Tensor:
    """In float32 or better."""
    is_better = keras.backend.standardize_dtype(tensor.dtype) == "float64"
    return tensor if is_better else ops.cast(tensor, "float32")


def _leaky(inputs: Tensor) -> Tensor:
    return ops.where(inputs > 0, inputs, 0.2 * inputs)


def _leaky_slope(inputs: Tensor) -> Tensor:
    return ops.where(inputs > 0, ops.ones_like(inputs), 0.2 * ops.ones_like(inputs))


_ACTIVATIONS: dict[str, tuple[Map, Map]] = {
    "tanh": (ops.tanh, lambda x: 1.0 - ops.square(ops.tanh(x))),
    "leaky_relu": (_leaky, _leaky_slope),
}
