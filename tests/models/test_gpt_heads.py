import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.models import GPT, GPTClassifier, GPTMultipleChoice
from keras_transformer.training import LabelSmoothedCrossentropy
from tests.random_weights import randomise

# JAX compiles every new shape for seconds: run only one case of each law there.
neutral = pytest.mark.backend_neutral

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
START, DELIMITER, EXTRACT = (10, 11, 12)
ONE = np.array([[START, 5, 6, EXTRACT, 0, 0], [START, 7, DELIMITER, 8, 9, EXTRACT]])
BOTH = np.array(
    [
        [[START, 5, DELIMITER, 6, 7, EXTRACT, 0], [START, 6, 7, DELIMITER, 5, EXTRACT, 0]],
        [[START, 8, 9, DELIMITER, 6, 5, EXTRACT], [START, 6, 5, DELIMITER, 8, 9, EXTRACT]],
    ]
)


def decoder(**options):
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "max_length": 16, "dropout": 0.0, "end_id": 1}
    return GPT(10, **{**sizes, **options}).resize_token_embeddings(13)


def tiny(kind="classifier", **options):
    made = {
        "classifier": lambda: GPTClassifier(decoder(), 3, **options),
        "similarity": lambda: GPTClassifier(decoder(), 3, symmetric=True, **options),
        "choice": lambda: GPTMultipleChoice(decoder(), **options),
    }
    return randomise(made[kind]())


INPUTS = {"classifier": ONE, "similarity": BOTH, "choice": BOTH}


def answer(model, ids):
    return {name: ops.convert_to_numpy(each) for name, each in model(np.asarray(ids)).items()}


@neutral
def test_classes_are_computed_from_the_extract_token_at_any_position():
    model = tiny()
    hidden = ops.convert_to_numpy(model.decoder.hidden(ONE))
    kernel, bias = model.head.get_weights()
    ends = np.stack([hidden[0, 3], hidden[1, 5]])
    found = answer(model, ONE)
    np.testing.assert_allclose(found["classes"], ends @ kernel + bias, **CLOSE)
    np.testing.assert_allclose(found["tokens"], model.decoder(ONE), **CLOSE)
    np.testing.assert_allclose(model.classify({"token_ids": ONE}), found["classes"], **CLOSE)


@neutral
def test_similarity_is_symmetric():
    model = tiny("similarity")
    expected = answer(model, BOTH)["classes"]
    np.testing.assert_allclose(answer(model, BOTH[:, ::-1])["classes"], expected, **CLOSE)
    once = randomise(GPTClassifier(model.decoder, 3))  # without symmetry, the order matters
    assert not np.allclose(answer(once, BOTH[:, 0])["classes"], answer(once, BOTH[:, 1])["classes"], **CLOSE)


@neutral
def test_choices_are_scored_independently():
    model = tiny("choice")
    expected = answer(model, BOTH)["classes"]
    np.testing.assert_allclose(answer(model, BOTH[:, ::-1])["classes"], expected[:, ::-1], **CLOSE)
    np.testing.assert_allclose(answer(model, BOTH[:, :1])["classes"], expected[:, :1], **CLOSE)
    more = np.concatenate([BOTH, np.zeros_like(BOTH[:, :1])], axis=1)
    probabilities = ops.convert_to_numpy(ops.softmax(model(more)["classes"]))
    assert (probabilities[:, 2] == 0).all()
    np.testing.assert_allclose(probabilities[:, :2].sum(1), 1, **CLOSE)


LOSSES = {
    "classes": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "tokens": LabelSmoothedCrossentropy(0.0),
}


def step(weight, ids=ONE, kind="classifier"):
    """Return the weights after a step of gradient descent, with the weight `weight` of the auxiliary loss."""
    model = tiny(kind)
    following = np.pad(ids, [(0, 0)] * (ids.ndim - 1) + [(0, 1)])[..., 1:]
    losses = {"classes": LOSSES["classes"]} if weight is None else LOSSES
    weights = None if weight is None else {"classes": 1.0, "tokens": weight}
    model.compile(keras.optimizers.SGD(0.1), losses, loss_weights=weights, run_eagerly=True)
    labels = {"classes": np.array([1, 0]), "tokens": following}
    model.train_on_batch(ids, {name: labels[name] for name in losses})
    return [ops.convert_to_numpy(weight) for weight in model.trainable_weights]


@pytest.mark.slow
def test_gradients_are_linear_in_the_auxiliary_loss_weight():
    without, zero, half, whole = (step(weight) for weight in (None, 0.0, 0.5, 1.0))
    for expected, found, between, other in zip(without, zero, half, whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(between, (found + other) / 2, rtol=1e-4, atol=1e-5)
    assert any(not np.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(zero, whole, strict=True))


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", INPUTS)
def test_padding_gives_no_gradient(kind):
    ids = INPUTS[kind]
    longer = np.pad(ids, [(0, 0)] * (ids.ndim - 1) + [(0, 2)])
    for found, expected in zip(step(0.5, longer, kind), step(0.5, ids, kind), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@neutral
def test_a_tiny_model_learns_task_and_language_model():
    """Right and wrong answers have different words, and a context repeats its first word."""
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 64)
    ids = np.full((64, 2, 6), START)
    ids[..., 1] = ids[..., 2] = random.integers(2, 6, (64, 1))
    ids[..., 3], ids[..., 5] = DELIMITER, EXTRACT
    ids[..., 4] = np.where(np.arange(2) == labels[:, None], 6, 8) + random.integers(0, 2, (64, 2))
    model = GPTMultipleChoice(decoder(model_dim=16))
    model.compile(
        keras.optimizers.Adam(2e-2), LOSSES, loss_weights={"classes": 1.0, "tokens": 0.5},
        metrics={"classes": ["accuracy"]},
    )  # fmt: skip
    following = np.pad(ids[..., 1:], [(0, 0), (0, 0), (0, 1)])
    labels = {"classes": labels, "tokens": following}
    history = model.fit(ids, labels, batch_size=32, epochs=12, verbose=0).history
    assert history["classes_accuracy"][-1] > 0.95
    assert history["tokens_loss"][-1] < 0.5 * history["tokens_loss"][0]


@neutral
def test_larger_vocabulary_keeps_embeddings():
    model = randomise(GPT(10, 1, 2, 8, max_length=16, dropout=0.0))
    larger = model.resize_token_embeddings(13)
    assert (larger.vocabulary_size, model.vocabulary_size) == (13, 10)
    ids = np.array([[5, 6, 7]])
    np.testing.assert_array_equal(larger(ids)[..., :10], model(ids))
    rows = ops.convert_to_numpy(larger.embedding.embedding.embeddings)[10:]
    assert 0 < np.abs(rows).max() < 0.1  # drawn at random, not trained
    larger.positions.table.assign(np.zeros((16, 8)))
    assert np.abs(ops.convert_to_numpy(model.positions.table)).max() > 0.1  # the models share no weights


@neutral
def test_smaller_vocabulary_keeps_first_embeddings():
    model = randomise(GPT(10, 1, 2, 8, max_length=16, dropout=0.0))
    smaller = model.resize_token_embeddings(8)
    assert smaller.vocabulary_size == 8
    ids = np.array([[5, 6, 7]])
    for found, weight in zip(smaller.weights, model.weights, strict=True):
        np.testing.assert_array_equal(found, keras.ops.convert_to_numpy(weight)[: found.shape[0]])
    # A product with a matrix of another size may round differently.
    np.testing.assert_allclose(smaller(ids), model(ids)[..., :8], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model.resize_token_embeddings(10)(ids), model(ids))
