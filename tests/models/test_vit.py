import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.models import ViT
from tests.random_weights import randomise

# JAX compiles every new shape for seconds: run only one case of each law there.
neutral = pytest.mark.backend_neutral

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
TINY = {
    "image_size": (8, 12),
    "patch_size": 4,
    "num_classes": 3,
    "num_layers": 2,
    "num_heads": 2,
    "model_dim": 8,
    "hidden_dim": 16,
}
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 8, 12, 3)).astype("uint8")


def tiny(**options):
    """Return a small model with random weights, including biases."""
    return randomise(ViT(**{**TINY, **options}), scale=0.3, seed=1)


def logits(model, images=IMAGES):
    return np.asarray(model(images))


def test_patches_are_row_major_and_values_scaled_to_minus_one_to_one():
    model = tiny(pooling="mean")
    kernel, bias = (np.asarray(weight) for weight in model.embedding.weights)
    scaled = IMAGES / 127.5 - 1
    patches = [
        scaled[:, y : y + 4, x : x + 4].reshape(2, -1) @ kernel + bias for y in (0, 4) for x in (0, 4, 8)
    ]
    expected = np.stack(patches, axis=1) + np.asarray(model.positions.table).reshape(6, 8)
    np.testing.assert_allclose(model._embed(IMAGES, training=False), expected, **CLOSE)


@pytest.mark.slow_variants
@pytest.mark.parametrize("patch_size", [pytest.param((8, 4), marks=neutral), [4, 6], (2, 3)])
def test_patches_may_be_rectangular(patch_size, tmp_path):
    model = tiny(pooling="mean", patch_size=patch_size)
    height, width = patch_size
    assert model.grid_shape == (8 // height, 12 // width)
    kernel, bias = (np.asarray(weight) for weight in model.embedding.weights)
    scaled = IMAGES / 127.5 - 1
    patches = [
        scaled[:, y : y + height, x : x + width].reshape(2, -1) @ kernel + bias
        for y in range(0, 8, height)
        for x in range(0, 12, width)
    ]
    expected = np.stack(patches, axis=1) + np.asarray(model.positions.table).reshape(len(patches), 8)
    np.testing.assert_allclose(model._embed(IMAGES, training=False), expected, **CLOSE)
    model.save(tmp_path / "it.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "it.keras")(IMAGES), model(IMAGES))
    larger = model.resized((16, 24))
    assert larger.patch_size == tuple(patch_size)
    assert larger.positions.table.shape == (16 // height, 24 // width, 8)


def test_number_and_pair_sizes_agree():
    np.testing.assert_array_equal(logits(tiny(patch_size=(4, 4))), logits(tiny()))


@pytest.mark.slow
def test_query_key_and_value_projections_may_lack_biases():
    model = tiny(qkv_bias=False)
    attention = model.blocks[1].attention
    biased = [layer.use_bias for layer in (attention.query_projection, attention.output_projection)]
    assert biased == [False, True]
    assert tiny().count_params() - model.count_params() == 2 * 3 * 8
    with_zeros = tiny()
    values = iter(model.trainable_weights)
    for weight in with_zeros.trainable_weights:
        lacking = weight.path.endswith(("query/bias", "key/bias", "value/bias"))
        weight.assign(np.zeros(weight.shape) if lacking else next(values))
    np.testing.assert_allclose(logits(with_zeros), logits(model), **CLOSE)
    assert ViT.from_config(model.get_config()).get_config() == model.get_config()


@pytest.mark.slow_variants
@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "float64"])
def test_integer_and_float_images_agree(dtype):
    model = tiny()
    np.testing.assert_allclose(logits(model, IMAGES.astype(dtype)), logits(model), **CLOSE)
    unit = tiny(value_range=(0, 1))
    np.testing.assert_allclose(logits(unit, IMAGES / np.float32(255)), logits(model), **CLOSE)


@pytest.mark.parametrize("pooling", ["token", pytest.param("mean", marks=neutral)])
def test_only_positions_break_permutation_invariance(pooling):
    model = tiny(pooling=pooling)
    swapped = IMAGES[:, [4, 5, 6, 7, 0, 1, 2, 3]]  # the two rows of patches
    assert not np.allclose(logits(model, swapped), logits(model), **CLOSE)
    model.positions.table.assign(np.zeros(model.positions.table.shape))
    np.testing.assert_allclose(logits(model, swapped), logits(model), **CLOSE)


def test_images_do_not_depend_on_other_images_of_the_batch():
    model = tiny()
    np.testing.assert_allclose(logits(model)[:1], logits(model, IMAGES[:1]), **CLOSE)
    assert logits(model, IMAGES[:0]).shape == (0, 3)


@pytest.mark.slow
def test_model_without_head_returns_pooled_features():
    model = tiny(num_classes=None)
    assert logits(model).shape == (2, 8) == model.compute_output_shape(IMAGES.shape)
    np.testing.assert_allclose(logits(model), model.encode(IMAGES)[:, 0], **CLOSE)
    mean = tiny(num_classes=None, pooling="mean")
    np.testing.assert_allclose(logits(mean), ops.mean(mean.encode(IMAGES), axis=1), **CLOSE)


class TestWindow:
    def test_a_window_over_the_full_image_equals_no_window(self):
        np.testing.assert_allclose(logits(tiny(window=2)), logits(tiny()), **CLOSE)
        assert not np.allclose(logits(tiny(window=1)), logits(tiny()), **CLOSE)

    def test_patches_attend_to_near_rows_and_columns_and_the_class_token(self):
        weights = tiny(window=1).attention_weights(IMAGES)
        assert [tuple(each.shape) for each in weights] == [(2, 2, 7, 7)] * 2
        seen = np.asarray(weights[0])[0, 0] > 0
        assert seen[0].all()
        assert seen[:, 0].all()
        np.testing.assert_array_equal(
            seen[1, 1:], [1, 1, 0, 1, 1, 0]
        )  # the corner attends to its row and the next
        np.testing.assert_array_equal(seen[2, 1:], [1, 1, 1, 1, 1, 1])

    def test_patches_outside_the_window_do_not_change_outputs(self):
        model = tiny(window=0, pooling="mean", num_layers=1)
        changed = IMAGES.copy()
        changed[:, :4, :4] = 255 - changed[:, :4, :4]
        same = np.isclose(model.encode(changed), model.encode(IMAGES)).all(-1)[0]
        np.testing.assert_array_equal(same, [0, 1, 1, 1, 1, 1])


class TestResized:
    @pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
    def test_resizing_to_the_same_size_gives_an_equal_model(self, positions):
        model = tiny(positions=positions)
        again = model.resized((8, 12))
        np.testing.assert_allclose(logits(again), logits(model), **CLOSE)

    def test_resizing_interpolates_positions_and_copies_other_weights(self):
        model = tiny()
        larger = model.resized((16, 24))
        assert logits(larger, np.zeros((1, 16, 24, 3))).shape == (1, 3)
        for old, new in zip(model.weights, larger.weights, strict=True):
            if "table" in old.path:
                assert tuple(new.shape) == (4, 6, 8)
                # A grid twice as fine approximately keeps means, and keeps a constant table exactly.
                np.testing.assert_allclose(ops.mean(new, (0, 1)), ops.mean(old, (0, 1)), atol=0.05)
            else:
                np.testing.assert_array_equal(old, new)
        model.positions.table.assign(np.ones(model.positions.table.shape))
        np.testing.assert_allclose(model.resized((16, 24)).positions.table, np.ones((4, 6, 8)), rtol=1e-5)

    @pytest.mark.slow
    def test_resizing_recomputes_sinusoidal_positions(self):
        model = tiny(positions="sinusoidal")
        larger, fresh = model.resized((16, 24)), tiny(positions="sinusoidal", image_size=(16, 24))
        images = np.ones((1, 16, 24, 3))
        np.testing.assert_allclose(logits(larger, images), logits(fresh, images), **CLOSE)


def stripes(count, seed=0):
    """Return images of horizontal or vertical stripes, and their labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    phase = random.integers(0, 2, (count, 1, 1)) + np.arange(8)[None, None] // 2 % 2
    rows = np.broadcast_to(phase % 2, (count, 8, 8))
    images = np.where(labels[:, None, None] == 1, rows, rows.transpose(0, 2, 1))
    return (200 * images[..., None] + random.integers(0, 50, (count, 8, 8, 1))).astype("uint8"), labels


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=neutral)], ids=["graph", "xla"])
def test_a_tiny_model_learns_to_classify_stripes(jit_compile):
    keras.utils.set_random_seed(0)
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 32, "dropout": 0.1}
    model = ViT(8, 4, 2, num_channels=1, **sizes)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"], jit_compile=jit_compile)
    images, labels = stripes(256)
    model.fit(images, labels, batch_size=32, epochs=12, verbose=0)
    assert model.evaluate(*stripes(64, seed=1), verbose=0)[1] > 0.9
