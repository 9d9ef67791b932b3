"""Batches of pairs of texts to train sentence embeddings."""

import logging

import numpy as np
import tensorflow as tf

from keras_transformer.data.columns import Columns
from keras_transformer.data.encoder_rows import Tokenizer, checked_shapes
from keras_transformer.data.epochs import batches
from keras_transformer.data.pair_sources import PairReader, Pairs
from keras_transformer.data.ragged_rows import RaggedRows
from keras_transformer.data.token_lists import checked_ids

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
    shuffle: bool = True,
    seed: int = 0,
) -> tf.data.Dataset:
    """Make batches to train a `models.SentenceEncoder` on pairs of texts with `training.InfoNCE`.

    The texts of a pair mean the same or belong together, such as a question and its answer. For unsupervised SimCSE,
    pair each text with itself. The ids of each text are those of `pipelines.Embedding`: `start, x1, …, xn, end`.

    Args:
        pairs: (first, second) str; paths of files; or a dataset, as for `translation_pairs`.
        tokenizer: a tokenizer with padding, start and end ids.
        batch_size: B, the number of pairs in each batch; the last batch of each length may be smaller.
        columns: the columns of the texts in files, see `read_examples`; by default files must have only two.
        on_error: "raise" to refuse malformed lines of files, "skip" to leave them out with a warning.
        max_length: the maximum number of ids of a text, including special ids: at most the model's. Longer texts are
            truncated, with a warning of the logger "keras_transformer".
        length_buckets: the maximum number of lengths of batches, chosen to minimize padding.
        shuffle: whether to reshuffle in each epoch. Otherwise pairs keep their order within each length.
        seed: the seed of shuffling.

    Returns:
        A dataset of known cardinality with elements `({"token_ids": (B, 2, L)}, labels (B, 2))`, int32. Labels number
        the distinct texts, so that a loss can tell equal ones.

    Raises:
        FileNotFoundError: if a path does not exist.
        TypeError: if `pairs` is none of the above.
        ValueError: if `pairs` is empty or malformed, the tokenizer lacks an id, or an argument is out of range.

    Example:
        >>> from keras_transformer.text import WordPieceTokenizer
        >>> pairs = [("a dog barks", "a hound bays"), ("a cat", "a kitten"), ("a dog", "a hound")]
        >>> tokenizer = WordPieceTokenizer.train([text for pair in pairs for text in pair], 60, min_frequency=1)
        >>> inputs, labels = next(iter(sentence_pairs(pairs, tokenizer, length_buckets=1)))
        >>> inputs["token_ids"].shape, labels.shape
        (TensorShape([3, 2, 8]), TensorShape([3, 2]))
    """
    shapes = checked_shapes(tokenizer, batch_size, max_length, length_buckets)
    reader = PairReader(columns, on_error=on_error)
    chunks = list(reader.chunks(pairs))
    reader.finish()
    if not chunks:
        raise ValueError(f"`pairs` must hold at least one pair. Received: pairs={pairs!r}")
    texts = [tf.concat(side, axis=0) for side in zip(*chunks, strict=True)]
    tokens = [checked_ids(tokenizer.tokenize(side), tokenizer) for side in texts]
    lengths = np.max([side.row_lengths() for side in tokens], axis=0) + 2
    if (lengths > shapes.limit).any():
        _LOGGER.warning(
            "sentence_pairs truncates texts of %d of %d pairs to %d ids, including special ones",
            (lengths > shapes.limit).sum(),
            len(lengths),
            shapes.limit,
        )
    ids = [RaggedRows.concatenated([_row_ids(side, tokenizer, shapes.limit)]) for side in tokens]
    numbers = np.unique(np.concatenate(texts), return_inverse=True)[1].reshape(2, -1).T.astype(np.int32)
    buckets = shapes.buckets(np.minimum(lengths, shapes.limit), np.arange(len(lengths)))
    rows_of = buckets.batches(shuffle)
    with tf.device("CPU:0"):  # functions of a dataset cannot read GPU memory
        labels = tf.constant(numbers)

    def batch(number: tf.Tensor, seeds: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        rows, length = rows_of(number, seeds)
        rows = tf.boolean_mask(rows, rows >= 0)
        found = [side.gather(rows, length) for side in ids]
        padded = [tf.where(tf.range(length) < ends, values, tokenizer.pad_id) for values, ends in found]
        return {"token_ids": tf.stack(padded, axis=1)}, tf.gather(labels, rows)

    return batches(rows_of.count, batch, seed, [rows_of.content, *ids[0], *ids[1], labels])


def _row_ids(tokens: tf.RaggedTensor, tokenizer: Tokenizer, limit: int) -> tf.RaggedTensor:
    """Truncate the ids of texts, and add the start and end ids."""
    start, end = (tf.fill([tokens.nrows(), 1], id_) for id_ in (tokenizer.start_id, tokenizer.end_id))
    return tf.concat([start, tokens[:, : limit - 2], end], axis=1)
