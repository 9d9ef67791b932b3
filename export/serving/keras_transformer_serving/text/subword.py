"""Tokenizers that split texts into words, and words into pieces, by the `tokenizers` library."""

import functools
import itertools
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from keras_transformer_serving.text.steps import cleaned_text, decoded_pieces
from keras_transformer_serving.text.tokenizer import NUM_STAGES, TokensInText, VocabularyTokenizer, Word

# What the decoder of the `tokenizers` library replaces in each piece.
_CLEANED = (
    *((f" {mark}", mark) for mark in (".", "?", "!", ",")),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m")),
    (" do not", " don't"),
    *((f" {ending}", ending) for ending in ("'s", "'ve", "'re")),
)
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


class _WordTokenizer(_LibraryTokenizer):
    """Base class of tokenizers whose library splits texts into words."""

    def tokenize_words(self, text: str, each_token: bool = False) -> list[Word]:
        """Return the words of a text; see `Tokenizer`."""
        cut = self._cut_tokens if each_token else self._cut_words
        return [word.trimmed(text) for word in self._words(text, self._tokens_in_text[False], cut)]

    def _words(
        self, text: str, stages: Sequence[TokensInText], cut: Callable[[str], Iterator[Word]]
    ) -> Iterator[Word]:
        """Yield the words of a part of a text, by the tokens that remain to be recognised, and `cut` after them."""
        for part, start, end in stages[0].places(text):
            if isinstance(part, int):
                yield Word([part], start, end)
            elif part:
                normal = self._normalize(part) if len(stages) == NUM_STAGES else part
                words = self._words(normal, stages[1:], cut) if stages[1:] else cut(normal)
                if normal != part:
                    words = self._at_sources(words, part, normal)
                yield from (Word(ids, start + first, start + last) for ids, first, last in words)

    def _cut_words(self, text: str) -> Iterator[Word]:
        """Yield the words of a normalised text without tokens to recognise."""
        encoding = self._library.encode(text, add_special_tokens=False)
        tokens = zip(encoding.word_ids, encoding.ids, encoding.offsets, strict=True)
        for _, group in itertools.groupby(tokens, key=lambda token: token[0]):
            _, ids, places = zip(*group, strict=True)
            yield Word([*ids], min(start for start, _ in places), max(end for _, end in places))

    def _cut_tokens(self, text: str) -> Iterator[Word]:
        """Yield the tokens of a normalised text without tokens to recognise."""
        encoding = self._library.encode(text, add_special_tokens=False)
        for id_, place in zip(encoding.ids, encoding.offsets, strict=True):
            yield Word([id_], *place)

    def _at_sources(self, words: Iterable[Word], text: str, normal: str) -> Iterator[Word]:
        """Yield the words of a normalised text at their places in the text."""
        sources = [*self._sources(text, normal), len(text)]
        for ids, start, end in words:
            first = sources[start]
            yield Word(ids, first, sources[end - 1] + 1 if end > start else first)

    def _sources(self, text: str, normal: str) -> Iterator[int]:
        """Yield for each character of a normalised text the index of its original."""
        return (place for place, character in enumerate(text) for _ in self._normalize(character))


class BytePairTokenizer(_WordTokenizer):
    """Convert text to ids and back with byte-level BPE."""

    def _build(self, library: Any, content: dict[str, Any]) -> Any:
        settings, merges = content["settings"], _merges(content)
        self._contents = [byte_level_content(piece) for piece in self.pieces]
        self._normalizer = library.normalizers.NFC() if settings.get("normalization") else None
        split = library.pre_tokenizers
        pattern = settings.get("pattern", ())
        patterns = [pattern] if isinstance(pattern, str) else pattern
        steps = [split.Digits(individual_digits=True)] if settings.get("individual_digits") else []
        steps += (split.Split(library.Regex(each), "isolated") for each in patterns)
        add_prefix_space = settings["add_prefix_space"]
        steps.append(split.ByteLevel(add_prefix_space=add_prefix_space, use_regex=not patterns))
        ignore_merges = settings.get("ignore_merges", False)
        tokenizer = library.Tokenizer(library.models.BPE(self._ids, merges, ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer = split.Sequence(steps)
        return tokenizer

    def _normalize(self, text: str) -> str:
        return text if self._normalizer is None else self._normalizer.normalize_str(text)

    def _cut_words(self, text: str) -> Iterator[Word]:
        # The places of words, not of tokens: bytes without a piece belong to no token.
        return (Word(ids, start, end) for ids, _, start, end in self._byte_words(text))

    def _byte_words(self, text: str) -> Iterator[tuple[list[int], str, int, int]]:
        """Yield the ids of each word, its byte characters, its start and its end."""
        encoding = self._library.encode(text, add_special_tokens=False)
        words = self._library.pre_tokenizer.pre_tokenize_str(text)
        tokens = zip(encoding.word_ids, encoding.ids, strict=True)
        for word, group in itertools.groupby(tokens, key=lambda token: token[0]):
            string, (start, end) = words[word]
            # A prefix space before other white space is a word without characters of the text.
            is_prefix = start == 0 and string == BYTE_CHARACTERS[ord(" ")] and not text.startswith(" ")
            yield [id_ for _, id_ in group], string, start, start if is_prefix else end

    def _cut_tokens(self, text: str) -> Iterator[Word]:
        for ids, string, _, end in self._byte_words(text):
            written = byte_level_content(string).decode()
            before = end - len(written)  # -1 if a prefix space was added
            places = [before + place for place, each in enumerate(written) for _ in each.encode()]
            lengths = [len(self._contents[id_]) for id_ in ids]
            if sum(lengths) < len(places):  # bytes without a piece belong to no token
                places = [place for place, byte in zip(places, string, strict=True) if byte in self._ids]
            lasts = itertools.accumulate(lengths)
            for id_, length, last in zip(ids, lengths, lasts, strict=True):
                yield Word([id_], max(places[last - length], 0), places[last - 1] + 1)

    def _sources(self, text: str, normal: str) -> Iterator[int]:
        # Both decompose to the same characters, up to the order of marks.
        decomposed = [place for place, character in enumerate(text) for _ in _decomposed(character)]
        ends = itertools.accumulate((len(_decomposed(character)) for character in normal), initial=0)
        return (decomposed[end] for end in itertools.islice(ends, len(normal)))

    def content(self, id_: int) -> bytes | None:
        """Return the bytes of an id."""
        return self._contents[id_]

    def _join(self, ids: list[int]) -> str:
        return b"".join(self._contents[id_] for id_ in ids).decode(errors="replace")


class LlamaTokenizer(_LibraryTokenizer):
    """Convert text to ids and back with character-level BPE and byte fallback."""

    def _build(self, library: Any, content: dict[str, Any]) -> Any:
        settings, merges = content["settings"], _merges(content)
        self._scheme = settings["prepend_scheme"]
        self._bytes = {id_: bytes([byte]) for byte, id_ in byte_fallback_ids(self._ids).items()}
        steps = library.decoders
        self._decoder = steps.Sequence([steps.Replace(_SPACE, " "), steps.ByteFallback(), steps.Fuse()])
        return library.Tokenizer(library.models.BPE(self._ids, merges, byte_fallback=True))

    def _normalize(self, text: str) -> str:
        if self._scheme in ("first", "always") or not text:
            return text
        return (_SPACE if self._scheme == "legacy" else "") + text.replace(" ", _SPACE)

    def _cut_part(self, part: str, starts: bool) -> list[int]:
        part = part.replace(" ", _SPACE)
        prepended = self._scheme == "always" or (self._scheme == "first" and starts)
        return self._cut(_SPACE + part if prepended and not part.startswith(_SPACE) else part)

    def content(self, id_: int) -> bytes | None:
        """Return the byte of an id such as that of "<0x0A>"."""
        return self._bytes.get(id_)

    def _join(self, ids: list[int]) -> str:
        text: str = self._decoder.decode([self.pieces[id_] for id_ in ids])
        return text if self._scheme == "never" else text.removeprefix(" ")


class OpenAIGPTTokenizer(_WordTokenizer):
    """Convert text to ids and back with GPT-1's BPE."""

    def _build(self, library: Any, content: dict[str, Any]) -> Any:
        settings, merges = content["settings"], _merges(content)
        unknown = settings["special_tokens"]["unknown"]
        pairs = library.models.BPE(self._ids, merges, unk_token=unknown, end_of_word_suffix=_END)
        lowercase = settings["lowercase"]
        return _bert_words(library, pairs, lowercase=lowercase, strip_accents=lowercase)

    def _join(self, ids: list[int]) -> str:
        return "".join(self.pieces[id_].replace(_END, " ") for id_ in ids).removesuffix(" ")


class WordPieceTokenizer(_WordTokenizer):
    """Convert text to ids and back with BERT's WordPiece."""

    def _build(self, library: Any, content: dict[str, Any]) -> Any:
        settings = content["settings"]
        self._initial, self._following = word_piece_texts(
            self.pieces, settings["clean_up"], settings.get("separate_pieces", False)
        )
        if settings.get("skip_special_tokens"):
            self._skipped_ids = {*self.special_token_ids.values()} - {self.unknown_id}
        added = {*settings.get("added_tokens", ())}
        ids = {piece: id_ for piece, id_ in self._ids.items() if piece not in added}
        return _bert_words(
            library,
            library.models.WordPiece(ids, unk_token=settings["special_tokens"]["unknown"]),
            clean_text=settings["clean_text"],
            handle_chinese_chars=settings["isolate_ideographs"],
            strip_accents=settings["strip_accents"],
            lowercase=settings["lowercase"],
        )

    def _normalize(self, text: str) -> str:
        if not self._settings.get("normalized_tokens"):
            return text  # `_cut` normalises it
        normalized: str = self._library.normalizer.normalize_str(text)
        return normalized

    def _join(self, ids: list[int]) -> str:
        first, others = ids[:1], ids[1:]
        text = "".join([*(self._initial[id_] for id_ in first), *(self._following[id_] for id_ in others)])
        return cleaned_text(text) if self._settings.get("clean_up_texts") else text


_decomposed = functools.partial(unicodedata.normalize, "NFD")


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


def word_piece_texts(
    pieces: Sequence[str], clean_up: bool, separate_pieces: bool
) -> tuple[list[str], list[str]]:
    """Return the texts of WordPieces that are the first of their row, and of others.

    Args:
        pieces: the pieces.
        clean_up: whether there are no spaces before punctuation.
        separate_pieces: whether there is a space before each piece that is not the first.
    """
    if separate_pieces:
        return decoded_pieces(pieces, ())

    def cleaned(text: str) -> str:
        for old, new in _CLEANED if clean_up else ():
            text = text.replace(old, new)
        return text

    following = (
        piece.removeprefix(_CONTINUES) if piece.startswith(_CONTINUES) else f" {piece}" for piece in pieces
    )
    return [cleaned(piece) for piece in pieces], [cleaned(text) for text in following]


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
    except ModuleNotFoundError as error:
        raise ImportError(
            "This export's tokenizer needs `tokenizers`, the extra [tokenizers]: pip install tokenizers"
        ) from error
    return tokenizers
