"""ONNX Runtime's sessions: execution providers, devices and the graphs they may run."""

import concurrent.futures
import contextlib
import logging
import os
import pathlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from keras_transformer_serving import external_data, huge_pages

Provider = str | tuple[str, Mapping[str, Any]]
"""The name of an execution provider, or its name and options."""

File = bytes | os.PathLike[str]
"""The content of a file, or its path."""

Batch = TypeVar("Batch")
Result = TypeVar("Result")

LOG = logging.getLogger("keras_transformer_serving")
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_WEIGHTS_FOLDER = (
    "session.model_external_initializers_file_folder_path"  # of a model that is read from memory
)
_FIRST_WITH_CUDA_13 = (1, 27)  # of the released onnxruntime-gpu; from 1.19 on they were built with CUDA 12


class Sessions:
    """ONNX Runtime's sessions of the graphs of an export.

    Args:
        read: a function from the name of a graph, or of its `external_data.file_name`, to the content of the file; or
            from the name of a graph to the path of its file, for files that do not change: ONNX Runtime then maps the
            weights in a file beside it into memory.
        providers: ONNX Runtime's execution providers, names or tuples of a name and options, in order of preference;
            by default CUDA, if available, then CPU.
        threads: the number of threads that share an operation; by default one for each core, divided by `workers`.
        save_memory: whether weights that are read from a path are mapped into memory, and not packed for faster
            products, which takes their memory once more while a session is created, and unused memory is not kept for
            later operations.
        workers: the number of batches that `map` computes at the same time.
    """

    def __init__(
        self,
        read: Callable[[str], File],
        providers: Sequence[Provider] | None = None,
        threads: int | None = None,
        save_memory: bool = False,
        workers: int = 1,
    ) -> None:
        if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
            raise ValueError(f"`threads` must be a positive integer or None. Received: threads={threads!r}")
        if workers > 1:  # a worker is one of the threads that share its operations; the others are shared
            threads = (threads or max(num_cores() // workers, 1)) * workers - workers + 1
        self._read, self._settings = read, (providers, threads, save_memory)
        self._workers = workers
        self._sessions: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        """Return the session of a graph, which is created once.

        Raises:
            ImportError: if ONNX Runtime is not installed.
            ValueError: if a provider is unknown, not available or not usable, or the graph has its weights in separate
                files.
        """
        if name not in self._sessions:
            _, _, save_memory = self._settings
            with contextlib.nullcontext() if save_memory else huge_pages.for_new_memory():
                self._sessions[name] = _new_session(name, self._read, *self._settings)
        return self._sessions[name]

    def map(self, function: Callable[[Batch], Result], batches: Iterable[Batch]) -> list[Result]:
        """Return the results of a function for batches, some of which are computed at the same time."""
        if self._workers == 1:
            return [function(batch) for batch in batches]
        with concurrent.futures.ThreadPoolExecutor(self._workers) as pool:
            return [*pool.map(function, batches)]  # an error cancels those that have not begun

    def release(self) -> None:
        """Release the memory of all sessions, which are created again when they are needed."""
        self._sessions.clear()


def _new_session(
    name: str,
    read: Callable[[str], File],
    providers: Sequence[Provider] | None,
    threads: int | None,
    save_memory: bool,
) -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ImportError(
            "serving needs ONNX Runtime, the extra [cpu] or [gpu]: pip install onnxruntime, "
            "or onnxruntime-gpu for NVIDIA GPUs; never both"
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: ONNX Runtime warns of each input with a default
    # Otherwise its threads wait busily for some 40 ms after each request, and take the cores from other sessions.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    model: Any = read(name)
    if isinstance(model, os.PathLike):
        path = pathlib.Path(model)
        model, is_large = str(path), path.with_name(external_data.file_name(name)).exists()
        if save_memory and not is_large:
            model, is_large = external_data.detached(np.memmap(path, mode="r").data, path.name), True
            options.add_session_config_entry(_WEIGHTS_FOLDER, str(path.parent))
    else:
        weights = _external_weights(name, model, read)
        is_large = bool(weights)
        if is_large:
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in weights.values()]
            options.add_external_initializers([*weights], values)
    if save_memory and is_large:
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.enable_cpu_mem_arena = False
    available = onnxruntime.get_available_providers()
    if providers is None:
        usable = [provider for provider in (CUDA, CPU) if provider in available]
        session = onnxruntime.InferenceSession(model, sess_options=options, providers=_in_float32(usable))
        if lost := [provider for provider in usable if provider not in session.get_providers()]:
            LOG.warning("%s cannot be used: %s runs on the CPU%s", lost[0], name, _cuda_hint(onnxruntime))
        return session
    names = _names(providers)
    _check_in(available, names, providers, onnxruntime)
    session = onnxruntime.InferenceSession(model, sess_options=options, providers=_in_float32(providers))
    # A provider that does not start, such as CUDA without its libraries, is skipped, and the others run its nodes.
    _check_in(session.get_providers(), names, providers, onnxruntime)
    return session


def _external_weights(name: str, content: bytes, read: Callable[[str], Any]) -> dict[str, np.ndarray]:
    """Return the weights, by name, that a graph reads from a separate file.

    ONNX Runtime gets them as arrays and reads no file, which could have changed since it was verified.

    Raises:
        ValueError: if there are weights in other files, or in nodes.
    """
    external, file = external_data.tensors(content), external_data.file_name(name)
    if wrong := {
        tensor.location for tensor in external if tensor.location != file or not tensor.is_initializer
    }:
        raise ValueError(
            f"`{name}.onnx` must contain its weights or have them in {file}, as exported graphs do. Export again. "
            f"Received: external data in {', '.join(sorted(wrong))}"
        )
    data = read(file) if external else b""
    return {tensor.name: tensor.values(data) for tensor in external}


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_of(session: Any) -> tuple[str, int]:
    """Return the device to keep the inputs and outputs of a session on, as its type, "cuda" or "cpu", and number."""
    if session.get_providers()[0] != CUDA:
        return "cpu", 0
    return "cuda", int(session.get_provider_options()[CUDA].get("device_id", 0))


def as_value(array: np.ndarray, device: tuple[str, int]) -> Any:
    """Copy an array to a device, as ONNX Runtime's `OrtValue`."""
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), *device)


def _in_float32(providers: Sequence[Provider]) -> list[Provider]:
    """Return the providers with TF32 off, unless it was set.

    By default ONNX Runtime rounds the factors of float32 matrix multiplications on GPUs to the 10 bits of TF32, so that
    ids can differ from the model's.
    """
    with_options = [(each, {}) if isinstance(each, str) else each for each in providers]
    return [
        (name, {"use_tf32": 0, **options}) if name == CUDA else given
        for given, (name, options) in zip(providers, with_options, strict=True)
    ]


def _names(providers: Sequence[Provider]) -> list[str]:
    """Return the names of providers, or raise a ValueError unless they are names or names with options."""
    listed = list(providers) if isinstance(providers, list | tuple) else []
    names = [
        provider[0] if isinstance(provider, tuple) and len(provider) == 2 else provider for provider in listed
    ]
    options = [provider[1] for provider in listed if isinstance(provider, tuple) and len(provider) == 2]
    strings = all(isinstance(name, str) for name in names)
    if not (names and strings and all(isinstance(option, Mapping) for option in options)):
        raise ValueError(
            "`providers` must be None, or a list of names, or of tuples (name, options), of execution providers. "
            f"Received: providers={providers!r}"
        )
    return [str(name) for name in names]


def _check_in(
    usable: Sequence[str], names: Sequence[str], providers: Sequence[Provider], onnxruntime: types.ModuleType
) -> None:
    """Raise unless all providers are usable."""
    missing = [name for name in names if name not in usable]
    if missing:
        raise ValueError(
            f"`providers` must be usable execution providers of ONNX Runtime {onnxruntime.__version__}. "
            f"Received: providers={providers!r}, of which {', '.join(missing)} cannot be used; "
            f"usable: {', '.join(usable)}{_cuda_hint(onnxruntime) if CUDA in missing else ''}"
        )


def _cuda_hint(onnxruntime: types.ModuleType) -> str:
    """Return the requirements of the CUDA provider."""
    release = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
    # A package for GPUs has the version that it was built with.
    cuda = onnxruntime.cuda_version or ("13" if release >= _FIRST_WITH_CUDA_13 else "12")
    package = "" if onnxruntime.cuda_version else "keras-transformer-serving[gpu] instead of [cpu], "
    return f". {CUDA} needs {package}an NVIDIA GPU, CUDA {cuda.split('.')[0]} and cuDNN 9"
