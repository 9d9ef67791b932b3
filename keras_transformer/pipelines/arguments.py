"""Validation of the arguments of generating pipelines: texts, prefixes and limits."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer.text.tokenizers.strings import to_utf8
from keras_transformer_options.arguments import ArgumentError, Message, check, check_positive, is_integer
from keras_transformer_serving.pipelines.errors import RowErrors
from keras_transformer_serving.pipelines.errors import as_list as as_list

LENGTH = 8
"""The length of the ids with which the shape of a model's output is checked."""


def check_model(model: Any, description: str, *names: str) -> None:
    """Raise a TypeError unless a model has these attributes."""
    missing = [name for name in names if not hasattr(model, name)]
    if missing:
        raise TypeError(
            f"`model` must be {description}. Received: a {type(model).__name__} without {', '.join(missing)}"
        )


def check_output(model: Any, description: str, expected: tuple[int | None, ...]) -> None:
    """Raise a TypeError unless a model's output (or "classes" of it) for ids (B, `LENGTH`) has the expected shape."""
    shape = model.compute_output_shape((None, LENGTH))
    shape = shape.get("classes") if isinstance(shape, dict) else shape
    if shape is None or tuple(shape) != expected:
        raise TypeError(f"`model` must be {description}. Received: a {type(model).__name__}")


def check_tokenizer(tokenizer: Any) -> None:
    """Raise a TypeError unless a value has the interface of a tokenizer."""
    if not hasattr(tokenizer, "tokenize") or not hasattr(tokenizer, "vocabulary_size"):
        raise TypeError(
            "`tokenizer` must be one of keras_transformer.text, such as `text.SentencePieceTokenizer`. "
            f"Received: tokenizer={tokenizer!r}"
        )


def check_limit(name: str, limit: Any) -> None:
    """Raise an error unless a number of tokens or rows is a positive integer."""
    if not is_integer(limit):
        raise TypeError(Message("{} must be an integer", name, **{name: limit}))
    check_positive(**{name: limit})


def check_max_length(max_length: Any, limit: int | None) -> int | None:
    """Return the maximum number of tokens of a row, by default `limit`, the encoder's.

    Raises:
        ValueError: if it exceeds `limit`, or is too small for start and end ids.
    """
    if max_length is None:
        return limit
    is_valid = is_integer(max_length) and 2 <= max_length <= (max_length if limit is None else limit)
    check(is_valid, f"be an integer in [2, {limit}], the model's limit", max_length=max_length)
    return int(max_length)


def check_text(name: str, text: Any) -> None:
    """Raise a TypeError unless a value is a string."""
    if not isinstance(text, str):
        raise TypeError(f"`{name}` must be a string. Received: {name}={text!r}")


def utf8_columns(errors: RowErrors, **texts: Sequence[Any]) -> list[list[bytes]]:
    """Encode the texts of each argument as UTF-8; texts with an error become b""."""
    columns = {name: [b""] * len(column) for name, column in texts.items()}
    for name, column in texts.items():
        for row, text in enumerate(column):
            with errors.of(row):
                columns[name][row] = to_utf8(text, name, row)
    return list(columns.values())


def decoded(texts: Iterable[Any]) -> list[Any]:
    """Decode the texts that are bytes; invalid UTF-8 becomes lone surrogates, for which calls raise an error."""
    return [text.decode(errors="surrogateescape") if isinstance(text, bytes) else text for text in texts]


def one_for_each(name: str, texts: Any, count: int, errors: RowErrors) -> list[str]:
    """Return an argument that has one string for each of `count` texts as a list."""
    texts = as_list(name, texts)
    if len(texts) != count:
        raise ValueError(
            f"`{name}` must have one item for each of {count} texts. Received: {len(texts)} items"
        )
    for row, text in enumerate(texts):
        with errors.of(row):
            check_text(f"{name}[{row}]", text)
    return texts


def limits_of(max_new_tokens: Any, count: int, limit: int) -> np.ndarray:
    """Return the maximum number of new tokens of each text, integers (count,); `limit` for None."""
    if max_new_tokens is None or isinstance(max_new_tokens, int | np.integer):
        limits = [limit if max_new_tokens is None else max_new_tokens] * count
    elif isinstance(max_new_tokens, str) or not isinstance(max_new_tokens, Iterable):
        raise TypeError(
            "`max_new_tokens` must be an integer or one for each text. "
            f"Received: max_new_tokens={max_new_tokens!r}"
        )
    else:
        limits = list(max_new_tokens)
    if len(limits) != count:
        raise ArgumentError(
            f"{{max_new_tokens}} must be an integer or one for each of {count} texts. Received: {len(limits)}"
        )
    for number in limits:
        check_limit("max_new_tokens", number)
        check(number <= limit, f"be at most {limit}, the pipeline's limit", max_new_tokens=number)
    return np.array(limits, np.int32)
