"""Texts made from a vocabulary, as inputs of examples and of comparisons."""

import unicodedata
from typing import Any

import numpy as np

from keras_transformer import xla
from keras_transformer.lazy_tensorflow import tf

_PIECES = 400  # of the vocabulary, among which words are looked for
_CONTINUATION = 16  # the number of tokens that a language model writes after an example
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
    return [text for text, error in zip(texts, _errors(pipeline, texts), strict=True) if not error]


def continued_texts(pipeline: Any) -> list[str]:
    """Return the accepted texts, each with what a language model writes after it, where that is valid.

    After random pieces alone, a trained model finds many next tokens equally probable. After a text of its own it is as
    sure as in its use, so that a choice that differs says something of the export.
    """
    texts, greedy = accepted_texts(pipeline), pipeline.with_settings("greedy", constraints=())
    with xla.off():
        ids = greedy.generate(texts, max_new_tokens=min(_CONTINUATION, pipeline.max_new_tokens)).best
    written = [answer.decode(errors="ignore") for answer in greedy.decode(ids).numpy()]
    longer = [text + answer for text, answer in zip(texts, written, strict=True)]
    errors = _errors(pipeline, longer)
    return [both if not error else text for text, both, error in zip(texts, longer, errors, strict=True)]


def _errors(pipeline: Any, texts: list[str]) -> Any:
    """Return why texts are not valid inputs of a pipeline, b"" for those that are."""
    return pipeline.prepared(tf.constant(texts), pipeline.example_languages(len(texts))).error.numpy()


def checked_rows(texts: Any, columns: int) -> list[tuple[str, ...]]:
    """Return rows of texts as tuples, or raise a ValueError if they are of another type or number."""
    rows = [tuple(row) if columns > 1 and isinstance(row, list | tuple) else (row,) for row in texts]
    if not rows or any(len(row) != columns or not all(isinstance(text, str) for text in row) for row in rows):
        expected = "strings" if columns == 1 else "pairs of strings"
        raise ValueError(f"`texts` must be {expected}, one or more. Received: texts={texts!r}")
    return rows
