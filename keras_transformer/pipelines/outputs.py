"""Outputs of generating pipelines: scored texts, alignments and streams."""

import dataclasses
from collections.abc import Callable, Iterator

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
        seed: the seed of a sampled output.
    """

    text: str
    score: float
    ranking_score: float
    ids: list[int]
    token_scores: list[float]
    seed: int | None = None


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


def stream_text(
    tokens: Iterator[np.ndarray], ids: list[int], decode: Callable[[list[int]], str]
) -> Iterator[str]:
    """Stream the text of tokens while they are generated.

    Args:
        tokens: integers (1,), one token each.
        ids: the ids before the first token, part of the text.
        decode: a function from ids to their text.

    Returns:
        An iterator of the pieces of the text.
    """
    emitted = ""
    for token in tokens:
        ids.append(int(token[0]))
        text = decode(ids)
        # The last character may be incomplete until later tokens add its remaining bytes.
        if text.startswith(emitted) and len(text) > len(emitted) and not text.endswith("\ufffd"):
            yield text[len(emitted) :]
            emitted = text
    if ids and (rest := decode(ids)[len(emitted) :]):
        yield rest
