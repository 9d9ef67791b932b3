"""Exports of pipelines whose model runs on another backend than TensorFlow, in a process with TensorFlow."""

import functools
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.export.bundle_writer import check_pipeline


def on_tensorflow(export: Callable[..., pathlib.Path]) -> Callable[..., pathlib.Path]:
    """Decorate an export of a pipeline, which runs in a new process if Keras does not run on TensorFlow.

    The process loads the saved pipeline with Keras on TensorFlow, on a CPU, since the memory of GPUs may be taken. Its
    progress is printed here, by the export's `say` if it has one, and its errors are raised here.
    """

    @functools.wraps(export)
    def wrapped(pipeline: Any, folder: str | os.PathLike[str], **options: Any) -> pathlib.Path:
        if keras.backend.backend() == "tensorflow":
            return export(pipeline, folder, **options)
        check_pipeline(pipeline)
        return _in_process(export.__name__, pipeline, folder, options)

    return wrapped


def _in_process(name: str, pipeline: Any, folder: Any, options: dict[str, Any]) -> pathlib.Path:
    say = options.pop("say", print)
    say(f"Exporting in a process with TensorFlow: the model runs on {keras.backend.backend()}")
    with tempfile.TemporaryDirectory(prefix="keras-transformer-export-") as temporary:
        files = pathlib.Path(temporary)
        pipeline.save(files / "pipeline")
        (files / "call").write_bytes(pickle.dumps((name, folder, options)))
        environment = {
            **os.environ,
            "KERAS_BACKEND": "tensorflow",
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONUNBUFFERED": "1",
        }
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        command = [sys.executable, "-c", f"from {__name__} import run; run({temporary!r})"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                for line in process.stdout or ():
                    say(line.rstrip("\n"))
            except BaseException:
                process.terminate()
                raise
        if not (files / "result").exists():
            raise RuntimeError(
                f"The process with TensorFlow ended without a result. Received: exit status {process.returncode}"
            )
        result = pickle.loads((files / "result").read_bytes())
    if isinstance(result, BaseException):
        raise result
    return result


def run(folder: str) -> None:
    """Run the export that a folder's file `call` describes, and write its return value or its exception to `result`."""
    from keras_transformer import export, pipelines

    files = pathlib.Path(folder)
    name, target, options = pickle.loads((files / "call").read_bytes())
    try:
        result = pickle.dumps(getattr(export, name)(pipelines.load(files / "pipeline"), target, **options))
    except Exception as error:
        result = _pickled(error)
    (files / "result").write_bytes(result)


def _pickled(error: Exception) -> bytes:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # an exception may only fail here
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return data
