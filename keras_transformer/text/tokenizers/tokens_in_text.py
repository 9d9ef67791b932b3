"""Recognition of special and other tokens in texts, inside the TensorFlow graph."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.text.pretokenizers.characters import row_starts, shifted
from keras_transformer_serving.text.tokenizer import ALPHABETIC_SYMBOLS, WHITE_SPACE, TokensInText

# The characters of words, as in the class `w` of Unicode's regular expressions; RE2's has ASCII alone.
_SYMBOLS = "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ALPHABETIC_SYMBOLS)
_WORD = rf"[\p{{L}}\p{{M}}\p{{Nd}}\p{{Nl}}\p{{Pc}}\x{{200c}}\x{{200d}}{_SYMBOLS}]"


class Parts(NamedTuple):
    """Texts, split around the tokens that occur in them.

    Attributes:
        texts: the parts of each text, strings (B, None), with "" in place of a token.
        token_ids: the id of each token, int32 (P,), -1 for the text between them.
        starts: the index of the first character of each part in its text, int32 (P,).
        ends: the index after its last character, likewise.
    """

    texts: tf.RaggedTensor
    token_ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor

    def join(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Return the ids of the texts, int32 (B, None), from those of the parts, int32 (P, None)."""
        is_token = self.token_ids >= 0
        lengths = tf.cast(is_token, tf.int64)
        tokens = tf.RaggedTensor.from_row_lengths(tf.boolean_mask(self.token_ids, is_token), lengths)
        return self.texts.with_values(tf.concat([tokens, ids], axis=1)).merge_dims(1, 2)


def split_around(texts: tf.Tensor, tokens: TokensInText) -> Parts:
    """Split texts around the tokens that occur in them, the longest of several at one place."""
    # RE2 takes the first of several patterns that match. The byte 0xFF never occurs in UTF-8.
    pattern = f"({tokens.pattern})" if tokens.anywhere else rf"\A({tokens.pattern})"
    parts = tf.strings.split(tf.strings.regex_replace(texts, pattern, b"\xff\\1\xff"), b"\xff")
    if tokens.single_word:
        parts = _join_parts_of_words(parts, tokens.single_word)
    strings, starts, ends = parts.values, *_places(parts)
    ids = _ids_of(strings, tokens.ids)
    # Of white space at the start of a token, only its ids are of interest.
    without_space = tf.strings.length(
        tf.strings.regex_replace(strings, rf"\A{WHITE_SPACE}+", ""), "UTF8_CHAR"
    )
    starts = tf.where(ids >= 0, ends - without_space, starts)
    # Text is before, between and after tokens, so the neighbours of a token are of the same row.
    if tokens.lstrip:
        before = shifted(_is_one_of(strings, tokens.lstrip), -1, False)
        strings = tf.where(before, tf.strings.regex_replace(strings, rf"{WHITE_SPACE}+\z", ""), strings)
    if tokens.rstrip:
        after = shifted(_is_one_of(parts.values, tokens.rstrip), 1, False)
        stripped = tf.where(after, tf.strings.regex_replace(strings, rf"\A{WHITE_SPACE}+", ""), strings)
        starts += tf.strings.length(strings, "UTF8_CHAR") - tf.strings.length(stripped, "UTF8_CHAR")
        strings = stripped
    return Parts(parts.with_values(tf.where(ids >= 0, "", strings)), ids, starts, ends)


def _places(parts: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return where each part (B, None) starts and ends in its text, in characters, int32 (P,)."""
    ends = tf.cumsum(tf.strings.length(parts.values, "UTF8_CHAR"))
    starts = shifted(ends, 1, 0)
    first = tf.gather(starts, tf.gather(parts.row_starts(), parts.value_rowids()))
    return starts - first, ends - first


def _join_parts_of_words(parts: tf.RaggedTensor, single_word: Collection[str]) -> tf.RaggedTensor:
    """Return parts in which a token of `single_word` next to a character of a word is part of the text again."""
    strings, rows = parts.values, parts.value_rowids()
    is_first, is_last = row_starts(rows), rows != shifted(rows, -1, -1)
    starts, ends = (
        tf.strings.regex_full_match(strings, pattern) for pattern in (f"(?s){_WORD}.*", f"(?s).*{_WORD}")
    )
    is_empty = strings == ""
    # The text between two adjacent tokens is empty: the neighbour of one is then the other.
    inner_end, inner_start = is_empty & ~is_first, is_empty & ~is_last
    ends |= inner_end & shifted(ends, 1, False)
    starts |= inner_start & shifted(starts, -1, False)
    in_word = (shifted(ends, 1, False) & ~is_first) | (shifted(starts, -1, False) & ~is_last)
    joined = _is_one_of(strings, single_word) & in_word
    begins = is_first | ~(joined | shifted(joined, 1, False))
    number = tf.cumsum(tf.cast(begins, tf.int64)) - 1
    count = tf.math.count_nonzero(begins)
    texts = tf.RaggedTensor.from_value_rowids(strings, number, count, validate=False)
    return tf.RaggedTensor.from_value_rowids(
        tf.strings.reduce_join(texts, axis=-1), tf.boolean_mask(rows, begins), parts.nrows(), validate=False
    )


def _is_one_of(strings: tf.Tensor, tokens: Collection[str]) -> tf.Tensor:
    """Return a mask of the strings (P,) that are one of some tokens."""
    return tf.reduce_any(strings[:, None] == tf.constant(sorted(tokens)), axis=1)


def _ids_of(strings: tf.Tensor, tokens: Mapping[str, int]) -> tf.Tensor:
    """Return the ids of strings (P,) that are tokens, −1 for others."""
    matches = strings[:, None] == tf.constant(list(tokens))  # (P, number of tokens)
    ids = tf.gather(tf.constant(list(tokens.values())), tf.argmax(matches, axis=1))
    return tf.where(tf.reduce_any(matches, axis=1), ids, -1)


def tokenize_around(
    texts: tf.Tensor,
    stages: Sequence[TokensInText],
    normalize: Callable[[tf.Tensor], tf.Tensor],
    tokenize: Callable[[tf.Tensor, tf.Tensor], tf.RaggedTensor],
) -> tf.RaggedTensor:
    """Convert the tokens in texts to their ids, and tokenise the text between them.

    Args:
        texts: strings (B,).
        stages: the tokens of `keras_transformer_serving.text.tokenizer.tokens_in_text`, of which the first are
            recognised before texts are normalised.
        normalize: a function of strings (P,) to strings (P,).
        tokenize: a function of normalised strings (P,), and a mask (P,) of those that start a text, to int32 ids
            (P, None).

    Returns:
        int32 `tf.RaggedTensor` (B, None).
    """

    def around(texts: tf.Tensor, starts: tf.Tensor, place: int) -> tf.RaggedTensor:
        if place == len(stages):
            return tokenize(texts, starts)
        tokens = stages[place]
        if not tokens.ids:
            return around(normalize(texts) if place == 0 else texts, starts, place + 1)
        parts = split_around(texts, tokens)
        rows = parts.texts.value_rowids()
        strings, starts = parts.texts.values, row_starts(rows) & tf.gather(starts, rows)
        return parts.join(around(normalize(strings) if place == 0 else strings, starts, place + 1))

    return around(texts, tf.ones_like(texts, tf.bool), 0)
