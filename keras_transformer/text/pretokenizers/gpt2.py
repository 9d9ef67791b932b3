"""GPT-2's pattern in the TensorFlow graph, which splits text into words that include the space before them."""

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

_OTHER, _LETTER, _NUMBER, _SPACE = range(4)


class GPT2Words:
    r"""Split texts into words with GPT-2's pattern.

    The pattern is `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. RE2, which
    TensorFlow uses, has no lookahead, but a few neighbours of a character determine whether it starts a word:

    - consecutive letters, consecutive numbers and consecutive other characters form a word;
    - a space U+0020 before a word belongs to it;
    - of several white space characters before a word, the last is separate from the others;
    - an apostrophe that would start a word forms a contraction with s, t, re, ve, m, ll or d.
    """

    def __init__(self) -> None:
        classes = np.full(0x110000, _OTHER, np.uint8)
        for class_, runs in (
            (_LETTER, unicode_tables.LETTERS),
            (_NUMBER, unicode_tables.NUMBERS),
            (_SPACE, unicode_tables.WHITESPACE),
        ):
            classes[members(runs)] = class_
        self._classes = CodePointTable(classes)

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Split strings (B,) of valid UTF-8 into words, strings (B, None), whose concatenation is the text."""
        ragged = tf.strings.unicode_decode(texts, "UTF-8")
        codes, rows = ragged.values, ragged.value_rowids()
        classes, first = self._classes(codes), row_starts(rows)
        before = shifted(classes, 1, _SPACE)
        space, after_space = classes == _SPACE, before == _SPACE
        joined = shifted(codes == ord(" "), 1, False)
        last_space = ~shifted(space, -1, True) & ~shifted(first, -1, True)  # a word follows in the same row
        short, long = _contractions(codes, rows, first | (before != _OTHER) & ~joined)
        inside = shifted(short | long, 1, False) | shifted(long, 2, False)
        after = shifted(short, 2, False) | shifted(long, 3, False)
        starts = tf.where(
            space, ~after_space | last_space, ((classes != before) & ~joined | after) & ~inside | short | long
        )
        return cut(codes, rows, first | starts, ragged.nrows())


def _contractions(codes: tf.Tensor, rows: tf.Tensor, free: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return masks (N,) of the starts of 's, 't, 'm, 'd and of 're, 've, 'll, among the positions in `free`."""
    here = (codes == ord("'")) & free

    def following(by: int, letters: str) -> tf.Tensor:
        same_row = shifted(rows, -by, -1) == rows
        matches = [shifted(codes, -by, 0) == ord(letter) for letter in letters]
        return tf.reduce_any(tf.stack(matches), axis=0) & same_row

    long = following(1, "rv") & following(2, "e") | following(1, "l") & following(2, "l")
    return here & following(1, "stmd"), here & long
