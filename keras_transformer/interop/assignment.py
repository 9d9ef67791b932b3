"""Assignment of the values of files to weights, as floats or quantized, with little memory beside them."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.memory import quick_collections
from keras_transformer.models.model import flatten_layers

INT8, INT4 = "int8", "int4"
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


def in_floats(model: keras.Model) -> keras.Model:
    """Return a copy of a model whose int4 matrices are dequantized, or the model itself if it has none.

    Raises:
        ValueError: if a layer is quantized in another mode than int8 or int4, or also has an adapter.
    """
    layers, scales = [model, *flatten_layers(model)], scales_of(model)
    for layer in layers:
        mode = layer.quantization_mode
        if mode not in (None, INT8, INT4) or (mode and getattr(layer, "lora_enabled", False)):
            adapted = " with an adapter" if mode in (INT8, INT4) else ""
            raise ValueError(
                f"`model` must have matrices in floats, or in int8 or int4 without adapters. "
                f"Received: the layer {layer.path} in {mode}{adapted}"
            )
    if all(layer.quantization_mode != INT4 for layer in layers):
        return model
    copy = type(model).from_config(_without_quantization(model.get_config()))
    for layer, other in zip(layers, [copy, *flatten_layers(copy)], strict=True):
        if layer.quantization_mode == INT4:
            for name, values in _of_int4(layer).items():
                getattr(other, name).assign(values)
        elif layer.quantization_mode == INT8:
            for name in ("kernel", "embeddings", "reverse_embeddings", "bias"):
                if getattr(other, name, None) is not None:
                    getattr(other, name).assign(values_of(getattr(layer, name), scales))
        else:
            for weight, target in zip(_own_weights(layer), _own_weights(other), strict=True):
                target.assign(weight)
    return copy


def _of_int4(layer: Any) -> dict[str, np.ndarray]:
    """Return the matrices of an int4 layer, dequantized, and its bias, by name."""
    if isinstance(layer, keras.layers.Dense):
        bias = {} if layer.bias is None else {"bias": ops.convert_to_numpy(layer.bias)}
        return {"kernel": _of_groups(layer, "kernel", layer.kernel, 0), **bias}
    found = {"embeddings": _of_groups(layer, "embeddings", layer.embeddings, 1)}
    if not getattr(layer, "tie_weights", True):
        packed = layer.reverse_embeddings
        unpacked = keras.quantizers.unpack_int4(packed, layer.output_dim, axis=0)
        found["reverse_embeddings"] = _of_groups(layer, "reverse_embeddings", unpacked, 0)
    return found


def _of_groups(layer: Any, name: str, integers: Any, axis: int) -> np.ndarray:
    """Return integers times their scales, which cover the axis, or groups of it with a zero point each."""
    values, scale = (
        ops.convert_to_numpy(each).astype("float32") for each in (integers, getattr(layer, f"{name}_scale"))
    )
    zero = getattr(layer, f"{name}_zero", None)
    if zero is None:
        return values / np.expand_dims(scale, axis)
    groups = ops.convert_to_numpy(layer.g_idx).astype("int32")
    zeros = ops.convert_to_numpy(zero).astype("float32")
    return (values - np.take(zeros, groups, axis)) * np.take(scale, groups, axis)


def _without_quantization(config: Any) -> Any:
    """Return a config of a model, in which those of its parts stand, without their "quantization"."""
    if isinstance(config, list | tuple):
        return type(config)(map(_without_quantization, config))
    if not isinstance(config, dict):
        return config
    return {name: _without_quantization(value) for name, value in config.items() if name != "quantization"}


def _own_weights(layer: Any) -> list[Any]:
    """Return the weights of a layer without those of its sublayers."""
    others = {id(weight) for each in flatten_layers(layer) for weight in each.weights}
    return [weight for weight in layer.weights if id(weight) not in others]


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
