"""Batches of translation pairs for an encoder–decoder."""

import logging
from typing import Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.data.buckets import BucketBatches
from keras_transformer.data.columns import Columns
from keras_transformer.data.epochs import batches
from keras_transformer.data.packing import packed_pairs
from keras_transformer.data.pair_sources import PairReader, Pairs
from keras_transformer.data.ragged_rows import RaggedRows
from keras_transformer.data.shapes import LengthBuckets, Shapes
from keras_transformer.data.token_lists import check_special_ids, checked_ids

SPECIAL_IDS = ("pad_id", "start_id", "end_id")
_LOGGER = logging.getLogger("keras_transformer")


class Tokenizer(Protocol):
    """The interface required of a tokenizer, as in `keras_transformer.text.SentencePieceTokenizer`."""

    pad_id: int
    start_id: int
    end_id: int
    vocabulary_size: int

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Convert a string tensor (B,) to int32 ids (B, None) without special ids."""


def translation_pairs(
    pairs: Pairs,
    tokenizer: Tokenizer,
    batch_size: int | None = None,
    *,
    columns: Columns = None,
    reverse: bool = False,
    on_error: str = "raise",
    target_tokenizer: Tokenizer | None = None,
    batch_tokens: int | None = None,
    max_length: int = 128,
    length_buckets: LengthBuckets = 8,
    pad_to_multiple_of: int = 2,
    packed: bool = False,
    shuffle: bool = True,
    seed: int = 0,
) -> tf.data.Dataset:
    """Make batches to train an encoder–decoder for translation by teacher forcing.

    The decoder's inputs are `start, y1, …, yn` and its labels `y1, …, yn, end`. All pairs are tokenised once,
    when the dataset is made; their ids stay in memory (4 bytes per token, 24 per pair).
    Pairs of similar lengths are batched together: batches have one of a few shapes, of S source and T target positions,
    and all batches of the same shape have the same number of rows, so that XLA compiles few shapes. A pair is in the
    shape with the fewest positions that it fits. The last batch of each shape is completed with rows of padding, which
    losses and metrics must ignore.
    `fit(dataset)` warns that Keras does not shuffle a dataset; pass `shuffle=False` to `fit` to avoid the warning.

    Args:
        pairs: (source, target) str, in a list or another iterable that is read once; the path, or a list of
            paths, of files that `read_examples` reads, where a name with another suffix or ".txt" is that of a TSV
            file; or a finite `tf.data.Dataset` of (source, target) string scalars, whose invalid UTF-8 becomes U+FFFD.
        tokenizer: the tokenizer of the sources, and of the targets if `target_tokenizer` is not given.
        batch_size: B, the number of rows in each batch; 64 if neither it nor `batch_tokens` is given.
        columns: the columns of source and target in files, see `read_examples`; by default files must have only two.
        reverse: whether to swap sources and targets.
        on_error: "raise" to refuse malformed lines of files, "skip" to leave them out with a warning.
        target_tokenizer: the tokenizer of the targets.
        batch_tokens: the maximum number of positions of each side of a batch, including padding, instead of
            `batch_size`: a batch has `max(1, batch_tokens // max(S, T))` rows.
        max_length: the maximum number of ids of source and target, including special ids. Longer pairs are
            dropped with a warning of the logger "keras_transformer".
        length_buckets: the maximum number of shapes, which are chosen to minimize the padding of an epoch; a shape that
            saves less than 0.2 % of its positions is left out. Or the shapes, (S, T) or an integer for both, the last
            of which must be the longest and limits pairs as `max_length` does.
        pad_to_multiple_of: what chosen lengths are multiples of. Smaller numbers pad less; tensor cores of GPUs are
            faster with 8.
        packed: whether each row holds several whole pairs, which do not attend to each other, in place of shapes: all
            batches have `max_length` positions on each side. For `models.Transformer` and `models.T5`.
        shuffle: whether to reshuffle in each epoch. Otherwise pairs keep their order within each shape. Packed rows
            hold the same pairs in every epoch.
        seed: the seed of shuffling.

    Returns:
        A dataset of known cardinality with elements
        `({"source_ids": (B, S), "target_ids": (B, T)}, labels (B, T))`, all int32. `source_ids` are the ids of the
        source and the end id, `target_ids` the start id and the ids of the target, `labels` the ids of the target and
        the end id, each padded with its tokenizer's `pad_id`. With `packed`, the inputs also have "source_segment_ids"
        and "target_segment_ids" (1, 2, … for the pairs of a row, 0 for padding), "source_positions" and
        "target_positions", which start at 0 in each text.

    Raises:
        FileNotFoundError: if a path does not exist.
        TypeError: if `pairs` is none of the above.
        ValueError: if `pairs` is empty, malformed or all too long, if both `batch_size` and `batch_tokens`
            are given, or if an argument is out of range.

    Example:
        >>> from keras_transformer.text import SentencePieceTokenizer
        >>> pairs = [("hola", "hello"), ("adiós", "bye")]
        >>> tokenizer = SentencePieceTokenizer.train([text for pair in pairs for text in pair], 300, "char")
        >>> inputs, labels = next(iter(translation_pairs(pairs, tokenizer, batch_size=2)))
        >>> inputs["source_ids"].shape, inputs["target_ids"].shape, labels.shape
        (TensorShape([2, 8]), TensorShape([2, 8]), TensorShape([2, 8]))
    """
    target_tokenizer = target_tokenizer or tokenizer
    shapes = Shapes.of_pairs(batch_size, batch_tokens, max_length, length_buckets, pad_to_multiple_of)
    for argument, one in (("tokenizer", tokenizer), ("target_tokenizer", target_tokenizer)):
        check_special_ids(argument, one, SPECIAL_IDS)
    reader = PairReader(columns, reverse, on_error)
    sources, targets = zip(*tokenized_pairs(reader, pairs, tokenizer, target_tokenizer), strict=True)
    reader.finish()
    sources, targets = RaggedRows.concatenated(sources), RaggedRows.concatenated(targets)
    kept = within(sources.lengths, targets.lengths, shapes)
    if packed:
        length, tokenizers = shapes.limit, (tokenizer, target_tokenizer)
        size = shapes.rows_of(shapes.limits)
        return packed_pairs(sources, targets, kept, length, size, *tokenizers, shuffle=shuffle, seed=seed)
    buckets = shapes.buckets(row_lengths(sources.lengths, targets.lengths), kept)
    rows = buckets.batches(shuffle)
    return teacher_forced(rows, buckets.shapes, sources, targets, tokenizer, target_tokenizer, seed)


def teacher_forced(
    rows_of: BucketBatches,
    shapes: np.ndarray,
    sources: RaggedRows,
    targets: RaggedRows,
    tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    seed: int,
) -> tf.data.Dataset:
    """Return the batches of `translation_pairs` for batches of row indices, of the given shapes (k, 2)."""
    # A length that all batches share is a static shape for Keras and the compiler.
    static = [[None, int(lengths[0]) if len(set(lengths)) == 1 else None] for lengths in shapes.T.tolist()]

    def batch(number: tf.Tensor, seeds: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        rows, lengths = rows_of(number, seeds)
        source_ids, _ = _ended_and_started(sources, rows, lengths[0], tokenizer)
        labels, target_ids = _ended_and_started(targets, rows, lengths[1], target_tokenizer)
        inputs = {
            "source_ids": tf.ensure_shape(source_ids, static[0]),
            "target_ids": tf.ensure_shape(target_ids, static[1]),
        }
        return inputs, tf.ensure_shape(labels, static[1])

    return batches(rows_of.count, batch, seed, [rows_of.content, *sources, *targets])


def tokenized_pairs(
    reader: PairReader, pairs: Pairs, tokenizer: Tokenizer, target_tokenizer: Tokenizer, prefix: str = ""
) -> list[tuple[tf.RaggedTensor, tf.RaggedTensor]]:
    """Return the ids of sources, with `prefix` prepended to each source, and of targets, in chunks.

    Raises:
        ValueError: if there are no pairs.
    """
    chunks = [
        (
            checked_ids(tokenizer.tokenize(tf.strings.join([prefix, sources])), tokenizer),
            checked_ids(target_tokenizer.tokenize(targets), target_tokenizer),
        )
        for sources, targets in reader.chunks(pairs)
    ]
    if not chunks:
        reader.finish()
        raise ValueError(f"`pairs` must hold at least one pair. Received: pairs={pairs!r}")
    return chunks


def row_lengths(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the lengths of source and target with an end or start id, integers (n, 2)."""
    return np.stack([sources, targets], axis=1) + 1


def within(sources: np.ndarray, targets: np.ndarray, shapes: Shapes, of: str = "") -> np.ndarray:
    """Return the indices of pairs that are short enough, and warn about dropped pairs.

    Args:
        sources: the number of tokens in each source, (n,).
        targets: the number of tokens in each target, (n,).
        shapes: the shapes of batches, with the maximum length.
        of: a description of the pairs, for messages.

    Returns:
        Integers (k,), k > 0.

    Raises:
        ValueError: if there are none.
    """
    needed = row_lengths(sources, targets)
    kept = np.flatnonzero(shapes.fit(needed))
    limit = shapes.limit if len(set(shapes.limits)) == 1 else shapes.limits
    if not len(kept):
        raise ValueError(
            f"`max_length` (or the last of `length_buckets`) must be at least {needed.max(axis=1).min()}, the length "
            f"of the shortest of the {len(needed)} pairs{of}. Received: a limit of {limit}"
        )
    if len(kept) < len(needed):
        _LOGGER.warning(
            "translation_pairs leaves out %d of %d pairs%s: longer than %s ids, including special ones",
            len(needed) - len(kept),
            len(needed),
            of,
            limit,
        )
    return kept


def _ended_and_started(
    texts: RaggedRows, rows: tf.Tensor, length: tf.Tensor, tokenizer: Tokenizer
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the ids with an end id, and the ids with a start id, int32 (B, L) each."""
    ids, lengths = texts.gather(rows, length)  # (B, L), (B, 1)
    positions = tf.range(length)
    ended = tf.where(
        positions < lengths, ids, tf.where(positions == lengths, tokenizer.end_id, tokenizer.pad_id)
    )
    start = tf.fill([tf.size(rows), 1], tokenizer.start_id)
    shifted = tf.concat([start, ids[:, :-1]], axis=1)
    return ended, tf.where(positions <= lengths, shifted, tokenizer.pad_id)
