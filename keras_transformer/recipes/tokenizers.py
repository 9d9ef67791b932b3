"""Functions that train a tokenizer, by its name on the command line."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer import text


def _sentence_piece(texts: Sequence[str], size: int, normalization: str, model: Any) -> text.Tokenizer:
    return text.SentencePieceTokenizer.train(texts, size, model, normalization=normalization)


TRAINERS: dict[str, Callable[[Sequence[str], int, str], text.Tokenizer]] = {
    "unigram": functools.partial(_sentence_piece, model="unigram"),
    "bpe": functools.partial(_sentence_piece, model="bpe"),
    "character": functools.partial(_sentence_piece, model="char"),
    "byte-bpe": lambda texts, size, _: text.BytePairTokenizer.train(texts, size),
    "byte": lambda texts, size, _: text.ByteTokenizer(),
    "wordpiece": lambda texts, size, _: text.WordPieceTokenizer.train(texts, size),
}
"""Functions from texts, a vocabulary size and the normalization of SentencePiece tokenizers to the tokenizer."""
