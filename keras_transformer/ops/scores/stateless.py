"""Scores without weights."""

import dataclasses
import math
from collections.abc import Callable

import keras
from keras import ops

from keras_transformer.ops.scores.base import Score
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of, check_positive

Map = Callable[[Tensor], Tensor]

_TINY = 1e-30  # a lower bound of κ, so that its logarithm is finite


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class ScaledDotProduct(Score):
    r"""Scaled dot product, optionally with a soft cap c; the softmax of the score log κ is the weight.

    $$\log \kappa(q, k) = \mathrm{scale}\; q \cdot k, \quad \text{with a cap: }
    \log \kappa(q, k) = c \tanh(\mathrm{scale}\; q \cdot k / c)$$

    Args:
        scale: factor on the dot product, by default 1/√H.
        soft_cap: c, the bound on the absolute value of scores; None for no bound.

    Raises:
        ValueError: if `soft_cap` is not positive.

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

    Raises:
        ValueError: if `width` is not positive.

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

    Raises:
        ValueError: if `degree` is odd or not positive.

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
    r"""A dot product of positive features, for which attention takes time linear in the lengths.

    $$\kappa(q, k) = \phi(q) \cdot \phi(k), \qquad
    h_i = \frac{\phi(q_i)^\top \sum_j \phi(k_j) v_j^\top}{\phi(q_i)^\top \sum_j \phi(k_j)}$$

    Args:
        feature_map: φ: "elu" for elu(x) + 1, or "softplus".

    Raises:
        ValueError: if `feature_map` is unknown.

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


def _scaled(query: Tensor, scale: float | None) -> Tensor:
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    return query * ops.convert_to_tensor(scale, query.dtype)


def _unit(tensor: Tensor) -> Tensor:
    """Scale vectors to unit norm."""
    square = ops.sum(ops.square(_exact(tensor)), axis=-1, keepdims=True)
    return ops.cast(_exact(tensor) * ops.rsqrt(ops.maximum(square, 1e-12)), tensor.dtype)


def _exact(tensor: Tensor) -> Tensor:
    """Cast to float32, but keep float64."""
    is_better = keras.backend.standardize_dtype(tensor.dtype) == "float64"
    return tensor if is_better else ops.cast(tensor, "float32")
