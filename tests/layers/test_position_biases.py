import keras
import numpy as np
import pytest

from keras_transformer import ops as kt_ops
from keras_transformer.layers import ALiBi, RelativeBias
from keras_transformer.ops.biases import BucketBias, LinearBias, buckets, slopes

# JAX compiles every new shape: run only one case of each law there.
neutral = pytest.mark.backend_neutral

LAYERS = {"alibi": (ALiBi, {}), "relative": (RelativeBias, {"num_buckets": 8, "max_distance": 20})}
EACH = np.array([[0, 1, 2], [9, 3, 50]])


def built(kind, **options):
    layer, defaults = LAYERS[kind]
    layer = layer(4, **{**defaults, **options})
    layer.build()
    return layer


@neutral
def test_alibi_bias_is_minus_slope_times_distance():
    expected = -np.array(slopes(4))[:, None, None] * np.abs(np.arange(3)[:, None] - np.arange(5))
    np.testing.assert_allclose(ALiBi(4)(np.arange(3), np.arange(5)), expected)
    assert ALiBi(4).weights == []


@neutral
@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_bias_is_the_table_row_of_the_bucket(bidirectional):
    layer = built("relative", bidirectional=bidirectional, initializer="random_normal")
    (table,) = layer.get_weights()
    relative = np.arange(-6, 34) - np.arange(30)[:, None]
    expected = table[buckets(relative, 8, 20, bidirectional)].transpose(2, 0, 1)
    np.testing.assert_allclose(layer(np.arange(30), np.arange(-6, 34)), expected)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ((np.arange(3),), (4, 3, 3)),
        ((np.arange(3), np.arange(5)), (4, 3, 5)),
        ((EACH,), (2, 4, 3, 3)),
        ((EACH, np.arange(5)), (2, 4, 3, 5)),
        ((np.arange(5), EACH), (2, 4, 5, 3)),
    ],
    ids=["self", "cross", "each", "each query", "each key"],
)
def test_symbolic_shapes_equal_output_shapes(kind, arguments, shape):
    layer = built(kind)
    assert layer(*arguments).shape == shape
    assert layer.compute_output_shape(*(given.shape for given in arguments)) == shape
    symbols = [keras.KerasTensor(given.shape, "int32") for given in arguments]
    announced = layer.compute_output_spec(*symbols)
    assert (announced.shape, announced.dtype) == (shape, "float32")


@neutral
@pytest.mark.parametrize("kind", LAYERS)
def test_the_layer_returns_the_values_of_its_bias(kind):
    layer = built(kind)
    bias = layer.bias()
    assert isinstance(bias, LinearBias if kind == "alibi" else BucketBias)
    found = bias.block(bias.parameters, EACH[..., None], EACH[:, None])
    np.testing.assert_array_equal(found, layer(EACH))
    attended = kt_ops.attention(*[np.ones((2, 3, 4, 5), "float32")] * 3, bias=found)
    assert attended.shape == (2, 3, 4, 5)


@neutral
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16", "float16"])
def test_the_bias_is_float32_in_every_dtype_policy(kind, policy):
    layer, plain = built(kind, dtype=policy), built(kind)
    plain.set_weights(layer.get_weights())
    assert {weight.dtype for weight in layer.weights} <= {"float32"}

    @keras.saving.register_keras_serializable(package="tests")
    class Wrapper(keras.layers.Layer):
        """A layer that calls `bias` within Keras' autocast scope."""

        def call(self, inputs):
            bias = layer.bias()
            assert all(keras.backend.standardize_dtype(p.dtype) == "float32" for p in bias.parameters)
            return inputs

    Wrapper(dtype=policy)(np.ones(3, "float32"))
    found = layer(np.arange(0, 3000, 100))
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    np.testing.assert_array_equal(found, plain(np.arange(0, 3000, 100)))
