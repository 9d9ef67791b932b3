"""Batches of texts with corrupted spans to pre-train an encoder–decoder."""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.data.batches import Dataset, batches
from keras_transformer.data.epochs import Batch, RowOrder, Shard
from keras_transformer.data.examples import stored
from keras_transformer.data.storage import Chunk, RowsToStore
from keras_transformer.data.tokenized_texts import (
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
) -> Dataset:
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
        ValueError: if there are no tokens in `texts`, there are too few sentinels, a text contains a sentinel, or the
            tokenizer has no padding or end id.

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
    ids, pad_id, end_id = arrays.rows("rows"), tokenizer.pad_id, tokenizer.end_id
    sentinel_ids, start = np.array(chosen, np.int32), pad_id if start_id is None else start_id

    def missing_spans(batch: Batch) -> tuple[dict[str, np.ndarray], np.ndarray]:
        random, count = np.random.default_rng(batch.seed), len(batch.rows)
        source_ids, target_ids, labels = (
            np.full((count, size), pad_id, np.int32)
            for size in (max_length, sizes.target_length, sizes.target_length)
        )
        for row, (tokens, (size,)) in enumerate(zip(*ids.gather(batch.rows, length), strict=True)):
            if size < 0:  # a row of padding
                continue
            source, target = _corrupted(tokens[:size], sizes, sentinel_ids, random)
            source_ids[row, : len(source) + 1] = np.append(source, end_id)
            labels[row, : len(target) + 1] = np.append(target, end_id)
            target_ids[row, : len(target) + 1] = np.insert(target, 0, start)
        return {"source_ids": source_ids, "target_ids": target_ids}, labels

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


def _corrupted(
    tokens: np.ndarray, sizes: _Sizes, sentinels: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of a row with sentinels for random spans, and the spans, each after its sentinel."""
    missing = _missing(len(tokens), int(sizes.noise[len(tokens)]), int(sizes.spans[len(tokens)]), random)
    starts = np.diff(missing, prepend=False) & missing
    sentinel = sentinels[np.maximum(np.cumsum(starts) - 1, 0)]
    source = np.where(starts, sentinel, tokens)[starts | ~missing]
    target = np.stack([sentinel, tokens], axis=1)[np.stack([starts, missing], axis=1)]
    return source, target


def _missing(size: int, noise: int, spans: int, random: np.random.Generator) -> np.ndarray:
    """Return a mask (size,) of the tokens to remove: `noise` of them, in `spans` spans."""
    lengths = np.empty(2 * spans + 1, np.int64)
    lengths[1::2] = _composition(noise, spans, random)
    # The numbers of tokens kept before, between and after the spans; the first and the last may be 0.
    lengths[::2] = _composition(size - noise + 2, spans + 1, random)
    lengths[[0, -1]] -= 1
    return np.repeat(np.arange(2 * spans + 1) % 2 == 1, lengths)


def _composition(total: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Return `count` random positive integers that sum to `total`, uniform over all compositions."""
    places = 1 + random.choice(total - 1, count - 1, replace=False, shuffle=False)
    return np.diff(np.sort(places), prepend=0, append=total)


def _sentinels(
    sentinels: Sequence[int] | None, tokenizer: Tokenizer, count: int, used: set[int]
) -> list[int]:
    last = tokenizer.vocabulary_size - 1
    sentinel_ids = list(range(last, last - count, -1)) if sentinels is None else list(sentinels)
    if len(set(sentinel_ids)) != len(sentinel_ids) or len(sentinel_ids) < count or min(sentinel_ids) < 0:
        raise ValueError(
            f"`sentinels` must be at least {count} different ids, for as many spans in a row. "
            f"Received: {len(sentinel_ids)} ids, {len(set(sentinel_ids))} different"
        )
    special = {tokenizer.pad_id, tokenizer.end_id}
    conflicts = sorted({*sentinel_ids[:count]} & {*used, *special})
    if conflicts:
        raise ValueError(
            "`sentinels` must be ids that are neither special nor in any text; they may exceed the tokenizer's "
            f"vocabulary if the model's is larger. Received: sentinels={'None' if sentinels is None else 'ids'} "
            f"with {conflicts[:5]}"
        )
    return sentinel_ids[:count]


def _check(tokenizer: Tokenizer, batch_size: int, max_length: int, rate: float, mean_span: float) -> None:
    check_special_ids("tokenizer", tokenizer, ("pad_id", "end_id"))
    check_at_least(1, batch_size=batch_size)
    check_at_least(3, max_length=max_length)
    check_fraction(rate=rate)
    check_at_least(1, mean_span=mean_span)
