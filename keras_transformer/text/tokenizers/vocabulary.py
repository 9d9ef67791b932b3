"""A vocabulary of pieces and special tokens, its serialisation, and the base class of tokenizers that have one."""

import abc
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from keras_transformer.text.tokenizers.tokenizer import Tokenizer
from keras_transformer.text.tokenizers.tokens_in_text import tokenize_around
from keras_transformer_options.arguments import check_positive_integer
from keras_transformer_serving.text.tokenizer import TokensInText, tokens_in_text

ROLES = ("pad", "unknown", "start", "end", "mask")
# The settings that list the tokens that are recognised in texts, and how.
_IN_TEXT = (
    "tokens_in_text",
    "lstrip_tokens",
    "rstrip_tokens",
    "single_word_tokens",
    "normalized_tokens",
    "start_tokens",
)


class Vocabulary:
    """The pieces of a tokenizer, their ids and the special tokens among them.

    Args:
        pieces: the pieces, in the order of their ids; "" for an id without a piece.
        special_tokens: a mapping from roles, "pad", "unknown", "start", "end" and "mask", to pieces; other names are
            for special tokens without a role.

    Raises:
        ValueError: if a piece occurs twice, a special token is missing, or none has the role "pad" or "end".
    """

    def __init__(self, pieces: Sequence[str], special_tokens: Mapping[str, str]):
        self.pieces = tuple(pieces)
        self.ids: dict[str, int] = {}
        for id_, piece in enumerate(self.pieces):
            if not isinstance(piece, str):
                raise TypeError(f"`vocabulary` must hold strings. Received: vocabulary[{id_}]={piece!r}")
            if piece in self.ids:
                raise ValueError(
                    "`vocabulary` must hold each piece once. "
                    f"Received: vocabulary[{self.ids[piece]}]=vocabulary[{id_}]={piece!r}"
                )
            if piece:
                self.ids[piece] = id_
        self.special_tokens = dict(special_tokens)
        missing = {role: token for role, token in self.special_tokens.items() if token not in self.ids}
        if missing:
            raise ValueError(
                f"`vocabulary` must hold every special token. Received: {len(self.pieces)} pieces without {missing}"
            )
        if not {"pad", "end"} & self.special_tokens.keys():
            raise ValueError(
                "`special_tokens` must have a token for 'pad' or 'end', to pad rows with. "
                f"Received: special_tokens={self.special_tokens}"
            )

    def role(self, role: str) -> int:
        """Return the id of the token with a role, or −1 if there is none."""
        return self.ids[self.special_tokens[role]] if role in self.special_tokens else -1

    @property
    def pad_id(self) -> int | None:
        """The id of the padding token, None if there is none."""
        return self.ids[self.special_tokens["pad"]] if "pad" in self.special_tokens else None

    @property
    def special_ids(self) -> dict[str, int]:
        """The special tokens and their ids."""
        return {token: self.ids[token] for token in self.special_tokens.values()}


class VocabularyTokenizer(Tokenizer):
    """Base class of tokenizers with a `Vocabulary`, which recognise tokens in texts.

    A subclass implements `_tokenize_parts` and, if it normalises texts before, `_normalize`. The settings of
    `text_settings` list the tokens that are recognised in texts, and how; "special_tokens_in_text" is whether special
    tokens are.

    Args:
        pieces: the pieces in the order of their ids.
        settings: the constructor's other arguments, as JSON can represent them, including "special_tokens".
        needs_unknown: whether an unknown token is required.
    """

    def __init__(
        self, pieces: Sequence[str], settings: Mapping[str, Any], *, needs_unknown: bool = True
    ) -> None:
        super().__init__()
        self._settings = MappingProxyType(settings)  # a tf.Module would wrap a dict
        self._vocabulary = known = Vocabulary(pieces, settings["special_tokens"])
        if needs_unknown and "unknown" not in known.special_tokens:
            raise ValueError(
                "`special_tokens` must have a token for 'unknown'. "
                f"Received: special_tokens={known.special_tokens}"
            )
        self.pad_id = known.pad_id
        self.unknown_id, self.start_id, self.end_id = map(known.role, ("unknown", "start", "end"))
        self.mask_id = known.role("mask")
        self.pair_separators = settings.get("pair_separators", 1)
        self.lstrip_mask = settings.get("lstrip_mask", False)
        source_prefix = settings.get("source_prefix", ())
        if missing := [token for token in source_prefix if token not in known.ids]:
            raise ValueError(
                f"`source_prefix` must be in the vocabulary. Received: {missing}, which it lacks"
            )
        self.source_prefix_ids = tuple(known.ids[token] for token in source_prefix)
        languages = settings.get("languages", {})
        if missing := [token for token in languages.values() if token not in known.ids]:
            raise ValueError(
                f"`languages` must have tokens in the vocabulary. Received: {missing[:5]}, which it lacks"
            )
        # A tf.Module would wrap a dict.
        self.languages = MappingProxyType({name: known.ids[token] for name, token in languages.items()})
        self.language_after_source = settings.get("language_after_source", False)
        self.language_is_start = settings.get("language_is_start", False)
        for name in _IN_TEXT:
            if missing := [token for token in settings.get(name, ()) if token not in known.ids]:
                raise ValueError(
                    f"`{name}` must be in the vocabulary. Received: {missing[:5]}, which are missing"
                )
        self.vocabulary_size: int = len(known.pieces) + settings.get("unused", 0)
        self.empty_ids: tuple[int, ...] = (self.unknown_id,)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The pieces in the order of their ids."""
        return self._vocabulary.pieces

    @property
    def special_token_ids(self) -> dict[str, int]:
        """The special tokens and their ids."""
        return self._vocabulary.special_ids

    @abc.abstractmethod
    def _tokenize_parts(self, texts: tf.Tensor, starts: tf.Tensor) -> tf.RaggedTensor:
        """Convert normalised parts of texts (P,), of which some start a text (P,), to int32 ids (P, None)."""

    def _normalize(self, texts: tf.Tensor) -> tf.Tensor:
        """Normalise strings (P,)."""
        return texts

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._around_tokens(texts, self._tokenize_parts)

    def _tokenize_with_specials(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._around_tokens(texts, self._tokenize_parts, special_tokens=True)

    def _around_tokens(
        self,
        texts: tf.Tensor,
        tokenize: Callable[[tf.Tensor, tf.Tensor], tf.RaggedTensor],
        special_tokens: bool = False,
    ) -> tf.RaggedTensor:
        """Convert tokens in texts (B,) to their ids, and tokenise the parts, strings (P,), between them."""
        return tokenize_around(texts, self._tokens_in_text(special_tokens), self._normalize, tokenize)

    def _tokens_in_text(self, special_tokens: bool) -> list[TokensInText]:
        def normalize(token: str) -> str:
            with tf.init_scope():
                normalized: bytes = self._normalize(tf.constant([token])).numpy()[0]
            return normalized.decode()

        special_tokens |= self._settings.get("special_tokens_in_text", False)
        special = self.special_token_ids if special_tokens else {}
        return tokens_in_text(self._settings, self._vocabulary.ids, special, normalize)

    def _id_to_piece(self, id_: int) -> str:
        return self.vocabulary[id_] if id_ < len(self.vocabulary) else ""

    def piece_to_id(self, piece: str) -> int:
        """Return the id of a piece, or `unknown_id` if there is no such piece.

        Args:
            piece: the piece, as it is in the vocabulary and as `id_to_piece` writes it.

        Example:
            >>> tokenizer.piece_to_id("</s>")  # doctest: +SKIP
            3
        """
        return self._vocabulary.ids.get(piece, self.unknown_id)


def unused_ids(pieces: Sequence[str], vocabulary_size: int | None) -> int:
    """Return the number of ids of a model after those of the pieces in a tokenizer's files.

    Args:
        pieces: the pieces.
        vocabulary_size: the number of ids of the model, by default that of the pieces.
    """
    unused = 0 if vocabulary_size is None else vocabulary_size - len(pieces)
    if unused < 0:
        raise ValueError(
            f"`vocabulary_size` must be at least {len(pieces)}, the number of tokens in the tokenizer's files. "
            f"Received: vocabulary_size={vocabulary_size}"
        )
    return unused


def with_roles(
    special_tokens: Mapping[str, str], pieces: Sequence[str], roles: Mapping[str, int]
) -> dict[str, str]:
    """Return special tokens, of which some get other roles.

    Args:
        special_tokens: a mapping from roles to tokens.
        pieces: the pieces in the order of their ids.
        roles: the ids of the tokens with roles.
    """
    if missing := [role for role, id_ in roles.items() if not 0 <= id_ < len(pieces)]:
        raise ValueError(
            f"`roles` must be ids of the {len(pieces)} pieces in the folder. "
            f"Received: {missing[0]!r} of {roles[missing[0]]}"
        )
    changed = {role: pieces[id_] for role, id_ in roles.items()}
    kept = {special_tokens[role]: special_tokens[role] for role in changed if role in special_tokens}
    kept = {token: token for token in kept if token not in changed.values()}
    return {**special_tokens, **changed, **kept}


def without_defaults(**settings: Any) -> dict[str, Any]:
    """Return settings without empty ones, the defaults, as in the files of earlier versions."""
    return {name: value for name, value in settings.items() if value}


def text_settings(
    tokens: Sequence[str],
    lstrip: Sequence[str],
    rstrip: Sequence[str],
    single_word: Sequence[str],
    normalized: Sequence[str],
    start: Sequence[str] = (),
) -> dict[str, list[str]]:
    """Return the settings of tokens that are recognised in texts, without defaults.

    Args:
        tokens: those recognised in every text; special tokens are only on request.
        lstrip: those that take the white space before them.
        rstrip: those that take the white space after them.
        single_word: those recognised only where no character of a word is next to them.
        normalized: those recognised in normalised texts.
        start: those recognised only at the start of a text.
    """
    lists = (tokens, lstrip, rstrip, single_word, normalized, start)
    return without_defaults(**dict(zip(_IN_TEXT, map(list, lists), strict=True)))


def row_settings(pair_separators: int, lstrip_mask: bool, source_prefix: Sequence[str]) -> dict[str, Any]:
    """Return settings of special tokens around texts, without defaults."""
    check_positive_integer(pair_separators=pair_separators)
    return {
        **({"pair_separators": pair_separators} if pair_separators != 1 else {}),
        **without_defaults(lstrip_mask=lstrip_mask, source_prefix=list(source_prefix)),
    }


def language_settings(
    languages: Mapping[str, str], language_after_source: bool, language_is_start: bool
) -> dict[str, Any]:
    """Return settings of the tokens of languages; defaults are left out, as in the files of earlier versions."""
    if not languages:
        return {}
    return {
        "languages": dict(languages),
        **({"language_after_source": True} if language_after_source else {}),
        **({"language_is_start": True} if language_is_start else {}),
    }


def serialised(content: Mapping[str, Any]) -> bytes:
    """Serialise the content of a tokenizer to deterministic JSON."""
    return (json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def deserialised(model: bytes, keys: Collection[str]) -> dict[str, Any]:
    """Deserialise the JSON of `serialised`.

    Args:
        model: the JSON.
        keys: the keys that the content must have.
    """
    try:
        content = json.loads(model)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`model` must be a serialised tokenizer. Received: {model[:50]!r}…; error of JSON: {error}"
        ) from None
    if not isinstance(content, dict) or content.keys() != set(keys):
        received = sorted(content) if isinstance(content, dict) else content
        raise ValueError(f"`model` must hold {sorted(keys)} and nothing else. Received: {received!r}")
    return content
