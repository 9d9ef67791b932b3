"""Functions that train a tokenizer on texts with a vocabulary size, by the tokenizer's name on the command line."""

from collections.abc import Callable, Sequence

from keras_transformer import text

TRAINERS: dict[str, Callable[[Sequence[str], int], text.Tokenizer]] = {
    "unigram": lambda texts, size: text.SentencePieceTokenizer.train(texts, size),
    "bpe": lambda texts, size: text.SentencePieceTokenizer.train(texts, size, "bpe"),
    "character": lambda texts, size: text.SentencePieceTokenizer.train(texts, size, "char"),
    "byte-bpe": lambda texts, size: text.BytePairTokenizer.train(texts, size),
    "byte": lambda texts, size: text.ByteTokenizer(),
    "wordpiece": lambda texts, size: text.WordPieceTokenizer.train(texts, size),
}
