"""Batches of translation pairs for an encoder–decoder."""

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.data.buckets import BucketBatches
from keras_transformer.data.epochs import Shard, batch_seed, batches, row_batches
from keras_transformer.data.examples import stored
from keras_transformer.data.packing import PackedPairs
from keras_transformer.data.pair_sources import PairReader, Pairs, Row
from keras_transformer.data.ragged_rows import RaggedRows, RowsToStore
from keras_transformer.data.sampling import SampledRows, check_sampling, seeded, unseeded
from keras_transformer.data.shapes import LengthBuckets, LengthCounts, RowLengths, Shapes
from keras_transformer.data.storage import Arrays, Chunk
from keras_transformer.data.token_lists import check_special_ids, tokenized
from keras_transformer_options.columns import Columns

Sides = tuple[RaggedRows | SampledRows, ...]

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
    sampling: float = 0.0,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> tf.data.Dataset:
    """Make batches to train an encoder–decoder for translation by teacher forcing.

    The decoder's inputs are `start, y1, …, yn` and its labels `y1, …, yn, end`. All pairs are tokenised once,
    when the dataset is made; their ids stay in memory (4 bytes per token, 24 per pair), or in files of `cache_dir`.
    Pairs of similar lengths are batched together: batches have one of a few shapes, of S source and T target positions,
    and all batches of the same shape have the same number of rows, so that XLA compiles few shapes. A pair is in the
    shape with the fewest positions that it fits. The last batch of each shape is completed with rows of padding, which
    losses and metrics must ignore.
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
        sampling: the rate of random segmentations, another one of each text in each epoch (subword regularization):
            of a byte-pair tokenizer the probability of BPE-dropout, often 0.1; of a SentencePiece model of unigrams the
            exponent α, often 0.1 to 0.5 (see `Tokenizer.sample`); 0 for none. Texts are then stored too and tokenised
            during training, and shapes are chosen for longer rows; a sample that is too long for its batch is replaced
            by the usual segmentation. `training.ExactResume` refuses SentencePiece's sampler, which takes no seed.
        shuffle: whether to reshuffle in each epoch. Otherwise pairs keep their order within each shape. Packed rows
            hold the same pairs in every epoch.
        seed: the seed of shuffling.
        shard: (index, count), to read a part of each batch as one of several workers: an epoch is that of one worker
            with `count` times the batch size, of whose batches worker `index`, from 0, has its part of the rows. All
            workers have batches of equal shapes at every step.
        cache_dir: a folder for the ids, which are then mapped instead of being in memory: memory does not grow with
            the data. They are written there once for equal contents, tokenizers and options that change ids, and found
            again; files are read to compare their contents, and other iterables are copied to a temporary file. The
            folder can be removed when no dataset uses it.

    Returns:
        A dataset of known cardinality with elements
        `({"source_ids": (B, S), "target_ids": (B, T)}, labels (B, T))`, all int32. `source_ids` are the ids of the
        source and the end id, `target_ids` the start id and the ids of the target, `labels` the ids of the target and
        the end id, each padded with its tokenizer's `pad_id`. With `packed`, the inputs also have "source_segment_ids"
        and "target_segment_ids" (1, 2, … for the pairs of a row, 0 for padding), "source_positions" and
        "target_positions", which start at 0 in each text.

    Raises:
        FileNotFoundError: if a path does not exist, or a file of `cache_dir` has disappeared.
        OSError: if files cannot be written to `cache_dir`; nothing incomplete is left.
        TypeError: if `pairs` is none of the above.
        ValueError: if `pairs` is empty, malformed or all too long, if both `batch_size` and `batch_tokens`
            are given, if `sampling` is for a tokenizer that cannot sample or for packed rows, if files of `cache_dir`
            have been changed, or if an argument is out of range.

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
    part = Shard.of(shard)
    for argument, one in (("tokenizer", tokenizer), ("target_tokenizer", target_tokenizer)):
        check_special_ids(argument, one, SPECIAL_IDS)
    is_sampled = check_sampling(sampling, tokenizer=tokenizer, target_tokenizer=target_tokenizer)
    if is_sampled and packed:
        raise ValueError(
            "`sampling` must be 0 for packed rows, whose lengths are fixed. "
            f"Received: sampling={sampling}, packed=True"
        )
    arrays = stored_pairs(
        {"": pairs},
        tokenizer,
        target_tokenizer,
        cache_dir,
        columns=columns,
        reverse=reverse,
        on_error=on_error,
        keep_texts=is_sampled,
    )
    lengths, ends = row_lengths(arrays.rows("sources"), arrays.rows("targets")), arrays["ends"]
    counts = within(lengths, ends, shapes, [""])
    if packed:
        rows = PackedPairs(arrays, lengths, shapes.limit, tokenizer, target_tokenizer)
        return row_batches(rows, shapes.rows_of(shapes.limits), shuffle, seed, part)
    sides: Sides = arrays.rows("sources"), arrays.rows("targets")
    if is_sampled:
        sides = sampled_sides(arrays, tokenizer, target_tokenizer, sampling)
        arrays = arrays.with_content(f"sampling {sampling}")
        lengths = with_room(lengths, row_lengths(*sides), shapes.limits)
        counts = shapes.count_lengths(lengths, ends)
    buckets = shapes.buckets(arrays, lengths, counts, ends, part.count)
    rows = buckets.batches(shuffle, part)
    return teacher_forced(rows, arrays, sides, tokenizer, target_tokenizer, seed, part)


def teacher_forced(
    rows_of: BucketBatches,
    arrays: Arrays,
    sides: Sides,
    tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    seed: int,
    shard: Shard,
) -> tf.data.Dataset:
    """Return the batches of `translation_pairs` for batches of row indices."""
    # A length that all batches share is a static shape for Keras and the compiler.
    source_shape, target_shape = ([None, length] for length in rows_of.static_lengths)

    def batch(number: tf.Tensor, seeds: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        rows, lengths = rows_of(number, seeds)
        seed_of_batch = batch_seed(number, seeds, shard)
        sources, targets = (seeded(side, seed_of_batch) for side in sides)
        source_ids, _ = _ended_and_started(sources, rows, lengths[0], tokenizer)
        labels, target_ids = _ended_and_started(targets, rows, lengths[1], target_tokenizer)
        inputs = {
            "source_ids": tf.ensure_shape(source_ids, source_shape),
            "target_ids": tf.ensure_shape(target_ids, target_shape),
        }
        return inputs, tf.ensure_shape(labels, target_shape)

    content = [*arrays.content, *rows_of.content]
    return batches(rows_of.count, batch, seed, content, shard, unseeded(*sides))


def stored_pairs(
    tasks: Mapping[str, Pairs],
    tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    cache_dir: str | os.PathLike[str] | None,
    *,
    columns: Columns,
    reverse: bool,
    on_error: str,
    keep_texts: bool = False,
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
        keep_texts: whether to store the texts, too.

    Returns:
        Rows "sources" and "targets", with `keep_texts` also "source_texts" and "target_texts", and "ends", the index
        after the last pair of each task.
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
            if keep_texts:
                texts = {"source_texts": sources, "target_texts": targets}
                yield {name: RowsToStore.of_strings(side) for name, side in texts.items()}
            counts += np.bincount(task_of, minlength=len(prefixes))
        yield {"ends": np.cumsum(counts)}

    return stored(
        PairReader(columns, reverse, on_error).examples(tasks.values()),
        to_arrays,
        cache_dir,
        tokenizer=tokenizer,
        target_tokenizer=target_tokenizer,
        task="pairs with texts" if keep_texts else "pairs",
        prefixes=list(tasks),
        columns=columns,
        reverse=reverse,
        on_error=on_error,
    )


def sampled_sides(
    arrays: Arrays, tokenizer: Tokenizer, target_tokenizer: Tokenizer, sampling: float
) -> Sides:
    """Return the samples of both sides of pairs that are stored with their texts."""
    sides = ("source", tokenizer), ("target", target_tokenizer)
    return tuple(
        SampledRows.of(arrays.rows(f"{side}s"), arrays.rows(f"{side}_texts"), each, sampling)
        for side, each in sides
    )


def row_lengths(*sides: RaggedRows | SampledRows) -> RowLengths:
    """Return the function to the lengths of source and target with an end or start id, integers (n, 2)."""
    return lambda start, end: np.stack([texts.lengths(start, end) for texts in sides], axis=1) + 1


def with_room(lengths: RowLengths, sampled: RowLengths, limits: Sequence[int]) -> RowLengths:
    """Return the lengths that leave room for samples, up to `limits`; longer rows keep theirs."""
    return lambda start, end: np.maximum(np.minimum(sampled(start, end), limits), lengths(start, end))


def within(
    lengths: RowLengths, ends: Sequence[int], shapes: Shapes, descriptions: Iterable[str]
) -> LengthCounts:
    """Count the pairs of each length, and warn about those that are too long.

    Args:
        lengths: the lengths of rows.
        ends: the index after the last pair of each of m tasks.
        shapes: the shapes of batches, with the maximum length.
        descriptions: a description of each task, for messages.

    Returns:
        The result of `Shapes.count_lengths`.

    Raises:
        ValueError: if all pairs of a task are too long.
    """
    counts = shapes.count_lengths(lengths, ends)
    limit = shapes.limit if len(set(shapes.limits)) == 1 else shapes.limits
    parts = itertools.pairwise([0, *ends])
    for (start, end), too_long, of in zip(parts, counts.too_long, descriptions, strict=True):
        if too_long == end - start:
            raise ValueError(
                "`max_length` (or the length of the longest batches) must be at least "
                f"{lengths(start, end).max(axis=1).min()}, the length of the shortest of the {end - start} pairs{of}. "
                f"Received: a limit of {limit}"
            )
        if too_long:
            _LOGGER.warning(
                "translation_pairs leaves out %d of %d pairs%s: longer than %s ids, including special ones",
                too_long,
                end - start,
                of,
                limit,
            )
    return counts


def _ended_and_started(
    texts: RaggedRows | SampledRows, rows: tf.Tensor, length: tf.Tensor, tokenizer: Tokenizer
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
