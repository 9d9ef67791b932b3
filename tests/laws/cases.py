"""A layer or model on which laws are tested: how to create it, and inputs of a call."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def normal(*shape, seed=0):
    """Return random numbers that depend on shape and seed."""
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32")


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A function that creates a layer or model, its arguments, and inputs of a call by name.

    `padding_mask` hides positions of `value`, or of the first input if there is none; `memory_padding_mask` those of
    `memory`. `shapes` are shapes of symbolic inputs with more static axes than the last axes of vectors.
    """

    make: Callable[..., Any]
    options: dict[str, Any]
    inputs: dict[str, np.ndarray]
    shapes: dict[str, tuple] = dataclasses.field(default_factory=dict)

    def new(self, **options):
        """Return a new layer."""
        return self.make(**{**self.options, **options})

    def built(self, **options):
        """Return a layer in which every weight, including biases, is random, so that no law holds by chance."""
        layer = self.new(**options)
        call(layer, self.inputs)
        return randomise(layer)

    def symbols(self):
        """Return symbolic inputs of unknown batch size and length."""
        return {
            name: keras.Input(
                self.shapes.get(name) or unknown_lengths(name, value), dtype=value.dtype, name=name
            )
            for name, value in self.inputs.items()
        }

    def functional(self):
        """Return a functional model of a new layer."""
        symbols = self.symbols()
        return randomise(keras.Model(symbols, call(self.new(), symbols)))

    def first(self):
        """Return the first input."""
        return next(iter(self.inputs.values()))

    def masks(self):
        """Return the padding masks, each with the name of the input that it covers."""
        first = "value" if "value" in self.inputs else next(iter(self.inputs))
        covered = {"padding_mask": first, "memory_padding_mask": "memory"}
        return {name: covered[name] for name in self.inputs if name in covered}


def cases(make, options, inputs, variants, shapes=None, quick=(), everyday=True):
    """Return a case for each variant, whose arguments extend `options`.

    The first variant runs among the quick tests and on JAX, where every new shape compiles for seconds; others are
    slow tests unless they are `quick`, and so is the first one if `everyday` is False.
    """
    name = make.__name__.title().replace("_", "") if make.__name__.islower() else make.__name__
    found = {}
    inputs = {name: x.astype("int32") if x.dtype == "int64" else x for name, x in inputs.items()}  # JAX's
    for label, variant in variants.items():
        first = everyday and not found
        markers = [pytest.mark.backend_neutral] if first else []
        markers += [] if first or label in quick else [pytest.mark.slow]
        found[f"{name}-{label}"] = Case(make, {**options, **variant}, inputs, shapes or {}), markers
    return found


def over(table, where=lambda case: True, slow=()):
    """Parametrize a law over the cases that satisfy `where`; names that begin with one of `slow` are slow."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                case, id=name, marks=[*markers, pytest.mark.slow] if name.startswith(slow) else markers
            )
            for name, (case, markers) in table.items()
            if where(case)
        ],
    )


def unknown_lengths(name, value):
    """Return the shape of a symbolic input; only the last axes of vectors are static."""
    if value.dtype.kind == "f":
        return (None, *value.shape[2:])
    return (None, 2) if name == "edges" else (None,) * (value.ndim - 1)


def call(layer, inputs, **options):
    """Call a layer, with its first input by position and the others by name."""
    first, *others = inputs
    return layer(inputs[first], **{name: inputs[name] for name in others}, **options)


def tensors(inputs):
    """Return inputs as tensors of the backend."""
    return keras.tree.map_structure(ops.convert_to_tensor, inputs)


def numbers(output):
    """Return outputs as NumPy arrays, half precision as float32."""

    def number(tensor):
        half = keras.backend.standardize_dtype(tensor.dtype) in ("float16", "bfloat16")
        return ops.convert_to_numpy(ops.cast(tensor, "float32") if half else tensor)

    return keras.tree.map_structure(number, output)


def takes(layer, name):
    """Return whether the call of a layer accepts an argument."""
    return name in inspect.signature(layer.call).parameters


def training(layer):
    """Return the arguments of a call in training."""
    return {"training": True} if takes(layer, "training") else {}


def randomise(layer, scale=0.5, seed=1):
    """Give every trainable weight random values."""
    for place, weight in enumerate(layer.trainable_weights):
        weight.assign(normal(*weight.shape, seed=seed + place) * scale)
    return layer


def stateless(layer, inputs, **options):
    """Return the output of a layer as a function of its weights and inputs, with fixed seed state."""
    state = [ops.copy(variable) for variable in layer.non_trainable_variables]
    first, *others = inputs

    def output(weights, inputs):
        found, _ = layer.stateless_call(
            list(weights), state, inputs[first], **{name: inputs[name] for name in others}, **options
        )
        return found

    return output


def weight_gradients(layer, inputs, **options):
    """Return the gradient of each trainable weight, by its path, for a random gradient of the output."""

    def loss(output):
        output = ops.cast(output, "float32")
        return ops.sum(output * normal(*output.shape, seed=9))

    weights = layer.trainable_weights
    if keras.config.backend() == "jax":
        import jax

        function = stateless(layer, tensors(inputs), **options)
        values = [weight.value for weight in weights]
        found = jax.jit(jax.grad(lambda values: loss(function(values, inputs))))(values)
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            total = loss(call(layer, inputs, **options))
        found = map(tf.convert_to_tensor, tape.gradient(total, [weight.value for weight in weights]))
    return {weight.path: numbers(gradient) for weight, gradient in zip(weights, found, strict=True)}
