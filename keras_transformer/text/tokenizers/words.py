"""The words of texts, their ids and their places in the text, inside the TensorFlow graph."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.text.pretokenizers.characters import cut, row_starts, shifted
from keras_transformer.text.tokenizers.tokens_in_text import Parts, split_around
from keras_transformer_serving.text.tokenizer import PUNCTUATION, TokensInText

SPACES = [code for code in range(0x3001) if chr(code).isspace()]  # the last one is U+3000


class PlacedWords(NamedTuple):
    """The words of texts.

    Attributes:
        words: strings, ragged (B, W).
        starts: the index of the first character of each word in its text, int32, ragged (B, W).
        ends: the index after its last character, likewise.
        sources: the index in its text of each character of `words`, of all words, int32 (N,); −1 for an added space.
    """

    words: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor
    sources: tf.Tensor


class TokenizedWords(NamedTuple):
    """The ids of the words of texts; the ids of all words of a text are those of the text.

    Attributes:
        ids: int32, ragged (B, W, None).
        starts: the index of the first character of each word in its text, int32, ragged (B, W).
        ends: the index after its last character, likewise; equal to the start for words of white space.
    """

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor

    @classmethod
    def of(cls, words: PlacedWords, tokenize: Callable[[tf.Tensor], tf.RaggedTensor]) -> "TokenizedWords":
        """Tokenise each distinct word once, by a function of strings (W,) to int32 ids (W, None)."""
        distinct, places = tf.unique(words.words.values)
        return cls(words.words.with_values(tf.gather(tokenize(distinct), places)), words.starts, words.ends)

    @classmethod
    def of_tokens(
        cls,
        words: PlacedWords,
        tokenize: Callable[[tf.Tensor], tf.RaggedTensor],
        places: Callable[[tf.Tensor, tf.RaggedTensor], tuple[tf.Tensor, tf.Tensor]],
    ) -> "TokenizedWords":
        """Tokenise each distinct word once, and return each token as a word of its own.

        Args:
            words: the words.
            tokenize: a function of strings (W,) to int32 ids (W, None).
            places: a function of strings (W,) and their ids to the first character of each of all their tokens, and the
                one after the last, both int32 (T,) and counted from the first character of the first string.
        """
        ids = cls.of(words, tokenize).ids  # (B, W, None)
        starts, ends = places(words.words.values, ids.values)
        # A token of white space has no characters, and is at the end of the one before.
        after = tf.gather(words.sources, ends - 1) + 1
        first = tf.gather(words.sources, tf.minimum(starts, ends - 1))
        starts, ends = tf.maximum(tf.where(ends > starts, first, after), 0), tf.maximum(after, 0)
        of_texts = ids.merge_dims(1, 2)
        each = tf.RaggedTensor.from_row_lengths(of_texts.values, tf.ones_like(of_texts.values, tf.int64))
        return cls(*map(of_texts.with_values, (each, starts, ends)))

    @classmethod
    def around_punctuation(
        cls, words: PlacedWords, tokenize: Callable[[tf.Tensor], tf.RaggedTensor], lengths: tf.Tensor
    ) -> "TokenizedWords":
        """Tokenise each distinct word once, and split it around its pieces of punctuation.

        If the pieces do not have the word's number of characters, as after normalisation, only the places of leading
        and trailing punctuation are known.

        Args:
            words: the words.
            tokenize: a function of strings (W,) to int32 ids (W, None).
            lengths: the number of characters of the piece of each id, int32 (V,).
        """
        distinct, places = tf.unique(words.words.values)
        ids = tokenize(distinct)
        size, before, after = _punctuation_around(distinct)  # (W,)
        rows = ids.value_rowids()
        length = tf.gather(lengths, ids.values)  # of each piece
        missing = tf.gather(size - tf.reduce_sum(ids.with_values(length), axis=1), rows)
        start = tf.cumsum(length, exclusive=True)
        start -= tf.gather(start, tf.gather(ids.row_starts(), rows))  # in the word
        is_trailing = start + missing >= tf.gather(after, rows)
        at_edge = (start + length <= tf.gather(before, rows)) | is_trailing
        is_whole = missing == 0
        pieces = tf.strings.substr(
            tf.gather(distinct, rows), tf.where(is_whole, start, 0), length, unit="UTF8_CHAR"
        )
        is_apart = tf.where(is_whole, tf.strings.regex_full_match(pieces, f"[{PUNCTUATION}]+"), at_edge)
        firsts = row_starts(rows) | ((start > 0) & (is_apart | shifted(is_apart, 1, False)))
        part_rows = tf.boolean_mask(rows, firsts)
        start = tf.boolean_mask(tf.where(is_trailing & ~row_starts(rows), start + missing, start), firsts)
        end = tf.where(
            shifted(row_starts(part_rows), -1, True), tf.gather(size, part_rows), shifted(start, -1, 0)
        )
        parts = tf.RaggedTensor.from_value_rowids(
            tf.RaggedTensor.from_value_rowids(ids.values, tf.cumsum(tf.cast(firsts, tf.int64)) - 1),
            part_rows,
            ids.nrows(),
        )

        def of_texts(values: tf.RaggedTensor) -> tf.RaggedTensor:
            """Return values of all parts of words (B, W · P, …) from those of distinct words (W, P, …)."""
            return words.words.with_values(tf.gather(values, places)).merge_dims(1, 2)

        word_starts = tf.repeat(words.starts.values, tf.gather(parts.row_lengths(), places))
        starts, ends = (of_texts(parts.with_values(place)) for place in (start, end))
        return cls(
            of_texts(parts), *(place.with_values(place.values + word_starts) for place in (starts, ends))
        )

    def of_sources(self, sources: tf.RaggedTensor) -> "TokenizedWords":
        """Return the words at their places in the texts before normalisation.

        Args:
            sources: the index in these texts of each normalised character, int32, ragged (B, N).
        """
        size = tf.cast(sources.row_lengths(), tf.int32)
        # After the last character; words of no characters may be there.
        sources = tf.concat([sources, tf.reduce_max(sources, axis=1, keepdims=True) + 1], axis=1)
        sources = tf.RaggedTensor.from_row_splits(sources.values, sources.row_splits)
        first = tf.cast(tf.gather(sources.row_starts(), self.starts.value_rowids()), tf.int32)
        limit = tf.gather(size, self.starts.value_rowids())

        def source(places: tf.Tensor) -> tf.Tensor:
            return tf.gather(sources.values, first + tf.clip_by_value(places, 0, limit))

        starts, ends = self.starts.values, self.ends.values
        moved = source(starts)
        ends = tf.where(ends > starts, source(ends - 1) + 1, moved)
        return self._replace(starts=self.starts.with_values(moved), ends=self.ends.with_values(ends))

    def between(self, parts: Parts) -> "TokenizedWords":
        """Return the words of texts (B,) from those of their parts (P,); each token in a text is a word."""
        is_token = parts.token_ids >= 0
        count = tf.cast(is_token, tf.int64)

        def joined(tokens: tf.Tensor | tf.RaggedTensor, words: tf.RaggedTensor) -> tf.RaggedTensor:
            of_tokens = tf.gather(tokens, tf.where(is_token)[:, 0])
            of_tokens = tf.RaggedTensor.from_row_lengths(of_tokens, count)
            return parts.texts.with_values(tf.concat([of_tokens, words], axis=1)).merge_dims(1, 2)

        rows = self.starts.value_rowids()
        starts, ends = (
            values.with_values(values.values + tf.gather(parts.starts, rows))
            for values in (self.starts, self.ends)
        )
        token_ids = tf.RaggedTensor.from_row_lengths(parts.token_ids, tf.ones_like(count))
        return TokenizedWords(
            joined(token_ids, self.ids), joined(parts.starts, starts), joined(parts.ends, ends)
        )


def white_space_words(texts: tf.Tensor) -> PlacedWords:
    """Split texts (B,) into words at white space."""
    codes = tf.strings.unicode_decode(texts, "UTF-8")  # (B, None)
    rows = codes.value_rowids()
    place = tf.cast(tf.range(tf.size(rows, tf.int64)) - tf.gather(codes.row_starts(), rows), tf.int32)
    space = tf.reduce_any(codes.values[:, None] == tf.constant(SPACES), axis=1)
    new_row = row_starts(rows)
    starts = ~space & (new_row | shifted(space, 1, True))
    ends = ~space & (shifted(new_row, -1, True) | shifted(space, -1, True))
    kept = (tf.boolean_mask(values, ~space) for values in (codes.values, rows, starts))
    words = cut(*kept, codes.nrows())
    return PlacedWords(
        words,
        words.with_values(tf.boolean_mask(place, starts)),
        words.with_values(tf.boolean_mask(place, ends) + 1),
        tf.boolean_mask(place, ~space),
    )


def places_of_pieces(
    words: tf.Tensor, ids: tf.RaggedTensor, lengths: tf.Tensor, unknown_id: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the places of the tokens of words by the number of characters of each piece; see `of_tokens`.

    An unknown token has one character; the only one of a word has all that are of no other token. Where the pieces do
    not have the word's number of characters, as after normalisation, each has the place of the word.

    Args:
        words: strings (W,).
        ids: their ids, ragged (W, None).
        lengths: the number of characters of the piece of each id, int32 (V,).
        unknown_id: the id of unknown characters.
    """
    size, rows = tf.strings.length(words, unit="UTF8_CHAR"), ids.value_rowids()
    is_unknown = ids.values == unknown_id
    length = tf.where(is_unknown, 1, tf.gather(lengths, ids.values))
    missing = size - tf.reduce_sum(ids.with_values(length), axis=1)
    takes_rest = (tf.reduce_sum(ids.with_values(tf.cast(is_unknown, tf.int32)), axis=1) == 1) & (missing > 0)
    length += tf.where(is_unknown & tf.gather(takes_rest, rows), tf.gather(missing, rows), 0)
    start = tf.cumsum(length, exclusive=True)
    start -= tf.gather(start, tf.gather(ids.row_starts(), rows))  # in the word
    is_exact = tf.gather(takes_rest | (missing == 0), rows)
    end = tf.where(is_exact, start + tf.maximum(length, 1), tf.gather(size, rows))
    start = tf.where(is_exact, start, 0)
    first = tf.gather(tf.cumsum(size, exclusive=True), rows)
    return first + start, first + end


def _punctuation_around(words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the numbers of characters of words (W,), and the places after leading and before trailing punctuation.

    They are 0 and the number of characters for words of punctuation.
    """

    def length(texts: tf.Tensor) -> tf.Tensor:
        return tf.strings.length(texts, unit="UTF8_CHAR")

    size = length(words)
    before = size - length(tf.strings.regex_replace(words, rf"\A[{PUNCTUATION}]+", ""))
    after = length(tf.strings.regex_replace(words, rf"[{PUNCTUATION}]+\z", ""))
    is_punctuation = after == 0
    return size, tf.where(is_punctuation, 0, before), tf.where(is_punctuation, size, after)


def words_around(
    texts: tf.Tensor,
    stages: Sequence[TokensInText],
    normalize: Callable[[tf.Tensor], tuple[tf.Tensor, tf.RaggedTensor | None]],
    tokenize: Callable[[tf.Tensor, tf.Tensor], TokenizedWords],
) -> TokenizedWords:
    """Split texts into words as `tokens_in_text.tokenize_around` tokenises them.

    Args:
        texts: strings (B,).
        stages: the tokens to recognise, likewise.
        normalize: a function of strings (P,) to normalised strings and the index in the original of each of their
            characters, ragged (P, N); None if the strings are unchanged.
        tokenize: a function of normalised strings (P,), and a mask (P,) of those that start a text, to their words.
    """

    def around(texts: tf.Tensor, starts: tf.Tensor, place: int) -> TokenizedWords:
        if place == len(stages):
            return tokenize(texts, starts)
        tokens = stages[place]
        if tokens.ids:
            parts = split_around(texts, tokens)
            rows = parts.texts.value_rowids()
            strings, starts = parts.texts.values, row_starts(rows) & tf.gather(starts, rows)
        else:
            parts, strings = None, texts
        normal, sources = normalize(strings) if place == 0 else (strings, None)
        words = around(normal, starts, place + 1)
        words = words if sources is None else words.of_sources(sources)
        return words if parts is None else words.between(parts)

    return around(texts, tf.ones_like(texts, tf.bool), 0)
