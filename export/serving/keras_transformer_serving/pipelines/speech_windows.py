"""Overlapping windows of audio that is longer than a model reads, and the ids of their texts as those of one text.

They are those of `transformers`' pipeline with `chunk_length_s`: windows overlap by a third, and can be computed in one
batch. Texts of neighbours are joined where they agree best.
"""

from collections.abc import Sequence

import numpy as np

REFUSE, SPLIT, SEQUENTIAL = LONG_AUDIO = ("refuse", "split", "sequential")
_PER_TOKEN = 1e-4  # the preference for long overlaps


def windows(samples: np.ndarray, length: int) -> list[np.ndarray]:
    """Return windows of at most `length` samples of audio (N,), each of which overlaps with the next by a third."""
    step = length - 2 * round(length / 6)
    starts = range(0, max(len(samples) - length, 0) + step, step)
    return [samples[start : start + length] for start in starts]


def joined(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the ids of all windows without repetitions: two neighbours are cut in the middle of their overlap.

    Example:
        >>> joined([[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7]])
        [1, 2, 3, 4, 5, 6, 7]
    """
    ids = list[int]()
    last: Sequence[int] = rows[0]
    for row in rows[1:]:
        (begin, end), (other_begin, other_end) = _overlap(np.asarray(last), np.asarray(row))
        ids += last[: (begin + end) // 2]
        last = row[(other_begin + other_end) // 2 :]
    return [*ids, *last]


def _overlap(left: np.ndarray, right: np.ndarray) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the spans of two rows of ids, of equal length, with the largest share of equal ids.

    Without two equal ids at any shift the spans are empty, at the end of the one and the beginning of the other.
    """
    best, spans = 0.0, ((len(left), len(left)), (0, 0))
    for shift in range(1, len(left) + len(right)):
        of_left = max(0, len(left) - shift), min(len(left), len(left) + len(right) - shift)
        of_right = max(0, shift - len(left)), min(len(right), shift)
        count = int(np.sum(left[slice(*of_left)] == right[slice(*of_right)]))
        share = count / shift + shift * _PER_TOKEN
        if count > 1 and share > best:
            best, spans = share, (of_left, of_right)
    return spans


def check_long_audio(long_audio: str) -> str:
    """Return how audio that is too long is read."""
    if long_audio not in LONG_AUDIO:
        raise ValueError(f"`long_audio` must be one of {LONG_AUDIO}. Received: long_audio={long_audio!r}")
    return long_audio
