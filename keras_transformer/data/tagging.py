"""Batches of tagged sentences to train an encoder for token classification."""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

from keras_transformer.data.batches import Dataset
from keras_transformer.data.encoder_rows import (
    IGNORED,
    EncoderRow,
    checked_shapes,
    encoder_batches,
    rows_to_store,
    tokenized_words,
    windows,
)
from keras_transformer.data.epochs import Shard
from keras_transformer.data.examples import together
from keras_transformer.data.storage import Chunk, RowsToStore
from keras_transformer.data.tokenized_texts import Tokenizer
from keras_transformer_options.arguments import ArgumentError, is_integer


def tagging(
    sentences: Iterable[Sequence[str]],
    tags: Iterable[Sequence[int]],
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
    """Make batches to train an encoder such as BERT to classify words, as in named entity recognition.

    The inputs equal those of `pipelines.TokenClassification` for the words joined by spaces, and of `transformers`
    with `is_split_into_words=True`, which needs `add_prefix_space` with byte-level BPE. The first token of each word is
    labelled, as the pipeline predicts a word's class at its first token. A sentence that is too long becomes
    several rows, the pipeline's overlapping windows, and each word is labelled in the window from which the pipeline
    takes its prediction: nothing is truncated.

    Args:
        sentences: the words of each sentence, see `read_conll`. The pipeline may split a word into several, such as at
            punctuation, of which the first is labelled; a word without tokens has no label.
        tags: the class of each word, non-negative integers.
        tokenizer: a tokenizer with padding, start and end ids.
        batch_size: B, the number of rows in every batch; the last batch of each length is completed with rows of
            padding, which losses and metrics must ignore.
        max_length: the maximum length of a row, including special ids: at most the model's.
        length_buckets: the maximum number of lengths of batches, chosen to minimize padding; or the lengths, the last
            of which limits rows as `max_length` does.
        pad_to_multiple_of: the number of which chosen lengths are multiples. Smaller numbers pad less; tensor cores of
            GPUs are faster with 8.
        shuffle: whether to reshuffle in each epoch. Otherwise sentences keep their order within each length.
        seed: the seed of shuffling.
        shard: (index, count), to read one shard of each batch as one of several workers, see `translation_pairs`.
        cache_dir: a folder for the ids, see `translation_pairs`.

    Returns:
        A dataset of known cardinality with elements `({"token_ids": (B, L), "segment_ids": (B, L)}, labels (B, L))`,
        int32, for `models.TokenClassifier`; L is one of a few lengths. Ids are padded with `pad_id` and 0. Labels are
        −1 for special ids, padding and all tokens of a word but the first. Losses and metrics must ignore −1, as
        `training.LabelSmoothedCrossentropy(0.0, pad_id=None)` and `training.TokenAccuracy(pad_id=None)` do.

    Example:
        >>> from keras_transformer.text import WordPieceTokenizer
        >>> tokenizer = WordPieceTokenizer.train(["said Ada"], 40, min_frequency=1)
        >>> inputs, labels = next(iter(tagging([["said", "Ada"]], [[0, 1]], tokenizer, 1)))
        >>> labels.numpy()[0, :4]
        array([-1,  0,  1, -1], dtype=int32)

    References:
        Devlin et al., "BERT" (2019), section 5.3.
    """
    shapes = checked_shapes(tokenizer, batch_size, max_length, length_buckets, pad_to_multiple_of)
    part = Shard.of(shard)

    def to_arrays(chunks: Iterator[list[tuple[Sequence[str], Sequence[int]]]]) -> Iterator[Chunk]:
        for chunk in chunks:
            tokenized = tokenized_words([" ".join(words) for words, _ in chunk], tokenizer)
            rows, labels = [], []
            for of_text, (words, tags_of_words) in zip(tokenized, chunk, strict=True):
                ids, classes = [], []
                ends = itertools.accumulate(len(word) + 1 for word in words)
                left = [*zip(ends, tags_of_words, strict=True)][::-1]
                for word_ids, start, end in of_text:
                    while left and left[-1][0] <= start:  # a word without tokens, or one that is labelled
                        left.pop()
                    tag = IGNORED
                    if left and end > start:
                        place, tag = left.pop()
                        left.append((place, IGNORED))
                    classes += [tag, *[IGNORED] * (len(word_ids) - 1)]
                    ids += word_ids
                spans = windows(len(ids), shapes.limit - 2)
                owners = _owners(len(ids), spans)
                for number, (start, end) in enumerate(spans):
                    window_labels = [
                        label if owners[start + i] == number else IGNORED
                        for i, label in enumerate(classes[start:end])
                    ]
                    rows.append(EncoderRow.of(tokenizer, ids[start:end]))
                    labels.append([IGNORED, *window_labels, IGNORED])
            yield rows_to_store(rows) | {"labels": RowsToStore.of_lists(labels)}

    return encoder_batches(
        _examples(sentences, tags),
        to_arrays,
        "tagging, words of the tokenizer",  # files in `cache_dir` of earlier versions have other ids
        tokenizer,
        shapes,
        shuffle=shuffle,
        seed=seed,
        shard=part,
        cache_dir=cache_dir,
        complete=True,
    )


def _owners(length: int, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return, for each index of a text, the window in which it is farthest from the window's edges."""
    if len(spans) == 1:
        return [0] * length
    return [
        max(
            (number for number, (start, end) in enumerate(spans) if start <= i < end),
            key=lambda number: min(i - spans[number][0], spans[number][1] - 1 - i),
        )
        for i in range(length)
    ]


def _examples(
    sentences: Iterable[Sequence[str]], tags: Iterable[Sequence[int]]
) -> Iterator[tuple[Sequence[str], Sequence[int]]]:
    """Yield each sentence with its tags, checked."""
    for i, (words, word_tags) in enumerate(together(sentences=sentences, tags=tags)):
        strings = not isinstance(words, str) and all(isinstance(word, str) for word in words)
        if not strings or not len(words) or not all(word.strip() for word in words):
            raise ArgumentError(
                "{sentences} must be sequences of words, which are strings that are not empty",
                **{f"sentences[{i}]": words},
            )
        if isinstance(word_tags, str) or len(word_tags) != len(words):
            raise ArgumentError(
                f"{{tags}} must hold a tag for each word. Received: {len(words)} words and {{tags[{i}]=}}",
                **{f"tags[{i}]": word_tags},
            )
        if not all(is_integer(tag) and tag >= 0 for tag in word_tags):
            raise ArgumentError("{tags} must be non-negative integers", **{f"tags[{i}]": word_tags})
        yield words, word_tags
