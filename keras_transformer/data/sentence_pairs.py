"""Batches of pairs of texts to train sentence embeddings."""

import logging
import os
import zlib
from collections.abc import Iterator

import numpy as np

from keras_transformer.data.batches import Dataset, batches
from keras_transformer.data.encoder_rows import checked_shapes
from keras_transformer.data.epochs import Batch, Shard
from keras_transformer.data.examples import stored
from keras_transformer.data.pair_sources import PairReader, Pairs, Row
from keras_transformer.data.storage import Chunk, RowsToStore, gathered
from keras_transformer.data.tokenized_texts import Tokenizer, tokenized
from keras_transformer_options.columns import Columns

_LOGGER = logging.getLogger("keras_transformer")


def sentence_pairs(
    pairs: Pairs,
    tokenizer: Tokenizer,
    batch_size: int = 64,
    *,
    columns: Columns = None,
    on_error: str = "raise",
    max_length: int = 128,
    length_buckets: int = 4,
    pad_to_multiple_of: int = 2,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Make batches to train a `models.SentenceEncoder` on pairs of texts with `training.InfoNCE`.

    The texts of a pair mean the same or belong together, such as a question and its answer. For unsupervised SimCSE,
    pair each text with itself. The ids of each text are as in `pipelines.Embedding`: `start, x1, …, xn, end`.

    Args:
        pairs: (first, second) str; paths of files; or a dataset, as for `translation_pairs`.
        tokenizer: a tokenizer with padding, start and end ids.
        batch_size: B, the number of pairs in each batch; the last batch of each length may be smaller.
        columns: the columns of the texts in files, see `read_examples`; by default files must have only two.
        on_error: "raise" to raise an error for malformed lines of files, "skip" to skip them with a warning.
        max_length: the maximum number of ids of a text, including special ids: at most the model's. Longer texts are
            truncated, with a warning of the logger "keras_transformer".
        length_buckets: the maximum number of lengths of batches, chosen to minimize padding.
        pad_to_multiple_of: the number of which chosen lengths are multiples. Smaller numbers pad less; tensor cores of
            GPUs are faster with 8.
        shuffle: whether to reshuffle in each epoch. Otherwise pairs keep their order within each length.
        seed: the seed of shuffling.
        shard: (index, count), to read one shard of each batch as one of several workers, see `classification`.
        cache_dir: a folder for the ids, see `translation_pairs`.

    Returns:
        A dataset of known cardinality with elements `({"token_ids": (B, 2, L)}, labels (B, 2))`, int32. Labels are
        hashes of the texts, by which a loss recognises equal texts.

    Example:
        >>> from keras_transformer.text import WordPieceTokenizer
        >>> pairs = [("a dog barks", "a hound bays"), ("a cat", "a kitten"), ("a dog", "a hound")]
        >>> tokenizer = WordPieceTokenizer.train([text for pair in pairs for text in pair], 60, min_frequency=1)
        >>> inputs, labels = next(iter(sentence_pairs(pairs, tokenizer, length_buckets=1)))
        >>> inputs["token_ids"].shape, labels.shape
        (TensorShape([3, 2, 6]), TensorShape([3, 2]))
    """
    shapes = checked_shapes(tokenizer, batch_size, max_length, length_buckets, pad_to_multiple_of)
    part = Shard.of(shard)

    def to_arrays(chunks: Iterator[list[Row]]) -> Iterator[Chunk]:
        truncated = count = 0
        for chunk in chunks:
            _, *sides = zip(*chunk, strict=True)
            ids = [tokenized(side, tokenizer) for side in sides]
            needed = np.max([side.lengths for side in ids], axis=0) + 2
            truncated, count = truncated + int((needed > shapes.limit).sum()), count + len(chunk)
            first, second = (_row_ids(side, tokenizer, shapes.limit) for side in ids)
            hashes = [[zlib.crc32(text) >> 1 for text in side] for side in sides]
            yield {"first": first, "second": second, "hashes": np.array(hashes, np.int32).T}
        if truncated:
            _LOGGER.warning(
                "sentence_pairs truncates texts of %d of %d pairs to %d ids, including special ones",
                truncated,
                count,
                shapes.limit,
            )

    arrays = stored(
        PairReader(columns, on_error=on_error).examples([pairs]),
        to_arrays,
        cache_dir,
        tokenizer=tokenizer,
        task="sentence pairs",
        limit=shapes.limit,
    )
    ids = [arrays.rows("first"), arrays.rows("second")]

    def row_lengths(start: int, end: int) -> np.ndarray:
        return np.max([side.lengths(start, end) for side in ids], axis=0)[:, None]

    def contrastive(batch: Batch) -> tuple[dict[str, np.ndarray], np.ndarray]:
        padded = [side.padded(batch.rows, batch.lengths[0], tokenizer.pad_id) for side in ids]
        return {"token_ids": np.stack(padded, axis=1)}, gathered(arrays["hashes"], batch.rows)

    order = shapes.order(arrays, row_lengths, ids[0].count, shuffle, part, complete=False)
    return batches(order, contrastive, seed, arrays.content)


def _row_ids(tokens: RowsToStore, tokenizer: Tokenizer, limit: int) -> RowsToStore:
    """Truncate the ids of texts, and add the start and end ids."""
    start, end = (
        RowsToStore.repeated([id_], len(tokens.lengths)) for id_ in (tokenizer.start_id, tokenizer.end_id)
    )
    return start.followed_by(tokens.truncated(limit - 2)).followed_by(end)
