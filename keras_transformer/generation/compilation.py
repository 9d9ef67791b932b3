"""Compile functions of arrays once for each bucket of shapes."""

from collections.abc import Callable
from typing import Any

import keras

Tensor = Any


def bucket(size: int, smallest: int) -> int:
    """Return the smallest `smallest` · 2ⁿ that is at least `size`, so that few shapes are compiled."""
    found = smallest
    while found < size:
        found *= 2
    return found


def compiled(variables: list[Any], function: Callable[[Any], Any], jit_compile: bool) -> Callable[[Any], Any]:
    """Compile a function of a tree of arrays; every call uses the current values of the variables."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        traced = tf.function(function, jit_compile=jit_compile, autograph=False)

        concrete: dict[Any, Callable[[Any], Any]] = {}

        def run_tensorflow(arrays: Any) -> Any:
            tensors = keras.tree.map_structure(tf.convert_to_tensor, arrays)
            specs = keras.tree.map_structure(
                lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), tensors
            )
            key = (tuple(arrays), *keras.tree.flatten(specs))
            if key not in concrete:
                concrete[key] = traced.get_concrete_function(specs)
            return concrete[key](tensors)

        return run_tensorflow
    if backend == "jax":
        import jax

        def stateless(values: list[Tensor], arrays: Any) -> Any:
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                return function(arrays)

        run = jax.jit(stateless) if jit_compile else stateless
        return lambda arrays: run([variable.value for variable in variables], arrays)
    return function
