"""Tokenised texts, and helpers for datasets of them."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.data.columns import ColumnPicker, Columns
from keras_transformer.data.files import ADVICE, file_examples
from keras_transformer.data.malformed import Malformed
from keras_transformer.text import Tokenizer

_CHUNK = 8192

Texts = Iterable[str | os.PathLike[str]] | os.PathLike[str]


def read_texts(texts: Texts, columns: Columns = None, on_error: str = "raise") -> list[str]:
    """Return texts, with those of files in place of their paths.

    Args:
        texts: an iterable of strings and `pathlib.Path`s, or one path.
        columns: the column of the texts in files, see `read_examples`; by default files must have only one.
        on_error: "raise" to refuse malformed lines of files, "skip" to leave them out with a warning.

    Raises:
        TypeError: if `texts` is a single string.
        ValueError: if a line of a file is malformed; see `read_examples`.
    """
    if isinstance(texts, str | bytes):
        raise TypeError(
            "`texts` must be an iterable of strings; pass pathlib.Path(name) to read a file. "
            f"Received: texts={str(texts)[:50]!r}"
        )
    picker, malformed = ColumnPicker(columns, 1), Malformed("texts", on_error, ADVICE)
    found = []
    for item in [texts] if isinstance(texts, os.PathLike) else texts:
        if isinstance(item, os.PathLike):
            found += [text for (text,) in file_examples(item, "texts", picker, malformed)]
        else:
            found.append(item)
    picker.check_used("texts")
    malformed.report()
    return found


def tokenized(texts: Sequence[str], tokenizer: Tokenizer) -> Iterator[tf.RaggedTensor]:
    """Tokenise texts in chunks, and yield the ids of each chunk, int32 ragged (n, None)."""
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


def token_lists(texts: Sequence[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
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
