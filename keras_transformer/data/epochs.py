"""Batches of stored rows, in an order that is a function of seed and epoch.

An order gives the rows of a batch, an objective makes inputs and labels of them, and `batches` makes a dataset of both.
To resume in the middle of an epoch, only the numbers of the epoch and the batch have to be stored. Shuffling needs no
buffer: TensorFlow's `RandomIndexShuffle` computes single entries of a permutation.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import tensorflow as tf

from keras_transformer_options.arguments import check, is_integer

_PREFETCHED = 4  # batches
_ROUNDS = 8  # of the cipher that permutes; with 4, permutations of few numbers are less uniform


class Epochs:
    """The position of a dataset in its epochs.

    Each iteration of the dataset is one epoch, the first is epoch 0. The models of this package start `fit` with the
    next epoch, or with `initial_epoch`.

    Attributes:
        count: the number of batches in an epoch.
        fingerprint: a hash of the seed and of the data.
        nondeterministic_tokenizer: the class name of a tokenizer whose sampler takes no seed, or "" if an epoch can be
            reproduced.
    """

    def __init__(self, count: int, fingerprint: str, nondeterministic_tokenizer: str = "") -> None:
        self.count, self.fingerprint = count, fingerprint
        self.nondeterministic_tokenizer = nondeterministic_tokenizer
        self._positions = {"next": (0, 0), "current": (0, 0)}  # copies of this object share it

    @property
    def next_epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._positions["next"][0]

    @property
    def current(self) -> tuple[int, int]:
        """The epoch of the last iteration that has begun, and its first batch."""
        return self._positions["current"]

    def start_at(self, epoch: int, batch: int = 0) -> None:
        """Start the next iteration of the dataset in an epoch, after its first `batch` batches.

        Later iterations start at the first batch of the following epochs. TensorFlow raises an error if an iteration
        with fewer batches than the cardinality is continued after its last batch.
        """
        if epoch < 0 or not 0 <= batch < self.count:
            raise ValueError(
                f"`epoch` must not be negative and `batch` must be in [0, {self.count}). "
                f"Received: epoch={epoch}, batch={batch}"
            )
        self._positions["next"] = epoch, batch

    def begin(self) -> tuple[np.int64, np.int64]:
        """Return the epoch of the iteration that begins, and its first batch."""
        epoch, batch = self._positions["current"] = self._positions["next"]
        self._positions["next"] = epoch + 1, 0
        return np.int64(epoch), np.int64(batch)


class Shard(NamedTuple):
    """The shard of each batch that one of several workers reads.

    An epoch has the batches of a single worker with `count` times the batch size; worker i reads the i-th shard of
    each. So all workers have batches of equal shapes at every step, which concatenate to the single worker's batch.

    Attributes:
        index: the number of the worker, from 0.
        count: the number of workers.
    """

    index: int = 0
    count: int = 1

    @classmethod
    def of(cls, shard: tuple[int, int] | None) -> Self:
        """Validate the argument `shard`; `None` is a single worker."""
        if shard is None:
            return cls()
        pair = isinstance(shard, tuple | list) and len(shard) == 2 and all(map(is_integer, shard))
        expectation = "be (index, count), the number of a worker from 0 and the number of workers, or None"
        check(pair and 0 <= shard[0] < shard[1], expectation, shard=shard)
        return cls(int(shard[0]), int(shard[1]))

    def drawn(self, count: Any, complete: bool) -> Any:
        """Return the number of rows, of `count`, that an epoch draws, integers or tensors.

        Args:
            count: the number of rows.
            complete: whether to complete batches with rows of padding, whose labels losses and metrics must ignore.
                Otherwise up to `self.count - 1` rows are dropped, so that all workers have the same number.
        """
        return count if complete else count - count % self.count

    def batches(self, count: Any, batch_size: Any, complete: bool = True) -> Any:
        """Return the number of batches of an epoch of `count` rows, integers or arrays of them.

        Raises:
            ValueError: if there is none, because there are fewer rows than workers.
        """
        number = -(-self.drawn(count, complete) // (batch_size * self.count))
        if not np.any(number):
            raise ValueError(
                f"`shard` must leave a row for each worker. Received: {self.count} workers for fewer rows"
            )
        return number


class Batch(NamedTuple):
    """The rows of a batch, from which an objective makes inputs and labels.

    Attributes:
        rows: the indices of rows, int64 (B,), −1 for a row of padding.
        lengths: the length of each side, int64 (sides,); `None` if all batches have one length.
        seed: the seed of the worker's shard of this batch, int64 (2,).
        epoch_seed: the seed of the epoch, int64 (2,).
    """

    rows: tf.Tensor
    lengths: tf.Tensor | None
    seed: tf.Tensor
    epoch_seed: tf.Tensor


Objective = Callable[[Batch], tuple[Any, Any]]


class Order(Protocol):
    """The rows of each batch of an epoch.

    Attributes:
        count: the number of batches in an epoch.
        shard: the worker's shard of each batch.
        content: the values that the order depends on beside the rows, for `Epochs.fingerprint`.
    """

    count: int
    shard: Shard
    content: Sequence[np.ndarray | str]

    def __call__(self, number: tf.Tensor, seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Return `Batch.rows` and `Batch.lengths`.

        Args:
            number: the number of the batch, int64 ().
            seeds: the seeds of the epoch, int64 (2,).
        """


class RowOrder:
    """The order of rows that are all of one length.

    Args:
        rows: the number of rows in an epoch.
        batch_size: B, the number of rows in each batch; the last may be smaller.
        shuffle: whether to reshuffle in each epoch.
        shard: the worker's shard of each batch.
        complete: whether workers with fewer rows in the last batch get rows of padding. Otherwise up to
            `shard.count - 1` rows are dropped, different ones in each epoch.
        padded: whether to complete the last batch to B rows with rows of padding.

    Raises:
        ValueError: if there are fewer rows than workers.
    """

    content: Sequence[np.ndarray | str] = ()

    def __init__(
        self,
        rows: int,
        batch_size: int,
        shuffle: bool,
        shard: Shard,
        *,
        complete: bool = True,
        padded: bool = False,
    ) -> None:
        self.count, self.shard = shard.batches(rows, batch_size, complete), shard
        self._rows, self._batch_size, self._shuffle = rows, batch_size, shuffle
        self._complete, self._padded = complete, padded

    def __call__(self, number: tf.Tensor, seeds: tf.Tensor) -> tuple[tf.Tensor, None]:
        """Return the indices of the rows of a batch, int64 (B,)."""
        rows = rows_of_batch(
            number, seeds, self._rows, self._batch_size, self._shuffle, self.shard, self._complete
        )
        if self._padded:
            rows = tf.pad(rows, [[0, self._batch_size - tf.size(rows)]], constant_values=-1)
            rows = tf.ensure_shape(rows, [self._batch_size])
        return rows, None


class ContiguousOrder:
    """The order of rows in which row b of each batch continues row b of the batch before.

    The rows are split into B parts of equal length (with several workers, into B for each), of which each batch has one
    row each; parts at the end are completed with rows of padding.

    Args:
        rows: the number of rows in an epoch.
        batch_size: B, the number of rows in each batch.
        shard: the worker's shard of each batch.
    """

    content: Sequence[np.ndarray | str] = ("contiguous",)

    def __init__(self, rows: int, batch_size: int, shard: Shard) -> None:
        self.count, self.shard = shard.batches(rows, batch_size), shard
        self._rows, self._batch_size = rows, batch_size

    def __call__(self, number: tf.Tensor, seeds: tf.Tensor) -> tuple[tf.Tensor, None]:
        """Return the indices of the rows of a batch, int64 (B,)."""
        parts = self.shard.index * self._batch_size + tf.range(self._batch_size, dtype=tf.int64)
        rows = parts * self.count + number
        return tf.where(rows < self._rows, rows, -1), None


def batches(
    order: Order,
    objective: Objective,
    seed: int,
    content: Iterable[np.ndarray | str],
    nondeterministic_tokenizer: str = "",
) -> tf.data.Dataset:
    """Make a dataset of batches, each a function of its number.

    Args:
        order: the rows of each batch.
        objective: a function from the rows of a batch to its inputs and labels.
        seed: the first of the two seeds; the second is the number of the epoch.
        content: the arrays that the batches are made of, or hashes of them, for `Epochs.fingerprint`.
        nondeterministic_tokenizer: see `Epochs`.

    Returns:
        The dataset, with its `Epochs` as the attribute `epochs`.

    Raises:
        ValueError: if `seed` is not an integer.
    """
    check(is_integer(seed), "be an integer", seed=seed)
    count, shard = order.count, order.shard
    digest = hashlib.blake2b(f"{count} {seed} {shard.count}".encode(), digest_size=16)
    for item in (*content, *order.content):
        if isinstance(item, str):
            digest.update(item.encode())
            continue
        array = np.ascontiguousarray(item)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.data if array.size else b"")
    epochs = Epochs(count, digest.hexdigest(), nondeterministic_tokenizer)

    def numbers(_: tf.Tensor) -> tf.data.Dataset:
        epoch, first = tf.numpy_function(epochs.begin, [], (tf.int64, tf.int64), stateful=True)
        first = tf.ensure_shape(first, ())
        seeds = tf.stack([tf.constant(seed, tf.int64), tf.ensure_shape(epoch, ())])
        return tf.data.Dataset.range(first, count).map(lambda number: (number, seeds))

    def batch(number: tf.Tensor, seeds: tf.Tensor) -> tuple[Any, Any]:
        part = number * shard.count + shard.index
        seed_of_batch = tf.random.experimental.stateless_fold_in(seeds, part)
        return objective(Batch(*order(number, seeds), seed_of_batch, seeds))

    dataset = tf.data.Dataset.range(1).flat_map(numbers).map(batch, tf.data.AUTOTUNE, deterministic=True)
    dataset = prefetched(dataset.apply(tf.data.experimental.assert_cardinality(count)))
    dataset.epochs = epochs
    return dataset


def prefetched(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Prefetch the batches of a dataset, without autotuning.

    With autotuning, TensorFlow (2.20 and 2.21) ends an epoch only when its tuner next wakes: 1.3, 2.6, 5.1, …, 82
    seconds after the start, then every minute. An epoch of 21 seconds takes 41.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(_PREFETCHED).with_options(options)


def shuffled(
    numbers: tf.Tensor, seeds: tf.Tensor, count: int | tf.Tensor, purpose: int | tf.Tensor = 0
) -> tf.Tensor:
    """Map numbers by a random permutation of [0, count).

    Args:
        numbers: int64 (n,) or (), in [0, count).
        seeds: the seeds of the epoch, int64 (2,).
        count: the size of the permutation, or one size for each number, int64 (n,).
        purpose: the index of the permutation within the epoch, or one index for each number, int64 (n,).

    Returns:
        int64, of the shape of `numbers`.
    """
    purpose = tf.cast(purpose, tf.int64)
    seed = tf.stack(
        [tf.broadcast_to(value, tf.shape(purpose)) for value in (seeds[0], seeds[1], purpose)], axis=-1
    )
    # `tf.random.experimental.index_shuffle` takes one seed for all numbers.
    return tf.raw_ops.RandomIndexShuffle(
        index=numbers, seed=seed, max_index=tf.cast(count, tf.int64) - 1, rounds=_ROUNDS
    )


def rows_of_batch(
    number: tf.Tensor,
    seeds: tf.Tensor,
    count: int | tf.Tensor,
    batch_size: int | tf.Tensor,
    shuffle: bool,
    shard: Shard,
    complete: bool,
    full: bool = False,
    purpose: int | tf.Tensor = 0,
) -> tf.Tensor:
    """Return the indices of the rows in a worker's shard of a batch, int64 (b,), out of `count` rows.

    Args:
        number: the number of the batch, int64 ().
        seeds: the seeds of the epoch, int64 (2,).
        count: the number of rows.
        batch_size: B, the number of rows of each worker.
        shuffle: whether to reshuffle in each epoch.
        shard: the worker's shard of each batch.
        complete: see `Shard.drawn`; −1 stands for a row of padding.
        full: whether to complete the last batch to B rows.
        purpose: see `shuffled`.

    Returns:
        B indices; in the last batch possibly fewer, but the same number for all workers.
    """
    drawn = shard.drawn(count, complete)
    first = number * batch_size * shard.count
    last = first + batch_size * shard.count
    if not full:
        last = tf.minimum(last, tf.cast(drawn, tf.int64))
    size = (last - first + shard.count - 1) // shard.count
    rows = first + shard.index * size + tf.range(size)
    present = tf.minimum(rows, drawn - 1)
    if shuffle:
        indices = shuffled(present, seeds, count, purpose)
    else:  # drop the last rows in the first epoch, the rows before them in the next
        dropped = count - drawn
        indices = tf.where(present < drawn - seeds[1] * dropped % (drawn + 1), present, present + dropped)
    return tf.where(rows < drawn, indices, -1)
