"""The configs of layers and models, from the parameters of their constructors."""

import inspect
from typing import Any

import keras


def constructor_arguments(layer: Any) -> dict[str, Any]:
    """Return the arguments of the constructor of a layer or model that are attributes of the same names, serialized.

    Those of a base class are included where the constructor passes keyword arguments on to it.
    """
    found = {}
    for kind in type(layer).__mro__:
        if not kind.__module__.startswith("keras."):
            parameters = inspect.signature(kind).parameters if "__init__" in vars(kind) else {}
            names = [name for name, each in parameters.items() if each.kind not in _VARIADIC]
            found.update({name: getattr(layer, name) for name in names if hasattr(layer, name)})
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
