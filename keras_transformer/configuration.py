"""Configs of layers, models, losses and values such as relations, made from the parameters of their constructors."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import keras

T = TypeVar("T")


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

    def _post_build(self) -> None:
        """Freeze the parts of a layer that was created with `trainable=False`, as when it is loaded."""
        # Keras freezes the parts that a layer has when `trainable` is set; it has no public hook after `build`.
        super()._post_build()
        if not self.trainable:
            for layer in self._layers:
                layer.trainable = False


def constructor_arguments(configured: Any) -> dict[str, Any]:
    """Return the constructor's arguments that are attributes of the same names, serialized.

    The arguments of a base class are included if the constructor passes its keyword arguments on to the base class and
    they have defaults, or it has no other arguments, as `__init__(self, *args, **kwargs)`; otherwise the constructor
    itself passes those without defaults.
    """
    arguments: dict[str, Any] = {}
    passes_all = True
    for kind in [kind for kind in type(configured).__mro__ if "__init__" in vars(kind)]:
        if kind is object or kind.__module__.startswith("keras."):
            break  # Keras' own arguments are in its config
        parameters = [
            parameter
            for parameter in inspect.signature(kind).parameters.values()
            if parameter.kind not in _VARIADIC
        ]
        names = [
            parameter.name
            for parameter in parameters
            if passes_all or parameter.default is not parameter.empty
        ]
        arguments.update({name: getattr(configured, name) for name in names if hasattr(configured, name)})
        passes_all = passes_all and not parameters
    # A weight may have the name of an argument.
    return serialized(
        {name: value for name, value in arguments.items() if not isinstance(value, keras.Variable)}
    )


def retrieve(kind: Any, names: Mapping[str, Callable[[], T]], expectation: str, **argument: Any) -> T:
    """Return an object of a class for itself, its name or its serialised config.

    Args:
        kind: the class.
        names: functions that create the objects that have a name, such as their classes.
        expectation: the end of "`name` must …" in the error.
        **argument: the argument, by its name.
    """
    name, identifier = argument.popitem()
    if isinstance(identifier, kind):
        return identifier
    if isinstance(identifier, str) and identifier in names:
        return names[identifier]()
    cause = None
    if isinstance(identifier, dict):
        try:
            restored = keras.saving.deserialize_keras_object(identifier)
            if isinstance(restored, kind):
                return restored
        except TypeError as error:  # of Keras for an unknown class, or of invalid arguments
            cause = error
    raise ValueError(f"`{name}` must {expectation}. Received: {name}={identifier!r}") from cause


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


def separate_config(value: Any) -> Any:
    """Return the serialized object, from which every call of `deserialize_keras_object` creates a separate one.

    While Keras loads a model, it gives the configs of two objects with one address the id of a shared object. But the
    address of an object that is gone is given to another one, so that these ids are removed.
    """
    return _without_shared_ids(keras.saving.serialize_keras_object(value))


def _without_shared_ids(config: Any) -> Any:
    if isinstance(config, dict):
        return {
            name: _without_shared_ids(value) for name, value in config.items() if name != "shared_object_id"
        }
    if isinstance(config, list | tuple):
        return [_without_shared_ids(value) for value in config]
    return config


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
