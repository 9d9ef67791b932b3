"""Rematerialization: recompute the activations of a layer in the backward pass instead of storing them."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_one_of

MODES = (None, "blocks")


def check_mode(rematerialize: str | None) -> str | None:
    """Return the argument `rematerialize` of a model; raise a ValueError unless it is one of `MODES`."""
    check_one_of(MODES, rematerialize=rematerialize)
    return rematerialize


def rematerializable(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorate the `call` of a layer to rematerialize it in training if the layer's `rematerialize` is True.

    `keras.remat` takes functions of tensors: JAX traces all arguments, and TensorFlow's custom gradients accept neither
    keyword arguments nor Keras variables. The rematerialized function therefore takes the weights and the other
    floating-point tensors by position. It returns the new values of the seeds, which are assigned outside of it,
    because a function that runs twice must have no side effects.
    """

    @functools.wraps(call)
    def wrapped(layer: Any, *args: Any, training: bool | None = None, **kwargs: Any) -> Tensor:
        function = functools.partial(call, layer, training=training)
        if not (training and layer.rematerialize):
            return function(*args, **kwargs)
        return _rematerialized(function, layer, (args, kwargs))

    return wrapped


def _rematerialized(function: Callable[..., Tensor], layer: keras.Layer, inputs: Any) -> Tensor:
    weights = layer.weights
    seeds = [variable for variable in layer.variables if all(variable is not weight for weight in weights)]
    seed_values = [ops.copy(seed) for seed in seeds]
    floats = _floats(inputs)

    def pure(*tensors: Tensor) -> tuple[Tensor, list[Tensor]]:
        args, kwargs = _with_floats(inputs, tensors[len(weights) :])
        values = [*zip(weights, tensors, strict=False), *zip(seeds, seed_values, strict=True)]
        with keras.StatelessScope(values) as scope:
            before = list(map(scope.get_current_value, weights))
            output = function(*args, **kwargs)
        updated = [
            weight.path
            for weight, value in zip(weights, before, strict=True)
            if scope.get_current_value(weight) is not value
        ]
        # The update would be lost, and a second run would start from it.
        check(
            not updated,
            "be False for layers that update weights in a call",
            rematerialize=True,
            weights=updated,
        )
        return output, [scope.get_current_value(seed) for seed in seeds]

    output, new_values = keras.remat(pure)(*_values(weights, floats[0]), *floats)
    for seed, value in zip(seeds, new_values, strict=True):
        seed.assign(value)
    return output


def _values(variables: list[keras.Variable], tensor: Tensor) -> list[Tensor]:
    """Return the values of variables in their own dtype, even in the call of a layer that casts them."""
    layer = keras.layers.Lambda(
        lambda _: [ops.convert_to_tensor(variable) for variable in variables], name="values", autocast=False
    )
    layer.supports_masking = True  # or it would warn of a mask
    values: list[Tensor] = layer(tensor)
    return values


def _floats(inputs: Any) -> list[Tensor]:
    """Return the floating-point tensors of nested inputs, including the fields of dataclasses (`RetrievalMemory`)."""
    leaves = keras.tree.flatten(inputs)
    fields = [vars(leaf).values() if dataclasses.is_dataclass(leaf) else [leaf] for leaf in leaves]
    return [value for values in fields for value in values if _is_float(value)]


def _with_floats(inputs: Any, tensors: Sequence[Tensor]) -> Any:
    """Return the inputs with `tensors` in place of the tensors that `_floats` returned."""
    remaining = iter(tensors)

    def replaced(leaf: Any) -> Any:
        if not dataclasses.is_dataclass(leaf):
            return next(remaining) if _is_float(leaf) else leaf
        fields = {name: next(remaining) for name, value in vars(leaf).items() if _is_float(value)}
        return dataclasses.replace(leaf, **fields)  # type: ignore[type-var]

    return keras.tree.map_structure(replaced, inputs)


def _is_float(value: Any) -> bool:
    return ops.is_tensor(value) and keras.backend.is_float_dtype(value.dtype)
