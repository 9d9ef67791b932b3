"""From the scores of classes to answers."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def answers(scores: np.ndarray, labels: Sequence[Any], problem_type: str, threshold: float) -> list[Any]:
    """Return what a classifier answers to each input.

    Args:
        scores: (B, C), the probability of each class, or the numbers of a regression.
        labels: the names of the C classes.
        problem_type: "single_label_classification", "multi_label_classification" or "regression".
        threshold: the probability above which a label of several is part of the answer.

    Returns:
        For each input the most probable label; of a multi-label classification the list of all labels above the
        threshold; of a regression the number, or a list of C > 1 numbers.
    """
    if problem_type == "regression":
        return [row[0] if len(row) == 1 else row for row in scores.tolist()]
    if problem_type == "multi_label_classification":
        return [[labels[i] for i in np.flatnonzero(row > threshold)] for row in scores]
    return [labels[i] for i in scores.argmax(-1)]
