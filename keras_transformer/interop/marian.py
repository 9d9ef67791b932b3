"""Marian translation models, such as those of OPUS-MT."""

from typing import Any

from keras_transformer.interop.architecture import (
    ACTIVATIONS,
    ENCODER_DECODER_RELATIONS,
    Architecture,
    Parameter,
    Parameters,
    dense,
    norm,
)
from keras_transformer.models import Transformer

_TIED = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")


def _attention(name: str, layer: Any) -> Parameters:
    for part in ("query", "key", "value"):
        yield from dense(f"{name}.{part[0]}_proj", getattr(layer, f"{part}_projection"))
    yield from dense(f"{name}.out_proj", layer.output_projection)


def _feed_forward(name: str, block: Any) -> Parameters:
    yield from dense(f"{name}.fc1", block.feed_forward.hidden)
    yield from dense(f"{name}.fc2", block.feed_forward.output_projection)
    yield from norm(f"{name}.final_layer_norm", block.feed_forward_residual.norm)


def _parameters(model: Transformer) -> Parameters:
    yield "model.shared.weight", Parameter((model.embedding.embedding.embeddings,))
    yield "final_logits_bias", Parameter((model.output_bias,), shape=(1, model.vocabulary_size))
    for i, block in enumerate(model.encoder_blocks):
        name = f"model.encoder.layers.{i}"
        yield from _attention(f"{name}.self_attn", block.attention)
        yield from norm(f"{name}.self_attn_layer_norm", block.attention_residual.norm)
        yield from _feed_forward(name, block)
    for i, block in enumerate(model.decoder_blocks):
        name = f"model.decoder.layers.{i}"
        yield from _attention(f"{name}.self_attn", block.self_attention)
        yield from norm(f"{name}.self_attn_layer_norm", block.self_attention_residual.norm)
        yield from _attention(f"{name}.encoder_attn", block.cross_attention)
        yield from norm(f"{name}.encoder_attn_layer_norm", block.cross_attention_residual.norm)
        yield from _feed_forward(name, block)


def _complete(config: dict[str, Any]) -> dict[str, Any]:
    """Add the size of the target vocabulary, by default that of the source."""
    return {**config, "decoder_vocab_size": config.get("decoder_vocab_size") or config.get("vocab_size")}


MARIAN = Architecture(
    model_type="marian",
    class_name="MarianMTModel",
    model=Transformer,
    settings={
        "vocabulary_size": ("vocab_size", "decoder_vocab_size"),
        "num_layers": "encoder_layers",
        "num_decoder_layers": "decoder_layers",
        "num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
        "model_dim": "d_model",
        "hidden_dim": ("encoder_ffn_dim", "decoder_ffn_dim"),
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "hidden_dropout": "activation_dropout",
        "activation": "activation_function",
        "pad_id": "pad_token_id",
        "start_id": "decoder_start_token_id",
        "end_id": "eos_token_id",
    },
    fixed={
        "normalization": "post",
        "norm": "layer",
        "epsilon": 1e-5,
        "position_layout": "halves",
        "output_bias": True,
        **ENCODER_DECODER_RELATIONS,
    },
    defaults={
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "activation_function": "gelu",
        "scale_embedding": False,
        "eos_token_id": 0,
    },
    required={
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
    },
    parameters=_parameters,
    ignored=r"embed_positions\.weight$",  # sinusoids
    tied=dict.fromkeys(_TIED, "model.shared.weight"),
    activations={"swish": "silu", **ACTIVATIONS},
    complete=_complete,
)
