"""Texts as examples, and their ids."""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from keras_transformer.data.examples import Examples
from keras_transformer.data.progress import ProgressBar
from keras_transformer.data.storage import RowsToStore
from keras_transformer_options.arguments import ArgumentError, Message
from keras_transformer_options.columns import ColumnPicker, Columns
from keras_transformer_options.examples import ADVICE, file_examples
from keras_transformer_options.files import matching
from keras_transformer_options.malformed import Malformed

Texts = Iterable[str | os.PathLike[str]] | os.PathLike[str]


class Tokenizer(Protocol):
    """The interface required of a tokenizer, as in `keras_transformer.text`; functions check the ids that they need."""

    pad_id: int | None
    start_id: int
    end_id: int
    vocabulary_size: int

    def tokenize(self, texts: list[str]) -> Any:
        """Convert strings (B,) to ids without special ids: a list for each, or an int32 `tf.RaggedTensor` (B, None)."""


def text_examples(texts: Texts, columns: Columns = None, on_error: str = "raise") -> Examples:
    """Return texts as examples, with the texts of files in place of their paths.

    Args:
        texts: an iterable of strings and `pathlib.Path`s, or one path.
        columns: the column of the texts in files, see `read_examples`; by default files must have only one.
        on_error: "raise" to raise an error for malformed lines of files, "skip" to skip them with a warning.

    Raises:
        FileNotFoundError: if no file matches a pattern.
        ValueError: while the examples are read, if a line of a file is malformed; see `read_examples`.
    """
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable | os.PathLike):
        raise TypeError(
            Message(
                "{texts} must be an iterable of strings; pass pathlib.Path(name) to read a file",
                texts=str(texts)[:50],
            )
        )
    picker, malformed = ColumnPicker(columns, 1), Malformed("texts", on_error, ADVICE)
    items = [texts] if isinstance(texts, os.PathLike) else texts
    in_files = [isinstance(item, os.PathLike) for item in items] if isinstance(items, Sequence) else [False]
    if any(in_files):
        expanded = (
            matching(item, "texts") if path else [item] for item, path in zip(items, in_files, strict=True)
        )
        items = list(itertools.chain.from_iterable(expanded))

    def read(progress: ProgressBar) -> Iterator[str]:
        for index, item in enumerate(items):
            if isinstance(item, os.PathLike):
                rows = file_examples(item, "texts", picker, malformed, opened=progress.opened)
                yield from (text for (text,) in rows)
            else:
                _check_text(item, index)
                yield item
        picker.check_used("texts")
        malformed.report()

    count = len(items) if isinstance(items, Sequence) and not any(in_files) else None
    options = {"columns": columns, "on_error": on_error}
    return Examples(read, items if in_files and all(in_files) else None, count, options)


def _check_text(text: Any, index: int) -> None:
    if not isinstance(text, str | bytes):
        raise ArgumentError("{texts} must be strings or paths", **{f"texts[{index}]": text})
    if isinstance(text, str) and not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ArgumentError(
                "{texts} must be text without lone surrogates", **{f"texts[{index}]": text[:50]}
            ) from None


def tokenized(texts: Iterable[str | bytes], tokenizer: Tokenizer) -> RowsToStore:
    """Tokenise texts, and return their ids, int32; invalid UTF-8 becomes U+FFFD."""
    strings = [text if isinstance(text, str) else text.decode(errors="replace") for text in texts]
    ids, size = RowsToStore.of_tokens(tokenizer.tokenize(strings)), tokenizer.vocabulary_size
    if len(wrong := np.flatnonzero((ids.values < 0) | (ids.values >= size))):
        row = int(np.searchsorted(ids.ends, wrong[0], side="right"))
        column = wrong[0] - ids.ends[row] + ids.lengths[row]
        raise ValueError(
            f"`tokenizer` must have ids in [0, {size}), its vocabulary. "
            f"Received: {ids.values[wrong[0]]} at row {row}, column {column}"
        )
    return ids


def token_lists(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Tokenise texts, and return the ids of each."""
    return tokenized(texts, tokenizer).to_lists()


def pieces(ids: Iterable[list[int]], length: int) -> list[list[int]]:
    """Split the ids of texts into pieces of at most `length`."""
    return [text[i : i + length] for text in ids for i in range(0, len(text), length)]


def check_tokens(has_tokens: bool) -> None:
    """Raise a ValueError if `texts` contain no token."""
    if not has_tokens:
        raise ArgumentError("{texts} must hold at least one token. Received: none")


def check_special_ids(argument: str, tokenizer: Tokenizer, names: Sequence[str]) -> None:
    """Raise a ValueError if a tokenizer lacks any of the named ids.

    Args:
        argument: the argument's name, for error messages.
        tokenizer: the tokenizer.
        names: names of attributes such as "pad_id".
    """
    ids = {name: getattr(tokenizer, name, None) for name in names}
    if any(id_ is None or id_ < 0 for id_ in ids.values()):
        received = ", ".join(f"{name}={id_}" for name, id_ in ids.items())
        raise ValueError(f"`{argument}` must have {' and '.join(names)}. Received: {received}")


def padding_values(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the padding values of ids and of labels: `pad_id` for both, or `end_id` and −1 if that is None."""
    return (tokenizer.end_id, -1) if tokenizer.pad_id is None else (tokenizer.pad_id, tokenizer.pad_id)
