"""The names of the classes of a classifier."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def check(labels: Sequence[Any] | None, num_classes: int) -> list[Any]:
    """`labels`, or numbers in their place.

    Args:
        labels: a name for each class, or None.
        num_classes: how many there must be.

    Raises:
        ValueError: where there are more or fewer.
    """
    labels = list(range(num_classes)) if labels is None else list(labels)
    if len(labels) != num_classes:
        raise ValueError(
            f"`labels` must name each of the model's {num_classes} classes. Received: {len(labels)} labels"
        )
    return labels


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities (…, C) of logits (…, C), float32."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)
