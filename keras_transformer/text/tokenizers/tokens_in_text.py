"""Recognition of special and other tokens in texts, inside the TensorFlow graph."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.text.pretokenizers.characters import row_starts
from keras_transformer_serving.text.base import WHITE_SPACE

_SPACES = f"{WHITE_SPACE}*"


class Parts(NamedTuple):
    """Texts, split around the tokens that occur in them.

    Attributes:
        texts: the parts of each text, strings (B, None), with "" in place of a token.
        token_ids: the id of each token, int32 (P,), -1 for the text between them.
    """

    texts: tf.RaggedTensor
    token_ids: tf.Tensor

    @property
    def starts(self) -> tf.Tensor:
        """A mask (P,) of the parts that start a text."""
        return row_starts(self.texts.value_rowids())

    def join(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Return the ids of the texts, int32 (B, None), from those of the parts, int32 (P, None)."""
        is_token = self.token_ids >= 0
        lengths = tf.cast(is_token, tf.int64)
        tokens = tf.RaggedTensor.from_row_lengths(tf.boolean_mask(self.token_ids, is_token), lengths)
        return self.texts.with_values(tf.concat([tokens, ids], axis=1)).merge_dims(1, 2)


def split_around(
    texts: tf.Tensor,
    tokens: Mapping[str, int],
    anywhere: bool = True,
    *,
    lstrip: Collection[str] = (),
    rstrip: Collection[str] = (),
) -> Parts:
    """Split texts around the tokens that occur in them, the longest of several at one place.

    Args:
        texts: strings (B,).
        tokens: the tokens and their ids; if there are none, each text is one part.
        anywhere: True to recognise tokens anywhere in a text, False only at its start.
        lstrip: the tokens that take the white space before them.
        rstrip: the tokens that take the white space after them.

    Returns:
        The parts.
    """
    if not tokens:
        return Parts(tf.RaggedTensor.from_tensor(texts[:, None]), tf.fill([tf.size(texts)], -1))
    # Longest first: RE2 takes the first of several patterns that match. The byte 0xFF never occurs in UTF-8.
    patterns = [
        f"{_SPACES if token in lstrip else ''}{re.escape(token)}{_SPACES if token in rstrip else ''}"
        for token in sorted(tokens, key=len, reverse=True)
    ]
    pattern = f"({'|'.join(patterns)})" if anywhere else rf"\A({'|'.join(patterns)})"
    parts = tf.strings.split(tf.strings.regex_replace(texts, pattern, b"\xff\\1\xff"), b"\xff")
    token_ids = _ids_of(parts.values, tokens)
    if stripped := {token: id_ for token, id_ in tokens.items() if token in lstrip or token in rstrip}:
        # No other part can be a token with white space around it: it would have been split.
        without_space = tf.strings.regex_replace(parts.values, rf"\A{_SPACES}|{_SPACES}\z", "")
        token_ids = tf.maximum(token_ids, _ids_of(without_space, stripped))
    return Parts(parts.with_values(tf.where(token_ids >= 0, "", parts.values)), token_ids)


def _ids_of(strings: tf.Tensor, tokens: Mapping[str, int]) -> tf.Tensor:
    """Return the ids of strings (P,) that are tokens, −1 for others."""
    matches = strings[:, None] == tf.constant(list(tokens))  # (P, number of tokens)
    ids = tf.gather(tf.constant(list(tokens.values())), tf.argmax(matches, axis=1))
    return tf.where(tf.reduce_any(matches, axis=1), ids, -1)


def tokenize_around(
    texts: tf.Tensor,
    specials: Mapping[str, int],
    tokenize: Callable[[tf.Tensor], tf.RaggedTensor],
    anywhere: bool = True,
) -> tf.RaggedTensor:
    """Convert special tokens to their ids, and tokenise the text between them.

    Args:
        texts: strings (B,).
        specials: special tokens and their ids.
        tokenize: a function of strings (P,) to int32 ids (P, None).
        anywhere: True to recognise special tokens anywhere in a text, False only at its start.

    Returns:
        int32 `tf.RaggedTensor` (B, None).
    """
    parts = split_around(texts, specials, anywhere)
    return parts.join(tokenize(parts.texts.values))
