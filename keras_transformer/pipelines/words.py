"""The words of texts, as TensorFlow operations."""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.text.pretokenizers import characters
from keras_transformer.typing import Tensor

_SPACES = [code for code in range(0x110000) if chr(code).isspace()]


class Words(NamedTuple):
    """The words of texts, ragged (B, None), with the indices of their first characters and after their last ones."""

    text: tf.RaggedTensor
    start: tf.RaggedTensor
    end: tf.RaggedTensor


def words_of(text: Tensor) -> Words:
    """Split texts (B,) into words at white space."""
    codes = tf.strings.unicode_decode(text, "UTF-8")  # (B, None)
    rows = codes.value_rowids()
    place = tf.cast(tf.range(tf.size(rows, tf.int64)) - tf.gather(codes.row_starts(), rows), tf.int32)
    space = tf.reduce_any(codes.values[:, None] == tf.constant(_SPACES), axis=1)
    new_row = characters.row_starts(rows)
    starts = ~space & (new_row | characters.shifted(space, 1, True))
    ends = ~space & (characters.shifted(new_row, -1, True) | characters.shifted(space, -1, True))
    kept = (tf.boolean_mask(values, ~space) for values in (codes.values, rows, starts))
    words = characters.cut(*kept, codes.nrows())
    return Words(
        words,
        words.with_values(tf.boolean_mask(place, starts)),
        words.with_values(tf.boolean_mask(place, ends) + 1),
    )
