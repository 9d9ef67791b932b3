"""ModernBERT with and without heads."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.interop.architecture import Architecture, Parameter, Parameters, dense
from keras_transformer.interop.bert import (
    complete_classifier,
    count_labels,
    describe_with_head,
    make_with_head,
)
from keras_transformer.models import (
    MaskedLanguageModel,
    ModernBERT,
    SequenceClassifier,
    SpanClassifier,
    TokenClassifier,
)

_BASE = "model."


def _norm(name: str, layer: Any) -> Parameters:
    yield f"{name}.weight", Parameter((layer.gamma,))


def _encoder(prefix: str, encoder: ModernBERT) -> Parameters:
    words = f"{prefix}embeddings.tok_embeddings.weight"
    yield words, Parameter((encoder.embedding.embedding.embeddings,))
    yield from _norm(f"{prefix}embeddings.norm", encoder.embedding_norm)
    for i, block in enumerate(encoder.blocks):
        name, attention = f"{prefix}layers.{i}", block.attention
        if i:
            yield from _norm(f"{name}.attn_norm", block.attention_residual.norm)
        parts = (getattr(attention, f"{part}_projection") for part in ("query", "key", "value"))
        yield from dense(f"{name}.attn.Wqkv", *parts)
        yield from dense(f"{name}.attn.Wo", attention.output_projection)
        yield from _norm(f"{name}.mlp_norm", block.feed_forward_residual.norm)
        yield from dense(f"{name}.mlp.Wi", block.feed_forward.hidden, block.feed_forward.gate)
        yield from dense(f"{name}.mlp.Wo", block.feed_forward.output_projection)
    yield from _norm(f"{prefix}final_norm", encoder.final_norm)


def _headed(transform: Callable[[Any], tuple[Any, Any]], model: Any) -> Parameters:
    """Yield the parameters of a model with a head, whose dense layer and norm `transform` returns."""
    yield from _encoder(_BASE, model.encoder)
    layer, norm = transform(model)
    yield from dense("head.dense", layer)
    yield from _norm("head.norm", norm)
    if isinstance(model, MaskedLanguageModel):
        yield "decoder.bias", Parameter((model.bias,))
    else:
        yield from dense("classifier", model.head)


def _of_model(model: Any) -> tuple[Any, Any]:
    return model.transform, model.norm


def _of_pooler(model: Any) -> tuple[Any, Any]:
    return model.encoder.pooler, model.encoder.pooler_norm


# The argument for the activation of the head of each model.
_HEADS = {
    MaskedLanguageModel: "head_activation",
    SequenceClassifier: "pooler_activation",
    TokenClassifier: "head_activation",
    SpanClassifier: "head_activation",
}
_POOLINGS = {"cls": "first", "mean": "mean"}


def _complete(labels: Callable[[dict[str, Any]], dict[str, Any]], config: dict[str, Any]) -> dict[str, Any]:
    """Add what newer files say in `layer_types` and `rope_parameters`."""
    config = labels(config)
    rope, layer_types = config.get("rope_parameters") or {}, config.get("layer_types")
    completed = {
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        **config,
    }
    for name, kind in (("global_rope_theta", "full_attention"), ("local_rope_theta", "sliding_attention")):
        if (rope.get(kind) or {}).get("rope_type", "default") != "default":
            raise ValueError(
                f"`config.json` of a modernbert must have rope_type='default'. Received: rope_parameters={rope!r}"
            )
        completed[name] = (rope.get(kind) or {}).get("rope_theta", completed[name])
    if layer_types is not None:
        every = next(
            (i for i in range(1, len(layer_types)) if layer_types[i] == "full_attention"), len(layer_types)
        )
        if layer_types != [
            "sliding_attention" if i % every else "full_attention" for i in range(len(layer_types))
        ]:
            raise ValueError(
                "`config.json` of a modernbert must have layer_types that repeat, beginning with full_attention. "
                f"Received: layer_types={layer_types!r}"
            )
        completed["global_attn_every_n_layers"] = every
    return completed


def _make(model: type[keras.Model], **arguments: Any) -> keras.Model:
    """Create an encoder and the model around it, with the setting of `transformers` as `pooler_input`."""
    pooler_input = _POOLINGS[arguments.pop("pooler_input")]
    return make_with_head(ModernBERT, model, **arguments, pooler_input=pooler_input)


def _describe(model: Any) -> dict[str, Any]:
    described = describe_with_head(model)
    settings = {pooling: setting for setting, pooling in _POOLINGS.items()}
    return {**described, "pooler_input": settings[described["pooler_input"]]}


def _architecture(
    suffix: str, model: type[keras.Model], parameters: Callable[[Any], Parameters], **fixed: Any
) -> Architecture:
    is_classifier = model is SequenceClassifier
    has_labels = model in (SequenceClassifier, TokenClassifier)
    labels = complete_classifier if is_classifier else count_labels if has_labels else dict
    return Architecture(
        model_type="modernbert",
        class_name=f"ModernBert{suffix}",
        model=model,
        settings={
            "vocabulary_size": "vocab_size",
            "num_layers": "num_hidden_layers",
            "num_heads": "num_attention_heads",
            "model_dim": "hidden_size",
            "hidden_dim": "intermediate_size",
            "max_length": "max_position_embeddings",
            "window": "local_attention",
            "global_every": "global_attn_every_n_layers",
            "dropout": ("embedding_dropout", "attention_dropout", "mlp_dropout"),
            "activation": "hidden_activation",
            "max_wavelength": "global_rope_theta",
            "local_max_wavelength": "local_rope_theta",
            "epsilon": "norm_eps",
            "pooler_input": "classifier_pooling",
            "pad_id": "pad_token_id",
            **({"num_classes": "num_labels"} if has_labels else {}),
            **({"problem_type": "problem_type"} if is_classifier else {}),
            **({_HEADS[model]: "classifier_activation"} if model in _HEADS else {}),
        },
        fixed={"pooler": is_classifier, **({} if is_classifier else {"pooler_activation": "gelu"}), **fixed},
        defaults={
            **dict.fromkeys(("embedding_dropout", "attention_dropout", "mlp_dropout"), 0.0),
            "hidden_activation": "gelu",
            "norm_eps": 1e-5,
            "local_attention": 128,
            "max_position_embeddings": 8192,
            "classifier_pooling": "cls",
            "classifier_activation": "gelu",
        },
        required={
            "attention_bias": False,
            "mlp_bias": False,
            "norm_bias": False,
            "classifier_bias": False,
            "decoder_bias": True,
            "tie_word_embeddings": True,
        },
        parameters=parameters,
        ignored=r"rotary_emb\.inv_freq$",
        tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"}
        if model is MaskedLanguageModel
        else {},
        activations={"gelu": "geglu", "silu": "swiglu", "relu": "reglu"},
        complete=functools.partial(_complete, labels),
        make=functools.partial(_make, model),
        describe=_describe,
        encoder=ModernBERT,
        base=_BASE,
        has_head=model is not ModernBERT,
    )


ARCHITECTURES = (
    _architecture("Model", ModernBERT, functools.partial(_encoder, "")),
    _architecture(
        "ForMaskedLM",
        MaskedLanguageModel,
        functools.partial(_headed, _of_model),
        head_epsilon=None,
    ),
    _architecture(
        "ForSequenceClassification",
        SequenceClassifier,
        functools.partial(_headed, _of_pooler),
        pooling="pooler",
    ),
    _architecture(
        "ForTokenClassification", TokenClassifier, functools.partial(_headed, _of_model), prediction_head=True
    ),
    _architecture(
        "ForQuestionAnswering", SpanClassifier, functools.partial(_headed, _of_model), prediction_head=True
    ),
)
