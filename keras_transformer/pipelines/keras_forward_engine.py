"""The engine of a Keras model that runs once, on its backend."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import keras
import numpy as np

from keras_transformer import xla
from keras_transformer.generation.compilation import bucket, compiled
from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models.input_specs import inputs_checked
from keras_transformer.pipelines.pipeline import Arrays
from keras_transformer_serving.tasks import Tensor

Batch = TypeVar("Batch")
Result = TypeVar("Result")


class _Forward(keras.Operation):
    """`forward` for the inputs of the graph, of symbolic tensors too."""

    def __init__(self, pipeline: Any) -> None:
        super().__init__()
        self._pipeline = pipeline

    def call(self, *arrays: Any) -> Any:
        """Return the outputs, by name."""
        return self._pipeline.forward(self._pipeline.model_inputs(*arrays))


class KerasForwardEngine:
    """A `ForwardEngine` of the model of a pipeline, compiled for a few sizes of its inputs.

    Args:
        pipeline: a `ForwardPipeline`, whose settings and whose model's variables do not change.

    Attributes:
        inputs: the inputs of the graph, for a row.
        device: the type of the device that the model runs on.
        is_dynamic: whether `dynamic` computes all shapes: with TensorFlow without XLA, as on a CPU XLA saves less time
            than it takes to compile.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._compiled = compiled(pipeline.model.variables, pipeline.forward, True)
        self.device = device_of_keras()
        uses_xla = xla.is_enabled() and self.device == "cuda"
        self.is_dynamic = keras.backend.backend() == "tensorflow" and not uses_xla
        self._dynamic: Callable[[Any], dict[str, Any]] | None = None
        self.inputs: tuple[Tensor, ...] = pipeline.graph_inputs(pipeline.config)

    @functools.cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        """The outputs of `forward`, for a row."""
        config = self._pipeline.config
        length = 8 * config["min_samples"] if "min_samples" in config else 1  # several frames of audio
        specs, others = (self._output_specs(each) for each in (length, 2 * length))
        return tuple(
            Tensor(
                name,
                "float32" if "float" in spec.dtype else spec.dtype,
                tuple(
                    size if size == other else None
                    for size, other in zip(spec.shape[1:], others[name].shape[1:], strict=True)
                ),
            )
            for name, spec in specs.items()
        )

    def _output_specs(self, length: int) -> dict[str, Any]:
        """Return the symbolic outputs of a row whose axes of any size have a length."""
        sizes = ((1, *(size or length for size in tensor.shape)) for tensor in self.inputs)
        dtypes = ("float32" if tensor.dtype == "float32" else "int32" for tensor in self.inputs)
        specs: dict[str, Any] = _Forward(self._pipeline)(*map(keras.KerasTensor, sizes, dtypes))
        return specs

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs for a batch of the inputs of the graph, by name."""
        arrays = [_int32(inputs[tensor.name]) for tensor in self.inputs]
        converted = self._pipeline.model_inputs(*arrays)
        return self.forward({name: np.asarray(values) for name, values in converted.items()})

    def forward(self, inputs: Arrays) -> Arrays:
        """Return the outputs of `forward` for a batch of its inputs, which are padded to one of a few sizes for XLA."""
        if self.is_dynamic:
            outputs = self.dynamic({name: keras.ops.convert_to_tensor(each) for name, each in inputs.items()})
            return {name: keras.ops.convert_to_numpy(values) for name, values in outputs.items()}
        count = len(next(iter(inputs.values())))
        lengths = (
            inputs[name].shape[axis] for name, (axis, _) in self._pipeline.padding.items() if name in inputs
        )
        length = next(lengths, None)
        outputs = self._compiled({name: self._padded(name, values) for name, values in inputs.items()})
        arrays = {name: keras.ops.convert_to_numpy(values)[:count] for name, values in outputs.items()}
        of_tokens = self._pipeline.sequence_outputs
        return {name: values[:, :length] if name in of_tokens else values for name, values in arrays.items()}

    def dynamic(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs of `forward` for tensors of TensorFlow of any number of rows and any length."""
        if self._dynamic is None:
            specs = {name: self._spec(name, values) for name, values in inputs.items()}
            self._dynamic = tf.function(self._pipeline.forward, input_signature=[specs], autograph=False)
        with inputs_checked():
            return self._dynamic(inputs)

    def map(self, function: Callable[[Batch], Result], batches: Iterable[Batch]) -> list[Result]:
        """Return the results of a function of several batches, one after another."""
        return [function(batch) for batch in batches]

    def _padded(self, name: str, values: np.ndarray) -> np.ndarray:
        """Pad the rows, and the axis of `padding`, to one of a few sizes."""
        axis, padding_value = self._pipeline.padding.get(name, (0, 0))
        widths = [(0, 0)] * values.ndim
        if axis != 0:
            length = values.shape[axis]
            limit = self._pipeline.max_padded_length or math.inf
            widths[axis] = (0, int(min(length_bucket(length), max(length, limit))) - length)
        widths[0] = (0, bucket(len(values), 1) - len(values))
        return np.pad(values, widths, constant_values=padding_value)

    def _spec(self, name: str, values: Any) -> tf.TensorSpec:
        shape = values.shape.as_list()
        shape[0] = None
        if name in self._pipeline.padding:
            shape[self._pipeline.padding[name][0]] = None
        return tf.TensorSpec(shape, values.dtype, name=name)


def device_of_keras() -> str:
    """Return the type of the devices of the backend as of ONNX Runtime, "cpu" or "cuda"."""
    names = keras.distribution.list_devices()
    return "cuda" if any(name.lower().startswith(("gpu", "cuda")) for name in names) else "cpu"


def length_bucket(length: int) -> int:
    """Round `length` up to one of 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, …"""
    step = max(8, bucket(length, 8) // 8)
    return max(8, -(-length // step) * step)


def _int32(values: np.ndarray) -> np.ndarray:
    """Convert integers to int32, which JAX has without a warning."""
    return values.astype(np.int32) if values.dtype.kind in "iu" else values
