"""Texts as lists of ids."""

from collections.abc import Iterable, Iterator

import tensorflow as tf

from keras_transformer.text import Tokenizer

_CHUNK = 8192


def tokenized(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[tf.RaggedTensor]:
    """The ids of texts, int32 ragged (n, None), some thousand texts at a time.

    Raises:
        TypeError: Where `texts` is one string.
    """
    if isinstance(texts, str | bytes):
        raise TypeError(f"`texts` must be an iterable of strings. Received: texts={str(texts)[:50]!r}")
    texts = list(texts)
    for start in range(0, len(texts), _CHUNK):
        yield tokenizer.tokenize(tf.constant(texts[start : start + _CHUNK]))


def token_lists(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    """The ids of each text."""
    for ids in tokenized(texts, tokenizer):
        yield from ids.to_list()


def numbered(count: int, shuffle: bool, seed: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Row numbers, in another order in each epoch where shuffled; and pairs of seeds, other ones in each epoch."""
    rows = tf.data.Dataset.range(count)
    if shuffle:
        rows = rows.shuffle(count, seed=seed, reshuffle_each_iteration=True)
    return rows, tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).batch(2)
