"""Batches of translation pairs for an encoder–decoder."""

import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.data.buckets import BucketBatches, Shapes
from keras_transformer.data.columns import Columns
from keras_transformer.data.epochs import batches
from keras_transformer.data.pair_sources import PairReader, Pairs
from keras_transformer.data.ragged_rows import RaggedRows
from keras_transformer.data.sampling import SampledRows, check_sampling, content_of, seeded, unseeded
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
    length_buckets: int | Sequence[int] = 4,
    sampling: float = 0.0,
    shuffle: bool = True,
    seed: int = 0,
) -> tf.data.Dataset:
    """Make batches to train an encoder–decoder for translation by teacher forcing.

    The decoder's inputs are `start, y1, …, yn` and its labels `y1, …, yn, end`. All pairs are tokenised once,
    when the dataset is made; their ids stay in memory (4 bytes per token, 24 per pair).
    Pairs of similar length are batched together: the length L of a batch, the same for source and target, is one of a
    few lengths, and all batches of the same length have the same number of rows, so that XLA compiles one shape per
    length. The last batch of each length is completed with rows of padding, which losses and metrics must ignore.
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
        batch_tokens: the approximate number of target positions in each batch, including padding, instead of
            `batch_size`: a batch has `max(1, batch_tokens // L)` rows.
        max_length: the maximum number of ids of source and target, including special ids. Longer pairs are
            dropped with a warning of the logger "keras_transformer".
        length_buckets: the maximum number of lengths L, which are chosen to minimize padding; or the lengths, the last
            of which limits pairs as `max_length` does.
        sampling: the rate of random segmentations, another one of each text in each epoch (subword regularization):
            of a byte-pair tokenizer the probability of BPE-dropout, often 0.1; of a SentencePiece model of unigrams the
            exponent α, often 0.1 to 0.5 (see `Tokenizer.sample`); 0 for none. Texts are then kept in memory and
            tokenised during training, and lengths are chosen for longer rows; a sample that is too long for its batch
            is replaced by the usual segmentation. `training.ExactResume` refuses SentencePiece's sampler, which takes
            no seed.
        shuffle: whether to reshuffle in each epoch. Otherwise pairs keep their order within each length.
        seed: the seed of shuffling.

    Returns:
        A dataset of known cardinality with elements
        `({"source_ids": (B, L), "target_ids": (B, L)}, labels (B, L))`, all int32. `source_ids` are the ids of the
        source and the end id, `target_ids` the start id and the ids of the target, `labels` the ids of the target and
        the end id, each padded with its tokenizer's `pad_id`.

    Raises:
        FileNotFoundError: if a path does not exist.
        TypeError: if `pairs` is none of the above.
        ValueError: if `pairs` is empty, malformed or all too long, if both `batch_size` and `batch_tokens`
            are given, if `sampling` is for a tokenizer that cannot sample, or if an argument is out of range.

    Example:
        >>> from keras_transformer.text import SentencePieceTokenizer
        >>> pairs = [("hola", "hello"), ("adiós", "bye")]
        >>> tokenizer = SentencePieceTokenizer.train([text for pair in pairs for text in pair], 300, "char")
        >>> inputs, labels = next(iter(translation_pairs(pairs, tokenizer, batch_size=2)))
        >>> inputs["source_ids"].shape, inputs["target_ids"].shape, labels.shape
        (TensorShape([2, 8]), TensorShape([2, 8]), TensorShape([2, 8]))
    """
    target_tokenizer = target_tokenizer or tokenizer
    shapes = Shapes.of(batch_size, batch_tokens, max_length, length_buckets)
    for argument, one in (("tokenizer", tokenizer), ("target_tokenizer", target_tokenizer)):
        check_special_ids(argument, one, SPECIAL_IDS)
    is_sampled = check_sampling(sampling, tokenizer=tokenizer, target_tokenizer=target_tokenizer)
    reader = PairReader(columns, reverse, on_error)
    if is_sampled and (chunks := list(reader.chunks(pairs))):
        texts = tuple(tf.concat(side, axis=0) for side in zip(*chunks, strict=True))
        pairs = tf.data.Dataset.from_tensor_slices(texts)
        reader.finish()
        reader = PairReader()
    sources, targets = zip(*tokenized_pairs(reader, pairs, tokenizer, target_tokenizer), strict=True)
    reader.finish()
    sources, targets = RaggedRows.concatenated(sources), RaggedRows.concatenated(targets)
    kept = within(sources.lengths, targets.lengths, shapes)
    if is_sampled:
        sources = SampledRows(sources, texts[0], tokenizer, sampling)
        targets = SampledRows(targets, texts[1], target_tokenizer, sampling)
    needed = np.minimum(row_lengths(sources.lengths, targets.lengths), shapes.limit)
    buckets = shapes.buckets(needed, kept)
    rows = buckets.batches(shuffle)
    return teacher_forced(rows, buckets.lengths, sources, targets, tokenizer, target_tokenizer, seed)


def teacher_forced(
    rows_of: BucketBatches,
    lengths: np.ndarray,
    sources: RaggedRows | SampledRows,
    targets: RaggedRows | SampledRows,
    tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    seed: int,
) -> tf.data.Dataset:
    """Return the batches of `translation_pairs` for batches of row indices, of the given lengths (k,)."""

    def batch(number: tf.Tensor, seeds: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        rows, length = rows_of(number, seeds)
        of_batch = [seeded(side, number, seeds) for side in (sources, targets)]
        source_ids, _ = _ended_and_started(of_batch[0], rows, length, tokenizer)
        labels, target_ids = _ended_and_started(of_batch[1], rows, length, target_tokenizer)
        # A single length is a static shape for Keras and the compiler.
        shape = [None, int(lengths[0]) if len(lengths) == 1 else None]
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        return tf.nest.map_structure(lambda ids: tf.ensure_shape(ids, shape), (inputs, labels))

    content = [rows_of.content, *content_of(sources), *content_of(targets)]
    return batches(rows_of.count, batch, seed, content, unseeded(sources, targets))


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
    """Return the lengths of rows, the maximum of source and target plus one for the end or start id."""
    return np.maximum(sources, targets) + 1


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
    kept = np.flatnonzero(needed <= shapes.limit)
    if not len(kept):
        raise ValueError(
            f"`max_length` (or the last of `length_buckets`) must be at least {needed.min()}, the length of "
            f"the shortest of the {len(needed)} pairs{of}. Received: a limit of {shapes.limit}"
        )
    if len(kept) < len(needed):
        _LOGGER.warning(
            "translation_pairs leaves out %d of %d pairs%s: longer than %d ids, including special ones",
            len(needed) - len(kept),
            len(needed),
            of,
            shapes.limit,
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
