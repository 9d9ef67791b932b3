"""Heads of encoders, which the engine computes in NumPy after CTranslate2."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer import models, pipelines
from keras_transformer.export.to_ctranslate2.checks import activation_name, error
from keras_transformer.export.to_ctranslate2.weights import array_of
from keras_transformer.layers import Dropout
from keras_transformer_serving.ctranslate2_engines.arrays import Arrays
from keras_transformer_serving.ctranslate2_engines.heads import head_outputs

_NO_LAYERS = (keras.layers.Dropout, keras.layers.Identity, Dropout)  # when a model is run


def head_of(pipeline: Any) -> Arrays:
    """Return the head of a pipeline's model; see serving's `head_outputs`.

    Raises:
        ValueError: if there is no NumPy for a part of it.
    """
    head = _Head()
    model = pipeline.model
    encoder = encoder_of(model)
    poolings: Sequence[str] = ()
    if isinstance(pipeline, pipelines.Embedding):
        poolings = pipeline.pooling
        layers = getattr(model, "head", [])
    elif isinstance(model, models.SequenceClassifier):
        poolings, layers = model.pooling, [model.head]
    elif isinstance(model, models.TokenClassifier | models.SpanClassifier):
        layers = [*_transform(model, model.prediction_head), model.head]
    elif isinstance(model, models.MaskedLanguageModel):
        layers = [*_transform(model, True), _OutputMatrix(model)]
    else:
        raise error(
            "an encoder, or the head of a classifier, tagger, reader or masked language model", _name(model)
        )
    names = (poolings,) if isinstance(poolings, str) else poolings
    settings = {
        "model_dim": encoder.model_dim,
        "poolings": [_pooling(head, encoder, name) for name in names],
        "layers": head.layers(layers),
        "size": getattr(pipeline, "truncate_dim", None),
        "functions": {name: None if of is None else [*of] for name, of in _outputs(pipeline).items()},
    }
    is_pooled = bool(settings["poolings"])
    one = np.zeros((1, 1, encoder.model_dim), np.float32), np.ones((1, 1), bool)
    outputs = {
        name: [
            "float32",
            [*values.shape[1:]]
            if is_pooled and settings["functions"][name] is not None
            else [None, *values.shape[2:]],
        ]
        for name, values in head_outputs(Arrays(settings, head.arrays), *one).items()
    }
    inputs = {
        tensor.name: [tensor.dtype, [*tensor.shape]] for tensor in pipeline.graph_inputs(pipeline.config)
    }
    return Arrays({**settings, "inputs": inputs, "outputs": outputs}, head.arrays)


def encoder_of(model: Any) -> Any:
    """Return the encoder of a model with a head, and other models unchanged."""
    return model.encoder if isinstance(model, models.bert_heads.HeadedEncoder) else model


def _outputs(pipeline: Any) -> Mapping[str, Sequence[str] | None]:
    """Return the functions that give each output of a pipeline; None for the hidden states."""
    match pipeline:
        case pipelines.Embedding():
            embedding = ("normalized",) if pipeline.normalize else ()
            return {"last_hidden_state": None, "pooled": (), "sentence_embedding": embedding}
        case pipelines.TextClassification():
            several = pipeline.problem_type == "multi_label_classification"
            if pipeline.problem_type == "regression":
                return {"logits": ()}
            return {"logits": (), "probabilities": ("sigmoid" if several else "softmax",)}
        case pipelines.Reranking():
            return {
                "logits": (),
                "scores": ("sigmoid", "first") if pipeline.activation == "sigmoid" else ("first",),
            }
        case pipelines.QuestionAnswering():
            return {"start_logits": ("first", "masked"), "end_logits": ("second", "masked")}
        case pipelines.TokenClassification() | pipelines.ZeroShotClassification() | pipelines.FillMask():
            return {"logits": ()}
    raise error("a pipeline of texts of this package", _name(pipeline))


def _pooling(head: "_Head", encoder: Any, name: str) -> dict[str, Any]:
    """Return a pooling; the pooler is that of the first token, and a dense layer after it."""
    if name != "pooler":
        return {"pooling": name, "layers": []}
    return {"pooling": "first", "layers": head.layers(encoder.pooler_layers)}


def _transform(model: Any, has_one: bool) -> list[Any]:
    """Return the layers before the last one."""
    return [(model.transform, model.activation), model.norm] if has_one else []


def _name(value: Any) -> str:
    return f"a {type(value).__name__}"


class _OutputMatrix:
    """The tied output matrix of a masked language model, as a dense layer."""

    def __init__(self, model: Any) -> None:
        self.kernel = keras.ops.transpose(model.encoder.embedding.embedding.embeddings)
        self.bias = model.bias


class _Head:
    """Layers as settings, and their arrays."""

    def __init__(self) -> None:
        self.arrays = dict[str, np.ndarray]()
        self._count = 0

    def layers(self, layers: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the settings of layers, or of pairs of a dense layer and its activation."""
        pairs = [
            layer if isinstance(layer, tuple) else (layer, getattr(layer, "activation", None))
            for layer in layers
        ]
        return [
            self._layer(layer, activation) for layer, activation in pairs if not isinstance(layer, _NO_LAYERS)
        ]

    def _layer(self, layer: Any, activation: Any) -> dict[str, Any]:
        name = str(self._count)
        self._count += 1
        match layer:
            case keras.layers.Dense() | _OutputMatrix():
                self._add(name, kernel=layer.kernel, bias=layer.bias)
                is_linear = activation in (None, keras.activations.linear)
                return {
                    "name": name,
                    "layer": "dense",
                    "activation": "linear" if is_linear else activation_name(activation),
                }
            case keras.layers.RMSNormalization():
                self._add(name, gamma=layer.scale)
                return {"name": name, "layer": "rms", "epsilon": float(layer.epsilon)}
            case keras.layers.LayerNormalization():
                self._add(name, gamma=layer.gamma, beta=layer.beta)
                return {"name": name, "layer": "layer", "epsilon": float(layer.epsilon)}
        raise error("a head of dense layers and norms", _name(layer))

    def _add(self, name: str, **arrays: Any) -> None:
        self.arrays |= {
            f"{name}/{key}": array_of(value) for key, value in arrays.items() if value is not None
        }
