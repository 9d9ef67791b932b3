import math

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.positions.sinusoids import (
    geometric,
    pair_up,
    paired_waves,
    waves,
)

pytestmark = pytest.mark.backend_neutral

FREQUENCIES = geometric(10000.0, 32)


@pytest.mark.slow_variants
@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
@pytest.mark.parametrize(
    "positions",
    [np.arange(300), np.arange(-4200, -4000), np.arange(99_900, 100_100), np.arange(2**24 - 200, 2**24)],
    ids=["short", "negative", "long", "longest"],
)
def test_sines_and_cosines_equal_float64_at_any_position(modes, mode, positions):
    if mode not in modes:
        pytest.skip("no such mode on this backend")
    found = modes[mode](lambda p: waves(p, FREQUENCIES))(ops.convert_to_tensor(positions, "int32"))
    angles = positions[:, None] * FREQUENCIES
    for wave, expected in zip(found, (np.sin(angles), np.cos(angles)), strict=True):
        np.testing.assert_allclose(wave, expected, atol=3e-6)


def test_large_and_zero_frequencies_are_accurate():
    positions = np.arange(1000)
    sines, cosines = waves(positions, [0.0, math.pi, 50.0, 2 * math.pi])
    expected = np.sin(positions[:, None] * [0.0, math.pi, 50.0, 2 * math.pi])
    np.testing.assert_allclose(sines, expected, atol=3e-6)
    np.testing.assert_allclose(np.asarray(sines) ** 2 + np.asarray(cosines) ** 2, 1, atol=1e-6)


def test_frequencies_decrease_geometrically_from_one():
    frequencies = geometric(100.0, 8)
    np.testing.assert_allclose(frequencies, [1, 100**-0.25, 0.1, 100**-0.75])


def test_pairs_are_laid_out_in_halves_or_interleaved():
    first, second = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])
    np.testing.assert_array_equal(pair_up(first, second, "halves"), [[1, 2, 3, 4]])
    np.testing.assert_array_equal(pair_up(first, second, "interleaved"), [[1, 3, 2, 4]])


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_paired_waves_equal_paired_up_waves(layout):
    positions = np.array([[0, 1, 5, 100], [511, 4095, 4096, 100_003]], "int32")
    expected = pair_up(*waves(positions, FREQUENCIES), layout)
    found = paired_waves(positions, FREQUENCIES, layout)
    np.testing.assert_allclose(ops.convert_to_numpy(found), ops.convert_to_numpy(expected), atol=1e-6)
