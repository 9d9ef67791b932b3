"""The tokenizers of exports, without TensorFlow; their ids and texts equal those of `keras_transformer.text`."""

from collections.abc import Callable
from typing import Any

from keras_transformer_serving.text.byte import ByteTokenizer
from keras_transformer_serving.text.sentence_piece import MarianT5Tokenizer, SentencePieceTokenizer
from keras_transformer_serving.text.subword import (
    BytePairTokenizer,
    LlamaTokenizer,
    OpenAIGPTTokenizer,
    WordPieceTokenizer,
)
from keras_transformer_serving.text.tokenizer import Tokenizer as Tokenizer

_CLASSES: dict[str, Callable[[bytes], Tokenizer]] = {
    class_.__name__: class_
    for class_ in (
        BytePairTokenizer,
        ByteTokenizer,
        LlamaTokenizer,
        MarianT5Tokenizer,
        OpenAIGPTTokenizer,
        SentencePieceTokenizer,
        WordPieceTokenizer,
    )
}


def reads_text(config: dict[str, Any]) -> bool:
    """Return whether an export has a tokenizer that runs without TensorFlow, as all of `keras_transformer.text` do."""
    return config.get("tokenizer_class") in _CLASSES


def tokenizer_of(model: bytes, config: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer of an export.

    Args:
        model: the content of the tokenizer's file.
        config: the export's settings, for which `reads_text` is True.

    Raises:
        ImportError: if it needs the `tokenizers` library, which is not installed.
    """
    return _CLASSES[config["tokenizer_class"]](model)
