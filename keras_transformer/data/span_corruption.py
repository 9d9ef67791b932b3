"""Batches of texts with corrupted spans to pre-train an encoder–decoder."""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.data.epochs import Batch, RowOrder, Shard, batches
from keras_transformer.data.examples import stored
from keras_transformer.data.storage import Chunk, RowsToStore
from keras_transformer.data.texts import (
    Texts,
    Tokenizer,
    check_special_ids,
    check_tokens,
    pieces,
    text_examples,
    token_lists,
)
from keras_transformer_options.arguments import check_at_least, check_fraction
from keras_transformer_options.columns import Columns


def span_corruption(
    texts: Texts,
    tokenizer: Tokenizer,
    batch_size: int = 32,
    *,
    columns: Columns = None,
    on_error: str = "raise",
    max_length: int = 512,
    rate: float = 0.15,
    mean_span: float = 3.0,
    sentinels: Sequence[int] | None = None,
    start_id: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> tf.data.Dataset:
    r"""Make batches to train an encoder–decoder to predict the missing spans of a text.

    Of the n tokens of a row, m = max(1, round(rate · n)) are removed, in max(1, round(m / mean_span)) spans with at
    least one token between them; the spans are drawn uniformly, different ones in each epoch. In the source, a sentinel
    replaces each span; the target consists of the spans, each after its sentinel:

        Thank you for inviting me to your party last week
        source: Thank you <0> me to your party <1> week <end>
        target: <0> for inviting <1> last <end>

    Texts longer than a row are split into several rows.

    Args:
        texts: strings, or `pathlib.Path`s of files, as in `language_modeling`. Empty strings are skipped.
        tokenizer: a tokenizer with an end id.
        batch_size: B, the number of rows in each batch; the last may be smaller.
        columns: the column of the texts in files, an index or a name; by default files must have only one.
        on_error: "raise" to raise an error for malformed lines of files, "skip" to skip them with a warning.
        max_length: S, the length of every source; rows of text are split so that they fit after spans are removed.
        rate: the fraction of tokens to remove.
        mean_span: the mean length of a span, in tokens.
        sentinels: the sentinel ids of the first span of a row, of the second, and so on, which no text may contain. By
            default the last ids of the tokenizer's vocabulary, in descending order. They may be outside the
            tokenizer's vocabulary if the model's is larger.
        start_id: the decoder's start id, by default the `pad_id`, as in `models.T5`.
        shuffle: whether to reshuffle in each epoch.
        seed: the seed of shuffling and spans.
        shard: (index, count), to read one shard of each batch as one of several workers, see `translation_pairs`.
        cache_dir: a folder for the ids, see `translation_pairs`.

    Returns:
        A dataset of known cardinality with elements `({"source_ids": (B, S), "target_ids": (B, T)}, labels (B, T))`,
        int32 and padded with `pad_id`, for `models.T5` or `models.Transformer`. T is the maximum length of a target.

    Raises:
        TypeError: if `texts` is one string.
        ValueError: if there are no tokens in `texts`, there are too few sentinels, a text contains a sentinel, the
            tokenizer has no padding or end id, or an argument is out of range.

    Example:
        >>> from keras_transformer.text import ByteTokenizer
        >>> sentinels = range(300, 320)
        >>> data = span_corruption(["to be or not"], ByteTokenizer(), max_length=12, sentinels=sentinels)
        >>> inputs, labels = next(iter(data))
        >>> inputs["source_ids"].shape, labels.shape
        (TensorShape([1, 12]), TensorShape([1, 4]))

    References:
        Raffel et al. (2020), sections 3.1.4 and 3.3.4. As in the authors' code, a target ends with the end id without a
        final sentinel; there, however, rows always begin with a kept token and end with a span.
    """
    _check(tokenizer, batch_size, max_length, rate, mean_span)
    sizes, part = _Sizes.of(max_length, rate, mean_span), Shard.of(shard)

    def to_arrays(chunks: Iterator[list[str]]) -> Iterator[Chunk]:
        used, length = np.zeros(tokenizer.vocabulary_size, bool), 0
        for chunk in chunks:
            rows = RowsToStore.of_lists(pieces(token_lists(chunk, tokenizer), sizes.row_length))
            used[rows.values] = True
            length = max(length, int(rows.lengths.max(initial=0)))
            yield {"rows": rows}
        check_tokens(length > 0)
        yield {"used": np.flatnonzero(used), "length": np.array([length])}

    arrays = stored(
        text_examples(texts, columns, on_error),
        to_arrays,
        cache_dir,
        tokenizer=tokenizer,
        task="span corruption",
        row_length=sizes.row_length,
    )
    length = int(arrays["length"][0])  # of the longest row
    max_spans = int(sizes.spans[: length + 1].max())
    chosen = _sentinels(sentinels, tokenizer, max_spans, set(arrays["used"].tolist()))
    ids = arrays.rows("rows")
    start = tokenizer.pad_id if start_id is None else start_id
    with tf.device("CPU:0"):  # functions of a dataset cannot read GPU memory
        noise, spans = tf.constant(sizes.noise), tf.constant(sizes.spans)
        sentinel_ids = tf.constant(chosen, tf.int32)

    def example(
        numbered: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        tokens, size, seed = numbered
        tokens = tokens[:size]
        missing = _missing(size, noise[size], spans[size], seed)
        starts = missing & ~tf.concat([[False], missing[:-1]], axis=0)
        sentinel = tf.gather(sentinel_ids, tf.maximum(tf.cumsum(tf.cast(starts, tf.int32)) - 1, 0))
        source = tf.boolean_mask(tf.where(starts, sentinel, tokens), starts | ~missing)
        # The removed tokens, each span after its sentinel.
        target = tf.boolean_mask(tf.stack([sentinel, tokens], axis=1), tf.stack([starts, missing], axis=1))
        labels = _row(target, tokenizer, sizes.target_length)
        shifted = _row(tf.concat([[start], target], axis=0), tokenizer, sizes.target_length, end=False)
        return {"source_ids": _row(source, tokenizer, max_length), "target_ids": shifted}, labels

    ids_spec, labels_spec = (
        tf.TensorSpec([length], tf.int32) for length in (max_length, sizes.target_length)
    )
    signature = {"source_ids": ids_spec, "target_ids": labels_spec}, labels_spec

    def missing_spans(batch: Batch) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        tokens, lengths = ids.gather(batch.rows, length)
        # `example` uses two seeds.
        seed_of_row = batch.seed + 2 * tf.range(tf.size(batch.rows, out_type=tf.int64))[:, None]
        # A row of padding is computed as a row of one token, and replaced below.
        sizes_of_rows = tf.cast(tf.maximum(lengths[:, 0], 1), tf.int32)
        examples = tf.map_fn(example, (tokens, sizes_of_rows, seed_of_row), fn_output_signature=signature)
        return tf.nest.map_structure(
            lambda values: tf.where(lengths >= 0, values, tokenizer.pad_id), examples
        )

    return batches(RowOrder(ids.count, batch_size, shuffle, part), missing_spans, seed, arrays.content)


class _Sizes(NamedTuple):
    """The numbers of tokens and spans to remove from a row, indexed by its length.

    Attributes:
        noise: int32 (row_length + 1,), the number of removed tokens.
        spans: int32 (row_length + 1,), the number of spans.
        row_length: the length of the longest row whose source has at most `max_length` ids.
        target_length: the length of the longest target, including its end id.
    """

    noise: np.ndarray
    spans: np.ndarray
    row_length: int
    target_length: int

    @classmethod
    def of(cls, max_length: int, rate: float, mean_span: float) -> "_Sizes":
        lengths = np.arange(1 + int(max_length / (1 - rate)) + 1)
        noise = np.maximum(1, np.round(rate * lengths)).astype(np.int32)
        # At least one token is kept between two spans.
        spans = np.clip(np.round(noise / mean_span), 1, lengths - noise + 1).astype(np.int32)
        fits = lengths - noise + spans + 1 <= max_length
        row_length = int(np.argmin(fits)) - 1 if not fits.all() else len(lengths) - 1
        noise, spans = noise[: row_length + 1], spans[: row_length + 1]
        return cls(noise, spans, row_length, int((noise + spans).max()) + 1)


def _missing(size: tf.Tensor, noise: tf.Tensor, spans: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Return a mask (size,) of the tokens to remove: `noise` of them, in `spans` spans."""
    removed = _composition(noise, spans, seed)
    # The numbers of tokens kept before, between and after the spans; the first and the last may be 0.
    kept = _composition(size - noise + 2, spans + 1, seed + 1)
    kept -= tf.one_hot(0, spans + 1, dtype=tf.int32) + tf.one_hot(spans, spans + 1, dtype=tf.int32)
    lengths = tf.reshape(tf.stack([kept, tf.concat([removed, [0]], axis=0)], axis=1), [-1])
    return tf.repeat(tf.range(2 * spans + 2) % 2 == 1, lengths)


def _composition(total: tf.Tensor, count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Return `count` random positive integers that sum to `total`, uniform over all compositions."""
    places = tf.random.experimental.stateless_shuffle(tf.range(1, total), seed)[: count - 1]
    ends = tf.concat([[0], tf.sort(places), [total]], axis=0)
    return ends[1:] - ends[:-1]


def _row(ids: tf.Tensor, tokenizer: Tokenizer, length: int, end: bool = True) -> tf.Tensor:
    """Append an end id to `ids`, and pad them to `length`."""
    ids = tf.concat([ids, [tokenizer.end_id]], axis=0) if end else ids
    padded = tf.pad(ids, [[0, length - tf.size(ids)]], constant_values=tokenizer.pad_id)
    return tf.ensure_shape(padded, [length])


def _sentinels(
    sentinels: Sequence[int] | None, tokenizer: Tokenizer, count: int, used: set[int]
) -> list[int]:
    last = tokenizer.vocabulary_size - 1
    chosen = list(range(last, last - count, -1)) if sentinels is None else list(sentinels)
    if len(set(chosen)) != len(chosen) or len(chosen) < count or min(chosen) < 0:
        raise ValueError(
            f"`sentinels` must be at least {count} different ids, for as many spans in a row. "
            f"Received: {len(chosen)} ids, {len(set(chosen))} different"
        )
    special = {tokenizer.pad_id, tokenizer.end_id}
    conflicts = sorted({*chosen[:count]} & {*used, *special})
    if conflicts:
        raise ValueError(
            "`sentinels` must be ids that are neither special nor in any text; they may exceed the tokenizer's "
            f"vocabulary if the model's is larger. Received: sentinels={'None' if sentinels is None else 'ids'} "
            f"with {conflicts[:5]}"
        )
    return chosen[:count]


def _check(tokenizer: Tokenizer, batch_size: int, max_length: int, rate: float, mean_span: float) -> None:
    check_special_ids("tokenizer", tokenizer, ("pad_id", "end_id"))
    check_at_least(1, batch_size=batch_size)
    check_at_least(3, max_length=max_length)
    check_fraction(rate=rate)
    check_at_least(1, mean_span=mean_span)
