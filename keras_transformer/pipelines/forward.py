"""The base class of pipelines that run their model once, rather than generating in a loop."""

from __future__ import annotations

import abc
import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from keras_transformer.generation.compilation import are_same
from keras_transformer.lazy_tensorflow import is_installed, tf
from keras_transformer.pipelines.keras_forward_engine import KerasForwardEngine
from keras_transformer.pipelines.pipeline import (
    BATCH,
    Arrays,
    ExportedFunction,
    Pipeline,
    Preprocessed,
    spec_of,
)
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check
from keras_transformer_serving.graphs import MODEL
from keras_transformer_serving.pipelines.classification import ArrayPipeline
from keras_transformer_serving.pipelines.errors import RowErrors
from keras_transformer_serving.pipelines.texts import TextPipeline
from keras_transformer_serving.tasks import FORWARD as FORWARD
from keras_transformer_serving.tasks import Row


class ForwardPipeline(Pipeline):
    """Base class of pipelines that run their model once.

    A call runs `preprocess` and `postprocess` as TensorFlow functions, and between them `forward`, compiled by the
    backend of the model; a SavedModel's signature is one function of all three. A call raises or returns the error of
    an invalid input; a signature returns it as "error", beside the answers to the other inputs. Where TensorFlow is not
    installed, a call runs the class that serves exports of the pipeline, and `forward` between its steps.

    Attributes:
        sequence_outputs: the outputs of `forward` whose second axis is the first axis of `padding`, such as the tokens.
    """

    sequence_outputs: ClassVar[tuple[str, ...]] = ()
    _compiled: _Functions | None = None

    @property
    def engine(self) -> KerasForwardEngine:
        """The model on arrays, compiled on its backend."""
        return self._functions().engine

    @property
    def padding(self) -> dict[str, tuple[int, float]]:
        """A dictionary from the model's inputs of variable length to their axis and padding value."""
        return {}

    @property
    def max_padded_length(self) -> int | None:
        """The length up to which the axis of `padding` may be padded; None for any."""
        length: int | None = getattr(self.encoder, "max_length", None)
        return length

    @abc.abstractmethod
    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Convert the outputs of `forward` to the answers to B inputs, as TensorFlow operations.

        Returns:
            Tensors (B, …), by name: the outputs of "serving_default".
        """

    def model_inputs(self, *arrays: Tensor) -> dict[str, Tensor]:
        """Convert the declared inputs of the graph to the model's inputs, by default the same."""
        inputs = self.graph_inputs(self.config)
        return {tensor.name: array for tensor, array in zip(inputs, arrays, strict=True)}

    def forward_graph(self) -> ExportedFunction:
        """Return the function from ids, images or graphs to the outputs of `forward`, with Optimum's names."""
        inputs = self.graph_inputs(self.config)
        axes = {
            tensor.name: [BATCH, *(tensor.axis if size is None else None for size in tensor.shape)]
            for tensor in inputs
        }
        return ExportedFunction(
            lambda *arrays: self.forward(self.model_inputs(*arrays)),
            [spec_of(tensor) for tensor in inputs],
            axes,
        )

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run the model on preprocessed inputs, on any backend."""
        return {"logits": self.model(inputs, training=False)}

    def onnx_graphs(self) -> dict[str, ExportedFunction]:
        """Return the ONNX graphs, by file name."""
        return {MODEL: self.forward_graph()}

    def serve(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Answer a batch inside one TensorFlow function; see `results`."""
        batch = self.preprocess(*inputs)
        return self.results(self.forward(batch.inputs), batch)

    def results(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Return the outputs of `postprocess`, empty for invalid inputs, and "error" (B,).

        Empty values are "", 0.0 and −1.
        """
        answers = self.postprocess(outputs, batch)
        return {
            **{name: _empty_if_invalid(values, batch.error) for name, values in answers.items()},
            "error": batch.error,
        }

    def signatures(self) -> dict[str, ExportedFunction]:
        """Return the signatures of a SavedModel: the declared ones, and "forward"."""
        declared = {
            name: ExportedFunction.of(self.serve, inputs)
            for name, inputs in self.columns(self.config).items()
        }
        return {**declared, FORWARD: self.forward_graph()}

    def outputs_of(self, *inputs: Any) -> Arrays:
        """Return the outputs of "serving_default" for one batch, computed as in a call."""
        count = len(inputs[0])
        return self._answer(self._preprocessed(inputs, np.arange(count)), count)

    def rows(
        self,
        inputs: Sequence[Sequence[Any]],
        batch_size: int,
        order: Sequence[int],
        errors: RowErrors,
        **options: Any,
    ) -> dict[int, Row]:
        """Return the outputs of each valid input, by index, computed in batches; see `TextTask`."""
        if not is_installed():
            return self._functions().served.rows(inputs, batch_size, order, errors, **options)
        rows: dict[int, Row] = {}
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            batch = self._preprocessed(inputs, indices, **options)
            batch.add_errors_to(errors, indices)
            outputs = self._answer(batch, batch_size)
            for place, index in enumerate(indices):
                if index not in errors:
                    rows[index] = {name: _decoded(values[place]) for name, values in outputs.items()}
        return rows

    def _preprocessed(
        self, inputs: Sequence[Sequence[Any]], indices: Sequence[int], **options: Any
    ) -> Preprocessed:
        """Preprocess the inputs at `indices`."""
        with tf.device("CPU"):  # strings exist on the CPU only
            columns = [tf.convert_to_tensor(_chosen(column, indices)) for column in inputs]
            return self._functions().preprocess(*columns, **options)

    def _answer(self, batch: Preprocessed, batch_size: int) -> Arrays:
        """Return the outputs for a preprocessed batch; the model runs on at most `batch_size` rows at once."""
        functions, count = self._functions(), len(next(iter(batch.inputs.values())))
        results = [
            functions.forward(
                {name: values[start : start + batch_size] for name, values in batch.inputs.items()}
            )
            for start in range(0, count, batch_size)
        ]
        with tf.device("CPU"):
            outputs = (
                results[0]
                if len(results) == 1
                else tf.nest.map_structure(lambda *values: tf.concat(values, 0), *results)
            )
            answers = functions.results(outputs, batch)
            return {name: values.numpy() for name, values in answers.items()}

    def _functions(self) -> _Functions:
        """Return the compiled functions, compiled again if their constants have changed."""
        if self._compiled is None or not self._compiled.are_valid():
            self._compiled = _Functions(self)
        return self._compiled


class _Functions:
    """The functions of a pipeline, compiled for its settings, its tokenizer and its model's variables.

    Attributes:
        engine: the compiled model, on arrays.
    """

    def __init__(self, pipeline: ForwardPipeline) -> None:
        self._pipeline = pipeline
        self._variables = pipeline.model.variables
        self._tokenizer = pipeline.tokenizer
        self._settings = copy.deepcopy(pipeline.settings())
        self._preprocess: dict[Any, Callable[..., Preprocessed]] = {}
        self.engine = KerasForwardEngine(pipeline)

    def are_valid(self) -> bool:
        """Return whether settings, tokenizer and variables are unchanged; quantisation replaces variables."""
        pipeline = self._pipeline
        return (
            are_same(pipeline.model.variables, self._variables)
            and pipeline.tokenizer is self._tokenizer
            and pipeline.settings() == self._settings
        )

    @functools.cached_property
    def served(self) -> Any:
        """The class that answers without TensorFlow."""
        served = self._pipeline.served()
        if not isinstance(served, TextPipeline | ArrayPipeline):
            raise ImportError(
                f"`{type(self._pipeline).__name__}` requires TensorFlow and TensorFlow Text, or a class that serves "
                "its exports: a `TextPipeline` or `ArrayPipeline` of `keras_transformer_serving.pipelines` of this name"
            )
        return served

    @functools.cached_property
    def results(self) -> Callable[..., dict[str, tf.Tensor]]:
        """The function `results`."""
        return tf.function(self._pipeline.results, autograph=False, reduce_retracing=True)

    def preprocess(self, *columns: tf.Tensor, **options: Any) -> Preprocessed:
        """Run `preprocess` with options on batches of any size."""
        # Only the last axis of arrays, of channels or features, has a fixed size.
        shapes = [
            [None] * len(column.shape)
            if column.dtype == tf.string
            else [None] * max(1, len(column.shape) - 1) + column.shape.as_list()[1:][-1:]
            for column in columns
        ]
        specs = [tf.TensorSpec(shape, column.dtype) for shape, column in zip(shapes, columns, strict=True)]
        key = (*specs, *options.items())
        if key not in self._preprocess:
            self._preprocess[key] = tf.function(
                functools.partial(self._pipeline.preprocess, **options),
                input_signature=specs,
                autograph=False,
            )
        return self._preprocess[key](*columns)

    def forward(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Run `forward` on inputs of any number of rows and any length."""
        if self.engine.is_dynamic:
            return self.engine.dynamic(inputs)
        outputs = self.engine.forward({name: values.numpy() for name, values in inputs.items()})
        return {name: tf.convert_to_tensor(values) for name, values in outputs.items()}


def check_no_texts(pipeline: ForwardPipeline, texts: Any) -> None:
    """Raise a ValueError if example texts are passed for a pipeline that does not read texts."""
    check(texts is None, f"be None for a {type(pipeline).__name__}", texts=texts)


def _empty_if_invalid(values: Tensor, error: Tensor) -> Tensor:
    """Replace values (B, …) by "", 0.0 or −1 in rows with an error (B,)."""
    empty = tf.constant(
        "" if values.dtype == tf.string else -1 if values.dtype.is_integer else 0.0, values.dtype
    )
    accepted = tf.reshape(error == "", [-1] + [1] * (len(values.shape) - 1))
    return tf.where(accepted, values, empty)


def _decoded(value: Any) -> Any:
    """Convert an output of a row: bytes to strings, scalars to Python values."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return np.array([item.decode() for item in value.flat], object).reshape(value.shape)
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value


def _chosen(column: Sequence[Any], indices: Sequence[int]) -> Any:
    return column[np.asarray(indices)] if isinstance(column, np.ndarray) else [column[i] for i in indices]
