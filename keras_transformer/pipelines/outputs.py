"""Outputs of generating pipelines: scored texts and alignments."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Answer:
    """A generated or scored output for a text.

    Attributes:
        text: the output.
        score: its log-probability, summed over tokens.
        ranking_score: the score after the beam's length penalty.
        ids: its tokens, including the end token but not a given prefix.
        token_scores: the log-probability of each.
    """

    text: str
    score: float
    ranking_score: float
    ids: list[int]
    token_scores: list[float]


@dataclasses.dataclass(frozen=True, eq=False)
class Alignment:
    """The attention of each target piece over the source pieces.

    Attributes:
        source: S pieces, including the end token.
        target: T pieces, including the end token.
        weights: float32 (T, S), whose rows sum to 1.
    """

    source: list[str]
    target: list[str]
    weights: np.ndarray
