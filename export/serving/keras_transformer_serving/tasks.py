"""The declaration of tasks: their inputs and outputs as tensors of rows, their results, and the classes of exports."""

import dataclasses
import importlib.metadata
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from keras_transformer_serving import closeness

T = TypeVar("T")
DEFAULT = "serving_default"
FORWARD = "forward"  # from ids or arrays to the outputs of the model
ERROR = "error"
Row = dict[str, Any]
"""The inputs or outputs of a row, by name; inputs of requests also have `ERROR` if the row is invalid."""


_ANY = (-math.inf, math.inf)


@dataclasses.dataclass(frozen=True)
class DType:
    """The names of a data type.

    Attributes:
        numpy: NumPy's.
        tensorflow: TensorFlow's `DataType`.
        inference: that of the Open Inference Protocol.
        json: JSON Schema's type.
        padding: the value of an invalid row and of padding.
    """

    numpy: Any
    tensorflow: str
    inference: str
    json: str
    padding: Any


DTYPES = {
    "string": DType(object, "DT_STRING", "BYTES", "string", ""),
    "int32": DType(np.int32, "DT_INT32", "INT32", "integer", -1),
    "int64": DType(np.int64, "DT_INT64", "INT64", "integer", -1),
    "bool": DType(np.bool_, "DT_BOOL", "BOOL", "boolean", False),
    "float32": DType(np.float32, "DT_FLOAT", "FP32", "number", 0.0),
}


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An input or output of a signature, without the axis of the batch.

    Attributes:
        name: its name.
        dtype: a name in `DTYPES`.
        shape: the sizes of its axes; None for any.
        default: the value of a row without it; None if it has none.
        optional: whether a row may be without it.
        empty: the value of an invalid row; by default `DType.padding`, and no entries along an axis of any size.
        padding: the value that pads rows along axes of any size; by default `DType.padding`.
        choices: the possible values; by default all of its type.
        range: the least and the largest value of a row; by default all of its type.
        help: a sentence that describes it; by default none.
        axis: the name of axes of any size in ONNX graphs.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] = ()
    default: Any = None
    optional: bool = False
    empty: Any = None
    padding: Any = None
    choices: tuple[str, ...] = ()
    range: tuple[float, float] = _ANY
    help: str = ""
    axis: str = "sequence_length"

    @property
    def names(self) -> DType:
        """The names of the data type."""
        return DTYPES[self.dtype]

    @property
    def required(self) -> bool:
        """True if each row must have it."""
        return self.default is None and not self.optional

    @property
    def reads_bytes(self) -> bool:
        """True if a value of JSON can be {"b64": …}, the base64 of bytes."""
        return self.dtype == "string" and not self.shape

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of an entry."""
        schema: dict[str, Any] = {"type": self.names.json}
        if self.range != _ANY:
            schema["minimum"], schema["maximum"] = self.range
        return schema | ({"description": self.help} if self.help else {})

    def convert(self, value: Any, place: str) -> Any:
        """Return a value of JSON as a string, bytes, a number, a list of strings, or an array, after checking it.

        Args:
            value: the value of a row.
            place: its place in the request, for the error.
        """
        if self.shape == (None,) and self.dtype == "string":
            if isinstance(value, list) and all(isinstance(each, str | bytes) for each in value):
                return value
        elif self.shape:
            return self._array(value, place)
        elif self.dtype == "bool":
            if isinstance(value, bool):
                return value
        elif self.dtype == "string":
            if isinstance(value, str | bytes):
                return value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            # Floats are not converted to integers, and values must fit their type.
            number = self._number(value)
            if number is not None:
                return number
        raise self._error(value, place)

    def stack(self, rows: Sequence[Any]) -> np.ndarray:
        """Return the values of B rows (B, …), padded along axes of any size."""
        if not self.shape:
            values = np.empty(len(rows), self.names.numpy)
            values[:] = rows
            return values
        arrays = [self._shaped(np.asarray(row, self.names.numpy)) for row in rows]
        sizes = [max(axis) for axis in zip(*(array.shape for array in arrays), strict=True)]
        if not arrays:
            sizes = [size or 0 for size in self.shape]
        padding = self.names.padding if self.padding is None else self.padding
        stacked = np.full((len(rows), *sizes), padding, self.names.numpy)
        for row, array in zip(stacked, arrays, strict=True):
            row[tuple(map(slice, array.shape))] = array
        return stacked

    def empty_value(self) -> Any:
        """Return the value of an invalid row."""
        if self.empty is not None:
            return self.empty
        if not self.shape:
            return self.names.padding
        return np.full([size or 0 for size in self.shape], self.names.padding, self.names.numpy)

    def _number(self, value: float) -> Any:
        if self.dtype == "float32":
            return float(value) if abs(value) <= np.finfo(np.float32).max else None
        limits = np.iinfo(self.names.numpy)
        return value if isinstance(value, int) and limits.min <= value <= limits.max else None

    def _array(self, value: Any, place: str) -> np.ndarray:
        try:
            array = self._shaped(np.asarray(value))
        except (ValueError, OverflowError, RecursionError):  # ragged, or deeper than NumPy's arrays
            raise self._error(value, place) from None
        accepted = {"int64": "iu", "int32": "iu", "float32": "iuf", "bool": "b"}[self.dtype]
        fits = array.ndim == len(self.shape) and all(
            size in (None, actual) for size, actual in zip(self.shape, array.shape, strict=True)
        )
        if not fits or (array.size and array.dtype.kind not in accepted):
            raise self._error(value, place)
        if array.size and self.dtype == "float32" and not np.abs(array).max() <= np.finfo(np.float32).max:
            raise self._error(value, place)
        return array.astype(self.names.numpy)

    def _shaped(self, array: np.ndarray) -> np.ndarray:
        """Return an array without entries, such as that of [], in the tensor's number of axes."""
        if array.size or array.ndim == len(self.shape):
            return array
        return (
            array.reshape([0 if size is None else size for size in self.shape])
            if None in self.shape
            else array
        )

    def _error(self, value: Any, place: str) -> ValueError:
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
        scalars = {"string": "a string", "float32": "a finite number", "bool": "true or false"}
        scalar = scalars.get(self.dtype, f"an {self.dtype}")
        expected = f"{self.dtype} of shape ({sizes})" if self.shape else scalar
        return ValueError(f"`{self.name}` must be {expected}. Received: {place}={shown(value)}")


TEXT = Tensor("text", "string")
ERROR_OUTPUT = Tensor(ERROR, "string")
"""The error of a row, "" for none: the last output of signatures whose rows can have errors."""


class Task:
    """The declaration of a task: its inputs, its outputs and the results of calls.

    A pipeline of `keras_transformer.pipelines` and the class that runs its export both extend it. The signatures of
    SavedModels and of the server, the answers of calls and the columns of the command line follow from it.

    Attributes:
        reads: what the command line reads from a line: "texts", separated by tabs, the path of one of "images" or
            of "audio", or "" if it cannot read the inputs.
        config: the settings of an export.
    """

    reads: ClassVar[str] = "texts"
    config: dict[str, Any]

    @classmethod
    def columns(cls, config: dict[str, Any]) -> dict[str, tuple[Tensor, ...]]:
        """Return the inputs of each signature, which `preprocess` takes in this order."""
        return {DEFAULT: (TEXT,)}

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the outputs of these signatures, apart from "error"."""
        raise NotImplementedError

    @classmethod
    def tensors(cls, config: dict[str, Any]) -> dict[str, tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
        """Return the inputs and the outputs of each signature."""
        outputs = (*cls.outputs(config), ERROR_OUTPUT)
        return {name: (inputs, outputs) for name, inputs in cls.columns(config).items()}

    @classmethod
    def graph_inputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the inputs of the model's graph: by default those of "serving_default"."""
        return cls.columns(config)[DEFAULT]

    @classmethod
    def answer(cls, row: Row, config: dict[str, Any]) -> Any:
        """Return the answer of a call for the outputs of a row: by default the only one, or a tuple of all."""
        values = tuple(row[tensor.name] for tensor in cls.outputs(config))
        return values[0] if len(values) == 1 else values

    @classmethod
    def closeness(cls, pairs: Sequence[closeness.Pair], config: dict[str, Any]) -> closeness.Figures:
        """Return how close the outputs of the graph in another precision are to the model's, by what the task needs.

        Args:
            pairs: the inputs and outputs of several batches.
            config: the settings of the export.

        Returns:
            Figures with a threshold in `precisions.THRESHOLDS`: by default those of `closeness.tensors`.
        """
        return closeness.tensors(pairs)

    @staticmethod
    def text(answer: Any) -> str:
        """Return the answer of a call as a line of text: by default values separated by spaces."""
        values = answer.tolist() if hasattr(answer, "tolist") else answer
        return " ".join(map(str, values)) if isinstance(values, list | tuple) else str(values)


class ExportedPipeline(Task):
    """Base class of exported pipelines, which a subclass joins by its name.

    `load`, the server and the command line look for the name of the pipeline, which is that of the subclass unless it
    says another: `class ServedRating(TextPipeline, pipeline="Rating")`. A module that nothing imports is found as an
    entry point of the group "keras_transformer_serving.pipelines" with this name.

    A pipeline can be pickled, as `multiprocessing` does: the other process loads the export again from its folder. The
    pickle has the folder and the arguments of `load`, a `signature_key` among them.

    Attributes:
        classes: the subclasses, by the name of their pipeline.
        target: the name of the target that runs it, such as "onnx"; `load` sets it.
        reload: a function that loads the export again, with the same options; `load` sets it.
    """

    classes: ClassVar[dict[str, type["ExportedPipeline"]]] = {}
    target: str = ""
    reload: Callable[[], "ExportedPipeline"]

    def __init_subclass__(cls, pipeline: str | None = None, **kwargs: Any) -> None:
        """Register the class by the name of its pipeline."""
        super().__init_subclass__(**kwargs)
        ExportedPipeline.classes[pipeline or cls.__name__] = cls

    def __reduce__(self) -> tuple[Callable[[], "ExportedPipeline"], tuple[()]]:
        return self.reload, ()

    @staticmethod
    def named(pipeline: str) -> type["ExportedPipeline"] | None:
        """Return the class of a pipeline's name, None if there is none."""
        return registered(ExportedPipeline.classes, "keras_transformer_serving.pipelines", pipeline)


def registered(classes: Mapping[str, T], group: str, name: str) -> T | None:
    """Return the class of a name, which an entry point of a group may have to import first; None if there is none."""
    if name not in classes:
        for entry_point in importlib.metadata.entry_points(group=group, name=name):
            entry_point.load()
    return classes.get(name)


def shown(value: Any, limit: int = 80) -> str:
    """Return a value for an error, shortened."""
    try:
        text = repr(value) if not isinstance(value, str) else repr(value[: limit + 1])
    except (RecursionError, ValueError):  # nested too deeply, or an integer of too many digits
        text = type(value).__name__
    return text if len(text) <= limit else f"{text[:limit]}…"
