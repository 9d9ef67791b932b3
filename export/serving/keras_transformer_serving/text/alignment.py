"""Alignment of the words of a translation with the words of its source, by the model that translated it."""

import bisect
import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer_serving.jobs import Steps
from keras_transformer_serving.text.tokenizer import PUNCTUATION

Score = Callable[[Sequence[str], str], Steps[tuple[np.ndarray, Sequence[int]]]]
"""The steps from R sources and a target to the log-probabilities (R, T) of the target's tokens for each source, −∞ for
a source without tokens, and the place in the target (T,) where each token ends."""

_MOST_OMITTED = 64  # parts of a source that are omitted, one after another
_LEAST_DECREASE = 0.05  # of the log-probability of a word that depends on a part
# Of scripts without spaces, each character is a word, with its marks.
_IDEOGRAPHS = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LETTER = rf"[^\s{PUNCTUATION}{_IDEOGRAPHS}]"
# A word ends after the apostrophe of an elision (l'eau) and before a hyphen.
_WORD = re.compile(
    rf"[{_IDEOGRAPHS}][\u3099\u309a\ufe00-\ufe0f]*|{_LETTER}+(?:[.,]{_LETTER}+)*(?:['’](?={_LETTER}))?|[{PUNCTUATION}]"
)


class AlignedWord(NamedTuple):
    """A word or a punctuation character.

    Attributes:
        start: its place in the text.
        end: the place after it.
        source: the place in the source of the words that it translates, start and end; None if it is unknown.
    """

    start: int
    end: int
    source: tuple[int, int] | None = None

    def moved(self, places: int, source_places: int = 0) -> "AlignedWord":
        """Return the word after a number of other characters, and in the source after another number."""
        source = (
            None if self.source is None else (self.source[0] + source_places, self.source[1] + source_places)
        )
        return AlignedWord(self.start + places, self.end + places, source)


@dataclasses.dataclass(frozen=True)
class AlignedText:
    """A translation and the place in the source of each of its words.

    Attributes:
        text: the translation.
        words: its words.
    """

    text: str
    words: tuple[AlignedWord, ...]


def words_of(text: str) -> Iterator[AlignedWord]:
    """Yield the words of a text, and each of its punctuation characters."""
    return (AlignedWord(*match.span()) for match in _WORD.finditer(text))


def is_lexical(text: str, word: AlignedWord) -> bool:
    """Return whether a word has letters or digits."""
    return any(map(str.isalnum, text[word.start : word.end]))


def copied(text: str) -> AlignedText:
    """Align a text with itself."""
    return AlignedText(text, tuple(AlignedWord(start, end, (start, end)) for start, end, _ in words_of(text)))


def whole(source: str, text: str) -> AlignedText:
    """Align each word of a text with all of its source."""
    return AlignedText(text, tuple(word._replace(source=(0, len(source))) for word in words_of(text)))


def align(source: str, target: str, score: Score) -> Steps[AlignedText]:
    """Align each word of a target with the source word that contributes most to it.

    The contribution is the decrease of the log-probability of the word's tokens if the source word is omitted. A word
    that depends on none of them, such as an article that always stands there, is not aligned. Words without letters,
    such as "?" and "2024", are aligned with equal ones if source and target have the same number of them. Of a source
    of more than 64 words, several adjacent ones are omitted together.

    Args:
        source: the source.
        target: the target.
        score: the steps from sources and a target to log-probabilities.

    References:
        Li et al., On the Word Alignment from Neural Machine Translation, ACL 2019: prediction difference.
    """
    units = _units(source)
    if len(units) < 2:
        return whole(source, target)
    words = list(words_of(target))
    if not words:
        return AlignedText(target, ())
    scores, ends = yield from score([source, *(_without(source, *unit) for unit in units)], target)
    with np.errstate(invalid="ignore"):  # −∞ − −∞
        decreases = np.nan_to_num(scores[0] - scores[1:], nan=0.0, posinf=1e9)  # (units, tokens)
    of_words = np.zeros((len(units), len(words)))
    starts = [word.start for word in words]
    for token, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
        if string := target[begin:end].lstrip():  # in the word of its first character
            index = max(bisect.bisect(starts, end - len(string)) - 1, 0)
            of_words[:, index] += decreases[:, token]
    equal = _equal_words(source, target, words)
    sources = [
        (units[of_unit.argmax()] if of_unit.max() > _LEAST_DECREASE else None)
        if _has_letters(target, word)
        else equal.get((word.start, word.end))
        for word, of_unit in zip(words, of_words.T, strict=True)
    ]
    aligned = (word._replace(source=source) for word, source in zip(words, sources, strict=True))
    return AlignedText(target, tuple(aligned))


def _units(source: str) -> list[tuple[int, int]]:
    """Return the places, start and end, of at most 64 words or sequences of words with letters or digits."""
    words = [(word.start, word.end) for word in words_of(source) if is_lexical(source, word)]
    size = -(-len(words) // _MOST_OMITTED) or 1
    return [(words[i][0], words[min(i + size, len(words)) - 1][1]) for i in range(0, len(words), size)]


def _without(text: str, start: int, end: int) -> str:
    """Return a text without the words at a place, and one of the spaces around them."""
    before, after = text[:start], text[end:]
    return before + (after.removeprefix(" ") if before.endswith(" ") or not before else after)


def _has_letters(text: str, word: AlignedWord) -> bool:
    return any(map(str.isalpha, text[word.start : word.end]))


def _equal_words(
    source: str, target: str, words: Sequence[AlignedWord]
) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the places in the source of the target's words without letters, by their places in the target."""
    places: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
    target_places: dict[str, list[tuple[int, int]]] = collections.defaultdict(list)
    for word in words_of(source):
        places[source[word.start : word.end]].append((word.start, word.end))
    for word in words:
        if not _has_letters(target, word):
            target_places[target[word.start : word.end]].append((word.start, word.end))
    return {
        place: source_place
        for text, of_text in target_places.items()
        if len(of_text) == len(places[text])
        for place, source_place in zip(of_text, places[text], strict=True)
    }
