"""Batches of inputs for an encoder with a task head, equal to the inputs of its pipeline."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.data.batches import Dataset, batches
from keras_transformer.data.buckets import Shapes
from keras_transformer.data.epochs import Batch, Shard
from keras_transformer.data.examples import Examples, stored
from keras_transformer.data.storage import Chunk, RowsToStore, gathered
from keras_transformer.data.tokenized_texts import Tokenizer, check_special_ids, token_lists
from keras_transformer_options.arguments import check_at_least
from keras_transformer_serving.text.tokenizer import Word

IGNORED = -1  # the label of ids that losses and metrics ignore
_WHITE_SPACE_WORD = re.compile(r"\S+")
_SMALLEST_LENGTH = 5  # start, text, end, text, end


class EncoderRow(NamedTuple):
    """The ids of one text, or two texts with segments 0 and 1, with special ids.

    Attributes:
        ids: "start text end" or "start text end text end", with as many end ids between the texts as the tokenizer has
            separators.
        boundary: the number of ids of segment 0: all of them for several separators, as RoBERTa has one segment.
    """

    ids: list[int]
    boundary: int

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, first: Sequence[int], second: Sequence[int] | None = None
    ) -> "EncoderRow":
        """Add special ids to the ids of one text or two."""
        count = pair_separators(tokenizer)
        if second is None:
            ids = [tokenizer.start_id, *first, tokenizer.end_id]
            return cls(ids, len(ids))
        before = [tokenizer.start_id, *first, *[tokenizer.end_id] * count]
        ids = [*before, *second, tokenizer.end_id]
        return cls(ids, len(before if count == 1 else ids))


def pair_separators(tokenizer: Tokenizer) -> int:
    """Return the number of end ids between the texts of a pair, by default 1."""
    return getattr(tokenizer, "pair_separators", 1)


def checked_shapes(
    tokenizer: Tokenizer,
    batch_size: int,
    max_length: int,
    length_buckets: int | Sequence[int],
    pad_to_multiple_of: int,
) -> Shapes:
    """Validate arguments, and return the shapes of batches."""
    check_special_ids("tokenizer", tokenizer, ("pad_id", "start_id", "end_id"))
    check_at_least(_SMALLEST_LENGTH, max_length=max_length)
    shapes = Shapes.of_rows(batch_size, max_length, length_buckets, pad_to_multiple_of)
    check_at_least(_SMALLEST_LENGTH, length_buckets=shapes.limit)
    return shapes


def rows_to_store(rows: Sequence[EncoderRow]) -> dict[str, np.ndarray | RowsToStore]:
    """Return rows as arrays of `encoder_batches`."""
    boundaries = np.array([row.boundary for row in rows], np.int64)
    return {"ids": RowsToStore.of_lists([row.ids for row in rows]), "boundaries": boundaries}


def encoder_batches(
    examples: Iterable[Any],
    to_arrays: Callable[[Iterator[list[Any]]], Iterator[Chunk]],
    task: str,
    tokenizer: Tokenizer,
    shapes: Shapes,
    *,
    shuffle: bool,
    seed: int,
    shard: Shard,
    cache_dir: str | os.PathLike[str] | None,
    complete: bool = False,
) -> Dataset:
    """Make batches of rows of similar length.

    Args:
        examples: the examples.
        to_arrays: a function from lists of consecutive examples to the arrays of `rows_to_store`, of rows of at most
            `shapes.limit` ids, and to "labels", one for each row or one for each id.
        task: the name of the task, for `cache_dir`.
        tokenizer: the tokenizer.
        shapes: the shapes of batches.
        shuffle: whether to reshuffle in each epoch. Otherwise rows keep their order within each length.
        seed: the seed of shuffling.
        shard: the worker's shard of each batch.
        cache_dir: a folder for the arrays.
        complete: whether to complete the last batch of each length with rows of padding, which losses must ignore;
            otherwise it is smaller.

    Returns:
        A dataset of known cardinality with elements `({"token_ids": (B, L), "segment_ids": (B, L)}, labels)`, int32.
        Labels of ids are padded with `IGNORED`.
    """
    arrays = stored(
        Examples.of(examples), to_arrays, cache_dir, tokenizer=tokenizer, task=task, limit=shapes.limit
    )
    ids = arrays.rows("ids")
    order = shapes.order(
        arrays, lambda start, end: ids.lengths(start, end)[:, None], ids.count, shuffle, shard, complete
    )

    def encoder_inputs(batch: Batch) -> tuple[dict[str, np.ndarray], np.ndarray]:
        (length,) = batch.lengths
        token_ids, lengths = ids.gather(batch.rows, length)
        real = np.arange(length) < lengths
        second = np.arange(length) >= gathered(arrays["boundaries"], np.maximum(batch.rows, 0))[:, None]
        inputs = {
            "token_ids": np.where(real, token_ids, tokenizer.pad_id),
            "segment_ids": (second & real).astype(np.int32),
        }
        if arrays.has_rows("labels"):
            return inputs, arrays.rows("labels").padded(batch.rows, length, IGNORED)
        return inputs, gathered(arrays["labels"], batch.rows)

    return batches(order, encoder_inputs, seed, arrays.content)


def tokenized_words(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[Word]]:
    """Return the words of texts that have ids, as pipelines tokenise them.

    They are those of the tokenizer's `tokenize_words`. A tokenizer without it has words that white space delimits.
    """
    if hasattr(tokenizer, "tokenize_words"):
        found = tokenizer.tokenize_words(texts)
        if isinstance(found, list):
            rows = found
        else:
            columns = zip(
                *(values.to_list() for values in (found.ids, found.starts, found.ends)), strict=True
            )
            rows = [[Word(*word) for word in zip(*of_text, strict=True)] for of_text in columns]
    else:
        matches = [[*_WHITE_SPACE_WORD.finditer(text)] for text in texts]
        distinct = list(dict.fromkeys(match[0] for of_text in matches for match in of_text))
        ids_of = dict(zip(distinct, token_lists(distinct, tokenizer), strict=True))
        rows = [[Word(ids_of[match[0]], *match.span()) for match in of_text] for of_text in matches]
    return [[word for word in words if word.ids] for words in rows]


def windows(length: int, size: int, doc_stride: int | None = None) -> list[tuple[int, int]]:
    """Return (start, end) of each window of a text, as in pipelines with `long_texts="window"`.

    Args:
        length: the number of ids of a text.
        size: the maximum number of ids in a window.
        doc_stride: the number of ids by which windows overlap; by default half, the last one more.
    """
    overlap = size // 2 if doc_stride is None else min(doc_stride, size - 1)
    last, stride = max(length - size, 0), max(size - overlap, 1)
    starts = (number * stride for number in range(1 + -(-last // stride)))
    if doc_stride is None:
        starts = (min(start, last) for start in starts)
    return [(start, min(start + size, length)) for start in starts]
