"""Batches of texts to train a decoder-only model to predict the next token."""

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_positive_integer
from keras_transformer.data.columns import Columns
from keras_transformer.data.epochs import batch_seed, batches, rows_of_batch
from keras_transformer.data.sampling import check_sampling, expected_lengths
from keras_transformer.data.token_lists import Texts, check_special_ids, padding_values, read_texts, tokenized

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
    sampling: float = 0.0,
    shuffle: bool = True,
    seed: int = 0,
) -> tf.data.Dataset:
    r"""Make batches for the objective $\max_\theta \sum_t \log p_\theta(w_t \mid w_{t-T} \dots w_{t-1})$.

    The texts, each followed by an end token, are concatenated to one stream of tokens $w_t$ and split into rows of T
    tokens without padding; a row may contain parts of several texts. If shuffled, row boundaries differ in each epoch.
    With `separate`, rows are densely packed with whole texts that do not attend to each other; texts of more than T
    tokens are split. Each token except the first (of the stream, or of each text) is predicted exactly once per epoch.
    All texts are tokenised once, when the dataset is made; their ids stay in memory.

    Args:
        texts: strings, and `pathlib.Path`s of files that `read_examples` reads, such as the lines of a text file; or
            one such path. Empty strings are skipped.
        tokenizer: a tokenizer with an end id. Inputs and labels are padded with its `pad_id`; if that is None, inputs
            are padded with `end_id` and labels with −1.
        batch_size: B, the number of rows in every batch; the last batch is completed with rows of padding, whose labels
            losses and metrics must ignore.
        columns: the column of the texts in files, an index or a name; by default files must have only one.
        on_error: "raise" to refuse malformed lines of files, "skip" to leave them out with a warning.
        length: T, the length of a row.
        separate: whether each token attends only to tokens of its own text.
        sampling: the rate of random segmentations of texts, with `separate` only, see `translation_pairs`; texts of
            more than T tokens keep the usual one.
        shuffle: whether the order and the boundaries of rows differ in each epoch.
        seed: the seed of shuffling.

    Returns:
        A dataset of known cardinality with elements `({"token_ids": (B, T)}, labels (B, T))`, int32; with `separate`,
        inputs also have "segment_ids" (1, 2, … for the texts of a row, 0 for padding) and "positions", which start
        at 0 in each text.

    Raises:
        TypeError: if `texts` is one string.
        ValueError: if there is no token to predict, the tokenizer has no end id, `sampling` is given without `separate`
            or for a tokenizer that cannot sample, or an argument is out of range.

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
    is_sampled = check_sampling(sampling, tokenizer=tokenizer)
    if is_sampled and not separate:
        raise ValueError(
            "`sampling` needs separate=True: the rows of one stream of tokens are no texts of their own. "
            f"Received: sampling={sampling}, separate=False"
        )
    found = read_texts(texts, columns, on_error)
    flat, starts = _concatenated(tokenized(found, tokenizer), tokenizer.end_id)
    padding = padding_values(tokenizer)
    if is_sampled:
        kept = tf.constant(found)
        kept = tf.boolean_mask(kept, tokenizer.tokenize(kept).row_lengths() > 0)
        places = expected_lengths(kept, np.diff(starts) - 1, tokenizer, sampling)
        packed = Packed(flat, starts, length, padding, places=places)
        return SampledPacked(packed, kept, tokenizer, sampling, padding).batches(batch_size, shuffle, seed)
    rows = Packed if separate else _Stream
    return rows(flat, starts, length, padding).batches(batch_size, shuffle, seed)


def _concatenated(chunks: Iterable[tf.RaggedTensor], end_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all N tokens, with an end token after each text, int32 (N,), and the offsets of the texts, then N."""
    parts, lengths = [np.zeros(0, np.int32)], [np.zeros(1, np.int64)]
    for ids in chunks:
        ids = tf.ragged.boolean_mask(ids, ids.row_lengths() > 0)
        ends = tf.fill([ids.nrows(), 1], end_id)
        ids = tf.concat([ids, ends], axis=1)
        parts.append(ids.values.numpy())
        lengths.append(ids.row_lengths().numpy())
    flat = np.concatenate(parts)
    if not len(flat):
        raise ValueError("`texts` must hold at least one token. Received: none")
    return flat, np.cumsum(np.concatenate(lengths))


class _Stream:
    """One stream of tokens, split into rows of T."""

    def __init__(self, flat: np.ndarray, starts: np.ndarray, length: int, padding: tuple[int, int]) -> None:
        with tf.device("CPU:0"):  # functions of a dataset cannot read GPU memory
            self.flat = tf.constant(flat)
        self.predicted, self.length, self.padding = len(flat) - 1, length, padding

    def batches(self, batch_size: int, shuffle: bool, seed: int) -> tf.data.Dataset:
        # The first row is shortened by the epoch's shift, so that each token is in exactly one row.
        count = -(-self.predicted // self.length) + shuffle

        def batch(rows: tf.Tensor, seeds: tf.Tensor) -> Batch:
            shift = tf.random.stateless_uniform([], seeds, 0, self.length, tf.int64) if shuffle else 0
            return self._batch(tf.where(rows < count, rows * self.length - shift, self.predicted))

        return _batched(count, batch_size, shuffle, seed, batch, [self.flat])

    def _batch(self, first: tf.Tensor) -> Batch:
        """Return the rows that start at `first`, int64 (B,), which is negative for a shortened row."""
        end = tf.minimum(first + self.length, self.predicted)[:, None]
        places = tf.maximum(first, 0)[:, None] + tf.range(self.length, dtype=tf.int64)  # (B, T)
        real = places < end
        places = tf.where(real, places, 0)
        ids, labels = (
            tf.where(real, tf.gather(self.flat, places + shift), self.padding[shift]) for shift in (0, 1)
        )
        return {"token_ids": ids}, labels


class Packed:
    """Rows packed with whole texts; texts longer than a row are split.

    Args:
        flat: the tokens of all texts, int32 (N,).
        starts: the offsets of the texts, then N.
        length: T, the length of a row.
        padding: the padding values of ids and of labels.
        is_label: whether each token is to be predicted, booleans (N,); by default all are.
        places: the number of places of each text that is not split, integers, by default as many as it needs.

    Attributes:
        pieces: the texts that are not split, integers (P, 5): index of the text, row, column, number of places and
            segment.
    """

    def __init__(
        self,
        flat: np.ndarray,
        starts: np.ndarray,
        length: int,
        padding: tuple[int, int],
        is_label: np.ndarray | None = None,
        places: np.ndarray | None = None,
    ) -> None:
        # Input pieces of at most T tokens; the last token of a text, its end token, is a label only.
        first, size = [], []
        for start, end in zip(starts[:-1], starts[1:] - 1, strict=True):
            cuts = np.arange(start, end, length)
            first.append(cuts)
            size.append(np.minimum(cuts + length, end) - cuts)
        first, size = np.concatenate(first), np.concatenate(size)
        text = np.searchsorted(starts, first, side="right") - 1
        whole = size == np.diff(starts)[text] - 1
        room = size if places is None else np.where(whole, np.minimum(places[text], length), size)
        row, column, segment = _pack(room, length)
        self.pieces = np.stack([text, row, column, room, segment], axis=1)[whole]
        shape = (row.max() + 1, length)
        piece = np.repeat(np.arange(len(size)), size)
        within = np.arange(len(piece)) - np.repeat(np.cumsum(size) - size, size)
        at = row[piece], column[piece] + within
        labels = flat if is_label is None else np.where(is_label, flat, padding[1])
        arrays = {
            "token_ids": (flat[first[piece] + within], padding[0]),
            "segment_ids": (segment[piece], 0),
            "positions": (within, 0),
            "labels": (labels[first[piece] + within + 1], padding[1]),
        }
        self.tensors = {}
        for name, (values, padding_value) in arrays.items():
            array = np.full(shape, padding_value, np.int32)
            array[at] = values
            # An extra row of padding completes the last batch.
            array = np.concatenate([array, np.full((1, length), padding_value, np.int32)])
            with tf.device("CPU:0"):
                self.tensors[name] = tf.constant(array)
        self.count = int(shape[0])

    def batches(self, batch_size: int, shuffle: bool, seed: int) -> tf.data.Dataset:
        """Return batches of the rows."""
        return _batched(self.count, batch_size, shuffle, seed, self._batch, self.tensors.values())

    def _batch(self, rows: tf.Tensor, seeds: tf.Tensor) -> Batch:
        found = {name: tf.gather(values, rows) for name, values in self.tensors.items()}
        return found, found.pop("labels")


class SampledPacked:
    """Packed rows whose whole texts are segmented anew in each epoch.

    Args:
        packed: the rows without sampling, with places for most samples.
        texts: strings (n,).
        tokenizer: the tokenizer.
        rate: the argument of `tokenizer.sample`.
        padding: the padding values of ids and of labels.
    """

    def __init__(
        self, packed: Packed, texts: tf.Tensor, tokenizer: Tokenizer, rate: float, padding: tuple[int, int]
    ) -> None:
        self.packed, self.texts, self.tokenizer = packed, texts, tokenizer
        self.rate, self.padding = rate, padding
        pieces = packed.pieces[np.argsort(packed.pieces[:, 1], kind="stable")]
        counts = np.bincount(pieces[:, 1], minlength=packed.count + 1)  # none in the row of padding
        with tf.device("CPU:0"):
            self.pieces = tf.RaggedTensor.from_row_lengths(tf.constant(pieces), counts)

    def batches(self, batch_size: int, shuffle: bool, seed: int) -> tf.data.Dataset:
        """Return batches of the rows."""
        content = [*self.packed.tensors.values(), np.float64(self.rate)]
        name = type(self.tokenizer).__name__ if self.tokenizer.sampling == "unseeded" else ""
        return _batched(self.packed.count, batch_size, shuffle, seed, self._batch, content, name)

    def _batch(self, rows: tf.Tensor, seeds: tf.Tensor) -> Batch:
        inputs, labels = self.packed._batch(rows, seeds)
        pieces = tf.gather(self.pieces, rows)
        row = pieces.value_rowids()
        text, _, column, places, segment = tf.unstack(pieces.values, axis=1)
        seed = batch_seed(rows[0], seeds)
        sampled = self.tokenizer.sample(tf.gather(self.texts, text), self.rate, seed)
        sizes = sampled.row_lengths()  # of the inputs; the end token is a label only
        fits = sizes <= places
        row, column, places, segment, sizes = (
            tf.boolean_mask(each, fits) for each in (row, column, places, segment, sizes)
        )
        ids = tf.ragged.boolean_mask(sampled, fits)
        ended = tf.concat([ids, tf.fill([ids.nrows(), 1], self.tokenizer.end_id)], axis=1)
        within = tf.ragged.range(places)  # also the places that a shorter sample leaves to padding
        piece = within.value_rowids()
        within = within.values
        real = within < tf.gather(sizes, piece)
        start = tf.gather(ended.row_starts(), piece) + tf.minimum(within, tf.gather(sizes, piece) - 1)
        at = tf.stack([tf.gather(row, piece), tf.gather(column, piece) + within], axis=1)
        values = {
            "token_ids": (tf.gather(ended.values, start), self.padding[0]),
            "segment_ids": (tf.gather(segment, piece), 0),
            "positions": (within, 0),
        }
        new = {
            name: tf.tensor_scatter_nd_update(
                inputs[name], at, tf.where(real, tf.cast(value, tf.int32), padding_value)
            )
            for name, (value, padding_value) in values.items()
        }
        following = tf.where(real, tf.gather(ended.values, start + 1), self.padding[1])
        return new, tf.tensor_scatter_nd_update(labels, at, following)


def _pack(sizes: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


def _batched(
    count: int,
    batch_size: int,
    shuffle: bool,
    seed: int,
    batch: Callable[[tf.Tensor, tf.Tensor], Batch],
    content: Iterable[tf.Tensor],
    unseeded: str = "",
) -> tf.data.Dataset:
    """Make batches by a function of row numbers (B,) and seeds; rows from `count` on are padding."""

    def numbered(number: tf.Tensor, seeds: tf.Tensor) -> Batch:
        rows = rows_of_batch(number, seeds, count, batch_size, shuffle)
        rows = tf.pad(rows, [[0, batch_size - tf.size(rows)]], constant_values=count)
        return batch(tf.ensure_shape(rows, [batch_size]), seeds)

    return batches(-(-count // batch_size), numbered, seed, content, unseeded)
