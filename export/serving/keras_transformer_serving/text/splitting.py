"""Splitting of long texts at line breaks, sentence ends and spaces, for models that read short ones."""

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from keras_transformer_serving.jobs import Steps

CountTokens = Callable[[Sequence[str]], Steps[Sequence[int]]]
LONG_TEXTS = ("refuse", "split")

# Punctuation that ends a sentence before a space, and in scripts without spaces.
_FINAL = ".!?…‼⁇⁈⁉؟۔܀܁܂।॥།༎։።፧፨។៕။᙮᠃᠉᱾᱿꓿꘎．"
_FINAL_WITHOUT_SPACE = "。！？｡"
_CLOSING = "\"'”’»›)]}）］｝」』】》〉〕"
_CLAUSE = ",;:،؛、，；：፣፤"
_NO_BREAK_SPACE = "\u00a0\u202f\u2007"
# A period after one of them ends no sentence; after the others only before a number does it not.
_ABBREVIATIONS = {
    "en": "dr jr messrs mr mrs ms mt mx prof rev sr st vs cf eg ie approx",
    "de": "bzw ca evtl frl ggf hr hrn inkl nr sog str vgl zzgl",
    "es": "dra dres ee lic sra sras sres srta ud uds vd vds",
    "fr": "me mlle mlles mm mme mmes mgr",
    "it": "avv dott ing sig sigg signa",
    "pt": "exmo exma sto",
    "nl": "bijv dhr drs ir mevr",
    "pl": "gen inż np św tzw",
    "ru": "гр им напр проф св см ул",
}
_BEFORE_NUMBERS = "abs app art cap cf ch chap eq fig kap n no nos nr num núm p par pág págs pp s sec vol"
_EVERYWHERE = frozenset(word for words in _ABBREVIATIONS.values() for word in words.split())
_ONLY_BEFORE_NUMBERS = frozenset(_BEFORE_NUMBERS.split())

_END = re.compile(
    rf"[{_FINAL}{_FINAL_WITHOUT_SPACE}]+"
    # “ closes in German and opens in Chinese; French has a space before ».
    rf"(?:[{re.escape(_CLOSING)}]|[“‘](?!\w)|[ {_NO_BREAK_SPACE}][»›](?!\S))*"
)
_BREAKABLE_SPACE = re.compile(rf"[^\S{_NO_BREAK_SPACE}]|\Z")
_WINDOW = 24  # characters before and after a period that decide whether it ends a sentence
_LAST_WORD = re.compile(r"\w+(?:\.\w+)*\Z")
_ENDS_OF_CLAUSES = re.compile(
    rf"[{re.escape(_CLAUSE)}{_FINAL}—–][{re.escape(_CLOSING)}]*(?=\s)|[、，；：{_FINAL_WITHOUT_SPACE}]"
)
_SPACES = re.compile(r"\s+")
_SURROGATE = re.compile("[\ud800-\udfff]")
# General categories of characters that belong to the one before: marks, joiners, modifiers of emoji.
_EXTENDING = frozenset(("Mn", "Mc", "Me", "Cf", "Sk"))
_VIRAMA = 9  # the canonical combining class of signs that join two consonants
_ZERO_WIDTH_JOINER = "\u200d"
_REGIONAL_INDICATORS = ("\U0001f1e6", "\U0001f1ff")  # two are a flag
_LEADING_JAMO, _OTHER_JAMO = ("\u1100", "\u115f"), ("\u1160", "\u11ff")


@dataclasses.dataclass(frozen=True)
class Split:
    """A text as parts, and the strings before, between and after them, which are not translated.

    Attributes:
        parts: P ≥ 1 strings.
        between: P + 1 strings of spaces, line breaks, and characters other than letters.
    """

    parts: tuple[str, ...]
    between: tuple[str, ...]

    @classmethod
    def whole(cls, text: str) -> "Split":
        """Return a text as its only part."""
        return cls((text,), ("", ""))

    @property
    def is_whole(self) -> bool:
        """True if the text is its only part."""
        return self.between == ("", "")

    def join(self, outputs: Sequence[str]) -> str:
        """Return the outputs for the parts with the strings between them."""
        pairs = zip(self.between, [*outputs, ""], strict=True)
        return "".join(string for pair in pairs for string in pair)

    def stream(self, streams: Iterable[Iterator[str]]) -> Iterator[str]:
        """Yield the pieces of the outputs for the parts, one stream each, and the strings between them."""
        for before, pieces in zip(self.between, streams, strict=False):
            if before:
                yield before
            yield from pieces
        if self.between[-1]:
            yield self.between[-1]


def is_split(long_texts: Any) -> bool:
    """Return whether long texts are split rather than errors."""
    if long_texts not in LONG_TEXTS:
        raise ValueError(f"`long_texts` must be one of {LONG_TEXTS}. Received: long_texts={long_texts!r}")
    return bool(long_texts == "split")


def split(text: str, count_tokens: CountTokens, max_tokens: int) -> Steps[Split]:
    r"""Split a text into parts that fit a number of tokens.

    A text of one line that fits is one part. Others are split into lines and these into sentences, one a part: models
    of translation are trained on sentences, and omit some of several. A sentence that does not fit is halved until its
    parts do: near its middle at the end of a clause, else at the space nearest to the middle, else between two
    characters. Strings without letters, such as "* * *", are skipped.

    Args:
        text: the text.
        count_tokens: the steps from strings to their numbers of tokens.
        max_tokens: the maximum number of tokens of a part.

    Returns:
        The `Split`, of which parts and strings between them together are the text. A text with a character that does
        not fit is its only part.

    Example:
        >>> text = "Hi, Dr. Li!\n\nIs it 3.5? Yes."
        >>> parts = run_one(split(text, lambda parts: compute("count", parts), 20), {"count": count_characters})
        >>> parts.parts
        ('Hi, Dr. Li!', 'Is it 3.5?', 'Yes.')
        >>> parts.join(["¡Hola, Dr. Li!", "¿Son 3,5?", "Sí."])
        '¡Hola, Dr. Li!\n\n¿Son 3,5? Sí.'
    """
    sizes = {"": 0}

    def count(strings: Iterable[str]) -> Steps[None]:
        new = [*dict.fromkeys(string for string in strings if string not in sizes)]
        if new:
            sizes.update(zip(new, (yield from count_tokens(new)), strict=True))

    def fits(string: str) -> bool:
        return sizes[string] <= max_tokens

    yield from count([text])
    if fits(text) and text.splitlines() in ([text], []):
        return Split.whole(text)
    pieces = [sentence for line in text.splitlines(True) for sentence in sentences(line)]
    are_cut = True
    while are_cut:
        yield from count(map(_core, pieces))
        halves = [[piece] if fits(_core(piece)) else _halves(piece) for piece in pieces]
        are_cut = any(len(each) > 1 for each in halves)
        pieces = [*itertools.chain.from_iterable(halves)]
    return _split(pieces) if all(fits(_core(piece)) for piece in pieces) else Split.whole(text)


def sentences(line: str) -> list[str]:
    """Split a line after each of its sentences; spaces after a sentence belong to the next string.

    A sentence ends with final punctuation, such as "?" or "。", and closing quotes and brackets, before a space, except
    before a small letter or a comma, and after an abbreviation, an initial or a number of one or two digits. Scripts
    without spaces need none.
    """
    ends = [match.end() for match in _END.finditer(line) if _is_end(line, match)]
    cuts = [0, *ends, len(line)]
    return [line[start:end] for start, end in itertools.pairwise(cuts) if start < end]


def is_valid_text(text: Any) -> bool:
    """Return whether a value is a string of valid Unicode, without lone surrogates."""
    return isinstance(text, str) and _SURROGATE.search(text) is None


def _is_end(line: str, match: re.Match[str]) -> bool:
    """Return whether final punctuation, and closing quotes and brackets after it, end a sentence."""
    end = match.end()
    if not _BREAKABLE_SPACE.match(line, end):
        return line[end - 1] in _FINAL_WITHOUT_SPACE and line[end] not in _CLAUSE
    following = line[end : end + _WINDOW].lstrip()
    letter = next(filter(str.isalnum, following), "")
    if letter.islower() or following.startswith(tuple(_CLAUSE)):
        return False
    return match[0] != "." or not _is_abbreviation(line, match.start(), letter.isdigit())


def _is_abbreviation(line: str, end: int, before_number: bool) -> bool:
    """Return whether the word before a period is an abbreviation, an initial or a number of one or two digits."""
    word = _LAST_WORD.search(line, max(0, end - _WINDOW), end)
    if word is None:
        return False
    letters = word[0].casefold()
    return (
        letters in _EVERYWHERE
        or (before_number and letters in _ONLY_BEFORE_NUMBERS)
        or (letters.isdigit() and len(letters) <= 2)
        or all(len(letter) == 1 and letter.isalpha() for letter in letters.split("."))
    )


def _core(piece: str) -> str:
    """Return a piece without spaces around it, "" if it has no letters."""
    return piece.strip() if any(map(str.isalpha, piece)) else ""


def _halves(piece: str) -> list[str]:
    """Cut a piece in two near its middle; one of a single character is returned as it is."""
    end = len(piece.rstrip())
    start = len(piece) - len(piece.lstrip())
    middle, quarter = (start + end) // 2, (end - start) / 4
    ends_of_clauses, spaces = (
        [match.end() for match in pattern.finditer(piece, start, end) if start < match.end() < end]
        for pattern in (_ENDS_OF_CLAUSES, _SPACES)
    )
    cuts = [cut for cut in ends_of_clauses if abs(cut - middle) <= quarter] or spaces
    if not cuts:
        around = (middle + sign * distance for distance in range(end - start) for sign in (1, -1))
        between_characters = (cut for cut in around if start < cut < end and not _is_inside(piece, cut))
        cuts = [*itertools.islice(between_characters, 1)]
    if not cuts:
        return [piece]
    cut = min(cuts, key=lambda cut: abs(cut - middle))
    return [piece[:cut], piece[cut:]]


def _is_inside(text: str, cut: int) -> bool:
    """Return whether a place is inside a user-perceived character.

    References:
        Unicode Standard Annex #29, Unicode Text Segmentation, section 3: extended grapheme clusters, here with all
        flags and all conjuncts in a row as one.
    """
    before, after = text[cut - 1], text[cut]
    low, high = _REGIONAL_INDICATORS
    return (
        unicodedata.category(after) in _EXTENDING
        or before == _ZERO_WIDTH_JOINER
        or unicodedata.combining(before) == _VIRAMA
        or (low <= before <= high and low <= after <= high)
        or _OTHER_JAMO[0] <= after <= _OTHER_JAMO[1]
        or _LEADING_JAMO[0] <= before <= _LEADING_JAMO[1]
        or after in "\u0e33\u0eb3"  # Thai and Lao AM
    )


def _split(pieces: Sequence[str]) -> Split:
    """Return the pieces of a text with letters as parts, and all else between them."""
    parts: list[str] = []
    between: list[list[str]] = [[]]
    for piece in pieces:
        core = _core(piece)
        before, _, after = piece.partition(core) if core else (piece, "", "")
        between[-1].append(before)
        if core:
            parts.append(core)
            between.append([after])
    strings = ["".join(separators) for separators in between]
    return Split((*parts,), (*strings,)) if parts else Split(("",), (*strings, ""))
