"""Reading of the tokenizer files of Hugging Face's libraries."""

import base64
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.text.tokenizers.vocabulary import ROLES
from keras_transformer_options.arguments import Message
from keras_transformer_serving import files

Folder = str | os.PathLike[str]

_NAMES = {
    "unknown": "unk_token",
    "start": "bos_token",
    "end": "eos_token",
    "pad": "pad_token",
    "mask": "mask_token",
}
_BERT_NAMES = {**_NAMES, "start": "cls_token", "end": "sep_token"}
_FAIRSEQ_FILE = "sentencepiece.bpe.model"
_END_OF_TEXT = "<|endoftext|>"


def read_word_piece(folder: Folder, special_tokens: Mapping[str, str]) -> tuple[list[str], dict[str, Any]]:
    """Read a BERT tokenizer: `tokenizer.json`, or `vocab.txt` and `tokenizer_config.json`.

    Args:
        folder: the folder.
        special_tokens: a mapping from roles to tokens, for roles that the files do not define.

    Returns:
        The vocabulary, and the settings of `WordPieceTokenizer`.

    Raises:
        FileNotFoundError: if there are no such files.
        ValueError: if a file is damaged or of a different type of tokenizer.
    """
    path = pathlib.Path(folder)
    config = _config(path)
    if (path / "tokenizer.json").is_file():
        content = _read_object(path / "tokenizer.json")
        model = _model(path / "tokenizer.json", content, "WordPiece")
        _check(
            path / "tokenizer.json",
            model,
            {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        )
        pieces = _in_order(path / "tokenizer.json", _with_added(content, model.get("vocab")))
        normalizer, splitter = content.get("normalizer") or {}, content.get("pre_tokenizer") or {}
        _check(path / "tokenizer.json", normalizer, {"type": "BertNormalizer"})
        _check(path / "tokenizer.json", splitter, {"type": "BertPreTokenizer"})
        settings = {
            "lowercase": normalizer.get("lowercase", True),
            "strip_accents": normalizer.get("strip_accents"),
            "clean_text": normalizer.get("clean_text", True),
            "isolate_ideographs": normalizer.get("handle_chinese_chars", True),
        }
    elif (path / "vocab.txt").is_file():
        # Not `splitlines`, which also splits at other characters, and these may be pieces.
        pieces = [line.rstrip("\r") for line in _text(path / "vocab.txt").removesuffix("\n").split("\n")]
        settings = {
            "lowercase": config.get("do_lower_case", True),
            "strip_accents": config.get("strip_accents"),
            "isolate_ideographs": config.get("tokenize_chinese_chars", True),
        }
    else:
        raise _missing(path, "tokenizer.json or vocab.txt")
    roles = {
        **{role: token for role, token in special_tokens.items() if token in pieces},
        **_roles(config, _BERT_NAMES),
    }
    return pieces, {**settings, "special_tokens": roles}


def read_byte_pair(folder: Folder) -> tuple[list[str], list[tuple[str, ...]], dict[str, Any]]:
    """Read a GPT-2 tokenizer: `tokenizer.json`, or `vocab.json`, `merges.txt` and `tokenizer_config.json`.

    Args:
        folder: the folder.

    Returns:
        The vocabulary, the merges, and the settings of `BytePairTokenizer`.

    Raises:
        FileNotFoundError: if there are no such files.
        ValueError: if a file is damaged or of a different type of tokenizer.
    """
    path = pathlib.Path(folder)
    config = _config(path)
    prefix_space = config.get("add_prefix_space", False)
    content: dict[str, Any] = {}
    if (file := path / "tokenizer.json").is_file():
        content = _read_object(file)
        pieces, merges, _ = _pairs_of_json(file, content)
        _check(file, {"normalizer": content.get("normalizer")}, {"normalizer": None})
        splitter = content.get("pre_tokenizer") or {}
        _check(file, {"use_regex": True, **splitter}, {"type": "ByteLevel", "use_regex": True})
        prefix_space = splitter.get("add_prefix_space", True)
    else:
        pieces, merges = _pairs_of_text(path)
    roles = _roles(config, _NAMES)
    if not roles and _END_OF_TEXT in pieces:
        roles = dict.fromkeys(("unknown", "start", "end"), _END_OF_TEXT)
    settings = _row_settings(content, roles) if content else {}
    if "pad" in roles and roles["pad"] == roles.get("end"):  # GPT-2's files may name the end token as padding
        del roles["pad"]
    return pieces, merges, {"add_prefix_space": prefix_space, "special_tokens": roles, **settings}


def read_character_pair(folder: Folder) -> tuple[list[str], list[tuple[str, ...]], dict[str, Any]]:
    """Read a GPT-1 tokenizer: `tokenizer.json`, or `vocab.json` and `merges.txt`.

    Args:
        folder: the folder.

    Returns:
        The vocabulary, the merges, and the settings of `OpenAIGPTTokenizer`.

    Raises:
        FileNotFoundError: if there are no such files.
        ValueError: if a file is damaged or of a different type of tokenizer.
    """
    path = pathlib.Path(folder)
    lowercase = True
    if (file := path / "tokenizer.json").is_file():
        content = _read_object(file)
        pieces, merges, model = _pairs_of_json(file, content)
        _check(file, model, {"end_of_word_suffix": "</w>"})
        normalizer = content.get("normalizer") or {}
        _check(file, {"strip_accents": None, **normalizer}, {"type": "BertNormalizer", "strip_accents": None})
        _check(file, content.get("pre_tokenizer") or {}, {"type": "BertPreTokenizer"})
        lowercase = normalizer.get("lowercase", True)
    else:
        pieces, merges = _pairs_of_text(path)
    unknown = _roles(_config(path), _NAMES).get("unknown", "<unk>")
    return pieces, merges, {"lowercase": lowercase, "special_tokens": _unknown_is_all(unknown)}


def _unknown_is_all(unknown: str) -> dict[str, str]:
    """Return the roles of GPT-1's only special token: "unknown" and "end"."""
    return dict.fromkeys(("unknown", "end"), unknown)


def _pairs_of_json(
    file: pathlib.Path, content: Mapping[str, Any]
) -> tuple[list[str], list[tuple[str, ...]], dict[str, Any]]:
    model = _model(file, content, "BPE")
    unset = {"dropout": None, "ignore_merges": False, "byte_fallback": False, "fuse_unk": False}
    _check(file, {**unset, **model}, unset)
    pieces = _in_order(file, _with_added(content, model.get("vocab")))
    # Newer files list pairs, older ones strings "left right".
    merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model.get("merges", [])]
    return pieces, merges, model


def _pairs_of_text(path: pathlib.Path) -> tuple[list[str], list[tuple[str, ...]]]:
    if not (path / "vocab.json").is_file() or not (path / "merges.txt").is_file():
        raise _missing(path, "tokenizer.json, or vocab.json and merges.txt")
    lines = _text(path / "merges.txt").split("\n")
    merges = [
        tuple(line.rstrip("\r").split(" ")) for line in lines if line.strip() and line[:9] != "#version:"
    ]
    return _in_order(path / "vocab.json", _read_object(path / "vocab.json")), merges


def read_sentence_piece(folder: Folder, target: bool) -> tuple[bytes, list[str] | None, dict[str, Any]]:
    """Read a tokenizer of T5, `spiece.model` or `tokenizer.json`, of XLM-RoBERTa or of Marian.

    XLM-RoBERTa's file is `tokenizer.json` or `sentencepiece.bpe.model`, Marian's are `vocab.json`, `source.spm` and
    `target.spm`.

    Args:
        folder: the folder.
        target: whether to read Marian's tokenizer of the target language.

    Returns:
        The SentencePiece model, the vocabulary or None if it is the model's, and the settings of `MarianT5Tokenizer`.

    Raises:
        FileNotFoundError: if there are no such files.
        ValueError: if a file is damaged or of a different type of tokenizer.
    """
    path = pathlib.Path(folder)
    config = _config(path)
    roles = _roles(config, _NAMES)
    specials = {"pad": "<pad>", "unknown": "<unk>", "end": "</s>", **roles}
    specials.setdefault("start", specials["pad"])
    if (file := path / "spiece.model").is_file() and str(config.get("tokenizer_class")).startswith("Pegasus"):
        pieces = _pegasus_pieces(file, config)
        unused = {token: token for token in pieces[2 : config.get("offset", 103) + 2]}
        return file.read_bytes(), pieces, {"special_tokens": {**unused, **specials}}
    if (file := path / "spiece.model").is_file():
        sentinels = [f"<extra_id_{number}>" for number in range(config.get("extra_ids", 100))]
        return file.read_bytes(), None, {"special_tokens": specials, "tokens_in_text": sentinels}
    if (file := path / "tokenizer.json").is_file() and not (path / "vocab.json").is_file():
        content = _read_object(file)
        model, pieces = _unigram(file, content)
        sentinels = [piece for piece in pieces if piece.startswith("<extra_id_")]
        settings = {"special_tokens": specials, "tokens_in_text": sentinels}
        return model, pieces, {**settings, **_row_settings(content, specials)}
    if (file := path / _FAIRSEQ_FILE).is_file():
        return _fairseq(file, specials)
    file = path / ("target.spm" if target else "source.spm")
    if not file.is_file() or not (path / "vocab.json").is_file():
        raise _missing(path, f"spiece.model, or vocab.json and {file.name}")
    _check(path / "tokenizer_config.json", {"separate_vocabs": False, **config}, {"separate_vocabs": False})
    pieces = _in_order(path / "vocab.json", _read_object(path / "vocab.json"))
    codes = [piece for piece in pieces if piece.startswith(">>") and piece.endswith("<<")]
    settings = {"special_tokens": specials, "tokens_in_text": codes, "place_in_text": "start"}
    return file.read_bytes(), pieces, settings


def _fairseq(file: pathlib.Path, specials: dict[str, str]) -> tuple[bytes, list[str], dict[str, Any]]:
    """Read XLM-RoBERTa's tokenizer, whose first four ids are fairseq's; its SentencePiece model begins with three."""
    pieces = [piece.piece for piece in _sentence_piece(file).pieces[3:]]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *pieces, "<mask>"]
    return file.read_bytes(), pieces, {"special_tokens": {**specials, "start": "<s>", "mask": "<mask>"}}


def _row_settings(content: Mapping[str, Any], roles: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of `tokenizer.json` for pairs of texts and for mask tokens, where it has them."""
    processor, found = content.get("post_processor") or {}, {}
    if processor.get("type") == "RobertaProcessing":
        found["pair_separators"] = 2
    elif processor.get("type") == "TemplateProcessing":
        pair = [next(iter(each)) for each in processor["pair"]]  # the kinds of its parts
        first, *rest = (i for i, kind in enumerate(pair) if kind == "Sequence")
        if rest and rest[0] > first + 1:
            found["pair_separators"] = rest[0] - first - 1
    for token in content.get("added_tokens") or ():
        if token["content"] == roles.get("mask"):
            found["lstrip_mask"] = bool(token.get("lstrip"))
    return found


def _pegasus_pieces(file: pathlib.Path, config: Mapping[str, Any]) -> list[str]:
    """Return Pegasus's vocabulary: special tokens of pre-training, then the model's pieces without the first two."""
    pieces = [piece.piece for piece in _sentence_piece(file).pieces]
    unused = [f"<unk_{number}>" for number in range(2, config.get("offset", 103))]
    return ["<pad>", "</s>", "<mask_1>", "<mask_2>", *unused, *pieces[2:]]


def _sentence_piece(file: pathlib.Path) -> Any:
    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(file.read_bytes())
    except DecodeError as error:
        raise ValueError(
            f"{file} must be a SentencePiece model. Received: a file that is not ({error})"
        ) from error
    return model


def _unigram(file: pathlib.Path, content: Mapping[str, Any]) -> tuple[bytes, list[str]]:
    """Return an equivalent SentencePiece model, and all pieces, including added tokens."""
    model = _model(file, content, "Unigram")
    _check(file, {"byte_fallback": False, **model}, {"byte_fallback": False})
    scores = dict(model.get("vocab") or ())
    ids = {piece: id_ for id_, piece in enumerate(scores)}
    pieces = _in_order(file, _with_added(content, ids))
    special = [token["content"] for token in content.get("added_tokens") or ()]
    vocabulary = list(scores.items())
    return sentence_piece_model(vocabulary, model["unk_id"], special, content.get("normalizer")), pieces


def read_bytes(folder: Folder) -> dict[str, Any]:
    """Read a ByT5 tokenizer: `tokenizer_config.json`.

    Args:
        folder: the folder.

    Returns:
        The settings of `ByteTokenizer`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged or of a different type of tokenizer.
    """
    path = pathlib.Path(folder) / "tokenizer_config.json"
    if not path.is_file():
        raise _missing(path.parent, path.name)
    config = _read_object(path)
    _check(path, config, {"tokenizer_class": "ByT5Tokenizer"})
    extra = [f"<extra_id_{number}>" for number in range(config.get("extra_ids", 125))]
    return {"special_tokens": {"pad": "<pad>", "end": "</s>", "unknown": "<unk>"}, "extra_tokens": extra}


def _config(path: pathlib.Path) -> dict[str, Any]:
    """Return the entries of the optional configuration files next to a vocabulary."""
    found = (path / name for name in ("special_tokens_map.json", "tokenizer_config.json"))
    return {key: value for file in found if file.is_file() for key, value in _read_object(file).items()}


def _roles(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    tokens = {role: config.get(names[role]) for role in ROLES}
    contents = {
        role: token["content"] if isinstance(token, dict) else token for role, token in tokens.items()
    }
    return {role: token for role, token in contents.items() if token is not None}


def _with_added(content: Mapping[str, Any], vocabulary: Any) -> Any:
    """Return the vocabulary including added tokens."""
    if not isinstance(vocabulary, dict):
        return vocabulary
    return {**vocabulary, **{token["content"]: token["id"] for token in content.get("added_tokens") or ()}}


def _in_order(path: pathlib.Path, vocabulary: Any) -> list[str]:
    """Return the pieces in the order of their ids."""
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else None
    if not ids or not all(isinstance(id_, int) for id_ in ids) or sorted(ids) != list(range(len(ids))):
        raise ValueError(
            f"{path} must number its pieces 0, 1, 2, … without a gap. Received: "
            + (f"{len(ids)} pieces with ids up to {max(ids, key=str)}" if ids else f"{str(vocabulary)[:50]}")
        )
    return sorted(vocabulary, key=vocabulary.__getitem__)


def _model(path: pathlib.Path, content: Mapping[str, Any], kind: str) -> dict[str, Any]:
    model = content.get("model")
    if not isinstance(model, dict):
        raise ValueError(f"{path} must hold a model of type {kind}. Received: model={str(model)[:50]}")
    # Files written before 2020 have no type for BPE.
    if model.get("type", "BPE" if "merges" in model else "WordPiece") != kind:
        raise ValueError(f"{path} must hold a model of type {kind}. Received: {model.get('type')!r}")
    return model


def _check(path: pathlib.Path, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for key, value in expected.items():
        if found.get(key) != value:
            raise ValueError(f"{path} must have {key}={value!r}. Received: {key}={found.get(key)!r}")


def _read_object(path: pathlib.Path) -> dict[str, Any]:
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object. Received: {str(content)[:50]}")
    return content


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be UTF-8. Received: a file that is not, at byte {error.start}"
        ) from None


def _missing(path: pathlib.Path, names: str) -> FileNotFoundError:
    found: Sequence[str] = sorted(each.name for each in path.iterdir()) if path.is_dir() else ()
    message = f"{{folder}} must hold {names}. Received: {{folder=}}, with {{found!s}}"
    return FileNotFoundError(Message(message, folder=str(path), found=list(found)))


def sentence_piece_model(
    vocabulary: Sequence[Sequence[Any]],
    unknown_id: int,
    special: Iterable[str],
    normalizer: Mapping[str, Any] | None,
) -> bytes:
    """Create a SentencePiece model.

    Args:
        vocabulary: pieces and their scores, in the order of their ids.
        unknown_id: the id of the unknown piece.
        special: the control pieces, which encoding never produces.
        normalizer: the normalizer of `tokenizer.json`.

    Returns:
        The serialised model, which adds a prefix space to a text and merges consecutive spaces, as T5's does.

    Raises:
        ValueError: if the normalizer has steps that SentencePiece does not support.
    """
    special = set(special)
    model = sentencepiece_model_pb2.ModelProto()
    model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    model.normalizer_spec.precompiled_charsmap = _charsmap(normalizer)
    types = sentencepiece_model_pb2.ModelProto.SentencePiece
    for id_, (piece, score) in enumerate(vocabulary):
        type_ = types.UNKNOWN if id_ == unknown_id else types.CONTROL if piece in special else types.NORMAL
        model.pieces.add(piece=piece, score=score, type=type_)
    return model.SerializeToString()


def _charsmap(normalizer: Mapping[str, Any] | None) -> bytes:
    """Return the normalizer's character map in SentencePiece's format."""
    steps = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    found = [step["precompiled_charsmap"] for step in steps if step.get("type") == "Precompiled"]
    # Some files list the merging of spaces as additional steps.
    others = [
        step.get("type") for step in steps if step.get("type") not in ("Precompiled", "Replace", "Strip")
    ]
    if others or len(found) > 1:
        raise ValueError(
            "tokenizer.json must have a normalizer of type Precompiled, or none. "
            f"Received: {[step.get('type') for step in steps]}"
        )
    return base64.b64decode(found[0]) if found else b""
