"""GPT-2's pattern in the TensorFlow graph: text is cut into words that begin with their space."""

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
    r"""Cuts texts into words as the pattern of GPT-2 does.

    The pattern is `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. RE2, which
    TensorFlow has, knows no lookahead; but whether a word starts at a character depends on few characters
    around it:

    - a word goes on while letters, numbers or others follow their like;
    - a space U+0020 in front of them belongs to them;
    - of several white spaces in front of a word the last stands apart from the others;
    - an apostrophe at which a word would start makes one with s, t, re, ve, m, ll or d.
    """

    def __init__(self) -> None:
        kinds = np.full(0x110000, _OTHER, np.uint8)
        for kind, runs in (
            (_LETTER, unicode_tables.LETTERS),
            (_NUMBER, unicode_tables.NUMBERS),
            (_SPACE, unicode_tables.WHITESPACE),
        ):
            kinds[members(runs)] = kind
        self._kinds = CodePointTable(kinds)

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Strings (B,) of valid UTF-8 → words, strings (B, None), which joined are the text."""
        ragged = tf.strings.unicode_decode(texts, "UTF-8")
        codes, rows = ragged.values, ragged.value_rowids()
        kinds, first = self._kinds(codes), row_starts(rows)
        before = shifted(kinds, 1, _SPACE)
        space, after_space = kinds == _SPACE, before == _SPACE
        joined = shifted(codes == ord(" "), 1, False)
        last_space = ~shifted(space, -1, True) & ~shifted(first, -1, True)  # a word follows in the same row
        short, long = _contractions(codes, rows, first | (before != _OTHER) & ~joined)
        inside = shifted(short | long, 1, False) | shifted(long, 2, False)
        behind = shifted(short, 2, False) | shifted(long, 3, False)
        starts = tf.where(
            space, ~after_space | last_space, ((kinds != before) & ~joined | behind) & ~inside | short | long
        )
        return cut(codes, rows, first | starts, ragged.nrows())


def _contractions(codes: tf.Tensor, rows: tf.Tensor, free: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Where 's, 't, 'm, 'd and where 're, 've, 'll start, (N,) each, among the places that are `free` for one."""
    here = (codes == ord("'")) & free

    def following(by: int, letters: str) -> tf.Tensor:
        same_row = shifted(rows, -by, -1) == rows
        found = [shifted(codes, -by, 0) == ord(letter) for letter in letters]
        return tf.reduce_any(tf.stack(found), axis=0) & same_row

    long = following(1, "rv") & following(2, "e") | following(1, "l") & following(2, "l")
    return here & following(1, "stmd"), here & long
