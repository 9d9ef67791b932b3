"""Gemma 1, 2 and 3 for texts."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import keras

from keras_transformer.interop.architecture import Architecture, Derived, Parameter, Parameters
from keras_transformer.interop.decoders import (
    FULL,
    IDS,
    NO_WINDOWS,
    ROPE_SETTINGS,
    SLIDING,
    Config,
    expected,
    max_length,
    rotary,
    rotary_positions,
    windows,
    written_length,
    written_rope,
)
from keras_transformer.interop.llama import (
    DEFAULTS,
    IGNORED,
    SETTINGS,
    TIED,
    attention,
    complete,
    feed_forward,
    norm,
)
from keras_transformer.models import Gemma
from keras_transformer.models.block_arguments import one_if_equal, per_block
from keras_transformer.ops.scores import ScaledDotProduct
from keras_transformer.relations import SlidingWindow
from keras_transformer_options.arguments import is_integer, is_number

_ACTIVATION = "gelu_pytorch_tanh"
_LOCAL = "rope_local_base_freq"
_NORMS = {  # of blocks, with and without norms of the outputs of sublayers
    "pre": {
        "input_layernorm": ("self_attention_residual", "norm"),
        "post_attention_layernorm": ("feed_forward_residual", "norm"),
    },
    "sandwich": {
        "input_layernorm": ("self_attention_residual", "norm"),
        "post_attention_layernorm": ("self_attention_residual", "output_norm"),
        "pre_feedforward_layernorm": ("feed_forward_residual", "norm"),
        "post_feedforward_layernorm": ("feed_forward_residual", "output_norm"),
    },
}


def _parameters(model: Gemma) -> Parameters:
    """Yield the parameters; the scales of norms are 1 + w."""
    yield "model.embed_tokens.weight", Parameter((model.embedding.embedding.embeddings,))
    for i, block in enumerate(model.blocks):
        name = f"model.layers.{i}"
        for hf_name, (residual, keras_name) in _NORMS[model.normalization].items():
            yield from norm(f"{name}.{hf_name}", getattr(getattr(block, residual), keras_name), added=1.0)
        yield from attention(f"{name}.self_attn", block.self_attention, added=1.0)
        yield from feed_forward(f"{name}.mlp", block.feed_forward)
    yield from norm("model.norm", model.final_norm, added=1.0)


def _check_activation(config: Config) -> dict[str, Any]:
    """Check the activation of Gemma 1, whose first files name another one than the model has."""
    names = {"hidden_act": config.get("hidden_act"), "hidden_activation": config.get("hidden_activation")}
    if names["hidden_act"] not in (None, "gelu", _ACTIVATION) or names["hidden_activation"] not in (
        None,
        _ACTIVATION,
    ):
        raise expected(config, f"{_ACTIVATION!r} as hidden_act", **names)
    return {}


def _read_score(config: Config) -> dict[str, Any]:
    """Return the score and the soft caps of Gemma 2 and 3."""
    scalar: Any = config.get("query_pre_attn_scalar")
    cap: Any = config.get("attn_logit_softcapping")
    soft_cap: Any = config.get("final_logit_softcapping")
    if not is_number(scalar) or scalar <= 0:
        raise expected(config, "a positive number as query_pre_attn_scalar", query_pre_attn_scalar=scalar)
    for name, value in (("attn_logit_softcapping", cap), ("final_logit_softcapping", soft_cap)):
        if value is not None and not (is_number(value) and value > 0):
            raise expected(config, f"a positive number or null as {name}", **{name: value})
    scale = None if scalar == config["head_dim"] else scalar**-0.5
    return {"score": ScaledDotProduct(scale, cap), "soft_cap": soft_cap}


def _write_score(model: Gemma) -> dict[str, Any]:
    scale = getattr(model.score, "scale", None) or model.key_dim**-0.5
    return {
        "query_pre_attn_scalar": round(scale**-2),
        "attn_logit_softcapping": getattr(model.score, "soft_cap", None),
        "final_logit_softcapping": model.soft_cap,
    }


def _every_second(config: Config, block: int) -> bool:
    return block % 2 == 0


def _all_but_every_sixth(config: Config, block: int) -> bool:
    period = config.get("sliding_window_pattern", 6)
    if not is_integer(period) or period < 1:
        raise expected(config, "a positive integer as sliding_window_pattern", sliding_window_pattern=period)
    return (block + 1) % period != 0


def _read_rotary_positions(config: Config) -> dict[str, Any]:
    """Return the rotary positions of Gemma 3, which differ in blocks with and without a window."""
    ropes, scaling = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    if not isinstance(ropes, dict) or ropes.keys() - {FULL, SLIDING}:
        raise expected(config, f"rope_parameters for {FULL!r} and {SLIDING!r}", rope_parameters=ropes)
    if not isinstance(scaling, dict):
        raise expected(config, "a dictionary as rope_scaling", rope_scaling=scaling)
    of_kind = {
        FULL: rotary(config, {**(ropes.get(FULL) or {}), **scaling}),
        SLIDING: rotary(config, {"rope_theta": config.get(_LOCAL), **(ropes.get(SLIDING) or {})}),
    }
    relation = _GEMMA_3_WINDOWS.read(config)["relation"]
    bases, scalings = zip(
        *(of_kind[_kind(block)] for block in per_block("relation", relation, config["num_hidden_layers"])),
        strict=True,
    )
    return {
        "max_wavelength": one_if_equal(bases),
        "scaling": one_if_equal(scalings),
        "max_length": max_length(config, scalings),
    }


def _write_rotary_positions(model: Gemma) -> dict[str, Any]:
    arguments = {name: getattr(model, name) for name in ("relation", "max_wavelength", "scaling")}
    of_blocks = [per_block(name, value, model.num_layers) for name, value in arguments.items()]
    of_kind = {_kind(relation): (base, scaling) for relation, base, scaling in zip(*of_blocks, strict=True)}
    base, scaling = of_kind.get(FULL, (1000000.0, None))
    return {
        "rope_theta": base,
        _LOCAL: of_kind.get(SLIDING, (10000.0, None))[0],
        "rope_scaling": written_rope(scaling),
        **written_length(model, scaling),
    }


def _kind(relation: Any) -> str:
    return SLIDING if isinstance(relation, SlidingWindow) else FULL


_EMPTY: Mapping[str, Any] = MappingProxyType({})


def _family(
    model_type: str,
    class_name: str,
    *derived: Derived,
    fixed: Mapping[str, Any],
    defaults: Mapping[str, Any] = _EMPTY,
    required: Mapping[str, Any] = _EMPTY,
) -> Architecture:
    """Return the architecture of a version; the arguments are those of `Architecture`."""
    return Architecture(
        model_type=model_type,
        class_name=class_name,
        model=Gemma,
        settings=SETTINGS,
        fixed=fixed,
        defaults={**DEFAULTS, "head_dim": 256, "pad_token_id": 0, "eos_token_id": 1, **defaults},
        required={
            "attention_bias": False,
            "tie_word_embeddings": True,
            "use_bidirectional_attention": False,
            **required,
        },
        parameters=_parameters,
        ignored=IGNORED,
        tied=TIED,
        base="model.",
        complete=complete,
        derived=(IDS, *derived),
    )


_SCORE = Derived(
    ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"), _read_score, _write_score
)
_GEMMA_3_WINDOWS = windows(_all_but_every_sixth, "sliding_window_pattern")
_LATER_DEFAULTS = {"query_pre_attn_scalar": 256, "sliding_window": 4096}
ARCHITECTURES = (
    _family(
        "gemma",
        "GemmaForCausalLM",
        Derived(
            ("hidden_act", "hidden_activation"),
            _check_activation,
            lambda model: {"hidden_act": _ACTIVATION, "hidden_activation": _ACTIVATION},
        ),
        NO_WINDOWS,
        rotary_positions(has_rotary_dim=False),
        fixed={
            "normalization": "pre",
            "head_norm": False,
            "score": keras.saving.serialize_keras_object(ScaledDotProduct()),
            "soft_cap": None,
        },
    ),
    _family(
        "gemma2",
        "Gemma2ForCausalLM",
        _SCORE,
        windows(_every_second),
        rotary_positions(has_rotary_dim=False),
        fixed={"normalization": "sandwich", "head_norm": False},
        defaults={"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, **_LATER_DEFAULTS},
        required={"hidden_activation": _ACTIVATION},
    ),
    _family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        _SCORE,
        _GEMMA_3_WINDOWS,
        Derived((*ROPE_SETTINGS, _LOCAL), _read_rotary_positions, _write_rotary_positions),
        fixed={"normalization": "sandwich", "head_norm": True},
        defaults={"rope_theta": 1000000.0, _LOCAL: 10000.0, **_LATER_DEFAULTS},
        # `transformers` does not apply it.
        required={"hidden_activation": _ACTIVATION, "attn_logit_softcapping": None},
    ),
)
