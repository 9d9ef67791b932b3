"""Architectures of `transformers`: mappings from their settings and parameter names to Keras models."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import keras
import numpy as np

from keras_transformer.configuration import serialized
from keras_transformer.interop.assignment import Scales, assign, values_of
from keras_transformer.relations import Causal, Full
from keras_transformer_options.arguments import is_integer, is_number

# Activations by their names in `transformers`, which has several names for the tanh approximation of GELU.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

# Arguments that default to the value of another argument. If a config has equal values for both, overriding the other
# argument overrides both.
FOLLOWING = {
    "attention_dropout": "dropout",
    "embedding_dropout": "dropout",
    "head_activation": "activation",
    "hidden_dropout": "dropout",
    "num_decoder_layers": "num_layers",
    "num_decoder_heads": "num_heads",
    "decoder_hidden_dim": "hidden_dim",
}
# Arguments with the name of an activation, of a head; those of `activation` depend on the architecture.
_HEAD_ACTIVATIONS = ("head_activation", "pooler_activation")
# The types of arguments in `config.json`; all others are integers.
_FLOATS = {
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "hidden_dropout",
    "epsilon",
    "max_wavelength",
    "local_max_wavelength",
}
_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_FLOATS, ("a number", lambda value: is_number(value) and math.isfinite(value))),
    "pooler_input": ("'cls' or 'mean'", lambda value: value in ("cls", "mean")),
    "num_segments": ("a positive integer", lambda value: is_integer(value) and value > 0),
    **dict.fromkeys(
        ("activation", *_HEAD_ACTIVATIONS, "problem_type"), ("a string", lambda value: isinstance(value, str))
    ),
    **dict.fromkeys(
        ("tied", "qkv_bias", "scale_embedding"), ("a boolean", lambda value: isinstance(value, bool))
    ),
    **dict.fromkeys(
        ("image_size", "patch_size"),
        (
            "an integer or two",
            lambda value: all(map(is_integer, _listed(value))) and len(_listed(value)) <= 2,
        ),
    ),
}
# The relations of encoder–decoders of `transformers`, for `Architecture.fixed`.
ENCODER_DECODER_RELATIONS = {
    "encoder_relation": keras.saving.serialize_keras_object(Full()),
    "decoder_relation": keras.saving.serialize_keras_object(Causal()),
}
_INTEGER: tuple[str, Callable[[Any], bool]] = ("an integer", lambda value: is_integer(value))


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A tensor in a weights file, and the Keras weights that it contains.

    Attributes:
        weights: one weight, or several concatenated on the last axis (fused query, key and value projections).
        transposed: whether the axes are reversed in the file, as in PyTorch's `Linear`.
        shape: the shape of the tensor in the file, if its axes differ from the weight's.
        unused_rows: the number of unused rows before the weight's rows.
        added: a number that the model of `transformers` adds to the tensor.
    """

    weights: tuple[Any, ...]
    transposed: bool = False
    shape: Any = None
    unused_rows: int = 0
    added: float = 0.0

    @property
    def file_shape(self) -> tuple[int, ...]:
        """The expected shape of the tensor in the file."""
        first = tuple(self.weights[0].shape)
        shape = (*first[:-1], sum(weight.shape[-1] for weight in self.weights))
        shape = (shape[0] + self.unused_rows, *shape[1:])
        return self.shape or (shape[::-1] if self.transposed else shape)

    def read(self, values: np.ndarray, scales: Scales = MappingProxyType({})) -> None:
        """Assign the values of a tensor in a file to the weights.

        Args:
            values: the values.
            scales: the scales of quantized weights, see `assignment.scales_of`.
        """
        for weight, array in zip(self.weights, self.arrays(values), strict=True):
            assign(weight, array, scales)

    def arrays(self, values: np.ndarray) -> list[np.ndarray]:
        """Return the values of each weight in a tensor in a file."""
        ends = np.cumsum([weight.shape[-1] for weight in self.weights])[:-1]
        values = values[self.unused_rows :]
        if self.shape is not None:
            values = values.reshape(self.weights[0].shape)
        if self.added:
            values = np.asarray(values, "float32") + self.added
        return np.split(values.T if self.transposed else values, ends, axis=-1)

    def write(self, scales: Scales = MappingProxyType({})) -> np.ndarray:
        """Return the weights as the float32 values of a tensor in a file.

        Args:
            scales: the scales of quantized weights, see `assignment.scales_of`.
        """
        return self.joined([values_of(weight, scales) for weight in self.weights])

    def joined(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Return the values of the weights as one tensor in a file, the inverse of `arrays`."""
        joined = np.concatenate(arrays, axis=-1)
        if self.added:
            joined = joined - self.added
        if self.unused_rows:
            joined = np.concatenate([np.zeros((self.unused_rows, *joined.shape[1:]), joined.dtype), joined])
        return np.ascontiguousarray(joined.T if self.transposed else joined).reshape(self.file_shape)


Parameters = Iterator[tuple[str, Parameter]]


@dataclasses.dataclass(frozen=True)
class Derived:
    """Constructor's arguments that are computed from several settings of `config.json`, and the inverse.

    Attributes:
        settings: the names of the settings.
        read: a function of a `config.json` that returns the arguments; it raises a ValueError for settings that the
            model does not support.
        write: a function of a model that returns the settings. They need not restore all arguments:
            `Architecture.config` raises an error for arguments that differ.
    """

    settings: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    write: Callable[[Any], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The mapping between a model class of `transformers` and a Keras model.

    Attributes:
        model_type: the `model_type` of `config.json`.
        class_name: the name of the class in `transformers`.
        model: the Keras model class.
        settings: a mapping from the constructor's arguments to their names in `config.json`; if an argument has several
            names, their values must be equal.
        fixed: arguments with the same value for all models of the architecture, as in `get_config`.
        defaults: default values of settings in `config.json`.
        required: settings that must have these values if `config.json` or `defaults` has them; null is False.
        parameters: a function of a model that yields the name and the `Parameter` of each tensor.
        base: the prefix that classes with a head add to the names of the parameters of the model without one. Files
            may lack it.
        has_head: whether the class has a head; one without reads files of classes with one.
        ignored: a regular expression for names in files that are not parameters.
        tied: a mapping from optional names in files to the parameters that they must equal; a parameter that a file
            omits is read from the parameter to which it is tied.
        activations: a mapping from activation names in `transformers` to names in this package.
        complete: a function that adds derived settings to a `config.json`.
        optional: settings of `config.json` that may be absent or null; both mean None.
        make: a function that creates a model from arguments, by default `model`.
        present: a mapping from boolean arguments to the parameter names whose presence in a file sets them.
        describe: a function that returns the constructor's arguments of a model.
        rename: a function that maps legacy parameter names to current ones.
        offsets: the differences between settings and arguments, by argument.
        encoder: the class of the encoder of a model with a head, or of the model itself; None for any.
        derived: arguments that are computed from several settings.
        is_default: whether it is the architecture of folders whose `config.json` names no other of the model type.
    """

    model_type: str
    class_name: str
    model: type[keras.Model]
    settings: Mapping[str, str | tuple[str, ...]]
    fixed: Mapping[str, Any]
    defaults: Mapping[str, Any]
    required: Mapping[str, Any]
    parameters: Callable[[Any], Parameters]
    base: str = ""
    has_head: bool = True
    ignored: str = r"(?!)"
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    activations: Mapping[str, str] = dataclasses.field(default_factory=lambda: ACTIVATIONS)
    complete: Callable[[dict[str, Any]], dict[str, Any]] = dict
    optional: frozenset[str] = frozenset()
    make: Callable[..., Any] | None = None
    present: Mapping[str, str] = dataclasses.field(default_factory=dict)
    describe: Callable[[Any], dict[str, Any]] = lambda model: model.get_config()
    rename: Callable[[str], str] = str
    offsets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    encoder: type[keras.Model] | None = None
    derived: tuple[Derived, ...] = ()
    is_default: bool = False

    def arguments(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the constructor's arguments for a `config.json`.

        Raises:
            ValueError: if a setting is missing, has a wrong type, or is not supported by the model.
        """
        config = {**self.defaults, **config}
        self._check_types(config)
        for name, value in self.required.items():
            is_false = value is False and config.get(name) is None
            if name in config and config[name] != value and not is_false:
                raise ValueError(
                    f"`config.json` of a {self.model_type} must have {name}={value!r}, as in "
                    f"{self.model.__name__}. Received: {name}={config[name]!r}"
                )
        names = [name for setting in self.settings.values() for name in _names(setting)]
        config = self.complete(config)
        self._check_types(config)
        for name in names:
            if config.get(name) is None and name not in self.optional:
                raise ValueError(f"`config.json` of a {self.model_type} must have {name!r}. Received: none")
        arguments = dict(self.fixed)
        for argument, setting in self.settings.items():
            first, *others = (config.get(name) for name in _names(setting))
            if any(other != first for other in others):
                raise ValueError(
                    f"`config.json` of a {self.model_type} must have one value for {' and '.join(setting)}. "
                    f"Received: {[first, *others]}"
                )
            known = self._activations_of(argument)
            arguments[argument] = first if known is None else self._activation(str(setting), first, known)
            if argument in self.offsets:
                arguments[argument] -= self.offsets[argument]
        for derived in self.derived:
            arguments |= serialized(derived.read(config))
        following = {
            name: None
            for name, other in FOLLOWING.items()
            if name in arguments and arguments[name] == arguments[other]
        }
        return {**arguments, **following}

    def config(self, model: keras.Model) -> dict[str, Any]:
        """Return the `config.json` of a model.

        Raises:
            ValueError: if the architecture does not support an argument of the model.
        """
        described, config = self.describe(model), self._settings_of(model)
        config = {**self.required, **config}
        differing = self.fixed_differences(model)
        if not differing:  # find arguments that a round trip changes
            restored = self.arguments(config)
            followed = {
                name: restored[other]
                for name, other in FOLLOWING.items()
                if name in restored and restored[name] is None
            }
            restored |= followed
            differing = {name: described[name] for name in restored if described[name] != restored[name]}
        if differing:
            raise ValueError(
                f"`model` must be supported by {self.class_name}. Received: a {type(model).__name__} with "
                + ", ".join(f"{name}={_shown(value)!r}" for name, value in differing.items())
            )
        return {
            **config,
            "architectures": [self.class_name],
            "dtype": "float32",
            "model_type": self.model_type,
        }

    def fixed_differences(self, model: keras.Model) -> dict[str, Any]:
        """Return the arguments of a model that differ from those that all models of the architecture have."""
        described = self.describe(model)
        return {name: described[name] for name, value in self.fixed.items() if described[name] != value}

    def interface(self, model: keras.Model) -> dict[str, Any]:
        """Return a `config.json` with the sizes and ids of a model that `transformers` may not be able to run."""
        return {**self._settings_of(model), "model_type": self.model_type}

    @property
    def keys(self) -> set[str]:
        """The keys of a `config.json` that are read or checked."""
        read = {name for setting in self.settings.values() for name in _names(setting)}
        derived = {name for each in self.derived for name in each.settings}
        return {*read, *derived, *self.required, *self.defaults}

    def _settings_of(self, model: keras.Model) -> dict[str, Any]:
        """Return the settings of a model in `config.json`."""
        arguments = self.describe(model)
        activations = {
            name: _written_activation(known, arguments.get(name))
            for name in self.settings
            if (known := self._activations_of(name)) is not None
        }
        values = {
            **arguments,
            **activations,
            **{argument: arguments[argument] + offset for argument, offset in self.offsets.items()},
        }
        settings: dict[str, Any] = {}
        for argument, setting in self.settings.items():
            for name in _names(setting):  # of two arguments with one setting, the second follows the first
                settings.setdefault(name, values[argument])
        for derived in self.derived:
            settings |= derived.write(model)
        return settings

    def _check_types(self, config: Mapping[str, Any]) -> None:
        """Raise a ValueError if a setting has a wrong type."""
        for argument, setting in self.settings.items():
            expected, is_valid = type_of(argument)
            for name in _names(setting):
                if config.get(name) is not None and not is_valid(config[name]):
                    raise ValueError(
                        f"`config.json` of a {self.model_type} must have {expected} as {name}. "
                        f"Received: {name}={config[name]!r}"
                    )

    def _activations_of(self, argument: str) -> Mapping[str, str] | None:
        """Return the activations that an argument may name, by their names in `transformers`; None for others."""
        if argument == "activation":
            return self.activations
        return ACTIVATIONS if argument in _HEAD_ACTIVATIONS else None

    def _activation(self, key: str, name: Any, known: Mapping[str, str]) -> str:
        if name not in known:
            raise ValueError(
                f"`config.json` of a {self.model_type} must have an activation among {sorted(known)} "
                f"as {key}. Received: {key}={name!r}"
            )
        return known[name]


def _written_activation(known: Mapping[str, str], name: Any) -> str:
    """Return the first name of an activation in `transformers`, or any name for an activation that it has not."""
    return next((written for written, ours in known.items() if ours == name), next(iter(known)))


def type_of(argument: str) -> tuple[str, Callable[[Any], bool]]:
    """Return a description of an argument's type in `config.json`, and a function that checks a value."""
    return _TYPES.get(argument, _INTEGER)


def _shown(value: Any) -> Any:
    """Return a value of `get_config` for an error message, deserialised if it is a serialised object."""
    is_object = isinstance(value, dict) and "class_name" in value
    return keras.saving.deserialize_keras_object(value) if is_object else value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _names(setting: str | tuple[str, ...]) -> tuple[str, ...]:
    return (setting,) if isinstance(setting, str) else setting


def dense(name: str, *layers: keras.layers.Dense, transposed: bool = True) -> Parameters:
    """Yield the parameters of a `Linear` (if not transposed, a `Conv1D`) for one layer or several fused layers."""
    yield f"{name}.weight", Parameter(tuple(layer.kernel for layer in layers), transposed)
    if layers[0].use_bias:
        yield f"{name}.bias", Parameter(tuple(layer.bias for layer in layers))


def norm(name: str, layer: Any) -> Parameters:
    """Yield the parameters of a `LayerNorm`."""
    yield f"{name}.weight", Parameter((layer.gamma,))
    yield f"{name}.bias", Parameter((layer.beta,))
