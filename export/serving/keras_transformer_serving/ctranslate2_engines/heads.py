"""Heads of encoders in NumPy: poolings, dense layers and norms."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.ctranslate2_engines.arrays import Arrays

_LOWEST = -65504.0  # the lowest float16, as in the poolings of models


def head_outputs(head: Arrays, hidden: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """Return what a model computes from the last hidden states of its encoder.

    Args:
        head: "poolings", each the name of one and layers after it, whose vectors are concatenated; without any, layers
            are for each token. "layers" after them; "size", of vectors that are truncated; "functions", by name of
            an output those of the result that give it, one after another, or None for the hidden states. A layer has a
            "kernel", "bias" or "gamma", "beta" among the arrays, whose names begin with that of the layer.
        hidden: the hidden states (B, T, D), 0 for padding.
        mask: booleans (B, T), False for padding.
    """
    settings = head.settings
    values = hidden
    if settings["poolings"]:
        vectors = [
            _layers(_POOLINGS[each["pooling"]](hidden, mask), each["layers"], head.arrays)
            for each in settings["poolings"]
        ]
        values = np.concatenate(vectors, axis=-1)
    values = _layers(values, settings["layers"], head.arrays)[..., : settings["size"]]
    outputs = {}
    for name, functions in settings["functions"].items():
        outputs[name] = hidden if functions is None else values
        for function in functions or ():
            outputs[name] = _FUNCTIONS[function](outputs[name], mask)
    return {name: np.ascontiguousarray(array, np.float32) for name, array in outputs.items()}


def _layers(
    values: np.ndarray, layers: Sequence[Mapping[str, Any]], arrays: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return the values (…, D) after dense layers and norms."""
    for layer in layers:
        name = layer["name"]
        if layer["layer"] == "dense":
            values = values @ arrays[f"{name}/kernel"]
            if f"{name}/bias" in arrays:
                values = values + arrays[f"{name}/bias"]
            values = _ACTIVATIONS[layer["activation"]](values)
        else:
            if layer["layer"] == "layer":
                values = values - values.mean(axis=-1, keepdims=True)
            scale = np.sqrt(np.square(values).mean(axis=-1, keepdims=True) + layer["epsilon"])
            values = values / scale * arrays[f"{name}/gamma"]
            if f"{name}/beta" in arrays:
                values = values + arrays[f"{name}/beta"]
    return values


def _weighted(weights: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """Return the sums (B, D) of hidden states with weights (B, T)."""
    sums: np.ndarray = np.einsum("bt,btd->bd", weights.astype(np.float32), hidden)
    return sums


def _mean(weights: np.ndarray, hidden: np.ndarray, root: float = 1.0) -> np.ndarray:
    total = np.maximum(weights.sum(axis=1, keepdims=True, dtype=np.float32), 1)
    mean: np.ndarray = _weighted(weights, hidden) / total**root
    return mean


def _numbers(mask: np.ndarray) -> np.ndarray:
    """Return the numbers of the tokens (B, T), from 1, 0 for padding."""
    return mask * np.arange(1, mask.shape[1] + 1)


def _last(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    numbers = _numbers(mask)
    return _weighted(mask & (numbers == numbers.max(axis=1, keepdims=True, initial=0)), hidden)


def _largest(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    largest = np.where(mask[..., None], hidden, _LOWEST).max(axis=1, initial=_LOWEST)
    return np.where(mask.any(axis=1, keepdims=True), largest, 0)


def _erf(values: np.ndarray) -> np.ndarray:
    """Return the error function to 1.5e-7 (Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26)."""
    absolute = np.abs(values)
    inverse = 1 / (1 + 0.3275911 * absolute)
    series = np.polyval([1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0], inverse)
    result: np.ndarray = np.sign(values) * (1 - series * np.exp(-np.square(absolute)))
    return result


def _sigmoid(values: np.ndarray) -> np.ndarray:
    result: np.ndarray = (1 + np.tanh(values / 2)) / 2
    return result


def _softmax(values: np.ndarray, _: np.ndarray) -> np.ndarray:
    exponentials = np.exp(values - values.max(axis=-1, keepdims=True))
    result: np.ndarray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return result


def _normalized(values: np.ndarray, _: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(values, axis=-1, keepdims=True)
    result: np.ndarray = values / np.where(norms == 0, 1, norms)
    return result


_POOLINGS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "first": lambda hidden, mask: hidden[:, 0],
    "last": _last,
    "max": _largest,
    "mean": lambda hidden, mask: _mean(mask, hidden),
    "mean_sqrt_length": lambda hidden, mask: _mean(mask, hidden, 0.5),
    "weighted_mean": lambda hidden, mask: _mean(_numbers(mask), hidden),
}
_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda values: values,
    "relu": lambda values: np.maximum(values, 0),
    "gelu": lambda values: values * (1 + _erf(values / math.sqrt(2))) / 2,
    "gelu_tanh": lambda values: (
        values * _sigmoid(math.sqrt(8 / math.pi) * (values + 0.044715 * np.power(values, 3)))
    ),
    "silu": lambda values: values * _sigmoid(values),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
}
ACTIVATIONS = frozenset(_ACTIVATIONS)
"""The names of the activations."""
_FUNCTIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "normalized": _normalized,
    "sigmoid": lambda values, mask: _sigmoid(values),
    "softmax": _softmax,
    "first": lambda values, mask: values[..., 0],
    "second": lambda values, mask: values[..., 1],
    "masked": lambda values, mask: np.where(mask, values, -1e9),
}
