import pathlib

import numpy as np
import pytest

from keras_transformer.generation import Ensemble
from keras_transformer.training import average_checkpoints

pytestmark = pytest.mark.backend_neutral


def test_averaged_weights_equal_the_mean_of_the_files(random_transformer, tmp_path):
    models = [random_transformer(seed) for seed in range(3)]
    files = [tmp_path / "0.weights.h5", tmp_path / "1.weights.h5", tmp_path / "2.keras"]
    for model, file in zip(models, files, strict=True):
        model.save(file) if file.suffix == ".keras" else model.save_weights(file)
    target = random_transformer(9)
    average_checkpoints(target, files)
    for found, *saved in zip(target.get_weights(), *(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(found, np.mean(saved, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("files", ["a.weights.h5", pathlib.Path("a.weights.h5"), None, [1]], ids=repr)
def test_checkpoints_must_be_a_list_of_paths(random_transformer, files):
    with pytest.raises(TypeError, match=r"`files` must be a list of paths. Received: files="):
        average_checkpoints(random_transformer(1), files)


def test_the_model_must_be_a_keras_model(random_transformer):
    with pytest.raises(TypeError, match="`model` must be a Keras model. Received: a Ensemble"):
        average_checkpoints(Ensemble([random_transformer(1)]), ["a.weights.h5"])


def test_an_error_leaves_the_weights_unchanged(random_transformer, tmp_path):
    model, file = random_transformer(1), tmp_path / "a.weights.h5"
    random_transformer(2).save_weights(file)
    before = model.get_weights()
    for files in ([], [file, tmp_path / "absent.weights.h5"]):
        with pytest.raises((ValueError, OSError)):
            average_checkpoints(model, files)
    for weight, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, expected)
