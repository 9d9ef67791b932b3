"""Buckets: batches of rows of similar length, of few static shapes."""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from keras_transformer.data.epochs import RowOrder, Rows, Seeds, Shard, permuted, shuffled
from keras_transformer.data.shape_search import Shape, choose_lengths, choose_shapes, first_fitting, ordered
from keras_transformer.data.storage import Arrays, gathered
from keras_transformer_options.arguments import check_positive, check_positive_integer, is_integer

LengthBuckets = int | Sequence[int] | Sequence[tuple[int, int]]
# A function of `start` and `end` that returns the lengths of these rows, integers (n, sides).
RowLengths = Callable[[int, int], np.ndarray]

_BATCH_SIZE = 64
_CHUNK = 2**18  # rows whose lengths are in memory at a time


class LengthCounts(NamedTuple):
    """The number of rows of each length, for each of the m parts of a dataset (the tasks of a mixture).

    Attributes:
        lengths: the distinct lengths that do not exceed the limit, integers (u, sides).
        rows: the number of rows of each length and part, integers (u, m).
        too_long: the number of longer rows of each part, integers (m,).
    """

    lengths: np.ndarray
    rows: np.ndarray
    too_long: np.ndarray


class Buckets(NamedTuple):
    """The assignment of rows to buckets, and the shape of the batches of each bucket.

    Attributes:
        rows: the indices of the n rows in buckets, int64 (n,), ordered by bucket, part of the dataset and index.
        sizes: the number of rows of each bucket and part, integers (k, m).
        shapes: the lengths of each side of each bucket, integers (k, sides): source and target for pairs.
        batch_sizes: the batch size of each bucket, integers (k,).
        content: the rows or a hash of them, for `Epochs.fingerprint`.
    """

    rows: np.ndarray
    sizes: np.ndarray
    shapes: np.ndarray
    batch_sizes: np.ndarray
    content: Sequence[np.ndarray | str]


class Shapes(NamedTuple):
    """The possible shapes of batches.

    Attributes:
        batch_size_of: a function from a shape, the length of each side, to the number of rows in a batch.
        fixed: the shapes that the user chose (k, sides), ordered; `None` to choose them by the lengths of the rows.
        count: the maximum number of shapes.
        limits: the maximum length of each side.
        multiple: the number of which chosen lengths are multiples.
    """

    batch_size_of: Callable[[Shape], int]
    fixed: np.ndarray | None
    count: int
    limits: Shape
    multiple: int

    @classmethod
    def of_rows(
        cls, batch_size: int, max_length: int, length_buckets: int | Sequence[int], multiple: int = 2
    ) -> Self:
        """Validate the arguments of functions whose batches have one length, and create the shapes from them."""
        check_positive_integer(pad_to_multiple_of=multiple)
        return cls._of(_batch_size_of(batch_size, None), max_length, length_buckets, 1, multiple)

    @classmethod
    def of_pairs(
        cls,
        batch_size: int | None,
        batch_tokens: int | None,
        max_length: int | tuple[int, int],
        length_buckets: LengthBuckets,
        multiple: int,
    ) -> Self:
        """Validate the arguments of `translation_pairs`, and create the shapes from them."""
        check_positive_integer(pad_to_multiple_of=multiple)
        return cls._of(_batch_size_of(batch_size, batch_tokens), max_length, length_buckets, 2, multiple)

    @classmethod
    def _of(
        cls,
        batch_size_of: Callable[[Shape], int],
        max_length: int | tuple[int, int],
        length_buckets: LengthBuckets,
        sides: int,
        multiple: int,
    ) -> Self:
        limits = tuple(max_length) if isinstance(max_length, tuple | list) else (max_length,) * sides
        for limit in limits:
            check_positive_integer(max_length=limit)
        if is_integer(length_buckets):
            check_positive(length_buckets=length_buckets)
            return cls(batch_size_of, None, length_buckets, limits, multiple)
        shapes = ordered(_checked(length_buckets, max(limits), sides))
        return cls(batch_size_of, shapes, len(shapes), tuple(shapes[-1].tolist()), multiple)

    @property
    def limit(self) -> int:
        """The maximum length of any side."""
        return max(self.limits)

    def fit(self, lengths: np.ndarray) -> np.ndarray:
        """Return a mask (n,) of the rows, of lengths (n, sides), that fit the largest shape."""
        return (lengths <= self.limits).all(axis=1)

    def count_lengths(self, row_lengths: RowLengths, ends: Sequence[int]) -> LengthCounts:
        """Count the rows of each length.

        Args:
            row_lengths: the lengths of the rows.
            ends: the end index of each of the m parts of the dataset.
        """
        base = self.limit + 1
        counts = [collections.Counter[int]() for _ in ends]
        too_long = np.zeros(len(ends), np.int64)
        for part, (start, end) in enumerate(itertools.pairwise([0, *ends])):
            for _, lengths in _chunks(row_lengths, start, end):
                fitting = lengths[self.fit(lengths)]
                codes, rows = np.unique(fitting @ base ** np.arange(len(self.limits)), return_counts=True)
                counts[part].update(dict(zip(codes.tolist(), rows.tolist(), strict=True)))
                too_long[part] += len(lengths) - len(fitting)
        codes = np.array(sorted(set().union(*counts)), np.int64)
        lengths = codes[:, None] // base ** np.arange(len(self.limits)) % base
        rows = np.array([[counter[code] for counter in counts] for code in codes.tolist()], np.int64)
        return LengthCounts(lengths, rows.reshape(len(codes), len(ends)), too_long)

    def buckets(
        self,
        arrays: Arrays,
        row_lengths: RowLengths,
        counts: LengthCounts,
        ends: Sequence[int],
        workers: int = 1,
        fewest_rows: int = 1,
    ) -> Buckets:
        """Assign each row to the first shape that it fits; drop longer rows.

        Args:
            arrays: the arrays of the dataset, with which the assignment is stored.
            row_lengths: the lengths of the rows.
            counts: the result of `count_lengths`.
            ends: the end index of each part of the dataset.
            workers: the number of workers that share the batches.
            fewest_rows: the minimum number of rows of a shape. A shape of fewer rows is removed, and its rows get the
                next shape that they fit.
        """
        shapes = self.fixed
        if shapes is None:
            shapes = self._chosen(counts.lengths, counts.rows.sum(axis=1), workers)
        shapes = _with_rows(shapes, counts, fewest_rows)
        bucket = first_fitting(counts.lengths, shapes)
        chunks = (
            {"rows": start + np.flatnonzero(first_fitting(lengths, shapes) == number)}
            for number in range(len(shapes))
            for part_start, part_end in itertools.pairwise([0, *ends])
            for start, lengths in _chunks(row_lengths, part_start, part_end)
        )
        rows = arrays.derived(chunks, shapes=shapes.tolist(), ends=list(map(int, ends)))
        return Buckets(
            rows=rows["rows"],
            sizes=np.stack([counts.rows[bucket == number].sum(axis=0) for number in range(len(shapes))]),
            shapes=shapes,
            batch_sizes=np.array([self.batch_size_of(tuple(shape)) for shape in shapes.tolist()]),
            content=rows.content,
        )

    def order(
        self, arrays: Arrays, row_lengths: RowLengths, count: int, shuffle: bool, shard: Shard, complete: bool
    ) -> "BucketOrder":
        """Assign `count` rows, none of them too long, to shapes, and return their order."""
        counts = self.count_lengths(row_lengths, [count])
        # Of fewer rows than workers, none would ever be drawn.
        buckets = self.buckets(
            arrays, row_lengths, counts, [count], fewest_rows=1 if complete else shard.count
        )
        return BucketOrder(buckets, shuffle, shard, complete=complete)

    def _chosen(self, lengths: np.ndarray, rows: np.ndarray, workers: int) -> np.ndarray:
        if len(self.limits) == 1:
            return np.array(choose_lengths(lengths[:, 0], self.count, self.limit, self.multiple, rows))[
                :, None
            ]
        options = self.count, self.limits, self.multiple, rows
        return np.array(choose_shapes(lengths, lambda shape: workers * self.batch_size_of(shape), *options))


class BucketOrder:
    """The order of rows in buckets: each batch has rows of one bucket.

    Args:
        buckets: the buckets.
        shuffle: whether rows and batches are shuffled. Otherwise the batches of the first bucket come first, and rows
            keep their order within each bucket.
        shard: the worker's shard of each batch.
        numbers: the number of rows that an epoch draws from each bucket and part, integers (k, m); by default each row
            is drawn once. If there are fewer rows, they repeat after all have been drawn.
        complete: whether to complete the last batch of each bucket with rows of padding. Otherwise it is smaller, and
            up to `shard.count - 1` rows of each bucket, different ones in each epoch, are dropped.

    Attributes:
        count: the number of batches in an epoch.
        shard: the worker's shard of each batch.
        content: for `Epochs.fingerprint`.
    """

    def __init__(
        self,
        buckets: Buckets,
        shuffle: bool,
        shard: Shard,
        numbers: np.ndarray | None = None,
        complete: bool = True,
    ) -> None:
        numbers = buckets.sizes if numbers is None else numbers
        drawn = numbers.sum(axis=1)  # (k,) rows per epoch
        count_of_bucket = shard.batches(drawn, buckets.batch_sizes, complete)
        self.count = int(count_of_bucket.sum())
        self.shard, self._shuffle = shard, shuffle
        # Reshuffle each part for every pass over it, unless there is one pass over all, which is in a random order.
        self._reshuffle = shuffle and not np.array_equal(numbers, buckets.sizes)
        self._rows, self.content = buckets.rows, [*buckets.content, numbers]
        self._shapes, self._first_batch = buckets.shapes.tolist(), _starts(count_of_bucket)
        self._orders = {
            bucket: RowOrder(
                int(drawn[bucket]),
                int(buckets.batch_sizes[bucket]),
                shuffle,
                shard,
                complete=complete,
                last="full" if complete else "even",
                permutation=1 + bucket,
            )
            for bucket in np.flatnonzero(count_of_bucket).tolist()
        }
        # The parts of a bucket are contiguous.
        self._first_of_bucket, self._first_of_part = _starts(drawn), _starts(numbers.reshape(-1))
        self._part_sizes = buckets.sizes.reshape(-1)
        self._part_start = _starts(self._part_sizes)

    def __call__(self, number: int, seeds: Seeds) -> Rows:
        """Return the row indices of a batch, −1 for padding, and its shape."""
        if self._shuffle:
            (number,) = shuffled(number, number + 1, seeds, self.count).tolist()
        return self._at(number, seeds)

    def of_each_shape(self) -> Iterator[Rows]:
        """Yield the rows of the first and of the last batch of each bucket."""
        ends = [*self._first_batch[1:].tolist(), self.count]
        for start, end in zip(self._first_batch.tolist(), ends, strict=True):
            if start < end:
                yield self._at(start, (0, 0))
                yield self._at(end - 1, (0, 0))

    def _at(self, place: int, seeds: Seeds) -> Rows:
        """Return the rows of the batch at a place, where the batches of the first bucket come first."""
        bucket = int(_last_not_after(self._first_batch, place))
        numbers, _ = self._orders[bucket](place - int(self._first_batch[bucket]), seeds)
        drawn = self._draw(self._first_of_bucket[bucket] + np.maximum(numbers, 0), seeds)
        return np.where(numbers >= 0, drawn, -1), self._shapes[bucket]

    def _draw(self, numbers: np.ndarray, seeds: Seeds) -> np.ndarray:
        """Map numbers that count the drawn rows of all parts to row indices, int64 (B,)."""
        part = _last_not_after(self._first_of_part, numbers)
        size, numbers = self._part_sizes[part], numbers - self._first_of_part[part]
        within = numbers % size
        if self._reshuffle:
            within = permuted(within, seeds, size, _permutation_of_pass(part, numbers // size))
        return gathered(self._rows, self._part_start[part] + within)


def _permutation_of_pass(part: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Return the index of the permutation of a part in a pass over it: negative, as those of buckets are positive."""
    return -1 - part - number * 2**16


def _chunks(row_lengths: RowLengths, start: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first index, lengths) of the chunks of rows from `start` to `end`."""
    for first in range(start, end, _CHUNK):
        yield first, row_lengths(first, min(first + _CHUNK, end))


def _with_rows(shapes: np.ndarray, counts: LengthCounts, fewest_rows: int) -> np.ndarray:
    """Remove shapes (k, sides), ordered, until each that has rows has at least `fewest_rows`, or one shape is left."""
    while len(shapes) > 1:
        shape_of_length = first_fitting(counts.lengths, shapes)
        rows = np.array([counts.rows[shape_of_length == number].sum() for number in range(len(shapes))])
        too_few = np.flatnonzero((rows > 0) & (rows < fewest_rows))
        if not too_few.size:
            break
        # Nothing is longer than the last shape: it gets the rows of the shape before it.
        shapes = np.delete(shapes, min(too_few[0], len(shapes) - 2), axis=0)
    return shapes


def _checked(length_buckets: Any, max_length: int, sides: int) -> np.ndarray:
    """Validate `length_buckets`, and return its shapes (k, sides), ordered."""
    items = list(length_buckets) if isinstance(length_buckets, Iterable) else []
    shapes = [tuple(item) if isinstance(item, tuple | list) else (item,) * sides for item in items]
    valid = [
        len(shape) == sides and all(is_integer(length) and 0 < length <= max_length for length in shape)
        for shape in shapes
    ]
    if shapes and all(valid) and len(set(shapes)) == len(shapes):
        array = np.array(shapes, np.int64)
        if (array <= array[-1]).all():
            return ordered(array)
    lengths = "lengths" if sides == 1 else "lengths or (source, target) lengths"
    raise ValueError(
        f"`length_buckets` must be a positive integer, or different {lengths} up to max_length={max_length} "
        f"whose last is the longest. Received: length_buckets={length_buckets!r}"
    )


def _batch_size_of(batch_size: int | None, batch_tokens: int | None) -> Callable[[Shape], int]:
    for argument, size in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if size is not None:
            check_positive_integer(**{argument: size})
    if batch_tokens is None:
        return lambda shape: batch_size or _BATCH_SIZE
    if batch_size is not None:
        raise ValueError(
            "`batch_size` and `batch_tokens` must not both be passed. "
            f"Received: batch_size={batch_size}, batch_tokens={batch_tokens}"
        )
    return lambda shape: max(1, batch_tokens // max(shape))


def _starts(sizes: np.ndarray) -> np.ndarray:
    """Return the start index of each of several contiguous parts."""
    return np.cumsum(sizes) - sizes


def _last_not_after(starts: np.ndarray, numbers: Any) -> np.ndarray:
    """Return the index of the last start that is at most each number, int64, of the shape of `numbers`."""
    return np.searchsorted(starts, numbers, side="right") - 1
