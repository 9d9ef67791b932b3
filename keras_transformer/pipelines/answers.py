"""What pipelines that generate return beside texts."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Answer:
    """One of the outputs for a text.

    Attributes:
        text: the output.
        score: its summed log-probability.
        ranking_score: the same after a beam's length penalty.
        ids: its tokens, the end token included; without those of a prefix that was given.
        token_scores: the log-probability of each.
    """

    text: str
    score: float
    ranking_score: float
    ids: list[int]
    token_scores: list[float]


@dataclasses.dataclass(frozen=True, eq=False)
class Alignment:
    """Which piece of a source each piece of a target looks at.

    Attributes:
        source: S pieces, the end token included.
        target: T pieces, the end token included.
        weights: float32 (T, S), in rows that sum up to 1.
    """

    source: list[str]
    target: list[str]
    weights: np.ndarray
