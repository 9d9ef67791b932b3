"""Configs of layers, models, losses and values such as relations, made from the parameters of their constructors."""

import inspect
from typing import Any, Self

import keras


class Configured:
    """Mixin for a Keras class whose config has the constructor's arguments that are attributes of the same names."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), **constructor_arguments(self)}  # type: ignore[misc]


class ConfiguredValue:
    """Base class of values, such as relations, whose config has the constructor's arguments."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return constructor_arguments(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Create the object from its config."""
        return cls(**{name: keras.saving.deserialize_keras_object(value) for name, value in config.items()})


class ConfiguredLayer(Configured, keras.layers.Layer):
    """Base class of layers whose config has the constructor's arguments."""


def constructor_arguments(configured: Any) -> dict[str, Any]:
    """Return the constructor's arguments that are attributes of the same names, serialized.

    The arguments of a base class are included if the constructor passes its keyword arguments on to the base class and
    they have defaults; the constructor itself passes the others.
    """
    arguments: dict[str, Any] = {}
    constructors = [kind for kind in type(configured).__mro__ if "__init__" in vars(kind)]
    for kind in constructors:
        if kind is object or kind.__module__.startswith("keras."):
            break  # Keras' own arguments are in its config
        parameters = inspect.signature(kind).parameters.values()
        names = [
            parameter.name
            for parameter in parameters
            if parameter.kind not in _VARIADIC
            and (kind is constructors[0] or parameter.default is not parameter.empty)
        ]
        arguments.update({name: getattr(configured, name) for name in names if hasattr(configured, name)})
    # A weight may have the name of an argument.
    return serialized(
        {name: value for name, value in arguments.items() if not isinstance(value, keras.Variable)}
    )


def serialized(value: Any) -> Any:
    """Convert an argument to a JSON value, from which `keras.saving.deserialize_keras_object` restores objects."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [serialized(item) for item in value]
    if isinstance(value, dict):
        return {name: serialized(item) for name, item in value.items()}
    if inspect.isfunction(value):
        return keras.activations.serialize(value)
    return keras.saving.serialize_keras_object(value)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
