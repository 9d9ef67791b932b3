"""GPT-2's pattern in the TensorFlow graph, which splits text into words that include the space before them."""

import functools

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

OTHER, LETTER, NUMBER, SPACE = range(4)


@functools.cache
def character_classes() -> CodePointTable:
    """Return the class of each code point: `OTHER`, `LETTER`, `NUMBER` or `SPACE`."""
    classes = np.full(0x110000, OTHER, np.uint8)
    for class_, runs in (
        (LETTER, unicode_tables.LETTERS),
        (NUMBER, unicode_tables.NUMBERS),
        (SPACE, unicode_tables.WHITESPACE),
    ):
        classes[members(runs)] = class_
    return CodePointTable(classes)


class GPT2Words:
    r"""Split texts into words with GPT-2's pattern.

    The pattern is `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. RE2, which
    TensorFlow uses, has no lookahead, but a few neighbours of a character determine whether it starts a word:

    - consecutive letters, consecutive numbers and consecutive other characters form a word;
    - a space U+0020 before a word belongs to it;
    - of several white space characters before a word, the last is separate from the others;
    - an apostrophe that would start a word forms a contraction with s, t, re, ve, m, ll or d.

    Args:
        individual_digits: whether each number is a word, and the pattern is applied to the text between numbers, as in
            StarCoder and SmolLM 2.
    """

    def __init__(self, individual_digits: bool = False) -> None:
        self._individual_digits = individual_digits
        self._classes = character_classes()

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Split strings (B,) of valid UTF-8 into words, strings (B, None), whose concatenation is the text."""
        ragged = tf.strings.unicode_decode(texts, "UTF-8")
        codes, text_rows = ragged.values, ragged.value_rowids()
        classes, rows = self._classes(codes), text_rows
        if self._individual_digits:
            number = classes == NUMBER
            parts = row_starts(text_rows) | number | shifted(number, 1, False)
            rows = tf.cumsum(tf.cast(parts, rows.dtype))
        first = row_starts(rows)
        before = shifted(classes, 1, SPACE)
        space, after_space = classes == SPACE, before == SPACE
        joined = shifted(codes == ord(" "), 1, False)
        last_space = ~shifted(space, -1, True) & ~shifted(first, -1, True)  # a word follows in the same row
        short, long = contractions(codes, rows, first | (before != OTHER) & ~joined)
        inside = shifted(short | long, 1, False) | shifted(long, 2, False)
        after = shifted(short, 2, False) | shifted(long, 3, False)
        starts = tf.where(
            space, ~after_space | last_space, ((classes != before) & ~joined | after) & ~inside | short | long
        )
        return cut(codes, text_rows, first | starts, ragged.nrows())


def contractions(codes: tf.Tensor, rows: tf.Tensor, free: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return masks (N,) of the starts of 's, 't, 'm, 'd and of 're, 've, 'll, among the positions in `free`."""
    here = (codes == ord("'")) & free

    def following(by: int, letters: str) -> tf.Tensor:
        same_row = shifted(rows, -by, -1) == rows
        matches = [shifted(codes, -by, 0) == ord(letter) for letter in letters]
        return tf.reduce_any(tf.stack(matches), axis=0) & same_row

    long = following(1, "rv") & following(2, "e") | following(1, "l") & following(2, "l")
    return here & following(1, "stmd"), here & long
