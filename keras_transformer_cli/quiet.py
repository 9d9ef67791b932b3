"""Suppression of the start-up messages of TensorFlow and SentencePiece on standard error."""

import contextlib
import os
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

_GPU = pathlib.Path("/dev/nvidia0")  # the driver of the first GPU, on Linux
_UNUSED_GPU = (
    "TensorFlow does not use the GPU of this machine: a library of CUDA is missing, or of another version. "
    "TF_CPP_MIN_LOG_LEVEL=0 shows which."
)
# Errors that are none: the processor lacks instructions, there is no GPU, or two libraries register the same plugin.
_NO_ERRORS = (
    rb"oneDNN supports|failed call to cuInit: .*(?:CUDA_ERROR_NO_DEVICE|UNKNOWN ERROR \(303\))"
    rb"|Unable to register cu\w+ (?:factory|plugin)"
)
_START_UP = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"
    rb"|(?:[IW]|E(?=.*(?:%s)))\d{4} \d\d:\d\d:[\d.]+ +\d+ \S+:\d+\]"
    rb"|To enable the following instructions|\w+\.cc\(\d+\) LOG\(INFO\)" % _NO_ERRORS
)


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Hide the start-up messages of libraries; write other lines to standard error when the `with` statement ends.

    Use it as a decorator for commands that create several TF.Text tokenizers, for each of which SentencePiece logs a
    line. The environment variable TF_CPP_MIN_LOG_LEVEL=0 shows all lines.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # of messages after the start: errors
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0":
        yield
        return
    from keras_transformer_serving.streams import without_lines

    with without_lines(_START_UP):
        yield


@contextlib.contextmanager
def _limited_memory() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        try:
            import resource  # absent on Windows
        except ImportError:
            raise error from None
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            raise
        raise MemoryError(f"a limit of {limit >> 20:,} MiB; {type(error).__name__}: {error}") from error


def load_libraries() -> None:
    """Import TensorFlow and the package without their start-up messages.

    Raises:
        MemoryError: if this fails and the memory of the process is limited (`ulimit -v`), where libraries raise various
            errors.
    """
    with quiet_start(), _limited_memory():
        import keras

        from keras_transformer import lazy_tensorflow

        computes = keras.backend.backend() == "tensorflow"
        if computes or lazy_tensorflow.is_installed():  # otherwise, for texts
            import tensorflow as tf

            tf.config.list_physical_devices()
            with tf.device("CPU"):
                tf.transpose(
                    tf.zeros([1, 1], tf.int64)
                )  # logs once that oneDNN does not support these integers
            if computes and has_unused_gpu(tf):
                print(_UNUSED_GPU, file=sys.stderr)


def has_unused_gpu(tf: Any) -> bool:
    """Return whether this machine has an NVIDIA GPU that TensorFlow has not found, although no variable hides it."""
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return _GPU.exists() and not is_hidden and not tf.config.list_physical_devices("GPU")
