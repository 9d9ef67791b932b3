"""The Vision Transformer."""

import dataclasses
import math
from typing import Any

import keras
import numpy as np

from keras_transformer.interop.architecture import Architecture, Parameter, Parameters, dense, norm
from keras_transformer.interop.bert import EncoderNames, block_parameters, complete_classifier
from keras_transformer.models import ViT
from keras_transformer.relations import Full

_NAMES = EncoderNames(
    prefix="vit.",
    query="attention.attention.query",
    key="attention.attention.key",
    value="attention.attention.value",
    attention_norm="layernorm_before",
    norm="layernorm_after",
)


@dataclasses.dataclass(frozen=True)
class _Patches(Parameter):
    """The kernel (D, channels, height, width) of a convolution, stored as a matrix (height · width · channels, D)."""

    @property
    def file_shape(self) -> tuple[int, ...]:
        return self.shape

    def arrays(self, values: np.ndarray) -> list[np.ndarray]:
        return [values.transpose(2, 3, 1, 0).reshape(self.weights[0].shape)]

    def joined(self, arrays: list[np.ndarray]) -> np.ndarray:
        features, channels, height, width = self.shape
        kernel = arrays[0].reshape(height, width, channels, features)
        return np.ascontiguousarray(kernel.transpose(3, 2, 0, 1))


@dataclasses.dataclass(frozen=True)
class _Positions(Parameter):
    """The position embeddings of class token (D,) and patches (height, width, D), as one table (1, 1 + patches, D)."""

    @property
    def file_shape(self) -> tuple[int, ...]:
        return self.shape

    def arrays(self, values: np.ndarray) -> list[np.ndarray]:
        return [values[0, 0], values[0, 1:].reshape(self.weights[1].shape)]

    def joined(self, arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([values.reshape(-1, self.shape[-1]) for values in arrays])[None]


def _parameters(model: ViT) -> Parameters:
    dim, patches = model.model_dim, math.prod(model.grid_shape)
    yield "vit.embeddings.cls_token", Parameter((model.class_token,), shape=(1, 1, dim))
    table = (model.class_position, model.positions.table)
    yield "vit.embeddings.position_embeddings", _Positions(table, shape=(1, 1 + patches, dim))
    projection = "vit.embeddings.patch_embeddings.projection"
    kernel_shape = (dim, model.num_channels, *model.patch_size)
    yield f"{projection}.weight", _Patches((model.embedding.kernel,), shape=kernel_shape)
    yield f"{projection}.bias", Parameter((model.embedding.bias,))
    for i, block in enumerate(model.blocks):
        yield from block_parameters(f"vit.encoder.layer.{i}", _NAMES, block)
    yield from norm("vit.layernorm", model.final_norm)
    yield from dense("classifier", model.head)


def _describe(model: ViT) -> dict[str, Any]:
    config = model.get_config()
    return {**config, **{name: _size(config[name]) for name in ("image_size", "patch_size")}}


def _size(pair: list[int]) -> int | list[int]:
    """Return one number if height and width are equal, otherwise both."""
    return pair[0] if pair[0] == pair[1] else pair


def _complete(config: dict[str, Any]) -> dict[str, Any]:
    """Normalize sizes as `_describe` does, and add the number of labels and the problem type."""
    sizes = {
        name: _size(config[name])
        for name in ("image_size", "patch_size")
        if isinstance(config.get(name), list) and len(config[name]) == 2
    }
    return complete_classifier({**config, **sizes})


VIT = Architecture(
    model_type="vit",
    class_name="ViTForImageClassification",
    model=ViT,
    settings={
        "image_size": "image_size",
        "patch_size": "patch_size",
        "num_channels": "num_channels",
        "num_classes": "num_labels",
        "problem_type": "problem_type",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "model_dim": "hidden_size",
        "hidden_dim": "intermediate_size",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "qkv_bias": "qkv_bias",
        "activation": "hidden_act",
        "epsilon": "layer_norm_eps",
    },
    # Images are scaled to [−1, 1], as by ViT's image processor.
    fixed={
        "pooling": "token",
        "positions": "learned",
        "window": None,
        "relation": keras.saving.serialize_keras_object(Full()),
    },
    defaults={
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-12,
        "num_channels": 3,
        "qkv_bias": True,
    },
    required={},
    parameters=_parameters,
    complete=_complete,
    base=_NAMES.prefix,
    describe=_describe,
)
