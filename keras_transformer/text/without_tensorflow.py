"""Tokenizers without TensorFlow: those of `keras_transformer_serving`, with the names, ids and files of the graph's.

They read texts and files, and train SentencePiece models. Other vocabularies are trained, and files of Hugging Face's
libraries are read, where TensorFlow is installed; `save` and `load` move a tokenizer between the two.
"""

import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from keras_transformer.lazy_tensorflow import TENSORFLOW
from keras_transformer.text.tokenizers import folders
from keras_transformer.text.tokenizers.strings import to_utf8
from keras_transformer.text.training.sentence_piece import SentencePieceTraining
from keras_transformer_serving import text

_SPACE = "\u2581"
_SPECIAL_TOKENS = {"pad": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>"}


class Tokenizer(text.Tokenizer):
    """Mixin of the tokenizers of `keras_transformer_serving`: lists of texts, saving, and loading.

    Args:
        model: the serialised tokenizer.

    Attributes:
        model_bytes: the serialised tokenizer.
        file_name: the name of the file that `save` writes in addition to the description.
        sampling: None, because segmentations are sampled in the TensorFlow graph only.
    """

    file_name: ClassVar[str]
    sampling: ClassVar[str | None] = None

    def __init__(self, model: bytes) -> None:
        super().__init__(model)
        self.model_bytes = model

    @property
    def vocabulary_size(self) -> int:
        """The number of ids, including special ids."""
        return len(self.pieces)

    @property
    def sha256(self) -> str:
        """The SHA-256 digest of `model_bytes`, in hexadecimal."""
        return hashlib.sha256(self.model_bytes).hexdigest()

    @functools.cached_property
    def empty_ids(self) -> tuple[int, ...]:
        """The ids without content: the unknown id, and the ids of pieces that are only spaces."""
        return tuple(sorted({*self._spaces(), self.unknown_id} - {-1}))

    def _spaces(self) -> Iterator[int]:
        """Return the ids of pieces that are only spaces."""
        return (id_ for id_, piece in enumerate(self.pieces) if not piece.strip(_SPACE))

    @classmethod
    def from_model_bytes(cls, model: bytes) -> Self:
        """Create a tokenizer from its `model_bytes`."""
        tokenizer = cls.__new__(cls)
        Tokenizer.__init__(tokenizer, model)
        return tokenizer

    def tokenize(self, texts: Any, *, special_tokens: bool = False) -> list[Any]:
        """Convert texts to ids, without special ids around them.

        Args:
            texts: a list of B str, or one str.
            special_tokens: whether to convert special tokens in texts, such as "<|endoftext|>", to their ids.

        Returns:
            The ids of each text, B lists; for one str a list.
        """
        if isinstance(texts, list | tuple | np.ndarray):
            rows = [to_utf8(row, "texts", i).decode() for i, row in enumerate(texts)]
            return [super(Tokenizer, self).tokenize(row, special_tokens) for row in rows]
        return super().tokenize(to_utf8(texts, "texts").decode(), special_tokens)

    def tokenize_words(self, texts: Any, each_token: bool = False) -> list[Any]:
        """Return the words of texts with their ids and places, see `keras_transformer_serving.text.Tokenizer`.

        Args:
            texts: a list of B str, or one str.
            each_token: whether each token is a word of its own.

        Returns:
            The words of each text, B lists; for one str a list.
        """
        if isinstance(texts, list | tuple | np.ndarray):
            return [super(Tokenizer, self).tokenize_words(text, each_token) for text in texts]
        return super().tokenize_words(texts, each_token)

    def encode(
        self, texts: Any, *, add_start: bool = False, add_end: bool = False, special_tokens: bool = False
    ) -> np.ndarray:
        """Convert texts to a batch of ids, padded to the longest with `pad_id`, or with `end_id` if that is None.

        Args:
            texts: see `tokenize`.
            add_start: whether each row starts with `start_id`.
            add_end: whether each row ends with `end_id`.
            special_tokens: see `tokenize`.

        Returns:
            int32 (B, L); for one str (L,).
        """
        is_one = isinstance(texts, str | bytes)
        start, end = [self.start_id] * add_start, [self.end_id] * add_end
        ids = self.tokenize([texts] if is_one else texts, special_tokens=special_tokens)
        rows = [[*start, *row, *end] for row in ids]
        padded = np.full((len(rows), max(map(len, rows), default=0)), self.padding_value, np.int32)
        for row, values in zip(padded, rows, strict=True):
            row[: len(values)] = values
        return padded[0] if is_one else padded

    def detokenize(self, ids: Any) -> Any:
        """Convert each row of ids to text, up to its first end id and without padding and start ids.

        Args:
            ids: integers (T,), (B, T), or (B, R, T) for R hypotheses per text; rows may be lists of other lengths.

        Returns:
            A str, B str, or R str for each of B texts.
        """
        if len(ids) and np.ndim(ids[0]):
            return [self.detokenize(row) for row in ids]
        outside = [id_ for id_ in ids if not 0 <= id_ < self.vocabulary_size]
        if outside:
            raise ValueError(
                f"`ids` must be in [0, {self.vocabulary_size}), the vocabulary. Received: {outside[:5]}"
            )
        return super().detokenize(ids)

    def id_to_piece(self, id: int) -> str:  # noqa: A002
        """Return the piece of an id."""
        return self.pieces[id]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the tokenizer's file and the description `tokenizer.json`, replacing each atomically."""
        names = "pad_id", "unknown_id", "start_id", "end_id", "vocabulary_size"
        description = {"class_name": type(self).__name__, **{name: getattr(self, name) for name in names}}
        folders.write_tokenizer(folder, description, self.file_name, self.model_bytes)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Load a tokenizer from the folder written by `save`, here or where TensorFlow is installed."""
        return cls.from_model_bytes(folders.read_file(folder, cls.__name__))

    @classmethod
    def train(cls, *args: Any, **kwargs: Any) -> Any:
        """Raise an ImportError: training needs TensorFlow."""
        _raise_import_error(f"{cls.__name__}.train")

    @classmethod
    def from_files(cls, *args: Any, **kwargs: Any) -> Any:
        """Raise an ImportError: reading files of Hugging Face's libraries needs TensorFlow."""
        _raise_import_error(f"{cls.__name__}.from_files")


class _OfBytes(Tokenizer):
    _contents: Sequence[bytes]

    def _spaces(self) -> Iterator[int]:
        return (id_ for id_, content in enumerate(self._contents) if not content.strip())


class _OfWords(Tokenizer):
    def _spaces(self) -> Iterator[int]:
        return iter(())


class BytePairTokenizer(_OfBytes, text.BytePairTokenizer):
    """Byte-level BPE."""

    file_name = "byte_pair.json"


class ByteTokenizer(_OfBytes, text.ByteTokenizer):
    """UTF-8 bytes.

    Args:
        special_tokens: a mapping from roles to tokens, in the order of their ids.
        extra_tokens: tokens whose ids follow those of the bytes.
        special_tokens_in_text: whether to recognise special tokens in texts.
        lstrip_tokens: special tokens that, where they are recognised, take the white space before them.
        rstrip_tokens: likewise, the white space after them.
        unused: the number of unused ids after the vocabulary.
    """

    file_name = "bytes.json"

    def __init__(
        self,
        special_tokens: Mapping[str, str] = _SPECIAL_TOKENS,
        extra_tokens: Sequence[str] = (),
        *,
        special_tokens_in_text: bool = False,
        lstrip_tokens: Sequence[str] = (),
        rstrip_tokens: Sequence[str] = (),
        unused: int = 0,
    ) -> None:
        more = {
            "lstrip_tokens": list(lstrip_tokens),
            "rstrip_tokens": list(rstrip_tokens),
            "unused": unused,
        }
        settings = {
            "special_tokens": dict(special_tokens),
            "extra_tokens": list(extra_tokens),
            "special_tokens_in_text": special_tokens_in_text,
            **{name: value for name, value in more.items() if value},
        }
        content = json.dumps({"settings": settings}, ensure_ascii=False, separators=(",", ":"))
        super().__init__(f"{content}\n".encode())


class LlamaTokenizer(Tokenizer, text.LlamaTokenizer):
    """BPE of characters with byte fallback."""

    file_name = "byte_fallback_pair.json"


class MarianT5Tokenizer(Tokenizer, text.MarianT5Tokenizer):
    """A SentencePiece model and a separate vocabulary of its pieces."""

    file_name = "sentencepiece_vocabulary.json"


class OpenAIGPTTokenizer(_OfWords, text.OpenAIGPTTokenizer):
    """The BPE of GPT-1."""

    file_name = "character_pair.json"


class SentencePieceTokenizer(SentencePieceTraining, Tokenizer, text.SentencePieceTokenizer):
    """A SentencePiece model."""

    file_name = "sentencepiece.model"


class WordPieceTokenizer(_OfWords, text.WordPieceTokenizer):
    """BERT's WordPiece."""

    file_name = "wordpiece.json"


def _raise_import_error(name: str) -> NoReturn:
    raise ImportError(f"`{name}` requires {TENSORFLOW}. A tokenizer that is saved there can be loaded here")
