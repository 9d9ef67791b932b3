"""Batches of translation pairs for an encoder–decoder."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.data.buckets import BucketBatches, RowLengths, Shapes
from keras_transformer.data.columns import Columns
from keras_transformer.data.epochs import Shard, batches
from keras_transformer.data.examples import stored
from keras_transformer.data.pair_sources import PairReader, Pairs, Row
from keras_transformer.data.ragged_rows import RaggedRows, RowsToStore
from keras_transformer.data.storage import Arrays, Chunk
from keras_transformer.data.token_lists import check_special_ids, tokenized

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
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> tf.data.Dataset:
    """Make batches to train an encoder–decoder for translation by teacher forcing.

    The decoder's inputs are `start, y1, …, yn` and its labels `y1, …, yn, end`. All pairs are tokenised once,
    when the dataset is made; their ids stay in memory (4 bytes per token, 24 per pair), or in files of `cache_dir`.
    Pairs of similar length are batched together: the length L of a batch, the same for source and target, is one of a
    few lengths, and all batches of the same length have the same number of rows, so that XLA compiles one shape per
    length. The last batch of each length is completed with rows of padding, which losses and metrics must ignore.
    `fit(dataset)` warns that Keras does not shuffle a dataset; pass `shuffle=False` to `fit` to avoid the warning.

    Args:
        pairs: (source, target) str, in a list or another iterable that is read once; the path or pattern, or a list
            of them, of files that `read_examples` reads, where a name with another suffix or ".txt" is that of a TSV
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
        shuffle: whether to reshuffle in each epoch. Otherwise pairs keep their order within each length.
        seed: the seed of shuffling.
        shard: (index, count), to read a part of each batch as one of several workers: an epoch is that of one worker
            with `count` times the batch size, of whose batches worker `index`, from 0, has every `count`-th row. All
            workers have batches of equal shapes at every step.
        cache_dir: a folder for the ids, which are then mapped instead of being in memory: memory does not grow with
            the data. They are written there once for equal contents, tokenizers and options that change ids, and found
            again; files are read to compare their contents, and other iterables are copied to a temporary file. The
            folder can be removed when no dataset uses it.

    Returns:
        A dataset of known cardinality with elements
        `({"source_ids": (B, L), "target_ids": (B, L)}, labels (B, L))`, all int32. `source_ids` are the ids of the
        source and the end id, `target_ids` the start id and the ids of the target, `labels` the ids of the target and
        the end id, each padded with its tokenizer's `pad_id`.

    Raises:
        FileNotFoundError: if a path does not exist, or a file of `cache_dir` has disappeared.
        OSError: if files cannot be written to `cache_dir`; nothing incomplete is left.
        TypeError: if `pairs` is none of the above.
        ValueError: if `pairs` is empty, malformed or all too long, if both `batch_size` and `batch_tokens`
            are given, if files of `cache_dir` have been changed, or if an argument is out of range.

    Example:
        >>> from keras_transformer.text import SentencePieceTokenizer
        >>> pairs = [("hola", "hello"), ("adiós", "bye")]
        >>> tokenizer = SentencePieceTokenizer.train([text for pair in pairs for text in pair], 300, "char")
        >>> inputs, labels = next(iter(translation_pairs(pairs, tokenizer, batch_size=2)))
        >>> inputs["source_ids"].shape, inputs["target_ids"].shape, labels.shape
        (TensorShape([2, 8]), TensorShape([2, 8]), TensorShape([2, 8]))
    """
    target_tokenizer = target_tokenizer or tokenizer
    shapes, part = Shapes.of(batch_size, batch_tokens, max_length, length_buckets), Shard.of(shard)
    for argument, one in (("tokenizer", tokenizer), ("target_tokenizer", target_tokenizer)):
        check_special_ids(argument, one, SPECIAL_IDS)
    arrays = stored_pairs(
        {"": pairs},
        tokenizer,
        target_tokenizer,
        cache_dir,
        columns=columns,
        reverse=reverse,
        on_error=on_error,
    )
    lengths, ends = row_lengths(arrays), arrays["ends"]
    buckets = shapes.buckets(arrays, lengths, within(lengths, ends, shapes, [""]), ends)
    return teacher_forced(buckets.batches(shuffle, part), arrays, tokenizer, target_tokenizer, seed, part)


def teacher_forced(
    rows_of: BucketBatches,
    arrays: Arrays,
    tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    seed: int,
    shard: Shard,
) -> tf.data.Dataset:
    """Return the batches of `translation_pairs` for batches of row indices."""
    sources, targets = arrays.rows("sources"), arrays.rows("targets")
    # A single length is a static shape for Keras and the compiler.
    shape = [None, rows_of.static_length]

    def batch(number: tf.Tensor, seeds: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        rows, length = rows_of(number, seeds)
        source_ids, _ = _ended_and_started(sources, rows, length, tokenizer)
        labels, target_ids = _ended_and_started(targets, rows, length, target_tokenizer)
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        return tf.nest.map_structure(lambda ids: tf.ensure_shape(ids, shape), (inputs, labels))

    return batches(rows_of.count, batch, seed, [*arrays.content, *rows_of.content], shard)


def stored_pairs(
    tasks: Mapping[str, Pairs],
    tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    cache_dir: str | os.PathLike[str] | None,
    *,
    columns: Columns,
    reverse: bool,
    on_error: str,
) -> Arrays:
    """Tokenise the pairs of tasks, and store their ids.

    Args:
        tasks: the pairs of each task by the prefix of its sources.
        tokenizer: the tokenizer of the sources.
        target_tokenizer: the tokenizer of the targets.
        cache_dir: see `translation_pairs`.
        columns: see `translation_pairs`.
        reverse: see `translation_pairs`.
        on_error: see `translation_pairs`.

    Returns:
        Rows "sources" and "targets", and "ends", the index after the last pair of each task.
    """
    prefixes = [prefix.encode() for prefix in tasks]

    def to_arrays(chunks: Iterator[list[Row]]) -> Iterator[Chunk]:
        counts = np.zeros(len(prefixes), np.int64)
        for chunk in chunks:
            task_of, sources, targets = zip(*chunk, strict=True)
            sources = [prefixes[task] + source for task, source in zip(task_of, sources, strict=True)]
            yield {
                "sources": RowsToStore.of_ragged(tokenized(sources, tokenizer)),
                "targets": RowsToStore.of_ragged(tokenized(targets, target_tokenizer)),
            }
            counts += np.bincount(task_of, minlength=len(prefixes))
        yield {"ends": np.cumsum(counts)}

    return stored(
        PairReader(columns, reverse, on_error).examples(tasks.values()),
        to_arrays,
        cache_dir,
        tokenizer=tokenizer,
        target_tokenizer=target_tokenizer,
        task="pairs",
        prefixes=list(tasks),
        columns=columns,
        reverse=reverse,
        on_error=on_error,
    )


def row_lengths(arrays: Arrays) -> RowLengths:
    """Return the function to the lengths of rows, the maximum of source and target plus one for the end or start id."""
    sources, targets = arrays.rows("sources"), arrays.rows("targets")
    return lambda start, end: np.maximum(sources.lengths(start, end), targets.lengths(start, end)) + 1


def within(
    lengths: RowLengths, ends: Sequence[int], shapes: Shapes, descriptions: Iterable[str]
) -> np.ndarray:
    """Count the pairs of each length, and warn about those that are too long.

    Args:
        lengths: the lengths of rows.
        ends: the index after the last pair of each of m tasks.
        shapes: the shapes of batches, with the maximum length.
        descriptions: a description of each task, for messages.

    Returns:
        The result of `Shapes.length_histograms`, integers (m, limit + 2).

    Raises:
        ValueError: if all pairs of a task are too long.
    """
    histograms = shapes.length_histograms(lengths, ends)
    starts = [0, *ends[:-1]]
    for histogram, start, end, of in zip(histograms, starts, ends, descriptions, strict=True):
        count, too_long = int(histogram.sum()), int(histogram[-1])
        if count == too_long:
            raise ValueError(
                f"`max_length` (or the last of `length_buckets`) must be at least {lengths(start, end).min()}, the "
                f"length of the shortest of the {count} pairs{of}. Received: a limit of {shapes.limit}"
            )
        if too_long:
            _LOGGER.warning(
                "translation_pairs leaves out %d of %d pairs%s: longer than %d ids, including special ones",
                too_long,
                count,
                of,
                shapes.limit,
            )
    return histograms


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
