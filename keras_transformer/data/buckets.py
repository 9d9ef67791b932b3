"""Buckets: batches of rows of similar length, with few static shapes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.data.epochs import shuffled


class Share(NamedTuple):
    """A subset of a bucket's rows, and the number of rows that an epoch draws from it.

    Attributes:
        indices: indices into `Buckets.rows`, all of one bucket, integers (n,), n > 0.
        number: the number of rows per epoch; if it exceeds n, rows repeat after all of them have occurred.
    """

    indices: np.ndarray
    number: int


class Buckets(NamedTuple):
    """The assignment of rows to buckets, and the shape of the batches of each bucket.

    Attributes:
        rows: the indices of the n rows of the dataset that are in a bucket, integers (n,).
        bucket_of_row: the bucket of each of these rows, integers (n,).
        shapes: the lengths of each side of k buckets, integers (k, sides): source and target for pairs.
        batch_sizes: the batch size of each bucket, integers (k,).
    """

    rows: np.ndarray
    bucket_of_row: np.ndarray
    shapes: np.ndarray
    batch_sizes: np.ndarray

    def batches(self, shuffle: bool, shares: Sequence[Share] = ()) -> "BucketBatches":
        """Divide the rows of an epoch into batches.

        Args:
            shuffle: whether rows and batches are shuffled. Otherwise the batches of the first bucket come first, and
                rows keep their order within each bucket.
            shares: the subsets from which the rows of an epoch are drawn; by default each row is drawn once.
        """
        if not shares:
            each = (np.flatnonzero(self.bucket_of_row == bucket) for bucket in range(len(self.shapes)))
            shares = [Share(indices, len(indices)) for indices in each if len(indices)]
        return BucketBatches(
            self, sorted(shares, key=lambda share: self.bucket_of_row[share.indices[0]]), shuffle
        )


class BucketBatches:
    """The batches of an epoch, each with rows of one bucket.

    Args:
        buckets: the buckets.
        shares: the subsets from which rows are drawn, ordered by bucket.
        shuffle: whether rows and batches are shuffled.
    """

    def __init__(self, buckets: Buckets, shares: Sequence[Share], shuffle: bool) -> None:
        bucket_of_share = [int(buckets.bucket_of_row[share.indices[0]]) for share in shares]
        numbers = np.array([share.number for share in shares])
        drawn = np.bincount(bucket_of_share, numbers, len(buckets.shapes)).astype(
            np.int64
        )  # (k,) rows per epoch
        count_of_bucket = -(-drawn // buckets.batch_sizes)
        self.count, self._shuffle = int(count_of_bucket.sum()), shuffle
        # If all buckets have the same batch size, it is a static shape for Keras and the compiler.
        sizes = set(buckets.batch_sizes.tolist())
        self._static_size = sizes.pop() if len(sizes) == 1 else None
        self.content = np.concatenate([buckets.rows[share.indices] for share in shares])
        share_sizes = np.array([len(share.indices) for share in shares])
        with tf.device("CPU:0"):  # functions of a dataset cannot read GPU memory
            self._rows = tf.constant(self.content, tf.int64)
            self._shapes, self._sizes = (tf.constant(each, tf.int64) for each in buckets[2:])
            self._drawn, self._first_batch = tf.constant(drawn), _starts(count_of_bucket)
            self._first_drawn, self._first_of_share = _starts(drawn), _starts(numbers)
            self._share_sizes, self._share_start = tf.constant(share_sizes), _starts(share_sizes)

    def __call__(self, number: tf.Tensor, seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return a batch of row indices, padded with -1, and the bucket's shape, int64 (B,) and (sides,).

        Args:
            number: the number of the batch, int64 ().
            seeds: the seeds of the epoch, int64 (2,).
        """
        place = shuffled(number, seeds, self.count) if self._shuffle else number
        bucket = _last_not_after(self._first_batch, place)
        size, drawn = self._sizes[bucket], self._drawn[bucket]
        first = (place - self._first_batch[bucket]) * size
        rows = tf.range(first, tf.minimum(first + size, drawn))
        if self._shuffle:
            rows = shuffled(rows, seeds, drawn, 1 + bucket)
        rows = self._draw(self._first_drawn[bucket] + rows, seeds)
        rows = tf.pad(rows, [[0, size - tf.size(rows, out_type=tf.int64)]], constant_values=-1)
        return tf.ensure_shape(rows, [self._static_size]), self._shapes[bucket]

    def _draw(self, numbers: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """Return the rows of numbers that count the rows of all shares, int64 (B,)."""
        share = _last_not_after(self._first_of_share, numbers)
        size = tf.gather(self._share_sizes, share)
        numbers -= tf.gather(self._first_of_share, share)
        within = numbers % size
        if self._shuffle:  # each pass over each share in an order of its own
            within = shuffled(within, seeds, size, -1 - share - numbers // size * 2**16)
        return tf.gather(self._rows, tf.gather(self._share_start, share) + within)


def _starts(sizes: np.ndarray) -> tf.Tensor:
    """Return where each of several contiguous parts starts."""
    return tf.constant(np.cumsum(sizes) - sizes)


def _last_not_after(starts: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Return the index of the last start that is at most each number, int64, of the shape of `numbers`."""
    found = tf.searchsorted(starts, tf.reshape(numbers, [-1]), side="right", out_type=tf.int64) - 1
    return tf.reshape(found, tf.shape(numbers))
