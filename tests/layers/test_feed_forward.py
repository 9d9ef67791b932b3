import keras
import numpy as np
import pytest

from keras_transformer.layers import FeedForward

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
def test_two_maps_with_an_activation_between(shape):
    layer, x = built(10), normal(*shape)
    w1, b1, w2, b2 = layer.get_weights()
    np.testing.assert_allclose(layer(x), np.maximum(x @ w1 + b1, 0) @ w2 + b2, **CLOSE)


def test_any_keras_activation_and_no_bias():
    layer, x = built(10, "tanh", use_bias=False), normal(2, 5, 6)
    w1, w2 = layer.get_weights()
    np.testing.assert_allclose(layer(x), np.tanh(x @ w1) @ w2, **CLOSE)
    layer = built(10, keras.activations.gelu)
    w1, b1, w2, b2 = layer.get_weights()
    np.testing.assert_allclose(layer(x), keras.activations.gelu(x @ w1 + b1) @ w2 + b2, **CLOSE)


GATED = {
    "glu": keras.activations.sigmoid,
    "reglu": keras.activations.relu,
    "geglu": lambda x: 0.5 * x * (1 + keras.ops.erf(x / 2**0.5)),
    "geglu_tanh": lambda x: 0.5 * x * (1 + keras.ops.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "swiglu": lambda x: x / (1 + keras.ops.exp(-x)),
}


@pytest.mark.parametrize("activation", GATED)
def test_gated_hidden_units_are_multiplied_with_a_third_map(activation):
    layer, x = built(10, activation, use_bias=False), normal(2, 5, 6)
    w, v, w2 = layer.get_weights()
    assert (w.shape, v.shape, w2.shape) == ((6, 10), (6, 10), (10, 6))
    np.testing.assert_allclose(layer(x), (np.asarray(GATED[activation](x @ w)) * (x @ v)) @ w2, **CLOSE)
    layer = built(10, activation)
    w, b, v, c, w2, b2 = layer.get_weights()
    expected = (np.asarray(GATED[activation](x @ w + b)) * (x @ v + c)) @ w2 + b2
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_a_shut_gate_shuts_the_unit():
    layer, x = built(3, "swiglu"), normal(4, 6)
    layer.gate.set_weights([np.zeros((6, 3)), np.array([1.0, 0.0, 1.0])])
    before = np.asarray(layer(x))
    kernel, bias = layer.hidden.get_weights()
    kernel[:, 1] += 5
    layer.hidden.set_weights([kernel, bias])
    np.testing.assert_array_equal(layer(x), before)


def test_the_weights_of_an_ungated_network_are_named_as_ever():
    names = [weight.path.split("/", 1)[1] for weight in built(10, name="feed").trainable_weights]
    assert names == ["hidden/kernel", "hidden/bias", "output/kernel", "output/bias"]
    names = [weight.path.split("/", 1)[1] for weight in built(10, "geglu", use_bias=False).trainable_weights]
    assert names == ["hidden/kernel", "gate/kernel", "output/kernel"]


@pytest.mark.slow_variants
@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize("activation", GATED)
def test_gated_networks_agree_in_every_mode(modes, mode, activation):
    if mode not in modes:
        pytest.skip("no such mode on this backend")
    layer, x = built(10, activation), normal(2, 5, 6)
    np.testing.assert_allclose(modes[mode](layer)(x), layer(x), **CLOSE)


def test_each_position_is_on_its_own():
    layer, x = built(10), normal(2, 5, 6)
    np.testing.assert_allclose(layer(x[:, 3:4]), layer(x)[:, 3:4], **CLOSE)


def test_dropout_is_on_the_hidden_units_while_training():
    layer = FeedForward(400, dropout=0.5)
    layer.build((None, 1))
    layer.hidden.set_weights([np.zeros((1, 400)), np.ones(400)])
    layer.output_projection.set_weights([np.ones((400, 1)), np.zeros(1)])
    x = np.zeros((1000, 1), "float32")
    assert (np.asarray(layer(x)) == 400).all()
    output = np.asarray(layer(x, training=True))
    assert abs(output.mean() - 400) < 5 * 20 / 1000**0.5
    assert 10 < output.std() < 30  # 2·√(400·¼): every unit by itself


@pytest.mark.parametrize(
    "arguments",
    [
        {"hidden_dim": 10},
        {"hidden_dim": 10, "activation": "gelu", "dropout": 0.2, "use_bias": False, "dtype": "mixed_float16"},
        {"hidden_dim": 10, "activation": "swiglu"},
        {"hidden_dim": 10, "activation": "geglu_tanh"},
    ],
    ids=["defaults", "everything", "swiglu", "geglu_tanh"],
)
def test_config_round_trip_is_the_identity(arguments):
    config = FeedForward(**arguments).get_config()
    assert FeedForward.from_config(config).get_config() == config
    assert config["hidden_dim"] == 10
    assert config["activation"] == arguments.get("activation", "relu")


@pytest.mark.parametrize("activation", ["gelu", "geglu"])
def test_a_saved_model_reloads_equal(activation, tmp_path):
    inputs = keras.Input((None, 6))
    model = keras.Model(inputs, FeedForward(10, activation, dropout=0.1)(inputs))
    model.save(tmp_path / "model.keras")
    x = normal(2, 5, 6)
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_allclose(again(x), model(x), rtol=1e-6)


@pytest.mark.parametrize("activation", ["relu", "swiglu", "geglu"])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_computes_in_half_and_keeps_float32_weights(policy, activation):
    layer = FeedForward(10, activation, dropout=0.5, dtype=policy)
    output = layer(normal(2, 5, 6), training=True)
    assert np.isfinite(np.asarray(keras.ops.cast(output, "float32"))).all()
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
    assert {weight.dtype for weight in layer.trainable_weights} == {"float32"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden_dim": 0}, "`hidden_dim` must be a positive integer. Received: hidden_dim=0"),
        ({"hidden_dim": 3, "dropout": -0.5}, r"`dropout` must be in \[0, 1\). Received: dropout=-0.5"),
        ({"hidden_dim": 3, "activation": "siglu"}, "siglu"),
    ],
    ids=str,
)
def test_errors_name_the_argument_and_its_value(arguments, message):
    with pytest.raises(ValueError, match=message):
        FeedForward(**arguments)
