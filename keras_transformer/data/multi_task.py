"""A mixture of text-to-text tasks in one dataset, each task marked by a prefix."""

import os
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from keras_transformer.data.epochs import Shard
from keras_transformer.data.pair_sources import Pairs
from keras_transformer.data.pairs import (
    SPECIAL_IDS,
    Sides,
    Tokenizer,
    row_lengths,
    sampled_sides,
    stored_pairs,
    teacher_forced,
    with_room,
    within,
)
from keras_transformer.data.sampling import check_sampling
from keras_transformer.data.shapes import LengthBuckets, Shapes
from keras_transformer.data.token_lists import check_special_ids
from keras_transformer_options.arguments import check_positive, check_positive_integer
from keras_transformer_options.columns import Columns


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
    length_buckets: LengthBuckets = 8,
    pad_to_multiple_of: int = 2,
    sampling: float = 0.0,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> tf.data.Dataset:
    r"""Make batches to train one encoder–decoder on several tasks, each marked by a prefix of its sources.

    A task m with $e_m$ pairs makes up the fraction $r_m$ of the examples of an epoch:

    $$r_m = \frac{\min(e_m, K)^{1/T}}{\sum_n \min(e_n, K)^{1/T}}$$

    An epoch has $\sum_n \min(e_n, K)$ examples, and those of a task have the distribution of lengths of its pairs. If a
    task has more pairs than examples in an epoch, each epoch samples different pairs; if it has fewer, pairs repeat
    after all have occurred. Without `limit` and `temperature`, an epoch has every pair once.

    Args:
        tasks: a mapping from prefixes such as "translate English to German: " to the pairs of each task, in any form
            that `translation_pairs` accepts.
        tokenizer: the tokenizer of sources with their prefix, and of targets.
        batch_size: the number of rows in each batch, see `translation_pairs`.
        columns: the columns of source and target in the files of all tasks, see `translation_pairs`.
        reverse: whether to swap sources and targets in all tasks.
        on_error: "raise" to refuse malformed lines of files, "skip" to leave them out with a warning.
        limit: K, the artificial limit of a task's size; by default there is none.
        temperature: T. 1 mixes in proportion to the sizes; higher values make the fractions more equal.
        batch_tokens: the maximum number of positions of each side of a batch, instead of `batch_size`.
        max_length: the maximum length of sources, including the prefix, and of targets. Longer pairs are dropped with
            a warning.
        length_buckets: the maximum number of shapes of batches, or these shapes, see `translation_pairs`.
        pad_to_multiple_of: what chosen lengths are multiples of.
        sampling: the rate of random segmentations of prefixed sources and of targets, see `translation_pairs`.
        shuffle: whether the order of examples differs in each epoch, and the examples if an epoch does not have all.
        seed: the seed of shuffling and sampling.
        shard: (index, count), the part of each batch for one of several workers, see `translation_pairs`.
        cache_dir: a folder for the ids, see `translation_pairs`.

    Returns:
        A dataset of known cardinality with the elements of `translation_pairs`, for `models.T5`.

    Raises:
        TypeError: if `tasks` is not a mapping.
        ValueError: if there is no task, `limit` or `temperature` is not positive, or see `translation_pairs`.

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
    part = Shard.of(shard)
    check_special_ids("tokenizer", tokenizer, SPECIAL_IDS)
    is_sampled = check_sampling(sampling, tokenizer=tokenizer)
    arrays = stored_pairs(
        tasks,
        tokenizer,
        tokenizer,
        cache_dir,
        columns=columns,
        reverse=reverse,
        on_error=on_error,
        keep_texts=is_sampled,
    )
    sides: Sides = arrays.rows("sources"), arrays.rows("targets")
    lengths, ends = row_lengths(*sides), arrays["ends"]
    counts = within(lengths, ends, shapes, [f" of task {prefix!r}" for prefix in tasks])
    if is_sampled:
        sides = sampled_sides(arrays, tokenizer, tokenizer, sampling)
        arrays = arrays.with_content(f"sampling {sampling}")
        lengths = with_room(lengths, row_lengths(*sides), shapes.limits)
        counts = shapes.count_lengths(lengths, ends)
    buckets = shapes.buckets(arrays, lengths, counts, ends, part.count)
    pairs_of_task = buckets.sizes.sum(axis=0)
    sizes = np.minimum(pairs_of_task, np.inf if limit is None else limit)
    numbers = _apportioned(int(sizes.sum()), sizes ** (1 / temperature))
    # The examples of each task in each bucket, in proportion to its pairs there.
    shares = [_apportioned(number, of_task) for number, of_task in zip(numbers, buckets.sizes.T, strict=True)]
    rows = buckets.batches(shuffle, part, np.stack(shares, axis=1))
    return teacher_forced(rows, arrays, sides, tokenizer, tokenizer, seed, part)


def _apportioned(total: int, weights: np.ndarray) -> np.ndarray:
    """Return integers in proportion to `weights` that sum to `total`, by the largest remainder method."""
    exact = total * weights / weights.sum()
    whole = np.floor(exact + 1e-9).astype(np.int64)
    most = np.argsort(whole - exact, kind="stable")[: total - whole.sum()]
    whole[most] += 1
    return whole
