"""Kinds of tokenizers, by their names on the command line: functions of texts and a vocabulary size."""

from collections.abc import Callable, Sequence

from keras_transformer import text

Trainers = dict[str, Callable[[Sequence[str], int], text.Tokenizer]]

SENTENCE_PIECE: Trainers = {
    "unigram": lambda texts, size: text.SentencePieceTokenizer.train(texts, size),
    "bpe": lambda texts, size: text.SentencePieceTokenizer.train(texts, size, "bpe"),
}
CHARACTERS: Trainers = {
    "character": lambda texts, size: text.SentencePieceTokenizer.train(texts, size, "char"),
}
BYTE_PAIR: Trainers = {"byte-bpe": lambda texts, size: text.BytePairTokenizer.train(texts, size)}
BYTES: Trainers = {"byte": lambda texts, size: text.ByteTokenizer()}
WORD_PIECE: Trainers = {"wordpiece": lambda texts, size: text.WordPieceTokenizer.train(texts, size)}
