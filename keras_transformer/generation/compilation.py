"""Compile functions of a model once for each bucket of shapes, and cache them for the lifetime of the model."""

import collections
import operator
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import keras
import numpy as np

from keras_transformer import xla
from keras_transformer.generation.generative_model import GenerativeModel, is_encoder_decoder, source_is_ids
from keras_transformer.generation.validation import padding_value
from keras_transformer.models.input_specs import inputs_checked
from keras_transformer.typing import Tensor

Arrays = dict[str, np.ndarray]

MAX_CACHED = 32
"""The number of `ModelFunctions` that are cached for a model; the least recently used one is dropped."""

_CACHE: "weakref.WeakKeyDictionary[Any, collections.OrderedDict[Hashable, Any]]" = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


class ModelFunctions:
    """Base class of objects that hold a model's compiled functions.

    Args:
        model: the model.
        jit_compile: whether to compile with XLA.
        drafts: draft models of speculative decoding, whose variables the functions read too.
    """

    def __init__(
        self, model: GenerativeModel, jit_compile: bool = True, drafts: tuple[GenerativeModel, ...] = ()
    ) -> None:
        self.model = model
        self.jit_compile = jit_compile
        self._models = (model, *drafts)

    def _compile(self, function: Callable[[Any], Any]) -> "CompiledFunction":
        return CompiledFunction(function, self._variables, self.jit_compile)

    def _variables(self) -> list[Any]:
        return [variable for model in self._models for variable in model.variables]

    def _padded(self, inputs: Arrays) -> Arrays:
        """Pad each axis of each input to the size of a bucket; padding rows have a limit of one new token."""
        ids = dict.fromkeys(("source_ids", "prefix_ids", "target_ids"), padding_value(self.model))
        if not source_is_ids(self.model):
            del ids["source_ids"]  # audio is padded with zeros
        padding_values = {**ids, "limits": 1, "temperatures": 1}
        # Learned positions of an encoder–decoder limit padding, too; prompts are padded on the left, without positions.
        max_length = getattr(self.model, "max_length", None) if is_encoder_decoder(self.model) else None
        return {
            name: _padded(values, padding_values.get(name, 0), max_length if name in ids else None)
            for name, values in inputs.items()
        }


class CompiledFunction:
    """A function of a tree of arrays, compiled at the first call, and again after its variables have been replaced.

    Quantization and LoRA replace variables.

    Args:
        function: the function.
        variables: a function that returns the variables that `function` reads.
        jit_compile: whether to compile with XLA.
    """

    def __init__(
        self, function: Callable[[Any], Any], variables: Callable[[], list[Any]], jit_compile: bool
    ) -> None:
        self._function = function
        self._variables = variables
        self._jit_compile = jit_compile
        self._compiled_for: list[Any] | None = None
        self._run: Callable[[Any], Any] = function

    def __call__(self, arrays: Any) -> Any:
        """Return the function's results with the current values of the variables."""
        variables = self._variables()
        if not are_same(variables, self._compiled_for):
            self._run = compiled(variables, self._function, self._jit_compile)
            self._compiled_for = variables
        return self._run(arrays)


def are_same(variables: list[Any], known: list[Any] | None) -> bool:
    """Return True if two lists contain the same variable objects; False for None."""
    return known is not None and len(variables) == len(known) and all(map(operator.is_, variables, known))


def cached(model: GenerativeModel, key: Hashable, create: Callable[[Any], Any]) -> Any:
    """Return the result of `create(model)`, computed once for each model and key, with XLA and without.

    The `MAX_CACHED` most recently used objects of each model are cached for its lifetime. `create` is called with a
    weak proxy of the model, so that these objects do not keep it alive.
    """
    key = (key, xla.is_enabled())
    with _LOCK:
        objects = _CACHE.setdefault(model, collections.OrderedDict())
        if key not in objects:
            objects[key] = create(weakref.proxy(model))
        objects.move_to_end(key)
        if len(objects) > MAX_CACHED:
            objects.popitem(last=False)
        return objects[key]


def bucket(size: int, smallest: int) -> int:
    """Return the smallest `smallest` · 2ⁿ that is at least `size`, to limit the number of compiled shapes."""
    bucket_size = smallest
    while bucket_size < size:
        bucket_size *= 2
    return bucket_size


def compiled(variables: list[Any], function: Callable[[Any], Any], jit_compile: bool) -> Callable[[Any], Any]:
    """Compile a function of a tree of arrays; every call uses the current values of the variables.

    TensorFlow compiles with XLA only where XLA is enabled (see `xla`).
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        traced = tf.function(function, jit_compile=jit_compile and xla.is_enabled(), autograph=False)

        concrete: dict[Any, Callable[[Any], Any]] = {}

        def run_tensorflow(arrays: Any) -> Any:
            tensors = keras.tree.map_structure(tf.convert_to_tensor, arrays)
            specs = keras.tree.map_structure(
                lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), tensors
            )
            key = (tuple(arrays), *keras.tree.flatten(specs))
            if key not in concrete:
                with inputs_checked():
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


def _padded(values: np.ndarray, padding_value: int, max_length: int | None = None) -> np.ndarray:
    """Pad axes to a power of two, the second to at least 8; of noise, which has three axes, only the first.

    The second axis of ids is padded to `max_length` at most.
    """
    smallest_sizes = (1,) if values.ndim == 3 else (1, 8)
    shape = [bucket(size, smallest) for size, smallest in zip(values.shape, smallest_sizes, strict=False)]
    if max_length is not None:
        shape[1] = max(values.shape[1], min(shape[1], max_length))
    dtype = {"f": np.float32, "b": np.bool_}.get(values.dtype.kind, np.int32)
    padded = np.full((*shape, *values.shape[len(shape) :]), padding_value, dtype)
    padded[tuple(slice(size) for size in values.shape)] = values
    return padded
