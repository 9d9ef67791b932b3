"""A switch for XLA, which is off where XLA is known to fail.

`KERAS_TRANSFORMER_XLA=0` turns XLA off and `1` turns it on, in all functions that this package compiles with
TensorFlow. By default it is on, unless TensorFlow's XLA is known to fail on a GPU of this machine. JAX always compiles
with XLA.
"""

import contextlib
import contextvars
import functools
import logging
import os
from collections.abc import Iterator

import keras

VARIABLE = "KERAS_TRANSFORMER_XLA"
# TensorFlow up to 2.21 writes PTX 8.5, which LLVM rejects for Blackwell (compute capability 10.0 and 12.0), and aborts
# the process (TensorFlow's issue 111958).
LAST_FAILING_TENSORFLOW, BLACKWELL = (2, 21), (10, 0)
_LOGGER = logging.getLogger("keras_transformer")
_is_off = contextvars.ContextVar("xla_is_off", default=False)


@contextlib.contextmanager
def off() -> Iterator[None]:
    """Turn XLA off in TensorFlow in the context, for functions that run once: compilation takes longer than they do."""
    token = _is_off.set(True)
    try:
        yield
    finally:
        _is_off.reset(token)


def is_enabled() -> bool:
    """Return whether functions may be compiled with XLA."""
    if keras.config.backend() != "tensorflow":
        return True
    if _is_off.get():
        return False
    setting = os.environ.get(VARIABLE, "")
    if setting not in ("", "0", "1"):
        raise ValueError(f"`{VARIABLE}` must be 0 or 1. Received: {VARIABLE}={setting!r}")
    return setting == "1" if setting else not _is_known_to_fail()


@functools.cache
def _is_known_to_fail() -> bool:
    """Return whether TensorFlow's XLA fails on a GPU of this machine, with one warning."""
    import tensorflow as tf

    version = tuple(int(part) for part in tf.__version__.split(".")[:2])
    if version > LAST_FAILING_TENSORFLOW:
        return False
    for gpu in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        capability = details.get("compute_capability", (0, 0))
        if capability >= BLACKWELL:
            _LOGGER.warning(
                "XLA is off: in TensorFlow %s it aborts the process on %s (compute capability %d.%d). Training and "
                "generation run without it, slower. %s=1 turns it on, =0 silences this warning.",
                tf.__version__,
                details.get("device_name", gpu),
                *capability,
                VARIABLE,
            )
            return True
    return False
