"""Batches by number, in an order that is a function of seed and epoch.

Nothing but the numbers of an epoch and a batch has to be stored to continue an epoch in its middle, and no buffer is
needed to shuffle: TensorFlow's `RandomIndexShuffle` computes each place of a permutation by itself.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

_PREFETCHED = 4  # as many as fit next to a training step; each is small
_ROUNDS = 8  # of the cipher that permutes; with 4, permutations of few numbers are less uniform


class Epochs:
    """The position of a dataset in its epochs.

    Each iteration of the dataset is one epoch, the first is epoch 0.

    Attributes:
        count: the number of batches in an epoch.
        fingerprint: a hash of the seed and of the data.
    """

    def __init__(self, count: int, fingerprint: str) -> None:
        self.count, self.fingerprint = count, fingerprint
        self._next = [(0, 0)]  # a list, which copies of this object share

    def start_at(self, epoch: int, batch: int = 0) -> None:
        """Start the next iteration of the dataset in an epoch, after its first `batch` batches.

        The iterations after it are the following epochs from their first batch. TensorFlow raises an error if an
        iteration with fewer batches than the cardinality is continued after its last one.
        """
        if epoch < 0 or not 0 <= batch < self.count:
            raise ValueError(
                f"`epoch` must not be negative and `batch` must be in [0, {self.count}). "
                f"Received: epoch={epoch}, batch={batch}"
            )
        self._next[0] = epoch, batch

    def begin(self) -> tuple[np.int64, np.int64]:
        """Return the epoch of the iteration that begins, and its first batch."""
        epoch, batch = self._next[0]
        self._next[0] = epoch + 1, 0
        return np.int64(epoch), np.int64(batch)


def batches(
    count: int,
    batch: Callable[[tf.Tensor, tf.Tensor], Any],
    seed: int,
    content: Iterable[np.ndarray | tf.Tensor],
) -> tf.data.Dataset:
    """Make a dataset of batches by number.

    Args:
        count: the number of batches in an epoch.
        batch: a function from the number of a batch, int64 (), and the seeds of the epoch, int64 (2,), to a batch.
        seed: the first of the two seeds; the second is the number of the epoch.
        content: what the batches are made of, for `Epochs.fingerprint`.

    Returns:
        The dataset, with its `Epochs` as the attribute `epochs`.
    """
    digest = hashlib.blake2b(f"{count} {seed}".encode(), digest_size=16)
    for each in content:
        array = np.ascontiguousarray(each)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.data if array.size else b"")
    epochs = Epochs(count, digest.hexdigest())

    def numbers(_: tf.Tensor) -> tf.data.Dataset:
        epoch, first = tf.numpy_function(epochs.begin, [], (tf.int64, tf.int64), stateful=True)
        first = tf.ensure_shape(first, ())
        seeds = tf.stack([tf.constant(seed, tf.int64), tf.ensure_shape(epoch, ())])
        return tf.data.Dataset.range(first, count).map(lambda number: (number, seeds))

    dataset = tf.data.Dataset.range(1).flat_map(numbers).map(batch, tf.data.AUTOTUNE, deterministic=True)
    dataset = prefetched(dataset.apply(tf.data.experimental.assert_cardinality(count)))
    dataset.epochs = epochs
    return dataset


def prefetched(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Prefetch the batches of a dataset, without autotuning.

    With autotuning, TensorFlow (2.20 and 2.21) only ends an epoch when its tuner next wakes, at 1.3, 2.6, 5.1, …,
    82 seconds after the start and then each minute: an epoch of 21 seconds takes 41.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(_PREFETCHED).with_options(options)


def shuffled(
    numbers: tf.Tensor, seeds: tf.Tensor, count: int | tf.Tensor, purpose: int | tf.Tensor = 0
) -> tf.Tensor:
    """Return the places of numbers in a random permutation of [0, count).

    Args:
        numbers: int64 (n,) or (), in [0, count).
        seeds: the seeds of the epoch, int64 (2,).
        count: the number of places, or that of each permutation, int64 (n,).
        purpose: the number of the permutation among those of one epoch, or a number for each place, int64 (n,).

    Returns:
        int64, of the shape of `numbers`.
    """
    purpose = tf.cast(purpose, tf.int64)
    seed = tf.stack(
        [tf.broadcast_to(each, tf.shape(purpose)) for each in (seeds[0], seeds[1], purpose)], axis=-1
    )
    # The function of `tf.random` does not take a seed for each number.
    return tf.raw_ops.RandomIndexShuffle(
        index=numbers, seed=seed, max_index=tf.cast(count, tf.int64) - 1, rounds=_ROUNDS
    )


def rows_of_batch(
    number: tf.Tensor, seeds: tf.Tensor, count: int, batch_size: int, shuffle: bool
) -> tf.Tensor:
    """Return the indices of the rows of a batch, int64 (B,), in an order of `count` rows; the last may be smaller."""
    rows = tf.range(number * batch_size, tf.minimum((number + 1) * batch_size, count))
    return shuffled(rows, seeds, count) if shuffle else rows


def batch_seed(number: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """Return the seed of what is random in a batch, int64 (2,)."""
    return tf.random.experimental.stateless_fold_in(seeds, number)
