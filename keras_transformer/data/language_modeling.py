"""Batches of texts to train a decoder-only model to predict the next token."""

import os
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_positive_integer
from keras_transformer.data.columns import Columns
from keras_transformer.data.epochs import Shard, batches, rows_of_batch
from keras_transformer.data.examples import stored
from keras_transformer.data.ragged_rows import RaggedRows, RowsToStore, check_file, gathered
from keras_transformer.data.storage import Arrays, Chunk
from keras_transformer.data.token_lists import (
    Texts,
    check_special_ids,
    check_tokens,
    padding_values,
    text_examples,
    tokenized,
)

_MOST_TEXTS, _MOST_TOKENS = 2**16, 2**24  # that are packed together

Batch = tuple[dict[str, tf.Tensor], tf.Tensor]


class Tokenizer(Protocol):
    """The interface required of a tokenizer, as in `keras_transformer.text`."""

    pad_id: int | None
    end_id: int
    vocabulary_size: int

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Convert a string tensor (B,) to int32 ids (B, None) without special ids."""


def language_modeling(
    texts: Texts,
    tokenizer: Tokenizer,
    batch_size: int = 32,
    *,
    columns: Columns = None,
    on_error: str = "raise",
    length: int = 256,
    separate: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> tf.data.Dataset:
    r"""Make batches for the objective $\max_\theta \sum_t \log p_\theta(w_t \mid w_{t-T} \dots w_{t-1})$.

    The texts, each followed by an end token, are concatenated to one stream of tokens $w_t$ and split into rows of T
    tokens without padding; a row may contain parts of several texts. If shuffled, row boundaries differ in each epoch.
    With `separate`, rows are densely packed with whole texts that do not attend to each other; texts of more than T
    tokens are split. Each token except the first (of the stream, or of each text) is predicted exactly once per epoch.
    All texts are tokenised once, when the dataset is made; their ids stay in memory, or in files of `cache_dir`.

    Args:
        texts: strings, and `pathlib.Path`s or patterns of files that `read_examples` reads, such as the lines of a text
            file; or one such path. Empty strings are skipped.
        tokenizer: a tokenizer with an end id. Inputs and labels are padded with its `pad_id`; if that is None, inputs
            are padded with `end_id` and labels with −1.
        batch_size: B, the number of rows in every batch; the last batch is completed with rows of padding, whose labels
            losses and metrics must ignore.
        columns: the column of the texts in files, an index or a name; by default files must have only one.
        on_error: "raise" to refuse malformed lines of files, "skip" to leave them out with a warning.
        length: T, the length of a row.
        separate: whether each token attends only to tokens of its own text.
        shuffle: whether the order and the boundaries of rows differ in each epoch.
        seed: the seed of shuffling.
        shard: (index, count), the part of each batch for one of several workers, see `translation_pairs`.
        cache_dir: a folder for the ids, see `translation_pairs`.

    Returns:
        A dataset of known cardinality with elements `({"token_ids": (B, T)}, labels (B, T))`, int32; with `separate`,
        inputs also have "segment_ids" (1, 2, … for the texts of a row, 0 for padding) and "positions", which start
        at 0 in each text.

    Raises:
        TypeError: if `texts` is one string.
        ValueError: if there is no token to predict, the tokenizer has no end id, or an argument is out of range.

    Example:
        >>> from keras_transformer.text import ByteTokenizer
        >>> inputs, labels = next(iter(language_modeling(["to be or not"], ByteTokenizer(), 2, length=4)))
        >>> inputs["token_ids"].shape, labels.shape
        (TensorShape([2, 4]), TensorShape([2, 4]))

    References:
        Radford et al. (2019), section 2; separate texts: Krell et al., "Efficient Sequence Packing without
        Cross-contamination" (2021).
    """
    check_positive_integer(batch_size=batch_size, length=length)
    check_special_ids("tokenizer", tokenizer, ("end_id",))
    part = Shard.of(shard)

    def to_arrays(chunks: Iterator[list[str]]) -> Iterator[Chunk]:
        found = False
        for chunk in chunks:
            ids = tokenized(chunk, tokenizer)
            ids = tf.ragged.boolean_mask(ids, ids.row_lengths() > 0)
            found = found or int(ids.nrows()) > 0
            ends = tf.fill([ids.nrows(), 1], tokenizer.end_id)
            yield {"texts": RowsToStore.of_ragged(tf.concat([ids, ends], axis=1))}
        check_tokens(found)

    arrays = stored(
        text_examples(texts, columns, on_error),
        to_arrays,
        cache_dir,
        tokenizer=tokenizer,
        task="language modelling",
        columns=columns,
        on_error=on_error,
    )
    rows = (_Packed if separate else _Stream)(arrays, length, padding_values(tokenizer))
    count = rows.count(shuffle)

    def batch(number: tf.Tensor, seeds: tf.Tensor) -> Batch:
        found = rows_of_batch(number, seeds, count, batch_size, shuffle, part)
        found = tf.pad(found, [[0, batch_size - tf.size(found)]], constant_values=-1)
        return rows.batch(tf.ensure_shape(found, [batch_size]), seeds, shuffle)

    return batches(part.batches(count, batch_size), batch, seed, rows.content, part)


class _Stream:
    """One stream of tokens, split into rows of T."""

    def __init__(self, arrays: Arrays, length: int, padding: tuple[int, int]) -> None:
        self._flat, self.content = arrays.rows("texts").flat, arrays.content
        self._predicted, self._length, self._padding = len(self._flat) - 1, length, padding

    def count(self, shuffle: bool) -> int:
        """Return the number of rows; a shuffled epoch's shift shortens the first, and may add one."""
        return -(-self._predicted // self._length) + shuffle

    def batch(self, rows: tf.Tensor, seeds: tf.Tensor, shuffle: bool) -> Batch:
        """Return the rows of numbers (B,), −1 for padding."""
        shift = tf.random.stateless_uniform([], seeds, 0, self._length, tf.int64) if shuffle else 0
        # Negative for the first row of a shuffled epoch, which is shortened so that each token is in one row.
        first = tf.where(rows >= 0, rows * self._length - shift, self._predicted)
        end = tf.minimum(first + self._length, self._predicted)[:, None]
        places = tf.maximum(first, 0)[:, None] + tf.range(self._length + 1, dtype=tf.int64)  # (B, T + 1)
        tokens = gathered(self._flat, tf.minimum(places, self._predicted))
        real = places[:, :-1] < end
        ids, labels = (
            tf.where(real, each, padding)
            for each, padding in zip((tokens[:, :-1], tokens[:, 1:]), self._padding, strict=True)
        )
        return {"token_ids": ids}, labels


class _Packed:
    """Rows packed with whole texts; texts longer than a row are split into pieces."""

    def __init__(self, arrays: Arrays, length: int, padding: tuple[int, int]) -> None:
        texts = arrays.rows("texts")
        packs = arrays.derived(_packs(texts, length), packs=length)
        self._flat, self._firsts, self._sizes = texts.flat, packs.rows("firsts"), packs["sizes"]
        self._length, self._padding = length, padding
        self.content = [*arrays.content, *packs.content]

    def count(self, shuffle: bool) -> int:
        """Return the number of rows."""
        return self._firsts.count

    def batch(self, rows: tf.Tensor, seeds: tf.Tensor, shuffle: bool) -> Batch:
        """Return the rows of numbers (B,), −1 for padding."""
        arrays = tf.numpy_function(self._gather, [rows], [tf.int32] * 4, stateful=False)
        ids, segments, positions, labels = (
            tf.ensure_shape(each, [rows.shape[0], self._length]) for each in arrays
        )
        return {"token_ids": ids, "segment_ids": segments, "positions": positions}, labels

    def _gather(self, rows: np.ndarray) -> list[np.ndarray]:
        for array in (self._flat, *self._firsts, self._sizes):
            check_file(array)
        splits = self._firsts.splits
        each = [np.arange(splits[row], splits[row + 1]) if row >= 0 else np.arange(0) for row in rows]
        counts = np.array([len(pieces) for pieces in each])
        pieces = np.concatenate(each)
        sizes = np.asarray(self._sizes[pieces])
        row, segment = np.repeat(np.arange(len(rows)), counts), _within(counts)
        column = _within(sizes)
        place = np.repeat(self._firsts.flat[pieces], sizes) + column
        row_of_token = np.repeat(row, sizes)
        at = row_of_token, _within(np.bincount(row_of_token, minlength=len(rows)))
        found = []
        for values, padding in (
            (self._flat[place], self._padding[0]),
            (np.repeat(segment, sizes) + 1, 0),
            (column, 0),
            (self._flat[place + 1], self._padding[1]),
        ):
            array = np.full((len(rows), self._length), padding, np.int32)
            array[at] = values
            found.append(array)
        return found


def _within(sizes: np.ndarray) -> np.ndarray:
    """Return the index of each element within its part, for parts of the given sizes."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _packs(texts: RaggedRows, length: int) -> Iterator[Chunk]:
    """Yield the pieces of each row: the place of their first token and their size.

    Each chunk of texts is packed by itself, so that memory does not grow with their number.
    """
    start = 0
    while start < texts.count:
        starts = texts.splits[start : start + _MOST_TEXTS + 1]
        starts = starts[: max(2, np.searchsorted(starts, starts[0] + _MOST_TOKENS))]
        start += len(starts) - 1
        # Input pieces of at most T tokens; the last token of a text, its end token, is a label only.
        inputs = np.diff(starts) - 1
        numbers = -(-inputs // length)
        number = _within(numbers)
        first = np.repeat(starts[:-1], numbers) + number * length
        size = np.minimum(np.repeat(inputs, numbers) - number * length, length)
        row, column = _pack(size, length)
        order = np.lexsort((column, row))
        yield {
            "firsts": RowsToStore(np.asarray(first[order]), np.bincount(row)),
            "sizes": size[order].astype(np.int32),
        }


def _pack(sizes: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and the column of each piece, by best-fit decreasing bin packing."""
    row, column = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    rows_of_room: list[list[int]] = [[] for _ in range(length + 1)]
    rows = 0
    for piece in np.argsort(-sizes, kind="stable"):
        size = int(sizes[piece])
        room = next((room for room in range(size, length + 1) if rows_of_room[room]), length)
        if not rows_of_room[room]:
            rows_of_room[room].append(rows)
            rows += 1
        row[piece] = place = rows_of_room[room].pop()
        column[piece] = length - room
        rows_of_room[room - size].append(place)
    return row, column
