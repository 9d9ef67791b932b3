"""Problem types, which every classifier accepts, saves and validates equally."""

import keras
import numpy as np
import pytest

from keras_transformer.models import BERT, GPT, GPTClassifier, SequenceClassifier, ViT

SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "dropout": 0.0}
IDS = np.array([[2, 5, 6, 12], [2, 7, 12, 0]])
IMAGES = np.random.default_rng(0).uniform(0, 255, (2, 8, 8, 3)).astype("float32")
MAKERS = {
    "bert": (
        lambda *of: SequenceClassifier(BERT(13, **SIZES, max_length=8), *of[:1], problem_type=of[1]),
        IDS,
    ),
    "gpt": (
        lambda *of: GPTClassifier(
            GPT(10, **SIZES, max_length=8).resize_token_embeddings(13), *of[:1], problem_type=of[1]
        ),
        IDS,
    ),
    "vit": (lambda *of: ViT(8, 4, *of[:1], **SIZES, problem_type=of[1]), IMAGES),
}
each = pytest.mark.parametrize("name", MAKERS)


@pytest.mark.slow_variants
@each
@pytest.mark.parametrize(
    ("num_classes", "given", "expected"),
    [
        (3, None, "single_label_classification"),
        (1, None, "regression"),
        (3, "multi_label_classification", "multi_label_classification"),
        (1, "multi_label_classification", "multi_label_classification"),
        (3, "regression", "regression"),
    ],
)
def test_the_default_is_single_label_or_regression_for_one_output(name, num_classes, given, expected):
    model = MAKERS[name][0](num_classes, given)
    assert model.problem_type == expected
    assert type(model).from_config(model.get_config()).problem_type == expected


def test_vit_without_head_has_no_problem_type():
    assert ViT(8, 4, None, **SIZES).problem_type is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem_type", "labels", "loss"),
    [
        (
            "single_label_classification",
            np.array([2, 0]),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        ),
        (
            "multi_label_classification",
            np.array([[1, 0, 1], [0, 0, 0]], "float32"),
            keras.losses.BinaryCrossentropy(from_logits=True),
        ),
        ("regression", np.array([[1.5, -2, 0], [3, 0, 1]], "float32"), keras.losses.MeanSquaredError()),
    ],
)
def test_documented_losses_match_the_logits(problem_type, labels, loss):
    keras.utils.set_random_seed(0)
    model = SequenceClassifier(BERT(13, **SIZES, max_length=8), 3, "mean", problem_type=problem_type)
    model.compile(keras.optimizers.Adam(0.02), loss, jit_compile=False)
    model.fit(IDS, labels, epochs=100, verbose=0)
    logits = keras.ops.convert_to_numpy(model(IDS))
    if problem_type == "regression":
        np.testing.assert_allclose(logits, labels, atol=0.3)
    elif problem_type == "multi_label_classification":
        np.testing.assert_array_equal(logits > 0, labels == 1)
    else:
        np.testing.assert_array_equal(logits.argmax(1), labels)
