"""Batches of labelled texts to train an encoder with a head to classify them."""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer.data.batches import Dataset
from keras_transformer.data.encoder_rows import (
    EncoderRow,
    checked_shapes,
    encoder_batches,
    pair_separators,
    rows_to_store,
)
from keras_transformer.data.epochs import Shard
from keras_transformer.data.examples import Labels
from keras_transformer.data.storage import Chunk
from keras_transformer.data.tokenized_texts import Tokenizer, token_lists
from keras_transformer_options.arguments import ArgumentError, Message

_LOGGER = logging.getLogger("keras_transformer")


def classification(
    texts: Iterable[str] | Iterable[tuple[str, str]],
    labels: Iterable[Any] | np.ndarray,
    tokenizer: Tokenizer,
    batch_size: int = 32,
    *,
    max_length: int = 512,
    length_buckets: int | Sequence[int] = 4,
    pad_to_multiple_of: int = 2,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Make batches to train an encoder such as BERT to classify texts or pairs of texts, or to predict numbers.

    The inputs equal those of `pipelines.TextClassification` for the same texts. The labels correspond to the
    model's `problem_type`, as in `models.SequenceClassifier`. For a decoder such as GPT, whose rows and auxiliary
    objective differ, see `fine_tuning`; its labels are the same.

    Args:
        texts: strings, or pairs of strings.
        labels: classes, integers (n,); 0 or 1 for each of several, integers (n, C); or numbers, floats (n,) or (n, C).
            An iterable that is no array or sequence is read along with `texts`.
        tokenizer: a tokenizer with padding, start and end ids.
        batch_size: B, the number of rows in each batch; the last batch of each length may be smaller.
        max_length: the maximum length of a row, including special ids: at most the model's. Longer texts are truncated
            at their end, of pairs the longer text first, with a warning of the logger "keras_transformer". The pipeline
            raises an error for such texts, or splits them into windows.
        length_buckets: the maximum number of lengths of batches, chosen to minimize padding; or the lengths, the last
            of which limits texts as `max_length` does.
        pad_to_multiple_of: the number of which chosen lengths are multiples. Smaller numbers pad less; tensor cores of
            GPUs are faster with 8.
        shuffle: whether to reshuffle in each epoch. Otherwise texts keep their order within each length.
        seed: the seed of shuffling.
        shard: (index, count), to read one shard of each batch as one of several workers, see `translation_pairs`; of
            the last batch of each length, up to count − 1 rows are dropped, different ones in each epoch.
        cache_dir: a folder for the ids, see `translation_pairs`.

    Returns:
        A dataset of known cardinality with elements `({"token_ids": (B, L), "segment_ids": (B, L)}, labels)`, where L
        is one of a few lengths. Ids are int32, padded with `pad_id` and 0; labels are int32 (B,), or float32 (B, C) if
        they are multi-label or numbers.

    Example:
        >>> from keras_transformer.text import WordPieceTokenizer
        >>> texts = ["a fine film", "a bad film"]
        >>> tokenizer = WordPieceTokenizer.train(texts, 40, min_frequency=1)
        >>> inputs, labels = next(iter(classification(texts, [1, 0], tokenizer)))
        >>> inputs["token_ids"].shape, labels.shape
        (TensorShape([2, 6]), TensorShape([2]))

    References:
        Devlin et al., "BERT" (2019), section 4.1.
    """
    shapes = checked_shapes(tokenizer, batch_size, max_length, length_buckets, pad_to_multiple_of)
    part = Shard.of(shard)
    if isinstance(texts, str | bytes):
        raise TypeError(Message("{texts} must be an iterable", texts=str(texts)[:50]))
    checked_labels = Labels(labels)

    def to_arrays(chunks: Iterator[list[tuple[tuple[str, ...], Any]]]) -> Iterator[Chunk]:
        truncated = count = 0
        for chunk in chunks:
            ids = [token_lists(side, tokenizer) for side in zip(*(row for row, _ in chunk), strict=True)]
            rows = []
            for row_ids in zip(*ids, strict=True):
                row = EncoderRow.of(tokenizer, *row_ids)
                if len(row.ids) > shapes.limit:
                    truncated += 1
                    row = EncoderRow.of(
                        tokenizer, *_truncated(row_ids, shapes.limit, pair_separators(tokenizer))
                    )
                rows.append(row)
            count += len(chunk)
            yield rows_to_store(rows) | {"labels": checked_labels.checked([label for _, label in chunk])}
        if truncated:
            _LOGGER.warning(
                "classification truncates %d of %d texts to %d ids, including special ones",
                truncated,
                count,
                shapes.limit,
            )

    return encoder_batches(
        checked_labels.paired_with(texts=_rows(texts)),
        to_arrays,
        "classification",
        tokenizer,
        shapes,
        shuffle=shuffle,
        seed=seed,
        shard=part,
        cache_dir=cache_dir,
    )


def _rows(texts: Iterable[Any]) -> Iterator[tuple[str, ...]]:
    """Yield the text, or the two texts, of each row."""
    count = None
    for i, item in enumerate(texts):
        row = (item,) if isinstance(item, str) else item
        strings = isinstance(row, tuple | list) and all(isinstance(text, str) for text in row)
        count = count or (len(row) if strings else 0)
        if not strings or len(row) != count or count not in (1, 2):
            raise ArgumentError(
                "{texts} must all be strings, or all pairs of strings", **{f"texts[{i}]": item}
            )
        yield tuple(row)


def _truncated(texts: Sequence[list[int]], limit: int, separators: int) -> list[list[int]]:
    """Truncate the ids of a text, or of a pair (the longer text first), to `limit` including special ids."""
    if len(texts) == 1:
        return [texts[0][: limit - 2]]
    first, second = texts
    available = limit - 2 - separators
    kept = min(len(first), max(available // 2, available - len(second)))
    return [first[:kept], second[: available - kept]]
