"""Tokenizers that split texts into words, and words into pieces, by the `tokenizers` library."""

import json
from collections.abc import Mapping
from typing import Any

from keras_transformer_serving.text.base import VocabularyTokenizer, split_around

# Pieces joined to the previous word without a space, as in the decoder of the `tokenizers` library.
_CLOSE = (".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re")
_CONTINUES = "##"
_END = "</w>"
_SPACE = "\u2581"
# Where a space is added before a text by SentencePiece's BPE.
PREPEND_SCHEMES = ("legacy", "always", "first", "never")


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


class _PairTokenizer(_LibraryTokenizer):
    """Base class of byte-pair encoding, which recognises tokens in texts before and after normalisation."""

    def _build(self, library: Any, content: dict[str, Any]) -> Any:
        self._settings = settings = content["settings"]
        tokenizer = self._build_model(library, settings, _merges(content))
        self._recognized = {
            special_tokens: [
                self._split_options(normalized, special_tokens or bool(self._in_text))
                for normalized in (False, True)
            ]
            for special_tokens in (False, True)
        }
        return tokenizer

    def _build_model(self, library: Any, settings: dict[str, Any], merges: list[tuple[str, ...]]) -> Any:
        """Return the library's tokenizer."""
        raise NotImplementedError

    def _normalize(self, text: str) -> str:
        return text

    def _prepare(self, part: str, starts: bool) -> str:
        """Return a part of a text, which may start it, as the library's tokenizer splits it."""
        return part

    def _split_options(self, normalized: bool, special_tokens: bool) -> dict[str, Any]:
        """Return arguments of `split_around`."""
        settings = self._settings
        recognized = {
            *settings.get("tokens_in_text", ()),
            *(self.special_token_ids if special_tokens else ()),
        }
        in_normalized = recognized.intersection(settings.get("normalized_tokens", ()))
        chosen = in_normalized if normalized else recognized - in_normalized
        names = {token: self._normalize(token) if normalized else token for token in chosen}
        return {
            "tokens": {name: self._ids[token] for token, name in sorted(names.items())},
            "lstrip": {names[token] for token in settings.get("lstrip_tokens", ()) if token in names},
            "rstrip": {names[token] for token in settings.get("rstrip_tokens", ()) if token in names},
        }

    def tokenize(self, text: str, special_tokens: bool = False) -> list[int]:
        """Convert a text to ids, without special ids around them.

        Args:
            text: the text, without lone surrogates.
            special_tokens: whether to convert special tokens in the text to their ids.
        """
        before, after = self._recognized[special_tokens]
        ids: list[int] = []
        for place, part in enumerate(split_around(text, **before)):
            inner = [part] if isinstance(part, int) else split_around(self._normalize(part), **after)
            for inner_place, string in enumerate(inner):
                if isinstance(string, int):
                    ids.append(string)
                elif string:
                    ids += self._cut(self._prepare(string, place == inner_place == 0))
        return ids


class BytePairTokenizer(_PairTokenizer):
    """Convert text to ids and back with byte-level BPE."""

    def _build_model(self, library: Any, settings: dict[str, Any], merges: list[tuple[str, ...]]) -> Any:
        self._contents = [byte_level_content(piece) for piece in self.pieces]
        self._normalizer = library.normalizers.NFC() if settings.get("normalization") else None
        split = library.pre_tokenizers
        pattern = settings.get("pattern")
        steps = [split.Digits(individual_digits=True)] if settings.get("individual_digits") else []
        if pattern is not None:
            steps.append(split.Split(library.Regex(pattern), "isolated"))
        add_prefix_space = settings["add_prefix_space"]
        steps.append(split.ByteLevel(add_prefix_space=add_prefix_space, use_regex=pattern is None))
        ignore_merges = settings.get("ignore_merges", False)
        tokenizer = library.Tokenizer(library.models.BPE(self._ids, merges, ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer = split.Sequence(steps)
        return tokenizer

    def _normalize(self, text: str) -> str:
        return text if self._normalizer is None else self._normalizer.normalize_str(text)

    def _join(self, ids: list[int]) -> str:
        return b"".join(self._contents[id_] for id_ in ids).decode(errors="replace")


class LlamaTokenizer(_PairTokenizer):
    """Convert text to ids and back with character-level BPE and byte fallback."""

    def _build_model(self, library: Any, settings: dict[str, Any], merges: list[tuple[str, ...]]) -> Any:
        self._scheme = settings["prepend_scheme"]
        steps = library.decoders
        self._decoder = steps.Sequence([steps.Replace(_SPACE, " "), steps.ByteFallback(), steps.Fuse()])
        return library.Tokenizer(library.models.BPE(self._ids, merges, byte_fallback=True))

    def _normalize(self, text: str) -> str:
        if self._scheme in ("first", "always") or not text:
            return text
        return (_SPACE if self._scheme == "legacy" else "") + text.replace(" ", _SPACE)

    def _prepare(self, part: str, starts: bool) -> str:
        part = part.replace(" ", _SPACE)
        prepended = self._scheme == "always" or (self._scheme == "first" and starts)
        return _SPACE + part if prepended and not part.startswith(_SPACE) else part

    def _join(self, ids: list[int]) -> str:
        text: str = self._decoder.decode([self.pieces[id_] for id_ in ids])
        return text if self._scheme == "never" else text.removeprefix(" ")


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


def byte_fallback_ids(ids: Mapping[str, int]) -> dict[int, int]:
    """Return the bytes that have a piece such as "<0x0A>", and its id."""
    names = {byte: f"<0x{byte:02X}>" for byte in range(256)}
    return {byte: ids[name] for byte, name in names.items() if name in ids}


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
