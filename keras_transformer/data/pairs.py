"""Translation pairs as batches for an encoder-decoder model."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.data.buckets import Buckets, check_lengths, choose_lengths
from keras_transformer.data.pair_sources import Pairs, string_chunks
from keras_transformer.data.ragged_rows import RaggedRows

_BATCH_SIZE = 64
_LOGGER = logging.getLogger("keras_transformer")


class Tokenizer(Protocol):
    """What is needed of a tokenizer; `keras_transformer.text.SentencePieceTokenizer` has it."""

    pad_id: int
    start_id: int
    end_id: int

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Turns a string tensor (B,) into int32 ids (B, None) without special ids."""


def translation_pairs(
    pairs: Pairs,
    tokenizer: Tokenizer,
    batch_size: int | None = None,
    *,
    target_tokenizer: Tokenizer | None = None,
    batch_tokens: int | None = None,
    max_length: int = 128,
    length_buckets: int | Sequence[int] = 4,
    shuffle: bool = True,
    seed: int = 0,
) -> tf.data.Dataset:
    """Makes the batches that teach an encoder-decoder model to translate, by teacher forcing.

    The decoder sees `start, y1, …, yn` and is to say `y1, …, yn, end`. All pairs are tokenised here,
    once; their ids stay in memory (4 bytes a token, 40 a pair, 200 more where shuffled). Pairs are
    batched with others of similar length: L is one of a few lengths, the same for source and target, and
    every batch of a length has the same number of rows, so that XLA compiles as many shapes as there are
    lengths. The last batch of a length is filled up with rows of padding, which losses and metrics are to
    leave out. `fit(dataset)` warns that Keras does not shuffle a dataset itself; with `shuffle=False` it
    does the same and does not warn.

    Args:
        pairs: (source, target) str, in a list or another iterable that is read once; the path, or a list of
            paths, of UTF-8 files with lines `source<TAB>target`; or a finite `tf.data.Dataset` of
            (source, target) string scalars, whose invalid UTF-8 becomes U+FFFD.
        tokenizer: For the sources, and the targets where `target_tokenizer` is not given.
        batch_size: Rows in each batch; 64 where neither it nor `batch_tokens` is given.
        target_tokenizer: For the targets.
        batch_tokens: About how many positions of the target, padding included, are in each batch: there are
            `max(1, batch_tokens // L)` rows. Instead of `batch_size`.
        max_length: The longest source and target to keep, in ids, special ones included. Longer pairs are
            left out, and a warning of the logger "keras_transformer" says how many.
        length_buckets: How many lengths L there may be, chosen for the least padding; or the lengths, of
            which the last limits what is kept as `max_length` does.
        shuffle: Whether each epoch has another order. Otherwise pairs keep theirs among those of a length.
        seed: Which orders, together with `tf.random.set_seed` where the program has called that.

    Returns:
        A dataset of known cardinality with elements
        `({"source_ids": (B, L), "target_ids": (B, L)}, labels (B, L))`, all int32. `source_ids` are the
        source's ids and end; `target_ids` start and the target's ids; `labels` the target's ids and end;
        each padded with its tokenizer's `pad_id`.

    Raises:
        FileNotFoundError: If a path does not exist.
        TypeError: If `pairs` is none of the above.
        ValueError: If `pairs` is empty, malformed or all too long, if both `batch_size` and `batch_tokens`
            are given, or if an argument is out of its range.

    Example:
        >>> from keras_transformer.text import SentencePieceTokenizer
        >>> pairs = [("hola", "hello"), ("adiós", "bye")]
        >>> tokenizer = SentencePieceTokenizer.train([text for pair in pairs for text in pair], 50, "char")
        >>> inputs, labels = next(iter(translation_pairs(pairs, tokenizer, batch_size=2)))
        >>> inputs["source_ids"].shape, inputs["target_ids"].shape, labels.shape
        (TensorShape([2, 8]), TensorShape([2, 8]), TensorShape([2, 8]))
    """
    rows_of = _rows_of(batch_size, batch_tokens)
    target_tokenizer = target_tokenizer or tokenizer
    _check_ids("tokenizer", tokenizer)
    _check_ids("target_tokenizer", target_tokenizer)
    given_lengths = check_lengths(length_buckets, max_length)
    sources, targets = _tokenized(pairs, tokenizer, target_tokenizer)
    # Every row has one id more than the text: the end, or the start.
    needed = np.maximum(sources.lengths, targets.lengths) + 1
    kept = _within(needed, given_lengths[-1] if given_lengths else max_length)
    lengths = given_lengths or choose_lengths(needed[kept], length_buckets, max_length)
    buckets = Buckets(
        rows=kept,
        bucket_of_row=np.searchsorted(lengths, needed[kept]),
        lengths=np.array(lengths),
        batch_sizes=np.array([rows_of(length) for length in lengths]),
    )

    def batch(rows: tf.Tensor, length: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        source_ids, _ = _teacher_forced(sources, rows, length, tokenizer)
        labels, target_ids = _teacher_forced(targets, rows, length, target_tokenizer)
        # With one length, Keras and the compiler know it from the start.
        shape = [None, lengths[0] if len(lengths) == 1 else None]
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        return tf.nest.map_structure(lambda ids: tf.ensure_shape(ids, shape), (inputs, labels))

    dataset = buckets.batches(seed if shuffle else None).map(batch, tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE)


def _rows_of(batch_size: int | None, batch_tokens: int | None) -> Callable[[int], int]:
    for argument, size in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
        if size is not None and size < 1:
            raise ValueError(f"`{argument}` must be positive. Received: {argument}={size}")
    if batch_tokens is None:
        return lambda length: batch_size or _BATCH_SIZE
    if batch_size is not None:
        raise ValueError(
            "`batch_size` and `batch_tokens` must not both be given. "
            f"Received: batch_size={batch_size}, batch_tokens={batch_tokens}"
        )
    return lambda length: max(1, batch_tokens // length)


def _check_ids(argument: str, tokenizer: Tokenizer) -> None:
    if min(tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id) < 0:
        raise ValueError(
            f"`{argument}` must have padding, start and end ids. Received: pad_id={tokenizer.pad_id}, "
            f"start_id={tokenizer.start_id}, end_id={tokenizer.end_id}"
        )


def _tokenized(
    pairs: Pairs, tokenizer: Tokenizer, target_tokenizer: Tokenizer
) -> tuple[RaggedRows, RaggedRows]:
    chunks = [
        (tokenizer.tokenize(sources), target_tokenizer.tokenize(targets))
        for sources, targets in string_chunks(pairs)
    ]
    if not chunks:
        raise ValueError(f"`pairs` must hold at least one pair. Received: pairs={pairs!r}")
    sources, targets = zip(*chunks, strict=True)
    return RaggedRows.concatenated(sources), RaggedRows.concatenated(targets)


def _within(needed: np.ndarray, limit: int) -> np.ndarray:
    kept = np.flatnonzero(needed <= limit)
    if not len(kept):
        raise ValueError(
            f"`max_length` (or the last of `length_buckets`) must be at least {needed.min()}, the length of "
            f"the shortest of the {len(needed)} pairs. Received: a limit of {limit}"
        )
    if len(kept) < len(needed):
        _LOGGER.warning(
            "translation_pairs leaves out %d of %d pairs: longer than %d ids, special ones included",
            len(needed) - len(kept),
            len(needed),
            limit,
        )
    return kept


def _teacher_forced(
    texts: RaggedRows, rows: tf.Tensor, length: tf.Tensor, tokenizer: Tokenizer
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `(ids and end, start and ids)`, int32 (B, L) each."""
    ids, lengths = texts.gather(rows, length)  # (B, L), (B, 1)
    positions = tf.range(length)
    ended = tf.where(
        positions < lengths, ids, tf.where(positions == lengths, tokenizer.end_id, tokenizer.pad_id)
    )
    start = tf.fill([tf.size(rows), 1], tokenizer.start_id)
    shifted = tf.concat([start, ids[:, :-1]], axis=1)
    return ended, tf.where(positions <= lengths, shifted, tokenizer.pad_id)
