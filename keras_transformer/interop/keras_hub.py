"""Conversion of KerasHub's models, whose classes are recognised by name, without importing KerasHub."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.models import BERT, GPT, T5, MaskedLanguageModel, SequenceClassifier, ViT
from keras_transformer_options.arguments import check

# Activations by the names of their functions in Keras and KerasHub, and the gated networks with them.
_ACTIVATIONS = {"gelu": "gelu", "gelu_approximate": "gelu_tanh", "relu": "relu", "silu": "silu"}
_GATED = {"gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu", "silu": "swiglu"}

# Weights of this package, and KerasHub's weights with the same values in the same order but possibly another shape.
Weights = Iterator[tuple[Any, Any]]


def from_keras_hub(model: keras.Model, **kwargs: Any) -> keras.Model:
    """Convert a backbone or task model of KerasHub, formerly KerasNLP, to a model with equal outputs.

    | KerasHub | model |
    |---|---|
    | `BertBackbone`, `RobertaBackbone` | `models.BERT` |
    | `BertMaskedLM`, `RobertaMaskedLM` | `models.MaskedLanguageModel` |
    | `BertTextClassifier`, `RobertaTextClassifier` | `models.SequenceClassifier` |
    | `GPT2Backbone`, `GPT2CausalLM` | `models.GPT` |
    | `T5Backbone`, `T5Seq2SeqLM` | `models.T5` |
    | `ViTBackbone`, `ViTImageClassifier` | `models.ViT` |

    Weights, dropout rates and the dtype policy are taken from `model`; padding, start and end ids from its
    preprocessor's tokenizer or, without one, from the published models (in GPT-2 the last id ends a text). GPT-2 has no
    padding id: pass a "padding_mask". A ViT takes the images that the preprocessor returns. A classifier returns
    logits, even if `model` applies a softmax to them. `pipelines.from_keras_hub` converts the tokenizer too.

    Args:
        model: the model, from a preset or with its own weights.
        **kwargs: constructor arguments to override, such as `dropout`, `dtype`, `pad_id` or `end_id`.

    Returns:
        The model. The weights are copies.

    Raises:
        ValueError: if the class is not one of these, or an activation, pooling, head or weight of the model is not
            supported.

    Example:
        >>> backbone = keras_hub.models.GPT2Backbone.from_preset("gpt2_base_en")  # doctest: +SKIP
        >>> model = from_keras_hub(backbone)  # doctest: +SKIP
    """
    name = class_name(model)
    if name not in _CONVERSIONS:
        raise ValueError(
            f"`model` must be of one of KerasHub's classes {sorted(_CONVERSIONS)}. "
            f"Received: a {type(model).__module__}.{type(model).__name__}"
        )
    num_layers = getattr(model, "backbone", model).num_layers
    for argument in kwargs.keys() & {"num_layers", "num_decoder_layers"}:
        given = kwargs[argument]
        check(given == num_layers, f"be that of `model`, {num_layers}", **{argument: given})
    return _CONVERSIONS[name](model, {"dtype": model.dtype_policy, **kwargs})


def class_name(model: Any) -> str | None:
    """Return the name of an object's class in KerasHub, or None for other classes."""
    return type(model).__name__ if type(model).__module__.split(".")[0] == "keras_hub" else None


def tokenizer_of(model: Any) -> Any:
    """Return the tokenizer of a task model's preprocessor, or None."""
    return getattr(getattr(model, "preprocessor", None), "tokenizer", None)


def _sizes(backbone: Any) -> dict[str, Any]:
    """Return the vocabulary, the sizes and the dropout rate of a backbone of texts, by argument."""
    return {
        "vocabulary_size": backbone.vocabulary_size,
        "num_layers": backbone.num_layers,
        "num_heads": backbone.num_heads,
        "model_dim": backbone.hidden_dim,
        "hidden_dim": backbone.intermediate_dim,
        "dropout": backbone.dropout,
    }


def _bert(model: Any, kwargs: dict[str, Any], pooler: Any = None) -> BERT:
    """Convert the backbone of a BERT or RoBERTa, with its pooler or a classifier's."""
    backbone = getattr(model, "backbone", model)
    is_bert = class_name(backbone) == "BertBackbone"
    pooler = backbone.pooled_dense if is_bert else pooler
    block = backbone.transformer_layers[0]
    encoder = BERT(
        **{
            **_sizes(backbone),
            "max_length": backbone.max_sequence_length,
            # RoBERTa has no segments: as one segment, whose embedding is zero.
            "num_segments": backbone.num_segments if is_bert else 0,
            "activation": _activation(block.activation),
            "epsilon": block.layer_norm_epsilon,
            "pooler": pooler is not None,
            "pad_id": getattr(tokenizer_of(model), "pad_token_id", 0 if is_bert else 1),
            **kwargs,
        }
    )
    positions = backbone.position_embedding if is_bert else backbone.embeddings.position_embedding
    _assign([(encoder.embedding.embedding.embeddings, backbone.token_embedding.embeddings)])
    _assign([(encoder.positions.table, positions.position_embeddings)])
    if encoder.segments is not None:
        _assign([(encoder.segments.embeddings, backbone.segment_embedding.embeddings)])
    _assign(_norm(encoder.embedding_norm, backbone.embeddings_layer_norm))
    for encoder_block, hub_block in zip(encoder.blocks, backbone.transformer_layers, strict=True):
        _assign(_block(encoder_block, encoder_block.attention, encoder_block.attention_residual, hub_block))
    if encoder.pooler is not None:
        _assign(_dense(encoder.pooler, pooler))
    return encoder


def _masked_language_model(model: Any, kwargs: dict[str, Any]) -> MaskedLanguageModel:
    head = model.masked_lm_head
    if head.activation is not keras.activations.linear:
        raise _not_expressible(model, "a head without output activation", f"activation={head.activation}")
    converted = MaskedLanguageModel(
        _bert(model, kwargs),
        head_activation=_activation(head.intermediate_activation),
        head_epsilon=head.layer_norm_epsilon,
        dtype=kwargs["dtype"],
    )
    _assign(_dense(converted.transform, head._intermediate_dense))
    _assign(_norm(converted.norm, head._intermediate_layer_norm))
    _assign([(converted.bias, head._bias)])
    return converted


def _text_classifier(model: Any, kwargs: dict[str, Any]) -> SequenceClassifier:
    _check_head(model)
    pooler = getattr(model, "pooled_dense", None)
    if pooler is not None:  # RoBERTa's, after a dropout layer
        if pooler.units != model.backbone.hidden_dim:
            raise _not_expressible(
                model, f"hidden_dim={model.backbone.hidden_dim}", f"hidden_dim={pooler.units}"
            )
        if model.dropout:
            raise _not_expressible(model, "dropout=0, as before its pooler", f"dropout={model.dropout}")
    converted = SequenceClassifier(
        _bert(model, kwargs, pooler),
        model.num_classes,
        dropout=kwargs.get("dropout", model.dropout),
        dtype=kwargs["dtype"],
    )
    _assign(_dense(converted.head, model.output_dense))
    return converted


def _gpt2(model: Any, kwargs: dict[str, Any]) -> GPT:
    backbone = getattr(model, "backbone", model)
    block = backbone.transformer_layers[0]
    converted = GPT(
        **{
            **_sizes(backbone),
            "max_length": backbone.max_sequence_length,
            "activation": _activation(block.activation),
            "epsilon": block.layer_norm_epsilon,
            "pad_id": None,
            "end_id": getattr(tokenizer_of(model), "end_token_id", backbone.vocabulary_size - 1),
            **kwargs,
        }
    )
    _assign([(converted.embedding.embedding.embeddings, backbone.token_embedding.embeddings)])
    positions: Any = converted.positions
    _assign([(positions.table, backbone.position_embedding.position_embeddings)])
    for decoder_block, hub_block in zip(converted.blocks, backbone.transformer_layers, strict=True):
        residual = decoder_block.self_attention_residual
        _assign(_block(decoder_block, decoder_block.self_attention, residual, hub_block))
    _assign(_norm(converted.final_norm, backbone.layer_norm))
    return converted


def _t5(model: Any, kwargs: dict[str, Any]) -> T5:
    backbone = getattr(model, "backbone", model)
    tokenizer = tokenizer_of(model)
    activation = _activation(backbone.activation)
    pad_id = getattr(tokenizer, "pad_token_id", 0)
    converted = T5(
        **{
            **_sizes(backbone),
            "key_dim": backbone.key_value_dim or backbone.hidden_dim // backbone.num_heads,
            "activation": _GATED[activation] if backbone.use_gated_activation else activation,
            "tied": backbone.tie_embedding_weights,
            "epsilon": backbone.layer_norm_epsilon,
            "pad_id": pad_id,
            "start_id": pad_id,
            "end_id": getattr(tokenizer, "end_token_id", 1),
            **kwargs,
        }
    )
    _assign([(converted.embedding.embedding.embeddings, backbone.token_embedding.embeddings)])
    if converted.head is not None:
        _assign([(converted.head.kernel, backbone.token_embedding.reverse_embeddings)])
    for side in ("encoder", "decoder"):
        layers = getattr(backbone, f"{side}_transformer_layers")
        # The first layer of a stack owns the biases.
        bias = layers[0].self_attention.relative_attention_bias
        _assign([(getattr(converted, f"{side}_bias").table, bias)])
        for block, hub_block in zip(getattr(converted, f"{side}_blocks"), layers, strict=True):
            _assign(_t5_block(block, hub_block))
        norm = getattr(backbone, f"{side}_layer_norm")
        _assign([(converted.final_norms[f"{side}_norm"].scale, norm.weight)])
    return converted


def _vit(model: Any, kwargs: dict[str, Any]) -> ViT:
    backbone = getattr(model, "backbone", model)
    has_head = model is not backbone
    if has_head:
        _check_head(model)
        if model.intermediate_dim is not None:
            raise _not_expressible(
                model, "intermediate_dim=None", f"intermediate_dim={model.intermediate_dim}"
            )
        if model.pooling != ("token" if backbone.use_class_token else "gap"):
            raise _not_expressible(
                model,
                "pooling='token' with a class token, or 'gap' without",
                f"pooling={model.pooling!r} with use_class_token={backbone.use_class_token}",
            )
        if model.dropout:
            raise _not_expressible(model, "dropout=0, as before its head", f"dropout={model.dropout}")
    if backbone.data_format != "channels_last":
        raise _not_expressible(model, "data_format='channels_last'", f"data_format={backbone.data_format!r}")
    *image_size, num_channels = backbone.image_shape
    converted = ViT(
        **{
            "image_size": tuple(image_size),
            "patch_size": backbone.patch_size,
            "num_classes": model.num_classes if has_head else None,
            "num_layers": backbone.num_layers,
            "num_heads": backbone.num_heads,
            "model_dim": backbone.hidden_dim,
            "hidden_dim": backbone.mlp_dim,
            "dropout": backbone.dropout_rate,
            "attention_dropout": backbone.attention_dropout,
            "pooling": "token" if backbone.use_class_token else "mean",
            "num_channels": num_channels,
            # The range that ViT does not rescale.
            "value_range": (-1.0, 1.0),
            "epsilon": backbone.layer_norm_epsilon,
            "qkv_bias": backbone.use_mha_bias,
            **kwargs,
        }
    )
    embedding = backbone.get_layer("vit_patching_and_embedding")
    _assign(_dense(converted.embedding, embedding.patch_embedding))
    table = ops.convert_to_numpy(embedding.position_embedding.embeddings)
    if backbone.use_class_token:
        _assign([(converted.class_token, embedding.class_token), (converted.class_position, table[0])])
        table = table[1:]
    _assign([(converted.positions.table, table)])
    encoder = backbone.get_layer("vit_encoder")
    for block, hub_block in zip(converted.blocks, encoder.encoder_layers, strict=True):
        _assign(_attention(block.attention, hub_block.mha))
        _assign(_norm(block.attention_residual.norm, hub_block.layer_norm_1))
        _assign(_norm(block.feed_forward_residual.norm, hub_block.layer_norm_2))
        _assign(_dense(block.feed_forward.hidden, hub_block.mlp.dense_1))
        _assign(_dense(block.feed_forward.output_projection, hub_block.mlp.dense_2))
    _assign(_norm(converted.final_norm, encoder.layer_norm))
    if has_head:
        _assign(_dense(converted.head, model.output_dense))
    return converted


def _dense(layer: Any, hub_layer: Any) -> Weights:
    """Yield the weights of a `Dense`, `EinsumDense` or `Conv2D`; without a bias in KerasHub's layer, it stays zero."""
    yield layer.kernel, hub_layer.kernel
    if hub_layer.bias is not None:
        yield layer.bias, hub_layer.bias


def _norm(layer: Any, hub_layer: Any) -> Weights:
    yield layer.gamma, hub_layer.gamma
    yield layer.beta, hub_layer.beta


def _attention(layer: Any, hub_layer: keras.layers.MultiHeadAttention) -> Weights:
    for name in ("query", "key", "value", "output"):
        yield from _dense(getattr(layer, f"{name}_projection"), getattr(hub_layer, f"{name}_dense"))


def _block(block: Any, attention: Any, residual: Any, hub_block: Any) -> Weights:
    """Yield the weights of a `TransformerEncoder`, or a `TransformerDecoder` without cross-attention."""
    yield from _attention(attention, hub_block._self_attention_layer)
    yield from _norm(residual.norm, hub_block._self_attention_layer_norm)
    yield from _dense(block.feed_forward.hidden, hub_block._feedforward_intermediate_dense)
    yield from _dense(block.feed_forward.output_projection, hub_block._feedforward_output_dense)
    yield from _norm(block.feed_forward_residual.norm, hub_block._feedforward_layer_norm)


def _t5_block(block: Any, hub_block: Any) -> Weights:
    name = "self_attention" if hub_block.is_decoder else "attention"
    pairs = [(name, hub_block.self_attention, hub_block.self_attention_layer_norm)]
    if hub_block.is_decoder:
        pairs.append(("cross_attention", hub_block.cross_attention, hub_block.cross_attention_layer_norm))
    for name, attention, norm in pairs:
        for part in ("query", "key", "value", "output"):
            projection = getattr(getattr(block, name), f"{part}_projection")
            yield projection.kernel, getattr(attention, f"{part}_projector").kernel
        yield getattr(block, f"{name}_residual").norm.scale, norm.weight
    yield block.feed_forward.hidden.kernel, hub_block.input_projector.kernel
    if hub_block.use_gated_activation:
        yield block.feed_forward.gate.kernel, hub_block.gate_projector.kernel
    yield block.feed_forward.output_projection.kernel, hub_block.output_projector.kernel
    yield block.feed_forward_residual.norm.scale, hub_block.layer_norm.weight


def _assign(weights: Iterable[tuple[Any, Any]]) -> None:
    """Copy KerasHub's weights."""
    for weight, hub_weight in weights:
        values = ops.convert_to_numpy(hub_weight)
        name = getattr(hub_weight, "path", weight.path)
        if "float" not in str(values.dtype):
            raise ValueError(f"`model` must not be quantized. Received: {name} of dtype {values.dtype}")
        if values.size != np.prod(weight.shape):
            raise ValueError(
                f"`model` must have weights of the sizes of its arguments. Received: {name} of shape {values.shape} "
                f"instead of {tuple(weight.shape)}"
            )
        weight.assign(values.astype("float32").reshape(weight.shape))


def _activation(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if name not in _ACTIVATIONS:
        raise ValueError(
            f"`model` must have an activation among {sorted(_ACTIVATIONS)}. Received: activation={name or function!r}"
        )
    return _ACTIVATIONS[name]


def _check_head(model: Any) -> None:
    """Raise a ValueError unless the head returns logits or their softmax."""
    activation = keras.activations.get(model.activation)
    if activation not in (keras.activations.linear, keras.activations.softmax):
        raise _not_expressible(
            model, "activation=None or 'softmax'", f"activation={keras.activations.serialize(activation)!r}"
        )


def _not_expressible(model: Any, expected: str, received: str) -> ValueError:
    return ValueError(f"`model`, a {type(model).__name__}, must have {expected}. Received: {received}")


_CONVERSIONS: dict[str, Callable[[Any, dict[str, Any]], keras.Model]] = {
    "BertBackbone": _bert,
    "BertMaskedLM": _masked_language_model,
    "BertTextClassifier": _text_classifier,
    "GPT2Backbone": _gpt2,
    "GPT2CausalLM": _gpt2,
    "RobertaBackbone": _bert,
    "RobertaMaskedLM": _masked_language_model,
    "RobertaTextClassifier": _text_classifier,
    "T5Backbone": _t5,
    "T5Seq2SeqLM": _t5,
    "ViTBackbone": _vit,
    "ViTImageClassifier": _vit,
}
