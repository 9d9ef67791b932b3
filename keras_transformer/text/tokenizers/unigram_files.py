"""Reading of the tokenizers of T5, XLM-RoBERTa, ALBERT, Pegasus and Marian, and of other files with unigrams."""

import base64
import pathlib
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from keras_transformer.text.tokenizers import component_settings, configuration, hugging_face
from keras_transformer.text.tokenizers.character_map import character_map, is_own
from keras_transformer.text.tokenizers.components import Components, in_order, read_object
from keras_transformer.text.tokenizers.hugging_face import Folder
from keras_transformer.text.tokenizers.sentence_piece_model import read_model
from keras_transformer_serving.text.sentence_piece import character_normalizer
from keras_transformer_serving.text.tokenizer import WHITE_SPACE

_TYPES = sentencepiece_model_pb2.ModelProto.SentencePiece
_T5_FILE = "spiece.model"
_T5_CLASSES = ("AlbertTokenizer", "MT5Tokenizer", "PegasusTokenizer", "T5Tokenizer")
_CAMEMBERT_UNUSED = ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]
_SENTINEL = "<extra_id_"
_SPACE = "\u2581"
_NO_SPACES = (*range(0x1C, 0x20), 0x85)  # white space in Python, but not in Unicode or in SentencePiece
# Regular expressions with one meaning in all libraries: sequences of characters and sets of characters, some repeated.
_ORDINARY = r"[^\\\[\](){}.*+?^$|]"
_ESCAPED = r"\\[nrts.\\()\[\]{}*+?|^$]"
_MEMBER = r"(?:[^\\\[\]^&-]|\\[nrt\\\[\]])"
_SET = rf"\[(?:{_MEMBER}(?:-{_MEMBER})?)+\]"
_SIMPLE_REGEX = re.compile(rf"(?:(?:{_ORDINARY}|{_ESCAPED}|{_SET})(?:\{{\d+(?:,\d*)?\}}|\+)?)+")


def read_sentence_piece(folder: Folder, target: bool) -> tuple[bytes, list[str], dict[str, Any]]:
    """Read a tokenizer of T5, `spiece.model` or `tokenizer.json`, of XLM-RoBERTa or of Marian.

    XLM-RoBERTa's file is `tokenizer.json` or `sentencepiece.bpe.model`, Marian's are `vocab.json`, `source.spm` and
    `target.spm`.

    Args:
        folder: the folder.
        target: whether to read Marian's tokenizer of the target language.

    Returns:
        The SentencePiece model, the vocabulary, and the settings of `MarianT5Tokenizer`.
    """
    path = pathlib.Path(folder)
    config = configuration.checked(path)
    name = configuration.class_name(path, config)
    if name == "CamembertTokenizer":
        # A list in the file replaces the tokens of the class; tokens with names are further ones.
        has_names = isinstance(config.get("extra_special_tokens"), dict)
        key = "additional_special_tokens" if has_names else "extra_special_tokens"
        config = {key: _CAMEMBERT_UNUSED, **config}
    roles = hugging_face._roles(config, hugging_face._NAMES)
    specials = {"pad": "<pad>", "unknown": "<unk>", "end": "</s>", **roles}
    specials.setdefault("start", specials["pad"])
    is_marian = (path / "vocab.json").is_file()
    components = None if is_marian else hugging_face._components(path)
    file = path / _T5_FILE
    if components is not None:
        components = configuration.with_components_of_class(components, name, config)
    elif file.is_file():
        configuration.check_class(file, name, _T5_CLASSES)
        if name == "AlbertTokenizer":
            components = _albert(file, config)
    if file.is_file() and (
        components is None or (is_own(components.steps("normalizer")) and _charsmap(components) is not None)
    ):
        model, settings = file.read_bytes(), normalization_of_model()
        vocabulary = _vocabulary_of_t5(file, name, config)
        components = components or Components(file, {})
        if name == "PegasusTokenizer":
            unused = [piece for piece, id_ in vocabulary.items() if 2 <= id_ < config.get("offset", 103) + 2]
            specials = {**{token: token for token in unused}, **specials}
    elif components:
        model, settings = unigram_model(components)
        scores = components.content["model"]["vocab"]
        vocabulary = {piece: id_ for id_, (piece, _) in enumerate(scores)}
        specials |= components.template.roles
        specials["unknown"] = scores[components.content["model"]["unk_id"]][0]
        _check_pieces_in_words(components, vocabulary)
    elif (file := path / hugging_face._FAIRSEQ_FILE).is_file():
        configuration.check_class(file, name, ["XLMRobertaTokenizer"])
        model, settings = file.read_bytes(), normalization_of_model()
        # The first four ids are fairseq's; the SentencePiece model begins with three.
        pieces = [piece.piece for piece in hugging_face._sentence_piece(file).pieces[3:]]
        pieces = ["<s>", "<pad>", "</s>", "<unk>", *pieces, "<mask>"]
        vocabulary = {piece: id_ for id_, piece in enumerate(pieces)}
        specials |= {"start": "<s>", "mask": "<mask>"}
        components = Components(file, {})
    else:
        file = path / ("target.spm" if target else "source.spm")
        if not file.is_file() or not is_marian:
            raise hugging_face._missing(path, f"{_T5_FILE}, or vocab.json and {file.name}")
        configuration.check_class(file, name, ["MarianTokenizer"])
        expected = {"separate_vocabs": False}
        hugging_face._check(path / configuration.TOKENIZER_CONFIG, {**expected, **config}, expected)
        model, settings = file.read_bytes(), normalization_of_model()
        vocabulary = read_object(path / "vocab.json")
        in_order(path / "vocab.json", vocabulary)
        components = Components(file, {})
    components = configuration.with_added_tokens(
        _with_sentinels(components, vocabulary), path, config, vocabulary
    )
    pieces = components.pieces(vocabulary)
    settings = text_settings(components, specials, settings, config)
    if is_marian:
        check_added_tokens(components, pieces)
        codes = [piece for piece in pieces if piece.startswith(">>") and piece.endswith("<<")]
        settings |= _at_start(codes, settings.get("tokens_in_text", []))
    return model, pieces, {**settings, **hugging_face._row_settings(components, specials)}


def check_added_tokens(components: Components, pieces: Sequence[str]) -> None:
    """Raise an error for added tokens that a tokenizer which `transformers` writes in Python reads in another way.

    It splits a text at tokens with `single_word` also where they are no word, and their ids are those of the files.
    """
    for token in components.added_tokens:
        if token.get("single_word"):
            raise ValueError(
                f"{components.path.parent} must have added tokens with single_word=False. Received: "
                f"{token['content']!r} with single_word=True"
            )
        if token["id"] != (id_ := pieces.index(token["content"])):
            raise ValueError(
                f"{components.path.parent} must number the added token {token['content']!r} with {id_}, after the "
                f"others. Received: {token['id']}"
            )


def _check_pieces_in_words(components: Components, vocabulary: Container[str]) -> None:
    """Raise an error for added tokens which, next to characters of words, the model of `tokenizers` finds itself."""
    for token in components.added_tokens:
        if token.get("single_word") and token["content"] in vocabulary:
            raise ValueError(
                f"{components.path} must have added tokens that are no pieces of its model, or single_word=False. "
                f"Received: {token['content']!r} with single_word=True"
            )


def _at_start(codes: list[str], others: list[str]) -> dict[str, Any]:
    """Return the settings of codes of languages at the start of a text, and other tokens that are recognised in it."""
    if not others:
        return {"tokens_in_text": codes, "place_in_text": "start"}
    return {"tokens_in_text": [*codes, *others], "start_tokens": codes}


def _with_sentinels(components: Components, vocabulary: Mapping[str, int]) -> Components:
    """Return components with T5's sentinels, which texts may have, among the added tokens."""
    added = [*components.added_tokens]
    known = {token["content"] for token in added}
    added += [
        {"content": piece, "id": id_}
        for piece, id_ in vocabulary.items()
        if piece.startswith(_SENTINEL) and piece not in known
    ]
    return Components(components.path, {**components.content, "added_tokens": added})


def text_settings(
    components: Components,
    specials: Mapping[str, str],
    settings: dict[str, Any],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """Return settings with those of tokens that are recognised in texts, of which T5's sentinels are not special.

    Args:
        components: the components of `tokenizer.json`, or with only added tokens.
        specials: the special tokens with a role.
        settings: other settings.
        config: the configuration.
    """
    tokens = [
        {**token, "special": False} if token["content"].startswith(_SENTINEL) else token
        for token in components.added_tokens
    ]
    # Texts are normalised where a token may be recognised in what is normalised, too.
    has_normalizer = bool(components.steps("normalizer")) or "normalizers" in settings
    content = {"added_tokens": tokens, "normalizer": {"type": "NFC"} if has_normalizer else None}
    text = Components(components.path, content).text_settings(specials)
    if not text.get("normalized_tokens") and "pre_tokenizers" not in settings:
        settings = {name: value for name, value in settings.items() if name != "normalizers"}
    if config.get("clean_up_tokenization_spaces"):
        text["clean_up_texts"] = True
    return {**settings, **text}


def normalization_of_model() -> dict[str, Any]:
    """Return the normalisation, by a model itself, of texts in which tokens are recognised."""
    return {"normalizers": [{"type": "Precompiled"}]}


def _vocabulary_of_t5(file: pathlib.Path, name: str | None, config: Mapping[str, Any]) -> dict[str, int]:
    """Return the pieces of a SentencePiece model and their ids, and the tokens of the class after or before them."""
    pieces = [piece.piece for piece in hugging_face._sentence_piece(file).pieces]
    if name == "PegasusTokenizer":  # special tokens of pre-training, then the pieces without the first two
        unused = [f"<unk_{number}>" for number in range(2, config.get("offset", 103))]
        pieces = ["<pad>", "</s>", "<mask_1>", "<mask_2>", *unused, *pieces[2:]]
    elif name != "AlbertTokenizer":
        pieces += [f"{_SENTINEL}{number}>" for number in range(config.get("extra_ids", 100))][::-1]
    return {piece: id_ for id_, piece in enumerate(pieces)}


def _albert(file: pathlib.Path, config: Mapping[str, Any]) -> Components:
    """Return the components of ALBERT's `tokenizer.json`, from its SentencePiece model and configuration."""
    proto = hugging_face._sentence_piece(file)
    precompiled = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
    controls = {piece.piece: id_ for id_, piece in enumerate(proto.pieces) if piece.type == _TYPES.CONTROL}
    template = [
        {"SpecialToken": {"id": "[CLS]"}},
        {"Sequence": {"id": "A"}},
        {"SpecialToken": {"id": "[SEP]"}},
    ]
    content = {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": precompiled},
        "post_processor": {"type": "TemplateProcessing", "single": template, "pair": []},
        "model": {
            "type": "Unigram",
            "unk_id": next(id_ for id_, piece in enumerate(proto.pieces) if piece.type == _TYPES.UNKNOWN),
            "vocab": [(piece.piece, piece.score) for piece in proto.pieces],
        },
        "added_tokens": [{"content": piece, "id": id_, "special": True} for piece, id_ in controls.items()],
    }
    return configuration.with_components_of_class(Components(file, content), "AlbertTokenizer", config)


_DECODER_OF_MODEL = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": "always"}


def _charsmap(components: Components) -> bytes | None:
    """Return the character map of components that do what a SentencePiece model does; None for others.

    Such components have the map of a model, collapse spaces, drop those at the ends of a text, and begin words with
    U+2581.
    """
    steps = components.steps("normalizer")
    types = [step["type"] for step in steps]
    if "Precompiled" not in types:
        return None
    of_spaces = [step for step in steps if step["type"] == "Replace" and _collapses_spaces(step)]
    # ALBERT replaces quotes before; other replacements are no part of a model.
    replaced = [step for step in steps if step["type"] == "Replace" and step not in of_spaces]
    if replaced and (is_own(steps) or steps[: len(replaced)] != replaced):
        return None
    split = components.steps("pre_tokenizer")
    match split:
        case [{"type": "WhitespaceSplit"}, {"type": "Metaspace"}]:
            pass
        case [{"type": "Metaspace"}] if of_spaces and any(step.get("strip_right") for step in steps):
            pass
        case _:
            return None
    if _metaspace(components, split[-1]) != {"replacement": _SPACE, "prepend_scheme": "always"}:
        return None
    charsmap = character_map(steps, len(split) == 2)
    return charsmap if charsmap is not None and _maps_white_space(charsmap) else None


def _maps_white_space(charsmap: bytes) -> bool:
    """Return whether a map replaces all white space by spaces, except U+0085, which is none in SentencePiece."""
    processor = read_model(character_normalizer(charsmap), with_padding=False)
    characters = [chr(code) for code in range(0x3001) if chr(code).isspace() and code not in _NO_SPACES]
    return {*processor.normalize("".join(characters))} == {" "}


def _collapses_spaces(step: Mapping[str, Any]) -> bool:
    return step["pattern"] == {"Regex": " {2,}"} and step["content"] in (" ", _SPACE)


def _metaspace(components: Components, step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of "Metaspace", of which older files have "add_prefix_space"."""
    has_prefix = step.get("add_prefix_space", True)
    scheme = step.get("prepend_scheme", "always" if has_prefix else "never")
    if (scheme != "never") != has_prefix and "add_prefix_space" in step:
        components.unsupported("pre_tokenizer")
    if scheme not in ("always", "first", "never"):
        components.unsupported("pre_tokenizer")
    return {"replacement": step.get("replacement", _SPACE), "prepend_scheme": scheme}


def unigram_model(components: Components) -> tuple[bytes, dict[str, Any]]:
    """Return a SentencePiece model of unigrams, and the settings of `MarianT5Tokenizer` for the steps before it.

    Steps that are those of a SentencePiece model become a part of it; other steps are settings.
    """
    model = components.model(component_settings.UNIGRAM)
    scores = model.get("vocab") or []
    if not scores or not 0 <= (model.get("unk_id") if model.get("unk_id") is not None else -1) < len(scores):
        raise ValueError(
            f"{components.path} must have pieces and the id of the unknown one. "
            f"Received: {len(scores)} pieces and unk_id={model.get('unk_id')!r}"
        )
    charsmap, settings = normalization(components)
    special = [token["content"] for token in components.added_tokens if token.get("special", True)]
    return sentence_piece_model(scores, model["unk_id"], special, charsmap), settings


def normalization(components: Components) -> tuple[bytes | None, dict[str, Any]]:
    """Return the character map of a SentencePiece model, and the settings for steps before it.

    The map is None if steps do all that changes texts.
    """
    decoders = _decoders(components)
    if (charsmap := _charsmap(components)) is not None and decoders == [_DECODER_OF_MODEL]:
        return charsmap, normalization_of_model()
    return None, {
        "normalizers": [_step(components, step) for step in components.steps("normalizer")],
        "pre_tokenizers": _pre_tokenizers(components),
        "decoders": decoders,
    }


def _step(components: Components, step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a normaliser as the setting of a tokenizer."""
    match step:
        case {"type": "Replace", "pattern": {"String": str(pattern)}} if pattern:
            return {"type": "Replace", "pattern": {"String": pattern}, "content": step["content"]}
        case {"type": "Replace", "pattern": {"Regex": str(regex)}} if _SIMPLE_REGEX.fullmatch(regex):
            regex = re.sub(r"(\\.)", lambda match: WHITE_SPACE if match[0] == r"\s" else match[0], regex)
            return {"type": "Replace", "pattern": {"Regex": regex}, "content": step["content"]}
        case {"type": "Strip"}:
            sides = {side: step.get(side, True) for side in ("strip_left", "strip_right")}
            return {"type": "Strip", **sides}
        case {"type": "Precompiled", "precompiled_charsmap": str(charsmap)}:
            return {"type": "Precompiled", "precompiled_charsmap": charsmap}
        case {"type": "Lowercase" | "StripAccents"}:
            charsmap = character_map([step], False)
            return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap or b"").decode()}
        case _:
            return components.unsupported("normalizer")


def _pre_tokenizers(components: Components) -> list[dict[str, Any]]:
    steps = components.steps("pre_tokenizer")
    if [step["type"] for step in steps] not in (
        [],
        ["WhitespaceSplit"],
        ["Metaspace"],
        ["WhitespaceSplit", "Metaspace"],
    ):
        components.unsupported("pre_tokenizer")
    # `tokenizers` does not begin a text with a space where these change its beginning.
    changes_start = {"Replace", "Strip"} & {step["type"] for step in components.steps("normalizer")}
    if changes_start and any(step.get("prepend_scheme") == "first" for step in steps):
        components.unsupported("pre_tokenizer")
    return [
        {"type": "Metaspace", **_metaspace(components, step), "split": step.get("split", True)}
        if step["type"] == "Metaspace"
        else {"type": step["type"]}
        for step in steps
    ]


def _decoders(components: Components) -> list[dict[str, Any]]:
    steps = components.steps("decoder")
    if len(steps) > 1:
        components.unsupported("decoder")
    return [{"type": "Metaspace", **_metaspace(components, step)} for step in steps]


def sentence_piece_model(
    vocabulary: Sequence[Sequence[Any]],
    unknown_id: int,
    special: Iterable[str],
    precompiled_charsmap: bytes | None,
) -> bytes:
    """Create a SentencePiece model.

    Args:
        vocabulary: pieces and their scores, in the order of their ids.
        unknown_id: the id of the unknown piece.
        special: the control pieces, which encoding never produces.
        precompiled_charsmap: the normalisation, in SentencePiece's format; None for a model that does not change texts.

    Returns:
        The serialised model, which adds a prefix space to a text and merges consecutive spaces, as T5's does, unless it
        does not change texts.
    """
    special = set(special)
    model = sentencepiece_model_pb2.ModelProto()
    model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    spec = model.normalizer_spec
    spec.precompiled_charsmap = precompiled_charsmap or b""
    if precompiled_charsmap is None:
        spec.add_dummy_prefix = spec.remove_extra_whitespaces = spec.escape_whitespaces = False
    for id_, (piece, score) in enumerate(vocabulary):
        type_ = _TYPES.UNKNOWN if id_ == unknown_id else _TYPES.CONTROL if piece in special else _TYPES.NORMAL
        model.pieces.add(piece=piece, score=score, type=type_)
    return model.SerializeToString()
