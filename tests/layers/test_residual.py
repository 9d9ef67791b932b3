import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.residual import Residual

# JAX compiles every new shape: run only one case of each law there.
neutral = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
X, Y = (RANDOM.normal(size=(2, 5, 8)).astype("float32") for _ in range(2))
NORMALIZATIONS = ("pre", "post", "sandwich")
NORMS = ("layer", "rms")


def built(*arguments, **options):
    layer = Residual(*arguments, **options)
    layer.build(X.shape)
    for weight in layer.trainable_weights:
        weight.assign(RANDOM.normal(size=weight.shape))
    return layer


def normalised(x, layer, kind):
    x = np.asarray(x, "float64")
    if kind == "rms":
        (scale,) = layer.get_weights()
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale
    gamma, beta = layer.get_weights()
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gamma + beta


@neutral
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_the_residual_connection_follows_the_formula(normalization, norm):
    layer = built(normalization, norm=norm)
    entered = X if normalization == "post" else normalised(X, layer.norm, norm)
    np.testing.assert_allclose(layer.normalize_input(X), entered, rtol=1e-4, atol=1e-4)
    expected = {
        "pre": lambda: X + Y,
        "post": lambda: normalised(X + Y, layer.norm, norm),
        "sandwich": lambda: X + normalised(Y, layer.output_norm, norm),
    }[normalization]()
    np.testing.assert_allclose(layer.add_residual(X, Y), expected, rtol=1e-4, atol=1e-4)


def test_sandwich_normalization_removes_the_scale_of_the_sublayer():
    for normalization, same in (("sandwich", True), ("pre", False)):
        layer = built(normalization)
        assert np.allclose(layer.add_residual(X, Y), layer.add_residual(X, 100 * Y), atol=1e-3) == same


def test_rms_norm_ignores_scale_and_layer_norm_scale_and_shift():
    for norm, blind_to_shift in (("rms", False), ("layer", True)):
        layer = built(norm=norm)
        np.testing.assert_allclose(layer.normalize_input(X * 7), layer.normalize_input(X), atol=1e-4)
        assert (
            np.allclose(layer.normalize_input(X + 7), layer.normalize_input(X), atol=1e-3) == blind_to_shift
        )


@neutral
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_statistics_are_computed_in_float32_in_mixed_precision(policy, norm):
    # Squares of 3,000 overflow float16, and a mean over 4,096 of them has no precision left in bfloat16.
    layer = Residual("sandwich", norm=norm, dtype=policy)
    layer.build((1, 1, 4096))
    assert {weight.dtype for weight in layer.trainable_weights} == {"float32"}
    half = ops.cast(3000 * RANDOM.normal(size=(1, 1, 4096)) + 1000, policy.removeprefix("mixed_"))
    found = layer.normalize_input(half)
    assert keras.backend.standardize_dtype(found.dtype) == policy.removeprefix("mixed_")
    expected = normalised(ops.cast(half, "float32"), layer.norm, norm)
    np.testing.assert_allclose(ops.cast(found, "float32"), expected, rtol=0.01, atol=0.01)
    np.testing.assert_allclose(
        ops.cast(layer.add_residual(ops.zeros_like(half), half), "float32"), expected, rtol=0.01, atol=0.01
    )


@neutral
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["norm/gamma", "norm/beta"]),
        ({"normalization": "post"}, ["norm/gamma", "norm/beta"]),
        ({"norm": "rms"}, ["norm/scale"]),
        ({"normalization": "sandwich", "norm": "rms"}, ["norm/scale", "output_norm/scale"]),
    ],
    ids=str,
)
def test_weight_names_show_their_role(options, names):
    found = [weight.path.split("/", 1)[1] for weight in built(**options).trainable_weights]
    assert found == names


@pytest.mark.parametrize(
    "options", [{}, {"normalization": "sandwich", "dropout": 0.1, "norm": "rms"}], ids=str
)
def test_config_round_trip_is_the_identity(options):
    config = Residual(**options).get_config()
    assert Residual.from_config(config).get_config() == config
    assert {name: config[name] for name in options} == options
