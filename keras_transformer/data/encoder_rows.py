"""Batches of the inputs of an encoder with a head, as its pipeline makes them from texts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.data.epochs import Shard, batches
from keras_transformer.data.ragged_rows import RowsToStore, gathered
from keras_transformer.data.shapes import Shapes
from keras_transformer.data.storage import Arrays
from keras_transformer.data.token_lists import check_special_ids, token_lists
from keras_transformer_options.arguments import check_at_least

Batches = tf.data.Dataset
Labels = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

_SMALLEST_LENGTH = 5  # start, text, end, text, end


class Tokenizer(Protocol):
    """The interface required of a tokenizer, as in `keras_transformer.text`."""

    pad_id: int
    start_id: int
    end_id: int

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Convert a string tensor (B,) to int32 ids (B, None) without special ids."""


class EncoderRow(NamedTuple):
    """The ids of one text, or two texts with segments 0 and 1, with special ids.

    Attributes:
        ids: "start text end" or "start text end text end".
        boundary: the number of ids of segment 0.
    """

    ids: list[int]
    boundary: int

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, first: Sequence[int], second: Sequence[int] | None = None
    ) -> "EncoderRow":
        """Add special ids to the ids of one text or two."""
        ids = [tokenizer.start_id, *first, tokenizer.end_id]
        return cls(ids if second is None else [*ids, *second, tokenizer.end_id], len(ids))


def checked_shapes(
    tokenizer: Tokenizer, batch_size: int, max_length: int, length_buckets: int | Sequence[int]
) -> Shapes:
    """Validate arguments, and return the shapes of batches."""
    check_special_ids("tokenizer", tokenizer, ("pad_id", "start_id", "end_id"))
    check_at_least(_SMALLEST_LENGTH, max_length=max_length)
    shapes = Shapes.of_rows(batch_size, max_length, length_buckets)
    check_at_least(_SMALLEST_LENGTH, length_buckets=shapes.limit)
    return shapes


def rows_to_store(rows: Sequence[EncoderRow]) -> dict[str, np.ndarray | RowsToStore]:
    """Return rows as the arrays that `encoder_batches` reads."""
    return {
        "ids": RowsToStore.of_lists([row.ids for row in rows]),
        "boundaries": np.array([row.boundary for row in rows], np.int64),
    }


def encoder_batches(
    arrays: Arrays,
    labels: Labels,
    shapes: Shapes,
    pad_id: int,
    *,
    shuffle: bool,
    seed: int,
    shard: Shard,
    complete: bool = False,
) -> Batches:
    """Make batches of rows of similar length.

    Args:
        arrays: those of `rows_to_store`, of rows of at most `shapes.limit` ids, and the labels.
        labels: a function from the indices of rows (B,), −1 for a row of padding, and the length L of the batch to
            their labels.
        shapes: the shapes of batches.
        pad_id: the padding value of ids.
        shuffle: whether to reshuffle in each epoch. Otherwise rows keep their order within each length.
        seed: the seed of shuffling.
        shard: the part of each batch.
        complete: whether to complete the last batch of each length with rows of padding, which losses must ignore;
            otherwise it is smaller.

    Returns:
        A dataset of known cardinality with elements `({"token_ids": (B, L), "segment_ids": (B, L)}, labels)`, int32.
    """
    ids, ends = arrays.rows("ids"), [arrays.rows("ids").count]

    def row_lengths(start: int, end: int) -> np.ndarray:
        return ids.lengths(start, end)[:, None]

    buckets = shapes.buckets(arrays, row_lengths, shapes.count_lengths(row_lengths, ends), ends)
    rows_of = buckets.batches(shuffle, shard, complete=complete)
    static = [None, *rows_of.static_lengths]

    def batch(number: tf.Tensor, seeds: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        indices, shape = rows_of(number, seeds)
        length = shape[0]
        token_ids, lengths = ids.gather(indices, length)
        position = tf.range(length)
        second = position >= gathered(arrays["boundaries"], tf.maximum(indices, 0))[:, None]
        inputs = {
            "token_ids": tf.where(position < lengths, token_ids, pad_id),
            "segment_ids": tf.cast(second & (position < lengths), tf.int32),
        }
        inputs = {name: tf.ensure_shape(each, static) for name, each in inputs.items()}
        return inputs, labels(indices, length)

    return batches(rows_of.count, batch, seed, [*arrays.content, *rows_of.content], shard)


def ids_of_words(words: Iterable[str], tokenizer: Tokenizer) -> Mapping[str, list[int]]:
    """Return the ids of each distinct word, as pipelines tokenise words one by one."""
    distinct = list(dict.fromkeys(words))
    return dict(zip(distinct, token_lists(distinct, tokenizer), strict=True))


def windows(length: int, room: int) -> list[tuple[int, int]]:
    """Return the first index of each window, and the one after its last, as in pipelines with `long_texts="window"`.

    Args:
        length: the number of ids of a text.
        room: the maximum number in a window; windows overlap by half of it.
    """
    beyond, stride = max(length - room, 0), max(room - room // 2, 1)
    starts = (min(number * stride, beyond) for number in range(1 + -(-beyond // stride)))
    return [(start, start + min(length, room)) for start in starts]
