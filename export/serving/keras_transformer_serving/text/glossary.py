"""Glossaries: translations that terms of a text must have."""

import dataclasses
import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer_serving.jobs import Steps, gather
from keras_transformer_serving.text.alignment import AlignedText, AlignedWord, Score, words_of
from keras_transformer_serving.text.placement import Element, Placement

GLOSSARY_MODES = ("hard", "soft")
MAX_ENTRIES = 1000
"""The maximum number of entries of a glossary."""
_MAX_CHARACTERS = 200  # of a term
_SOFT_BONUS = 5.0  # the decrease of the log-probability that a term is worth in the mode "soft"


@dataclasses.dataclass(frozen=True)
class Term:
    """A term of a glossary in a text.

    Attributes:
        start: its place in the text.
        end: the place after it.
        translation: its translation, with the case of the text.
    """

    start: int
    end: int
    translation: str


class Glossary:
    """Terms and their translations.

    Args:
        entries: a mapping from terms to their translations.
        mode: "hard", so that a translation has them, or "soft", only if the model finds them probable enough.

    Example:
        >>> Glossary({"casa": "home"}).terms("La Casa")
        [Term(start=3, end=7, translation='Home')]
    """

    def __init__(self, entries: Any, mode: str = "hard") -> None:
        check_mode(mode)
        is_mapping = isinstance(entries, Mapping)
        if not is_mapping or not all(isinstance(text, str) for entry in entries.items() for text in entry):
            raise TypeError(
                f"`glossary` must be a mapping from strings to strings. Received: glossary={str(entries)[:80]}"
            )
        if len(entries) > MAX_ENTRIES:
            raise ValueError(
                f"`glossary` must have at most {MAX_ENTRIES} entries: pass those whose terms are in the text. "
                f"Received: {len(entries)}"
            )
        self.is_soft = mode == "soft"
        self._by_first_word: dict[str, list[tuple[tuple[str, ...], str, str]]] = {}
        for term, translation in entries.items():
            words = tuple(map(_folded, _words(term)))
            if not words or not translation.strip() or max(len(term), len(translation)) > _MAX_CHARACTERS:
                raise ValueError(
                    f"`glossary` must have terms and translations of 1 to {_MAX_CHARACTERS} characters. "
                    f"Received: {{{term[:40]!r}: {translation[:40]!r}}}"
                )
            self._by_first_word.setdefault(words[0], []).append((words, term.strip(), translation.strip()))
        for candidates in self._by_first_word.values():
            candidates.sort(key=lambda candidate: -len(candidate[0]))

    def terms(self, text: str) -> list[Term]:
        """Return the terms in a text, the longest at each word, without overlaps."""
        words = list(words_of(text))
        folded = [_folded(text[word.start : word.end]) for word in words]
        found = []
        index = 0
        while index < len(words):
            for term_words, term, translation in self._by_first_word.get(folded[index], ()):
                end = index + len(term_words)
                if tuple(folded[index:end]) == term_words:
                    start, stop = words[index].start, words[end - 1].end
                    case = _with_case(translation, term, text[start:stop], index == 0)
                    found.append(Term(start, stop, case))
                    index = end - 1
                    break
            index += 1
        return found


def check_mode(mode: Any) -> None:
    """Raise a ValueError unless the mode of a glossary is known."""
    if mode not in GLOSSARY_MODES:
        raise ValueError(f"`glossary_mode` must be one of {GLOSSARY_MODES}. Received: glossary_mode={mode!r}")


def of_json(text: str) -> Any:
    """Return the entries of a JSON object."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TypeError(f"`glossary` must be a JSON object. Received: {error}") from None


def missing(text: str, terms: Sequence[Term]) -> list[Term]:
    """Return the terms whose translations a text has less often than there are terms.

    A translation may have a capital in the text, such as at its beginning.
    """
    words = [*map(_normalized, _words(text))]
    small = [word[0].lower() + word[1:] for word in words]
    counts: dict[str, int] = {}
    found = []
    for term in terms:
        expected = [*map(_normalized, _words(term.translation))]
        if term.translation not in counts:
            counts[term.translation] = sum(
                expected[0] in (words[place], small[place])
                and expected[1:] == words[place + 1 : place + len(expected)]
                for place in range(len(words))
            )
        counts[term.translation] -= 1
        if counts[term.translation] < 0:
            found.append(term)
    return found


def apply(
    source: str, translation: AlignedText, terms: Sequence[Term], is_soft: bool, score: Score
) -> Steps[AlignedText]:
    """Return a translation with the translations of terms in place of the words that are aligned with them.

    A term without aligned words is inserted after the translation of the word before it.

    Args:
        source: the source.
        translation: the translation.
        terms: the terms in the source that are `missing`.
        is_soft: whether to keep the translation if the model finds that with the terms too improbable.
        score: the steps from sources and a target to log-probabilities.
    """
    replaced = _replaced(source, translation, terms)
    if is_soft:
        (before, _), (after, _) = yield from gather(
            score([source], text) for text in (translation.text, replaced.text)
        )
        if before.sum() - after.sum() > _SOFT_BONUS * len(terms):
            return translation
    return replaced


def _replaced(source: str, translation: AlignedText, terms: Sequence[Term]) -> AlignedText:
    elements = [Element(term.start, term.end) for term in terms]
    text, words, place = "", [], 0
    for span in Placement(source, translation).of_siblings(elements):
        term = terms[span.number]
        kept = slice(place, span.start)
        string = term.translation
        if (
            not translation.text[: span.start].strip()
            and translation.text[span.start : span.start + 1].isupper()
        ):
            string = string[0].upper() + string[1:]
        words += _shifted(translation, place, span.start, len(text) - place)
        text += translation.text[kept]
        if span.start == span.end and text:
            string = f" {string}"
        words += [
            AlignedWord(word.start + len(text), word.end + len(text), (term.start, term.end))
            for word in words_of(string)
        ]
        text += string
        place = span.end
    words += _shifted(translation, place, len(translation.text), len(text) - place)
    return AlignedText(text + translation.text[place:], tuple(words))


def _shifted(translation: AlignedText, start: int, end: int, shift: int) -> list[AlignedWord]:
    """Return the words in a part of a translation, moved by a number of characters."""
    return [word.moved(shift) for word in translation.words if start <= word.start and word.end <= end]


def _words(text: str) -> list[str]:
    return [text[word.start : word.end] for word in words_of(text)]


def _normalized(word: str) -> str:
    """Return a word in one of the forms that look the same."""
    return unicodedata.normalize("NFKC", word).replace("’", "'")


def _folded(word: str) -> str:
    """Return a word in lower case, in the same form for all words that match."""
    return _normalized(_normalized(word).casefold())


def _with_case(translation: str, term: str, found: str, is_first: bool) -> str:
    """Return a translation with the case of a term in a text.

    The capital of the first word of a text is not carried over.
    """
    if _normalized(found) == _normalized(term):
        return translation
    if found.isupper() and sum(map(str.isalpha, found)) > 1 and not term.isupper():
        return translation.upper()
    if found[0].isupper() and not term[0].isupper() and not is_first:
        return translation[0].upper() + translation[1:]
    return translation
