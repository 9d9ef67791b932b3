"""Llama and the families with its blocks: Mistral, Qwen 2 and 3, SmolLM 3, Phi-3."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from keras_transformer.interop.architecture import Architecture, Derived, Parameter, Parameters, dense
from keras_transformer.interop.decoders import (
    IDS,
    NO_WINDOWS,
    ROTARY,
    Config,
    expected,
    rotary_positions,
    window,
    windows,
)
from keras_transformer.models import Llama
from keras_transformer.models.block_arguments import per_block
from keras_transformer_options.arguments import is_integer

_PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}


def norm(name: str, layer: Any, added: float = 0.0) -> Parameters:
    """Yield the parameter of an RMS norm."""
    yield f"{name}.weight", Parameter((layer.scale,), added=added)


def attention(name: str, layer: Any, added: float = 0.0) -> Parameters:
    """Yield the parameters of an attention layer; `added` is that of the norms of queries and keys."""
    for hf_name, keras_name in _PROJECTIONS.items():
        yield from dense(f"{name}.{hf_name}", getattr(layer, f"{keras_name}_projection"))
    yield from dense(f"{name}.o_proj", layer.output_projection)
    if layer.head_norm:
        yield from norm(f"{name}.q_norm", layer.query_norm, added)
        yield from norm(f"{name}.k_norm", layer.key_norm, added)


def feed_forward(name: str, layer: Any) -> Parameters:
    """Yield the parameters of a gated feed-forward network."""
    yield from dense(f"{name}.gate_proj", layer.hidden)
    yield from dense(f"{name}.up_proj", layer.gate)
    yield from dense(f"{name}.down_proj", layer.output_projection)


def _fused_attention(name: str, layer: Any) -> Parameters:
    parts = (getattr(layer, f"{part}_projection") for part in ("query", "key", "value"))
    yield from dense(f"{name}.qkv_proj", *parts)
    yield from dense(f"{name}.o_proj", layer.output_projection)


def _fused_feed_forward(name: str, layer: Any) -> Parameters:
    yield from dense(f"{name}.gate_up_proj", layer.hidden, layer.gate)
    yield from dense(f"{name}.down_proj", layer.output_projection)


def _parameters(attention: Any, feed_forward: Any, model: Llama) -> Parameters:
    """Yield the parameters of a model, with functions that yield those of sublayers."""
    yield "model.embed_tokens.weight", Parameter((model.embedding.embedding.embeddings,))
    for i, block in enumerate(model.blocks):
        name = f"model.layers.{i}"
        yield from norm(f"{name}.input_layernorm", block.self_attention_residual.norm)
        yield from attention(f"{name}.self_attn", block.self_attention)
        yield from norm(f"{name}.post_attention_layernorm", block.feed_forward_residual.norm)
        yield from feed_forward(f"{name}.mlp", block.feed_forward)
    yield from norm("model.norm", model.final_norm)
    if not model.tied:
        yield "lm_head.weight", Parameter((model.embedding.embedding.reverse_embeddings,), transposed=True)


SETTINGS = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "model_dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "num_kv_heads": "num_key_value_heads",
    "key_dim": "head_dim",
    "dropout": "attention_dropout",
    "epsilon": "rms_norm_eps",
}
# Those that are the same for most families.
DEFAULTS = {"attention_dropout": 0.0, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
IGNORED = r"rotary_emb\.inv_freq$"
TIED = {"lm_head.weight": "model.embed_tokens.weight"}


def complete(config: dict[str, Any]) -> dict[str, Any]:
    """Add the number of key/value heads and the size of a head."""
    heads, size = config.get("num_attention_heads"), config.get("hidden_size")
    head_dim = size // heads if size and heads else None
    return {
        **config,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or head_dim,
    }


_EMPTY: Mapping[str, Any] = MappingProxyType({})


_separate = functools.partial(_parameters, attention, feed_forward)
_fused = functools.partial(_parameters, _fused_attention, _fused_feed_forward)


def _family(
    model_type: str,
    class_name: str,
    *derived: Derived,
    fixed: Mapping[str, Any] = _EMPTY,
    defaults: Mapping[str, Any] = _EMPTY,
    required: Mapping[str, Any] = _EMPTY,
    parameters: Callable[[Any], Parameters] = _separate,
) -> Architecture:
    """Return the architecture of a family; the arguments are those of `Architecture`."""
    return Architecture(
        model_type=model_type,
        class_name=class_name,
        model=Llama,
        settings={**SETTINGS, "tied": "tie_word_embeddings"},
        fixed={"qkv_bias": False, "head_norm": False, **fixed},
        defaults={**DEFAULTS, "tie_word_embeddings": False, **defaults},
        required={"hidden_act": "silu", **required},
        parameters=parameters,
        ignored=IGNORED,
        tied=TIED,
        base="model.",
        complete=complete,
        derived=(IDS, *derived),
    )


def _is_windowed(config: Config, block: int) -> bool:
    return window(config) is not None


def _is_windowed_qwen(config: Config, block: int) -> bool:
    first: Any = config.get("max_window_layers")
    if not is_integer(first):
        raise expected(config, "an integer as max_window_layers", max_window_layers=first)
    return bool(config.get("use_sliding_window")) and _is_windowed(config, block) and block >= first


def _has_positions(config: Config, block: int) -> bool:
    """Return whether a block of SmolLM 3 has positions."""
    layers: Any = config.get("no_rope_layers")
    interval: Any = config.get("no_rope_layer_interval")
    if layers is None and is_integer(interval) and interval > 0:
        return (block + 1) % interval != 0
    if not isinstance(layers, list) or len(layers) != config["num_hidden_layers"]:
        raise expected(
            config, "one of 0 and 1 for each layer as no_rope_layers", no_rope_layers=layers or interval
        )
    return bool(layers[block])


def _is_windowed_smollm(config: Config, block: int) -> bool:
    is_used = config.get("use_sliding_window") and _is_windowed(config, block)
    return bool(is_used) and not _has_positions(config, block)


def _written_positions(model: Llama) -> dict[str, list[int]]:
    bases = per_block("max_wavelength", model.max_wavelength, model.num_layers)
    return {"no_rope_layers": [int(base is not None) for base in bases]}


_NO_BIASES = {"attention_bias": False, "mlp_bias": False}
_QWEN_WINDOWS = windows(_is_windowed_qwen, "max_window_layers", has_switch=True)
_QWEN_DEFAULTS = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
ARCHITECTURES = (
    _family(
        "llama",
        "LlamaForCausalLM",
        NO_WINDOWS,
        ROTARY,
        defaults={"eos_token_id": 2},
        required=_NO_BIASES,
    ),
    _family(
        "mistral",
        "MistralForCausalLM",
        windows(_is_windowed, has_types=False),
        ROTARY,
        defaults={"eos_token_id": 2, "sliding_window": 4096},
    ),
    _family(
        "qwen2",
        "Qwen2ForCausalLM",
        _QWEN_WINDOWS,
        ROTARY,
        fixed={"qkv_bias": True},
        defaults=_QWEN_DEFAULTS,
    ),
    _family(
        "qwen3",
        "Qwen3ForCausalLM",
        _QWEN_WINDOWS,
        ROTARY,
        fixed={"head_norm": True},
        defaults={**_QWEN_DEFAULTS, "head_dim": 128},
        required={"attention_bias": False},
    ),
    _family(
        "smollm3",
        "SmolLM3ForCausalLM",
        windows(_is_windowed_smollm, has_switch=True),
        rotary_positions(
            has_positions=_has_positions,
            written=_written_positions,
            settings=("no_rope_layers", "no_rope_layer_interval"),
        ),
        defaults={
            "rope_theta": 2000000.0,
            "tie_word_embeddings": True,
            "no_rope_layer_interval": 4,
            "pad_token_id": 128004,
            "eos_token_id": 128001,
        },
        required=_NO_BIASES,
    ),
    _family(
        "phi3",
        "Phi3ForCausalLM",
        windows(_is_windowed, has_types=False),
        rotary_positions(("longrope",), has_part=True),
        defaults={
            "rms_norm_eps": 1e-5,
            "original_max_position_embeddings": 4096,
            "pad_token_id": 32000,
            "eos_token_id": 32000,
        },
        parameters=_fused,
    ),
)
