"""T5, T5 v1.1 (FLAN-T5, ByT5) and mT5."""

import dataclasses
from typing import Any

from keras_transformer.interop.architecture import (
    ENCODER_DECODER_RELATIONS,
    Architecture,
    Parameter,
    Parameters,
    dense,
)
from keras_transformer.models import T5

_WORDS = "shared.weight"


def _attention(name: str, module: str, layer: Any, norm: Any) -> Parameters:
    for projection in ("query", "key", "value", "output"):
        yield from dense(f"{name}.{module}.{projection[0]}", getattr(layer, f"{projection}_projection"))
    yield f"{name}.layer_norm.weight", Parameter((norm.scale,))


def _feed_forward(name: str, block: Any) -> Parameters:
    layer = block.feed_forward
    hidden = "wi" if layer.gate is None else "wi_0"
    yield from dense(f"{name}.DenseReluDense.{hidden}", layer.hidden)
    if layer.gate is not None:
        yield from dense(f"{name}.DenseReluDense.wi_1", layer.gate)
    yield from dense(f"{name}.DenseReluDense.wo", layer.output_projection)
    yield f"{name}.layer_norm.weight", Parameter((block.feed_forward_residual.norm.scale,))


def _parameters(model: T5) -> Parameters:
    yield _WORDS, Parameter((model.embedding.embedding.embeddings,))
    for side in ("encoder", "decoder"):
        # The table of a stack is stored in its first block.
        table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield table, Parameter((getattr(model, f"{side}_bias").table,))
        yield f"{side}.final_layer_norm.weight", Parameter((model.final_norms[f"{side}_norm"].scale,))
    for i, block in enumerate(model.encoder_blocks):
        name = f"encoder.block.{i}.layer"
        yield from _attention(f"{name}.0", "SelfAttention", block.attention, block.attention_residual.norm)
        yield from _feed_forward(f"{name}.1", block)
    for i, block in enumerate(model.decoder_blocks):
        name = f"decoder.block.{i}.layer"
        yield from _attention(
            f"{name}.0", "SelfAttention", block.self_attention, block.self_attention_residual.norm
        )
        yield from _attention(
            f"{name}.1", "EncDecAttention", block.cross_attention, block.cross_attention_residual.norm
        )
        yield from _feed_forward(f"{name}.2", block)
    if model.head is not None:
        yield from dense("lm_head", model.head)


def _complete(config: dict[str, Any]) -> dict[str, Any]:
    """Add the number of decoder layers, by default the encoder's, and whether the logits are tied and scaled.

    Newer versions of `transformers` write the latter as `scale_decoder_outputs`, and ignore `tie_word_embeddings`.
    """
    return {
        **config,
        "num_decoder_layers": config.get("num_decoder_layers") or config.get("num_layers"),
        "tie_word_embeddings": config.get("scale_decoder_outputs", config["tie_word_embeddings"]),
    }


T5_GENERATION = Architecture(
    model_type="t5",
    class_name="T5ForConditionalGeneration",
    model=T5,
    settings={
        "vocabulary_size": "vocab_size",
        "num_layers": "num_layers",
        "num_decoder_layers": "num_decoder_layers",
        "num_heads": "num_heads",
        "num_decoder_heads": "num_heads",
        "model_dim": "d_model",
        "hidden_dim": "d_ff",
        "decoder_hidden_dim": "d_ff",
        "key_dim": "d_kv",
        "dropout": "dropout_rate",
        "activation": "feed_forward_proj",
        "tied": "tie_word_embeddings",
        "num_buckets": "relative_attention_num_buckets",
        "max_distance": "relative_attention_max_distance",
        "epsilon": "layer_norm_epsilon",
        "pad_id": "pad_token_id",
        "start_id": "decoder_start_token_id",
        "end_id": "eos_token_id",
    },
    fixed=ENCODER_DECODER_RELATIONS,
    defaults={
        "dropout_rate": 0.1,
        "feed_forward_proj": "relu",
        "tie_word_embeddings": True,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
    },
    required={"is_encoder_decoder": True},
    parameters=_parameters,
    # The first published files have an unused table.
    ignored=r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",
    tied=dict.fromkeys(
        ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), _WORDS
    ),
    activations={
        "relu": "relu",
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "silu": "silu",
        "gated-gelu": "geglu_tanh",
        "gated-silu": "swiglu",
        "gated-relu": "reglu",
    },
    complete=_complete,
)
MT5_GENERATION = dataclasses.replace(
    T5_GENERATION,
    model_type="mt5",
    class_name="MT5ForConditionalGeneration",
    # The logits have a separate matrix, whatever `config.json` says; if the file lacks it, it equals the embedding.
    settings={name: setting for name, setting in T5_GENERATION.settings.items() if name != "tied"},
    fixed={**T5_GENERATION.fixed, "tied": False},
    defaults={**T5_GENERATION.defaults, "feed_forward_proj": "gated-gelu"},
)
ARCHITECTURES = (T5_GENERATION, MT5_GENERATION)
