"""Rows that are packed with whole texts or pairs of texts."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

import numpy as np
import tensorflow as tf

from keras_transformer.data.epochs import batches, rows_of_batch
from keras_transformer.data.ragged_rows import RaggedRows


def pack(sizes: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the row, the column and the rank within the row of each piece, by best-fit decreasing bin packing."""
    row, column, number = (np.zeros(len(sizes), np.int64) for _ in range(3))
    rows_of_room: list[list[int]] = [[] for _ in range(length + 1)]
    pieces_of_row: list[int] = []
    for piece in np.argsort(-sizes, kind="stable"):
        size = int(sizes[piece])
        room = next((room for room in range(size, length + 1) if rows_of_room[room]), length)
        if not rows_of_room[room]:
            rows_of_room[room].append(len(pieces_of_row))
            pieces_of_row.append(0)
        row[piece] = place = rows_of_room[room].pop()
        column[piece] = length - room
        pieces_of_row[place] += 1
        number[piece] = pieces_of_row[place]
        rows_of_room[room - size].append(place)
    return row, column, number


def batched_rows(
    count: int,
    batch_size: int,
    shuffle: bool,
    seed: int,
    batch: Callable[[tf.Tensor, tf.Tensor], Any],
    content: Iterable[tf.Tensor],
) -> tf.data.Dataset:
    """Make batches by a function of row numbers (B,) and seeds; rows from `count` on are padding."""

    def numbered(number: tf.Tensor, seeds: tf.Tensor) -> Any:
        rows = rows_of_batch(number, seeds, count, batch_size, shuffle)
        rows = tf.pad(rows, [[0, batch_size - tf.size(rows)]], constant_values=count)
        return batch(tf.ensure_shape(rows, [batch_size]), seeds)

    return batches(-(-count // batch_size), numbered, seed, content)


class PackedTexts(NamedTuple):
    """Rows of several texts each, with their end ids, stored in tensors on the CPU; the last row is padding.

    Attributes:
        ids: int32 (rows + 1, L), the texts of each row one after the other, then zeros.
        positions: int32 (rows + 1, L), the position of each id in its text.
        sizes: int64 (rows + 1, 1), the number of ids in each row.
    """

    ids: tf.Tensor
    positions: tf.Tensor
    sizes: tf.Tensor

    @classmethod
    def of(cls, texts: RaggedRows, order: np.ndarray, row: np.ndarray, length: int, end_id: int) -> Self:
        """Store texts in rows.

        Args:
            texts: the ids of all texts.
            order: the indices of the packed texts, row by row, integers (n,).
            row: the row of each of these texts, integers (n,), in ascending order.
            length: L.
            end_id: the id that is appended to each text.
        """
        sizes, starts = texts.lengths[order] + 1, texts.splits.numpy()[order]
        text = np.repeat(np.arange(len(order)), sizes)  # of each id
        positions = np.arange(len(text)) - (np.cumsum(sizes) - sizes)[text]
        in_row = np.bincount(row, sizes).astype(np.int64)
        columns = np.arange(len(text)) - (np.cumsum(in_row) - in_row)[row[text]]
        flat = texts.flat.numpy()
        ids = flat[np.minimum(starts[text] + positions, len(flat) - 1)]
        dense = np.zeros((2, len(in_row) + 1, length), np.int32)
        dense[0, row[text], columns] = np.where(positions == sizes[text] - 1, end_id, ids)
        dense[1, row[text], columns] = positions
        with tf.device("CPU:0"):  # functions of a dataset cannot read GPU memory
            return cls(
                tf.constant(dense[0]), tf.constant(dense[1]), tf.constant(np.append(in_row, 0)[:, None])
            )

    def gather(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return ids, positions and segments (1, 2, … for the texts of a row, 0 for padding), int32 (B, L)."""
        ids, positions, sizes = (tf.gather(each, rows) for each in self)
        real = tf.range(tf.shape(ids)[1], dtype=tf.int64) < sizes
        segments = tf.cumsum(tf.cast(positions == 0, tf.int32), axis=1)
        return ids, positions, tf.where(real, segments, 0)


def packed_pairs(
    sources: RaggedRows,
    targets: RaggedRows,
    kept: np.ndarray,
    length: int,
    batch_size: int,
    tokenizer: Any,
    target_tokenizer: Any,
    *,
    shuffle: bool,
    seed: int,
) -> tf.data.Dataset:
    """Return the batches of `translation_pairs` with `packed=True` for the pairs with indices `kept`."""
    row, _, rank = pack(1 + np.maximum(sources.lengths, targets.lengths)[kept], length)
    order = np.lexsort((rank, row))
    source, target = (
        PackedTexts.of(texts, kept[order], row[order], length, of.end_id)
        for texts, of in ((sources, tokenizer), (targets, target_tokenizer))
    )

    def batch(rows: tf.Tensor, seeds: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        source_ids, source_positions, source_segments = source.gather(rows)
        labels, target_positions, target_segments = target.gather(rows)
        shifted = tf.where(target_positions == 0, target_tokenizer.start_id, tf.roll(labels, 1, axis=1))
        inputs = {
            "source_ids": tf.where(source_segments > 0, source_ids, tokenizer.pad_id),
            "target_ids": tf.where(target_segments > 0, shifted, target_tokenizer.pad_id),
            "source_segment_ids": source_segments,
            "target_segment_ids": target_segments,
            "source_positions": source_positions,
            "target_positions": target_positions,
        }
        return inputs, tf.where(target_segments > 0, labels, target_tokenizer.pad_id)

    return batched_rows(int(row.max()) + 1, batch_size, shuffle, seed, batch, [*source, *target])
