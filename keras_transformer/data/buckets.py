"""Buckets of lengths: few static shapes, little padding."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_positive

_MULTIPLE = 8


def choose_lengths(lengths: np.ndarray, count: int, limit: int) -> tuple[int, ...]:
    """Chooses the bucket lengths that need the least padding, by dynamic programming.

    Args:
        lengths: The lengths of the rows, int (n,), n > 0 and none above `limit`.
        count: How many buckets there may be.
        limit: The longest length there may be.

    Returns:
        At most `count` increasing lengths, multiples of 8 or `limit` itself; the last covers the longest row.

    Example:
        >>> choose_lengths(np.array([3, 5, 30]), 2, 128)
        (8, 32)
    """
    rounded = np.minimum(-(-lengths // _MULTIPLE) * _MULTIPLE, limit)
    candidates, rows = np.unique(rounded, return_counts=True)  # (m,), (m,)
    below = np.concatenate([[0], np.cumsum(rows)])  # rows of the first i candidates
    # cells[i]: the fewest cells, padding included, for the first i candidates with the buckets used so far.
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
    """Checks the argument `length_buckets`.

    Args:
        length_buckets: How many buckets, or their lengths.
        max_length: The longest length there may be.

    Returns:
        The lengths, or `None` where they are to be chosen.

    Raises:
        ValueError: If it is neither a positive integer nor increasing positive integers up to `max_length`.
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
    """Some rows of one bucket, and how many of them there are in an epoch.

    Attributes:
        indices: Which of a bucket's rows, int (n,), n > 0: places in `Buckets.rows`.
        number: How many; more than n where rows come again, only after all of them were there.
    """

    indices: np.ndarray
    number: int

    def draw(self, seed: int | None) -> tf.data.Dataset:
        """An epoch's, other ones in each where there is a seed."""
        with tf.device("CPU:0"):  # a data set's functions cannot read a GPU's memory
            dataset = tf.data.Dataset.from_tensor_slices(tf.constant(self.indices, tf.int64))
        if seed is not None:
            dataset = dataset.shuffle(len(self.indices), seed=seed, reshuffle_each_iteration=True)
        return dataset.repeat().take(self.number)


class Buckets(NamedTuple):
    """Which rows belong together, and how they are batched.

    Attributes:
        rows: Which rows of the data are used, int (n,).
        bucket_of_row: The bucket of each of them, int (n,).
        lengths: The length of each bucket, int (k,).
        batch_sizes: How many rows each batch of a bucket has, int (k,).
    """

    rows: np.ndarray
    bucket_of_row: np.ndarray
    lengths: np.ndarray
    batch_sizes: np.ndarray

    def batches(self, seed: int | None, shares: Sequence["Share"] = ()) -> tf.data.Dataset:
        """Makes batches of row numbers; every row is in one of them, once an epoch, unless there are `shares`.

        Args:
            seed: Which orders; `None` keeps the order of the rows within each bucket.
            shares: How many of which rows there are in an epoch.

        Returns:
            A dataset of `(rows, length)`, int64 (B,) and (): rows of one bucket, filled up with -1, and the
            bucket's length. Its cardinality is known.
        """
        count = sum(share.number for share in shares) or len(self.rows)
        with tf.device("CPU:0"):  # a data set's functions cannot read a GPU's memory
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
        # Where all buckets agree, the static shape is known to Keras and the compiler from the start.
        static_size = int(self.batch_sizes[0]) if len(set(self.batch_sizes.tolist())) == 1 else None

        def filled(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
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
        return dataset.map(filled).apply(tf.data.experimental.assert_cardinality(cardinality))
