"""The shapes of batches that the arguments of `data`'s functions describe."""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from keras_transformer.data.buckets import Buckets
from keras_transformer.data.shape_search import Shape, choose_lengths, choose_shapes, first_fitting, ordered
from keras_transformer.data.storage import Arrays
from keras_transformer_options.arguments import check_positive, check_positive_integer, is_integer

LengthBuckets = int | Sequence[int] | Sequence[tuple[int, int]]
# The lengths of the rows from one index to before another, integers (n, sides).
RowLengths = Callable[[int, int], np.ndarray]

_BATCH_SIZE = 64
_CHUNK = 2**18  # rows whose lengths are in memory at a time


class LengthCounts(NamedTuple):
    """The number of rows of each length in each of m parts of a dataset.

    Attributes:
        lengths: the different lengths of rows that are short enough, integers (u, sides).
        rows: the number of rows of each of them, integers (u, m).
        too_long: the number of other rows, integers (m,).
    """

    lengths: np.ndarray
    rows: np.ndarray
    too_long: np.ndarray


class Shapes(NamedTuple):
    """The possible shapes of batches.

    Attributes:
        rows_of: a function from a shape, the length of each side, to the number of rows in a batch.
        given: the shapes (k, sides), ordered, or `None` if they have to be chosen.
        count: the maximum number of shapes.
        limits: the maximum length of each side.
        multiple: what chosen lengths are multiples of.
    """

    rows_of: Callable[[Shape], int]
    given: np.ndarray | None
    count: int
    limits: Shape
    multiple: int

    @classmethod
    def of_rows(cls, batch_size: int, max_length: int, length_buckets: int | Sequence[int]) -> Self:
        """Validate the arguments of functions whose batches have one length, and create the shapes from them."""
        return cls._of(_rows_of(batch_size, None), max_length, length_buckets, 1, 8)

    @classmethod
    def of_pairs(
        cls,
        batch_size: int | None,
        batch_tokens: int | None,
        max_length: int,
        length_buckets: LengthBuckets,
        multiple: int,
    ) -> Self:
        """Validate the arguments of `translation_pairs`, and create the shapes from them."""
        check_positive_integer(pad_to_multiple_of=multiple)
        return cls._of(_rows_of(batch_size, batch_tokens), max_length, length_buckets, 2, multiple)

    @classmethod
    def _of(
        cls,
        rows_of: Callable[[Shape], int],
        max_length: int,
        length_buckets: LengthBuckets,
        sides: int,
        multiple: int,
    ) -> Self:
        check_positive_integer(max_length=max_length)
        if is_integer(length_buckets):
            check_positive(length_buckets=length_buckets)
            return cls(rows_of, None, length_buckets, (max_length,) * sides, multiple)
        given = ordered(_checked(length_buckets, max_length, sides))
        return cls(rows_of, given, len(given), tuple(given[-1].tolist()), multiple)

    @property
    def limit(self) -> int:
        """The maximum length of any side."""
        return max(self.limits)

    def fit(self, lengths: np.ndarray) -> np.ndarray:
        """Return whether rows of lengths (n, sides) fit the largest shape, booleans (n,)."""
        return (lengths <= self.limits).all(axis=1)

    def count_lengths(self, row_lengths: RowLengths, ends: Sequence[int]) -> LengthCounts:
        """Count the rows of each length.

        Args:
            row_lengths: the lengths of the rows.
            ends: the index after the last row of each of m parts of the dataset.
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
        rows = np.array([[of_part[code] for of_part in counts] for code in codes.tolist()], np.int64)
        return LengthCounts(lengths, rows.reshape(len(codes), len(ends)), too_long)

    def buckets(
        self,
        arrays: Arrays,
        row_lengths: RowLengths,
        counts: LengthCounts,
        ends: Sequence[int],
        workers: int = 1,
    ) -> Buckets:
        """Assign the rows that are short enough to shapes.

        Args:
            arrays: the arrays of the dataset, with which the assignment is stored.
            row_lengths: the lengths of the rows.
            counts: the result of `count_lengths`.
            ends: the index after the last row of each part of the dataset.
            workers: the number of workers that share the batches.
        """
        chosen = self.given
        if chosen is None:
            chosen = self._chosen(counts.lengths, counts.rows.sum(axis=1), workers)
        bucket = first_fitting(counts.lengths, chosen)
        chunks = (
            {"rows": start + np.flatnonzero(first_fitting(lengths, chosen) == number)}
            for number in range(len(chosen))
            for part_start, part_end in itertools.pairwise([0, *ends])
            for start, lengths in _chunks(row_lengths, part_start, part_end)
        )
        rows = arrays.derived(chunks, shapes=chosen.tolist(), ends=list(map(int, ends)))
        return Buckets(
            rows=rows["rows"],
            sizes=np.stack([counts.rows[bucket == number].sum(axis=0) for number in range(len(chosen))]),
            shapes=chosen,
            batch_sizes=np.array([self.rows_of(tuple(shape)) for shape in chosen.tolist()]),
            content=rows.content,
        )

    def _chosen(self, lengths: np.ndarray, rows: np.ndarray, workers: int) -> np.ndarray:
        options = self.count, self.limit, self.multiple, rows
        if len(self.limits) == 1:
            return np.array(choose_lengths(lengths[:, 0], *options))[:, None]
        return np.array(choose_shapes(lengths, lambda shape: workers * self.rows_of(shape), *options))


def _chunks(row_lengths: RowLengths, start: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the lengths of the rows from `start` to before `end`, and the index of the first of them."""
    for first in range(start, end, _CHUNK):
        yield first, row_lengths(first, min(first + _CHUNK, end))


def _checked(length_buckets: Any, max_length: int, sides: int) -> np.ndarray:
    """Return the ordered shapes (k, sides) of the argument `length_buckets`, or raise a ValueError."""
    listed = list(length_buckets) if isinstance(length_buckets, Iterable) else []
    shapes = [tuple(each) if isinstance(each, tuple | list) else (each,) * sides for each in listed]
    valid = [
        len(shape) == sides and all(is_integer(length) and 0 < length <= max_length for length in shape)
        for shape in shapes
    ]
    if shapes and all(valid) and len(set(shapes)) == len(shapes):
        found = np.array(shapes, np.int64)
        if (found <= found[-1]).all():
            return ordered(found)
    lengths = "lengths" if sides == 1 else "lengths or (source, target) lengths"
    raise ValueError(
        f"`length_buckets` must be a positive integer, or different {lengths} up to max_length={max_length} "
        f"whose last is the longest. Received: length_buckets={length_buckets!r}"
    )


def _rows_of(batch_size: int | None, batch_tokens: int | None) -> Callable[[Shape], int]:
    for argument, size in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if size is not None:
            check_positive_integer(**{argument: size})
    if batch_tokens is None:
        return lambda shape: batch_size or _BATCH_SIZE
    if batch_size is not None:
        raise ValueError(
            "`batch_size` and `batch_tokens` must not both be given. "
            f"Received: batch_size={batch_size}, batch_tokens={batch_tokens}"
        )
    return lambda shape: max(1, batch_tokens // max(shape))
