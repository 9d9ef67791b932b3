"""BERT's basic tokenisation in the TensorFlow graph: clean and lower-case text, and split it into words."""

import functools
import unicodedata
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.text.pretokenizers import unicode_tables
from keras_transformer.text.pretokenizers.characters import (
    CodePointTable,
    cut,
    members,
    row_starts,
    shifted,
)

_SPACE, _PUNCTUATION, _ACCENT = 1, 2, 4
_KEPT = 0


class BertWords:
    """Split texts into words as BERT does: at white space, around punctuation and around Chinese characters.

    The optional steps run in this order: remove control characters and convert white space to U+0020; decompose
    characters (NFD) and drop nonspacing marks; lower-case letters.

    Args:
        clean: whether to remove control characters.
        isolate_ideographs: whether each Chinese character is a word of its own.
        strip_accents: whether to decompose characters and drop nonspacing marks.
        lowercase: whether to lower-case letters.
    """

    def __init__(self, clean: bool, isolate_ideographs: bool, strip_accents: bool, lowercase: bool):
        space, punctuation = members(unicode_tables.WHITESPACE), members(unicode_tables.PUNCTUATION)
        accents = members(unicode_tables.ACCENTS) & strip_accents
        self._isolate_ideographs = isolate_ideographs
        self._strip_accents = strip_accents
        self._ideographs = CodePointTable(members(unicode_tables.IDEOGRAPHS).astype(np.uint8))
        self._classes = CodePointTable(
            (_SPACE * space + _PUNCTUATION * punctuation + _ACCENT * accents).astype(np.uint8)
        )
        combining = np.zeros(len(space), np.uint8)
        for code in np.flatnonzero(members(unicode_tables.COMBINING)).tolist():
            combining[code] = unicodedata.combining(chr(code))
        self._combining = CodePointTable(combining)
        self._set_replacements(_replacements(clean, strip_accents, lowercase))

    def _set_replacements(self, replacements: dict[int, str]) -> None:
        # All distinct replacements, concatenated; the first entry is for characters that are kept.
        places = {text: place for place, text in enumerate(dict.fromkeys(replacements.values()), start=1)}
        entries = np.full(0x110000, _KEPT, np.int32)
        for code, replacement in replacements.items():
            entries[code] = places[replacement]
        lengths = np.array([1, *map(len, places)], np.int32)
        self._entries = CodePointTable(entries)
        with tf.init_scope(), tf.device("CPU"):
            self._lengths = tf.constant(lengths)
            self._starts = tf.constant(np.cumsum(lengths, dtype=np.int32) - lengths)
            self._codes = tf.constant(
                [0, *(ord(character) for text in places for character in text)], tf.int32
            )

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Split strings (B,) of valid UTF-8 into words, strings (B, None)."""
        return self.with_places(texts)[0]

    def with_places(
        self, texts: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor, tf.Tensor]:
        """Return the words, the index of the first character and after the last of each in its text, (B, None).

        The last value is the index of each character of all words, (N,).
        """
        ragged, codes, rows, isolated, classes, places = self._normalized(texts)
        space = classes & _SPACE > 0
        isolated |= classes & _PUNCTUATION > 0
        starts = isolated | row_starts(rows) | shifted(isolated | space, 1, False)
        codes, rows, starts, places = (
            tf.boolean_mask(values, ~space) for values in (codes, rows, starts, places)
        )
        words = cut(codes, rows, starts, ragged.nrows())
        ends = shifted(starts, -1, True)
        return (
            words,
            words.with_values(tf.boolean_mask(places, starts)),
            words.with_values(tf.boolean_mask(places, ends) + 1),
            places,
        )

    def normalize(self, texts: tf.Tensor) -> tf.Tensor:
        """Normalise strings (B,) of valid UTF-8, with spaces around Chinese characters that are words."""
        return self.normalize_with_sources(texts)[0]

    def normalize_with_sources(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.RaggedTensor]:
        """Return normalised strings (B,), and the index in its text of each of their characters, ragged (B, None)."""
        ragged, codes, rows, isolated, _, places = self._normalized(texts)
        counts = tf.where(isolated, 3, 1)
        sources = tf.RaggedTensor.from_value_rowids(
            tf.repeat(places, counts), tf.repeat(rows, counts), ragged.nrows(), validate=False
        )
        characters = tf.strings.unicode_encode(codes[:, None], "UTF-8")
        characters = tf.where(isolated, tf.strings.join([" ", characters, " "]), characters)
        rows_of_characters = tf.RaggedTensor.from_value_rowids(
            characters, rows, ragged.nrows(), validate=False
        )
        return tf.strings.reduce_join(rows_of_characters, axis=-1), sources

    def _normalized(self, texts: tf.Tensor) -> tuple[Any, ...]:
        """Return the code points of texts and of normalised texts, and of each of the latter values (N,).

        These are the row, whether it is a word of its own, the class, and the index of its original in the text.
        """
        ragged = tf.strings.unicode_decode(texts, "UTF-8")
        codes, source = self._replaced(ragged.values)
        rows = tf.gather(ragged.value_rowids(), source)
        isolated = tf.zeros_like(codes, tf.bool)
        if self._isolate_ideographs:
            isolated = tf.gather(self._ideographs(ragged.values) > 0, source)
        if self._strip_accents:
            codes = self._ordered(codes, rows)
        classes = self._classes(codes)
        places = source - tf.cast(tf.gather(ragged.row_starts(), rows), tf.int32)
        kept = classes & _ACCENT == 0
        return ragged, *(tf.boolean_mask(values, kept) for values in (codes, rows, isolated, classes, places))

    def _replaced(self, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the code points after replacement, and for each the index of its original code point."""
        entries = self._entries(codes)
        lengths = tf.gather(self._lengths, entries)
        source = tf.repeat(tf.range(tf.size(codes)), lengths)
        entries = tf.gather(entries, source)
        within = tf.range(tf.size(source)) - tf.gather(tf.cumsum(lengths, exclusive=True), source)
        replaced = tf.gather(self._codes, tf.gather(self._starts, entries) + within)
        return tf.where(entries == _KEPT, tf.gather(codes, source), replaced), source

    def _ordered(self, codes: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Sort the nonspacing marks of each character by combining class, as NFD does."""
        classes = self._combining(codes)
        # Only the marks that are kept have to be sorted.
        kept_accents = (classes > 0) & (self._classes(codes) & _ACCENT == 0)

        def sort() -> tf.Tensor:
            runs = tf.cumsum(tf.cast((classes == 0) | row_starts(rows), tf.int64))
            return tf.gather(codes, tf.argsort(runs * 256 + tf.cast(classes, tf.int64), stable=True))

        return tf.cond(tf.reduce_any(kept_accents), sort, lambda: codes)


@functools.cache
def bert_words(clean: bool, isolate_ideographs: bool, strip_accents: bool, lowercase: bool) -> BertWords:
    """Return the `BertWords` with these options, shared by all tokenizers: its tables take 0.1 s to build."""
    return BertWords(clean, isolate_ideographs, strip_accents, lowercase)


def _replacements(clean: bool, strip_accents: bool, lowercase: bool) -> dict[int, str]:
    """Return the replacements of the code points that change."""
    replacements: dict[int, str] = {}
    if strip_accents:
        # The set of decomposed characters depends on the version of Unicode; their decompositions never change.
        for code in np.flatnonzero(members(unicode_tables.DECOMPOSED)).tolist():
            replacements[code] = unicodedata.normalize("NFD", chr(code))
    if lowercase:
        small = small_letters()
        for code, text in replacements.items():
            replacements[code] = text.translate(small)
        replacements = {**{code: chr(letter) for code, letter in small.items()}, **replacements}
        # The only upper-case letter whose lower case has two characters.
        replacements.setdefault(0x130, "i\u0307")
    if clean:
        replacements.update(
            (code, " ") for code in np.flatnonzero(members(unicode_tables.WHITESPACE)).tolist()
        )
        removed = members(unicode_tables.REMOVED)
        replacements.update((code, "") for code in np.flatnonzero(removed).tolist())
    return replacements


def small_letters() -> dict[int, int]:
    """Return the lower case of the upper-case letters that have one of a single character."""
    numbers = [int(number, 36) for number in unicode_tables.LOWER.split()]
    return {
        code: code + difference
        for first, count, step, difference in zip(*(iter(numbers),) * 4, strict=True)
        for code in range(first, first + count * step, step)
    }
