"""Modules of `sentence-transformers` after the transformer, as poolings and layers, read and written."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_transformer.interop.architecture import Parameter, Parameters, dense, norm
from keras_transformer.interop.hub import CONFIG
from keras_transformer.interop.tensors import SAFETENSORS, save_tensors, tensors_of
from keras_transformer_options.arguments import is_integer
from keras_transformer_serving import files

_INPUTS = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
_POOLINGS = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_length",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
# The settings of older versions, in the order in which the pooled vectors are concatenated.
_OLDER_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
SIGMOID = "torch.nn.modules.activation.Sigmoid"
ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "linear",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
    SIGMOID: "sigmoid",
}
_LAYER_NORM_EPSILON = 1e-5


def read_settings(
    path: pathlib.Path, expected: Mapping[str, Any], *read: str, optional: bool = False
) -> dict[str, Any]:
    """Read the settings of a file, and check those that the caller does not read.

    Args:
        path: the file.
        expected: the supported values of settings.
        *read: the names of settings that the caller reads.
        optional: whether the file may be missing.

    Raises:
        FileNotFoundError: if the file is missing and not optional.
        ValueError: if a setting has an unsupported value, or an unknown setting is not empty.
    """
    config = {} if optional and not path.is_file() else files.read_json(path)
    if not isinstance(config, dict):
        raise ValueError(f"`{path}` must be a dictionary. Received: {config!r}")
    for name in config.keys() & expected.keys():
        if config[name] != expected[name]:
            raise ValueError(
                f"`{path}` must have {name}={expected[name]!r}. Received: {name}={config[name]!r}"
            )
    for name, value in config.items():
        if value and name not in {*expected, *read}:
            raise ValueError(
                f"`{path}` must only have the settings {sorted([*expected, *read])}, or empty ones. "
                f"Received: {name}={value!r}"
            )
    return config


def read_poolings(folder: pathlib.Path, encoder: Any) -> tuple[str, ...]:
    """Return the names of the poolings whose vectors are concatenated."""
    path = folder / CONFIG
    sizes = dict.fromkeys(("embedding_dimension", "word_embedding_dimension"), encoder.model_dim)
    config = read_settings(path, {**sizes, "include_prompt": True}, "pooling_mode", *_OLDER_POOLINGS)
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [name for setting, name in _OLDER_POOLINGS.items() if config.get(setting)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(mode in list(_POOLINGS) for mode in modes):
        raise ValueError(
            f"`{path}` must have a pooling_mode among {list(_POOLINGS)}, or several. Received: pooling_mode={modes!r}"
        )
    return tuple(_POOLINGS[name] for name in modes)


def _dense(folder: pathlib.Path, size: int) -> keras.layers.Dense:
    """Load a module Dense, for inputs (B, size)."""
    path = folder / CONFIG
    config = read_settings(
        path, {**_INPUTS, "in_features": size}, "out_features", "bias", "activation_function"
    )
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"`{path}` must have an activation_function among {list(ACTIVATIONS)}. "
            f"Received: activation_function={activation!r}"
        )
    if not is_integer(config.get("out_features")) or config["out_features"] < 1:
        raise ValueError(
            f"`{path}` must have a positive integer as out_features. "
            f"Received: out_features={config.get('out_features')!r}"
        )
    layer = keras.layers.Dense(
        config["out_features"],
        ACTIVATIONS[activation],
        use_bias=bool(config.get("bias", True)),
        dtype="float32",
    )
    layer.build((None, size))
    return _with_weights(folder, layer, dense("linear", layer))


def _layer_norm(folder: pathlib.Path, size: int) -> keras.layers.LayerNormalization:
    """Load a module LayerNorm, for inputs (B, size)."""
    read_settings(folder / CONFIG, {"dimension": size})
    layer = keras.layers.LayerNormalization(epsilon=_LAYER_NORM_EPSILON, dtype="float32")
    layer.build((None, size))
    return _with_weights(folder, layer, norm("norm", layer))


def _unit_norm(folder: pathlib.Path, size: int) -> keras.layers.UnitNormalization:
    """Load a module Normalize that is followed by other layers."""
    read_settings(folder / CONFIG, _INPUTS, optional=True)  # older versions do not write it
    return keras.layers.UnitNormalization(dtype="float32")


def _with_weights(folder: pathlib.Path, layer: Any, parameters: Parameters) -> Any:
    """Read the weights of a layer, and return it."""
    expected = dict(parameters)
    tensors = tensors_of(folder)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != (needed := {name: parameter.file_shape for name, parameter in expected.items()}):
        raise ValueError(f"`{folder}` must have weights of the shapes {needed}. Received: {shapes}")
    for name, parameter in expected.items():
        parameter.read(tensors[name].read())
    return layer


def activation_path(name: str) -> str:
    """Return the path of an activation in PyTorch."""
    for path, known in ACTIVATIONS.items():
        if known == name:
            return path
    raise ValueError(
        f"`activation` must be one of {list(ACTIVATIONS.values())} in sentence-transformers. "
        f"Received: activation={name!r}"
    )


def write_pooling(folder: pathlib.Path, model_dim: int, pooling: str | tuple[str, ...]) -> None:
    """Write the module Pooling, in the settings of older versions if their order allows."""
    written = {ours: theirs for theirs, ours in _POOLINGS.items()}
    names = [pooling] if isinstance(pooling, str) else [*pooling]
    if unknown := [name for name in names if name not in written]:
        raise ValueError(
            f"`pooling` must be one of {list(written)} in sentence-transformers. Received: pooling={unknown[0]!r}"
        )
    modes = [written[name] for name in names]
    older = {setting: mode in modes for setting, mode in _OLDER_POOLINGS.items()}
    in_order = [mode for mode in _OLDER_POOLINGS.values() if mode in modes] == modes
    settings = (
        {"word_embedding_dimension": model_dim, **older}
        if in_order
        else {"pooling_mode": modes, "embedding_dimension": model_dim}
    )
    _write_config(folder, {**settings, "include_prompt": True})


def write_layer(folder: pathlib.Path, number: int, layer: Any, size: int) -> tuple[str, str]:
    """Write the module of a layer with inputs (B, size); return its folder below `folder` and its name."""
    name, config, parameters = _module_of(layer, size)
    path = f"{number}_{name}"
    _write_config(folder / path, config)
    if parameters:
        tensors = {key: parameter.write() for key, parameter in parameters.items()}
        save_tensors(tensors, folder / path / SAFETENSORS)
    return path, name


def _module_of(layer: Any, size: int) -> tuple[str, dict[str, Any], dict[str, Parameter]]:
    """Return the name, the settings and the parameters of the module of a layer with inputs of a size."""
    match layer:
        case keras.layers.Dense():
            config = {
                "in_features": size,
                "out_features": layer.units,
                "bias": layer.use_bias,
                "activation_function": activation_path(keras.activations.serialize(layer.activation)),
            }
            return "Dense", config, dict(dense("linear", layer))
        case keras.layers.LayerNormalization() if layer.epsilon == _LAYER_NORM_EPSILON:
            return "LayerNorm", {"dimension": size}, dict(norm("norm", layer))
        case keras.layers.UnitNormalization():
            return "Normalize", {}, {}
    raise ValueError(
        f"`head` must have layers that are modules of sentence-transformers: {', '.join(LAYERS)}. "
        f"Received: a {type(layer).__name__}"
    )


def _write_config(folder: pathlib.Path, config: Mapping[str, Any]) -> None:
    folder.mkdir()
    files.write_json(folder / CONFIG, config)


LAYERS: dict[str, Callable[[pathlib.Path, int], Any]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Normalize": _unit_norm,
}
