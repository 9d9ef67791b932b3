"""The settings of the components of Hugging Face's `tokenizer.json`, for each family of tokenizers.

Every component that the `tokenizers` library writes, and every setting of it, is in one of three lists: *applied*;
*without effect* on ids and texts, such as the offsets of tokens; or refused, which all others are. `Components.check`
compares a file with the table of its family.

Where `applied` has a name, the function that reads the component applies or refuses each of its values; `only` lists
the accepted values of others.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class ComponentSettings(NamedTuple):
    """The settings of a component that are not refused.

    Attributes:
        applied: the names of those that are applied.
        without_effect: the names of those without effect on ids and texts.
        only: the accepted values of others, of which the first is named in errors; None for a missing setting.
    """

    applied: frozenset[str] = frozenset()
    without_effect: frozenset[str] = frozenset()
    only: Mapping[str, tuple[Any, ...]] = MappingProxyType({})


# The settings of each type of component, by kind: "normalizer", "pre_tokenizer", "model", "post_processor", "decoder".
Table = Mapping[str, Mapping[str, ComponentSettings]]


def _settings(applied: str = "", without_effect: str = "", **only: Any) -> ComponentSettings:
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in only.items()}
    return ComponentSettings(frozenset(applied.split()), frozenset(without_effect.split()), values)


_NONE = _settings()
_UNSET = (None, False, "")
_TRUE = (True, None)
# The file itself; `transformers` sets truncation and padding for each call.
FILE = _settings(
    "added_tokens normalizer pre_tokenizer post_processor decoder model", "version truncation padding"
)
ADDED_TOKEN = _settings("id content single_word lstrip rstrip normalized special")
_POST_PROCESSORS = {
    "TemplateProcessing": _settings("single pair special_tokens"),
    "BertProcessing": _settings("sep cls"),
    "RobertaProcessing": _settings("sep cls", "trim_offsets add_prefix_space"),
    "ByteLevel": _settings("", "add_prefix_space trim_offsets use_regex"),
}
_NO_DROPOUT = {"dropout": (None, 0.0), "continuing_subword_prefix": _UNSET}
_METASPACE = _settings("replacement prepend_scheme split add_prefix_space", "str_rep")

BYTE_PAIR: Table = {
    "normalizer": {"NFC": _NONE},
    "pre_tokenizer": {
        "ByteLevel": _settings("add_prefix_space use_regex", "trim_offsets"),
        "Digits": _settings("individual_digits"),
        "Split": _settings("pattern behavior invert"),
    },
    "model": {
        "BPE": _settings(
            "vocab merges ignore_merges unk_token",
            "fuse_unk",
            byte_fallback=_UNSET,
            end_of_word_suffix=_UNSET,
            **_NO_DROPOUT,
        )
    },
    "post_processor": _POST_PROCESSORS,
    "decoder": {"ByteLevel": _settings("", "add_prefix_space trim_offsets use_regex")},
}

BYTE_FALLBACK: Table = {
    "normalizer": {"Prepend": _settings("prepend"), "Replace": _settings("pattern content")},
    "pre_tokenizer": {
        "Metaspace": _METASPACE,
        "Split": _settings("pattern behavior invert"),
    },
    # Each byte has a piece, so that no text is unknown.
    "model": {
        "BPE": _settings(
            "vocab merges byte_fallback",
            "unk_token fuse_unk",
            ignore_merges=_UNSET,
            end_of_word_suffix=_UNSET,
            **_NO_DROPOUT,
        )
    },
    "post_processor": _POST_PROCESSORS,
    "decoder": {
        "Replace": _settings("pattern content"),
        "ByteFallback": _NONE,
        "Fuse": _NONE,
        "Strip": _settings("content start stop"),
    },
}

CHARACTER_PAIR: Table = {
    "normalizer": {
        "BertNormalizer": _settings(
            "lowercase", clean_text=_TRUE, handle_chinese_chars=_TRUE, strip_accents=None
        )
    },
    "pre_tokenizer": {"BertPreTokenizer": _NONE},
    "model": {
        "BPE": _settings(
            "vocab merges",
            "unk_token",
            byte_fallback=_UNSET,
            ignore_merges=_UNSET,
            fuse_unk=_UNSET,
            end_of_word_suffix="</w>",
            **_NO_DROPOUT,
        )
    },
    "post_processor": _POST_PROCESSORS,
    "decoder": {"BPEDecoder": _settings(suffix="</w>")},
}

WORD_PIECE: Table = {
    "normalizer": {
        "BertNormalizer": _settings("clean_text handle_chinese_chars strip_accents lowercase"),
    },
    "pre_tokenizer": {"BertPreTokenizer": _NONE},
    "model": {
        "WordPiece": _settings(
            "vocab unk_token", continuing_subword_prefix="##", max_input_chars_per_word=100
        )
    },
    "post_processor": _POST_PROCESSORS,
    "decoder": {"WordPiece": _settings("cleanup", prefix="##")},
}

UNIGRAM: Table = {
    "normalizer": {
        "Precompiled": _settings("precompiled_charsmap"),
        "Replace": _settings("pattern content"),
        "Strip": _settings("strip_left strip_right"),
        "NFKD": _NONE,
        "StripAccents": _NONE,
        "Lowercase": _NONE,
    },
    "pre_tokenizer": {"Metaspace": _METASPACE, "WhitespaceSplit": _NONE},
    "model": {"Unigram": _settings("vocab unk_id", byte_fallback=_UNSET)},
    "post_processor": _POST_PROCESSORS,
    "decoder": {"Metaspace": _METASPACE},
}

# A SentencePiece model of type BPE without bytes, as NLLB-200's.
MULTILINGUAL_PAIR: Table = {
    **UNIGRAM,
    "model": {
        "BPE": _settings(
            "vocab merges unk_token",
            byte_fallback=_UNSET,
            ignore_merges=_UNSET,
            end_of_word_suffix=_UNSET,
            fuse_unk=True,
            **_NO_DROPOUT,
        )
    },
}
