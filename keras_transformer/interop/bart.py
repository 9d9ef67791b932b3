"""BART and its relatives: Marian (OPUS-MT), mBART, M2M-100 (and NLLB-200), Pegasus."""

import functools
from collections.abc import Mapping
from typing import Any

import keras

from keras_transformer.interop.architecture import (
    ACTIVATIONS,
    ENCODER_DECODER_RELATIONS,
    Architecture,
    Parameter,
    Parameters,
    dense,
    norm,
)
from keras_transformer.interop.bert import complete_classifier
from keras_transformer.models import EncoderDecoderClassifier, Transformer
from keras_transformer.ops.scores import ScaledDotProduct

_TIED = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
_OFFSET = 2  # unused rows before the first position

SETTINGS = {
    "vocabulary_size": "vocab_size",
    "num_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "num_heads": "encoder_attention_heads",
    "num_decoder_heads": "decoder_attention_heads",
    "model_dim": "d_model",
    "hidden_dim": "encoder_ffn_dim",
    "decoder_hidden_dim": "decoder_ffn_dim",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "hidden_dropout": "activation_dropout",
    "activation": "activation_function",
    "pad_id": "pad_token_id",
    "start_id": "decoder_start_token_id",
    "end_id": "eos_token_id",
}
"""The settings of all these models and of Whisper, by argument."""
_OF_CLASSIFIER = ("num_classes", "problem_type", "decoder_input")


def _attention_parameters(name: str, layer: Any, residual: Any) -> Parameters:
    """Yield the parameters of an attention and the norm of its residual connection."""
    for part in ("query", "key", "value"):
        yield from dense(f"{name}.{part[0]}_proj", getattr(layer, f"{part}_projection"))
    yield from dense(f"{name}.out_proj", layer.output_projection)
    yield from norm(f"{name}_layer_norm", residual.norm)


def _feed_forward_parameters(name: str, block: Any) -> Parameters:
    """Yield the parameters of the feed-forward network of a block and the norm of its residual connection."""
    yield from dense(f"{name}.fc1", block.feed_forward.hidden)
    yield from dense(f"{name}.fc2", block.feed_forward.output_projection)
    yield from norm(f"{name}.final_layer_norm", block.feed_forward_residual.norm)


def _around_blocks(model: Transformer, side: str) -> Parameters:
    """Yield the positions and norms before and after the blocks of a side, if it has them."""
    if model.position_encoding == "learned":
        table = Parameter((model.positions[side].table,), unused_rows=_OFFSET)
        yield f"model.{side}.embed_positions.weight", table
    if model.embedding_norm:
        yield from norm(f"model.{side}.layernorm_embedding", model.embedding_norms[side])
    if f"{side}_norm" in model.final_norms:
        yield from norm(f"model.{side}.layer_norm", model.final_norms[f"{side}_norm"])


def block_parameters(model: Any) -> Parameters:
    """Yield the parameters of the blocks of encoder and decoder."""
    for i, block in enumerate(model.encoder_blocks):
        name = f"model.encoder.layers.{i}"
        yield from _attention_parameters(f"{name}.self_attn", block.attention, block.attention_residual)
        yield from _feed_forward_parameters(name, block)
    for i, block in enumerate(model.decoder_blocks):
        name = f"model.decoder.layers.{i}"
        for part, attention in (("self_attn", "self_attention"), ("encoder_attn", "cross_attention")):
            layer, residual = getattr(block, attention), getattr(block, f"{attention}_residual")
            yield from _attention_parameters(f"{name}.{part}", layer, residual)
        yield from _feed_forward_parameters(name, block)


def _parameters(model: Transformer) -> Parameters:
    yield "model.shared.weight", Parameter((model.embedding.embedding.embeddings,))
    if model.output_bias is not None:
        yield "final_logits_bias", Parameter((model.output_bias,), shape=(1, model.vocabulary_size))
    yield from _around_blocks(model, "encoder")
    yield from _around_blocks(model, "decoder")
    yield from block_parameters(model)


def _classifier_parameters(model: EncoderDecoderClassifier) -> Parameters:
    yield from _parameters(model.encoder)
    yield from dense("classification_head.dense", model.transform)
    yield from dense("classification_head.out_proj", model.head)


def _make_classifier(**arguments: Any) -> EncoderDecoderClassifier:
    of_head = {name: arguments.pop(name) for name in _OF_CLASSIFIER}
    return EncoderDecoderClassifier(Transformer(**arguments), **of_head)


def _describe_classifier(model: EncoderDecoderClassifier) -> dict[str, Any]:
    of_head = {name: getattr(model, name) for name in _OF_CLASSIFIER}
    return {**model.encoder.get_config(), **of_head}


def _architecture(
    model_type: str,
    class_name: str,
    fixed: Mapping[str, Any],
    defaults: Mapping[str, Any],
    required: Mapping[str, Any],
    settings: Mapping[str, str | tuple[str, ...]],
    **options: Any,
) -> Architecture:
    options = {"model": Transformer, "parameters": _parameters, **options}
    return Architecture(
        model_type=model_type,
        class_name=class_name,
        settings={**SETTINGS, "scale_embedding": "scale_embedding", **settings},
        fixed={
            "norm": "layer",
            "epsilon": 1e-5,
            "score": keras.saving.serialize_keras_object(ScaledDotProduct()),
            "shared_query_key": False,
            **fixed,
            **ENCODER_DECODER_RELATIONS,
        },
        defaults={
            "dropout": 0.1,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "activation_function": "gelu",
            "scale_embedding": False,
            **defaults,
        },
        required={"tie_word_embeddings": True, **required},
        tied=dict.fromkeys(_TIED, "model.shared.weight"),
        activations={"swish": "silu", **ACTIVATIONS},
        base="model.",
        **options,
    )


def _with_target_vocabulary(config: dict[str, Any]) -> dict[str, Any]:
    """Add the size of Marian's target vocabulary, by default that of the source."""
    return {**config, "decoder_vocab_size": config.get("decoder_vocab_size") or config.get("vocab_size")}


def _with_start(config: dict[str, Any]) -> dict[str, Any]:
    """Add the start token of mBART, whose targets begin with the token of a language in its place."""
    start = config.get("decoder_start_token_id")
    return {**config, "decoder_start_token_id": config["eos_token_id"] if start is None else start}


_FAIRSEQ_IDS = {"pad_token_id": 1, "eos_token_id": 2}
# Older files have settings of classes that were one class with BART's.
_PRE_NORM = {"normalize_before": True, "add_final_layer_norm": True}
_POST_NORM = {"normalize_before": False, "add_final_layer_norm": False}
_LEARNED = {
    "position_encoding": "learned",
    "position_layout": "interleaved",
    "embedding_norm": True,
    "output_bias": True,
}
_SINUSOIDAL = {"position_encoding": "sinusoidal", "max_length": None, "embedding_norm": False}
_sinusoidal = functools.partial(_architecture, ignored=r"embed_positions\.weights?$")
_POSITIONS = {"max_length": "max_position_embeddings"}
_learned = functools.partial(_architecture, settings=_POSITIONS)
_bart = functools.partial(
    _architecture,
    "bart",
    defaults={**_FAIRSEQ_IDS, "decoder_start_token_id": 2, "max_position_embeddings": 1024},
    required={"static_position_embeddings": False, "normalize_embedding": True, **_POST_NORM},
)

ARCHITECTURES = (
    _sinusoidal(
        "marian",
        "MarianMTModel",
        {"normalization": "post", "position_layout": "halves", "output_bias": True, **_SINUSOIDAL},
        {"eos_token_id": 0},
        {
            "share_encoder_decoder_embeddings": True,
            "static_position_embeddings": True,
            "normalize_embedding": False,
            **_POST_NORM,
        },
        {"vocabulary_size": ("vocab_size", "decoder_vocab_size")},
        complete=_with_target_vocabulary,
    ),
    _bart(
        "BartForConditionalGeneration",
        {"normalization": "post", **_LEARNED},
        settings=_POSITIONS,
        is_default=True,
    ),
    _bart(
        "BartForSequenceClassification",
        {"normalization": "post", **_LEARNED, "output_bias": False, "decoder_input": "text"},
        settings={**_POSITIONS, "num_classes": "num_labels", "problem_type": "problem_type"},
        model=EncoderDecoderClassifier,
        parameters=_classifier_parameters,
        complete=complete_classifier,
        make=_make_classifier,
        describe=_describe_classifier,
        encoder=Transformer,
    ),
    _learned(
        "mbart",
        "MBartForConditionalGeneration",
        {"normalization": "pre", **_LEARNED},
        {**_FAIRSEQ_IDS, "max_position_embeddings": 1024},
        {"static_position_embeddings": False, "normalize_embedding": True, **_PRE_NORM},
        complete=_with_start,
    ),
    _sinusoidal(
        "m2m_100",
        "M2M100ForConditionalGeneration",
        {"normalization": "pre", "position_layout": "fairseq", "output_bias": False, **_SINUSOIDAL},
        {
            **_FAIRSEQ_IDS,
            "activation_function": "relu",
            "attention_dropout": 0.1,
            "scale_embedding": True,
            "decoder_start_token_id": 2,
        },
        {"static_position_embeddings": True, "normalize_embedding": False, **_PRE_NORM},
        {},
    ),
    _sinusoidal(
        "pegasus",
        "PegasusForConditionalGeneration",
        {"normalization": "pre", "position_layout": "halves", "output_bias": True, **_SINUSOIDAL},
        {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
        {"static_position_embeddings": True, "normalize_embedding": False, **_PRE_NORM},
        {},
    ),
)
