"""Rows of different lengths, stored as flat arrays and gathered into dense batches."""

import itertools
import os
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import tensorflow as tf


class RowsToStore(NamedTuple):
    """Rows of different lengths, to be appended to those that are stored.

    Attributes:
        values: int32, int64 or uint8 (N,), the concatenated rows.
        lengths: int64 (n,), their lengths.
    """

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of_lists(cls, rows: Sequence[Sequence[int]]) -> Self:
        """Concatenate rows that are sequences of ids."""
        values = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
        return cls(values, np.fromiter(map(len, rows), np.int64, len(rows)))

    @classmethod
    def of_strings(cls, rows: Sequence[bytes]) -> Self:
        """Concatenate the bytes of strings, as uint8."""
        return cls(np.frombuffer(b"".join(rows), np.uint8), np.fromiter(map(len, rows), np.int64, len(rows)))

    @classmethod
    def of_ragged(cls, rows: tf.RaggedTensor) -> Self:
        """Take the rows of a ragged tensor (n, None)."""
        return cls(rows.values.numpy(), rows.row_lengths().numpy())


class RaggedRows(NamedTuple):
    """Rows of different lengths in two arrays, in memory or mapped.

    Attributes:
        flat: int32, int64 or uint8 (N,), the concatenated rows.
        splits: int64 (n + 1,); row i is `flat[splits[i]:splits[i + 1]]`.
    """

    flat: np.ndarray
    splits: np.ndarray

    @property
    def count(self) -> int:
        """The number of rows, n."""
        return len(self.splits) - 1

    def lengths(self, start: int, end: int) -> np.ndarray:
        """Return the lengths of the rows from `start` to before `end`, int64."""
        return np.diff(self.splits[start : end + 1])

    def strings(self, rows: tf.Tensor) -> tf.Tensor:
        """Return rows (B,) of bytes, uint8, as strings."""

        def join(rows: np.ndarray) -> np.ndarray:
            check_file(self.flat)
            check_file(self.splits)
            found = [self.flat[self.splits[row] : self.splits[row + 1]].tobytes() for row in rows]
            return np.array(found, object)

        return tf.ensure_shape(tf.numpy_function(join, [rows], tf.string, stateful=False), rows.shape)

    def gather(self, rows: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Gather rows into a dense tensor.

        Args:
            rows: int64 (B,), the indices of rows; -1 for a missing row.
            length: L, the number of positions.

        Returns:
            Ids (B, L), arbitrary after the end of a row, and int64 lengths (B, 1), -1 for a missing row.
        """
        dtypes = (tf.as_dtype(self.flat.dtype), tf.int64)
        ids, lengths = tf.numpy_function(self._gather, [rows, length], dtypes, stateful=False)
        return tf.ensure_shape(ids, [rows.shape[0], None]), tf.ensure_shape(lengths, [rows.shape[0], 1])

    def _gather(self, rows: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        check_file(self.flat)
        check_file(self.splits)
        present = np.maximum(rows, 0)
        starts = self.splits[present]
        lengths = np.where(rows >= 0, self.splits[present + 1] - starts, -1)
        places = np.minimum(starts[:, None] + np.arange(length), max(len(self.flat) - 1, 0))  # (B, L)
        ids = self.flat[places] if len(self.flat) else np.zeros(places.shape, self.flat.dtype)
        return np.asarray(ids), np.asarray(lengths[:, None])


def gathered(array: np.ndarray, indices: tf.Tensor) -> tf.Tensor:
    """Return the entries of an array, in memory or mapped, at indices into its first axis."""

    def gather(indices: np.ndarray) -> np.ndarray:
        check_file(array)
        return np.asarray(array[indices])

    found = tf.numpy_function(gather, [indices], tf.as_dtype(array.dtype), stateful=False)
    return tf.ensure_shape(found, indices.shape.concatenate(array.shape[1:]))


def check_file(array: np.ndarray) -> None:
    """Raise an error if the file of a mapped array has disappeared or has been truncated.

    Reading after the end of a mapped file would end the process.
    """
    if not isinstance(array, np.memmap):
        return
    advice = "Remove its folder, and make the dataset again"
    try:
        size = os.stat(array.filename).st_size
    except FileNotFoundError:
        raise FileNotFoundError(
            f"`cache_dir` must keep its files while they are read. {advice}. Received: no {array.filename}"
        ) from None
    if size != array.nbytes:
        raise ValueError(
            f"`cache_dir` must keep its files unchanged. {advice}. "
            f"Received: {array.filename} of {size} bytes instead of {array.nbytes}"
        )
