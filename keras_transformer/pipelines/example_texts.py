"""Texts made from a vocabulary, as inputs of examples and of comparisons."""

from typing import Any

import numpy as np

from keras_transformer.lazy_tensorflow import tf

_PIECES = 400  # of the vocabulary, among which words are looked for
_BEGINS = ("▁", "Ġ")  # the first character of pieces that begin a word


def texts_from_vocabulary(tokenizer: Any, count: int = 24) -> list[str]:
    """Return a text of whole words, texts of 2 to 24 random pieces, an empty text, and an unknown character.

    The first is the example that model cards and the server's page show.
    """
    random = np.random.default_rng(0)
    rows = [random.integers(4, tokenizer.vocabulary_size, 1 + i % 24) for i in range(count)]
    texts = [tokenizer.detokenize(row[None]).numpy()[0].decode(errors="ignore") for row in rows]
    return [_whole_words(tokenizer, random) or texts[0], *texts[1:], "", "\u2603"]


def _whole_words(tokenizer: Any, random: np.random.Generator) -> str:
    """Return a text of pieces that are words of at least three letters, "" if there are none.

    The longest are taken, as short ones are often the beginnings of words.
    """
    ids = random.integers(4, tokenizer.vocabulary_size, _PIECES)
    pieces = {id_: tokenizer.id_to_piece(id_) for id_ in ids.tolist()}
    marked = any(
        piece.startswith(_BEGINS) for piece in pieces.values()
    )  # otherwise "##" marks parts of words
    words = [
        id_
        for id_, piece in pieces.items()
        if len(word := piece.lstrip("".join(_BEGINS))) > 2
        and word.isascii()
        and word.isalpha()
        and (piece != word) == marked
    ]
    words = sorted(words, key=lambda id_: len(pieces[id_]), reverse=True)[:3]
    return tokenizer.detokenize(np.array([words], "int32")).numpy()[0].decode().strip() if words else ""


def accepted_texts(pipeline: Any) -> list[str]:
    """Return texts made from a pipeline's vocabulary that are valid inputs."""
    texts = texts_from_vocabulary(pipeline.tokenizer)
    row_languages = pipeline.example_languages(len(texts))
    errors = pipeline.prepared(tf.constant(texts), row_languages).error.numpy()
    return [text for text, error in zip(texts, errors, strict=True) if not error]


def checked_rows(texts: Any, columns: int) -> list[tuple[str, ...]]:
    """Return rows of texts as tuples, or raise a ValueError if they are of another type or number."""
    rows = [tuple(row) if columns > 1 and isinstance(row, list | tuple) else (row,) for row in texts]
    if not rows or any(len(row) != columns or not all(isinstance(text, str) for text in row) for row in rows):
        expected = "strings" if columns == 1 else "pairs of strings"
        raise ValueError(f"`texts` must be {expected}, one or more. Received: texts={texts!r}")
    return rows
