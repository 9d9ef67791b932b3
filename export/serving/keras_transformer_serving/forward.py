"""The engines of models that run once, from arrays to arrays."""

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from keras_transformer_serving.graphs import MODEL
from keras_transformer_serving.jobs import Method
from keras_transformer_serving.sessions import Sessions, device_of
from keras_transformer_serving.tasks import FORWARD, Row, Tensor

Batch = TypeVar("Batch")
Result = TypeVar("Result")

_DTYPES = {
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(float)": "float32",
    "tensor(float16)": "float32",
}
OPTIONAL = ("attention_mask", "token_type_ids")


class ForwardEngine(Protocol):
    """The interface of objects that run a model once.

    Attributes:
        inputs: its inputs, for a row.
        outputs: its outputs, for a row.
        device: the type of the device that it runs on, "cpu" or "cuda".

    An engine that cannot hide tokens between others has `needed_to_hide_tokens`, which says what can.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    device: str

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs for a batch of inputs, by name."""

    def map(self, function: Callable[[Batch], Result], batches: Iterable[Batch]) -> list[Result]:
        """Return the results of a function of several batches, which may be computed at the same time."""


class ForwardGraph:
    """The ONNX graph `model` of an export: a `ForwardEngine`.

    Args:
        sessions: ONNX Runtime's sessions of the graphs.
    """

    def __init__(self, sessions: Sessions) -> None:
        self.session = sessions(MODEL)
        self.map = sessions.map
        self.inputs, self.outputs = (
            tuple(
                Tensor(entry.name, _DTYPES[entry.type], _sizes(entry), optional=entry.name in OPTIONAL)
                for entry in entries
            )
            for entries in (self.session.get_inputs(), self.session.get_outputs())
        )
        self.device, _ = device_of(self.session)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of the graph."""
        names = [tensor.name for tensor in self.outputs]
        return dict(zip(names, self.session.run(names, inputs), strict=True))


class ForwardJobs:
    """The engine of the jobs of a model that runs once, whose values are the inputs of a row by name.

    Args:
        engine: what runs the model.
        progress: a function that is called after each batch with the numbers of rows that are computed and of all
            that are known.
    """

    def __init__(self, engine: ForwardEngine, progress: Callable[[int, int], None] | None = None) -> None:
        self.methods: Mapping[str, Method] = {FORWARD: functools.partial(_run, engine)}
        self._engine, self._progress = engine, progress
        self._lock, self._done, self._count = threading.Lock(), 0, 0

    def map(self, method: Method, batches: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the results of a method for several batches, which may be computed at the same time."""
        progress = self._progress
        if progress is None:
            return self._engine.map(method, batches)
        self._count += sum(map(len, batches))

        def reporting(batch: Sequence[Any]) -> Sequence[Any]:
            results = method(batch)
            with self._lock:
                self._done += len(batch)
                progress(self._done, self._count)
            return results

        return self._engine.map(reporting, batches)


def _run(engine: ForwardEngine, batch: Sequence[Row]) -> list[Row]:
    """Return the outputs of each row; inputs of different lengths are padded at their ends."""
    feed = {tensor.name: tensor.stack([row[tensor.name] for row in batch]) for tensor in engine.inputs}
    outputs = engine.run(feed)
    return [{name: values[place] for name, values in outputs.items()} for place in range(len(batch))]


def _sizes(entry: Any) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in entry.shape[1:])
