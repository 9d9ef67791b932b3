"""Batches of stored rows, in an order that is a function of seed and epoch.

An order gives the rows of a batch, an objective makes inputs and labels of them, and `batches.batches` makes a dataset
of both. To resume in the middle of an epoch, only the numbers of the epoch and the batch have to be stored. Shuffling
needs no buffer: a cipher computes single entries of a permutation.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np

from keras_transformer_options.arguments import check, is_integer

Seeds = tuple[int, ...]
"""Integers that are not negative, for `np.random.default_rng`, less than 2⁶³."""

_BLOCK = 1024  # entries of a permutation that are computed together
_ROUNDS = 12  # of the cipher that permutes; with 8, permutations of few numbers are less uniform
_ROUND_NUMBERS = np.arange(_ROUNDS, dtype=np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_HALF, _ONE = np.uint64(32), np.uint64(1)


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

    def begin(self) -> tuple[int, int]:
        """Return the epoch of the iteration that begins, and its first batch."""
        epoch, batch = self._positions["current"] = self._positions["next"]
        self._positions["next"] = epoch + 1, 0
        return epoch, batch

    def end(self) -> None:
        """End the iteration, so that `current` has all batches of its epoch."""
        self._positions["current"] = self.current[0], 0


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
        """Return the number of rows, of `count`, that an epoch draws, integers or arrays of them.

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
        lengths: the length of each side; `None` if all batches have one length.
        seed: the seed of the worker's shard of this batch.
        epoch_seed: the seed of the epoch.
    """

    rows: np.ndarray
    lengths: Sequence[int] | None
    seed: Seeds
    epoch_seed: Seeds


Rows = tuple[np.ndarray, Sequence[int] | None]
"""`Batch.rows` and `Batch.lengths`."""
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

    def __call__(self, number: int, seeds: Seeds) -> Rows:
        """Return the rows of a batch.

        Args:
            number: the number of the batch.
            seeds: the seed and the number of the epoch.
        """

    def of_each_shape(self) -> Iterable[Rows]:
        """Yield the rows of batches of every shape that occurs."""


class RowOrder:
    """The order of rows that are all of one length.

    Args:
        rows: the number of rows in an epoch.
        batch_size: B, the number of rows in each batch; the last may be smaller.
        shuffle: whether to reshuffle in each epoch.
        shard: the worker's shard of each batch.
        complete: whether workers with fewer rows in the last batch get rows of padding. Otherwise up to
            `shard.count - 1` rows are dropped, different ones in each epoch.
        last: the last batch: "even" if workers share its rows evenly, "padded" if each then completes them to B rows
            with rows of padding, "full" if the first workers have B rows and the others rows of padding.
        permutation: see `shuffled`.
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
        last: Literal["even", "padded", "full"] = "even",
        permutation: int = 0,
    ) -> None:
        self.count, self.shard = shard.batches(rows, batch_size, complete), shard
        self._drawn = shard.drawn(rows, complete)
        self._rows, self._batch_size, self._shuffle = rows, batch_size, shuffle
        self._last, self._permutation = last, permutation

    def __call__(self, number: int, seeds: Seeds) -> Rows:
        """Return the rows of a batch, −1 for padding."""
        first = number * self._batch_size * self.shard.count
        size = self._batch_size
        if self._last != "full":
            size = min(size, -(-(self._drawn - first) // self.shard.count))
        start = first + self.shard.index * size
        end = max(start, min(start + size, self._drawn))
        if self._shuffle:
            rows = shuffled(start, end, seeds, self._rows, self._permutation)
        else:  # drop the last rows in the first epoch, the rows before them in the next
            rows, dropped = np.arange(start, end), self._rows - self._drawn
            rows = np.where(rows < self._drawn - seeds[1] * dropped % (self._drawn + 1), rows, rows + dropped)
        length = size if self._last == "even" else self._batch_size
        return np.concatenate([rows, np.full(length - len(rows), -1)]), None

    def of_each_shape(self) -> Iterable[Rows]:
        """Yield the rows of the first and of the last batch."""
        return (self(number, (0, 0)) for number in (0, self.count - 1))


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

    def __call__(self, number: int, seeds: Seeds) -> Rows:
        """Return the rows of a batch."""
        parts = self.shard.index * self._batch_size + np.arange(self._batch_size)
        rows = parts * self.count + number
        return np.where(rows < self._rows, rows, -1), None

    def of_each_shape(self) -> Iterable[Rows]:
        """Yield the rows of the first batch."""
        yield self(0, (0, 0))


def shuffled(start: int, end: int, seeds: Seeds, count: int, permutation: int = 0) -> np.ndarray:
    """Return the numbers from `start` up to `end`, exclusive, mapped by a random permutation of [0, count).

    Args:
        start: the first number.
        end: the last number plus 1, at most `count`.
        seeds: the seed and the number of the epoch.
        count: the size of the permutation.
        permutation: the index of the permutation within the epoch.

    Returns:
        int64 (end - start,).
    """
    first = start // _BLOCK
    blocks = [_block(number, seeds, count, permutation) for number in range(first, -(-end // _BLOCK))]
    return np.concatenate([np.zeros(0, np.int64), *blocks])[start - first * _BLOCK :][: end - start]


@functools.lru_cache(maxsize=64)
def _block(number: int, seeds: Seeds, count: int, permutation: int) -> np.ndarray:
    """Return the n-th block of a permutation: computed together, its entries take a tenth of the time."""
    numbers = np.arange(number * _BLOCK, min((number + 1) * _BLOCK, count))
    return permuted(numbers, seeds, count, permutation)


def permuted(numbers: np.ndarray, seeds: Seeds, count: Any, permutation: Any) -> np.ndarray:
    """Map numbers by random permutations, without a buffer.

    A permutation is a Feistel network: a number is written with two digits, to each of which a hash of the other is
    added in turn. The digits also write a few numbers from `count` on; these are mapped again until one is less.

    Args:
        numbers: integers (n,).
        seeds: the seed and the number of the epoch.
        count: the size of the permutation, or one size for each number, integers (n,).
        permutation: the index of the permutation within the epoch, or one index for each number, integers (n,).

    Returns:
        int64 (n,).

    References:
        Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002): a generalised Feistel cipher and cycle
        walking.
    """
    sizes = np.atleast_1d(count).astype(np.uint64)
    first_base = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    second_base = (sizes + first_base - _ONE) // first_base
    key = np.zeros(1, np.uint64)
    for part in (*seeds, permutation):
        key = _hashed(key + np.atleast_1d(np.asarray(part, np.int64)).view(np.uint64))
    keys = _hashed(_ROUND_NUMBERS + key)  # (rounds, 1) or (rounds, n)

    def mapped(values: np.ndarray) -> np.ndarray:
        first, second = np.divmod(values, second_base)
        for first_key, second_key in zip(keys[::2], keys[1::2], strict=True):
            first = (first + _hashed(second + first_key)) % first_base
            second = (second + _hashed(first + second_key)) % second_base
        return first * second_base + second

    values = mapped(numbers.astype(np.uint64))
    while (outside := values >= sizes).any():
        values = np.where(outside, mapped(values), values)
    return values.astype(np.int64)


def _hashed(values: np.ndarray) -> np.ndarray:
    """Return hashes of 32 bits, uint64, by the multiplications and shifts of SplitMix64."""
    mixed = values * _MULTIPLIERS[0]
    mixed ^= mixed >> _HALF
    mixed *= _MULTIPLIERS[1]
    mixed >>= _HALF
    return mixed
