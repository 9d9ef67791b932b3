"""Writing of tokenizers as files of Hugging Face's libraries: `tokenizer.json` and `tokenizer_config.json`."""

import base64
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from keras_transformer.text.tokenizers.components import TOKENIZER_JSON
from keras_transformer_serving import files

CONFIG = "tokenizer_config.json"
_CLASS = "PreTrainedTokenizerFast"  # reads `tokenizer.json` as it is
_SPACE = "\u2581"
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
_NAMES = {"unknown": "unk_token", "pad": "pad_token", "mask": "mask_token"}
# Settings of all classes: of tokens in texts, of rows, and of the number of ids, which `config.json` has.
_OF_TOKENS = {
    "special_tokens",
    "tokens_in_text",
    "lstrip_tokens",
    "rstrip_tokens",
    "single_word_tokens",
    "normalized_tokens",
    "added_tokens",
    "lstrip_mask",
}
# Files of tokenizers that another folder may have.
FILES = (
    TOKENIZER_JSON,
    CONFIG,
    "added_tokens.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "source.spm",
    "special_tokens_map.json",
    "spiece.model",
    "target.spm",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
)
# The texts whose ids must be equal after the files have been read.
_TEXTS = (
    "The house is blue; it's 12,345 years old, isn't it?",
    "  two  spaces,\ta tab\nand a line ",
    "naïve café Übung ÑANDÚ ½ ﬁ e\u0301",
    "家 犬 青い家 где дом 👍🏽 \u200b\x07",
    "",
)
Content = dict[str, Any]


def _bert(settings: Mapping[str, Any]) -> Content:
    """Return the components that split texts as BERT does."""
    lowercase = settings["lowercase"]
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": settings.get("clean_text", True),
            "handle_chinese_chars": settings.get("isolate_ideographs", True),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    }


def _ids(pieces: Sequence[str]) -> dict[str, int]:
    return {piece: id_ for id_, piece in enumerate(pieces) if piece}


def _word_piece(arguments: Mapping[str, Any]) -> Content:
    return {
        **_bert(arguments),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": arguments["clean_up"]},
        "model": {
            "type": "WordPiece",
            "unk_token": arguments["special_tokens"]["unknown"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": _ids(arguments["vocabulary"]),
        },
    }


def _pairs(arguments: Mapping[str, Any], **settings: Any) -> Content:
    """Return a model of the type BPE."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **settings,
        "vocab": _ids(arguments["vocabulary"]),
        "merges": [list(pair) for pair in arguments["merges"]],
    }


def _byte_pair(arguments: Mapping[str, Any]) -> Content:
    words = {
        "type": "ByteLevel",
        "add_prefix_space": arguments["add_prefix_space"],
        "trim_offsets": True,
        "use_regex": True,
    }
    steps = [words]
    if pattern := arguments.get("pattern"):
        patterns = [pattern] if isinstance(pattern, str) else pattern
        splits = [
            {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
            for each in patterns
        ]
        steps = [*splits, {**words, "use_regex": False}]
    elif arguments.get("individual_digits"):
        steps = [{"type": "Digits", "individual_digits": True}, words]
    normalization = arguments.get("normalization")
    return {
        "normalizer": None if normalization is None else {"type": normalization},
        "pre_tokenizer": words if steps == [words] else {"type": "Sequence", "pretokenizers": steps},
        "decoder": words,
        "model": _pairs(arguments, ignore_merges=arguments.get("ignore_merges", False)),
    }


def _llama(arguments: Mapping[str, Any]) -> Content:
    scheme = arguments["prepend_scheme"]
    metaspace = {
        "type": "Metaspace",
        "replacement": _SPACE,
        "prepend_scheme": scheme,
        "split": False,
    }
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if scheme == "legacy" else []
    replaces = scheme in ("legacy", "never")
    strip = [] if scheme == "never" else [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    decoders = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *strip,
    ]
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, _REPLACE]} if replaces else None,
        "pre_tokenizer": None if replaces else metaspace,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _pairs(
            arguments,
            unk_token=arguments["special_tokens"].get("unknown"),
            fuse_unk=True,
            byte_fallback=True,
        ),
    }


def _openai_gpt(arguments: Mapping[str, Any]) -> Content:
    return {
        **_bert(arguments),
        "decoder": {"type": "BPEDecoder", "suffix": "</w>"},
        "model": _pairs(
            arguments, unk_token=arguments["special_tokens"]["unknown"], end_of_word_suffix="</w>"
        ),
    }


def _unigram(arguments: Mapping[str, Any]) -> Content:
    """Return the components of a SentencePiece model of the type unigram."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(arguments["model"])
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if trainer.model_type != trainer.UNIGRAM or trainer.byte_fallback:
        raise _unsupported("a SentencePiece model of the type unigram without byte fallback", "another one")
    scores = {piece.piece: piece.score for piece in proto.pieces}
    pieces = arguments["vocabulary"]
    map_ = base64.b64encode(normalizer.precompiled_charsmap).decode()
    metaspace = {
        "type": "Metaspace",
        "replacement": _SPACE,
        "prepend_scheme": "always",
        "split": True,
    }
    return {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": map_} if map_ else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": pieces.index(arguments["special_tokens"]["unknown"]),
            "vocab": [[piece, scores.get(piece, 0.0)] for piece in pieces],
            "byte_fallback": False,
        },
    }


# The components of each class, and the settings that they apply.
_WRITERS: dict[str, tuple[Callable[[Mapping[str, Any]], Content], str]] = {
    "WordPieceTokenizer": (_word_piece, "lowercase strip_accents clean_text isolate_ideographs clean_up"),
    "BytePairTokenizer": (
        _byte_pair,
        "add_prefix_space pattern individual_digits normalization ignore_merges",
    ),
    "LlamaTokenizer": (_llama, "prepend_scheme"),
    "OpenAIGPTTokenizer": (_openai_gpt, "lowercase"),
    "MarianT5Tokenizer": (_unigram, "model"),
}
# Settings that no file has: arguments of reading, and what a pipeline decides.
_WITHOUT_FILE = {
    "vocabulary",
    "merges",
    "special_tokens_in_text",
    "skip_special_tokens",
    "unused",
    "pair_separators",
    "source_prefix",
    "place_in_text",
}


def to_hugging_face(
    tokenizer: Any,
    folder: str | os.PathLike[str],
    *,
    add_start: bool = True,
    add_end: bool = True,
    has_segments: bool = False,
    **config: Any,
) -> None:
    """Write the files of a tokenizer for Hugging Face's libraries into a folder.

    They are read again, and must give the same ids.

    Args:
        tokenizer: a tokenizer.
        folder: an existing folder.
        add_start: whether texts begin with the start token, or with the source prefix of the tokenizer.
        add_end: whether texts end with the end token.
        has_segments: whether the second text of a pair has other segment ids than the first.
        **config: other entries of `tokenizer_config.json`, such as `model_max_length`.

    Raises:
        ValueError: if the tokenizer has no form in these libraries.

    Example:
        >>> to_hugging_face(tokenizer, "runs/bert")  # doctest: +SKIP
    """
    folder = pathlib.Path(folder)
    name = type(tokenizer).__name__
    if name == "ByteTokenizer":
        _write_bytes(tokenizer, folder, config)
    elif name in _WRITERS:
        arguments = tokenizer._arguments(tokenizer.model_bytes)
        components = _components(name, arguments)
        content = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": _added_tokens(tokenizer, arguments),
            **components,
            "post_processor": _template(tokenizer, arguments, add_start, add_end, has_segments),
        }
        files.write_json(folder / TOKENIZER_JSON, content)
        names = ["input_ids", *(["token_type_ids"] if has_segments else []), "attention_mask"]
        roles = _roles(arguments["special_tokens"], add_start and add_end)
        described = {"tokenizer_class": _CLASS, **roles, "model_input_names": names}
        files.write_json(folder / CONFIG, {**described, "clean_up_tokenization_spaces": False, **config})
    else:
        raise _unsupported(f"of a class among {sorted([*_WRITERS, 'ByteTokenizer'])}", f"a {name}")
    check_equal(tokenizer, folder)


def copy_files(tokenizer: Any, source: str | os.PathLike[str], folder: pathlib.Path) -> None:
    """Copy the files of a tokenizer from a folder of Hugging Face's libraries into another one.

    Args:
        tokenizer: the tokenizer whose ids they must give.
        source: the folder from which the tokenizer was read.
        folder: an existing folder.

    Raises:
        FileNotFoundError: if `source` has no such files.
        ValueError: if they give other ids.
    """
    for name in FILES:
        if (path := pathlib.Path(source) / name).is_file():
            shutil.copyfile(path, folder / name)
    check_equal(tokenizer, folder)


def check_equal(tokenizer: Any, folder: pathlib.Path) -> None:
    """Raise a ValueError unless the tokenizer of a folder has the pieces, special tokens and ids of a tokenizer."""
    from keras_transformer import text

    size = tokenizer.vocabulary_size
    read = text.from_hugging_face(folder, vocabulary_size=size)
    tokens = tokenizer.special_token_ids
    differences = {
        "another class": type(read) is not type(tokenizer),
        "other pieces": any(read.id_to_piece(id_) != tokenizer.id_to_piece(id_) for id_ in range(size)),
        "other special tokens": not tokens.items() <= {**read.special_token_ids, **_in_text(read)}.items(),
        "other languages": dict(read.languages) != dict(tokenizer.languages),
        "other ids of texts": _encoded(read) != _encoded(tokenizer),
    }
    found = [difference for difference, differs in differences.items() if differs]
    if found:
        raise _unsupported(
            "one with the same ids in Hugging Face's files", f"a {type(tokenizer).__name__} with {found[0]}"
        )


def _in_text(tokenizer: Any) -> dict[str, int]:
    return {
        token: tokenizer.piece_to_id(token)
        for token in getattr(tokenizer, "_settings", {}).get("tokens_in_text", ())
    }


def _encoded(tokenizer: Any) -> list[list[int]]:
    texts = [*_TEXTS, *(f"a{token} b" for token in sorted(_in_text(tokenizer))[:5])]
    return [tokenizer.tokenize(text).numpy().tolist() for text in texts]


def _components(name: str, arguments: Mapping[str, Any]) -> Content:
    """Return the components of a tokenizer, or raise an error for a setting that they have not."""
    write, applied = _WRITERS[name]
    known = {*applied.split(), *_OF_TOKENS, *_WITHOUT_FILE}
    unknown = {key: value for key, value in arguments.items() if key not in known and value}
    if arguments.get("place_in_text", "anywhere") != "anywhere":
        unknown["place_in_text"] = arguments["place_in_text"]
    if unknown:
        shown = ", ".join(f"{key}={str(value)[:40]}" for key, value in unknown.items())
        raise _unsupported(f"a {name} without {', '.join(unknown)}", f"{shown}")
    return write(arguments)


def _added_tokens(tokenizer: Any, arguments: Mapping[str, Any]) -> list[Content]:
    """Return the tokens that are recognised in texts."""
    specials = set(arguments["special_tokens"].values())
    in_text = set(arguments.get("tokens_in_text", ())) - specials
    mask = arguments["special_tokens"].get("mask")
    lstrip = {*arguments.get("lstrip_tokens", ()), *([mask] if arguments.get("lstrip_mask") else [])}
    return [
        {
            "id": id_,
            "content": token,
            "single_word": token in arguments.get("single_word_tokens", ()),
            "lstrip": token in lstrip,
            "rstrip": token in arguments.get("rstrip_tokens", ()),
            "normalized": token in arguments.get("normalized_tokens", ()),
            "special": token in specials or token.startswith("<extra_id_"),
        }
        for token, id_ in sorted(
            ((each, tokenizer.piece_to_id(each)) for each in specials | in_text), key=lambda pair: pair[1]
        )
    ]


def _template(
    tokenizer: Any, arguments: Mapping[str, Any], add_start: bool, add_end: bool, has_segments: bool
) -> Content | None:
    """Return the tokens around texts and pairs."""
    roles = arguments["special_tokens"]
    prefix = [*arguments.get("source_prefix", ())] or (
        [roles["start"]] if add_start and "start" in roles else []
    )
    start = prefix if add_start or arguments.get("source_prefix") else []
    end = [roles["end"]] if add_end and "end" in roles else []
    if not start and not end:
        return None

    def special(token: str, segment: int = 0) -> Content:
        return {"SpecialToken": {"id": token, "type_id": segment}}

    first, second = (
        {"Sequence": {"id": name, "type_id": int(name == "B" and has_segments)}} for name in "AB"
    )
    single = [*map(special, start), first, *map(special, end)]
    between = [special(token) for token in end * (tokenizer.pair_separators - 1)]
    last = [special(token, int(has_segments)) for token in end]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *between, second, *last],
        "special_tokens": {
            token: {"id": token, "ids": [tokenizer.piece_to_id(token)], "tokens": [token]}
            for token in dict.fromkeys([*start, *end])
        },
    }


def _roles(special_tokens: Mapping[str, str], are_around: bool) -> dict[str, str]:
    """Return the special tokens by their names in `tokenizer_config.json`."""
    names = {name: special_tokens[role] for role, name in _NAMES.items() if role in special_tokens}
    for role, plain, around in (("start", "bos_token", "cls_token"), ("end", "eos_token", "sep_token")):
        if role in special_tokens and special_tokens[role] != special_tokens.get("pad"):
            names |= {plain: special_tokens[role], **({around: special_tokens[role]} if are_around else {})}
    return names


def _write_bytes(tokenizer: Any, folder: pathlib.Path, config: Mapping[str, Any]) -> None:
    """Write the file of a ByT5, whose special tokens have the first ids."""
    arguments = tokenizer._arguments(tokenizer.model_bytes)
    tokens = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    first = list(dict.fromkeys(arguments["special_tokens"].values()))
    extra = arguments["extra_tokens"]
    if first != [*tokens.values()] or extra != [f"<extra_id_{number}>" for number in range(len(extra))]:
        raise _unsupported(
            f"a ByteTokenizer with the special tokens of ByT5, {[*tokens.values()]} and <extra_id_0> …",
            f"{first} and {extra[:3]}",
        )
    described = {"tokenizer_class": "ByT5Tokenizer", **tokens, "extra_ids": len(extra)}
    files.write_json(folder / CONFIG, {**described, **config})


def _unsupported(expected: str, received: str) -> ValueError:
    return ValueError(
        f"`tokenizer` must be {expected}, to be written for Hugging Face's libraries. Received: {received}"
    )
