import functools
import os
import pathlib

import pytest


@pytest.fixture(scope="session")
def real_data() -> pathlib.Path:
    """The folder of real data sets; tests that need it are skipped where it is absent."""
    beside = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = pathlib.Path(os.environ.get("KERAS_TRANSFORMER_DATA") or beside)
    if not folder.is_dir():
        pytest.skip(
            f"real data sets are absent: set KERAS_TRANSFORMER_DATA to their folder (looked in {folder})"
        )
    return folder


@pytest.fixture
def download_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An empty cache for `keras.utils.get_file`, and no local folder of data sets."""
    import keras

    monkeypatch.delenv("KERAS_TRANSFORMER_DATA", raising=False)
    folder = tmp_path / "cache"
    folder.mkdir()  # get_file would otherwise fall back to /tmp/.keras
    monkeypatch.setattr(keras.utils, "get_file", functools.partial(keras.utils.get_file, cache_dir=folder))
    return folder


@pytest.fixture(scope="session")
def gradients():
    """gradients(function, *arrays): those of a function's scalar result, as NumPy arrays, on any backend."""
    import keras

    def on_tensorflow(function, *arrays):
        import tensorflow as tf

        tensors = [tf.convert_to_tensor(array) for array in arrays]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = function(*tensors)
        found = tape.gradient(result, tensors, unconnected_gradients="zero")
        return [gradient.numpy() for gradient in found]

    def on_jax(function, *arrays):
        import jax
        import numpy as np

        tensors = [jax.numpy.asarray(array) for array in arrays]
        return [np.asarray(gradient) for gradient in jax.grad(function, range(len(tensors)))(*tensors)]

    return on_jax if keras.config.backend() == "jax" else on_tensorflow


@pytest.fixture(scope="session")
def modes():
    """Each way this backend can run a function of tensors: its name, and what to wrap the function in."""
    import keras

    if keras.config.backend() == "jax":
        import jax

        return {"eager": lambda function: function, "xla": jax.jit}
    import tensorflow as tf

    return {
        "eager": lambda function: function,
        "graph": tf.function,
        "xla": lambda function: tf.function(function, jit_compile=True),
    }
