import keras
import numpy as np
import pytest

from keras_transformer.layers import LearnedPositions, SinusoidalPositions

pytestmark = pytest.mark.backend_neutral


def paper(positions, size, wavelength=10000.0):
    """Compute the encodings of section 3.5, feature by feature."""
    encoding = np.zeros((*np.shape(positions), size))
    for i in range(size // 2):
        angle = np.asarray(positions) / wavelength ** (2 * i / size)
        encoding[..., 2 * i] = np.sin(angle)
        encoding[..., 2 * i + 1] = np.cos(angle)
    return encoding


@pytest.mark.parametrize(("length", "size"), [(1, 2), (5, 8), (300, 6), (7, 64)])
def test_sines_and_cosines_of_the_paper_are_added(length, size):
    x = np.random.default_rng(0).normal(size=(2, length, size)).astype("float32")
    np.testing.assert_allclose(SinusoidalPositions()(x), x + paper(np.arange(length), size), atol=1e-4)


def test_sinusoidal_positions_have_no_weights_and_no_max_length():
    layer = SinusoidalPositions()
    for length in (3, 1000, 10):
        found = layer(np.zeros((1, length, 4), "float32"))
        np.testing.assert_allclose(found[0], paper(np.arange(length), 4), atol=2e-4)
    assert layer.weights == []


def test_the_maximum_wavelength_can_be_set():
    found = SinusoidalPositions(max_wavelength=100)(np.zeros((1, 9, 8), "float32"))
    np.testing.assert_allclose(found[0], paper(np.arange(9), 8, 100.0), atol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_positions_can_be_set_for_all_rows_or_per_row(dtype):
    layer, x = SinusoidalPositions(), np.zeros((2, 3, 8), "float32")
    shared = np.array([5, 0, 17], dtype)
    np.testing.assert_allclose(layer(x, positions=shared), [paper(shared, 8)] * 2, atol=1e-5)
    each = np.array([[0, 1, 2], [7, 8, 9]], dtype)
    np.testing.assert_allclose(layer(x, positions=each), paper(each, 8), atol=1e-5)
    np.testing.assert_array_equal(layer(x, positions=np.arange(3)), layer(x))


def test_shifting_positions_rotates_every_pair():
    # A model can attend by relative position, as PE(p + m) is a rotation of PE(p) that depends only on m.
    layer = SinusoidalPositions()
    encoded = {p: np.asarray(layer.encode(np.array([p]), 8))[0].reshape(4, 2) for p in (2, 5, 20, 23)}

    def cosines(p, q):
        return (encoded[p] * encoded[q]).sum(-1)

    np.testing.assert_allclose(cosines(2, 5), cosines(20, 23), atol=1e-5)


def test_half_precision_encodes_positions_in_float32():
    x = np.zeros((1, 3000, 8), "float32")
    output = SinusoidalPositions(dtype="float16")(x)
    assert keras.backend.standardize_dtype(output.dtype) == "float16"
    np.testing.assert_allclose(np.asarray(output, "float32")[0], paper(np.arange(3000), 8), atol=2e-3)


LAYOUTS = ("interleaved", "halves")


def encoded(positions, size, **options):
    return np.asarray(SinusoidalPositions(**options).encode(np.asarray(positions), size))


def test_halves_layout_has_the_same_features_with_sines_first():
    interleaved, halves = (encoded(np.arange(50), 12, layout=layout) for layout in LAYOUTS)
    np.testing.assert_array_equal(
        halves, np.concatenate([interleaved[:, ::2], interleaved[:, 1::2]], axis=-1)
    )


def test_encodings_are_unique():
    rows = encoded(np.arange(2000), 16)
    squares = (rows**2).sum(-1)
    distances = squares[:, None] + squares - 2 * rows @ rows.T
    assert distances[~np.eye(2000, dtype=bool)].min() > 0.1


def test_encodings_do_not_depend_on_the_length():
    np.testing.assert_array_equal(encoded(np.arange(10), 16), encoded(np.arange(5000), 16)[:10])


@pytest.mark.parametrize("distance", [1, 7, 300])
def test_dot_product_depends_only_on_the_distance(distance):
    positions = np.array([distance, 1000, 70_000])
    here, after, before = (encoded(positions + k, 32) for k in (0, distance, -distance))
    forth, back = (here * after).sum(-1), (here * before).sum(-1)
    np.testing.assert_allclose(forth, back, atol=1e-4)
    np.testing.assert_allclose(forth, forth[0], atol=1e-4)
    np.testing.assert_allclose(forth[0], np.cos(distance * 10000.0 ** (-np.arange(16) / 16)).sum(), atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_position_100000_is_as_accurate_as_position_0(layout):
    positions = np.arange(99_990, 100_001)
    expected = paper(positions, 64)
    if layout == "halves":
        expected = np.concatenate([expected[:, ::2], expected[:, 1::2]], axis=-1)
    np.testing.assert_allclose(encoded(positions, 64, layout=layout), expected, atol=3e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
class TestShiftMatrix:
    @pytest.mark.parametrize("offset", [0, 1, 5, -3, 1000])
    def test_the_shift_matrix_shifts_every_encoding(self, layout, offset):
        layer, positions = SinusoidalPositions(50.0, layout), np.array([0, 3, 17, 4000])
        matrix = layer.shift_matrix(offset, 12)
        assert matrix.dtype == np.float32
        moved = np.asarray(layer.encode(positions, 12)) @ matrix.T
        np.testing.assert_allclose(moved, layer.encode(positions + offset, 12), atol=1e-5)

    def test_shift_matrices_form_a_group_of_rotations(self, layout):
        layer = SinusoidalPositions(layout=layout)
        two, three, five, back = (layer.shift_matrix(k, 8) for k in (2, 3, 5, -5))
        np.testing.assert_allclose(two @ three, five, atol=1e-6)
        np.testing.assert_allclose(back, five.T, atol=1e-6)
        np.testing.assert_allclose(five @ back, np.eye(8), atol=1e-6)


class TestLearnedPositions:
    @staticmethod
    def built(max_length=6, **options):
        layer = LearnedPositions(max_length, initializer="random_normal", **options)
        layer.build((None, None, 4))
        return layer, layer.get_weights()[0]

    def test_table_rows_are_added(self):
        layer, table = self.built()
        x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
        np.testing.assert_allclose(layer(x), x + table[:3], rtol=1e-6)
        for positions in (np.array([5, 0, 2]), np.array([[5, 0, 2], [1, 1, 4]])):
            np.testing.assert_allclose(layer(x, positions=positions), x + table[positions], rtol=1e-6)

    def test_sequences_of_the_maximum_length_are_accepted(self):
        layer, table = self.built()
        np.testing.assert_allclose(layer(np.zeros((1, 6, 4), "float32"))[0], table)
