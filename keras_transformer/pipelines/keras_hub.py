"""Pipelines from task models of KerasHub."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_transformer import interop, text
from keras_transformer.interop.keras_hub import class_name, tokenizer_of
from keras_transformer.pipelines.base import Pipeline
from keras_transformer.pipelines.image_classification import image_converter_of


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
            of `TextGeneration` begin with the start token if those of the preprocessor do.

    Returns:
        The pipeline. The weights are copies.

    Raises:
        ValueError: if there is no tokenizer, the model or tokenizer has a setting that ours cannot have, or they do not
            match.

    Example:
        >>> causal_lm = keras_hub.models.GPT2CausalLM.from_preset("gpt2_base_en")  # doctest: +SKIP
        >>> writer = from_keras_hub(causal_lm, generation="beam", max_new_tokens=32)  # doctest: +SKIP
    """
    given, known, theirs = {}, {}, None
    if (size := getattr(getattr(model, "backbone", model), "vocabulary_size", None)) is not None:
        theirs = tokenizer_of(model) if tokenizer is None else tokenizer
        known["tokenizer"] = tokenizer_from_keras_hub(theirs, size)
        ids = _TOKENIZERS[type(theirs).__name__][1]
        given = {name: getattr(known["tokenizer"], name) for name in ids}
    elif image_converter_of(model) is not None:
        given = {"value_range": (0.0, 255.0)}
    converted = interop.from_keras_hub(model, **given)
    pipeline: Any = Pipeline.of_model(converted)
    known |= pipeline.keras_hub_arguments(model, theirs, converted)
    return pipeline(converted, **{**known, **settings})


def tokenizer_from_keras_hub(tokenizer: Any, vocabulary_size: int | None = None) -> text.Tokenizer:
    """Convert a tokenizer of KerasHub.

    Args:
        tokenizer: a `BertTokenizer`, `RobertaTokenizer`, `GPT2Tokenizer` or `T5Tokenizer` with its vocabulary.
        vocabulary_size: the number of ids of the model, if it exceeds that of a `T5Tokenizer`.

    Returns:
        A `text.WordPieceTokenizer`, `text.BytePairTokenizer` or `text.MarianT5Tokenizer`. Its ids are those of the
        published tokenizers, see docs/from_keras_hub.md for the texts of which KerasHub's differ.

    Raises:
        ValueError: if the class is not one of these, or the tokenizer has a setting that ours cannot have.
    """
    name = class_name(tokenizer)
    if name not in _TOKENIZERS:
        received = (
            "none" if tokenizer is None else f"a {type(tokenizer).__module__}.{type(tokenizer).__name__}"
        )
        raise ValueError(
            f"`tokenizer`, or that of the preprocessor of `model`, must be of one of KerasHub's classes "
            f"{sorted(_TOKENIZERS)}. Received: {received}"
        )
    return _TOKENIZERS[name][0](tokenizer, vocabulary_size)


def _word_piece(theirs: Any, vocabulary_size: int | None) -> text.WordPieceTokenizer:
    required = {"suffix_indicator": "##", "split": True, "sequence_length": None}
    _check(theirs, vocabulary=theirs.vocabulary, required=required)
    special_tokens = {
        "pad": theirs.pad_token,
        "unknown": theirs.oov_token,
        "start": theirs.cls_token,
        "end": theirs.sep_token,
        "mask": theirs.mask_token,
    }
    return text.WordPieceTokenizer(
        theirs.vocabulary,
        lowercase=theirs.lowercase,
        strip_accents=theirs.strip_accents,
        isolate_ideographs=theirs.split_on_cjk,
        special_tokens=special_tokens,
        special_tokens_in_text=theirs.special_tokens_in_strings,
    )


def _byte_pair(roles: Mapping[str, str]) -> Callable[[Any, int | None], text.BytePairTokenizer]:
    """Return the conversion of a tokenizer with the special tokens of these roles, by their names in KerasHub."""

    def convert(theirs: Any, vocabulary_size: int | None) -> text.BytePairTokenizer:
        _check(theirs, vocabulary=theirs.vocabulary, required={"sequence_length": None})
        pieces = sorted(theirs.vocabulary, key=theirs.vocabulary.get)
        ids = [theirs.vocabulary[piece] for piece in pieces]
        if ids != list(range(len(pieces))):
            raise ValueError(
                f"`tokenizer` must have the ids 0 to {len(pieces) - 1}. Received: ids from {ids[0]} to {ids[-1]}"
            )
        return text.BytePairTokenizer(
            pieces,
            [tuple(merge.split(" ")) for merge in theirs.merges if "#version:" not in merge],
            special_tokens={role: getattr(theirs, f"{name}_token") for role, name in roles.items()},
            add_prefix_space=theirs.add_prefix_space,
            special_tokens_in_text=bool(theirs.unsplittable_tokens),
        )

    return convert


def _sentence_piece(theirs: Any, vocabulary_size: int | None) -> text.MarianT5Tokenizer:
    required = {"add_bos": False, "add_eos": False, "sequence_length": None}
    _check(theirs, vocabulary=theirs.proto, required=required)
    pieces = theirs.get_vocabulary()
    return text.MarianT5Tokenizer(
        theirs.proto,
        pieces,
        special_tokens={
            "pad": theirs.pad_token,
            "unknown": theirs.id_to_token(theirs.token_to_id("")),
            "start": theirs.pad_token,
            "end": theirs.end_token,
        },
        unused=max(0, (vocabulary_size or 0) - len(pieces)),
    )


def _check(theirs: Any, vocabulary: Any, required: Mapping[str, Any]) -> None:
    """Raise a ValueError unless a tokenizer has a vocabulary and the required settings."""
    if vocabulary is None:
        raise ValueError("`tokenizer` must have a vocabulary. Received: one that is not loaded")
    for name, value in required.items():
        if getattr(theirs, name) != value:
            raise ValueError(
                f"`tokenizer` must have {name}={value!r}. Received: {name}={getattr(theirs, name)!r}"
            )


# The conversion of each class of tokenizers, and the ids that the model takes from it.
_TOKENIZERS: dict[str | None, tuple[Callable[[Any, int | None], text.Tokenizer], tuple[str, ...]]] = {
    "BertTokenizer": (_word_piece, ("pad_id",)),
    "RobertaTokenizer": (
        _byte_pair({"pad": "pad", "start": "start", "end": "end", "mask": "mask"}),
        ("pad_id",),
    ),
    "GPT2Tokenizer": (_byte_pair({"start": "start", "end": "end"}), ("end_id",)),
    "T5Tokenizer": (_sentence_piece, ("pad_id", "start_id", "end_id")),
}
