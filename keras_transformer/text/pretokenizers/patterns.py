r"""Regular expressions of words, as in `tokenizer.json`, in the TensorFlow graph.

The published ones are in the syntax of Oniguruma, which the `tokenizers` library uses. RE2, which TensorFlow uses, has
no lookahead, and other versions of Unicode's classes. `Words` writes classes out, and a pattern of runs of white space
that stop before the last one of them, `\s+(?!\S)`, with a mark in the text before that character.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from keras_transformer.text.pretokenizers import unicode_tables
from keras_transformer.text.pretokenizers.characters import members

GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace("{1,3}", "")
DIGIT = r"\p{N}"

_NOT_BEFORE_TEXT = r"(?!\S)"
_CATEGORIES = {
    "L": unicode_tables.LETTERS,
    "N": unicode_tables.NUMBERS,
    "Lu": unicode_tables.CATEGORY_LU,
    "Ll": unicode_tables.CATEGORY_LL,
    "Lt": unicode_tables.CATEGORY_LT,
    "Lm": unicode_tables.CATEGORY_LM,
    "M": unicode_tables.CATEGORY_M,
    "P": unicode_tables.CATEGORY_P,
    "S": unicode_tables.CATEGORY_S,
}
_ESCAPED = {"r": "\r", "n": "\n", "t": "\t"}
_SURROGATES = slice(0xD800, 0xE000)
_MARK = r"\x{D800}"  # a surrogate, which no text has
_MARK_BYTES = b"\xed\xa0\x80"
_QUANTIFIER = re.compile(r"[?*+]|\{\d+(?:,\d*)?\}")


@functools.cache
def _category(name: str) -> np.ndarray:
    """Return the code points (0x110000,) of a category of Unicode, or of white space, "s"."""
    if name == "s":
        return members(unicode_tables.WHITESPACE)
    if name == "Lo":
        return _category("L") & ~np.any([_category(other) for other in ("Lu", "Ll", "Lt", "Lm")], axis=0)
    return members(_CATEGORIES[name])


@dataclasses.dataclass
class _Translation:
    r"""The translation of a pattern to RE2.

    Attributes:
        pattern: the pattern, from `place` on still to be translated.
        has_lookahead: whether a text has a mark, for `\s+(?!\S)`.
    """

    pattern: str
    place: int = 0
    has_lookahead: bool = False

    def __post_init__(self) -> None:
        self.has_lookahead = _NOT_BEFORE_TEXT in self.pattern

    def parts(self, end: str = "", ignore_case: bool = False) -> Iterator[str]:
        """Yield the parts of the pattern, up to a closing bracket if `end` is one."""
        while self.place < len(self.pattern):
            if end and self._starts(end):
                self.place += 1
                return
            if self._starts(rf"\s+{_NOT_BEFORE_TEXT}"):
                self.place += len(rf"\s+{_NOT_BEFORE_TEXT}")
                run = f"(?:{self._one_of(_category('s'))})+"
                yield rf"(?:{run}{_MARK}|{run}\z)"
                continue
            yield self._part(ignore_case)
            if quantifier := _QUANTIFIER.match(self.pattern, self.place):
                yield quantifier[0]
                self.place = quantifier.end()
                if self.pattern[self.place : self.place + 1] in ("?", "*", "+", "{"):
                    self._unsupported("a quantifier after a quantifier")
        if end:
            self._unsupported(f"no {end!r}")

    def _part(self, ignore_case: bool) -> str:
        """Return the translation of one character, class or group."""
        for start, ignores in (("(?i:", True), ("(?:", ignore_case), ("(", ignore_case)):
            if self._starts(start) and (start != "(" or not self._starts("(?")):
                self.place += len(start)
                return f"(?:{''.join(self.parts(')', ignores))})"
        character = self.pattern[self.place]
        if character == "|":
            self.place += 1
            return "|"
        if character == "$":  # also before a line break
            self.place += 1
            return "(?m:$)"
        if character in "().^?*+{}]":
            self._unsupported(repr(self.pattern[self.place : self.place + 4]))
        codes = self._class() if character == "[" else self._codes()
        return f"(?:{self._one_of(_with_both_cases(codes) if ignore_case else codes)})"

    def _class(self) -> np.ndarray:
        """Return the code points of a class in square brackets."""
        self.place += 1
        negated = self._starts("^")
        self.place += negated
        codes = np.zeros(0x110000, bool)
        while not self._starts("]"):
            if self._starts("[") or self._starts("&&") or self.place >= len(self.pattern):
                self._unsupported("a class in a class, or one without an end")
            first = self._codes()
            if self._starts("-") and not self._starts("-]"):
                self.place += 1
                bounds = [np.flatnonzero(each) for each in (first, self._codes())]
                if any(len(each) != 1 for each in bounds) or bounds[0][0] > bounds[1][0]:
                    self._unsupported("a range that is not of two characters in order")
                codes[bounds[0][0] : bounds[1][0] + 1] = True
            else:
                codes |= first
        self.place += 1
        return ~codes if negated else codes

    def _codes(self) -> np.ndarray:
        """Return the code points (0x110000,) of a character or an escape."""
        codes = np.zeros(0x110000, bool)
        if not self._starts("\\"):
            codes[ord(self.pattern[self.place])] = True
            self.place += 1
            return codes
        if found := re.compile(r"\\([pP])\{(\w+)\}|\\([sS])").match(self.pattern, self.place):
            negated, name = (found[1] == "P", found[2]) if found[1] else (found[3] == "S", "s")
            if name not in {*_CATEGORIES, "Lo", "s"} or (found[1] and name == "s"):
                self._unsupported(found[0])
            self.place = found.end()
            return ~_category(name) if negated else _category(name)
        escaped = self.pattern[self.place + 1 : self.place + 2]
        if escaped not in _ESCAPED and (not escaped or escaped.isalnum() or not escaped.isascii()):
            self._unsupported(f"\\{escaped}")
        codes[ord(_ESCAPED.get(escaped, escaped))] = True
        self.place += 2
        return codes

    def _one_of(self, codes: np.ndarray) -> str:
        """Return a pattern of one of some code points, with the mark that may be before white space."""
        codes = codes.copy()
        codes[_SURROGATES] = False
        bounds = np.flatnonzero(np.diff(np.pad(codes, 1).astype(np.int8))).reshape(-1, 2)
        ranges = "".join(
            rf"\x{{{first:X}}}" + (rf"-\x{{{end - 1:X}}}" if end - first > 1 else "") for first, end in bounds
        )
        mark = f"{_MARK}?" if self.has_lookahead and np.any(codes & _category("s")) else ""
        return f"{mark}[{ranges}]" if ranges else r"[^\x{0}-\x{10FFFF}]"

    def _starts(self, string: str) -> bool:
        return self.pattern.startswith(string, self.place)

    def _unsupported(self, received: str) -> None:
        raise ValueError(
            "`pattern` must be of characters, classes, groups, quantifiers, alternatives and `\\s+(?!\\S)`. "
            f"Received: {received} at character {self.place} of pattern={self.pattern!r}"
        )


def _with_both_cases(codes: np.ndarray) -> np.ndarray:
    """Return code points with the letters that equal one of them in another case, of the letters of English."""
    codes = codes.copy()
    for small in range(ord("a"), ord("z") + 1):
        # The long s and the sign of the kelvin have the lower case of an s and a k.
        equal = [small, small - 32, *{ord("s"): [0x17F], ord("k"): [0x212A]}.get(small, [])]
        codes[equal] |= codes[equal].any()
    return codes


@functools.cache
def translated(pattern: str) -> str:
    r"""Return a pattern in the syntax of RE2.

    Args:
        pattern: the pattern in the syntax of Oniguruma.

    Raises:
        ValueError: if the pattern has something else than characters, classes, groups, quantifiers, alternatives and
            `\s+(?!\S)`, or matches an empty string.
    """
    found = "".join(_Translation(pattern).parts())
    if tf.strings.regex_full_match("", found):
        raise ValueError(f"`pattern` must not match an empty string. Received: pattern={pattern!r}")
    return found


class Words:
    """Split texts into words: the strings that match a pattern, and those between them.

    Args:
        patterns: regular expressions in the syntax of Oniguruma; each splits the words of the one before it.
    """

    def __init__(self, *patterns: str) -> None:
        self._patterns = [(translated(pattern), _NOT_BEFORE_TEXT in pattern) for pattern in patterns]
        space = _Translation("")._one_of(_category("s"))
        text = _Translation("")._one_of(~_category("s"))
        self._last_space = f"({space})({space}{text})"

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Split strings (B,) of valid UTF-8 into words, strings (B, None), whose concatenation is the text."""
        words = tf.RaggedTensor.from_row_lengths(texts, tf.ones_like(texts, tf.int64))
        for pattern, has_lookahead in self._patterns:
            strings = words.values
            if has_lookahead:
                strings = tf.strings.regex_replace(strings, self._last_space, b"\\1" + _MARK_BYTES + b"\\2")
            # The byte 0xFF never occurs in UTF-8.
            strings = tf.strings.regex_replace(strings, pattern, b"\xff\\0\xff")
            if has_lookahead:
                strings = tf.strings.regex_replace(strings, _MARK, "")
            words = words.with_values(tf.strings.split(strings, b"\xff")).merge_dims(1, 2)
            words = tf.ragged.boolean_mask(words, words != "")
        return words
