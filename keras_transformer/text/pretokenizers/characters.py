"""Code points in the TensorFlow graph: lookup tables, and functions that split rows of code points into words."""

from typing import Any

import numpy as np
import tensorflow as tf

_NUMBER = 0x110000
_BLOCK = 128


def members(runs: str) -> np.ndarray:
    """Decode a set of code points of `unicode_tables`.

    Args:
        runs: run lengths in base 36: the number of code points outside the set, then inside it, and so on.

    Returns:
        Booleans (0x110000,).
    """
    lengths = [int(number, 36) for number in runs.split()]
    inside = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
    return np.pad(inside, (0, _NUMBER - len(inside)))


class CodePointTable:
    """A lookup table with one number per code point, stored as distinct blocks of 128 numbers and their offsets.

    Args:
        values: integers (0x110000,).
    """

    def __init__(self, values: np.ndarray):
        blocks: dict[bytes, int] = {}
        places = [blocks.setdefault(block.tobytes(), len(blocks)) for block in values.reshape(-1, _BLOCK)]
        with tf.init_scope(), tf.device("CPU"):
            self._values = tf.constant(np.frombuffer(b"".join(blocks), values.dtype))
            self._places = tf.constant(np.array(places) * _BLOCK, tf.int32)

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        """Return the numbers of int32 code points, of the same shape."""
        return tf.gather(self._values, tf.gather(self._places, codes // _BLOCK) + codes % _BLOCK)


def shifted(values: tf.Tensor, by: int, fill: Any) -> tf.Tensor:
    """Shift values by `by` positions, to the right if positive, to the left if negative.

    Args:
        values: (N,).
        by: the number of positions.
        fill: the padding value.

    Returns:
        The shifted values, (N,).
    """
    padding = tf.fill([abs(by)], tf.cast(fill, values.dtype))
    if by > 0:
        return tf.concat([padding, values], axis=0)[:-by]
    return tf.concat([values, padding], axis=0)[-by:]


def row_starts(rows: tf.Tensor) -> tf.Tensor:
    """Return a mask of the values that start a new row.

    Args:
        rows: the row of each value, ascending, (N,).

    Returns:
        Booleans (N,).
    """
    return rows != shifted(rows, 1, -1)


def cut(codes: tf.Tensor, rows: tf.Tensor, starts: tf.Tensor, num_rows: tf.Tensor) -> tf.RaggedTensor:
    """Split rows of code points into words.

    Args:
        codes: the code points of all rows, int32 (N,).
        rows: the row of each code point, ascending, (N,).
        starts: a mask of the code points that start a word, (N,); the first code point of a row must start one.
        num_rows: B, the number of rows.

    Returns:
        Strings (B, None).
    """
    word_rows = tf.boolean_mask(rows, starts)
    word = tf.cumsum(tf.cast(starts, tf.int64)) - 1
    words = tf.RaggedTensor.from_value_rowids(codes, word, tf.size(word_rows, tf.int64), validate=False)
    return tf.RaggedTensor.from_value_rowids(
        tf.strings.unicode_encode(words, "UTF-8"), word_rows, num_rows, validate=False
    )


def tokenize_once(words: tf.RaggedTensor, tokenize: Any) -> tf.RaggedTensor:
    """Tokenise each distinct word once.

    Args:
        words: strings (B, None).
        tokenize: a function of strings (W,) to int32 ids (W, None).

    Returns:
        int32 `tf.RaggedTensor` (B, None), the concatenated ids of the words of each row.
    """
    distinct, places = tf.unique(words.values)
    return words.with_values(tf.gather(tokenize(distinct), places)).merge_dims(1, 2)
