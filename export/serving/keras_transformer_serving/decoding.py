"""Choosing tokens one by one in NumPy, as the graph of the generation loop does: constraints, then the sampler.

V is the vocabulary size, M the maximum number of new tokens.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

FORBIDDEN = np.float32(-1e30)
"""An upper bound of the logits of forbidden tokens: finite, so that sums and differences are never NaN."""


@dataclasses.dataclass(frozen=True)
class TokenChooser:
    """A function from the logits of a step and the ids generated before to the next token.

    Attributes:
        sampler: the sampler's settings.
        constraints: the constraints' settings.
        end_ids: the tokens that end a sequence.
        never: the tokens that are never generated.
        limit: the maximum number of new tokens.
        minimum: the number of tokens before an end token.
        temperature: of sampling.
        noise: of sampling, float32 (M,).
    """

    sampler: Mapping[str, Any]
    constraints: Sequence[Mapping[str, Any]]
    end_ids: frozenset[int]
    never: frozenset[int]
    limit: int
    minimum: int = 0
    temperature: float = 1.0
    noise: np.ndarray | None = None

    def __call__(self, logits: np.ndarray, ids: Sequence[int]) -> int | None:
        """Return the next token for float32 logits (V,), None if all are forbidden or one is NaN."""
        logits = np.array(logits, np.float32)
        for constraint in self.constraints:
            logits = CONSTRAINTS[constraint["constraint"]](logits, ids, constraint, self)
        early = self.end_ids if len(ids) < self.minimum else frozenset()
        _forbid(logits, self.never | early)
        if not _is_allowed(logits.max()):
            return None
        if self.noise is None:
            return int(logits.argmax())
        return draw(logits, self.sampler, self.temperature, self.noise[len(ids)])


def draw(logits: np.ndarray, sampler: Mapping[str, Any], temperature: float, noise: float) -> int:
    """Draw a token from logits (V,) with a uniform number, by the cumulative distribution of the filtered tokens.

    References:
        Devroye, "Non-Uniform Random Variate Generation" (1986), section III.2.
    """
    scaled = np.maximum(logits / np.float32(temperature), FORBIDDEN)
    kept = (scaled >= lowest_kept(scaled, sampler)) & _is_allowed(logits)
    weights = np.where(kept, np.exp(scaled - scaled.max()), np.float32(0))
    # As in the graph: first a block, then a token of the block.
    size = math.isqrt(len(logits) - 1) + 1
    count = -(-len(logits) // size)
    blocks = np.pad(weights, (0, count * size - len(weights))).reshape(count, size)
    totals = blocks.sum(axis=1)
    block, remainder = _invert(totals, np.float32(noise) * totals.sum())
    token, _ = _invert(blocks[block], remainder)
    return block * size + token


def largest(values: np.ndarray, count: int) -> list[int]:
    """Return the indices of the largest values (V,), or of all if there are fewer, the first of equal ones first."""
    count = min(count, len(values))
    if not count:
        return []
    # Sorting a large vocabulary would take longer than a step of a small model.
    candidates = np.flatnonzero(values >= np.partition(values, -count)[-count])
    indices: list[int] = candidates[np.argsort(-values[candidates], kind="stable")][:count].tolist()
    return indices


def lowest_kept(logits: np.ndarray, sampler: Mapping[str, Any]) -> np.float32:
    """Return the lowest of the logits (V,) that the filters top-k, top-p and min-p keep."""
    limit = min(sampler.get("top_k") or len(logits), len(logits))
    top_p, min_p = sampler.get("top_p", 1.0), sampler.get("min_p", 0.0)
    highest, lowest = logits.max(), FORBIDDEN
    if limit < len(logits) or top_p < 1:
        ordered = np.sort(logits)[::-1][:limit]
        lowest = ordered[-1]
        if top_p < 1:
            exponentials = np.exp(ordered - highest)
            probabilities = exponentials / exponentials.sum()
            before = probabilities.cumsum() - probabilities
            lowest = ordered[(before < top_p) | (ordered == highest)].min()
    if min_p > 0:
        lowest = np.maximum(lowest, highest + np.float32(np.log(min_p)))
    return np.float32(lowest)


def _invert(weights: np.ndarray, threshold: Any) -> tuple[int, Any]:
    """Return the first index whose cumulative sum exceeds a threshold, and the threshold minus the sum before it."""
    cumulated = weights.cumsum()
    # Keep the threshold below the sum in spite of rounding.
    threshold = np.minimum(threshold, cumulated[-1] * np.float32(1 - 2.0**-22))
    index = min(int((cumulated <= threshold).sum()), len(weights) - 1)
    return index, threshold - (cumulated[index - 1] if index else np.float32(0))


def _is_allowed(logits: Any) -> Any:
    return logits > FORBIDDEN / 2  # more may have been added to `FORBIDDEN`


def _forbid(logits: np.ndarray, ids: Any) -> None:
    logits[[*ids]] += FORBIDDEN


def _force(logits: np.ndarray, ids: Sequence[int]) -> np.ndarray:
    """Return logits of 0 for tokens that are forced, and not forbidden, and `FORBIDDEN` for all others."""
    forced = np.full_like(logits, FORBIDDEN)
    forced[[id_ for id_ in ids if _is_allowed(logits[id_])]] = 0
    return forced


_Constraint = Callable[[np.ndarray, Sequence[int], Mapping[str, Any], TokenChooser], np.ndarray]


def _min_new_tokens(
    logits: np.ndarray, ids: Sequence[int], settings: Mapping[str, Any], chooser: TokenChooser
) -> np.ndarray:
    if len(ids) < settings["count"]:
        _forbid(logits, chooser.end_ids)
    return logits


def _repetition_penalty(
    logits: np.ndarray, ids: Sequence[int], settings: Mapping[str, Any], _: TokenChooser
) -> np.ndarray:
    factor, before = np.float32(settings["factor"]), [*set(ids)]
    old = logits[before]
    logits[before] = np.where(old > 0, old / factor, np.maximum(old * factor, FORBIDDEN))
    return logits


def _no_repeat_ngram(
    logits: np.ndarray, ids: Sequence[int], settings: Mapping[str, Any], _: TokenChooser
) -> np.ndarray:
    size = settings["size"]
    last = [*ids[len(ids) - size + 1 :]]
    starts = range(len(ids) - size + 1)
    _forbid(logits, {ids[i + size - 1] for i in starts if [*ids[i : i + size - 1]] == last})
    return logits


def _banned_words(
    logits: np.ndarray, ids: Sequence[int], settings: Mapping[str, Any], _: TokenChooser
) -> np.ndarray:
    for *first, last in settings["words"]:
        if len(ids) >= len(first) and [*ids[len(ids) - len(first) :]] == first:
            _forbid(logits, [last])
    return logits


def _forced_prefix(
    logits: np.ndarray, ids: Sequence[int], settings: Mapping[str, Any], _: TokenChooser
) -> np.ndarray:
    prefix = settings["prefix"]
    return _force(logits, [prefix[len(ids)]]) if len(ids) < len(prefix) else logits


def _forced_last_token(
    logits: np.ndarray, ids: Sequence[int], settings: Mapping[str, Any], chooser: TokenChooser
) -> np.ndarray:
    return _force(logits, settings["token_ids"]) if len(ids) + 1 >= chooser.limit else logits


def _end_tokens(logits: np.ndarray, *_: Any) -> np.ndarray:
    return logits


def _vocabulary_shortlist(
    logits: np.ndarray, ids: Sequence[int], settings: Mapping[str, Any], _: TokenChooser
) -> np.ndarray:
    allowed = np.zeros(len(logits), bool)
    allowed[settings["token_ids"]] = True
    return np.where(allowed, logits, FORBIDDEN)


CONSTRAINTS: Mapping[str, _Constraint] = {
    "MinNewTokens": _min_new_tokens,
    "RepetitionPenalty": _repetition_penalty,
    "NoRepeatNGram": _no_repeat_ngram,
    "BannedWords": _banned_words,
    "ForcedPrefix": _forced_prefix,
    "ForcedLastToken": _forced_last_token,
    "EndTokens": _end_tokens,
    "VocabularyShortlist": _vocabulary_shortlist,
}
"""The constraints by name, but `ForcedWords`, whose beams are not final before the end, and `Timestamps` of speech."""
