"""Labels, scores and outputs of classifiers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.model import postprocess

_LOWEST = -80.0  # whose exponential is still finite in float32


def check(labels: Sequence[Any] | None, num_classes: int) -> list[Any]:
    """Return `labels`, or class indices if they are None.

    Args:
        labels: a name for each class, or None.
        num_classes: the number of classes.

    Raises:
        ValueError: if there are more or fewer labels than classes.
    """
    labels = list(range(num_classes)) if labels is None else list(labels)
    if len(labels) != num_classes:
        raise ValueError(
            f"`labels` must name each of the model's {num_classes} classes. Received: {len(labels)} labels"
        )
    return labels


def problem_type(model: Any) -> str:
    """Return the `problem_type` of a model, single-label classification if it has none."""
    return getattr(model, "problem_type", "single_label_classification")


def check_threshold(threshold: float) -> float:
    """Return `threshold` if it is a probability."""
    if not 0 <= threshold <= 1:
        raise ValueError(f"`threshold` must be in [0, 1]. Received: threshold={threshold}")
    return threshold


def scores(pipeline: Any, logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of logits (…, C), or the numbers of a regression, float32."""
    if pipeline.problem_type == "regression":
        return logits
    if pipeline.problem_type == "multi_label_classification":
        return 1 / (1 + np.exp(-np.maximum(logits, _LOWEST)))
    return softmax(logits)


def probabilities(pipeline: Any, found: np.ndarray) -> np.ndarray:
    """Return scores if they are probabilities.

    Raises:
        ValueError: if they are the numbers of a regression.
    """
    if pipeline.problem_type == "regression":
        raise ValueError(
            "`probabilities` needs a classifier; `scores` are the numbers of a regression. "
            f"Received: problem_type={pipeline.problem_type!r}"
        )
    return found


def answers(pipeline: Any, found: np.ndarray) -> Any:
    """Return the label, labels or number for each row of scores (B, C), or for one row (C,)."""
    rows = postprocess(np.atleast_2d(found), pipeline.labels, pipeline.problem_type, pipeline.threshold)
    return rows if found.ndim > 1 else rows[0]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities (…, C) of logits (…, C), float32."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)
