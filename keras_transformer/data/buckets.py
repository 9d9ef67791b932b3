"""Buckets: batches of rows of similar length, with few static shapes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.data.epochs import Shard, rows_of_batch, shuffled
from keras_transformer.data.ragged_rows import gathered


class Buckets(NamedTuple):
    """The assignment of rows to buckets, and the shape of the batches of each bucket.

    Attributes:
        rows: the indices of the n rows that are in a bucket, int64 (n,), by bucket, then by part of the dataset, in
            their order.
        sizes: the number of rows of each of k buckets and m parts, integers (k, m).
        shapes: the lengths of each side of each bucket, integers (k, sides): source and target for pairs.
        batch_sizes: the batch size of each bucket, integers (k,).
        content: the rows or a hash of them, for `Epochs.fingerprint`.
    """

    rows: np.ndarray
    sizes: np.ndarray
    shapes: np.ndarray
    batch_sizes: np.ndarray
    content: Sequence[np.ndarray | str]

    def batches(
        self, shuffle: bool, shard: Shard, numbers: np.ndarray | None = None, complete: bool = True
    ) -> "BucketBatches":
        """Divide the rows of an epoch into batches.

        Args:
            shuffle: whether rows and batches are shuffled. Otherwise the batches of the first bucket come first, and
                rows keep their order within each bucket.
            shard: the part of each batch.
            numbers: the number of rows that an epoch draws from each bucket and part, integers (k, m); by default
                each row is drawn once. Rows repeat after all of theirs have occurred.
            complete: whether rows of padding complete the last batch of each bucket. Otherwise it is smaller, and up to
                `shard.count - 1` rows of each bucket, different ones in each epoch, are left out.
        """
        return BucketBatches(self, self.sizes if numbers is None else numbers, shuffle, shard, complete)


class BucketBatches:
    """The batches of an epoch, each with rows of one bucket.

    Args:
        buckets: the buckets.
        numbers: the number of rows per epoch of each bucket and part, integers (k, m).
        shuffle: whether rows and batches are shuffled.
        shard: the part of each batch.
        complete: whether rows of padding complete the last batch of each bucket.

    Attributes:
        count: the number of batches in an epoch.
        static_lengths: the length of each side in all batches, `None` if there are several.
        content: for `Epochs.fingerprint`.

    Raises:
        ValueError: if there is no batch, as there are less rows than workers.
    """

    def __init__(
        self, buckets: Buckets, numbers: np.ndarray, shuffle: bool, shard: Shard, complete: bool
    ) -> None:
        drawn = numbers.sum(axis=1)  # (k,) rows per epoch
        count_of_bucket = shard.batches(drawn, buckets.batch_sizes, complete)
        self.count = int(count_of_bucket.sum())
        self._shuffle, self._shard, self._complete = shuffle, shard, complete
        # If all buckets have the same batch size, it is a static shape for Keras and the compiler.
        sizes = set(buckets.batch_sizes.tolist())
        self._static_size = sizes.pop() if len(sizes) == 1 and complete else None
        self.static_lengths = [
            lengths[0] if len(set(lengths)) == 1 else None for lengths in buckets.shapes.T.tolist()
        ]
        self._rows, self.content = buckets.rows, [*buckets.content, numbers]
        with tf.device("CPU:0"):  # functions of a dataset cannot read GPU memory
            self._shapes, self._sizes = (
                tf.constant(each, tf.int64) for each in (buckets.shapes, buckets.batch_sizes)
            )
            self._drawn, self._first_batch = tf.constant(drawn), _starts(count_of_bucket)
            # The parts of a bucket follow each other.
            self._first_of_bucket = _starts(drawn)
            self._first_of_part = _starts(numbers.reshape(-1))
            self._part_sizes, self._part_start = (
                tf.constant(buckets.sizes.reshape(-1)),
                _starts(buckets.sizes.reshape(-1)),
            )

    def __call__(self, number: tf.Tensor, seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return a batch of row indices, -1 for padding, and the bucket's shape, int64 (B,) and (sides,).

        Args:
            number: the number of the batch, int64 ().
            seeds: the seeds of the epoch, int64 (2,).
        """
        place = shuffled(number, seeds, self.count) if self._shuffle else number
        bucket = _last_not_after(self._first_batch, place)
        size = self._sizes[bucket]
        numbers = rows_of_batch(
            place - self._first_batch[bucket],
            seeds,
            self._drawn[bucket],
            size,
            self._shuffle,
            self._shard,
            self._complete,
            full=self._complete,
            purpose=1 + bucket,
        )
        drawn = self._draw(self._first_of_bucket[bucket] + tf.maximum(numbers, 0), seeds)
        rows = tf.where(numbers >= 0, drawn, -1)
        return tf.ensure_shape(rows, [self._static_size]), self._shapes[bucket]

    def _draw(self, numbers: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """Return the rows of numbers that count the rows of all parts, int64 (B,)."""
        part = _last_not_after(self._first_of_part, numbers)
        size = tf.gather(self._part_sizes, part)
        numbers -= tf.gather(self._first_of_part, part)
        within = numbers % size
        if self._shuffle:  # each pass over each part in an order of its own
            within = shuffled(within, seeds, size, -1 - part - numbers // size * 2**16)
        return gathered(self._rows, tf.gather(self._part_start, part) + within)


def _starts(sizes: np.ndarray) -> tf.Tensor:
    """Return where each of several contiguous parts starts."""
    return tf.constant(np.cumsum(sizes) - sizes)


def _last_not_after(starts: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Return the index of the last start that is at most each number, int64, of the shape of `numbers`."""
    found = tf.searchsorted(starts, tf.reshape(numbers, [-1]), side="right", out_type=tf.int64) - 1
    return tf.reshape(found, tf.shape(numbers))
