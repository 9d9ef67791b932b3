"""Reading of the tokenizers of translation models of many languages: mBART, mBART-50, NLLB-200 and M2M-100."""

import pathlib
import re
from collections.abc import Collection, Mapping
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from keras_transformer.text.tokenizers import component_settings, configuration, hugging_face, unigram_files
from keras_transformer.text.tokenizers.components import Components, in_order, read_object
from keras_transformer.text.tokenizers.hugging_face import Folder

_SPECIAL = {"start": "</s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>", "bos": "<s>"}
_FIRST = ("<s>", "<pad>", "</s>", "<unk>")  # fairseq's first four ids
_MASK = "<mask>"
_FILE = "sentencepiece.bpe.model"

# The codes of languages in the order of their ids, which the files of older versions do not list.
_MBART = """ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP
nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"""
_MBART50 = """af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE
sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"""
_M2M100 = """af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht
hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru
sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"""
_WMT21 = "en ha is ja cs ru zh de"
_CODES = {"MBart": _MBART, "MBart50": f"{_MBART} {_MBART50}", "Nllb": ""}
_CODE = re.compile(r"[a-z]{2,3}_([A-Z]{2}|[A-Z][a-z]{3})")  # as en_XX and eng_Latn
_MODEL_TYPES = {"mbart": "MBart", "m2m_100": "M2M100"}


def is_multilingual(folder: Folder) -> bool:
    """Return whether a folder has the tokenizer of a translation model of many languages."""
    return _kind(pathlib.Path(folder)) is not None


def read_multilingual(folder: Folder) -> tuple[bytes, list[str], dict[str, Any]]:
    """Read a tokenizer of mBART, mBART-50, NLLB-200 or M2M-100.

    The files are `tokenizer.json` or `sentencepiece.bpe.model`, those of M2M-100 `vocab.json` and
    `sentencepiece.bpe.model`.

    Args:
        folder: the folder, for which `is_multilingual` is True.

    Returns:
        The SentencePiece model, the vocabulary, and the settings of `MarianT5Tokenizer`.

    Raises:
        FileNotFoundError: if there are no such files.
        ValueError: if a file is damaged, of a different type of tokenizer, or has no languages.
    """
    path = pathlib.Path(folder)
    kind, config = _kind(path), configuration.checked(path)
    if kind == "M2M100":
        return _read_m2m100(path, config)
    if (file := path / "tokenizer.json").is_file():
        components = Components.read(file)
        model, pieces, settings = _of_json(components)
        codes = [piece for piece in pieces if _CODE.fullmatch(piece)]
    elif (file := path / _FILE).is_file():
        components, settings = Components(file, {}), unigram_files.normalization_of_model()
        model = file.read_bytes()
        codes = _CODES[str(kind)].split() or _listed_codes(config)
        pieces = [
            *_FIRST,
            *[piece.piece for piece in hugging_face._sentence_piece(file).pieces[3:]],
            *codes,
            _MASK,
        ]
    else:
        raise hugging_face._missing(path, f"tokenizer.json or {_FILE}")
    if not codes:
        raise ValueError(
            f"{path} must list the codes of its languages, in tokenizer.json or as additional_special_tokens in "
            "tokenizer_config.json. Received: none"
        )
    mask = {"mask": _MASK} if _MASK in pieces else {}
    pieces, settings = _with_added_tokens(
        components, path, config, pieces, settings, {**_SPECIAL, **mask}, codes
    )
    settings |= {
        "languages": {code: code for code in codes},
        "lstrip_mask": bool(mask),
        "language_after_source": kind == "MBart" or config.get("legacy_behaviour", False),
        "language_is_start": kind == "MBart",
    }
    return model, pieces, settings


def _with_added_tokens(
    components: Components,
    path: pathlib.Path,
    config: Mapping[str, Any],
    pieces: list[str],
    settings: dict[str, Any],
    specials: Mapping[str, str],
    codes: Collection[str],
) -> tuple[list[str], dict[str, Any]]:
    """Return the pieces, and the settings, with the added tokens, of which those of languages are special."""
    vocabulary = {piece: id_ for id_, piece in enumerate(pieces)}
    components = configuration.with_added_tokens(components, path, config, vocabulary)
    pieces = components.pieces(vocabulary)
    if _kind(path) == "M2M100":
        unigram_files.check_added_tokens(components, pieces)
    known = {token["content"]: token for token in components.added_tokens}
    tokens = {**known, **{code: {**known.get(code, {"content": code}), "special": True} for code in codes}}
    components = Components(components.path, {**components.content, "added_tokens": [*tokens.values()]})
    return pieces, unigram_files.text_settings(components, specials, settings, config)


def _kind(path: pathlib.Path) -> str | None:
    """Return the name of the class of the tokenizer without "Tokenizer", None for another than those of this module."""
    config = path / "config.json"
    model = read_object(config) if config.is_file() else {}
    name = configuration.read(path).get("tokenizer_class") or model.get("tokenizer_class")
    kind = (
        re.sub("Tokenizer(Fast)?$", "", str(name)) if name else _MODEL_TYPES.get(model.get("model_type", ""))
    )
    return kind if kind in (*_CODES, "M2M100") else None


def _listed_codes(config: Mapping[str, Any]) -> list[str]:
    """Return the codes of languages among the special tokens of the configuration."""
    tokens = config.get("additional_special_tokens") or config.get("extra_special_tokens") or ()
    contents = (token["content"] if isinstance(token, dict) else token for token in tokens)
    return [content for content in contents if _CODE.fullmatch(content)]


def _read_m2m100(path: pathlib.Path, config: Mapping[str, Any]) -> tuple[bytes, list[str], dict[str, Any]]:
    file = path / _FILE
    if not file.is_file() or not (path / "vocab.json").is_file():
        raise hugging_face._missing(path, f"vocab.json and {_FILE}")
    pieces = in_order(path / "vocab.json", read_object(path / "vocab.json"))
    codes = _WMT21 if config.get("language_codes") == "wmt21" else _M2M100
    languages = {code: f"__{code}__" for code in codes.split()}
    hugging_face._sentence_piece(file)  # check it
    pieces, settings = _with_added_tokens(
        Components(file, {}),
        path,
        config,
        [*pieces, *languages.values()],
        unigram_files.normalization_of_model(),
        _SPECIAL,
        languages.values(),
    )
    return file.read_bytes(), pieces, {**settings, "languages": languages}


def _of_json(components: Components) -> tuple[bytes, list[str], dict[str, Any]]:
    """Return an equivalent SentencePiece model, all pieces and settings, of a file of unigrams or of merges."""
    if components.model_type == "BPE":
        return _of_pairs(components)
    model, settings = unigram_files.unigram_model(components)
    scores = components.content["model"]["vocab"]
    return model, components.pieces({piece: id_ for id_, (piece, _) in enumerate(scores)}), settings


def _of_pairs(components: Components) -> tuple[bytes, list[str], dict[str, Any]]:
    """Return a SentencePiece model that merges in the order of the merges of `tokenizer.json`, pieces and settings."""
    model = components.model(component_settings.MULTILINGUAL_PAIR)
    pieces = components.pieces(model.get("vocab"))
    merges = (pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", []))
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault("".join(pair), rank)
    special = [token["content"] for token in components.added_tokens]
    scores = [(piece, -float(ranks.get(piece, len(ranks) + id_))) for id_, piece in enumerate(pieces)]
    unknown_id = pieces.index(model.get("unk_token") or "<unk>")
    charsmap, settings = unigram_files.normalization(components)
    made = unigram_files.sentence_piece_model(scores, unknown_id, special, charsmap)
    proto = sentencepiece_model_pb2.ModelProto.FromString(made)
    proto.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.BPE
    return proto.SerializeToString(), pieces, settings
