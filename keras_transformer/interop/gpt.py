"""GPT-2 and OpenAI GPT."""

from typing import Any

import keras

from keras_transformer.interop.architecture import (
    ACTIVATIONS,
    Architecture,
    Parameter,
    Parameters,
    dense,
    norm,
)
from keras_transformer.models import GPT
from keras_transformer.relations import Causal

_BASE = "transformer."
_SETTINGS = {
    "vocabulary_size": "vocab_size",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "model_dim": "n_embd",
    "max_length": "n_positions",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "embedding_dropout": "embd_pdrop",
    "epsilon": "layer_norm_epsilon",
    "pad_id": "pad_token_id",
    "end_id": "eos_token_id",
}
_FIXED = {
    "norm": "layer",
    "position_encoding": "learned",
    "num_kv_heads": None,
    "relation": keras.saving.serialize_keras_object(Causal()),
    "use_bias": True,
}
_DEFAULTS = {"resid_pdrop": 0.1, "attn_pdrop": 0.1, "embd_pdrop": 0.1, "layer_norm_epsilon": 1e-5}


def _parameters(words: str, positions: str, model: Any) -> Parameters:
    """Yield the parameters; their names begin with `_BASE`."""
    for name, parameter in _bare_parameters(words, positions, model):
        yield _BASE + name, parameter


def _bare_parameters(words: str, positions: str, model: Any) -> Parameters:
    yield f"{words}.weight", Parameter((model.embedding.embedding.embeddings,))
    yield f"{positions}.weight", Parameter((model.positions.table,))
    for i, block in enumerate(model.blocks):
        attention, feed_forward = block.self_attention, block.feed_forward
        projections = attention.query_projection, attention.key_projection, attention.value_projection
        yield from norm(f"h.{i}.ln_1", block.self_attention_residual.norm)
        yield from dense(f"h.{i}.attn.c_attn", *projections, transposed=False)
        yield from dense(f"h.{i}.attn.c_proj", attention.output_projection, transposed=False)
        yield from norm(f"h.{i}.ln_2", block.feed_forward_residual.norm)
        yield from dense(f"h.{i}.mlp.c_fc", feed_forward.hidden, transposed=False)
        yield from dense(f"h.{i}.mlp.c_proj", feed_forward.output_projection, transposed=False)
    if model.final_norm is not None:
        yield from norm("ln_f", model.final_norm)


def _complete_gpt2(config: dict[str, Any]) -> dict[str, Any]:
    """Add the hidden size of the feed-forward networks, and remove a padding token that is the end token."""
    pad_id, width = config.get("pad_token_id"), config.get("n_inner")
    return {
        **config,
        "n_inner": 4 * (config.get("n_embd") or 0) if width is None else width,
        "pad_token_id": None if pad_id == config["eos_token_id"] else pad_id,
    }


def _complete_gpt(config: dict[str, Any]) -> dict[str, Any]:
    """Add the settings that the architecture fixes: a hidden size of 4 D, and the unknown token, 0, as end token."""
    end_id = config.get("eos_token_id") or 0
    pad_id = config.get("pad_token_id")
    return {
        **config,
        "eos_token_id": end_id,
        "pad_token_id": None if pad_id == end_id else pad_id,
        "n_inner": 4 * (config.get("n_embd") or 0),
    }


GPT2 = Architecture(
    model_type="gpt2",
    class_name="GPT2LMHeadModel",
    model=GPT,
    settings={**_SETTINGS, "hidden_dim": "n_inner", "activation": "activation_function"},
    fixed={**_FIXED, "normalization": "pre"},
    defaults={**_DEFAULTS, "activation_function": "gelu_new", "eos_token_id": 50256},
    required={
        "add_cross_attention": False,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
    },
    parameters=lambda model: _parameters("wte", "wpe", model),
    base=_BASE,
    ignored=r"\.attn\.(bias|masked_bias)$",  # the causal mask
    tied={"lm_head.weight": f"{_BASE}wte.weight"},
    complete=_complete_gpt2,
    optional=frozenset({"pad_token_id"}),
)

OPENAI_GPT = Architecture(
    model_type="openai-gpt",
    class_name="OpenAIGPTLMHeadModel",
    model=GPT,
    settings={**_SETTINGS, "hidden_dim": "n_inner", "activation": "afn"},
    fixed={**_FIXED, "normalization": "post"},
    defaults={**_DEFAULTS, "afn": "gelu"},
    required={"tie_word_embeddings": True},
    parameters=lambda model: _parameters("tokens_embed", "positions_embed", model),
    base=_BASE,
    ignored=r"(\.attn\.bias|position_ids)$",
    tied={"lm_head.weight": f"{_BASE}tokens_embed.weight"},
    # Only this architecture uses "gelu" for the tanh approximation.
    activations={"gelu": "gelu_tanh", **{name: ACTIVATIONS[name] for name in ("relu", "silu", "swish")}},
    complete=_complete_gpt,
    optional=frozenset({"pad_token_id"}),
)
