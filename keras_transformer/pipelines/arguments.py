"""Validation of the arguments of generating pipelines: texts, prefixes and limits."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer.text.tokenizers.strings import to_utf8
from keras_transformer_options.arguments import ArgumentError, Message, check, check_positive, is_integer
from keras_transformer_serving.pipelines.errors import RowErrors
from keras_transformer_serving.pipelines.errors import as_list as as_list

LENGTH = 8
"""The length for which the shapes of outputs are compared."""


def check_model(model: Any, description: str, *names: str) -> None:
    """Raise a TypeError unless a model has attributes of these names."""
    missing = [name for name in names if not hasattr(model, name)]
    if missing:
        raise TypeError(
            f"`model` must be {description}. Received: a {type(model).__name__} without {', '.join(missing)}"
        )


def check_output(model: Any, description: str, expected: tuple[int | None, ...]) -> None:
    """Raise a TypeError unless the output of a model, or its output "classes", has a shape for ids (B, `LENGTH`)."""
    shape = model.compute_output_shape((None, LENGTH))
    shape = shape.get("classes") if isinstance(shape, dict) else shape
    if shape is None or tuple(shape) != expected:
        raise TypeError(f"`model` must be {description}. Received: a {type(model).__name__}")


def check_tokenizer(tokenizer: Any) -> None:
    """Raise a TypeError unless a value has what pipelines need of a tokenizer."""
    if not hasattr(tokenizer, "tokenize") or not hasattr(tokenizer, "vocabulary_size"):
        raise TypeError(
            "`tokenizer` must be one of keras_transformer.text, such as `text.SentencePieceTokenizer`. "
            f"Received: tokenizer={tokenizer!r}"
        )


def check_limit(name: str, limit: Any) -> None:
    """Raise unless a number of tokens or rows is a positive integer."""
    if not is_integer(limit):
        raise TypeError(Message("{} must be an integer", name, **{name: limit}))
    check_positive(**{name: limit})


def check_max_length(max_length: Any, most: int | None) -> int | None:
    """Return the maximum number of tokens of a row, by default `most`, the encoder's.

    Raises:
        ValueError: if it is more, or leaves no room for start and end ids.
    """
    if max_length is None:
        return most
    is_valid = is_integer(max_length) and 2 <= max_length <= (max_length if most is None else most)
    check(is_valid, f"be an integer in [2, {most}], the model's own", max_length=max_length)
    return int(max_length)


def check_text(name: str, text: Any) -> None:
    """Raise unless a value is a string."""
    if not isinstance(text, str):
        raise TypeError(f"`{name}` must be a string. Received: {name}={text!r}")


def utf8_columns(errors: RowErrors, **texts: Sequence[Any]) -> list[list[bytes]]:
    """Return the texts of each argument in UTF-8, b"" for those with an error."""
    columns = {name: [b""] * len(column) for name, column in texts.items()}
    for name, column in texts.items():
        for row, text in enumerate(column):
            with errors.of(row):
                columns[name][row] = to_utf8(text, name, row)
    return list(columns.values())


def one_for_each(name: str, texts: Any, count: int, errors: RowErrors) -> list[str]:
    """Return a list of `count` strings, one for each text."""
    texts = as_list(name, texts)
    if len(texts) != count:
        raise ValueError(f"`{name}` must be one for each of {count} texts. Received: {len(texts)}")
    for row, text in enumerate(texts):
        with errors.of(row):
            check_text(f"{name}[{row}]", text)
    return texts


def limits_of(max_new_tokens: Any, count: int, most: int) -> np.ndarray:
    """Return the maximum number of new tokens for each text, integers (count,); `most` for None."""
    if max_new_tokens is None or isinstance(max_new_tokens, int | np.integer):
        limits = [most if max_new_tokens is None else max_new_tokens] * count
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
    for limit in limits:
        check_limit("max_new_tokens", limit)
        check(limit <= most, f"be at most {most}, the pipeline's own", max_new_tokens=limit)
    return np.array(limits, np.int32)
