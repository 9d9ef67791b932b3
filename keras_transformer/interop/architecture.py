"""What is to be known of an architecture to read and write its weights: a table of settings and one of names."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.arguments import is_integer, is_number

# Our activations by Keras' or our names; `transformers` has several names for the tanh approximation of GELU.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

# Of our arguments those that by default are as another one; where a file has them equal, overriding that one overrides
# them too.
FOLLOWING = {
    "attention_dropout": "dropout",
    "embedding_dropout": "dropout",
    "hidden_dropout": "dropout",
    "num_decoder_layers": "num_layers",
}
# The types of our arguments in a `config.json`; all others are integers.
_FLOATS = {"dropout", "attention_dropout", "embedding_dropout", "hidden_dropout", "epsilon"}
_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_FLOATS, ("a number", lambda value: is_number(value) and math.isfinite(value))),
    **dict.fromkeys(("activation", "problem_type"), ("a string", lambda value: isinstance(value, str))),
    **dict.fromkeys(("tied", "qkv_bias"), ("a boolean", lambda value: isinstance(value, bool))),
    **dict.fromkeys(
        ("image_size", "patch_size"),
        (
            "an integer or two",
            lambda value: all(map(is_integer, _listed(value))) and len(_listed(value)) <= 2,
        ),
    ),
}
_INTEGER: tuple[str, Callable[[Any], bool]] = ("an integer", lambda value: is_integer(value))


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One tensor of a file, and the weights here that it holds.

    Attributes:
        weights: one, or several side by side on the last axis (fused query, key and value projections).
        transposed: whether the file has the axes in reverse, as PyTorch's `Linear` does.
        shape: of the file's tensor, where it has other axes than the weight.
    """

    weights: tuple[Any, ...]
    transposed: bool = False
    shape: tuple[int, ...] | None = None

    @property
    def file_shape(self) -> tuple[int, ...]:
        """The shape that the file's tensor must have."""
        first = tuple(self.weights[0].shape)
        ours = (*first[:-1], sum(weight.shape[-1] for weight in self.weights))
        return self.shape or (ours[::-1] if self.transposed else ours)

    def read(self, values: np.ndarray) -> None:
        """Assign the file's values to the weights."""
        ends = np.cumsum([weight.shape[-1] for weight in self.weights])[:-1]
        if self.shape is not None:
            values = values.reshape(self.weights[0].shape)
        parts = np.split(values.T if self.transposed else values, ends, axis=-1)
        for weight, part in zip(self.weights, parts, strict=True):
            weight.assign(part.astype("float32"))

    def write(self) -> np.ndarray:
        """The values as the file has them."""
        parts = [ops.convert_to_numpy(ops.cast(weight, "float32")) for weight in self.weights]
        joined = np.concatenate(parts, axis=-1)
        return np.ascontiguousarray(joined.T if self.transposed else joined).reshape(self.file_shape)


Parameters = Iterator[tuple[str, Parameter]]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How a model class of `transformers` corresponds to one of ours.

    Attributes:
        model_type: as `config.json` has it.
        class_name: what `transformers` calls the class with its head.
        model: our class.
        settings: our arguments and what `config.json` calls them; several names must have one value.
        fixed: our arguments that all such models share, as `get_config` gives them.
        defaults: settings of `config.json` that may be absent.
        required: settings of `config.json` that must have these values, or neither stand there nor in `defaults`.
        parameters: (name, parameter) of all the weights of one of our models.
        prefix: what names begin with in the class with a head, and may lack.
        ignored: a pattern of the names in files that hold nothing learned.
        tied: names that may be in files and equal the named parameter.
        activations: our names of activations by theirs.
        complete: fills in what `config.json` leaves to be derived.
        optional: settings of `config.json` that may be absent or null, which is None here.
        make: makes a model of our arguments, by default `model` itself.
        present: our arguments that say whether there is something, and a name in files that is there if so.
        describe: our arguments of a model.
        rename: takes names in older files to those of today.
    """

    model_type: str
    class_name: str
    model: type[keras.Model]
    settings: Mapping[str, str | tuple[str, ...]]
    fixed: Mapping[str, Any]
    defaults: Mapping[str, Any]
    required: Mapping[str, Any]
    parameters: Callable[[Any], Parameters]
    prefix: str = ""
    ignored: str = r"(?!)"
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    activations: Mapping[str, str] = dataclasses.field(default_factory=lambda: ACTIVATIONS)
    complete: Callable[[dict[str, Any]], dict[str, Any]] = dict
    optional: frozenset[str] = frozenset()
    make: Callable[..., Any] | None = None
    present: Mapping[str, str] = dataclasses.field(default_factory=dict)
    describe: Callable[[Any], dict[str, Any]] = lambda model: model.get_config()
    rename: Callable[[str], str] = str

    def arguments(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Our constructor's arguments for a `config.json`.

        Raises:
            ValueError: where a setting is absent, of another type, or one that our model does not have.
        """
        config = {**self.defaults, **config}
        self._check_types(config)
        for name, value in self.required.items():
            if name in config and config[name] != value:
                raise ValueError(
                    f"`config.json` of a {self.model_type} must have {name}={value!r}, which is what "
                    f"{self.model.__name__} computes. Received: {name}={config[name]!r}"
                )
        names = [name for theirs in self.settings.values() for name in _names(theirs)]
        config = self.complete(config)
        self._check_types(config)
        for name in names:
            if config.get(name) is None and name not in self.optional:
                raise ValueError(f"`config.json` of a {self.model_type} must have {name!r}. Received: none")
        arguments = dict(self.fixed)
        for ours, theirs in self.settings.items():
            first, *others = (config[name] for name in _names(theirs))
            if any(other != first for other in others):
                raise ValueError(
                    f"`config.json` of a {self.model_type} must have one value for {' and '.join(theirs)}. "
                    f"Received: {[first, *others]}"
                )
            arguments[ours] = self._activation(str(theirs), first) if ours == "activation" else first
        following = {
            name: None
            for name, other in FOLLOWING.items()
            if name in arguments and arguments[name] == arguments[other]
        }
        return {**arguments, **following}

    def config(self, model: keras.Model) -> dict[str, Any]:
        """The `config.json` of one of our models.

        Raises:
            ValueError: where the model has something that the architecture does not.
        """
        found = self.describe(model)
        activations = {ours: theirs for theirs, ours in reversed(self.activations.items())}
        config = {
            name: activations.get(found[ours], next(iter(self.activations)))
            if ours == "activation"
            else found[ours]
            for ours, theirs in self.settings.items()
            for name in _names(theirs)
        }
        config = {**self.required, **config}
        differing = {name: found[name] for name, value in self.fixed.items() if found[name] != value}
        if not differing:  # what reading it back would give tells what it cannot say
            again = self.arguments(config)
            followed = {
                name: again[other]
                for name, other in FOLLOWING.items()
                if name in again and again[name] is None
            }
            again |= followed
            differing = {name: found[name] for name in again if found[name] != again[name]}
        if differing:
            raise ValueError(
                f"`model` must be one that {self.class_name} computes. Received: a {type(model).__name__} with "
                + ", ".join(f"{name}={value!r}" for name, value in differing.items())
            )
        return {
            **config,
            "architectures": [self.class_name],
            "dtype": "float32",
            "model_type": self.model_type,
        }

    def _check_types(self, config: Mapping[str, Any]) -> None:
        """Raise where a setting that stands there is of another type than ours."""
        for ours, theirs in self.settings.items():
            expected, fits = type_of(ours)
            for name in _names(theirs):
                if config.get(name) is not None and not fits(config[name]):
                    raise ValueError(
                        f"`config.json` of a {self.model_type} must have {expected} as {name}. "
                        f"Received: {name}={config[name]!r}"
                    )

    def _activation(self, key: str, name: str) -> str:
        if name not in self.activations:
            raise ValueError(
                f"`config.json` of a {self.model_type} must have an activation among {sorted(self.activations)} "
                f"as {key}. Received: {key}={name!r}"
            )
        return self.activations[name]


def type_of(ours: str) -> tuple[str, Callable[[Any], bool]]:
    """Return in words what one of our arguments must be in a `config.json`, and whether a value is that."""
    return _TYPES.get(ours, _INTEGER)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _names(theirs: str | tuple[str, ...]) -> tuple[str, ...]:
    return (theirs,) if isinstance(theirs, str) else theirs


def dense(name: str, *layers: keras.layers.Dense, transposed: bool = True) -> Parameters:
    """A `Linear` (or, not transposed, a `Conv1D`): one layer here, or several side by side."""
    yield f"{name}.weight", Parameter(tuple(layer.kernel for layer in layers), transposed)
    if layers[0].use_bias:
        yield f"{name}.bias", Parameter(tuple(layer.bias for layer in layers))


def norm(name: str, layer: Any) -> Parameters:
    """A `LayerNorm`."""
    yield f"{name}.weight", Parameter((layer.gamma,))
    yield f"{name}.bias", Parameter((layer.beta,))
