"""Length buckets: few static shapes with little padding."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_positive, check_positive_integer
from keras_transformer.data.epochs import Shard, shuffled
from keras_transformer.data.ragged_rows import gathered
from keras_transformer.data.storage import Arrays

# The lengths of the rows from one index to before another, integers.
RowLengths = Callable[[int, int], np.ndarray]

_CHUNK = 2**18  # rows whose lengths are in memory at a time
_MULTIPLE = 8
_BATCH_SIZE = 64


def choose_lengths(
    lengths: np.ndarray, count: int, limit: int, numbers: np.ndarray | None = None
) -> tuple[int, ...]:
    """Choose bucket lengths that minimize the padding, by dynamic programming.

    Args:
        lengths: the lengths of the rows, integers (n,) of at most `limit`, n > 0.
        count: the maximum number of buckets.
        limit: the maximum length.
        numbers: the number of rows of each of these lengths, (n,); by default one each.

    Returns:
        At most `count` increasing lengths, each a multiple of 8 or `limit`; the last one fits the longest row.

    Example:
        >>> choose_lengths(np.array([3, 5, 30]), 2, 128)
        (8, 32)
    """
    rounded = np.minimum(-(-lengths // _MULTIPLE) * _MULTIPLE, limit)
    candidates, candidate_of = np.unique(rounded, return_inverse=True)  # (m,), (n,)
    rows = np.bincount(candidate_of, numbers)  # (m,)
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


class Buckets(NamedTuple):
    """The assignment of rows to length buckets, and the batch size of each bucket.

    Attributes:
        rows: the indices of the n rows that are in a bucket, int64 (n,), by bucket, then by part of the dataset, in
            their order.
        sizes: the number of rows of each of k buckets and m parts, integers (k, m).
        lengths: the length of each bucket, integers (k,).
        batch_sizes: the batch size of each bucket, integers (k,).
        content: the rows or a hash of them, for `Epochs.fingerprint`.
    """

    rows: np.ndarray
    sizes: np.ndarray
    lengths: np.ndarray
    batch_sizes: np.ndarray
    content: Sequence[np.ndarray | str]

    def batches(
        self, shuffle: bool, shard: Shard, numbers: np.ndarray | None = None, complete: bool = True
    ) -> "BucketBatches":
        """Divide the rows of an epoch into batches.

        Args:
            shuffle: whether rows and batches are shuffled. Otherwise the batches of the shortest bucket come first,
                and rows keep their order within each bucket.
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
        static_length: the length of all batches, `None` if there are several.
        content: for `Epochs.fingerprint`.

    Raises:
        ValueError: if there is no batch, as there are less rows than workers.
    """

    def __init__(
        self, buckets: Buckets, numbers: np.ndarray, shuffle: bool, shard: Shard, complete: bool
    ) -> None:
        drawn = numbers.sum(axis=1)  # (k,) rows per epoch
        if not complete:
            drawn = shard.divisible(drawn)
        count_of_bucket = shard.batches(drawn, buckets.batch_sizes)
        self.count = int(count_of_bucket.sum())
        shard.check_not_empty(self.count)
        self._shuffle, self._shard, self._complete = shuffle, shard, complete
        # If all buckets have the same batch size, it is a static shape for Keras and the compiler.
        sizes = set(buckets.batch_sizes.tolist())
        self._static_size = sizes.pop() if len(sizes) == 1 and complete else None
        self.static_length = int(buckets.lengths[0]) if len(buckets.lengths) == 1 else None
        self._rows, self.content = buckets.rows, [*buckets.content, numbers]
        with tf.device("CPU:0"):  # functions of a dataset cannot read GPU memory
            self._lengths, self._sizes = (
                tf.constant(each, tf.int64) for each in (buckets.lengths, buckets.batch_sizes)
            )
            self._drawn, self._first_batch = tf.constant(drawn), _starts(count_of_bucket)
            # The parts of a bucket follow each other.
            self._first_of_bucket = _starts(numbers.sum(axis=1))
            self._first_of_part = _starts(numbers.reshape(-1))
            self._part_sizes, self._part_start = (
                tf.constant(buckets.sizes.reshape(-1)),
                _starts(buckets.sizes.reshape(-1)),
            )

    def __call__(self, number: tf.Tensor, seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return a batch of row indices, -1 for padding, and the bucket's length, int64 (B,) and ().

        Args:
            number: the number of the batch, int64 ().
            seeds: the seeds of the epoch, int64 (2,).
        """
        place = shuffled(number, seeds, self.count) if self._shuffle else number
        bucket = _last_not_after(self._first_batch, place)
        size, drawn = self._sizes[bucket], self._drawn[bucket]
        numbers = self._shard.rows(place - self._first_batch[bucket], size, drawn)
        present = numbers < drawn
        numbers = tf.minimum(numbers, drawn - 1)
        if self._shuffle:
            numbers = shuffled(numbers, seeds, drawn, 1 + bucket)
        rows = tf.where(present, self._draw(self._first_of_bucket[bucket] + numbers, seeds), -1)
        if self._complete:
            rows = tf.pad(rows, [[0, size - tf.size(rows, out_type=tf.int64)]], constant_values=-1)
        return tf.ensure_shape(rows, [self._static_size]), self._lengths[bucket]

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

    def buckets(
        self, arrays: Arrays, row_lengths: RowLengths, histograms: np.ndarray, ends: Sequence[int]
    ) -> Buckets:
        """Assign the rows that are short enough to buckets, in chunks.

        Args:
            arrays: the arrays of the dataset, with which the assignment is stored.
            row_lengths: the lengths of the rows.
            histograms: the result of `length_histograms`.
            ends: the index after the last row of each of m parts of the dataset.
        """
        fitting = histograms[:, :-1].sum(axis=0)
        present = np.flatnonzero(fitting)
        lengths = np.array(self.lengths or choose_lengths(present, self.count, self.limit, fitting[present]))
        bucket_of_length = np.searchsorted(lengths, np.arange(histograms.shape[1]))  # the last: too long
        sizes = np.stack(
            [histograms[:, bucket_of_length == bucket].sum(axis=1) for bucket in range(len(lengths))]
        )
        chunks = (
            {"rows": start + np.flatnonzero(bucket_of_length[needed] == bucket)}
            for bucket in range(len(lengths))
            for part_start, part_end in itertools.pairwise([0, *ends])
            for start, needed in self._chunks(row_lengths, part_start, part_end)
        )
        rows = arrays.derived(chunks, lengths=lengths.tolist(), ends=list(map(int, ends)))
        return Buckets(
            rows=rows["rows"],
            sizes=sizes,
            lengths=lengths,
            batch_sizes=np.array([self.rows_of(int(length)) for length in lengths]),
            content=rows.content,
        )

    def length_histograms(self, row_lengths: RowLengths, ends: Sequence[int]) -> np.ndarray:
        """Count the rows of each length in each of m parts of the dataset.

        Returns:
            Integers (m, limit + 2), the last for all rows that are too long.
        """
        counts = np.zeros((len(ends), self.limit + 2), np.int64)
        for part, (start, end) in enumerate(itertools.pairwise([0, *ends])):
            for _, needed in self._chunks(row_lengths, start, end):
                counts[part] += np.bincount(needed, minlength=self.limit + 2)
        return counts

    def _chunks(self, row_lengths: RowLengths, start: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
        for first in range(start, end, _CHUNK):
            yield first, np.minimum(row_lengths(first, min(first + _CHUNK, end)), self.limit + 1)


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
