"""Length buckets: few static shapes with little padding."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_positive

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

    def draw(self, seed: int | None) -> tf.data.Dataset:
        """Return a dataset of one epoch's indices, reshuffled in each epoch if a seed is given."""
        with tf.device("CPU:0"):  # functions of a dataset cannot read GPU memory
            dataset = tf.data.Dataset.from_tensor_slices(tf.constant(self.indices, tf.int64))
        if seed is not None:
            dataset = dataset.shuffle(len(self.indices), seed=seed, reshuffle_each_iteration=True)
        return dataset.repeat().take(self.number)


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

    def batches(self, seed: int | None, shares: Sequence["Share"] = ()) -> tf.data.Dataset:
        """Return batches of row indices, with each row once per epoch unless `shares` are given.

        Args:
            seed: the seed of shuffling; `None` keeps the order of the rows within each bucket.
            shares: the subsets from which the rows of an epoch are drawn.

        Returns:
            A dataset of `(rows, length)`, int64 (B,) and (): rows of one bucket, padded with -1, and the bucket's
            length. Its cardinality is known.
        """
        count = sum(share.number for share in shares) or len(self.rows)
        with tf.device("CPU:0"):  # functions of a dataset cannot read GPU memory
            rows, bucket_of_row, lengths, batch_sizes = (tf.constant(each, tf.int64) for each in self)
        dataset = tf.data.Dataset.range(count)
        if shares:
            drawn = [share.draw(seed) for share in shares]
            dataset = functools.reduce(tf.data.Dataset.concatenate, drawn)
        if seed is not None:
            dataset = dataset.shuffle(count, seed=seed, reshuffle_each_iteration=True)
        dataset = dataset.group_by_window(
            key_func=lambda index: tf.gather(bucket_of_row, index),
            reduce_func=lambda bucket, window: window.batch(tf.gather(batch_sizes, bucket)),
            window_size_func=lambda bucket: tf.gather(batch_sizes, bucket),
        )
        # If all buckets have the same batch size, it is a static shape for Keras and the compiler.
        static_size = int(self.batch_sizes[0]) if len(set(self.batch_sizes.tolist())) == 1 else None

        def pad(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            bucket = tf.gather(bucket_of_row, indices[0])
            missing = tf.gather(batch_sizes, bucket) - tf.size(indices, out_type=tf.int64)
            padded = tf.pad(tf.gather(rows, indices), [[0, missing]], constant_values=-1)
            return tf.ensure_shape(padded, [static_size]), tf.gather(lengths, bucket)

        used = np.bincount(self.bucket_of_row, minlength=len(self.lengths))
        if shares:
            places = [self.bucket_of_row[share.indices[0]] for share in shares]
            numbers = [share.number for share in shares]
            used = np.bincount(places, weights=numbers, minlength=len(self.lengths)).astype(np.int64)
        cardinality = int(np.sum(-(-used // self.batch_sizes)))
        return dataset.map(pad).apply(tf.data.experimental.assert_cardinality(cardinality))


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
            check_positive(**{argument: size})
    if batch_tokens is None:
        return lambda length: batch_size or _BATCH_SIZE
    if batch_size is not None:
        raise ValueError(
            "`batch_size` and `batch_tokens` must not both be given. "
            f"Received: batch_size={batch_size}, batch_tokens={batch_tokens}"
        )
    return lambda length: max(1, batch_tokens // length)
