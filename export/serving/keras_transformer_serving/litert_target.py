"""The LiteRT model of an export, run by ai-edge-litert."""

import concurrent.futures
import importlib.metadata
import queue
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from keras_transformer_serving.forward import OPTIONAL, Batch, Result
from keras_transformer_serving.graph_files import FLOAT32, check_precision
from keras_transformer_serving.part_files import PartFiles
from keras_transformer_serving.pipelines.errors import check_positive_integer
from keras_transformer_serving.sessions import num_cores
from keras_transformer_serving.streams import without_lines
from keras_transformer_serving.targets import EngineOptions, ServedTarget
from keras_transformer_serving.tasks import Tensor

LITERT = "litert"
_DELEGATE = re.compile(rb"INFO: Created TensorFlow Lite \w+ delegate")


def model_file(precision: str = FLOAT32) -> str:
    """Return the file of the model in a precision, relative to the folder of the part."""
    return "model.tflite" if precision == FLOAT32 else f"{precision}/model.tflite"


def litert_package() -> Any:
    """Return the module with LiteRT's interpreter.

    Raises:
        ImportError: if it is not installed, or too old.
    """
    message = "LiteRT needs version 2.1 or later, of the extra [litert]: pip install 'ai-edge-litert>=2.1'"
    try:
        version = importlib.metadata.version("ai-edge-litert")
        from ai_edge_litert import interpreter
    except ModuleNotFoundError as error:
        raise ImportError(f"{message}. Received: {error}") from error
    if tuple(map(int, version.split(".")[:2])) < (2, 1):
        raise ImportError(f"{message}. Received: version {version}")
    return interpreter


class LiteRtModel:
    """The model of a pipeline that does not generate, run by LiteRT: a `ForwardEngine`.

    An interpreter takes one batch at a time, and allocates its tensors anew where a batch has another shape.

    Args:
        content: the content of the model's file.
        threads: the number of threads that share an operation; by default one for each core, divided by `workers`.
        workers: the number of batches that are computed at the same time, each by an interpreter of its own.

    Raises:
        ImportError: if ai-edge-litert is not installed.
        ValueError: if the installed version does not run the model, or an argument is invalid.
    """

    device = "cpu"

    def __init__(self, content: bytes, threads: int | None = None, workers: int = 1) -> None:
        if threads is not None:
            check_positive_integer("threads", threads)
        self._workers = workers
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(workers):
            self._free.put(_runner(content, threads or max(num_cores() // workers, 1)))
        with _Taken(self._free) as runner:
            self.inputs, self.outputs = (
                tuple(
                    Tensor(
                        name,
                        np.dtype(detail["dtype"]).name,
                        tuple(None if size < 0 else int(size) for size in detail["shape_signature"][1:]),
                        optional=name in OPTIONAL,
                    )
                    for name, detail in details.items()
                )
                for details in (runner.get_input_details(), runner.get_output_details())
            )

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of the model."""
        with _Taken(self._free) as runner:
            outputs: dict[str, np.ndarray] = runner(**inputs)
        return outputs

    def map(self, function: Callable[[Batch], Result], batches: Iterable[Batch]) -> list[Result]:
        """Return the results of a function for batches, some of which are computed at the same time."""
        with concurrent.futures.ThreadPoolExecutor(self._workers) as pool:
            return [*pool.map(function, batches)]


class _Taken:
    """A context manager that takes an interpreter, and returns it."""

    def __init__(self, free: "queue.SimpleQueue[Any]") -> None:
        self._free = free

    def __enter__(self) -> Any:
        self._runner = self._free.get()
        return self._runner

    def __exit__(self, *_: object) -> None:
        self._free.put(self._runner)


def _runner(content: bytes, threads: int) -> Any:
    """Return the signature of a model as a function of arrays of any batch size and length."""
    package = litert_package()
    try:
        interpreter = package.Interpreter(model_content=content, num_threads=threads)
        with without_lines(_DELEGATE):
            interpreter.allocate_tensors()
        return interpreter.get_signature_runner()
    except (RuntimeError, ValueError) as error:
        version = importlib.metadata.version("ai-edge-litert")
        raise ValueError(
            "`engine` must be a LiteRT that has the operations of the model. Update ai-edge-litert. Received: "
            f"ai-edge-litert {version}: {' '.join(str(error).split())}"
        ) from error


class ServedLiteRt(ServedTarget):
    """LiteRT."""

    name = LITERT
    options = ("precision", "threads", "workers")

    @classmethod
    def engine(cls, files: PartFiles, config: dict[str, Any], options: EngineOptions) -> LiteRtModel:
        """Return the model in a precision as an engine."""
        check_precision(files, options.precision)
        return LiteRtModel(files.content(model_file(options.precision)), options.threads, options.workers)

    @classmethod
    def size(cls, sizes: Mapping[str, int], options: EngineOptions) -> int:
        """Return the number of bytes of the model in a precision."""
        return sizes.get(model_file(options.precision), 0)
