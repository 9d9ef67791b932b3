"""Tokenizers that split texts into words, and words into pieces, by the `tokenizers` library."""

import json
from typing import Any

from keras_transformer_serving.text.base import VocabularyTokenizer

# Pieces joined to the previous word without a space, as in the decoder of the `tokenizers` library.
_CLOSE = (".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re")
_CONTINUES = "##"
_END = "</w>"


class _LibraryTokenizer(VocabularyTokenizer):
    """Base class of tokenizers that the library runs.

    The library's own special tokens are not used: `Tokenizer` finds them, as they may be ordinary text.

    Args:
        model: the content of the tokenizer's file.

    Raises:
        ImportError: if `tokenizers` is not installed.
    """

    def __init__(self, model: bytes) -> None:
        content, library = json.loads(model), _tokenizers()
        super().__init__(content["vocabulary"], content["settings"])
        self._library = self._build(library, content)

    def _build(self, library: Any, content: dict[str, Any]) -> Any:
        """Return the library's tokenizer of a file's content."""
        raise NotImplementedError

    def _cut(self, text: str) -> list[int]:
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        return ids


class BytePairTokenizer(_LibraryTokenizer):
    """Convert text to ids and back with GPT-2's byte-level BPE."""

    def _build(self, library: Any, content: dict[str, Any]) -> Any:
        self._contents = [byte_level_content(piece) for piece in self.pieces]
        tokenizer = library.Tokenizer(library.models.BPE(self._ids, _merges(content)))
        add_prefix_space = content["settings"]["add_prefix_space"]
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
        return tokenizer

    def _join(self, ids: list[int]) -> str:
        return b"".join(self._contents[id_] for id_ in ids).decode(errors="replace")


class OpenAIGPTTokenizer(_LibraryTokenizer):
    """Convert text to ids and back with GPT-1's BPE."""

    def _build(self, library: Any, content: dict[str, Any]) -> Any:
        settings, merges = content["settings"], _merges(content)
        unknown = settings["special_tokens"]["unknown"]
        pairs = library.models.BPE(self._ids, merges, unk_token=unknown, end_of_word_suffix=_END)
        lowercase = settings["lowercase"]
        return _bert_words(library, pairs, lowercase=lowercase, strip_accents=lowercase)

    def _join(self, ids: list[int]) -> str:
        return "".join(self.pieces[id_].replace(_END, " ") for id_ in ids).removesuffix(" ")


class WordPieceTokenizer(_LibraryTokenizer):
    """Convert text to ids and back with BERT's WordPiece."""

    def _build(self, library: Any, content: dict[str, Any]) -> Any:
        settings = content["settings"]
        self._following = [following_text(piece, settings["clean_up"]) for piece in self.pieces]
        return _bert_words(
            library,
            library.models.WordPiece(self._ids, unk_token=settings["special_tokens"]["unknown"]),
            clean_text=settings["clean_text"],
            handle_chinese_chars=settings["isolate_ideographs"],
            strip_accents=settings["strip_accents"],
            lowercase=settings["lowercase"],
        )

    def _join(self, ids: list[int]) -> str:
        return "".join([*(self.pieces[id_] for id_ in ids[:1]), *(self._following[id_] for id_ in ids[1:])])


def _byte_characters() -> tuple[str, ...]:
    """Return GPT-2's character for each byte: the Latin-1 character if printable, otherwise one from U+0100 on."""
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in visible else next(others)) for byte in range(256))


BYTE_CHARACTERS = _byte_characters()
_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def byte_level_content(piece: str) -> bytes:
    """Return the bytes of a piece; a piece not written as bytes, such as a special token, is encoded as UTF-8."""
    if all(character in _BYTES for character in piece):
        return bytes(_BYTES[character] for character in piece)
    return piece.encode()


def following_text(piece: str, clean_up: bool) -> str:
    """Return the text of a WordPiece that is not the first of its row.

    Args:
        piece: the piece.
        clean_up: whether there are no spaces before punctuation.
    """
    if piece.startswith(_CONTINUES):
        return piece.removeprefix(_CONTINUES)
    return piece if clean_up and piece.startswith(_CLOSE) else f" {piece}"


def _merges(content: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the pairs of pieces to merge, the first in the file first."""
    return [tuple(pair) for pair in content["merges"]]


def _bert_words(library: Any, model: Any, **settings: bool) -> Any:
    """Return the library's tokenizer of a model of words, which are split as in BERT."""
    tokenizer = library.Tokenizer(model)
    tokenizer.normalizer = library.normalizers.BertNormalizer(**settings)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "This export's tokenizer needs `tokenizers`: pip install 'keras-transformer-serving[tokenizers]'"
        ) from error
    return tokenizers
