"""Segmentation by the logits of patches."""

import keras
import numpy as np
import pytest

from keras_transformer.models import ImageSegmenter, ViT
from tests.laws.cases import CLOSE, randomise

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 8, 12, 3)).astype("float32")
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 32}


def segmenter(**options):
    return randomise(ImageSegmenter(ViT((8, 12), 4, None, **SIZES, **options), 3))


@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_logits_of_a_patch_have_its_place_in_the_image(pooling):
    """Bilinear interpolation by 4 weighs patch centres by 7/8 and 1/8 at the two pixels next to them."""
    model = segmenter(pooling=pooling)
    hidden = model.encoder.encode(IMAGES)[:, (pooling == "token") :]
    grid = keras.ops.convert_to_numpy(model.head(hidden)).reshape(2, 2, 3, 3)
    found = keras.ops.convert_to_numpy(model(IMAGES))
    assert found.shape == (2, 8, 12, 3)
    for row, column in np.ndindex(2, 3):
        centre = found[:, 4 * row + 1 : 4 * row + 3, 4 * column + 1 : 4 * column + 3].mean((1, 2))
        near = grid[:, row, column]
        others = np.abs(grid - near[:, None, None]).max((1, 2))
        assert (np.abs(centre - near) <= others / 4 + 1e-5).all()
    # At the border, patches are not interpolated.
    for row, column in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
        np.testing.assert_allclose(found[:, row, column], grid[:, row, column], **CLOSE)


@pytest.mark.slow
def test_squares_are_segmented():
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    labels = np.zeros((64, 8, 8), "int32")
    for image, (row, column) in zip(labels, random.integers(0, 2, (64, 2)), strict=True):
        image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 1
    images = (labels[..., None] * 200 + random.integers(0, 50, (64, 8, 8, 1))).astype("float32")
    model = ImageSegmenter(ViT(8, 2, None, num_channels=1, **SIZES), 2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    overlap = keras.metrics.MeanIoU(2, sparse_y_pred=False, name="overlap")
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=[overlap])
    history = model.fit(images, labels, epochs=15, batch_size=16, verbose=0).history
    assert history["overlap"][-1] > 0.9
