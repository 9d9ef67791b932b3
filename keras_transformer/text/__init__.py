"""Tokenizers that run inside the TensorFlow graph, and their trainers."""

import os

from keras_transformer.text.tokenizers import folders
from keras_transformer.text.tokenizers.base import Tokenizer
from keras_transformer.text.tokenizers.byte import ByteTokenizer
from keras_transformer.text.tokenizers.byte_pair import BytePairTokenizer
from keras_transformer.text.tokenizers.llama import LlamaTokenizer
from keras_transformer.text.tokenizers.marian_t5 import MarianT5Tokenizer
from keras_transformer.text.tokenizers.openai_gpt import OpenAIGPTTokenizer
from keras_transformer.text.tokenizers.sentence_piece import SentencePieceTokenizer
from keras_transformer.text.tokenizers.word_piece import WordPieceTokenizer
from keras_transformer_options.arguments import ArgumentError

__all__ = [
    "BytePairTokenizer",
    "ByteTokenizer",
    "LlamaTokenizer",
    "MarianT5Tokenizer",
    "OpenAIGPTTokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "WordPieceTokenizer",
    "load",
]

_CLASSES: dict[str, type[Tokenizer]] = {
    tokenizer.__name__: tokenizer
    for tokenizer in (
        SentencePieceTokenizer,
        MarianT5Tokenizer,
        WordPieceTokenizer,
        BytePairTokenizer,
        LlamaTokenizer,
        OpenAIGPTTokenizer,
        ByteTokenizer,
    )
}


def load(folder: str | os.PathLike[str]) -> Tokenizer:
    """Load a tokenizer of any class, saved by its `save` method.

    Args:
        folder: the folder written by `save`.

    Returns:
        The tokenizer.

    Raises:
        FileNotFoundError: if the folder or one of its files does not exist.
        ValueError: if the description names an unknown class or the tokenizer's file has changed since `save`.

    Example:
        >>> tokenizer = load("runs/tokenizer")  # doctest: +SKIP
    """
    class_name = folders.read_description(folder)["class_name"]
    if class_name not in _CLASSES:
        raise ArgumentError(
            f"{{folder}} must hold a tokenizer of one of the classes {sorted(_CLASSES)}. "
            f"Received: {{folder=}}, whose {folders.DESCRIPTION} names {{name!r}}",
            folder=os.fspath(folder),
            name=class_name,
        )
    return _CLASSES[class_name].load(folder)
