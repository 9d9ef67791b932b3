"""Outputs of multi-label classifiers and regressions."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import data, interop, pipelines
from keras_transformer.models import BERT, GPT, GPTClassifier, SequenceClassifier, ViT
from keras_transformer.pipelines import ImageClassification, TextClassification
from keras_transformer.text import ByteTokenizer, WordPieceTokenizer
from tests.random_weights import randomise

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "."]
WORDS, BYTES = WordPieceTokenizer(PIECES), ByteTokenizer()
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "dropout": 0.0}
TEXTS = ["a b c", "h", "a b. c", "", "c a", "d e f a b"]
IMAGES = np.random.default_rng(0).uniform(0, 255, (6, 8, 8, 3)).astype("float32")
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
LABELS = ["x", "y", "z"]


def randomised(model):
    randomise(model, scale=0.7, seed=3)
    model.head.kernel.assign(4 * model.head.kernel)
    return model


def bert(num_classes, problem_type):
    encoder = BERT(len(PIECES), **SIZES, max_length=12)
    return randomised(SequenceClassifier(encoder, num_classes, problem_type=problem_type))


def gpt(num_classes, problem_type):
    decoder = GPT(BYTES.vocabulary_size, **SIZES, max_length=24, end_id=BYTES.end_id)
    return randomised(
        GPTClassifier(
            decoder.resize_token_embeddings(decoder.vocabulary_size + 3),
            num_classes,
            problem_type=problem_type,
        )
    )


def vit(num_classes, problem_type):
    return randomised(ViT(8, 4, num_classes, **SIZES, problem_type=problem_type))


def logits_of(classifier, given):
    if isinstance(classifier, ImageClassification):
        return keras.ops.convert_to_numpy(classifier.model(given))
    run = getattr(classifier.model, "classify", classifier.model)
    batches = [classifier.preprocess(tf.constant([text])).inputs for text in given]
    return np.concatenate([run(keras.tree.map_structure(np.asarray, inputs)) for inputs in batches])


def centred(classifier, given):
    """Return the pipeline with logits centred at 0, so that outputs differ by input."""
    classifier.model.head.bias.assign_sub(logits_of(classifier, given).mean(0))
    return classifier


# Functions that create pipelines, and their inputs.
MAKERS = {
    "vit": (lambda *of, **options: centred(ImageClassification(vit(*of), **options), IMAGES), IMAGES),
    "bert": (lambda *of, **options: centred(TextClassification(bert(*of), WORDS, **options), TEXTS), TEXTS),
    "gpt": (lambda *of, **options: centred(TextClassification(gpt(*of), BYTES, **options), TEXTS), TEXTS),
}
each = pytest.mark.parametrize("name", MAKERS)


@pytest.mark.slow
@pytest.mark.slow_variants
@each
def test_multi_label_probabilities_are_sigmoids(name):
    make, given = MAKERS[name]
    classifier = make(3, "multi_label_classification", labels=LABELS)
    expected = 1 / (1 + np.exp(-logits_of(classifier, given).astype("float64")))
    np.testing.assert_allclose(classifier.scores(given), expected, **CLOSE)
    np.testing.assert_array_equal(classifier.probabilities(given), classifier.scores(given))
    answers = classifier(given)
    assert answers == [[label for label, p in zip(LABELS, row, strict=True) if p > 0.5] for row in expected]
    assert len({len(labels) for labels in answers}) > 1  # so that the labels differ from an argmax
    np.testing.assert_allclose(classifier.scores(given[0]), expected[0], **CLOSE)
    strict = make(3, "multi_label_classification", labels=LABELS, threshold=0.9)
    assert all(set(found) <= set(more) for found, more in zip(strict(given), answers, strict=True))
    assert strict(given) == [
        [label for label, p in zip(LABELS, row, strict=True) if p > 0.9] for row in expected
    ]


@pytest.mark.slow
@each
def test_a_regression_returns_a_number(name):
    make, given = MAKERS[name]
    classifier = make(1, None)
    numbers = logits_of(classifier, given)
    np.testing.assert_allclose(classifier.scores(given), numbers, **CLOSE)
    np.testing.assert_allclose(classifier(given), numbers[:, 0], **CLOSE)
    assert isinstance(classifier(given[0]), float)
    assert numbers.min() < 0  # so that the values are not probabilities
    with pytest.raises(ValueError, match="`probabilities` needs a classifier; .*problem_type='regression'"):
        classifier.probabilities(given)


@pytest.mark.slow
@each
def test_a_regression_of_several_numbers_returns_a_list(name):
    make, given = MAKERS[name]
    classifier = make(3, "regression", labels=LABELS)
    np.testing.assert_allclose(classifier(given), logits_of(classifier, given), **CLOSE)
    assert [type(number) for number in classifier(given[0])] == [float] * 3


@pytest.mark.slow
def test_scores_of_long_texts_are_averaged_over_windows():
    long = "a b c d e f g h a b c d e f"
    windows = [" ".join(long.split()[start : start + 10]) for start in (0, 4)]
    for of in ((3, "multi_label_classification"), (2, "regression")):
        classifier = MAKERS["bert"][0](*of, long_texts="window")
        expected = classifier.scores(windows).mean(0)
        np.testing.assert_allclose(classifier.scores(long), expected, **CLOSE)


def test_probabilities_of_extreme_logits_are_finite():
    classifier = MAKERS["vit"][0](2, "multi_label_classification")
    classifier.model.head.kernel.assign(np.zeros((8, 2)))
    classifier.model.head.bias.assign([-1e6, 1e6])
    np.testing.assert_allclose(classifier.scores(IMAGES[0]), [0, 1], atol=1e-6)


@pytest.mark.parametrize("threshold", [-0.1, 1.5])
def test_a_threshold_must_be_a_probability(threshold):
    for make, _ in MAKERS.values():
        with pytest.raises(
            ValueError, match=rf"`threshold` must be in \[0, 1\]. Received: threshold={threshold}"
        ):
            make(3, "multi_label_classification", threshold=threshold)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "loss"),
    [
        ([[a in text for a in "abc"] for text in TEXTS], keras.losses.BinaryCrossentropy(from_logits=True)),
        ([len(text) / 4 for text in TEXTS], keras.losses.MeanSquaredError()),
    ],
    ids=["several labels", "a number"],
)
def test_gpt_learns_several_labels_and_numbers_by_fit(labels, loss):
    keras.utils.set_random_seed(0)
    several = isinstance(labels[0], list)
    decoder = GPT(BYTES.vocabulary_size, 1, 2, 16, max_length=16, dropout=0.0, end_id=BYTES.end_id)
    model = GPTClassifier(
        decoder.resize_token_embeddings(decoder.vocabulary_size + 3),
        3 if several else 1,
        problem_type="multi_label_classification" if several else None,
    )
    model.compile(keras.optimizers.Adam(2e-2), {"classes": loss, "tokens": None}, jit_compile=False)
    batches = data.fine_tuning(TEXTS, labels, BYTES, 6, shuffle=False)
    model.fit(batches, epochs=60, shuffle=False, verbose=0)
    found = TextClassification(model, BYTES, list("abc") if several else None)(TEXTS)
    if several:
        assert found == [[a for a in "abc" if a in text] for text in TEXTS]
    else:
        np.testing.assert_allclose(found, labels, atol=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_classes", "settings", "expected"),
    [
        (3, {"problem_type": "multi_label_classification"}, "multi_label_classification"),
        (3, {"problem_type": "single_label_classification"}, "single_label_classification"),
        (3, {"problem_type": None}, "single_label_classification"),
        (3, {"problem_type": "regression"}, "regression"),
        (1, {"problem_type": None}, "regression"),
        (1, {"problem_type": "regression"}, "regression"),
    ],
)
@pytest.mark.parametrize("name", ["bert", "vit"])
def test_problem_types_of_transformers_folders_round_trip(name, num_classes, settings, expected, tmp_path):
    pytest.importorskip("safetensors")
    make, given = MAKERS[name]
    written = make(num_classes, expected)
    folder = interop.to_hugging_face(written.model, tmp_path / "it")
    config = json.loads((folder / "config.json").read_text())
    assert config["problem_type"] == expected
    names = {str(i): f"LABEL_{i}" for i in range(num_classes)}
    del config["num_labels"]
    (folder / "config.json").write_text(json.dumps({**config, "id2label": names, **settings}))
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    found = pipelines.from_hugging_face(folder)
    assert (found.problem_type, found.labels) == (expected, list(names.values()))
    np.testing.assert_allclose(found.scores(given), written.scores(given), rtol=1e-3, atol=1e-4)
    again = interop.to_hugging_face(found.model, tmp_path / "again")
    assert json.loads((again / "config.json").read_text())["problem_type"] == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"problem_type": "ranking"}, "`problem_type` must be one of .*Received: problem_type='ranking'"),
        ({"problem_type": 3}, "must have a string as problem_type. Received: problem_type=3"),
        (
            {"problem_type": "single_label_classification", "num_labels": 1},
            "`problem_type` must not be .*num_classes=1",
        ),
    ],
)
def test_an_unknown_problem_type_in_a_folder_is_rejected(settings, message, tmp_path):
    pytest.importorskip("safetensors")
    folder = interop.to_hugging_face(bert(3, None), tmp_path / "it")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    with pytest.raises(ValueError, match=message):
        interop.from_hugging_face(folder)
