"""Reading of the tokenizer files of Hugging Face's libraries.

The functions `read_*` return the arguments of a tokenizer's constructor. They raise a FileNotFoundError if a folder
lacks the files, and a ValueError if a file is damaged or of a different type of tokenizer.
"""

import os
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.text.pretokenizers.patterns import QWEN_2
from keras_transformer.text.tokenizers import component_settings, configuration
from keras_transformer.text.tokenizers.components import (
    TOKENIZER_JSON,
    Components,
    Template,
    byte_pair_words,
    in_order,
    prepend_scheme,
    read_object,
)
from keras_transformer.text.tokenizers.vocabulary import ROLES
from keras_transformer_options.arguments import Message
from keras_transformer_serving.text.subword import BYTE_CHARACTERS

Folder = str | os.PathLike[str]
Pairs = tuple[list[str], list[tuple[str, ...]], dict[str, Any]]

_NAMES = {
    "unknown": "unk_token",
    "start": "bos_token",
    "end": "eos_token",
    "pad": "pad_token",
    "mask": "mask_token",
}
_BERT_NAMES = {**_NAMES, "start": "cls_token", "end": "sep_token"}
_FAIRSEQ_FILE = "sentencepiece.bpe.model"
_LLAMA_FILE = "tokenizer.model"
_END_OF_TEXT = "<|endoftext|>"
_CLASSES_OF_FILES = {
    ("vocab.txt",): "WordPieceTokenizer",
    ("source.spm", "vocab.json"): "MarianT5Tokenizer",
    ("spiece.model",): "MarianT5Tokenizer",
    (_FAIRSEQ_FILE,): "MarianT5Tokenizer",
    (_LLAMA_FILE,): "LlamaTokenizer",
}
_BYT5 = "ByT5Tokenizer"
_SENTENCE_PIECE_ROLES = {"pad": "pad", "unknown": "unk", "start": "bos", "end": "eos"}


def tokenizer_class(folder: Folder) -> str:
    """Return the name of the class that reads a folder's tokenizer.

    The components of `tokenizer.json` decide or, without it, the names of the files.

    Raises:
        FileNotFoundError: if there is no file of a tokenizer.
        ValueError: if `tokenizer.json` has a model of an unsupported type.
    """
    path = pathlib.Path(folder)
    if components := _components(path):
        model = components.content.get("model") or {}
        match components.model_type:
            case "WordPiece":
                return "WordPieceTokenizer"
            case "Unigram":
                return "MarianT5Tokenizer"
            case "BPE" if model.get("end_of_word_suffix"):
                return "OpenAIGPTTokenizer"
            case "BPE" if model.get("byte_fallback"):
                return "LlamaTokenizer"
            case "BPE":
                return "BytePairTokenizer"
            case other:
                raise ValueError(
                    f"{components.path} must have a model of type BPE, Unigram or WordPiece. Received: model type "
                    f"`{other}`"
                )
    for names, class_name in _CLASSES_OF_FILES.items():
        if all((path / name).is_file() for name in names):
            return class_name
    if all((path / name).is_file() for name in ("vocab.json", "merges.txt")):
        ends = (piece.endswith("</w>") for piece in read_object(path / "vocab.json"))
        return "OpenAIGPTTokenizer" if any(ends) else "BytePairTokenizer"
    if configuration.read(path).get("tokenizer_class") == _BYT5:
        return "ByteTokenizer"
    others = "vocab.json and source.spm, vocab.json and merges.txt, or tokenizer_config.json of a ByT5"
    raise _missing(
        path, f"{TOKENIZER_JSON}, vocab.txt, spiece.model, {_FAIRSEQ_FILE}, {_LLAMA_FILE}, {others}"
    )


def template(folder: Folder) -> Template:
    """Return the tokens that the tokenizer of a folder puts around texts.

    Raises:
        ValueError: if `tokenizer.json` is damaged or has an unsupported `post_processor`.
    """
    path = pathlib.Path(folder)
    components, config = _components(path), configuration.read(path)
    name = configuration.class_name(path, config)
    if name in configuration.BERT_CLASSES or (components is None and (path / "vocab.txt").is_file()):
        roles = {"start": "[CLS]", "end": "[SEP]", **_roles(config, _BERT_NAMES)}
        return Template(roles["start"], roles["end"])
    if components:
        return components.template
    if not (path / _LLAMA_FILE).is_file() or not config.get("add_bos_token", True):
        return Template()
    if "add_bos_token" not in config:
        warnings.warn(
            f"`{path}` has no add_bos_token: version 5 of transformers begins no text with a start token. This is not "
            "applied to prompts: they begin with one, as in version 4",
            stacklevel=5,
        )
    return Template(_roles(config, _NAMES).get("start", "<s>"))


def read_word_piece(folder: Folder, special_tokens: Mapping[str, str]) -> tuple[list[str], dict[str, Any]]:
    """Read a BERT tokenizer: `tokenizer.json` or `vocab.txt`, and `tokenizer_config.json`.

    Args:
        folder: the folder.
        special_tokens: a mapping from roles to tokens, for roles that the files do not define.
    """
    path = pathlib.Path(folder)
    config = configuration.checked(path)
    name = configuration.class_name(path, config)
    if name == "BertJapaneseTokenizer":
        configuration.check_class(path, name, configuration.BERT_CLASSES)
    components = _components(path)
    if components is None:
        components, name = _word_pieces_of_text(path, name, config)
    components = configuration.with_components_of_class(components, name, config)
    components = configuration.with_added_tokens(
        components, path, config, (components.content.get("model") or {}).get("vocab") or {}
    )
    model = components.model(component_settings.WORD_PIECE)
    pieces = components.pieces(model.get("vocab"))
    normalizer = components.only("normalizer", "BertNormalizer")
    components.only("pre_tokenizer", "BertPreTokenizer")
    lowercase, strip_accents = normalizer.get("lowercase", True), normalizer.get("strip_accents")
    decoder = components.steps("decoder")
    roles = {
        **{role: token for role, token in special_tokens.items() if token in pieces},
        **_roles(config, _BERT_NAMES),
        **components.template.roles,
        "unknown": model.get("unk_token", special_tokens["unknown"]),
    }
    settings = {
        "lowercase": lowercase,
        "strip_accents": lowercase if strip_accents is None else strip_accents,
        "clean_text": normalizer.get("clean_text", True),
        "isolate_ideographs": normalizer.get("handle_chinese_chars", True),
        "clean_up": bool(decoder) and decoder[0].get("cleanup", True),
        "clean_up_texts": bool(config.get("clean_up_tokenization_spaces")),
        "separate_pieces": not decoder,
        "skip_special_tokens": True,
        "added_tokens": [
            token["content"] for token in components.added_tokens if token["content"] not in model["vocab"]
        ],
        "pair_separators": 1,
        "lstrip_mask": False,
        **_row_settings(components, roles),
        **components.text_settings(roles),
    }
    return pieces, settings


def _word_pieces_of_text(
    path: pathlib.Path, name: str | None, config: Mapping[str, Any]
) -> tuple[Components, str]:
    """Return components with the pieces of `vocab.txt`, and their class."""
    file = path / "vocab.txt"
    if not file.is_file():
        raise _missing(path, f"{TOKENIZER_JSON} or {file.name}")
    configuration.check_class(file, name, configuration.BERT_CLASSES)
    # Not `splitlines`, which also splits at other characters, and these may be pieces.
    lines = [line.rstrip("\r") for line in _text(file).removesuffix("\n").split("\n")]
    unknown = _roles(config, _BERT_NAMES).get("unknown", "[UNK]")
    vocabulary = {piece: id_ for id_, piece in enumerate(lines)}
    content = {"model": {"type": "WordPiece", "vocab": vocabulary, "unk_token": unknown}}
    content["model"] |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    return Components(file, content), name if name in configuration.BERT_CLASSES else "BertTokenizer"


def read_byte_pair(folder: Folder) -> Pairs:
    """Read a byte-level BPE tokenizer: `tokenizer.json`, or `vocab.json`, `merges.txt` and `tokenizer_config.json`."""
    path = pathlib.Path(folder)
    config = configuration.checked(path)
    components = _pairs_with_configuration(path, config)
    settings: dict[str, Any] = {"add_prefix_space": config.get("add_prefix_space", False)}
    if components:
        pieces, merges, model = _pairs_of_json(components, component_settings.BYTE_PAIR)
        settings |= {"add_prefix_space": False, **byte_pair_words(components)}
        if model.get("ignore_merges"):
            settings["ignore_merges"] = True
        if (unknown := model.get("unk_token")) and not frozenset(BYTE_CHARACTERS).issubset(pieces):
            raise ValueError(
                f"{components.path} must have a model `BPE` with unk_token=None or a piece for each byte. "
                f"Received: unk_token={unknown!r}"
            )
    else:
        pieces, merges = _pairs_of_text(path)
    roles = _roles(config, _NAMES)
    if components:
        roles |= components.template.roles
        settings |= _row_settings(components, roles)
    elif config.get("tokenizer_class", "").startswith("Qwen2"):
        settings |= {"pattern": QWEN_2, "normalization": "NFC"}
    if not roles and _END_OF_TEXT in pieces:
        roles = dict.fromkeys(("unknown", "start", "end"), _END_OF_TEXT)
    if "pad" in roles and roles["pad"] == roles.get("end"):  # GPT-2's files may name the end token as padding
        del roles["pad"]
    tokens = components.text_settings(roles) if components else {"special_tokens": roles}
    return pieces, merges, {**settings, **tokens}


def read_byte_fallback(folder: Folder) -> Pairs:
    """Read a tokenizer of Llama 2 or Gemma: `tokenizer.json`, or `tokenizer.model` and `tokenizer_config.json`."""
    path = pathlib.Path(folder)
    config = configuration.checked(path)
    roles = _roles(config, _NAMES)
    if components := _pairs_with_configuration(path, config):
        pieces, merges, _ = _pairs_of_json(components, component_settings.BYTE_FALLBACK)
        scheme = prepend_scheme(components)
        roles |= components.template.roles
    elif (file := path / _LLAMA_FILE).is_file():
        model = _sentence_piece(file)
        pieces, merges = _pairs_of_sentence_piece(file, model)
        components = Components(file, {"added_tokens": _added_tokens(model, config)})
        pieces = components.pieces({piece: id_ for id_, piece in enumerate(pieces)})
        scheme = "legacy" if model.normalizer_spec.add_dummy_prefix else "never"
        ids = {
            role: getattr(model.trainer_spec, f"{name}_id") for role, name in _SENTENCE_PIECE_ROLES.items()
        }
        roles = {**{role: pieces[id_] for role, id_ in ids.items() if id_ >= 0}, **roles}
    else:
        raise _missing(path, f"{TOKENIZER_JSON} or {_LLAMA_FILE}")
    name = configuration.class_name(path, config)
    if name == "LlamaTokenizer" and config.get("legacy") and scheme == "first":
        raise ValueError(
            f"{path / configuration.TOKENIZER_CONFIG} must have legacy=False, as {components.path.name} adds a "
            "space only before a text. Received: legacy=True"
        )
    if name == "LlamaTokenizer" and config.get("add_prefix_space") is False and scheme != "never":
        raise ValueError(
            f"{path / configuration.TOKENIZER_CONFIG} must have add_prefix_space=True, as {components.path.name} "
            "adds a space. Received: add_prefix_space=False"
        )
    return pieces, merges, {"prepend_scheme": scheme, **components.text_settings(roles)}


def read_character_pair(folder: Folder) -> Pairs:
    """Read a GPT-1 tokenizer: `tokenizer.json`, or `vocab.json` and `merges.txt`."""
    path = pathlib.Path(folder)
    lowercase = True
    if components := _components(path):
        pieces, merges, _ = _pairs_of_json(components, component_settings.CHARACTER_PAIR)
        normalizer = components.only("normalizer", "BertNormalizer")
        components.only("pre_tokenizer", "BertPreTokenizer")
        lowercase = normalizer.get("lowercase", True)
    else:
        pieces, merges = _pairs_of_text(path)
    unknown = _roles(configuration.checked(path), _NAMES).get("unknown", "<unk>")
    # The only special token is also the end token.
    special_tokens = dict.fromkeys(("unknown", "end"), unknown)
    return pieces, merges, {"lowercase": lowercase, "special_tokens": special_tokens}


def _pairs_with_configuration(path: pathlib.Path, config: Mapping[str, Any]) -> Components | None:
    """Return the components of `tokenizer.json`, if a folder has it, as its class and its configuration change them."""
    components = _components(path)
    if components is None:
        return None
    name = configuration.class_name(path, config)
    components = configuration.with_components_of_class(components, name, config)
    vocabulary = (components.content.get("model") or {}).get("vocab") or {}
    return configuration.with_added_tokens(components, path, config, vocabulary)


def _pairs_of_json(components: Components, table: component_settings.Table) -> Pairs:
    model = components.model(table)
    pieces = components.pieces(model.get("vocab"))
    # Newer files list pairs, older ones strings "left right".
    merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model.get("merges", [])]
    return pieces, merges, model


def _added_tokens(model: Any, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the added tokens of a SentencePiece model and of `tokenizer_config.json`, as in `tokenizer.json`."""
    types = sentencepiece_model_pb2.ModelProto.SentencePiece
    tokens: dict[int, dict[str, Any]] = {
        id_: {"content": piece.piece, "special": piece.type == types.CONTROL}
        for id_, piece in enumerate(model.pieces)
        if piece.type in (types.CONTROL, types.USER_DEFINED)
    }
    tokens |= {int(id_): token for id_, token in config.get("added_tokens_decoder", {}).items()}
    return [{**token, "id": id_} for id_, token in sorted(tokens.items())]


def _pairs_of_sentence_piece(file: pathlib.Path, model: Any) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the pieces of a SentencePiece model of type BPE, and their merges, those of the highest score first."""
    spec, types = model.normalizer_spec, sentencepiece_model_pb2.ModelProto.SentencePiece
    settings = {
        "model_type": sentencepiece_model_pb2.TrainerSpec.ModelType.Name(model.trainer_spec.model_type),
        "byte_fallback": model.trainer_spec.byte_fallback,
        "remove_extra_whitespaces": spec.remove_extra_whitespaces,
        "precompiled_charsmap": spec.precompiled_charsmap,
    }
    _check(
        file,
        settings,
        {
            "model_type": "BPE",
            "byte_fallback": True,
            "remove_extra_whitespaces": False,
            "precompiled_charsmap": b"",
        },
    )
    pieces = [piece.piece for piece in model.pieces]
    merged = (types.NORMAL, types.USER_DEFINED)
    ids = {piece.piece: id_ for id_, piece in enumerate(model.pieces) if piece.type in merged}
    splits = (
        (-model.pieces[id_].score, id_, cut, piece)
        for piece, id_ in ids.items()
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    )
    return pieces, [(piece[:cut], piece[cut:]) for *_, cut, piece in sorted(splits)]


def _pairs_of_text(path: pathlib.Path) -> tuple[list[str], list[tuple[str, ...]]]:
    if not (path / "vocab.json").is_file() or not (path / "merges.txt").is_file():
        raise _missing(path, "tokenizer.json, or vocab.json and merges.txt")
    lines = _text(path / "merges.txt").split("\n")
    merges = [
        tuple(line.rstrip("\r").split(" ")) for line in lines if line.strip() and line[:9] != "#version:"
    ]
    return in_order(path / "vocab.json", read_object(path / "vocab.json")), merges


def _row_settings(components: Components, roles: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of `tokenizer.json` for pairs of texts and for mask tokens, where it has them."""
    separators, settings = components.template.pair_separators, {}
    if separators > 1:
        settings["pair_separators"] = separators
    for token in components.added_tokens:
        if token["content"] == roles.get("mask"):
            settings["lstrip_mask"] = bool(token.get("lstrip"))
    return settings


def _sentence_piece(file: pathlib.Path) -> Any:
    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(file.read_bytes())
    except DecodeError as error:
        raise ValueError(
            f"{file} must be a SentencePiece model. Received: a file that is not ({error})"
        ) from error
    return model


def read_bytes(folder: Folder) -> dict[str, Any]:
    """Read a ByT5 tokenizer: `tokenizer_config.json`."""
    path = pathlib.Path(folder)
    file = path / configuration.TOKENIZER_CONFIG
    if not file.is_file():
        raise _missing(path, file.name)
    config = configuration.checked(path)
    _check(file, config, {"tokenizer_class": _BYT5})
    roles = {"pad": "<pad>", "end": "</s>", "unknown": "<unk>"}
    roles |= {role: token for role, token in _roles(config, _NAMES).items() if role in roles}
    vocabulary = {
        token: id_ for id_, token in enumerate([*roles.values(), *map("<0x{:02X}>".format, range(256))])
    }
    if not any(config.get(name) for name in configuration.EXTRA):
        numbered = [f"<extra_id_{number}>" for number in range(config.get("extra_ids", 125))]
        config = {**config, "extra_special_tokens": numbered}
    added = {
        token["content"]: token
        for token in configuration.with_added_tokens(
            Components(file, {}), path, config, vocabulary
        ).added_tokens
    }
    extra = sorted(added.keys() - roles.values(), key=lambda token: added[token]["id"])
    expected = {**vocabulary, **{token: id_ for id_, token in enumerate(extra, len(vocabulary))}}
    for content, token in added.items():
        if (
            token["id"] != expected[content]
            or token.get("single_word")
            or not (token.get("special") or content in roles.values())
        ):
            raise ValueError(
                f"{path} must have added tokens that are special, without single_word, and numbered from "
                f"{len(vocabulary)} on. Received: {token}"
            )

    def strips(side: str) -> list[str]:
        known = [*roles.values(), *extra]
        return [token for token in known if added.get(token, {}).get(side, token in roles.values())]

    return {
        "special_tokens": {**roles, "start": roles["pad"]},  # as of T5
        "extra_tokens": extra,
        "lstrip_tokens": strips("lstrip"),
        "rstrip_tokens": strips("rstrip"),
    }


def _components(path: pathlib.Path) -> Components | None:
    """Return the components of the folder's `tokenizer.json`, if it has one."""
    return Components.read(path / TOKENIZER_JSON) if (path / TOKENIZER_JSON).is_file() else None


def _roles(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    tokens = {role: config.get(names[role]) for role in ROLES}
    contents = {
        role: token["content"] if isinstance(token, dict) else token for role, token in tokens.items()
    }
    return {role: token for role, token in contents.items() if token is not None}


def _check(path: pathlib.Path, settings: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for key, value in expected.items():
        if settings.get(key) != value:
            raise ValueError(f"{path} must have {key}={value!r}. Received: {key}={settings.get(key)!r}")


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be UTF-8. Received: a file that is not, at byte {error.start}"
        ) from None


def _missing(path: pathlib.Path, names: str) -> FileNotFoundError:
    files = sorted(file.name for file in path.iterdir()) if path.is_dir() else []
    message = f"{{folder}} must hold {names}. Received: {{folder=}}, with {{files!s}}"
    return FileNotFoundError(Message(message, folder=str(path), files=files))
