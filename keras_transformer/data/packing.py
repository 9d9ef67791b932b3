"""Rows packed with several texts or pairs of texts, which do not attend to each other."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.data.buckets import RowLengths
from keras_transformer.data.epochs import Batch
from keras_transformer.data.sampling import SampledRows, seeded
from keras_transformer.data.storage import Arrays, Chunk, RaggedRows, RowsToStore, check_files, within

Elements = tuple[dict[str, np.ndarray], np.ndarray]

_MAX_TEXTS, _MAX_TOKENS = 2**16, 2**24  # packed at a time


class PackedTexts:
    """The objective of rows of texts, whose labels are the next tokens.

    Texts longer than a row are split into pieces, or dropped.

    Args:
        arrays: rows "texts", each with its end token, and optionally "is_label", a mask of the tokens to predict.
        length: T, the length of a row.
        padding: the padding values of ids and of labels.
        split: whether texts longer than a row are split.
        sampled: samples that replace the ids of texts that are not split.

    Attributes:
        count: the number of rows.
        content: for `Epochs.fingerprint`.
    """

    def __init__(
        self,
        arrays: Arrays,
        length: int,
        padding: tuple[int, int],
        split: bool = True,
        sampled: SampledRows | None = None,
    ) -> None:
        texts, self._is_label = arrays.rows("texts"), arrays.get("is_label")
        options = {} if sampled is None else {"factor": sampled.factor}
        chunks = _packed_pieces(texts, length, split, sampled)
        packs = arrays.derived(chunks, packs=length, split=split, **options)
        self._flat, self._firsts, self._sizes = texts.flat, packs.rows("firsts"), packs["sizes"]
        self._length, self._padding, self._sampled = length, padding, sampled
        self._capacities, self._texts = packs.get("rooms"), packs.get("texts")
        self.count, self.content = self._firsts.count, [*arrays.content, *packs.content]

    def __call__(self, batch: Batch) -> Elements:
        """Return the inputs and labels of a batch."""
        check_files(self._flat, *self._firsts, self._sizes, self._capacities, self._is_label, self._texts)
        pieces, counts = _pieces_of(self._firsts, batch.rows)
        flat, first, sizes = self._flat, self._firsts.flat[pieces], self._sizes[pieces]
        if self._sampled is not None:
            samples = seeded(self._sampled, batch.seed).sample(self._texts[pieces])
            flat, first, sizes = self._with_samples(pieces, samples)
        layout = _Layout.of(counts, sizes)
        place = first[layout.piece] + layout.position
        ids, labels = flat[place], flat[place + 1]
        if self._is_label is not None:
            labels = np.where(self._is_label[place + 1], labels, self._padding[1])
        ids, labels = (
            layout.dense(values, padding, self._length)
            for values, padding in zip((ids, labels), self._padding, strict=True)
        )
        segments, positions = (
            layout.dense(values, 0, self._length) for values in (layout.segment, layout.position)
        )
        return {"token_ids": ids, "segment_ids": segments, "positions": positions}, labels

    def _with_samples(
        self, pieces: np.ndarray, samples: RaggedRows
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the ids of pieces, the index of each piece's first id, and their numbers of inputs.

        A sample that exceeds its piece's capacity is replaced by the usual ids.
        """
        first, usual, sizes = self._firsts.flat[pieces], self._sizes[pieces], np.diff(samples.splits)
        fits = (sizes > 0) & (sizes <= self._capacities[pieces])
        inputs = np.where(fits, sizes, usual)
        piece, position = np.repeat(np.arange(len(pieces)), inputs + 1), within(inputs + 1)
        is_sample = fits[piece] & (position < inputs[piece])
        # A sample is followed by the end token, which comes after the usual ids.
        place = first[piece] + np.where(fits[piece], usual[piece], position)
        sample_place = np.where(is_sample, samples.splits[piece] + position, 0)
        ids = np.where(is_sample, np.append(samples.flat, 0)[sample_place], self._flat[place])
        return ids, np.cumsum(inputs + 1) - inputs - 1, inputs


class PackedPairs:
    """The objective of rows of pairs of texts: the source and the target of a row hold the same pairs.

    Args:
        arrays: rows "sources" and "targets", without their last ids.
        lengths: the lengths of source and target, including an end or start id, integers (n, 2). Pairs longer than a
            row are dropped.
        length: L, the length of a row on each side.
        source_framing: the special ids around sources.
        target_framing: the special ids around targets.

    Attributes:
        count: the number of rows.
        content: for `Epochs.fingerprint`.
    """

    def __init__(
        self, arrays: Arrays, lengths: RowLengths, length: int, source_framing: Any, target_framing: Any
    ) -> None:
        self._sources, self._targets = arrays.rows("sources"), arrays.rows("targets")
        packs = arrays.derived(_packed_pairs(self._sources.count, lengths, length), packed_pairs=length)
        self._pairs, self._length = packs.rows("pairs"), length
        self._source, self._target = source_framing, target_framing
        self.count, self.content = self._pairs.count, [*arrays.content, *packs.content]

    def __call__(self, batch: Batch) -> Elements:
        """Return the inputs and labels of a batch."""
        check_files(*self._sources, *self._targets, *self._pairs)
        places, counts = _pieces_of(self._pairs, batch.rows)
        pairs = self._pairs.flat[places]
        source, layout = self._ended(self._sources, pairs, counts, self._source.last)
        inputs = self._side("source", source, layout, self._source.pad_id)
        labels, layout = self._ended(self._targets, pairs, counts, self._target.last)
        shifted = np.where(layout.position == 0, self._target.start, np.roll(labels, 1))
        inputs |= self._side("target", shifted, layout, self._target.pad_id)
        return inputs, layout.dense(labels, self._target.pad_id, self._length)

    def _side(self, side: str, ids: np.ndarray, layout: "_Layout", pad_id: int) -> dict[str, np.ndarray]:
        """Return ids, segments and positions (B, L) by name."""
        return {
            f"{side}_ids": layout.dense(ids, pad_id, self._length),
            f"{side}_segment_ids": layout.dense(layout.segment, 0, self._length),
            f"{side}_positions": layout.dense(layout.position, 0, self._length),
        }

    def _ended(
        self, texts: RaggedRows, pairs: np.ndarray, counts: np.ndarray, last: int
    ) -> tuple[np.ndarray, "_Layout"]:
        """Append the last ids to texts, and return their ids and layout."""
        starts = texts.splits[pairs]
        sizes = texts.splits[pairs + 1] - starts + 1
        layout = _Layout.of(counts, sizes)
        place = np.minimum(starts[layout.piece] + layout.position, len(texts.flat) - 1)
        ids = texts.flat[place] if len(texts.flat) else np.zeros(place.shape, np.int32)
        return np.where(layout.position == sizes[layout.piece] - 1, last, ids), layout


class _Layout(NamedTuple):
    """The positions of N tokens in rows that hold several pieces.

    Attributes:
        rows: B, the number of rows.
        row: the row of each token, integers (N,).
        column: its column.
        segment: the number of its piece in the row, from 1.
        piece: the index of its piece among those of all rows.
        position: its index in the piece.
    """

    rows: int
    row: np.ndarray
    column: np.ndarray
    segment: np.ndarray
    piece: np.ndarray
    position: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray, sizes: np.ndarray) -> "_Layout":
        """Place pieces of `sizes` (n,) one after the other, `counts` (B,) of them in each row."""
        row = np.repeat(np.repeat(np.arange(len(counts)), counts), sizes)
        return cls(
            rows=len(counts),
            row=row,
            column=within(np.bincount(row, minlength=len(counts))),
            segment=np.repeat(within(counts) + 1, sizes),
            piece=np.repeat(np.arange(len(sizes)), sizes),
            position=within(sizes),
        )

    def dense(self, values: np.ndarray, padding: int, length: int) -> np.ndarray:
        """Return values of tokens (N,) as int32 (B, length)."""
        array = np.full((self.rows, length), padding, np.int32)
        array[self.row, self.column] = values
        return array


def _pieces_of(pieces: RaggedRows, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the pieces of rows, and their number in each row (B,); row −1 has none."""
    splits = pieces.splits
    indices = [np.arange(splits[row], splits[row + 1]) if row >= 0 else np.arange(0) for row in rows]
    return np.concatenate(indices), np.array([len(row) for row in indices])


def _packed_pieces(
    texts: RaggedRows, length: int, split: bool, sampled: SampledRows | None
) -> Iterator[Chunk]:
    """Yield the pieces of each row: the index of their first token and their size.

    With samples, also yield the text of each piece and its capacity for a sample, 0 for a piece of a longer text.

    Each chunk of texts is packed by itself, so that memory does not grow with their number.
    """
    start = 0
    while start < texts.count:
        starts = texts.splits[start : start + _MAX_TEXTS + 1]
        starts = starts[: max(2, np.searchsorted(starts, starts[0] + _MAX_TOKENS))]
        first_text, start = start, start + len(starts) - 1
        # Input pieces of at most T tokens; the last token of a text, its end token, is a label only.
        inputs = np.diff(starts) - 1
        numbers = -(-inputs // length)
        if not split:
            numbers[numbers > 1] = 0
        number = within(numbers)
        first = np.repeat(starts[:-1], numbers) + number * length
        size = np.minimum(np.repeat(inputs, numbers) - number * length, length)
        capacity = size
        if sampled is not None:
            text = np.repeat(np.arange(first_text, start), numbers)
            is_single = np.repeat(numbers == 1, numbers)
            wanted = np.minimum(sampled.lengths(first_text, start) - 1, length)
            capacity = np.maximum(size, np.where(is_single, wanted[text - first_text], 0))
        order, counts = _packed(capacity, length)
        yield {"firsts": RowsToStore(first[order], counts), "sizes": size[order].astype(np.int32)}
        if sampled is not None:
            yield {"texts": text[order], "rooms": np.where(is_single, capacity, 0)[order].astype(np.int32)}


def _packed_pairs(count: int, lengths: RowLengths, length: int) -> Iterator[Chunk]:
    """Yield the indices of the pairs of each row; each chunk of pairs is packed by itself."""
    for start in range(0, count, _MAX_TEXTS):
        size = lengths(start, min(start + _MAX_TEXTS, count)).max(axis=1)
        fitting = np.flatnonzero(size <= length)
        order, counts = _packed(size[fitting], length)
        yield {"pairs": RowsToStore(start + fitting[order], counts)}


def _packed(sizes: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Pack pieces into rows by best-fit decreasing bin packing.

    Returns:
        The indices of the pieces, row by row, and the number of pieces in each row.
    """
    row, column = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    rows_by_space: list[list[int]] = [[] for _ in range(length + 1)]
    rows = 0
    for piece in np.argsort(-sizes, kind="stable"):
        size = int(sizes[piece])
        space = next((space for space in range(size, length + 1) if rows_by_space[space]), length)
        if not rows_by_space[space]:
            rows_by_space[space].append(rows)
            rows += 1
        row[piece] = chosen = rows_by_space[space].pop()
        column[piece] = length - space
        rows_by_space[space - size].append(chosen)
    return np.lexsort((column, row)), np.bincount(row, minlength=rows)
