import dataclasses
import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    NTKScaling,
    RotaryPositions,
    YaRNScaling,
)
from keras_transformer.layers.positions import rotary_scaling

# JAX compiles every new shape: run only one case of each law there.
neutral = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
YARN = {"factor": 8.0, "original_length": 2048}
SCALINGS = {
    "linear": LinearScaling(4.0),
    "ntk": NTKScaling(4.0),
    "yarn": YaRNScaling(**YARN),
    "llama3": Llama3Scaling(8.0, 2048),
    "dynamic": DynamicNTKScaling(8.0, 2048),
    "longrope": LongRoPEScaling(8.0, 2048, [1.0] * 8, [4.0] * 8),
}
LAYOUTS = ("halves", "interleaved")


def normal(*shape):
    return RANDOM.normal(size=shape).astype("float32")


def rotated(x, positions, frequencies, layout):
    """Rotate pair by pair, as complex numbers."""
    half = len(frequencies)
    pairs = (
        (slice(0, half), slice(half, 2 * half))
        if layout == "halves"
        else (slice(0, None, 2), slice(1, None, 2))
    )
    turned = (x[..., pairs[0]] + 1j * x[..., pairs[1]]) * np.exp(
        1j * np.asarray(positions)[..., None, None] * frequencies
    )
    result = np.empty(x.shape)
    result[..., pairs[0]], result[..., pairs[1]] = turned.real, turned.imag
    return result


@neutral
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("positions", [None, [9, 0, 100_000], [[0, 1, 2], [7, 7, 3]]], ids=str)
def test_each_pair_is_rotated_by_frequency_times_position(layout, positions):
    x, frequencies = normal(2, 3, 4, 8), 100.0 ** (-np.arange(4) / 4)
    found = RotaryPositions(100.0, layout=layout)(
        x, positions=None if positions is None else np.array(positions)
    )
    expected = rotated(x, np.arange(3) if positions is None else positions, frequencies, layout)
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.slow_variants
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scaling", [None, *SCALINGS], ids=str)
def test_scores_depend_only_on_the_distance(layout, scaling):
    layer = RotaryPositions(layout=layout, scaling=SCALINGS.get(scaling))
    query, key = normal(1, 1, 2, 16), normal(1, 1, 2, 16)

    def scores(query_position, key_position):
        q, k = layer(query, positions=[query_position]), layer(key, positions=[key_position])
        return (np.asarray(q) * np.asarray(k)).sum(-1)

    for distance in (0, 3, -40):
        expected = scores(50, 50 + distance)
        for shift in (1, 1000, 100_000):
            np.testing.assert_allclose(scores(50 + shift, 50 + distance + shift), expected, atol=5e-5)
    assert not np.allclose(scores(50, 53), scores(50, 47), atol=1e-2)


@pytest.mark.parametrize("scaling", [None, *SCALINGS], ids=str)
def test_norms_are_preserved_up_to_the_magnitude_of_the_scaling(scaling):
    x = normal(2, 50, 3, 16)
    found = RotaryPositions(scaling=SCALINGS.get(scaling))(x)
    factors = {"yarn": 0.1 * math.log(8) + 1, "longrope": math.sqrt(1 + math.log(8) / math.log(2048))}
    factor = factors.get(scaling, 1)
    np.testing.assert_allclose(np.linalg.norm(found, axis=-1), factor * np.linalg.norm(x, axis=-1), rtol=1e-5)


def test_position_zero_is_not_rotated():
    x = normal(1, 4, 2, 8)
    np.testing.assert_allclose(RotaryPositions()(x, positions=np.zeros(4, "int32")), x, rtol=1e-6)


@neutral
@pytest.mark.parametrize("layout", LAYOUTS)
def test_partial_rotation_leaves_the_other_features_unchanged(layout):
    x = normal(2, 5, 3, 12)
    found = RotaryPositions(layout=layout, rotary_dim=8)(x)
    np.testing.assert_array_equal(found[..., 8:], x[..., 8:])
    np.testing.assert_allclose(found[..., :8], RotaryPositions(layout=layout)(x[..., :8]), atol=1e-6)


@neutral
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_inputs_are_rotated_in_float32(policy):
    layer, x = RotaryPositions(dtype=policy), ops.cast(normal(1, 3, 2, 8), policy.removeprefix("mixed_"))
    positions = np.array([0, 30_000, 65_519])  # the float16 maximum is 65,504
    found = layer(x, positions=positions)
    assert keras.backend.standardize_dtype(found.dtype) == policy.removeprefix("mixed_")
    expected = RotaryPositions()(ops.cast(x, "float32"), positions=positions)
    np.testing.assert_allclose(np.asarray(ops.cast(found, "float32")), expected, atol=0.02)


class TestScalings:
    def test_linear_scaling_divides_positions(self):
        x, positions = normal(1, 3, 2, 8), np.array([0, 8, 400])
        found = RotaryPositions(scaling=LinearScaling(4.0))(x, positions=positions)
        np.testing.assert_allclose(found, RotaryPositions()(x, positions=positions // 4), atol=1e-5)

    def test_ntk_scaling_keeps_the_highest_and_divides_the_lowest_frequency(self):
        plain, scaled = (
            RotaryPositions(scaling=scaling).frequencies(64) for scaling in (None, NTKScaling(4.0))
        )
        ratios = plain / scaled
        np.testing.assert_allclose(ratios[[0, -1]], [1, 4])
        assert (np.diff(ratios) > 0).all()
        np.testing.assert_allclose(scaled, (10000.0 * 4 ** (64 / 62)) ** (-np.arange(0, 64, 2) / 64))
        assert NTKScaling(4.0).frequencies(10000.0, 2) == [1.0]

    def test_yarn_keeps_high_frequencies_and_divides_low_ones(self):
        scaling = YaRNScaling(**YARN)
        plain, scaled = RotaryPositions().frequencies(128), scaling.frequencies(10000.0, 128)
        rotations = 2048 * plain / (2 * math.pi)
        ratios = plain / scaled
        np.testing.assert_allclose(ratios[rotations > 40], 1)
        np.testing.assert_allclose(ratios[rotations < 0.8], 8)
        assert (np.diff(ratios) >= -1e-9).all()
        # From the authors' code: the ramp is between these two indices.
        first = math.floor(128 * math.log(2048 / (32 * 2 * math.pi)) / (2 * math.log(10000)))
        last = math.ceil(128 * math.log(2048 / (2 * math.pi)) / (2 * math.log(10000)))
        for i in range(64):
            ramp = min(max((i - first) / (last - first), 0), 1)
            assert scaled[i] == pytest.approx(plain[i] / 8 * ramp + plain[i] * (1 - ramp))

    def test_the_temperature_of_yarn_can_be_set(self):
        assert YaRNScaling(**YARN).magnitude() == pytest.approx(0.1 * math.log(8) + 1)
        assert YaRNScaling(**YARN, attention_factor=1.0).magnitude() == 1.0

    def test_llama3_keeps_high_frequencies_and_divides_low_ones(self):
        plain, scaled = RotaryPositions().frequencies(128), Llama3Scaling(8.0, 2048).frequencies(10000.0, 128)
        rotations = 2048 * plain / (2 * math.pi)
        ratios = plain / scaled
        np.testing.assert_allclose(ratios[rotations > 4], 1)
        np.testing.assert_allclose(ratios[rotations < 1], 8)
        assert (np.diff(ratios) >= -1e-9).all()
        assert ((ratios > 1.1) & (ratios < 7.9)).any()

    def test_longrope_divides_each_frequency_by_its_factor(self):
        scaling = LongRoPEScaling(4.0, 16, (1.0, 2.0, 5.0), (3.0, 4.0, 9.0))
        plain = RotaryPositions().frequencies(6)
        np.testing.assert_allclose(scaling.frequencies(10000.0, 6), plain / [1, 2, 5])
        assert scaling.max_length == 16
        long = dataclasses.replace(scaling, use_long_factors=True)
        np.testing.assert_allclose(long.frequencies(10000.0, 6), plain / [3, 4, 9])
        assert long.magnitude() == scaling.magnitude()
        assert long.max_length == 64
        assert scaling.magnitude() == pytest.approx(math.sqrt(1 + math.log(4) / math.log(16)))
        assert LongRoPEScaling(4.0, 16, (1.0,), (1.0,), attention_factor=1.2).magnitude() == 1.2

    @pytest.mark.parametrize(
        "scaling",
        [
            DynamicNTKScaling(2.0, 3),
            LongRoPEScaling(2.0, 3, [1.0], [2.0]),
            LongRoPEScaling(1.5, 2, [1.0], [2.0], use_long_factors=True),
        ],
    )
    def test_sequences_longer_than_the_scaling_applies_to_raise_an_error(self, scaling):
        layer = RotaryPositions(scaling=scaling)
        assert layer(normal(1, 3, 2, 2)).shape == (1, 3, 2, 2)
        with pytest.raises(ValueError, match="at most 3 positions with a .*Scaling. Received: 4 positions"):
            layer(normal(1, 4, 2, 2))

    @pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
    def test_scaling_by_one_changes_nothing(self, scaling):
        scaling = type(scaling)(**{**scaling.get_config(), "factor": 1.0})
        np.testing.assert_allclose(scaling.frequencies(10000.0, 16), RotaryPositions().frequencies(16))
        assert scaling.magnitude() == 1.0

    @pytest.mark.parametrize("length", [1, 5, 10**9])
    def test_yarn_frequencies_stay_within_their_bounds_at_extreme_lengths(self, length):
        plain = RotaryPositions().frequencies(16)
        ratios = plain / YaRNScaling(8.0, length).frequencies(10000.0, 16)
        assert ((ratios >= 1 - 1e-9) & (ratios <= 8 + 1e-9)).all()

    @pytest.mark.parametrize("name", SCALINGS)
    def test_get_accepts_names_configs_and_objects(self, name):
        scaling = SCALINGS[name]
        serialised = keras.saving.serialize_keras_object(scaling)
        named = {"name": name, **scaling.get_config()}
        assert [rotary_scaling.get(form) for form in (named, serialised, scaling)] == [scaling] * 3
        assert rotary_scaling.get(None) is None
        assert hash(scaling) == hash(rotary_scaling.get(named))
