"""Tokenizers that run inside the TensorFlow graph, and their trainers.

Where TensorFlow is not installed, the classes have the same names, ids and files, and run in Python.
"""

import os
from typing import Any

from keras_transformer.lazy_tensorflow import is_installed, require
from keras_transformer.text.tokenizers import folders
from keras_transformer_options.arguments import ArgumentError

if is_installed():
    from keras_transformer.text.tokenizers.byte import ByteTokenizer
    from keras_transformer.text.tokenizers.byte_pair import BytePairTokenizer
    from keras_transformer.text.tokenizers.llama import LlamaTokenizer
    from keras_transformer.text.tokenizers.marian_t5 import MarianT5Tokenizer
    from keras_transformer.text.tokenizers.openai_gpt import OpenAIGPTTokenizer
    from keras_transformer.text.tokenizers.sentence_piece import SentencePieceTokenizer
    from keras_transformer.text.tokenizers.tokenizer import Tokenizer
    from keras_transformer.text.tokenizers.word_piece import WordPieceTokenizer
else:
    from keras_transformer.text.without_tensorflow import (
        BytePairTokenizer,
        ByteTokenizer,
        LlamaTokenizer,
        MarianT5Tokenizer,
        OpenAIGPTTokenizer,
        SentencePieceTokenizer,
        Tokenizer,
        WordPieceTokenizer,
    )

__all__ = [
    "BytePairTokenizer",
    "ByteTokenizer",
    "LlamaTokenizer",
    "MarianT5Tokenizer",
    "OpenAIGPTTokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "WordPieceTokenizer",
    "from_hugging_face",
    "load",
    "to_hugging_face",
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


def from_hugging_face(
    folder: str | os.PathLike[str], vocabulary_size: int | None = None, **options: Any
) -> Tokenizer:
    """Read the tokenizer of a folder written by Hugging Face's libraries.

    The class is chosen by the components of `tokenizer.json` or, without that file, by the names of the files:

    | model in `tokenizer.json` | files | class |
    |---|---|---|
    | WordPiece | `vocab.txt` | `WordPieceTokenizer` |
    | BPE of bytes, as GPT-2's, Llama 3's, Qwen's | `vocab.json`, `merges.txt` | `BytePairTokenizer` |
    | BPE with byte fallback, as Llama 2's, Gemma's | `tokenizer.model` | `LlamaTokenizer` |
    | BPE with "</w>", as GPT-1's | `vocab.json`, `merges.txt` | `OpenAIGPTTokenizer` |
    | Unigram, as T5's, ALBERT's | `spiece.model`; Marian's `source.spm`, `vocab.json` | `MarianT5Tokenizer` |
    | – | `tokenizer_config.json` of a ByT5 | `ByteTokenizer` |

    Args:
        folder: the folder.
        vocabulary_size: the number of ids of the model, if it exceeds the number of ids of the tokenizer.
        **options: other arguments of the `from_files` of the class.

    Raises:
        FileNotFoundError: if there are no such files.
        ImportError: if TensorFlow is not installed.
        ValueError: if a file is damaged, or a component of `tokenizer.json` is not supported.

    Example:
        >>> tokenizer = from_hugging_face("downloads/Qwen2.5-0.5B", vocabulary_size=151936)  # doctest: +SKIP
    """
    require("keras_transformer.text.from_hugging_face")
    from keras_transformer.text.tokenizers import hugging_face

    cls: Any = _CLASSES[hugging_face.tokenizer_class(folder)]
    tokenizer: Tokenizer = cls.from_files(folder, vocabulary_size=vocabulary_size, **options)
    return tokenizer


def to_hugging_face(tokenizer: Tokenizer, folder: str | os.PathLike[str], **options: Any) -> None:
    """Write the files of a tokenizer for Hugging Face's libraries, the inverse of `from_hugging_face`.

    Args:
        tokenizer: the tokenizer.
        folder: an existing folder, such as one that `interop.to_hugging_face` has written.
        **options: `add_start` and `add_end`, whether texts begin with the start token and end with the end token, by
            default True; `has_segments`, whether the texts of a pair have different segment ids; and other entries of
            `tokenizer_config.json`, such as `model_max_length`.

    Raises:
        ImportError: if TensorFlow is not installed.
        ValueError: if the tokenizer has no form in these libraries, such as a `SentencePieceTokenizer`; the files are
            read again to compare ids.

    Example:
        >>> to_hugging_face(tokenizer, "runs/bert")  # doctest: +SKIP
    """
    require("keras_transformer.text.to_hugging_face")
    from keras_transformer.text.tokenizers import hugging_face_files

    hugging_face_files.to_hugging_face(tokenizer, folder, **options)
