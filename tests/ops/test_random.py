import itertools

import numpy as np
import pytest
from keras import ops

from keras_transformer.ops import dropout
from keras_transformer.ops.random import keep_mask

pytestmark = pytest.mark.backend_neutral


def kept(rate, seed, shape):
    ones = np.ones(shape, "float32")
    return np.asarray(dropout(ones, rate, ops.convert_to_tensor(seed, "uint32"))) != 0


def assert_share(mask, rate):
    """Check that the fraction kept is 1 − rate within five standard deviations."""
    assert abs(mask.mean() - (1 - rate)) < 5 * (rate * (1 - rate) / mask.size) ** 0.5


def correlation(a, b):
    return np.corrcoef(a.ravel(), b.ravel())[0, 1]


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", [(0, 0), (1, 0), (123456789, 7), (2**32 - 1, 2**32 - 1)], ids=str)
def test_the_fraction_kept_is_one_minus_the_rate(rate, seed):
    assert_share(kept(rate, seed, (40, 500)), rate)


def test_every_row_and_every_column_is_kept_at_the_same_rate():
    mask = kept(0.3, (5, 1), (300, 300))
    for axis in (0, 1):
        z = (mask.mean(axis) - 0.7) / (0.3 * 0.7 / 300) ** 0.5
        assert abs(z).max() < 5
        assert 0.8 < z.std() < 1.2


def test_kept_elements_are_scaled_to_keep_the_expectation():
    inputs = np.random.default_rng(0).normal(size=(200, 500)).astype("float32") + 1
    output = np.asarray(dropout(inputs, 0.25, np.array([3, 4])))
    mask = output != 0
    np.testing.assert_allclose(output[mask], inputs[mask] / 0.75, rtol=1e-6)
    assert abs(output.mean() - inputs.mean()) < 0.02


def test_a_rate_of_zero_keeps_everything():
    inputs = np.random.default_rng(0).normal(size=(20, 50)).astype("float32")
    np.testing.assert_array_equal(dropout(inputs, 0.0, np.array([3, 4])), inputs)


def test_a_higher_rate_drops_a_superset_of_a_lower_one():
    low, high = kept(0.2, (8, 1), (50, 50)), kept(0.6, (8, 1), (50, 50))
    assert (low | ~high).all()


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4, 5), (0, 4)], ids=str)
def test_inputs_of_every_rank_keep_their_shape(shape):
    assert dropout(np.ones(shape, "float32"), 0.5, np.array([1, 2])).shape == shape


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_dtype_is_kept_and_does_not_change_the_mask(dtype):
    output = dropout(ops.ones((20, 30), dtype), 0.5, np.array([1, 2]))
    assert dtype in str(output.dtype)
    np.testing.assert_array_equal(ops.cast(output, "float32") != 0, kept(0.5, (1, 2), (20, 30)))


def test_eager_graph_and_xla_drop_the_same_elements(modes):
    inputs = ops.convert_to_tensor(np.ones((3, 4, 5, 6), "float32"))
    seed = ops.convert_to_tensor([12, 34], "uint32")
    expected = kept(0.4, (12, 34), (3, 4, 5, 6))
    for name, wrap in modes.items():
        found = np.asarray(wrap(lambda x, s: dropout(x, 0.4, s))(inputs, seed))
        np.testing.assert_array_equal(found != 0, expected, err_msg=name)
        np.testing.assert_array_equal(found[expected], np.float32(1 / 0.6), err_msg=name)


def test_the_pattern_is_equal_on_every_backend_and_in_every_version():
    # A golden value: recomputation on another backend, or after an upgrade, must drop the same elements.
    packed = np.packbits(kept(0.5, (2024, 3), (8, 8)))
    assert packed.tolist() == [186, 182, 110, 107, 155, 128, 254, 251]


@pytest.mark.parametrize("first", [0, 1, 2, 42, 2**31, 2**32 - 1])
def test_consecutive_steps_are_uncorrelated_at_every_shift(first):
    # keras.random.SeedGenerator gives (seed, 0), (seed, 1), (seed, 2), …
    masks = [kept(0.5, (first, step), (40, 300)).astype(float) for step in range(4)]
    for (i, a), (j, b) in itertools.combinations(enumerate(masks), 2):
        for shift in range(-4, 5):
            rows_a, rows_b = a[max(0, shift) : 40 + min(0, shift)], b[max(0, -shift) : 40 - max(0, shift)]
            message = f"steps {i} and {j}, rows shifted by {shift}"
            assert abs(correlation(rows_a, rows_b)) < 5 / rows_a.size**0.5, message


def test_consecutive_seeds_are_uncorrelated():
    masks = [kept(0.5, (seed, 0), (40, 300)) for seed in range(5)]
    for a, b in itertools.combinations(masks, 2):
        assert abs(correlation(a, b)) < 5 / a.size**0.5


@pytest.mark.parametrize("seed", [(0, 0), (7, 0), (7, 5)], ids=str)
def test_rows_columns_and_heads_are_uncorrelated(seed):
    mask = kept(0.5, seed, (6, 4, 60, 60)).astype(float)
    for axis in range(4):
        slices = np.moveaxis(mask, axis, 0)
        for a, b in itertools.combinations(slices[:6], 2):
            assert abs(correlation(a, b)) < 5 / a.size**0.5
    for a, b in itertools.pairwise(mask[0, 0]):
        assert abs(correlation(a, b)) < 5 / 60**0.5
    assert abs(correlation(mask[..., 1:, :], mask[..., :-1, :])) < 5 / mask.size**0.5
    assert abs(correlation(mask[..., :, 1:], mask[..., :, :-1])) < 5 / mask.size**0.5
    assert (
        abs(correlation(mask[0, 0], mask[0, 0].T)) < 6 / 60
    )  # the diagonal is invariant under transposition


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_corners_of_rectangles_are_uncorrelated(rate):
    # Two numbers of a row and two of a column decide about four elements.
    mask = (kept(rate, (4, 2), (64, 16, 768)).reshape(1024, 768) - (1 - rate)) / (rate * (1 - rate)) ** 0.5
    for rows, columns in itertools.product((1, 2, 16), (1, 3, 128)):
        top, bottom = mask[:-rows], mask[rows:]
        corners = top[:, :-columns] * top[:, columns:] * bottom[:, :-columns] * bottom[:, columns:]
        assert abs(corners.mean()) < 5 / corners.size**0.5, f"{rows} rows and {columns} columns apart"


def test_pairs_of_rows_and_of_columns_are_uncorrelated():
    mask = (kept(0.3, (6, 1), (600, 500)) - 0.7) / 0.21**0.5
    for rows in (mask, mask.T):
        pairs = (rows @ rows.T / rows.shape[1] ** 0.5)[np.triu_indices(len(rows), 1)]
        assert 0.97 < pairs.var() < 1.03
        assert abs(pairs).max() < 6.5


def test_the_mask_depends_on_coordinates_not_on_the_shape():
    # Kernels may therefore compute any block of the mask.
    whole = kept(0.5, (3, 9), (4, 10, 12))
    queries, keys = np.arange(5, 9)[:, None], np.arange(2, 12)[None, :]
    block = keep_mask(0.5, np.array([3, 9]), [np.array(2), queries, keys])
    np.testing.assert_array_equal(block, whole[2, 5:9, 2:12])


def test_gradients_pass_only_through_kept_elements(gradients):
    inputs = np.ones((10, 10), "float32")
    (gradient,) = gradients(lambda x: ops.sum(dropout(x, 0.5, np.array([1, 2]))), inputs)
    np.testing.assert_array_equal(gradient, np.asarray(dropout(inputs, 0.5, np.array([1, 2]))))


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_a_rate_outside_0_1_is_rejected(rate):
    with pytest.raises(ValueError, match=r"`rate` must be in \[0, 1\). Received: rate="):
        dropout(np.ones((2, 3), "float32"), rate, np.array([1, 2]))
