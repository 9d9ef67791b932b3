"""The shapes of batches that the arguments of `data`'s functions describe."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from keras_transformer.arguments import check_positive, check_positive_integer, is_integer
from keras_transformer.data.buckets import Buckets
from keras_transformer.data.shape_search import Shape, choose_lengths, choose_shapes, first_fitting, ordered

LengthBuckets = int | Sequence[int] | Sequence[tuple[int, int]]

_BATCH_SIZE = 64


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

    def buckets(self, lengths: np.ndarray, kept: np.ndarray) -> Buckets:
        """Assign the rows with indices `kept`, which fit, to shapes by the lengths of all rows (n, sides)."""
        needed = lengths[kept]
        chosen = self._chosen(needed) if self.given is None else self.given
        return Buckets(
            rows=kept,
            bucket_of_row=first_fitting(needed, chosen),
            shapes=chosen,
            batch_sizes=np.array([self.rows_of(tuple(shape)) for shape in chosen.tolist()]),
        )

    def _chosen(self, lengths: np.ndarray) -> np.ndarray:
        options = self.count, self.limit, self.multiple
        if len(self.limits) == 1:
            return np.array(choose_lengths(lengths[:, 0], *options))[:, None]
        return np.array(choose_shapes(lengths, self.rows_of, *options))


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
