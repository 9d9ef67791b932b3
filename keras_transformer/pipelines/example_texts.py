"""Texts made from a vocabulary, as inputs of examples and of comparisons."""

import unicodedata
from typing import Any

import numpy as np

from keras_transformer.lazy_tensorflow import tf

_PIECES = 400  # of the vocabulary, among which words are looked for
_BEGINS = ("▁", "Ġ")  # the first character of pieces that begin a word
_CONTINUES = "##"
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


def texts_from_vocabulary(tokenizer: Any, count: int = 24) -> list[str]:
    """Return a text of whole words, texts of 2 to 24 random pieces, an empty text, and an unknown character.

    The first is the example that model cards and the server's page show.
    """
    random = np.random.default_rng(0)
    rows = [random.integers(4, tokenizer.vocabulary_size, 1 + i % 24) for i in range(count)]
    texts = [tokenizer.detokenize(row[None]).numpy()[0].decode(errors="ignore") for row in rows]
    return [_whole_words(tokenizer, random) or texts[0], *texts[1:], "", "\u2603"]


def _whole_words(tokenizer: Any, random: np.random.Generator) -> str:
    """Return a text of pieces that are words of the script that most of the words have, "" if there are none.

    The longest are taken, as short ones are often the beginnings of words.
    """
    ids = np.unique(random.integers(4, tokenizer.vocabulary_size, _PIECES))
    pieces = [tokenizer.id_to_piece(id_) for id_ in ids.tolist()]
    texts = [text.decode(errors="ignore").strip() for text in tokenizer.detokenize(ids[:, None]).numpy()]
    marked = any(piece.startswith(_BEGINS) for piece in pieces)  # otherwise "##" marks parts of words
    words: dict[str, list[tuple[int, int]]] = {}
    for id_, piece, text in zip(ids.tolist(), pieces, texts, strict=True):
        if not text or any(unicodedata.category(character)[0] not in "LM" for character in text):
            continue
        script = unicodedata.name(text[0], "").partition(" ")[0]
        is_whole = script in _WITHOUT_SPACES or piece.startswith(_BEGINS) == marked
        if is_whole and not piece.startswith(_CONTINUES) and (script in _WITHOUT_SPACES or len(text) > 2):
            words.setdefault(script, []).append((len(text), id_))
    if not words:
        return ""
    chosen = sorted(max(words.values(), key=len), reverse=True)[:3]
    return tokenizer.detokenize(np.array([[id_ for _, id_ in chosen]], "int32")).numpy()[0].decode().strip()


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
