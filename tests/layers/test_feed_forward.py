import keras
import numpy as np
import pytest

from keras_transformer.layers import FeedForward
from keras_transformer.layers.feed_forward import activation_function

pytestmark = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


def built(*arguments, **options):
    layer = FeedForward(*arguments, **options)
    layer.build((None, None, 6))
    layer.set_weights([normal(*weight.shape) for weight in layer.weights if weight.dtype == "float32"])
    return layer


@pytest.mark.parametrize("shape", [(2, 5, 6), (4, 6), (2, 3, 2, 6), (0, 5, 6)], ids=str)
def test_feed_forward_is_two_dense_maps_with_an_activation(shape):
    layer, x = built(10), normal(*shape)
    w1, b1, w2, b2 = layer.get_weights()
    np.testing.assert_allclose(layer(x), np.maximum(x @ w1 + b1, 0) @ w2 + b2, **CLOSE)


def test_any_keras_activation_is_accepted_and_biases_are_optional():
    layer, x = built(10, "tanh", use_bias=False), normal(2, 5, 6)
    w1, w2 = layer.get_weights()
    np.testing.assert_allclose(layer(x), np.tanh(x @ w1) @ w2, **CLOSE)
    layer = built(10, keras.activations.gelu)
    w1, b1, w2, b2 = layer.get_weights()
    np.testing.assert_allclose(layer(x), keras.activations.gelu(x @ w1 + b1) @ w2 + b2, **CLOSE)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gelu_equals_keras(dtype):
    x = keras.ops.cast(keras.ops.linspace(-12.0, 12.0, 1001), dtype)
    found = activation_function(keras.activations.gelu)(x)
    expected = keras.activations.gelu(x, approximate=False)
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    found, expected = (
        keras.ops.convert_to_numpy(keras.ops.cast(each, "float32")) for each in (found, expected)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


GATED = {
    "glu": keras.activations.sigmoid,
    "reglu": keras.activations.relu,
    "geglu": lambda x: 0.5 * x * (1 + keras.ops.erf(x / 2**0.5)),
    "geglu_tanh": lambda x: 0.5 * x * (1 + keras.ops.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "swiglu": lambda x: x / (1 + keras.ops.exp(-x)),
}


@pytest.mark.parametrize("activation", GATED)
def test_gated_units_are_multiplied_by_a_third_map(activation):
    layer, x = built(10, activation, use_bias=False), normal(2, 5, 6)
    w, v, w2 = layer.get_weights()
    assert (w.shape, v.shape, w2.shape) == ((6, 10), (6, 10), (10, 6))
    np.testing.assert_allclose(layer(x), (np.asarray(GATED[activation](x @ w)) * (x @ v)) @ w2, **CLOSE)
    layer = built(10, activation)
    w, b, v, c, w2, b2 = layer.get_weights()
    expected = (np.asarray(GATED[activation](x @ w + b)) * (x @ v + c)) @ w2 + b2
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_a_gate_of_zero_suppresses_the_unit():
    layer, x = built(3, "swiglu"), normal(4, 6)
    layer.gate.set_weights([np.zeros((6, 3)), np.array([1.0, 0.0, 1.0])])
    before = np.asarray(layer(x))
    kernel, bias = layer.hidden.get_weights()
    kernel[:, 1] += 5
    layer.hidden.set_weights([kernel, bias])
    np.testing.assert_array_equal(layer(x), before)


def test_weight_names_of_an_ungated_network_are_stable():
    names = [weight.path.split("/", 1)[1] for weight in built(10, name="feed").trainable_weights]
    assert names == ["hidden/kernel", "hidden/bias", "output/kernel", "output/bias"]
    names = [weight.path.split("/", 1)[1] for weight in built(10, "geglu", use_bias=False).trainable_weights]
    assert names == ["hidden/kernel", "gate/kernel", "output/kernel"]


def test_positions_are_processed_independently():
    layer, x = built(10), normal(2, 5, 6)
    np.testing.assert_allclose(layer(x[:, 3:4]), layer(x)[:, 3:4], **CLOSE)


def test_dropout_applies_to_hidden_units_in_training():
    layer = FeedForward(400, dropout=0.5)
    layer.build((None, 1))
    layer.hidden.set_weights([np.zeros((1, 400)), np.ones(400)])
    layer.output_projection.set_weights([np.ones((400, 1)), np.zeros(1)])
    x = np.zeros((1000, 1), "float32")
    assert (np.asarray(layer(x)) == 400).all()
    output = np.asarray(layer(x, training=True))
    assert abs(output.mean() - 400) < 5 * 20 / 1000**0.5
    assert 10 < output.std() < 30  # 2·√(400·¼): units are dropped independently
