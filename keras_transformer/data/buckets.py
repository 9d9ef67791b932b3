"""Length buckets: few static shapes with little padding."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_positive, check_positive_integer
from keras_transformer.data.epochs import shuffled

_MULTIPLE = 8
_BATCH_SIZE = 64


def choose_lengths(lengths: np.ndarray, count: int, limit: int) -> tuple[int, ...]:
    """Choose bucket lengths that minimize the padding, by dynamic programming.

    Args:
        lengths: the lengths of the rows, integers (n,) of at most `limit`, n > 0.
        count: the maximum number of buckets.
        limit: the maximum length.

    Returns:
        At most `count` increasing lengths, each a multiple of 8 or `limit`; the last one fits the longest row.

    Example:
        >>> choose_lengths(np.array([3, 5, 30]), 2, 128)
        (8, 32)
    """
    rounded = np.minimum(-(-lengths // _MULTIPLE) * _MULTIPLE, limit)
    candidates, rows = np.unique(rounded, return_counts=True)  # (m,), (m,)
    below = np.concatenate([[0], np.cumsum(rows)])  # rows of the first i candidates
    # cells[i]: the fewest positions, including padding, for the first i candidates with the buckets used so far.
    cells = np.where(np.arange(len(candidates) + 1) == 0, 0, np.inf)
    choices = []
    for _ in range(min(count, len(candidates))):
        # cost[j, i]: a bucket of length candidates[i-1] for the candidates j+1 to i.
        cost = cells[:, None] + (below[None, 1:] - below[:, None]) * candidates[None, :]
        cost[np.arange(len(cells))[:, None] > np.arange(len(candidates))[None, :]] = np.inf
        choices.append(np.argmin(cost, axis=0))
        cells = np.concatenate([[0], np.min(cost, axis=0)])
    chosen, end = [], len(candidates)
    for choice in reversed(choices):
        if end:
            chosen.append(int(candidates[end - 1]))
            end = int(choice[end - 1])
    return tuple(reversed(chosen))


def check_lengths(length_buckets: int | Sequence[int], max_length: int) -> tuple[int, ...] | None:
    """Validate the argument `length_buckets`.

    Args:
        length_buckets: the number of buckets, or their lengths.
        max_length: the maximum length.

    Returns:
        The lengths, or `None` if only their number is given.

    Raises:
        ValueError: if it is neither a positive integer nor increasing positive integers up to `max_length`.
    """
    if isinstance(length_buckets, int):
        check_positive(length_buckets=length_buckets)
        return None
    lengths = tuple(length_buckets)
    increasing = all(isinstance(length, int) for length in lengths) and all(
        shorter < longer for shorter, longer in zip((0, *lengths), lengths, strict=False)
    )
    if not lengths or not increasing or lengths[-1] > max_length:
        raise ValueError(
            "`length_buckets` must be a positive integer or increasing lengths up to "
            f"max_length={max_length}. Received: length_buckets={length_buckets!r}"
        )
    return lengths


class Share(NamedTuple):
    """A subset of a bucket's rows, and the number of rows that an epoch draws from it.

    Attributes:
        indices: indices into `Buckets.rows`, all of one bucket, integers (n,), n > 0.
        number: the number of rows per epoch; if it exceeds n, rows repeat after all of them have occurred.
    """

    indices: np.ndarray
    number: int


class Buckets(NamedTuple):
    """The assignment of rows to length buckets, and the batch size of each bucket.

    Attributes:
        rows: the indices of the n rows of the dataset that are in a bucket, integers (n,).
        bucket_of_row: the bucket of each of these rows, integers (n,).
        lengths: the length of each of k buckets, integers (k,).
        batch_sizes: the batch size of each bucket, integers (k,).
    """

    rows: np.ndarray
    bucket_of_row: np.ndarray
    lengths: np.ndarray
    batch_sizes: np.ndarray

    def batches(self, shuffle: bool, shares: Sequence[Share] = ()) -> "BucketBatches":
        """Divide the rows of an epoch into batches.

        Args:
            shuffle: whether rows and batches are shuffled. Otherwise the batches of the shortest bucket come first,
                and rows keep their order within each bucket.
            shares: the subsets from which the rows of an epoch are drawn; by default each row is drawn once.
        """
        if not shares:
            each = (np.flatnonzero(self.bucket_of_row == bucket) for bucket in range(len(self.lengths)))
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
        drawn = np.bincount(bucket_of_share, numbers, len(buckets.lengths)).astype(
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
            self._lengths, self._sizes = (tf.constant(each, tf.int64) for each in buckets[2:])
            self._drawn, self._first_batch = tf.constant(drawn), _starts(count_of_bucket)
            self._first_drawn, self._first_of_share = _starts(drawn), _starts(numbers)
            self._share_sizes, self._share_start = tf.constant(share_sizes), _starts(share_sizes)

    def __call__(self, number: tf.Tensor, seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return a batch of row indices, padded with -1, and the bucket's length, int64 (B,) and ().

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
        return tf.ensure_shape(rows, [self._static_size]), self._lengths[bucket]

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


class Shapes(NamedTuple):
    """The possible shapes of batches.

    Attributes:
        rows_of: a function from a length to the number of rows in a batch.
        lengths: the lengths, or `None` if they have to be chosen.
        count: the maximum number of lengths.
        limit: the maximum length.
    """

    rows_of: Callable[[int], int]
    lengths: tuple[int, ...] | None
    count: int
    limit: int

    @classmethod
    def of(
        cls,
        batch_size: int | None,
        batch_tokens: int | None,
        max_length: int,
        length_buckets: int | Sequence[int],
    ) -> Self:
        """Validate arguments of `translation_pairs`, and create the shapes from them."""
        rows_of = _rows_of(batch_size, batch_tokens)
        lengths = check_lengths(length_buckets, max_length)
        count = length_buckets if isinstance(length_buckets, int) else len(length_buckets)
        return cls(rows_of, lengths, count, lengths[-1] if lengths else max_length)

    def buckets(self, row_lengths: np.ndarray, kept: np.ndarray) -> Buckets:
        """Assign the rows with indices `kept` to buckets, by the lengths of all rows (n,)."""
        needed = row_lengths[kept]
        lengths = self.lengths or choose_lengths(needed, self.count, self.limit)
        return Buckets(
            rows=kept,
            bucket_of_row=np.searchsorted(lengths, needed),
            lengths=np.array(lengths),
            batch_sizes=np.array([self.rows_of(length) for length in lengths]),
        )


def _rows_of(batch_size: int | None, batch_tokens: int | None) -> Callable[[int], int]:
    for argument, size in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if size is not None:
            check_positive_integer(**{argument: size})
    if batch_tokens is None:
        return lambda length: batch_size or _BATCH_SIZE
    if batch_size is not None:
        raise ValueError(
            "`batch_size` and `batch_tokens` must not both be given. "
            f"Received: batch_size={batch_size}, batch_tokens={batch_tokens}"
        )
    return lambda length: max(1, batch_tokens // length)
