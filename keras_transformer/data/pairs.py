"""Batches of pairs of texts for an encoder–decoder: translation, and mixtures of tasks."""

import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from keras_transformer.data.batches import Dataset, batches
from keras_transformer.data.buckets import BucketOrder, LengthBuckets, LengthCounts, RowLengths, Shapes
from keras_transformer.data.epochs import Batch, RowOrder, Shard
from keras_transformer.data.examples import stored
from keras_transformer.data.packing import PackedPairs
from keras_transformer.data.pair_sources import PairReader, Pairs, Row
from keras_transformer.data.sampling import SampledRows, check_sampling, nondeterministic_tokenizer, seeded
from keras_transformer.data.storage import Arrays, Chunk, RaggedRows, RowsToStore
from keras_transformer.data.tokenized_texts import Tokenizer, check_special_ids, tokenized
from keras_transformer_options.arguments import (
    ArgumentError,
    check,
    check_ids,
    check_one_of,
    check_positive,
    check_positive_integer,
)
from keras_transformer_options.columns import Columns

_LOGGER = logging.getLogger("keras_transformer")


class Framing(NamedTuple):
    """The special ids around the texts of one side.

    Attributes:
        start: the id before the decoder's inputs.
        before: the ids before each text.
        after: the ids after each text, before the last one.
        last: the last id of sources and of labels.
        pad_id: the padding value.
    """

    start: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    last: int
    pad_id: int

    @classmethod
    def of_sources(cls, tokenizer: Any, language: str | None = None) -> Self:
        """Return the ids around sources: those before each source, and the token of the language."""
        start_id, end_id, pad_id = tokenizer.start_id, tokenizer.end_id, tokenizer.pad_id
        before = (*getattr(tokenizer, "source_prefix_ids", ()),)
        if language is None:
            return cls(start_id, before, (), end_id, pad_id)
        id_ = tokenizer.languages[language]
        if tokenizer.language_after_source:
            return cls(start_id, before, (end_id,), id_, pad_id)
        return cls(start_id, (id_, *before), (), end_id, pad_id)

    @classmethod
    def of_targets(cls, tokenizer: Any, prefix: Sequence[int] = (), language: str | None = None) -> Self:
        """Return the ids around targets: a prefix that generation forces, and the token of the language."""
        start_id, end_id, pad_id = tokenizer.start_id, tokenizer.end_id, tokenizer.pad_id
        if language is None:
            return cls(start_id, (*prefix,), (), end_id, pad_id)
        id_ = tokenizer.languages[language]
        if tokenizer.language_is_start:
            return cls(id_, (*prefix,), (end_id,), id_, pad_id)
        return cls(start_id, (id_, *prefix), (), end_id, pad_id)

    def stored(self, rows: RowsToStore, limit: int | None = None) -> RowsToStore:
        """Return rows of ids with those before and after them, without the first and the last.

        With a limit, texts are cut off so that no row with its first or last id is longer.
        """
        if limit is not None:
            rows = rows.truncated(max(limit - 1 - len(self.before) - len(self.after), 0))
        before, after = (RowsToStore.repeated(ids, len(rows.lengths)) for ids in (self.before, self.after))
        return before.followed_by(rows).followed_by(after)


def translation_pairs(
    pairs: Pairs,
    tokenizer: Tokenizer,
    batch_size: int | None = None,
    *,
    columns: Columns = None,
    reverse: bool = False,
    on_error: str = "raise",
    target_tokenizer: Tokenizer | None = None,
    target_prefix: Sequence[int] = (),
    source_language: str | None = None,
    target_language: str | None = None,
    batch_tokens: int | None = None,
    max_length: int | tuple[int, int] = 128,
    truncate: bool = False,
    length_buckets: LengthBuckets = 16,
    pad_to_multiple_of: int = 2,
    packed: bool = False,
    sampling: float = 0.0,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Make batches to train an encoder–decoder for translation by teacher forcing.

    The decoder's inputs are `start, y1, …, yn` and its labels `y1, …, yn, end`. All pairs are tokenised once,
    when the dataset is made; their ids stay in memory (4 bytes per token, 24 per pair), or in files of `cache_dir`.
    Pairs of similar lengths are batched together: batches have one of a few shapes, of S source and T target positions,
    and all batches of the same shape have the same number of rows, so that XLA compiles few shapes. A pair goes into
    the smallest shape that it fits. The last batch of each shape is completed with rows of padding, which
    losses and metrics must ignore.
    `fit(dataset)` warns that Keras does not shuffle a dataset; pass `shuffle=False` to `fit` to avoid the warning.

    Args:
        pairs: (source, target) str, in a list or another iterable that is read once; the path or pattern, or a list
            of them, of files that `read_examples` reads, where a name with another suffix or ".txt" is read as
            TSV; or a finite `tf.data.Dataset` of (source, target) string scalars, whose invalid UTF-8 becomes U+FFFD.
        tokenizer: the tokenizer of the sources, and of the targets if `target_tokenizer` is not given.
        batch_size: B, the number of rows in each batch; 64 if neither it nor `batch_tokens` is given.
        columns: the columns of source and target in files, see `read_examples`; by default files must have only two.
        reverse: whether to swap sources and targets.
        on_error: "raise" to raise an error for malformed lines of files, "skip" to skip them with a warning.
        target_tokenizer: the tokenizer of the targets.
        target_prefix: ids before each target, which generation forces, such as that of BART's `<s>`. Ids before each
            source, `source_prefix_ids`, are of the tokenizer.
        source_language: for a tokenizer with `languages`, such as NLLB-200's, the language of the sources, whose token
            is where the tokenizer of `transformers` has it: before or after each source.
        target_language: the language of the targets, likewise: its token is before each target or, for mBART, in place
            of the start token and after the end token.
        batch_tokens: the maximum number of positions of each side of a batch, including padding, instead of
            `batch_size`: a batch has `max(1, batch_tokens // max(S, T))` rows.
        max_length: the maximum number of ids of source and target, or of each, (source, target), including special
            ids. Longer pairs are dropped with a warning of the logger "keras_transformer".
        truncate: whether to cut off longer sources and targets before their end ids, instead of dropping the pairs.
        length_buckets: the maximum number of shapes, which are chosen to minimize the padding of an epoch; a shape that
            saves less than 0.2 % of its positions is left out. Or the shapes, (S, T) or an integer for both, the last
            of which must be the longest and limits pairs as `max_length` does.
        pad_to_multiple_of: the number of which chosen lengths are multiples. Smaller numbers pad less; tensor cores of
            GPUs are faster with 8.
        packed: whether to pack several pairs, which do not attend to each other, into each row instead of choosing
            shapes: all batches have `max_length` positions on each side. For `models.Transformer` and `models.T5`.
        sampling: the rate of random segmentations, another one of each text in each epoch (subword regularization):
            for a byte-pair tokenizer the probability of BPE-dropout, often 0.1; for a SentencePiece unigram model the
            exponent α, often 0.1 to 0.5 (see `Tokenizer.sample`); 0 for none. Texts are then stored too and tokenised
            during training, and shapes are chosen for longer rows; a sample that is too long for its batch is replaced
            by the usual segmentation. `training.ExactResume` does not support SentencePiece's sampler, which takes no
            seed.
        shuffle: whether to reshuffle in each epoch. Otherwise pairs keep their order within each shape. Packed rows
            hold the same pairs in every epoch.
        seed: the seed of shuffling.
        shard: (index, count), to read one shard of each batch as one of several workers. An epoch has the batches of a
            single worker with `count` times the batch size; each is split among the workers, numbered from 0. All
            workers have batches of equal shapes at every step.
        cache_dir: a folder for the ids, which are then memory-mapped: memory use does not grow with the data. They are
            written once for equal contents, tokenizers and options that change ids, and reused afterwards; files are
            read to compare their contents, and other iterables are copied to a temporary file. The
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
        ValueError: if `pairs` is empty, malformed or all too long, if both `batch_size` and `batch_tokens` are given,
            if `sampling` is for a tokenizer that cannot sample or for packed rows, if a tokenizer has languages and
            none of them is given, or if files of `cache_dir` have been changed.

    Example:
        >>> from keras_transformer.text import SentencePieceTokenizer
        >>> pairs = [("hola", "hello"), ("adiós", "bye")]
        >>> tokenizer = SentencePieceTokenizer.train([text for pair in pairs for text in pair], 300, "char")
        >>> inputs, labels = next(iter(translation_pairs(pairs, tokenizer, batch_size=2)))
        >>> inputs["source_ids"].shape, inputs["target_ids"].shape, labels.shape
        (TensorShape([2, 8]), TensorShape([2, 8]), TensorShape([2, 8]))
    """
    shapes = Shapes.of_pairs(batch_size, batch_tokens, max_length, length_buckets, pad_to_multiple_of)
    target_tokenizer = target_tokenizer or tokenizer
    _check_language(tokenizer, "source_language", source_language)
    _check_language(target_tokenizer, "target_language", target_language)
    return _batches(
        {"": pairs},
        PairReader(columns, reverse, on_error),
        (tokenizer, target_tokenizer),
        shapes,
        Shard.of(shard),
        target_prefix=target_prefix,
        languages=(source_language, target_language),
        truncate=truncate,
        packed=packed,
        sampling=sampling,
        shuffle=shuffle,
        seed=seed,
        cache_dir=cache_dir,
    )


def multi_task_pairs(
    tasks: Mapping[str, Pairs],
    tokenizer: Tokenizer,
    batch_size: int | None = None,
    *,
    columns: Columns = None,
    reverse: bool = False,
    on_error: str = "raise",
    limit: int | None = None,
    temperature: float = 1.0,
    batch_tokens: int | None = None,
    max_length: int = 512,
    length_buckets: LengthBuckets = 16,
    pad_to_multiple_of: int = 2,
    sampling: float = 0.0,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Dataset:
    r"""Make batches to train one encoder–decoder on several tasks, each marked by a prefix of its sources.

    A task m with $e_m$ pairs contributes the fraction $r_m$ of the examples of an epoch:

    $$r_m = \frac{\min(e_m, K)^{1/T}}{\sum_n \min(e_n, K)^{1/T}}$$

    An epoch has $\sum_n \min(e_n, K)$ examples; the lengths of a task's examples are distributed as in its pairs. If a
    task has more pairs than examples in an epoch, each epoch samples different pairs; if it has fewer, pairs repeat
    after all have occurred. Without `limit` and `temperature`, an epoch has every pair once.

    Args:
        tasks: a mapping from prefixes such as "translate English to German: " to the pairs of each task, in any form
            that `translation_pairs` accepts.
        tokenizer: the tokenizer of sources with their prefix, and of targets.
        batch_size: the number of rows in each batch, see `translation_pairs`.
        columns: the columns of source and target in the files of all tasks, see `translation_pairs`.
        reverse: whether to swap sources and targets in all tasks.
        on_error: "raise" to raise an error for malformed lines of files, "skip" to skip them with a warning.
        limit: K, the artificial limit of a task's size; by default there is none.
        temperature: T. 1 mixes in proportion to the sizes; higher values make the fractions more equal.
        batch_tokens: the maximum number of positions of each side of a batch, instead of `batch_size`.
        max_length: the maximum length of sources, including the prefix, and of targets. Longer pairs are dropped with
            a warning.
        length_buckets: the maximum number of shapes of batches, or these shapes, see `translation_pairs`.
        pad_to_multiple_of: the number of which chosen lengths are multiples.
        sampling: the rate of random segmentations of prefixed sources and of targets, see `translation_pairs`.
        shuffle: whether the order of examples differs in each epoch, and the examples if an epoch does not have all.
        seed: the seed of shuffling and sampling.
        shard: (index, count), to read one shard of each batch as one of several workers, see `translation_pairs`.
        cache_dir: a folder for the ids, see `translation_pairs`.

    Returns:
        A dataset of known cardinality with the elements of `translation_pairs`, for `models.T5`.

    Example:
        >>> from keras_transformer.text import ByteTokenizer
        >>> tokenizer = ByteTokenizer()
        >>> tasks = {"double: ": [("a", "aa"), ("b", "bb")], "reverse: ": [("ab", "ba")]}
        >>> inputs, labels = next(iter(multi_task_pairs(tasks, tokenizer, batch_size=4)))
        >>> inputs["source_ids"].shape, labels.shape  # three pairs and a row of padding
        (TensorShape([4, 12]), TensorShape([4, 4]))

    References:
        Raffel et al., "Exploring the Limits of Transfer Learning" (2020), section 3.5.2.
    """
    if not isinstance(tasks, Mapping):
        raise TypeError(f"`tasks` must be a mapping of prefixes to pairs. Received: tasks={tasks!r}")
    if not tasks:
        raise ValueError("`tasks` must hold at least one task. Received: none")
    if limit is not None:
        check_positive_integer(limit=limit)
    check_positive(temperature=temperature)
    shapes = Shapes.of_pairs(batch_size, batch_tokens, max_length, length_buckets, pad_to_multiple_of)

    def mixture(pairs: np.ndarray) -> np.ndarray:
        """Return the number of examples per epoch of each bucket and task from the number of pairs (k, m)."""
        sizes = np.minimum(pairs.sum(axis=0), np.inf if limit is None else limit)
        numbers = _apportioned(int(sizes.sum()), sizes ** (1 / temperature))
        # Distribute the examples of each task over the buckets in proportion to its pairs.
        columns = [_apportioned(number, column) for number, column in zip(numbers, pairs.T, strict=True)]
        return np.stack(columns, axis=1)

    return _batches(
        tasks,
        PairReader(columns, reverse, on_error),
        (tokenizer, tokenizer),
        shapes,
        Shard.of(shard),
        mixture,
        sampling=sampling,
        shuffle=shuffle,
        seed=seed,
        cache_dir=cache_dir,
    )


def _batches(
    tasks: Mapping[str, Pairs],
    reader: PairReader,
    tokenizers: tuple[Tokenizer, Tokenizer],
    shapes: Shapes,
    shard: Shard,
    mixture: Callable[[np.ndarray], np.ndarray] | None = None,
    *,
    target_prefix: Sequence[int] = (),
    languages: tuple[str | None, str | None] = (None, None),
    truncate: bool = False,
    packed: bool = False,
    sampling: float,
    shuffle: bool,
    seed: int,
    cache_dir: str | os.PathLike[str] | None,
) -> Dataset:
    """Make the batches of `translation_pairs` from the pairs of tasks, each with a prefix of its sources."""
    arguments = dict(zip(("tokenizer", "target_tokenizer"), tokenizers, strict=True))
    for argument, tokenizer in arguments.items():
        check_special_ids(argument, tokenizer, ("pad_id", "start_id", "end_id"))
    check_ids(
        tokenizers[1].vocabulary_size, **{f"target_prefix[{i}]": id_ for i, id_ in enumerate(target_prefix)}
    )
    is_sampled = check_sampling(sampling, **arguments)
    if is_sampled and packed:
        raise ValueError(
            "`sampling` must be 0 for packed rows, whose lengths are fixed. "
            f"Received: sampling={sampling}, packed=True"
        )
    if is_sampled and truncate:
        raise ValueError(
            f"`sampling` must be 0 for truncated texts. Received: sampling={sampling}, truncate=True"
        )
    framings = (
        Framing.of_sources(tokenizers[0], languages[0]),
        Framing.of_targets(tokenizers[1], target_prefix, languages[1]),
    )
    if is_sampled and any(framing.before or framing.after for framing in framings):
        raise ValueError(
            "`sampling` must be 0 with ids before or after each source or target. "
            f"Received: sampling={sampling}, the ids {framings[0].before} and {framings[1].before} before them"
        )
    limits = shapes.limits if truncate else (None, None)
    arrays = _stored(tasks, reader, tokenizers, framings, limits, languages, cache_dir, keep_texts=is_sampled)
    sides: Sequence[RaggedRows | SampledRows] = arrays.rows("sources"), arrays.rows("targets")
    lengths, ends = _row_lengths(*sides), arrays["ends"]
    counts = _count_lengths(
        lengths, ends, shapes, [f" of task {prefix!r}" if prefix else "" for prefix in tasks]
    )
    if packed:
        objective = PackedPairs(arrays, lengths, shapes.limit, *framings)
        order = RowOrder(objective.count, shapes.batch_size_of(shapes.limits), shuffle, shard, last="padded")
        return batches(order, objective, seed, objective.content)
    if is_sampled:
        texts = arrays.rows("source_texts"), arrays.rows("target_texts")
        sides = [
            SampledRows.of(rows, texts, tokenizer, sampling)
            for rows, texts, tokenizer in zip(sides, texts, tokenizers, strict=True)
        ]
        arrays = arrays.with_content(f"sampling {sampling}")
        lengths = _sampled_lengths(lengths, _row_lengths(*sides), shapes.limits)
        counts = shapes.count_lengths(lengths, ends)
    buckets = shapes.buckets(arrays, lengths, counts, ends, shard.count)
    order = BucketOrder(buckets, shuffle, shard, None if mixture is None else mixture(buckets.sizes))

    def teacher_forcing(batch: Batch) -> tuple[dict[str, np.ndarray], np.ndarray]:
        (source_ids, _), (labels, target_ids) = (
            _ended_and_started(seeded(side, batch.seed), batch.rows, length, framing)
            for side, length, framing in zip(sides, batch.lengths, framings, strict=True)
        )
        return {"source_ids": source_ids, "target_ids": target_ids}, labels

    return batches(order, teacher_forcing, seed, arrays.content, nondeterministic_tokenizer(*sides))


def _stored(
    tasks: Mapping[str, Pairs],
    reader: PairReader,
    tokenizers: tuple[Tokenizer, Tokenizer],
    framings: tuple[Framing, Framing],
    limits: Sequence[int | None],
    languages: tuple[str | None, str | None],
    cache_dir: str | os.PathLike[str] | None,
    keep_texts: bool,
) -> Arrays:
    """Tokenise the pairs of tasks, truncate each side to its limit, if any, and store their ids.

    Returns:
        Rows "sources" and "targets", with `keep_texts` also "source_texts" and "target_texts"; and "ends", the end
        index of each task's pairs.
    """
    prefixes = [prefix.encode() for prefix in tasks]
    prefix_ids = tuple(framing.before for framing in framings)

    def to_arrays(chunks: Iterator[list[Row]]) -> Iterator[Chunk]:
        counts = np.zeros(len(prefixes), np.int64)
        for chunk in chunks:
            task_of, sources, targets = zip(*chunk, strict=True)
            sources = [prefixes[task] + source for task, source in zip(task_of, sources, strict=True)]
            yield {
                name: framing.stored(tokenized(texts, tokenizer), limit)
                for name, texts, tokenizer, framing, limit in zip(
                    ("sources", "targets"), (sources, targets), tokenizers, framings, limits, strict=True
                )
            }
            if keep_texts:
                texts = {"source_texts": sources, "target_texts": targets}
                yield {name: RowsToStore.of_strings(side) for name, side in texts.items()}
            counts += np.bincount(task_of, minlength=len(prefixes))
        yield {"ends": np.cumsum(counts)}

    return stored(
        reader.examples(tasks.values()),
        to_arrays,
        cache_dir,
        tokenizer=tokenizers[0],
        target_tokenizer=tokenizers[1],
        task="pairs with texts" if keep_texts else "pairs",
        prefixes=list(tasks),
        reverse=reader.reverse,
        **({"prefix_ids": prefix_ids} if any(prefix_ids) else {}),
        **({"languages": languages} if any(languages) else {}),
        **({"limits": list(limits)} if any(limits) else {}),
    )


def _check_language(tokenizer: Tokenizer, name: str, language: str | None) -> None:
    """Raise an error unless a language is of the tokenizer, or None for a tokenizer without languages."""
    if known := getattr(tokenizer, "languages", {}):
        check_one_of(list(known), **{name: language})
    else:
        check(language is None, "be None for a tokenizer without languages", **{name: language})


def _row_lengths(*sides: RaggedRows | SampledRows) -> RowLengths:
    """Return a function to the lengths of source and target, including an end or start id, integers (n, 2)."""
    return lambda start, end: np.stack([texts.lengths(start, end) for texts in sides], axis=1) + 1


def _sampled_lengths(lengths: RowLengths, sampled: RowLengths, limits: Sequence[int]) -> RowLengths:
    """Return the lengths to pad rows to, long enough for most samples but at most `limits` or the row's own length."""
    return lambda start, end: np.maximum(np.minimum(sampled(start, end), limits), lengths(start, end))


def _count_lengths(
    lengths: RowLengths, ends: Sequence[int], shapes: Shapes, descriptions: Sequence[str]
) -> LengthCounts:
    """Count the pairs of each length, and warn about those that are too long.

    Args:
        lengths: the lengths of rows.
        ends: the end index of the pairs of each of m tasks.
        shapes: the shapes of batches, with the maximum length.
        descriptions: a description of each task, for messages.

    Returns:
        The result of `Shapes.count_lengths`.
    """
    counts = shapes.count_lengths(lengths, ends)
    limit = shapes.limit if len(set(shapes.limits)) == 1 else shapes.limits
    tasks = itertools.pairwise([0, *ends])
    for (start, end), too_long, description in zip(tasks, counts.too_long, descriptions, strict=True):
        if too_long == end - start:
            raise ArgumentError(
                "{max_length} (or the length of the longest batches) must be at least {least!s}, the length of the "
                "shortest of the {count!s} pairs{description!s}. Received: a limit of {limit!s}",
                least=lengths(start, end).max(axis=1).min(),
                count=end - start,
                description=description,
                limit=limit,
            )
        if too_long:
            _LOGGER.warning(
                "translation_pairs drops %d of %d pairs%s: longer than %s ids, including special ones",
                too_long,
                end - start,
                description,
                limit,
            )
    return counts


def _apportioned(total: int, weights: np.ndarray) -> np.ndarray:
    """Return integers in proportion to `weights` that sum to `total`, by the largest remainder method."""
    exact = total * weights / weights.sum()
    integers = np.floor(exact + 1e-9).astype(np.int64)
    largest_remainders = np.argsort(integers - exact, kind="stable")[: total - integers.sum()]
    integers[largest_remainders] += 1
    return integers


def _ended_and_started(
    texts: RaggedRows | SampledRows, rows: np.ndarray, length: int, framing: Framing
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids with their last id, and the ids after their start id, int32 (B, L) each."""
    ids, lengths = texts.gather(rows, length)  # (B, L), (B, 1)
    positions = np.arange(length)
    padding = np.int32(framing.pad_id)
    ended = np.where(
        positions < lengths, ids, np.where(positions == lengths, np.int32(framing.last), padding)
    )
    shifted = np.roll(ids, 1, axis=1)
    shifted[:, 0] = framing.start
    return ended, np.where(positions <= lengths, shifted, padding)
