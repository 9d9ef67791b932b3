"""The configuration files of Hugging Face's tokenizers, beside a vocabulary or `tokenizer.json`."""

import dataclasses
import pathlib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from keras_transformer.text.tokenizers.components import TOKENIZER_JSON, Components, read_object

TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
_FILES = (SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG)
EXTRA = ("additional_special_tokens", "extra_special_tokens")

# Keys that are applied by a tokenizer, a pipeline or a chat template.
APPLIED = frozenset(
    [
        "add_bos_token",
        "add_eos_token",
        "add_prefix_space",
        "added_tokens_decoder",
        "additional_special_tokens",
        "bos_token",
        "chat_template",
        "clean_up_tokenization_spaces",
        "cls_token",
        "do_lower_case",
        "eos_token",
        "extra_ids",
        "extra_special_tokens",
        "keep_accents",
        "language_codes",
        "legacy_behaviour",
        "mask_token",
        "model_input_names",
        "model_max_length",
        "offset",
        "pad_token",
        "separate_vocabs",
        "sep_token",
        "src_lang",
        "strip_accents",
        "tgt_lang",
        "tokenize_chinese_chars",
        "tokenizer_class",
        "truncation_side",
        "unk_token",
    ]
)
# Keys without effect on the ids and texts of a tokenizer: of files and classes; of padding, which pipelines do by
# themselves; of truncation and special tokens, which are arguments of calls in `transformers` as well.
WITHOUT_EFFECT = frozenset(
    [
        "_commit_hash",
        "_from_auto",
        "backend",
        "clean_text",
        "device_map",
        "errors",
        "files_loaded",
        "full_tokenizer_file",
        "init_inputs",
        "is_fast",
        "is_local",
        "legacy",
        "local_files_only",
        "mask_token_sent",
        "max_len",
        "max_length",
        "merges_file",
        "model_specific_special_tokens",
        "name",
        "name_or_path",
        "pad_to_max_length",
        "pad_to_multiple_of",
        "pad_token_id",
        "pad_token_type_id",
        "padding",
        "padding_side",
        "processor_class",
        "return_token_type_ids",
        "revision",
        "source_lang",
        "spaces_between_special_tokens",
        "sp_model_file",
        "special_tokens",
        "special_tokens_map_file",
        "stride",
        "target_lang",
        "target_vocab_file",
        "tokenizer_file",
        "tokenizer_type",
        "transformers_version",
        "trim_offsets",
        "truncation",
        "truncation_strategy",
        "unk_id",
        "use_default_system_prompt",
        "use_fast",
        "verbose",
        "vocab_file",
    ]
)
# Keys of which only these values are without effect. None always is.
ONLY: Mapping[str, tuple[Any, ...]] = {
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": (False,),
    "do_basic_tokenize": (True,),
    "do_subword_tokenize": (True,),
    "do_word_tokenize": (True,),
    "never_split": ([],),
    "remove_space": (True,),
    "sp_model_kwargs": ({},),
    "split_special_tokens": (False,),
    "subword_tokenizer_type": ("wordpiece",),
    "word_tokenizer_type": ("basic",),
    "wordpieces_prefix": ("##",),
}

# The classes of `transformers` that normalise texts as BERT's does.
BERT_CLASSES = frozenset(
    f"{name}Tokenizer"
    for name in [
        "Bert",
        "ConvBert",
        "DistilBert",
        "DPRContextEncoder",
        "DPRQuestionEncoder",
        "DPRReader",
        "Electra",
        "Funnel",
        "LayoutLM",
        "Lxmert",
        "MPNet",
        "MobileBert",
        "SqueezeBert",
    ]
)
_BYTE_LEVEL_CLASSES = frozenset(["BartTokenizer", "GPT2Tokenizer", "RobertaTokenizer"])
_METASPACE_CLASSES = frozenset(
    f"{name}Tokenizer" for name in ["Albert", "Camembert", "MT5", "T5", "XLMRoberta"]
)
# The classes whose rows have one segment, also those of pairs.
_ONE_SEGMENT = frozenset(f"{name}Tokenizer" for name in ["Camembert", "MPNet", "Roberta", "XLMRoberta"])
# The classes without components of their own.
_ANY_CLASS = (None, "PreTrainedTokenizer", "TokenizersBackend")
_CLASSES_OF_MODELS = {
    **dict.fromkeys(["bert", "convbert", "distilbert", "electra", "mobilebert"], "BertTokenizer"),
    **dict.fromkeys(["bart", "roberta"], "RobertaTokenizer"),
    "albert": "AlbertTokenizer",
    "gpt2": "GPT2Tokenizer",
    "bert-japanese": "BertJapaneseTokenizer",
    "camembert": "CamembertTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    **dict.fromkeys(("mt5", "t5"), "T5Tokenizer"),
}
_SPACE = "\u2581"


def read(path: pathlib.Path) -> dict[str, Any]:
    """Return the entries of the optional configuration files of a folder; those of `tokenizer_config.json` count."""
    files = (path / name for name in _FILES)
    return {key: value for file in files if file.is_file() for key, value in read_object(file).items()}


def checked(path: pathlib.Path) -> dict[str, Any]:
    """Return what `read` does, with a warning that names keys which are not known."""
    config = read(path)
    # The template of `tokenizer.json` has the tokens around texts.
    only = ONLY if (path / TOKENIZER_JSON).is_file() else {**ONLY, "add_eos_token": (False,)}
    for name, values in only.items():
        value = config.get(name)
        if value is not None and value not in values:
            raise ValueError(
                f"{path / TOKENIZER_CONFIG} must have {name}={values[0]!r}. Received: {name}={value!r}"
            )
    known = APPLIED | WITHOUT_EFFECT | ONLY.keys()
    unknown = {
        name: value
        for name, value in sorted(config.items())
        if name not in known and value is not None and not _is_token(name, value)
    }
    if unknown:
        shown = ", ".join(f"{name}={value!r}"[:100] for name, value in unknown.items())
        warnings.warn(
            f"`{path}` has settings of its tokenizer that are not known, and not applied: {shown}",
            stacklevel=5,
        )
    return config


def _is_token(name: str, value: Any) -> bool:
    """Return whether an entry names a special token, such as "image_token"; these are added tokens as well."""
    return name.endswith("_token") and isinstance(value, str | dict)


def class_name(path: pathlib.Path, config: Mapping[str, Any]) -> str | None:
    """Return the class of `transformers` of a folder's tokenizer without "Fast"; None if nothing says it."""
    file = path / "config.json"
    model = read_object(file) if file.is_file() else {}
    name = config.get("tokenizer_class") or model.get("tokenizer_class")
    if name is None:
        return _CLASSES_OF_MODELS.get(model.get("model_type", ""))
    return str(name).removesuffix("Fast")


def has_segments(path: pathlib.Path) -> bool:
    """Return whether the tokenizer of a folder gives the second text of a pair another segment than the first."""
    config = read(path)
    names = config.get("model_input_names")
    return "token_type_ids" in names if names else class_name(path, config) not in _ONE_SEGMENT


def check_class(path: pathlib.Path, name: str | None, classes: Iterable[str]) -> None:
    """Raise an error if a file without components is of another class than one of some."""
    if name not in (*_ANY_CLASS, *classes):
        raise ValueError(
            f"{path} must have a tokenizer_class in {TOKENIZER_CONFIG} or config.json that is one of "
            f"{sorted(classes)}, or tokenizer.json beside it. Received: tokenizer_class={name!r}"
        )


def with_components_of_class(
    components: Components, name: str | None, config: Mapping[str, Any]
) -> Components:
    """Return components as a class of `transformers` 5 has them, which some classes create from the configuration.

    Args:
        components: those of `tokenizer.json`, or with only a model.
        name: the class.
        config: the configuration, which has defaults of the class.
    """
    if name in BERT_CLASSES:
        changed: dict[str, Any] = {
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
                "strip_accents": config.get("strip_accents"),
                "lowercase": config.get("do_lower_case", True),
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        }
    elif name in _BYTE_LEVEL_CLASSES and components.model_type == "BPE":
        add_prefix_space = config.get("add_prefix_space") or False
        changed = {
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "use_regex": True},
            "decoder": {"type": "ByteLevel"},
        }
    elif name == "Qwen2Tokenizer" and config.get("add_prefix_space"):
        raise ValueError(
            f"{components.path.parent / TOKENIZER_CONFIG} must have add_prefix_space=False for a {name}, which would "
            "add a space before each word. Received: add_prefix_space=True"
        )
    elif name in _METASPACE_CLASSES:
        has_prefix = name in ("T5Tokenizer", "MT5Tokenizer") or config.get("add_prefix_space", True)
        metaspace = {
            "type": "Metaspace",
            "replacement": _SPACE,
            "prepend_scheme": "always" if has_prefix else "never",
            "split": True,
        }
        steps = [step for step in components.steps("normalizer") if step["type"] == "Precompiled"]
        if name == "AlbertTokenizer":
            steps = albert_normalizers(config, steps)
        changed = {
            "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace],
            },
            "decoder": metaspace,
        }
    else:
        return components
    return dataclasses.replace(components, content={**components.content, **changed})


def albert_normalizers(config: Mapping[str, Any], precompiled: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the normalisers of ALBERT's class, with those of its SentencePiece model."""
    kept, lowercase = config.get("keep_accents", False), config.get("do_lower_case", True)
    return [
        *({"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")),
        *([] if kept else [{"type": "NFKD"}, {"type": "StripAccents"}]),
        *([{"type": "Lowercase"}] if lowercase else []),
        *precompiled,
    ]


def with_added_tokens(
    components: Components, path: pathlib.Path, config: Mapping[str, Any], vocabulary: Mapping[str, int]
) -> Components:
    """Return components with the added tokens of all files of a folder, as in `tokenizer.json`.

    Tokens that no file numbers follow the others, in the order of the files: their ids depend on it.

    Args:
        components: those of the tokenizer.
        path: the folder.
        config: the configuration.
        vocabulary: the pieces of the model and their ids.
    """
    tokens = {token["content"]: dict(token) for token in components.added_tokens}
    special = [content for content in _contents(config) if content]
    if (file := path / ADDED_TOKENS).is_file() and "added_tokens_decoder" not in config:
        for content, id_ in sorted(read_object(file).items(), key=lambda item: item[1]):
            is_special = content in special
            token = {"content": content, "id": id_, "special": is_special, "normalized": not is_special}
            tokens.setdefault(content, token)
    for id_, token in sorted(
        (config.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0])
    ):
        tokens[token["content"]] = {**token, "id": int(id_)}
    ids = {**vocabulary, **{content: token["id"] for content, token in tokens.items()}}
    for content, flags in _contents(config).items():
        if content and content not in tokens:
            id_ = ids.setdefault(content, max(ids.values(), default=-1) + 1)
            tokens[content] = {"normalized": False, **flags, "content": content, "id": id_, "special": True}
    return dataclasses.replace(components, content={**components.content, "added_tokens": [*tokens.values()]})


def _contents(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the special tokens of a configuration, with their flags where it has them."""
    tokens = [value for name, value in config.items() if _is_token(name, value)]
    for name in EXTRA:
        extra = config.get(name) or ()
        tokens += extra.values() if isinstance(extra, dict) else extra
    return {
        token if isinstance(token, str) else token["content"]: {}
        if isinstance(token, str)
        else {
            flag: token[flag] for flag in ("lstrip", "rstrip", "single_word", "normalized") if flag in token
        }
        for token in tokens
        if isinstance(token, str | dict)
    }
