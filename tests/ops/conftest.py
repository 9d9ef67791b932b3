import keras
import numpy as np
import pytest


@pytest.fixture
def small_blocks(monkeypatch):
    """Use blocks so small that a few dozen positions have many blocks, some of them partial."""
    from keras_transformer.ops import linear
    from keras_transformer.ops.blockwise import schedule

    # Some bands have one block, others many.
    sizes = schedule.BlockSizes(4, 16, 9000, narrow_band=8, wide_band=8, band_pairs=9000)
    monkeypatch.setitem(schedule.BLOCK_SIZES, schedule.device_type(), sizes)
    monkeypatch.setattr(linear, "BLOCK_SIZE", 8)


@pytest.fixture(scope="session")
def pull_back(modes):
    """Return pull_back(mode, function, inputs, arguments, upstream): outputs, and gradients of ⟨outputs, upstream⟩.

    `inputs` and `arguments` are dicts of tensors, the two arguments of `function`. If the backend lacks a mode, the
    compiled mode is used.
    """

    def on_tensorflow(function):
        import tensorflow as tf

        def whole(inputs, arguments, upstream):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                output = function(inputs, arguments)
            found = tape.gradient(output, inputs, output_gradients=upstream, unconnected_gradients="zero")
            return output, {name: tf.convert_to_tensor(gradient) for name, gradient in found.items()}

        return whole

    def on_jax(function):
        import jax

        def whole(inputs, arguments, upstream):
            output, back = jax.vjp(lambda inputs: function(inputs, arguments), inputs)
            return output, back(upstream)[0]

        return whole

    def call(mode, function, inputs, arguments, upstream):
        wrap = modes.get(mode, modes["xla"])
        whole = on_jax if keras.config.backend() == "jax" else on_tensorflow
        arguments = {name: keras.ops.convert_to_tensor(array) for name, array in arguments.items()}
        output, found = wrap(whole(function))(inputs, arguments, upstream)
        return _numbers(output), {name: _numbers(gradient) for name, gradient in found.items()}

    return call


def _numbers(tensor):
    """Convert to NumPy, half precision as float32."""
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    return np.asarray(tensor if dtype == "float64" else keras.ops.cast(tensor, "float32"))
