import keras
import numpy as np
import pytest

from keras_transformer.layers import SinusoidalPositions

pytestmark = pytest.mark.backend_neutral


def paper(positions, size, wavelength=10000.0):
    """Section 3.5, feature by feature."""
    encoding = np.zeros((*np.shape(positions), size))
    for i in range(size // 2):
        angle = np.asarray(positions) / wavelength ** (2 * i / size)
        encoding[..., 2 * i] = np.sin(angle)
        encoding[..., 2 * i + 1] = np.cos(angle)
    return encoding


@pytest.mark.parametrize(("length", "size"), [(1, 2), (5, 8), (300, 6), (7, 64)])
def test_adds_the_papers_sines_and_cosines(length, size):
    x = np.random.default_rng(0).normal(size=(2, length, size)).astype("float32")
    np.testing.assert_allclose(SinusoidalPositions()(x), x + paper(np.arange(length), size), atol=1e-4)


def test_has_no_longest_length_and_no_weights():
    layer = SinusoidalPositions()
    for length in (3, 1000, 10):
        found = layer(np.zeros((1, length, 4), "float32"))
        np.testing.assert_allclose(found[0], paper(np.arange(length), 4), atol=2e-4)
    assert layer.weights == []


def test_the_wavelength_is_an_argument():
    found = SinusoidalPositions(max_wavelength=100)(np.zeros((1, 9, 8), "float32"))
    np.testing.assert_allclose(found[0], paper(np.arange(9), 8, 100.0), atol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_positions_may_be_given_for_all_rows_or_each(dtype):
    layer, x = SinusoidalPositions(), np.zeros((2, 3, 8), "float32")
    shared = np.array([5, 0, 17], dtype)
    np.testing.assert_allclose(layer(x, positions=shared), [paper(shared, 8)] * 2, atol=1e-5)
    each = np.array([[0, 1, 2], [7, 8, 9]], dtype)
    np.testing.assert_allclose(layer(x, positions=each), paper(each, 8), atol=1e-5)
    np.testing.assert_array_equal(layer(x, positions=np.arange(3)), layer(x))


def test_a_shift_is_a_rotation_of_every_pair():
    # What lets a model attend by relative position: PE(p + m) is a rotation of PE(p) that depends on m alone.
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


def test_functional_models_of_any_length_reload_equal(tmp_path):
    inputs, positions = keras.Input((None, 8)), keras.Input((None,), dtype="int32")
    hidden = SinusoidalPositions()(inputs, positions=positions)
    model = keras.Model([inputs, positions], SinusoidalPositions(50.0)(hidden))
    assert model.output_shape == (None, None, 8)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    values = [np.ones((2, 3, 8), "float32"), np.array([[4, 5, 6], [0, 1, 2]])]
    expected = 1 + paper(values[1], 8) + paper(np.arange(3), 8, 50.0)
    np.testing.assert_allclose(again(values), expected, atol=1e-5)


def test_config_round_trip_is_the_identity():
    config = SinusoidalPositions(50.0, name="positions").get_config()
    assert SinusoidalPositions.from_config(config).get_config() == config
    assert config["max_wavelength"] == 50.0


def test_the_keras_mask_passes_through():
    embedded = keras.layers.Embedding(5, 4, mask_zero=True)(np.array([[1, 0]]))
    output = SinusoidalPositions()(embedded)
    np.testing.assert_allclose(keras.layers.GlobalAveragePooling1D()(output), output[:, 0], rtol=1e-6)


def test_an_odd_size_is_refused():
    with pytest.raises(ValueError, match=r"`inputs` must have an even last axis. Received: .*\(2, 3, 7\)"):
        SinusoidalPositions()(np.zeros((2, 3, 7), "float32"))


@pytest.mark.parametrize("wavelength", [0, -5.0])
def test_a_wavelength_that_is_not_positive_is_refused(wavelength):
    with pytest.raises(
        ValueError, match=f"`max_wavelength` must be positive. Received: max_wavelength={wavelength}"
    ):
        SinusoidalPositions(wavelength)
