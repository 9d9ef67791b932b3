"""Quantized weights of `transformers`: dequantized where their scales are beside them, otherwise refused by name."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from keras_transformer.interop.tensors import StoredTensor

SETTING = "quantization_config"
_WEIGHT = "weight"
_FP8 = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
_DETAILS = ("format", "load_in_4bit", "bits", "scale_fmt")  # of a configuration, for errors
Quantization = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class _Method:
    """A method of quantization whose weights are an array and a scale.

    Attributes:
        scale: the name of the scale, beside `weight`.
        dtypes: the types of a weight.
        is_supported: a function of a `quantization_config`: whether it is this form of the method.
        unused: the names of other tensors beside it, which describe activations or the layout in memory.
        divisor: the number by which the scale is divided.
    """

    scale: str
    dtypes: tuple[Any, ...]
    is_supported: Callable[[Quantization], bool]
    unused: tuple[str, ...] = ()
    divisor: float = 1.0


_METHODS = {
    "fp8": _Method(
        "weight_scale_inv",
        _FP8,
        lambda config: config.get("scale_fmt", "float") == "float",
        ("activation_scale", "input_scale"),
    ),
    "fbgemm_fp8": _Method("weight_scale", _FP8, lambda config: True, ("input_scale_ub",)),
    "compressed-tensors": _Method(
        "weight_scale",
        (*_FP8, np.int8),
        lambda config: config.get("format") in ("float-quantized", "int-quantized", "naive-quantized"),
        ("input_scale",),
    ),
    "bitsandbytes": _Method(
        "SCB", (np.int8,), lambda config: bool(config.get("load_in_8bit")), ("weight_format",), 127.0
    ),
}


def dequantized(
    path: Any, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Return the tensors of a folder with quantized ones as float32, each computed when it is read.

    Args:
        path: the path of `config.json`, for errors.
        config: its content.
        tensors: the tensors by name.

    Raises:
        ValueError: if `quantization_config` names a method whose weights have no scale beside them, or one is missing.
    """
    quantization = config.get(SETTING)
    if not quantization:
        return dict(tensors)
    name = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    name = "bitsandbytes" if name is None and quantization.get("load_in_8bit") else name  # older files
    method = _METHODS.get(name) if isinstance(name, str) else None
    if method is None or not method.is_supported(quantization):
        details = {
            key: quantization[key]
            for key in _DETAILS
            if isinstance(quantization, dict) and key in quantization
        }
        raise ValueError(
            f"`{path}` must have no {SETTING}, or one with a scale beside each weight: quant_method among "
            f"{sorted(_METHODS)} with 8 bits. Received: "
            + ", ".join(f"{key}={value!r}" for key, value in {"quant_method": name, **details}.items())
        )
    found = {}
    for key, tensor in tensors.items():
        module, _, last = key.rpartition(".")
        scale = tensors.get(f"{module}.{method.scale}")
        if last == _WEIGHT and tensor.dtype in method.dtypes:
            if scale is None:
                raise ValueError(
                    f"`{path.parent}` must have a scale {module}.{method.scale}, as its {SETTING} says. Received: none"
                )
            found[key] = _dequantized(path, key, tensor, scale, method, quantization.get("weight_block_size"))
        elif last not in (method.scale, *method.unused):
            found[key] = tensor
    return found


def _dequantized(
    path: Any, key: str, tensor: StoredTensor, scale: StoredTensor, method: _Method, block: Any
) -> StoredTensor:
    """Return W · s, with a scale for the matrix, for each row, or for each block of rows and columns."""
    rows, columns = tensor.shape
    grid = (
        (1, 1)
        if block is None
        else tuple(-(-size // of) for size, of in zip(tensor.shape, block, strict=True))
    )
    shapes = {(): (1, 1), (1,): (1, 1), (rows,): (rows, 1), (rows, 1): (rows, 1), grid: grid}
    if scale.shape not in shapes:
        raise ValueError(
            f"`{path.parent}` must have a scale of a shape among {[*shapes]} for {key} of shape {tensor.shape}. "
            f"Received: {method.scale} of shape {scale.shape}"
        )

    def read() -> np.ndarray:
        scales = np.asarray(scale.read(), "float32").reshape(shapes[scale.shape]) / np.float32(method.divisor)
        if block is not None and scale.shape == grid:
            scales = scales.repeat(block[0], 0)[:rows].repeat(block[1], 1)[:, :columns]
        return np.asarray(tensor.read(), "float32") * scales

    return StoredTensor(tensor.shape, np.dtype("float32"), read)
