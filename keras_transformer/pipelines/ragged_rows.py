"""Rows of ids and of texts, and their errors, as TensorFlow operations."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from keras_transformer.lazy_tensorflow import tf
from keras_transformer.typing import Tensor
from keras_transformer_serving.pipelines import languages


def valid_utf8(text: Tensor) -> Tensor:
    """Replace invalid UTF-8 by U+FFFD."""
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")


def utf8_error(**texts: Tensor) -> Tensor:
    """Return an error (B,) for each row in which a text (B,) is not UTF-8, "" for none."""
    errors = (
        tf.where(valid_utf8(text) == text, "", f"`{name}` must be UTF-8. Received: other bytes")
        for name, text in texts.items()
    )
    return first_error(*errors)


def first_error(*errors: Tensor) -> Tensor:
    """Return the first non-empty error of each row, strings (B,)."""
    return functools.reduce(lambda error, other: tf.where(error == "", other, error), errors)


def accepted_rows(rows: tf.RaggedTensor, error: Tensor) -> tf.RaggedTensor:
    """Empty the rows (B, None) that have an error (B,)."""
    return tf.ragged.boolean_mask(rows, rows.with_values(tf.repeat(error == "", rows.row_lengths())))


def first_ids(rows: tf.RaggedTensor, counts: Tensor) -> tf.RaggedTensor:
    """Return the first `counts` (B,) ids of each row (B, None)."""
    counts = tf.cast(counts, rows.row_splits.dtype)[:, None]
    return tf.ragged.boolean_mask(rows, tf.ragged.range(rows.row_lengths()) < counts)


def first_lengths(first: Tensor, second: Tensor, limit: int) -> Tensor:
    """Return the number of ids to keep of each first text (B,) if pairs are truncated, the longer text first.

    Args:
        first: the number of ids of each first text (B,).
        second: the number of ids of each second text (B,), which gets the rest of `limit`.
        limit: the maximum number of ids of a pair.
    """
    limit = max(limit, 0)
    if_longer = tf.minimum(first, limit - tf.minimum(second, limit // 2))
    return tf.where(first > second, if_longer, tf.minimum(first, limit // 2))


def padded(rows: tf.RaggedTensor, padding_value: int) -> Tensor:
    """Pad rows (B, None) to the longest, (B, L) with L ≥ 1, even if all rows are empty."""
    dense = rows.to_tensor(padding_value)
    missing = tf.maximum(1 - tf.shape(dense)[1], 0)
    return tf.pad(dense, [[0, 0], [0, missing]], constant_values=padding_value)


def joined(*parts: int | tf.RaggedTensor) -> tf.RaggedTensor:
    """Concatenate ragged rows and columns of single ids."""
    rows = next(part for part in parts if isinstance(part, tf.RaggedTensor)).nrows()
    return tf.concat(
        [part if isinstance(part, tf.RaggedTensor) else tf.fill([rows, 1], part) for part in parts], axis=1
    )


def lengths_of(rows: tf.RaggedTensor) -> Tensor:
    """Return the number of ids of each row, int32 (B,)."""
    return tf.cast(rows.row_lengths(), tf.int32)


def ids_of_names(argument: str, names: Tensor, known: Mapping[str, int]) -> tuple[Tensor, Tensor]:
    """Return the ids of names (B,), such as languages, int32, and the errors of those that are not known."""
    is_known = names[:, None] == tf.constant(list(known))  # (B, number of names)
    ids = tf.gather(tf.constant(list(known.values())), tf.argmax(tf.cast(is_known, tf.int32), axis=1))
    received = tf.where(names == "", "none", valid_utf8(names))
    unknown = tf.strings.join([languages.expectation(argument, known), received])
    return ids, tf.where(tf.reduce_any(is_known, axis=1), "", unknown)
