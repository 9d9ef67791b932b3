"""The base class of tokenizers, which converts special tokens and decodes ids."""

import abc
import dataclasses
import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# Unicode's white space, as a class of a regular expression.
WHITE_SPACE = "[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
# Punctuation and symbols, as the content of a class in regular expressions of Python and RE2.
PUNCTUATION = (
    "!-/:-@\\[-`{-~\u00a1-\u00a9\u00ab-\u00b1\u00b4\u00b6-\u00b8\u00bb\u00bf\u060c\u061b\u061f\u0964\u0965"
    "\u2010-\u2027\u2030-\u205e\u20a0-\u20cf\u2190-\u2bff\u3001-\u3003\u3008-\u3020\uff01-\uff0f\uff1a-\uff20"
    "\uff3b-\uff40\uff5b-\uff65"
)
# Symbols that Unicode counts as letters: circled and squared ones.
ALPHABETIC_SYMBOLS = (
    (0x24B6, 0x24E9),
    (0x1F130, 0x1F149),
    (0x1F150, 0x1F169),
    (0x1F170, 0x1F189),
)
_JOINERS = "\u200c\u200d"
NUM_STAGES = 3  # of `tokens_in_text`


@dataclasses.dataclass(frozen=True)
class TokensInText:
    """Tokens that are recognised in texts, as "added tokens" of the `tokenizers` library are.

    Attributes:
        ids: the tokens, as they are written in texts, and their ids.
        lstrip: the tokens that take the white space before them.
        rstrip: the tokens that take the white space after them.
        single_word: the tokens that are recognised only between characters that are not of words.
        anywhere: True to recognise tokens anywhere in a text, False only at its start.
    """

    ids: Mapping[str, int]
    lstrip: frozenset[str] = frozenset()
    rstrip: frozenset[str] = frozenset()
    single_word: frozenset[str] = frozenset()
    anywhere: bool = True

    @functools.cached_property
    def pattern(self) -> str:
        """The regular expression of all tokens, the longest of several at one place."""
        return "|".join(re.escape(token) for token in sorted(self.ids, key=len, reverse=True))

    @functools.cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern if self.anywhere else rf"\A(?:{self.pattern})")

    def split(self, text: str) -> list[str | int]:
        """Split a text around the tokens that occur in it.

        Returns:
            The parts in order: the id of each token, and the text between them, which may be empty.
        """
        return [part for part, _, _ in self.places(text)]

    def places(self, text: str) -> list[tuple[str | int, int, int]]:
        """Return the parts of `split`, and the start and the end of each in the text."""
        if not self.ids:
            return [(text, 0, len(text))]
        parts: list[tuple[str | int, int, int]] = []
        end = 0
        for match in self._compiled.finditer(text):
            token, start, stop = match[0], match.start(), match.end()
            if token in self.single_word and (_is_word(text[:start][-1:]) or _is_word(text[stop : stop + 1])):
                continue
            between = text[end:start]
            between = _TRAILING.sub("", between) if token in self.lstrip else between
            parts += [(between, end, end + len(between)), (self.ids[token], start, stop)]
            end = _LEADING.match(text, stop).end() if token in self.rstrip else stop  # type: ignore[union-attr]
        rest = text[end:]  # after a token at the start, it may be one itself
        return [*parts, (rest if self.anywhere else self.ids.get(rest, rest), end, len(text))]


_LEADING = re.compile(f"{WHITE_SPACE}*")
_TRAILING = re.compile(rf"{WHITE_SPACE}+\Z")
_WHITE_SPACE_WORD = re.compile(r"\S+")
_PUNCTUATION = re.compile(f"[{PUNCTUATION}]+")
_TRAILING_PUNCTUATION = re.compile(rf"[{PUNCTUATION}]+\Z")
_SPACE = "\u2581"


def tokens_in_text(
    settings: Mapping[str, Any],
    ids: Mapping[str, int],
    special: Mapping[str, int],
    normalize: Callable[[str], str],
) -> list[TokensInText]:
    """Return the tokens that a tokenizer recognises: in texts, in normalised texts, and at the start of what remains.

    Args:
        settings: the settings in the tokenizer's file.
        ids: the pieces and their ids.
        special: the special tokens to recognise.
        normalize: the normalisation of texts.
    """
    tokens = settings.get("tokens_in_text", ())
    at_start = {*(tokens if settings.get("place_in_text") == "start" else settings.get("start_tokens", ()))}
    recognized = {**{token: ids[token] for token in tokens}, **special}
    in_normalized = {*settings.get("normalized_tokens", ())}

    def stage(chosen: list[str], write: Callable[[str], str] = str, anywhere: bool = True) -> TokensInText:
        names = {token: write(token) for token in sorted(chosen)}

        def flagged(name: str) -> frozenset[str]:
            return frozenset(names[token] for token in settings.get(name, ()) if token in names)

        return TokensInText(
            {name: recognized[token] for token, name in names.items() if name},
            lstrip=flagged("lstrip_tokens"),
            rstrip=flagged("rstrip_tokens"),
            single_word=flagged("single_word_tokens"),
            anywhere=anywhere,
        )

    others = [token for token in recognized if token not in at_start]
    return [
        stage([token for token in others if token not in in_normalized]),
        stage([token for token in others if token in in_normalized], normalize),
        stage([token for token in recognized if token in at_start], anywhere=False),
    ]


def _is_word(character: str) -> bool:
    """Return whether a character, or none, belongs to a word, as in the class `w` of Unicode's regular expressions."""
    if not character:
        return False
    category = unicodedata.category(character)
    return (
        category[0] in "LM"
        or category in ("Nd", "Nl", "Pc")
        or character in _JOINERS
        or any(first <= ord(character) <= last for first, last in ALPHABETIC_SYMBOLS)
    )


class Word(NamedTuple):
    """A word of a text.

    Attributes:
        ids: its ids.
        start: the index of its first character in the text.
        end: the index after its last character; equal to the start for white space.
    """

    ids: list[int]
    start: int
    end: int

    def trimmed(self, text: str) -> "Word":
        """Return the word of a text without white space around it."""
        start = min(_LEADING.match(text, self.start).end(), self.end)  # type: ignore[union-attr]
        return self._replace(start=start, end=start + len(_TRAILING.sub("", text[start : self.end])))


class Tokenizer(abc.ABC):
    """Convert text to ids and back.

    A subclass sets the attributes and implements `_cut` and `_join`, and optionally `_normalize` and `_cut_part`.

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
        _settings: the settings in the tokenizer's file, among them those of tokens that are recognised in texts.
        _ids: the pieces and their ids.
        _skipped_ids: other ids that decoded texts are without.
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
    _settings: Mapping[str, Any] = {}
    _ids: Mapping[str, int] = {}
    _skipped_ids: Collection[int] = ()

    @abc.abstractmethod
    def _cut(self, text: str) -> list[int]:
        """Convert a text without special tokens to ids."""

    def _normalize(self, text: str) -> str:
        """Normalise a text."""
        return text

    def _cut_part(self, part: str, starts: bool) -> list[int]:
        """Convert a normalised part of a text, which may start it, to ids."""
        return self._cut(part)

    @abc.abstractmethod
    def _join(self, ids: list[int]) -> str:
        """Convert ids to text."""

    def content(self, id_: int) -> bytes | None:
        """Return the bytes of an id that can be a part of a character; None for one of whole characters."""
        return None

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
        return self._tokenize(text, True, self._tokens_in_text[special_tokens])

    def tokenize_words(self, text: str, each_token: bool = False) -> list[Word]:
        """Return the words of a text, which have its ids.

        Byte-level BPE and WordPiece have the words of their pre-tokenizer; those of other tokenizers are delimited by
        white space and tokenised one by one, and pieces of punctuation are words of their own.

        Args:
            text: the text, without lone surrogates.
            each_token: whether each token is a word of its own. A token that is a part of a character has the place of
                the character, and a space before a word that of the word's first. Where normalisation changes the
                number of characters of a word, its tokens have the place of the word.
        """
        split = self._into_tokens if each_token else self._around_punctuation
        return [part for word in self.tokenize_white_space_words(text) for part in split(word, text)]

    def _into_tokens(self, word: Word, text: str) -> Iterator[Word]:
        """Split a word of a text into its tokens, by the number of characters of each piece."""
        lengths = [1 if id_ == self.unknown_id else self._num_characters(id_) for id_ in word.ids]
        missing = word.end - word.start - sum(lengths)
        if missing > 0 and word.ids.count(self.unknown_id) == 1:  # which has these characters, too
            lengths[word.ids.index(self.unknown_id)], missing = missing + 1, 0
        ends = itertools.accumulate(lengths, initial=word.start)
        for id_, (start, end) in zip(word.ids, itertools.pairwise(ends), strict=True):
            yield Word([id_], word.start, word.end) if missing else Word([id_], start, max(end, start + 1))

    def _num_characters(self, id_: int) -> int:
        """Return the number of characters of the piece of an id, without spaces."""
        return len(self.pieces[id_].replace(_SPACE, ""))

    def _around_punctuation(self, word: Word, text: str) -> Iterator[Word]:
        """Split a word of a text around its pieces of punctuation.

        If the pieces do not have the word's number of characters, as after normalisation, only the places of leading
        and trailing punctuation are known.
        """
        written = text[word.start : word.end]
        ends = [*itertools.accumulate(map(self._num_characters, word.ids), initial=0)]
        missing = len(written) - ends[-1]
        leading = _PUNCTUATION.match(written)
        before, after = leading.end() if leading else 0, len(_TRAILING_PUNCTUATION.sub("", written))
        if after == 0:  # the word is punctuation
            before, after = 0, len(written)

        def is_apart(start: int, end: int) -> bool:
            if missing:
                return end <= before or start + missing >= after
            return _PUNCTUATION.fullmatch(written, start, end) is not None

        apart = [is_apart(*piece) for piece in itertools.pairwise(ends)]
        firsts = [
            place for place in range(1, len(apart)) if ends[place] and (apart[place - 1] or apart[place])
        ]
        starts = [ends[first] + (missing if ends[first] + missing >= after else 0) for first in firsts]
        tokens = itertools.pairwise([0, *firsts, len(word.ids)])
        places = itertools.pairwise([word.start, *(word.start + start for start in starts), word.end])
        for (first, last), place in zip(tokens, places, strict=True):
            yield Word(word.ids[first:last], *place)

    def tokenize_white_space_words(self, text: str) -> list[Word]:
        """Return the words of a text that white space delimits, tokenised one by one."""
        return [Word(self.tokenize(match[0]), *match.span()) for match in _WHITE_SPACE_WORD.finditer(text)]

    def detokenize(self, ids: Sequence[int]) -> str:
        """Convert ids to text, up to the first end id and without padding and start ids.

        If the same id starts and ends a row, as in GPT-2, it does not end a row in the first position.
        """
        skipped = {self.start_id, self.pad_id, *self.source_prefix_ids, *self._skipped_ids}
        ids = [*map(int, ids)]
        first = int(self.start_id == self.end_id)  # the place from which an end id ends the row
        length = ids.index(self.end_id, first) if self.end_id in ids[first:] else len(ids)
        return self._join([id_ for id_ in ids[:length] if id_ not in skipped])

    @functools.cached_property
    def _tokens_in_text(self) -> list[list[TokensInText]]:
        """The tokens to recognise without and with special tokens."""
        always = self._settings.get("special_tokens_in_text", False)
        return [
            tokens_in_text(
                self._settings,
                self._ids,
                self.special_token_ids if always or wanted else {},
                self._normalize,
            )
            for wanted in (False, True)
        ]

    def _tokenize(self, text: str, starts: bool, stages: Sequence[TokensInText]) -> list[int]:
        """Convert a part of a text, which may start it, to ids, by the tokens that remain to be recognised."""
        ids: list[int] = []
        for place, part in enumerate(stages[0].split(text)):
            if isinstance(part, int):
                ids.append(part)
            elif part:
                here = starts and place == 0
                part = self._normalize(part) if len(stages) == NUM_STAGES else part
                rest = stages[1:]
                ids += self._tokenize(part, here, rest) if rest else self._cut_part(part, here)
        return ids


class VocabularyTokenizer(Tokenizer):
    """Base class of tokenizers with a vocabulary of pieces, some of which are special tokens.

    Args:
        pieces: the pieces in the order of their ids.
        settings: the settings in the tokenizer's file: "special_tokens", a mapping from roles to tokens, and others.
    """

    def __init__(self, pieces: Sequence[str], settings: Mapping[str, Any]) -> None:
        self._settings = settings
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
