"""Pipelines from task models of KerasHub."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_transformer import interop, text
from keras_transformer.interop.keras_hub import class_name, tokenizer_of
from keras_transformer.pipelines.image_classification import image_converter_of
from keras_transformer.pipelines.pipeline import Pipeline


def from_keras_hub(model: keras.Model, tokenizer: Any = None, **settings: Any) -> Any:
    """Convert a task model of KerasHub, formerly KerasNLP, and its tokenizer to a pipeline.

    | KerasHub | pipeline |
    |---|---|
    | `GPT2CausalLM` | `TextGeneration` |
    | `T5Seq2SeqLM` | `TextToText` |
    | `BertTextClassifier`, `RobertaTextClassifier` | `TextClassification` |
    | `BertMaskedLM`, `RobertaMaskedLM` | `FillMask` |
    | `BertBackbone`, `RobertaBackbone` | `Embedding` |
    | `ViTImageClassifier` | `ImageClassification` |

    Args:
        model: the model, as in `interop.from_keras_hub`. The scale and offset of a ViT's image converter become part of
            the weights, so that images have values from 0 to 255; images must have the model's size.
        tokenizer: KerasHub's tokenizer, by default that of the model's preprocessor; backbones have none.
        **settings: arguments of the pipeline, such as `generation`, `max_new_tokens` or `labels`. By default, prompts
            of `TextGeneration` begin with the start token if the preprocessor adds it.

    Returns:
        The pipeline. The weights are copies.

    Raises:
        ValueError: if there is no tokenizer, the model or tokenizer has an unsupported setting, or they do not match.

    Example:
        >>> causal_lm = keras_hub.models.GPT2CausalLM.from_preset("gpt2_base_en")  # doctest: +SKIP
        >>> writer = from_keras_hub(causal_lm, generation="beam", max_new_tokens=32)  # doctest: +SKIP
    """
    model_arguments, arguments, hub_tokenizer = {}, {}, None
    if (size := getattr(getattr(model, "backbone", model), "vocabulary_size", None)) is not None:
        hub_tokenizer = tokenizer_of(model) if tokenizer is None else tokenizer
        arguments["tokenizer"] = tokenizer_from_keras_hub(hub_tokenizer, size)
        ids = _TOKENIZERS[type(hub_tokenizer).__name__][1]
        model_arguments = {name: getattr(arguments["tokenizer"], name) for name in ids}
    elif image_converter_of(model) is not None:
        model_arguments = {"value_range": (0.0, 255.0)}
    converted = interop.from_keras_hub(model, **model_arguments)
    pipeline: Any = Pipeline.of_model(converted)
    arguments |= pipeline.keras_hub_arguments(model, hub_tokenizer, converted)
    return pipeline(converted, **{**arguments, **settings})


def tokenizer_from_keras_hub(tokenizer: Any, vocabulary_size: int | None = None) -> text.Tokenizer:
    """Convert a tokenizer of KerasHub.

    Args:
        tokenizer: a `BertTokenizer`, `RobertaTokenizer`, `GPT2Tokenizer` or `T5Tokenizer` with its vocabulary.
        vocabulary_size: the number of ids of the model, if it exceeds the number of ids of a `T5Tokenizer`.

    Returns:
        A `text.WordPieceTokenizer`, `text.BytePairTokenizer` or `text.MarianT5Tokenizer`. Its ids equal those of the
        published tokenizers; docs/from_keras_hub.md lists the texts for which KerasHub's ids differ.

    Raises:
        ValueError: if the class is not one of these, or the tokenizer has an unsupported setting.
    """
    name = class_name(tokenizer)
    if name not in _TOKENIZERS:
        received = (
            "none" if tokenizer is None else f"a {type(tokenizer).__module__}.{type(tokenizer).__name__}"
        )
        raise ValueError(
            f"`tokenizer`, or the tokenizer of `model`'s preprocessor, must be of one of KerasHub's classes "
            f"{sorted(_TOKENIZERS)}. Received: {received}"
        )
    return _TOKENIZERS[name][0](tokenizer, vocabulary_size)


def _word_piece(hub_tokenizer: Any, vocabulary_size: int | None) -> text.WordPieceTokenizer:
    required = {"suffix_indicator": "##", "split": True, "sequence_length": None}
    _check(hub_tokenizer, vocabulary=hub_tokenizer.vocabulary, required=required)
    special_tokens = {
        "pad": hub_tokenizer.pad_token,
        "unknown": hub_tokenizer.oov_token,
        "start": hub_tokenizer.cls_token,
        "end": hub_tokenizer.sep_token,
        "mask": hub_tokenizer.mask_token,
    }
    return text.WordPieceTokenizer(
        hub_tokenizer.vocabulary,
        lowercase=hub_tokenizer.lowercase,
        strip_accents=hub_tokenizer.strip_accents,
        isolate_ideographs=hub_tokenizer.split_on_cjk,
        special_tokens=special_tokens,
        special_tokens_in_text=hub_tokenizer.special_tokens_in_strings,
    )


def _byte_pair(roles: Mapping[str, str]) -> Callable[[Any, int | None], text.BytePairTokenizer]:
    """Return the conversion of a byte-pair tokenizer.

    Args:
        roles: a mapping from the roles of its special tokens to their names in KerasHub.
    """

    def convert(hub_tokenizer: Any, vocabulary_size: int | None) -> text.BytePairTokenizer:
        _check(hub_tokenizer, vocabulary=hub_tokenizer.vocabulary, required={"sequence_length": None})
        pieces = sorted(hub_tokenizer.vocabulary, key=hub_tokenizer.vocabulary.get)
        ids = [hub_tokenizer.vocabulary[piece] for piece in pieces]
        if ids != list(range(len(pieces))):
            raise ValueError(
                f"`tokenizer` must have the ids 0 to {len(pieces) - 1}. Received: ids from {ids[0]} to {ids[-1]}"
            )
        return text.BytePairTokenizer(
            pieces,
            [tuple(merge.split(" ")) for merge in hub_tokenizer.merges if "#version:" not in merge],
            special_tokens={role: getattr(hub_tokenizer, f"{name}_token") for role, name in roles.items()},
            add_prefix_space=hub_tokenizer.add_prefix_space,
            special_tokens_in_text=bool(hub_tokenizer.unsplittable_tokens),
        )

    return convert


def _sentence_piece(hub_tokenizer: Any, vocabulary_size: int | None) -> text.MarianT5Tokenizer:
    required = {"add_bos": False, "add_eos": False, "sequence_length": None}
    _check(hub_tokenizer, vocabulary=hub_tokenizer.proto, required=required)
    pieces = hub_tokenizer.get_vocabulary()
    return text.MarianT5Tokenizer(
        hub_tokenizer.proto,
        pieces,
        special_tokens={
            "pad": hub_tokenizer.pad_token,
            "unknown": hub_tokenizer.id_to_token(hub_tokenizer.token_to_id("")),
            "start": hub_tokenizer.pad_token,
            "end": hub_tokenizer.end_token,
        },
        unused=max(0, (vocabulary_size or 0) - len(pieces)),
    )


def _check(hub_tokenizer: Any, vocabulary: Any, required: Mapping[str, Any]) -> None:
    """Raise a ValueError unless KerasHub's tokenizer has a vocabulary and the required settings."""
    if vocabulary is None:
        raise ValueError("`tokenizer` must have a vocabulary. Received: a tokenizer without a vocabulary")
    for name, value in required.items():
        if getattr(hub_tokenizer, name) != value:
            raise ValueError(
                f"`tokenizer` must have {name}={value!r}. Received: {name}={getattr(hub_tokenizer, name)!r}"
            )


# The conversion of each class of tokenizers, and the names of the ids that are passed to the model.
_TOKENIZERS: dict[str | None, tuple[Callable[[Any, int | None], text.Tokenizer], tuple[str, ...]]] = {
    "BertTokenizer": (_word_piece, ("pad_id",)),
    "RobertaTokenizer": (
        _byte_pair({"pad": "pad", "start": "start", "end": "end", "mask": "mask"}),
        ("pad_id",),
    ),
    "GPT2Tokenizer": (_byte_pair({"start": "start", "end": "end"}), ("end_id",)),
    "T5Tokenizer": (_sentence_piece, ("pad_id", "start_id", "end_id")),
}
