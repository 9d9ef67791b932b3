import numpy as np
import pytest

from keras_transformer.layers import Positions2D, SinusoidalPositions

# JAX compiles every new shape: run only one case of each law there.
neutral = pytest.mark.backend_neutral


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@neutral
def test_features_encode_row_and_column_in_halves():
    encoding = np.asarray(Positions2D()(np.zeros((1, 3, 5, 8), "float32")))[0]
    lines = np.asarray(SinusoidalPositions().encode(np.arange(5), 4))
    for row in range(3):
        for column in range(5):
            np.testing.assert_allclose(encoding[row, column], [*lines[row], *lines[column]], atol=1e-6)


def test_swapping_rows_and_columns_swaps_the_halves():
    encoding, swapped = (np.asarray(Positions2D().encode(*shape, 12)) for shape in ((4, 6), (6, 4)))
    np.testing.assert_array_equal(np.roll(encoding.transpose(1, 0, 2), 6, axis=-1), swapped)


def test_dot_product_depends_only_on_the_offset():
    encoding = np.asarray(Positions2D().encode(20, 20, 16))
    similarities = [encoding[r, c] @ encoding[r + 3, c + 5] for r, c in ((0, 0), (9, 2), (16, 14))]
    np.testing.assert_allclose(similarities, similarities[0], atol=1e-5)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_sequences_are_the_grid_in_row_major_order(kind):
    layer, x = Positions2D(kind, grid_shape=(3, 5)), normal(2, 3, 5, 8)
    grid, sequence = np.asarray(layer(x)), np.asarray(layer(x.reshape(2, 15, 8)))
    np.testing.assert_array_equal(grid.reshape(2, 15, 8), sequence)
    assert not np.array_equal(grid, x)


@neutral
def test_a_learned_encoding_has_one_vector_per_cell():
    layer, x = Positions2D("learned", initializer="random_normal"), normal(2, 3, 5, 7)
    output = layer(x)
    (table,) = layer.get_weights()
    assert table.shape == (3, 5, 7)
    np.testing.assert_allclose(output, x + table, rtol=1e-6)
    assert Positions2D().weights == []


def test_a_learned_table_rejects_other_grid_sizes():
    layer = Positions2D("learned")
    layer(np.zeros((1, 3, 5, 8), "float32"))
    with pytest.raises(
        ValueError, match=r"`inputs` must have .* cells.*Received: inputs.shape=\(1, 1, 5, 8\)"
    ):
        layer(np.zeros((1, 1, 5, 8), "float32"))
