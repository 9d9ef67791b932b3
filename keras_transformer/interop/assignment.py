"""Assignment of the values of files to weights, as floats or quantized, with little memory beside them."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.memory import quick_collections
from keras_transformer.models.model import flatten_layers

INT8 = "int8"
# Of matrices; activations stay floats.
QUANTIZATION = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
Scales = Mapping[int, tuple[Any, int]]

_BLOCK = 2**22  # bytes that are assigned or quantized at a time
_VARIABLE = "ResourceVariable"  # a variable on one device


def quantize_weights(model: keras.Model) -> None:
    """Quantize the matrices of a model to int8, except those that are quantized already.

    `keras.Model.quantize` also warns of each layer without matrices.
    """
    with quick_collections():
        for layer in flatten_layers(model):
            is_matrix = isinstance(layer, keras.layers.Dense | keras.layers.Embedding)
            if is_matrix and layer.quantization_mode is None:
                layer.quantize(INT8, config=QUANTIZATION)


def scales_of(model: keras.Model) -> Scales:
    """Return the scales of the int8 matrices of a model, by the id of the matrix, and the axis that each covers."""
    scales = {}
    for layer in flatten_layers(model):
        if layer.quantization_mode != INT8:
            continue
        if isinstance(layer, keras.layers.Dense):
            scales[id(layer.kernel)] = (layer.kernel_scale, 0)
        else:
            scales[id(layer.embeddings)] = (layer.embeddings_scale, 1)
            if not getattr(layer, "tie_weights", True):
                scales[id(layer.reverse_embeddings)] = (layer.reverse_embeddings_scale, 0)
    return scales


def values_of(weight: Any, scales: Scales) -> np.ndarray:
    """Return the values of a weight in float32, dequantized if it is quantized."""
    values = ops.convert_to_numpy(ops.cast(weight, "float32"))
    if id(weight) not in scales:
        return values
    scale, axis = scales[id(weight)]
    return values / np.expand_dims(ops.convert_to_numpy(ops.cast(scale, "float32")), axis)


def check_dequantizable(model: keras.Model) -> None:
    """Raise a ValueError if a layer is quantized otherwise than `scales_of` describes, or also has an adapter."""
    for layer in flatten_layers(model):
        mode = layer.quantization_mode
        if mode not in (None, INT8) or (mode and getattr(layer, "lora_enabled", False)):
            adapted = " with an adapter" if mode == INT8 else ""
            raise ValueError(
                f"`model` must have matrices in floats, or in int8 without adapters. "
                f"Received: the layer {layer.path} in {mode}{adapted}"
            )


def assign(weight: Any, values: np.ndarray, scales: Scales) -> None:
    """Assign values to a weight, and if it is quantized the scale."""
    if id(weight) in scales:
        scale, axis = scales[id(weight)]
        values, scale_values = _quantized(values, axis, scale.dtype)
        _assign(scale, scale_values)
    _assign(weight, values)


def _quantized(values: np.ndarray, axis: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix in int8 and its scales, as `quantize` computes them from floats of a dtype, in blocks."""
    quantizer = keras.quantizers.AbsMaxQuantizer()
    rows = values.T if axis == 0 else values  # with a scale for each row
    integers, scales = np.empty(rows.shape, INT8), np.empty(len(rows), dtype)
    size = max(1, _BLOCK // (rows.shape[1] * scales.itemsize))
    for start in range(0, len(rows), size):
        block = slice(start, start + size)
        quantized, scale = quantizer(np.ascontiguousarray(rows[block], dtype), axis=1, to_numpy=True)
        integers[block] = ops.convert_to_numpy(quantized)
        scales[block] = ops.convert_to_numpy(scale)[:, 0]
    return integers.T if axis == 0 else integers, scales


def _assign(weight: Any, values: np.ndarray) -> None:
    """Assign values to a weight without a second copy: in TensorFlow in place, in JAX after its values are freed."""
    variable = weight.value
    if values.nbytes <= _BLOCK or not _is_updated_in_place(variable):
        if keras.backend.backend() == "jax":
            variable.delete()
        weight.assign(np.ascontiguousarray(values, weight.dtype))
        return
    rows = max(1, _BLOCK * len(values) // values.nbytes)
    for start in range(0, len(values), rows):
        block = np.ascontiguousarray(values[start : start + rows], weight.dtype)
        variable.scatter_nd_update(np.arange(start, start + len(block))[:, None], block)
    _share_buffer(variable)


def _is_updated_in_place(variable: Any) -> bool:
    """Return whether a part of a variable can be updated: of TensorFlow, on one device; of int8, on a CPU."""
    if keras.backend.backend() != "tensorflow" or type(variable).__name__ != _VARIABLE:
        return False
    return variable.dtype.name != INT8 or "CPU" in variable.device


def _share_buffer(variable: Any) -> None:
    """Let operations read a variable's buffer again, of which they read copies after an update of a part of it."""
    import tensorflow as tf

    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
