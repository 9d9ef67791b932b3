"""The configs of layers, models, losses and values such as relations, from the parameters of their constructors."""

import inspect
from typing import Any, Self

import keras


class Configured:
    """Mixin for a Keras class whose config has the constructor's arguments that are attributes of the same names."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), **constructor_arguments(self)}  # type: ignore[misc]


class ConfiguredValue:
    """Base class of values with such a config, such as relations."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return constructor_arguments(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Create the object of a `get_config`."""
        return cls(**{name: keras.saving.deserialize_keras_object(value) for name, value in config.items()})


class ConfiguredLayer(Configured, keras.layers.Layer):
    """Base class of layers with such a config."""


def constructor_arguments(configured: Any) -> dict[str, Any]:
    """Return the constructor's arguments that are attributes of the same names, serialized.

    Those of a base class are included where the constructor passes keyword arguments on to it, if they have defaults:
    the constructor itself passes the others.
    """
    found: dict[str, Any] = {}
    constructors = [kind for kind in type(configured).__mro__ if "__init__" in vars(kind)]
    for kind in constructors:
        if kind is object or kind.__module__.startswith("keras."):
            break  # Keras' own arguments are in its config
        parameters = inspect.signature(kind).parameters.values()
        names = [
            each.name
            for each in parameters
            if each.kind not in _VARIADIC and (kind is constructors[0] or each.default is not each.empty)
        ]
        found.update({name: getattr(configured, name) for name in names if hasattr(configured, name)})
    # A weight is no argument, if one has the name of an argument.
    return serialized({name: value for name, value in found.items() if not isinstance(value, keras.Variable)})


def serialized(value: Any) -> Any:
    """Return a value of JSON for an argument; `keras.saving.deserialize_keras_object` restores objects."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [serialized(each) for each in value]
    if isinstance(value, dict):
        return {name: serialized(each) for name, each in value.items()}
    if inspect.isfunction(value):
        return keras.activations.serialize(value)
    return keras.saving.serialize_keras_object(value)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
