"""Validation of the arguments of generating pipelines: texts, prefixes and limits."""

from collections.abc import Sequence
from typing import Any

from keras_transformer.text.tokenizers.strings import to_utf8
from keras_transformer_options.arguments import Message, check, check_positive, is_integer
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
    """Return the maximum number of tokens of a row, by default `limit`, the encoder's."""
    if max_length is None:
        return limit
    is_valid = is_integer(max_length) and 2 <= max_length <= (max_length if limit is None else limit)
    check(is_valid, f"be an integer in [2, {limit}], the model's limit", max_length=max_length)
    return int(max_length)


def utf8_columns(errors: RowErrors, **texts: Sequence[Any]) -> list[list[bytes]]:
    """Encode the texts of each argument as UTF-8; texts with an error become b""."""
    columns = {name: [b""] * len(column) for name, column in texts.items()}
    for name, column in texts.items():
        for row, text in enumerate(column):
            with errors.catching(row):
                columns[name][row] = to_utf8(text, name, row)
    return list(columns.values())
