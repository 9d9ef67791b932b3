r"""Scores: the logarithms of positive similarity functions of a query and a key.

The attention weights are α_ij = κ(q_i, k_j) / Σ_l κ(q_i, k_l) for a positive similarity function κ, "kernel" in the
literature. A score computes log κ in three steps, so that every implementation of `attention`, also the blockwise
ones, can compute it and its gradient: `features` of each token, `compare` for each pair of a query and a key, and an
elementwise `link`.

Axes: B batch, T queries, S keys, N query heads, K key/value heads, G = N / K, H head size, F features.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

import keras

from keras_transformer.ops.scores.base import Score as Score
from keras_transformer.ops.scores.parametric import GAT as GAT
from keras_transformer.ops.scores.parametric import Additive as Additive
from keras_transformer.ops.scores.parametric import Bilinear as Bilinear
from keras_transformer.ops.scores.stateless import RBF as RBF
from keras_transformer.ops.scores.stateless import Cosine as Cosine
from keras_transformer.ops.scores.stateless import LinearFeatures as LinearFeatures
from keras_transformer.ops.scores.stateless import Polynomial as Polynomial
from keras_transformer.ops.scores.stateless import ScaledDotProduct as ScaledDotProduct

_NAMES: dict[str, type[Score]] = {
    "scaled_dot_product": ScaledDotProduct,
    "exponential": ScaledDotProduct,
    "cosine": Cosine,
    "rbf": RBF,
    "polynomial": Polynomial,
    "linear": LinearFeatures,
}


def get(identifier: Score | str | dict[str, Any] | None, other_names: Iterable[str] = ()) -> Score:
    """Retrieve a score, as `keras.initializers.get` retrieves an initializer.

    Args:
        identifier: a score; the name of one without weights; its serialised config; or None for
            `ScaledDotProduct()`.
        other_names: names that the caller accepts, too, for the error message.

    Returns:
        A score.

    Raises:
        ValueError: if the identifier is none of these.
    """
    if identifier is None:
        return ScaledDotProduct()
    if isinstance(identifier, Score):
        return identifier
    if isinstance(identifier, str) and identifier in _NAMES:
        return _NAMES[identifier]()
    score = None
    if isinstance(identifier, dict):
        with contextlib.suppress(TypeError):  # raised by Keras for an unknown class
            score = keras.saving.deserialize_keras_object(identifier)
    if isinstance(score, Score):
        return score
    raise ValueError(
        f"`score` must be an ops.scores.Score, its config or one of {sorted((*_NAMES, *other_names))}; scores "
        f"with weights are ops.scores.Additive, Bilinear and GAT, or layers. Received: score={identifier!r}"
    )
