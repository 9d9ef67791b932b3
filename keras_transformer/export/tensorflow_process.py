"""Export of models on another backend than TensorFlow, in a process that runs Keras on TensorFlow."""

import contextlib
import functools
import inspect
import json
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import keras

from keras_transformer.pipelines.pipeline import Pipeline

try:
    from cloudpickle import Pickler  # it also writes classes and functions of a script or notebook
except ImportError:
    from pickle import Pickler

P = ParamSpec("P")
R = TypeVar("R")
_CLEANUP = 30  # seconds that an interrupted process has to remove incomplete files


def on_tensorflow(export: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of a pipeline or Keras model to run in a new process unless Keras runs on TensorFlow.

    The process loads the saved model with Keras on TensorFlow, on a CPU, because the memory of GPUs may be in use. Its
    output is passed to the function's `say`, by default printed to stderr, and its errors are raised here. It is
    interrupted when this process is interrupted or ends.
    """
    signature = inspect.signature(export)

    @functools.wraps(export)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if keras.backend.backend() == "tensorflow":
            return export(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        if not any(isinstance(value, Pipeline | keras.Model) for value in bound.arguments.values()):
            return export(*args, **kwargs)
        bound.apply_defaults()
        say = bound.arguments.pop("say", functools.partial(print, file=sys.stderr))
        return _in_process(export.__name__, bound.arguments, say)

    return wrapped


def _in_process(name: str, arguments: dict[str, Any], say: Callable[[str], None]) -> Any:
    say(f"`{name}` runs in a process with TensorFlow, because the model is on {keras.backend.backend()}")
    with tempfile.TemporaryDirectory(prefix="keras-transformer-export-") as temporary:
        folder = pathlib.Path(temporary)
        _write(name, arguments, folder)
        command = [sys.executable, "-P", "-c", f"from {__name__} import run; run({temporary!r})"]
        with subprocess.Popen(
            command,
            env=_environment(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C interrupts this process alone
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    say(line.rstrip("\n"))
            except BaseException:
                process.stdin.close()
                try:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_CLEANUP)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                raise
        if not (folder / "result").exists():
            raise RuntimeError(
                f"The process with TensorFlow ended without a result. Received: exit status {process.returncode}"
            )
        result, error, trace = pickle.loads((folder / "result").read_bytes())
    if error is not None:
        raise error from RuntimeError(f"in the process with TensorFlow:\n{trace}")
    return result


def _write(name: str, arguments: dict[str, Any], folder: pathlib.Path) -> None:
    """Write a call to the file `call`."""
    try:
        with open(folder / "call", "wb") as file:
            _Pickler(file, folder).dump((name, arguments))
    except (TypeError, pickle.PicklingError) as error:
        raise TypeError(
            f"`{name}` runs in a process with TensorFlow, so pickle and Keras must be able to save its arguments. "
            f"Received: {error}"
        ) from error


def _environment(current: Mapping[str, str]) -> dict[str, str]:
    environment = {
        "TF_CPP_MIN_LOG_LEVEL": "3",  # without a GPU, failures raise Python's errors
        **current,
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "PYTHONIOENCODING": "utf-8",
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop("XLA_FLAGS", None)  # TensorFlow exits on flags that only JAX knows
    return environment


class _Pickler(Pickler):
    """Writes pipelines and models to folders, tensors as arrays, and the other values as pickle does."""

    def __init__(self, file: Any, folder: pathlib.Path) -> None:
        super().__init__(file)
        self._folder = folder

    def persistent_id(self, value: Any) -> Any:
        """Return the arguments of `_Unpickler.persistent_load` for a pipeline, a model or a tensor."""
        if keras.ops.is_tensor(value):
            return keras.ops.convert_to_numpy(value), None, {}
        if not isinstance(value, Pipeline | keras.Model):
            return None
        if isinstance(value, Pipeline):
            value.export_config()  # raises if the pipeline cannot be exported
        folder = pathlib.Path(tempfile.mkdtemp(dir=self._folder))
        value.save(folder if isinstance(value, Pipeline) else folder / "model.keras")
        return type(value), folder, _custom_objects(folder)


def _custom_objects(folder: pathlib.Path) -> dict[str, Any]:
    """Return the registered classes and functions whose names occur in the files of a model or pipeline."""
    with zipfile.ZipFile(folder / "model.keras") as archive:
        configs = archive.read("config.json").decode()
    configs += "".join(path.read_text() for path in folder.glob("*.json"))
    return {
        name: value
        for name, value in keras.saving.get_custom_objects().items()
        if json.dumps(name) in configs
    }


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, saved: Any) -> Any:
        value, folder, custom_objects = saved
        if folder is None:
            return value
        keras.saving.get_custom_objects().update(custom_objects)
        keras.config.enable_unsafe_deserialization()  # the model is the caller's own
        return (
            value.load(folder)
            if issubclass(value, Pipeline)
            else keras.saving.load_model(folder / "model.keras")
        )

    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except (AttributeError, ImportError) as error:
            raise ImportError(
                f"`{name}` must be in a module that another process can import: move it from {module} to a "
                f"separate file, or pip install cloudpickle. Received: {error}"
            ) from error


def run(path: str) -> None:
    """Run the call in the file `call` of a folder, and write its result or exception to the file `result`."""
    from keras_transformer import export

    caller_ended = threading.Event()
    watch = functools.partial(_interrupt_at_end_of_input, threading.get_ident(), caller_ended)
    threading.Thread(target=watch, daemon=True).start()
    folder = pathlib.Path(path)
    try:
        with open(folder / "call", "rb") as file:
            name, arguments = _Unpickler(file).load()
        content = pickle.dumps((getattr(export, name)(**arguments), None, ""))
    except Exception as error:
        content = _pickled(error, traceback.format_exc())
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if caller_ended.is_set():  # and may have been killed before it removed its folder
            shutil.rmtree(folder, ignore_errors=True)
    if not caller_ended.is_set():
        (folder / "result").write_bytes(content)


def _pickled(error: Exception, trace: str) -> bytes:
    content = pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}"), trace))
    with contextlib.suppress(Exception):  # pickling or unpickling an exception may fail
        original = pickle.dumps((None, error, trace))
        pickle.loads(original)
        content = original
    return content


def _interrupt_at_end_of_input(main: int, ended: threading.Event) -> None:
    os.read(0, 1)
    ended.set()
    signal.pthread_kill(main, signal.SIGINT)
