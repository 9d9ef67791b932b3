"""Llama 1 and 2."""

from typing import Any

import keras

from keras_transformer.interop.architecture import Architecture, Parameter, Parameters, dense
from keras_transformer.models import Llama
from keras_transformer.relations import Causal

_PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"}


def _parameters(model: Llama) -> Parameters:
    table = model.embedding.embedding
    yield "model.embed_tokens.weight", Parameter((table.embeddings,))
    for i, block in enumerate(model.blocks):
        name = f"model.layers.{i}"
        yield f"{name}.input_layernorm.weight", Parameter((block.self_attention_residual.norm.scale,))
        for hf_name, projection in _PROJECTIONS.items():
            layer = getattr(block.self_attention, f"{projection}_projection")
            yield from dense(f"{name}.self_attn.{hf_name}", layer)
        yield f"{name}.post_attention_layernorm.weight", Parameter((block.feed_forward_residual.norm.scale,))
        yield from dense(f"{name}.mlp.gate_proj", block.feed_forward.hidden)
        yield from dense(f"{name}.mlp.up_proj", block.feed_forward.gate)
        yield from dense(f"{name}.mlp.down_proj", block.feed_forward.output_projection)
    yield "model.norm.weight", Parameter((model.final_norm.scale,))
    if not model.tied:
        yield "lm_head.weight", Parameter((table.reverse_embeddings,), transposed=True)


def _complete(config: dict[str, Any]) -> dict[str, Any]:
    """Add the base of the rotary frequencies, which newer versions of `transformers` keep in `rope_parameters`."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise ValueError(
            f"`config.json` of a llama must have rope_type='default'. Received: rope_type={rope_type!r}"
        )
    pad_id, end_id = config.get("pad_token_id"), config.get("eos_token_id")
    return {
        **config,
        "rope_theta": rope.get("rope_theta", config.get("rope_theta", 10000.0)),
        "num_key_value_heads": config.get("num_key_value_heads") or config.get("num_attention_heads"),
        "pad_token_id": None if pad_id == end_id or pad_id == -1 else pad_id,
    }


LLAMA = Architecture(
    model_type="llama",
    class_name="LlamaForCausalLM",
    model=Llama,
    settings={
        "vocabulary_size": "vocab_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "model_dim": "hidden_size",
        "hidden_dim": "intermediate_size",
        "num_kv_heads": "num_key_value_heads",
        "key_dim": "head_dim",
        "max_wavelength": "rope_theta",
        "dropout": "attention_dropout",
        "epsilon": "rms_norm_eps",
        "tied": "tie_word_embeddings",
        "pad_id": "pad_token_id",
        "end_id": "eos_token_id",
    },
    fixed={"relation": keras.saving.serialize_keras_object(Causal())},
    defaults={
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    },
    required={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    parameters=_parameters,
    ignored=r"rotary_emb\.inv_freq$",
    tied={"lm_head.weight": "model.embed_tokens.weight"},
    complete=_complete,
    optional=frozenset({"head_dim", "pad_token_id"}),
)
