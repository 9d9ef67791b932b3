"""Batches of masked texts and pairs of sentences to pre-train an encoder."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from keras_transformer.data.batches import Dataset, batches
from keras_transformer.data.epochs import Batch, RowOrder, Shard
from keras_transformer.data.examples import Examples, stored
from keras_transformer.data.storage import Chunk, RaggedRows, RowsToStore, gathered
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

_MASKED, _RANDOM = 0.8, 0.1


class MaskingTokenizer(Tokenizer, Protocol):
    """The interface required of a tokenizer, as in `keras_transformer.text.WordPieceTokenizer`."""

    unknown_id: int
    mask_id: int

    def id_to_piece(self, id: int) -> str:  # noqa: A002
        """Return the piece of an id; pieces that continue a word start with "##"."""


def masked_language_modeling(
    texts: Texts,
    tokenizer: MaskingTokenizer,
    batch_size: int = 32,
    *,
    columns: Columns = None,
    on_error: str = "raise",
    max_length: int = 128,
    rate: float = 0.15,
    whole_words: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Dataset:
    r"""Make batches to train an encoder to predict masked tokens.

    Of the n tokens of a row that are not special, max(1, round(rate · n)) are chosen, different ones in each epoch:
    80 % of them are replaced by the mask id, 10 % by a random id, and 10 % are kept. Texts longer than a row are split
    into several rows.

    Args:
        texts: strings, or `pathlib.Path`s of files, as in `language_modeling`.
        tokenizer: a tokenizer with a mask id.
        batch_size: B, the number of rows in each batch; the last may be smaller.
        columns: the column of the texts in files, an index or a name; by default files must have only one.
        on_error: "raise" to raise an error for malformed lines of files, "skip" to skip them with a warning.
        max_length: T, the length of every row, including special ids.
        rate: the fraction of tokens to choose.
        whole_words: whether to choose whole words, whose "##" pieces are masked together. The number of chosen tokens
            does not exceed that of single tokens, unless the first word is longer.
        shuffle: whether to reshuffle in each epoch.
        seed: the seed of shuffling and masking.
        shard: (index, count), to read one shard of each batch as one of several workers, see `translation_pairs`.
        cache_dir: a folder for the ids, see `translation_pairs`.

    Returns:
        A dataset of known cardinality with elements
        `({"token_ids": (B, T), "masked_positions": (B, M)}, labels (B, M))`, int32, for
        `models.MaskedLanguageModel`. M is max(1, round(rate · T)), and labels are the original tokens at the chosen
        positions; if a row has fewer than M, the other positions are 0 and their labels `pad_id`, which losses and
        metrics must ignore.

    References:
        Devlin et al., "BERT" (2019), section 3.1 and appendix A.1; dynamic masking: Liu et al., "RoBERTa"
        (2019), section 4.1.
    """
    _check(tokenizer, batch_size, max_length, rate)
    part = Shard.of(shard)

    def to_arrays(chunks: Iterator[list[str]]) -> Iterator[Chunk]:
        has_tokens = False
        for chunk in chunks:
            rows = pieces(token_lists(chunk, tokenizer), max_length - 2)
            rows = [[tokenizer.start_id, *row, tokenizer.end_id] for row in rows]
            has_tokens = has_tokens or bool(rows)
            yield {"rows": RowsToStore.of_lists(rows)}
        check_tokens(has_tokens)

    arrays = stored(
        text_examples(texts, columns, on_error),
        to_arrays,
        cache_dir,
        tokenizer=tokenizer,
        task="masked language modelling",
        max_length=max_length,
    )
    ids = arrays.rows("rows")
    mask = _Masking(tokenizer, max_length, rate, whole_words)

    def masked_tokens(batch: Batch) -> tuple[dict[str, np.ndarray], np.ndarray]:
        token_ids = ids.padded(batch.rows, max_length, tokenizer.pad_id)
        masked, positions, labels = mask(token_ids, np.random.default_rng(batch.seed))
        return {"token_ids": masked, "masked_positions": positions}, labels

    order = RowOrder(ids.count, batch_size, shuffle, part)
    return batches(order, masked_tokens, seed, arrays.content)


def next_sentences(
    documents: Iterable[Sequence[str]],
    tokenizer: MaskingTokenizer,
    batch_size: int = 32,
    *,
    max_length: int = 128,
    rate: float = 0.15,
    whole_words: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Make batches of BERT's two pre-training tasks: masked language modelling and next-sentence prediction.

    Every sentence with a successor is the first sentence of one row. In a random half of the rows, which differs in
    each epoch, the second sentence is its successor; in the others it is a random sentence of a different document. If
    both together are too long, their ends are truncated.

    Args:
        documents: sequences of sentences; at least two documents must not be empty.
        tokenizer: a tokenizer with a mask id.
        batch_size: B, the number of rows in each batch; the last may be smaller.
        max_length: T, the length of every row, including special ids.
        rate: the fraction of tokens to choose, see `masked_language_modeling`.
        whole_words: whether to choose whole words.
        shuffle: whether to reshuffle in each epoch.
        seed: the seed of shuffling, masking and random sentences.
        shard: (index, count), to read one shard of each batch as one of several workers, see `translation_pairs`; of
            the last batch, up to count − 1 rows are dropped, different ones in each epoch.
        cache_dir: a folder for the ids, see `translation_pairs`.

    Returns:
        A dataset with elements `({"token_ids": (B, T), "segment_ids": (B, T), "masked_positions": (B, M)},
        {"tokens": (B, M), "next_sentence": (B,)})`, int32, for `models.Pretraining`. "next_sentence" is 0 for the
        successor and 1 for a random sentence; see `masked_language_modeling` for the others.

    Raises:
        ValueError: see `masked_language_modeling`; also if no sentence has a successor or there is only one document.

    References:
        Devlin et al., "BERT" (2019), section 3.1, task 2.
    """
    _check(tokenizer, batch_size, max_length, rate)
    part = Shard.of(shard)

    def to_arrays(chunks: Iterator[list[Sequence[str]]]) -> Iterator[Chunk]:
        count = with_successor = not_empty = 0
        for chunk in chunks:
            sizes = np.array([len(document) for document in chunk])
            ends = count + np.cumsum(sizes)
            not_last = np.ones(sizes.sum(), bool)
            not_last[ends[sizes > 0] - count - 1] = False
            first = count + np.flatnonzero(not_last)
            yield {
                "sentences": RowsToStore.of_lists(
                    token_lists([sentence for document in chunk for sentence in document], tokenizer)
                ),
                "first": first,
                "document_start": np.repeat(ends - sizes, sizes),
                "document_end": np.repeat(ends, sizes),
            }
            count, with_successor = int(ends[-1]), with_successor + len(first)
            not_empty += int((sizes > 0).sum())
        if not with_successor or not_empty < 2:
            raise ValueError(
                "`documents` must hold at least two documents, one of them with two sentences. "
                f"Received: {not_empty} documents of {count} sentences"
            )

    arrays = stored(Examples.of(documents), to_arrays, cache_dir, tokenizer=tokenizer, task="next sentences")
    ids = arrays.rows("sentences")
    mask = _Masking(tokenizer, max_length, rate, whole_words)

    def pretraining(batch: Batch) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        before, random = gathered(arrays["first"], batch.rows), np.random.default_rng(batch.seed)
        start, end = (gathered(arrays[name], before) for name in ("document_start", "document_end"))
        other = random.integers(ids.count - (end - start))
        other = np.where(other < start, other, other + end - start)
        is_random = random.random(len(before)) < 0.5
        second = np.where(is_random, other, before + 1)
        token_ids, segment_ids = _joined(ids, before, second, tokenizer, max_length)
        masked, positions, labels = mask(token_ids, random)
        inputs = {"token_ids": masked, "segment_ids": segment_ids, "masked_positions": positions}
        return inputs, {"tokens": labels, "next_sentence": is_random.astype(np.int32)}

    order = RowOrder(len(arrays["first"]), batch_size, shuffle, part, complete=False)
    return batches(order, pretraining, seed, arrays.content)


class _Masking:
    """Choose tokens and replace them by mask tokens."""

    def __init__(self, tokenizer: MaskingTokenizer, max_length: int, rate: float, whole_words: bool) -> None:
        self._mask_id, self._pad_id, self._rate = tokenizer.mask_id, tokenizer.pad_id, rate
        self._most = max(1, round(rate * max_length))
        names = ("pad_id", "unknown_id", "start_id", "end_id", "mask_id")
        special, ids = [getattr(tokenizer, name) for name in names], np.arange(tokenizer.vocabulary_size)
        self._is_ordinary = ~np.isin(ids, special)
        self._ordinary = ids[self._is_ordinary].astype(np.int32)
        self._continues = np.array(
            [whole_words and tokenizer.id_to_piece(int(id_)).startswith("##") for id_ in ids]
        )

    def __call__(
        self, token_ids: np.ndarray, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the masked ids (B, T), the chosen positions (B, M) and the original tokens there (B, M)."""
        size, length = token_ids.shape
        may = self._is_ordinary[token_ids]  # (B, T)
        tokens = may.sum(axis=1, keepdims=True)
        wanted = np.where(tokens > 0, np.maximum(1, np.round(self._rate * tokens)), 0)  # (B, 1)
        first = may & ~self._continues[token_ids]
        first |= may & (np.arange(length) == may.argmax(axis=1)[:, None])
        # Sort tokens in a random order that keeps words together, and choose the first of them.
        word = np.where(may, first.cumsum(axis=1), 0)  # (B, T)
        priority = np.take_along_axis(random.random((size, length + 1)), word, axis=1)
        order = np.where(may, priority, 2.0).argsort(axis=1, kind="stable")  # (B, T)
        ordered_word = np.take_along_axis(word, order, axis=1)
        last = np.diff(ordered_word, axis=1, append=-1) != 0
        place = np.arange(1, length + 1)
        # Choose whole words whose last token is within the wanted number, but at least one word.
        count = np.where(last & (place <= wanted), place, 0).max(axis=1, keepdims=True)
        count = np.maximum(count, np.where(tokens > 0, last.argmax(axis=1)[:, None] + 1, 0))
        is_masked = place[: self._most] <= count  # (B, M)
        positions = np.where(is_masked, order[:, : self._most], 0)
        labels = np.where(is_masked, np.take_along_axis(token_ids, positions, axis=1), self._pad_id)
        masked = token_ids.copy()
        masked[np.nonzero(is_masked)[0], positions[is_masked]] = self._replaced(labels[is_masked], random)
        return masked, positions.astype(np.int32), labels

    def _replaced(self, ids: np.ndarray, random: np.random.Generator) -> np.ndarray:
        draw, other = random.random(len(ids)), random.choice(self._ordinary, len(ids))
        return np.where(draw < _MASKED, self._mask_id, np.where(draw < _MASKED + _RANDOM, other, ids))


def _joined(
    ids: RaggedRows,
    first_rows: np.ndarray,
    second_rows: np.ndarray,
    tokenizer: MaskingTokenizer,
    max_length: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows "start, first, end, second, end" and their segment ids, (B, T) each."""
    available, columns = max_length - 3, np.arange(max_length)
    first, first_lengths = ids.gather(first_rows, max_length)
    second, second_lengths = ids.gather(second_rows, max_length)
    # Each text may have half of the positions, and those of the other half that the other text does not need.
    kept_first = np.minimum(first_lengths, np.maximum(available // 2, available - second_lengths))
    kept_second = np.minimum(second_lengths, available - kept_first)
    boundary = kept_first + 2
    end = boundary + kept_second  # the position of the last end id
    shifted = (columns - boundary) % max_length  # of the second text
    token_ids = np.where(
        columns < boundary, np.roll(first, 1, axis=1), np.take_along_axis(second, shifted, axis=1)
    )
    token_ids[:, 0] = tokenizer.start_id
    token_ids = np.where((columns == boundary - 1) | (columns == end), tokenizer.end_id, token_ids)
    segments = ((columns >= boundary) & (columns <= end)).astype(np.int32)
    return np.where(columns <= end, token_ids, tokenizer.pad_id), segments


def _check(tokenizer: MaskingTokenizer, batch_size: int, max_length: int, rate: float) -> None:
    check_special_ids("tokenizer", tokenizer, ("pad_id", "start_id", "end_id", "mask_id"))
    check_at_least(1, batch_size=batch_size)
    check_at_least(5, max_length=max_length)
    check_fraction(rate=rate)
