"""Tokenised texts, and helpers for datasets of them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.text import Tokenizer

_CHUNK = 8192


def tokenized(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[tf.RaggedTensor]:
    """Tokenise texts in chunks, and yield the ids of each chunk, int32 ragged (n, None).

    Raises:
        TypeError: if `texts` is a single string.
        ValueError: if an id is outside the tokenizer's vocabulary.
    """
    if isinstance(texts, str | bytes):
        raise TypeError(f"`texts` must be an iterable of strings. Received: texts={str(texts)[:50]!r}")
    texts = list(texts)
    for start in range(0, len(texts), _CHUNK):
        yield checked_ids(tokenizer.tokenize(tf.constant(texts[start : start + _CHUNK])), tokenizer)


def checked_ids(ids: tf.RaggedTensor, tokenizer: Any) -> tf.RaggedTensor:
    """Return the ids (n, None) of texts, or raise a ValueError if one is outside the tokenizer's vocabulary."""
    size = tokenizer.vocabulary_size
    wrong = np.flatnonzero((ids.values.numpy() < 0) | (ids.values.numpy() >= size))
    if len(wrong):
        row = int(np.searchsorted(ids.row_splits.numpy(), wrong[0], side="right")) - 1
        raise ValueError(
            f"`tokenizer` must have ids in [0, {size}), its vocabulary. "
            f"Received: {ids.values.numpy()[wrong[0]]} at row {row}, column {wrong[0] - ids.row_splits.numpy()[row]}"
        )
    return ids


def token_lists(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Tokenise texts, and yield the ids of each."""
    for ids in tokenized(texts, tokenizer):
        yield from ids.to_list()


def check_special_ids(argument: str, tokenizer: Tokenizer, names: Sequence[str]) -> None:
    """Raise a ValueError if a tokenizer lacks any of the named ids.

    Args:
        argument: the argument's name, for error messages.
        tokenizer: the tokenizer.
        names: names of attributes such as "pad_id".
    """
    found = {name: getattr(tokenizer, name, None) for name in names}
    if any(id_ is None or id_ < 0 for id_ in found.values()):
        received = ", ".join(f"{name}={id_}" for name, id_ in found.items())
        raise ValueError(f"`{argument}` must have {' and '.join(names)}. Received: {received}")


def padding_values(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the padding values of ids and of labels: `pad_id` for both, or `end_id` and −1 if that is None."""
    return (tokenizer.end_id, -1) if tokenizer.pad_id is None else (tokenizer.pad_id, tokenizer.pad_id)


def numbered(count: int, shuffle: bool, seed: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Return a dataset of row indices, reshuffled in each epoch if `shuffle`, and one of seeds, new in each epoch."""
    rows = tf.data.Dataset.range(count)
    if shuffle:
        rows = rows.shuffle(count, seed=seed, reshuffle_each_iteration=True)
    return rows, tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).batch(2)
