"""Rows of ids of different lengths, stored as flat arrays and gathered into dense batches."""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np
import tensorflow as tf


class RaggedRows(NamedTuple):
    """Rows of ids of different lengths, stored in two tensors on the CPU.

    Attributes:
        flat: int32 (tokens + 1,), the concatenated rows and an extra id, which can be gathered if all rows are empty.
        splits: int64 (n + 1,); row i is `flat[splits[i]:splits[i + 1]]`.
    """

    flat: tf.Tensor
    splits: tf.Tensor

    @classmethod
    def concatenated(cls, parts: Iterable[tf.RaggedTensor]) -> Self:
        """Concatenate the rows of ragged tensors.

        Args:
            parts: int32 ragged tensors (n, None).

        Returns:
            The concatenated rows.
        """
        flat, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for part in parts:
            flat.append(part.values.numpy())
            lengths.append(part.row_lengths().numpy())
        return cls._of(np.concatenate(flat), np.concatenate(lengths))

    @classmethod
    def of_lists(cls, rows: Sequence[Sequence[int]]) -> Self:
        """Store rows that are sequences of ids."""
        flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
        return cls._of(flat, np.array([len(row) for row in rows], np.int64))

    @classmethod
    def _of(cls, flat: np.ndarray, lengths: np.ndarray) -> Self:
        splits = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        # Functions of a dataset run on the CPU and cannot read GPU memory.
        with tf.device("CPU:0"):
            return cls(tf.constant(np.append(flat, np.int32(0))), tf.constant(splits))

    @property
    def lengths(self) -> np.ndarray:
        """The length of each row, int64 (n,)."""
        return np.diff(self.splits.numpy())

    def gather(self, rows: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Gather rows into a dense tensor.

        Args:
            rows: int64 (B,), the indices of rows; -1 for a missing row.
            length: L, the number of positions.

        Returns:
            int32 ids (B, L), arbitrary after the end of a row, and int64 lengths (B, 1), -1 for a missing row.
        """
        present = tf.maximum(rows, 0)
        starts = tf.gather(self.splits, present)
        lengths = tf.where(rows >= 0, tf.gather(self.splits, present + 1) - starts, -1)
        places = starts[:, None] + tf.range(length)  # (B, L)
        last = tf.size(self.flat, out_type=tf.int64) - 1
        return tf.gather(self.flat, tf.minimum(places, last)), lengths[:, None]
