import keras
import numpy as np
import pytest

from keras_transformer.layers import Positions2D, SinusoidalPositions

# On JAX every new shape compiles: one case of each law runs there.
neutral = pytest.mark.backend_neutral


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@neutral
def test_half_of_the_features_encode_the_row_and_half_the_column():
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
def test_a_sequence_of_cells_is_the_grid_row_by_row(kind):
    layer, x = Positions2D(kind, grid_shape=(3, 5)), normal(2, 3, 5, 8)
    grid, sequence = np.asarray(layer(x)), np.asarray(layer(x.reshape(2, 15, 8)))
    np.testing.assert_array_equal(grid.reshape(2, 15, 8), sequence)
    assert not np.array_equal(grid, x)


@neutral
def test_a_learned_encoding_is_a_table_with_a_vector_for_each_cell():
    layer, x = Positions2D("learned", initializer="random_normal"), normal(2, 3, 5, 7)
    output = layer(x)
    (table,) = layer.get_weights()
    assert table.shape == (3, 5, 7)
    np.testing.assert_allclose(output, x + table, rtol=1e-6)
    assert Positions2D().weights == []


@neutral
@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_every_mode_agrees(modes, mode, kind):
    if mode not in modes:
        pytest.skip("no such mode on this backend")
    layer, x = Positions2D(kind, grid_shape=(3, 5)), normal(2, 15, 8)
    np.testing.assert_allclose(layer(x), modes[mode](layer)(x), atol=1e-6)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_half_precision_is_finite_and_keeps_the_type(kind):
    output = Positions2D(kind, dtype="mixed_float16")(normal(1, 60, 3, 8))
    assert keras.backend.standardize_dtype(output.dtype) == "float16"
    assert np.isfinite(np.asarray(output)).all()


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((None, None, 8), {}),
        ((3, 5, 8), {"kind": "learned"}),
        ((15, 8), {"grid_shape": (3, 5)}),
        ((None, 8), {"kind": "learned", "grid_shape": (3, 5)}),
    ],
    ids=str,
)
def test_a_functional_model_reloads_equal(shape, options, tmp_path):
    inputs = keras.Input(shape)
    model = keras.Model(inputs, Positions2D(**options)(inputs))
    assert model.output_shape == (None, *shape)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    x = normal(2, 3, 5, 8) if len(shape) == 3 else normal(2, 15, 8)
    np.testing.assert_allclose(again(x), model(x), rtol=1e-6)


@neutral
@pytest.mark.parametrize("arguments", [{}, {"kind": "learned", "grid_shape": (3, 5), "initializer": "ones"}])
def test_config_round_trip_is_the_identity(arguments):
    layer = Positions2D(**arguments)
    config = layer.get_config()
    assert Positions2D.from_config(config).get_config() == config
    assert layer.supports_masking


def on(shape, **options):
    return lambda: Positions2D(**options)(np.zeros(shape, "float32"))


GRID = "`grid_shape` must be .*Received: grid_shape="
CELL = "`inputs` must have a cell .*Received: inputs.shape="
REFUSED = {
    "kind": (on((1, 3, 5, 8), kind="rotary"), "`kind` must be one of .*Received: kind='rotary'"),
    "one side": (on((1, 3, 8), grid_shape=(3,)), GRID + r"\(3,\)"),
    "empty side": (on((1, 3, 8), grid_shape=(3, 0)), GRID + r"\(3, 0\)"),
    "max_wavelength": (
        on((1, 3, 5, 8), max_wavelength=0),
        "`max_wavelength` must be positive. Received: max_wavelength=0",
    ),
    "last axis": (
        on((1, 3, 5, 6)),
        r"`inputs` must have a last axis divisible by 4. Received: .*\(1, 3, 5, 6\)",
    ),
    "rank": (
        on((1, 15, 8)),
        r"`inputs` must be \(B, height, width, D\), .*Received: inputs.shape=\(1, 15, 8\)",
    ),
    "length": (on((1, 16, 8), grid_shape=(3, 5)), CELL + r"\(1, 16, 8\)"),
    "another grid": (
        on((1, 5, 3, 8), grid_shape=(3, 5)),
        "`inputs` must have a cell for each of the grid's 3 × 5. Received",
    ),
    "unknown size": (
        lambda: Positions2D("learned")(keras.Input((None, 5, 8))),
        "`grid_shape` must be given if kind='learned'",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_errors_name_the_argument_and_its_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_learned_table_takes_no_other_grid():
    layer = Positions2D("learned")
    layer(np.zeros((1, 3, 5, 8), "float32"))
    with pytest.raises(
        ValueError, match=r"`inputs` must have a cell .*Received: inputs.shape=\(1, 1, 5, 8\)"
    ):
        layer(np.zeros((1, 1, 5, 8), "float32"))
