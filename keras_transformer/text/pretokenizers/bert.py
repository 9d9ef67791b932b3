"""BERT's basic tokenisation in the TensorFlow graph: text is cleaned, lower-cased and cut into words."""

import unicodedata

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

_SPACE, _ALONE, _ACCENT = 1, 2, 4
_KEPT = 0


class BertWords:
    """Cuts texts into words as BERT does: at white space, around punctuation and around Chinese characters.

    In this order, as far as it is wanted: control characters are removed and white space becomes U+0020;
    characters are decomposed (NFD) and nonspacing marks dropped; letters become small.

    Args:
        clean: Whether control characters are removed.
        isolate_ideographs: Whether each Chinese character is a word.
        strip_accents: Whether characters are decomposed and marks dropped.
        lowercase: Whether letters become small.
    """

    def __init__(self, clean: bool, isolate_ideographs: bool, strip_accents: bool, lowercase: bool):
        space, punctuation = members(unicode_tables.WHITESPACE), members(unicode_tables.PUNCTUATION)
        accents = members(unicode_tables.ACCENTS) & strip_accents
        self._isolate_ideographs = isolate_ideographs
        self._strip_accents = strip_accents
        self._ideographs = CodePointTable(members(unicode_tables.IDEOGRAPHS).astype(np.uint8))
        self._kinds = CodePointTable(
            (_SPACE * space + _ALONE * punctuation + _ACCENT * accents).astype(np.uint8)
        )
        combining = np.zeros(len(space), np.uint8)
        for code in np.flatnonzero(members(unicode_tables.COMBINING)).tolist():
            combining[code] = unicodedata.combining(chr(code))
        self._combining = CodePointTable(combining)
        self._set_replacements(_replacements(clean, strip_accents, lowercase))

    def _set_replacements(self, replacements: dict[int, str]) -> None:
        # The different replacements behind each other; the first is that of characters which stay.
        places = {each: place for place, each in enumerate(dict.fromkeys(replacements.values()), start=1)}
        entries = np.full(0x110000, _KEPT, np.int32)
        for code, replacement in replacements.items():
            entries[code] = places[replacement]
        lengths = np.array([1, *map(len, places)], np.int32)
        self._entries = CodePointTable(entries)
        with tf.init_scope(), tf.device("CPU"):
            self._lengths = tf.constant(lengths)
            self._starts = tf.constant(np.cumsum(lengths, dtype=np.int32) - lengths)
            self._codes = tf.constant([0, *(ord(each) for text in places for each in text)], tf.int32)

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Strings (B,) of valid UTF-8 → words, strings (B, None)."""
        ragged = tf.strings.unicode_decode(texts, "UTF-8")
        codes, source = self._replaced(ragged.values)
        rows = tf.gather(ragged.value_rowids(), source)
        alone = tf.zeros_like(codes, tf.bool)
        if self._isolate_ideographs:
            alone = tf.gather(self._ideographs(ragged.values) > 0, source)
        if self._strip_accents:
            codes = self._ordered(codes, rows)
        kinds = self._kinds(codes)
        codes, rows, alone, kinds = (
            tf.boolean_mask(each, kinds & _ACCENT == 0) for each in (codes, rows, alone, kinds)
        )
        space = kinds & _SPACE > 0
        alone |= kinds & _ALONE > 0
        starts = alone | row_starts(rows) | shifted(alone | space, 1, False)
        codes, rows, starts = (tf.boolean_mask(each, ~space) for each in (codes, rows, starts))
        return cut(codes, rows, starts, ragged.nrows())

    def _replaced(self, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Code points after replacement, and which of the given ones each comes from."""
        entries = self._entries(codes)
        lengths = tf.gather(self._lengths, entries)
        source = tf.repeat(tf.range(tf.size(codes)), lengths)
        entries = tf.gather(entries, source)
        within = tf.range(tf.size(source)) - tf.gather(tf.cumsum(lengths, exclusive=True), source)
        replaced = tf.gather(self._codes, tf.gather(self._starts, entries) + within)
        return tf.where(entries == _KEPT, tf.gather(codes, source), replaced), source

    def _ordered(self, codes: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Marks behind one character in the order of their combining classes, as NFD has them."""
        classes = self._combining(codes)
        # What is dropped needs no order.
        loose = (classes > 0) & (self._kinds(codes) & _ACCENT == 0)

        def sort() -> tf.Tensor:
            runs = tf.cumsum(tf.cast((classes == 0) | row_starts(rows), tf.int64))
            return tf.gather(codes, tf.argsort(runs * 256 + tf.cast(classes, tf.int64), stable=True))

        return tf.cond(tf.reduce_any(loose), sort, lambda: codes)


def _replacements(clean: bool, strip_accents: bool, lowercase: bool) -> dict[int, str]:
    """What each code point becomes, unless it stays itself."""
    replacements: dict[int, str] = {}
    if strip_accents:
        # Which are decomposed depends on the version of Unicode; how, never changes.
        for code in np.flatnonzero(members(unicode_tables.DECOMPOSED)).tolist():
            replacements[code] = unicodedata.normalize("NFD", chr(code))
    if lowercase:
        small = _small_letters()
        for code, text in replacements.items():
            replacements[code] = text.translate(small)
        replacements = {**{code: chr(letter) for code, letter in small.items()}, **replacements}
        # The one capital letter that becomes two characters.
        replacements.setdefault(0x130, "i\u0307")
    if clean:
        replacements.update(
            (code, " ") for code in np.flatnonzero(members(unicode_tables.WHITESPACE)).tolist()
        )
        removed = members(unicode_tables.REMOVED)
        replacements.update((code, "") for code in np.flatnonzero(removed).tolist())
    return replacements


def _small_letters() -> dict[int, int]:
    numbers = [int(number, 36) for number in unicode_tables.LOWER.split()]
    return {
        code: code + difference
        for first, count, step, difference in zip(*(iter(numbers),) * 4, strict=True)
        for code in range(first, first + count * step, step)
    }
