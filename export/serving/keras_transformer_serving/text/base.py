"""The base class of tokenizers, which converts special tokens and decodes ids."""

import abc
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

# Unicode's white space, as a class of a regular expression.
WHITE_SPACE = "[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_SPACES = f"{WHITE_SPACE}*"


class Tokenizer(abc.ABC):
    """Convert text to ids and back.

    A subclass sets the attributes and implements `_cut` and `_join`.

    Attributes:
        pad_id: the padding id; None if there is none.
        unknown_id: the id of text that is out of vocabulary; -1 if there is none.
        start_id: the id that starts a row; -1 if there is none.
        end_id: the id that ends a row; -1 if there is none.
        mask_id: the id of the mask token; -1 if there is none.
        special_token_ids: the special tokens and their ids.
        pieces: the pieces in the order of their ids.
        pair_separators: the number of end tokens between the texts of a pair.
        source_prefix_ids: the ids before each source of an encoder–decoder, which decoded texts are without.
        lstrip_mask: whether a mask token takes the white space before it.
        languages: the id of each language's token, by the code of the language.
        language_after_source: whether a source is followed by the token of its language, instead of beginning with it.
        language_is_start: whether a target begins with the token of its language in place of the start token.
        _in_text: the special tokens that are recognised in every text, and their ids.
        _anywhere: whether they are recognised anywhere in a text, or only at its start.
    """

    pad_id: int | None
    unknown_id: int
    start_id: int
    end_id: int
    mask_id: int = -1
    special_token_ids: Mapping[str, int]
    pieces: Sequence[str]
    pair_separators: int = 1
    lstrip_mask: bool = False
    source_prefix_ids: Sequence[int] = ()
    languages: Mapping[str, int] = {}
    language_after_source: bool = False
    language_is_start: bool = False
    _in_text: Mapping[str, int] = {}
    _anywhere: bool = True

    @abc.abstractmethod
    def _cut(self, text: str) -> list[int]:
        """Convert a text without special tokens to ids."""

    @abc.abstractmethod
    def _join(self, ids: list[int]) -> str:
        """Convert ids to text."""

    @property
    def padding_value(self) -> int:
        """The id that pads short rows: `pad_id`, or `end_id` if that is None."""
        return self.end_id if self.pad_id is None else self.pad_id

    def tokenize(self, text: str, special_tokens: bool = False) -> list[int]:
        """Convert a text to ids, without special ids around them.

        Args:
            text: the text, without lone surrogates.
            special_tokens: whether to convert special tokens in the text to their ids.
        """
        return _around(text, self.special_token_ids if special_tokens else {}, self._tokenize)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Convert ids to text, up to the first end id and without padding and start ids.

        If the same id starts and ends a row, as in GPT-2, it does not end a row in the first position.

        Args:
            ids: ids in the vocabulary.
        """
        kept = []
        for place, id_ in enumerate(map(int, ids)):
            if id_ == self.end_id and (place > 0 or self.start_id != self.end_id):
                break
            if id_ not in (self.start_id, self.pad_id, *self.source_prefix_ids):
                kept.append(id_)
        return self._join(kept)

    def _tokenize(self, text: str) -> list[int]:
        return _around(text, self._in_text, self._cut, self._anywhere)


class VocabularyTokenizer(Tokenizer):
    """Base class of tokenizers with a vocabulary of pieces, some of which are special tokens.

    Args:
        pieces: the pieces in the order of their ids.
        settings: the settings in the tokenizer's file: "special_tokens", a mapping from roles to tokens, and others.
    """

    def __init__(self, pieces: Sequence[str], settings: Mapping[str, Any]) -> None:
        roles = settings["special_tokens"]
        self.pieces = [*pieces, *[""] * settings.get("unused", 0)]
        self._ids = {piece: id_ for id_, piece in enumerate(pieces)}
        self.pad_id = self._ids[roles["pad"]] if "pad" in roles else None
        self.unknown_id, self.start_id, self.end_id, self.mask_id = (
            self._ids[roles[role]] if role in roles else -1 for role in ("unknown", "start", "end", "mask")
        )
        self.special_token_ids = {token: self._ids[token] for token in roles.values()}
        self.pair_separators = settings.get("pair_separators", 1)
        self.lstrip_mask = settings.get("lstrip_mask", False)
        self.source_prefix_ids = [self._ids[token] for token in settings.get("source_prefix", ())]
        self.languages = {name: self._ids[token] for name, token in settings.get("languages", {}).items()}
        self.language_after_source = settings.get("language_after_source", False)
        self.language_is_start = settings.get("language_is_start", False)
        if settings.get("special_tokens_in_text"):
            self._in_text = self.special_token_ids


def split_around(
    text: str,
    tokens: Mapping[str, int],
    anywhere: bool = True,
    *,
    lstrip: Collection[str] = (),
    rstrip: Collection[str] = (),
) -> list[str | int]:
    """Split a text around the tokens that occur in it, the longest of several at one place.

    Args:
        text: the text.
        tokens: the tokens and their ids.
        anywhere: True to recognise tokens anywhere in a text, False only at its start.
        lstrip: the tokens that take the white space before them.
        rstrip: the tokens that take the white space after them.

    Returns:
        The parts in order: the id of each token, the text between them, which may be empty.
    """
    if not tokens:
        return [text]
    patterns = (
        f"{_SPACES if token in lstrip else ''}{re.escape(token)}{_SPACES if token in rstrip else ''}"
        for token in sorted(tokens, key=len, reverse=True)
    )
    start = "" if anywhere else r"\A"
    parts: list[str | int] = []
    end = 0
    for match in re.finditer(f"{start}(?:{'|'.join(patterns)})", text):
        token = match[0] if match[0] in tokens else re.sub(rf"\A{_SPACES}|{_SPACES}\Z", "", match[0])
        parts += [text[end : match.start()], tokens[token]]
        end = match.end()
    rest = text[end:]  # after a token at the start, it may be one itself
    return [*parts, tokens.get(rest, rest)]


def _around(
    text: str, specials: Mapping[str, int], cut: Callable[[str], list[int]], anywhere: bool = True
) -> list[int]:
    """Convert special tokens to their ids, and split the text between them.

    Args:
        text: the text.
        specials: special tokens and their ids.
        cut: a function from text to ids.
        anywhere: True to recognise special tokens anywhere in a text, False only at its start.
    """
    parts = split_around(text, specials, anywhere)
    return [id_ for part in parts for id_ in ([part] if isinstance(part, int) else cut(part) if part else [])]
