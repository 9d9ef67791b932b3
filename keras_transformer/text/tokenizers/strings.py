"""Validation of texts and their conversion to a string tensor."""

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer_serving.text.steps import CLEANED_IN_TEXTS

if TYPE_CHECKING:
    import tensorflow as tf


def to_utf8(text: Any, argument: str, row: int | None = None) -> bytes:
    """Encode one text as UTF-8.

    Args:
        text: a str, or bytes in UTF-8.
        argument: the name of the argument, for error messages.
        row: the index of the text in the argument, for error messages; `None` if the argument is the text itself.

    Returns:
        The text in UTF-8.
    """
    place = argument if row is None else f"{argument}[{row}]"
    if isinstance(text, str):
        try:
            return text.encode("utf-8")
        except UnicodeEncodeError as error:
            wrong = text[error.start : error.end]
            raise ValueError(
                f"`{argument}` must be text without lone surrogates. "
                f"Received: {place}={text!r}, with {wrong!r} at character {error.start}"
            ) from None
    if isinstance(text, bytes):
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            wrong_bytes = text[error.start : error.end]
            raise ValueError(
                f"`{argument}` must be UTF-8. "
                f"Received: {place}={text!r}, with {wrong_bytes!r} at byte {error.start}"
            ) from None
        return text
    raise TypeError(
        f"`{argument}` must be a str, a list of str or a string tensor. "
        f"Received: {place}={text!r} (of type {type(text).__name__})"
    )


def to_string_tensor(texts: Any, argument: str = "texts") -> "tf.Tensor":
    """Convert text to a string tensor of valid UTF-8.

    Python values that are not valid Unicode raise an error; in tensors, which may come from a client of a server,
    invalid bytes become U+FFFD.

    Args:
        texts: a str, a list of str (or of UTF-8 bytes), or a string tensor of rank 0 or 1.
        argument: the name of the argument, for error messages.

    Returns:
        A string tensor, () or (B,).
    """
    import tensorflow as tf

    if tf.is_tensor(texts):
        if not isinstance(texts, tf.Tensor) or texts.dtype != tf.string:
            raise TypeError(
                f"`{argument}` must be a str, a list of str or a dense string tensor. "
                f"Received: {argument}={texts!r}"
            )
        if texts.shape.rank not in (0, 1):
            raise ValueError(
                f"`{argument}` must have a static rank of 0 or 1. Received: a tensor of shape {texts.shape}"
            )
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    if isinstance(texts, list | tuple):
        rows = [to_utf8(text, argument, row) for row, text in enumerate(texts)]
        return tf.constant(rows, dtype=tf.string, shape=(len(rows),))
    return tf.constant(to_utf8(texts, argument), dtype=tf.string)


def cleaned_texts(texts: "tf.Tensor") -> "tf.Tensor":
    """Return decoded strings (B,) without the spaces before punctuation; see `cleaned_text`."""
    import tensorflow as tf

    for old, new in CLEANED_IN_TEXTS:
        texts = tf.strings.regex_replace(texts, re.escape(old), new)
    return texts
