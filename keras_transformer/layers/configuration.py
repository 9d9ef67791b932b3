"""The configs of layers, models, losses and metrics, from the parameters of their constructors."""

import inspect
from typing import Any

import keras


class Configured:
    """Mixin for a Keras class whose config has the constructor's arguments that are attributes of the same names."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), **constructor_arguments(self)}  # type: ignore[misc]


class ConfiguredLayer(Configured, keras.layers.Layer):
    """Base class of layers with the config of `Configured`."""


def constructor_arguments(configured: Any) -> dict[str, Any]:
    """Return the arguments of the constructor of an object that are attributes of the same names, serialized.

    Those of a base class are included where the constructor passes keyword arguments on to it, if they have defaults:
    the constructor itself passes the others.
    """
    found: dict[str, Any] = {}
    constructors = [kind for kind in type(configured).__mro__ if "__init__" in vars(kind)]
    for kind in constructors:
        if not kind.__module__.startswith("keras."):
            parameters = inspect.signature(kind).parameters.values()
            names = [
                each.name
                for each in parameters
                if each.kind not in _VARIADIC and (kind is constructors[0] or each.default is not each.empty)
            ]
            found.update({name: getattr(configured, name) for name in names if hasattr(configured, name)})
    # A weight is no argument, if one has the name of an argument.
    return {
        name: _serialized(value) for name, value in found.items() if not isinstance(value, keras.Variable)
    }


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _serialized(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_serialized(each) for each in value]
    if isinstance(value, dict):
        return {name: _serialized(each) for name, each in value.items()}
    if inspect.isfunction(value):
        return keras.activations.serialize(value)
    return keras.saving.serialize_keras_object(value)
