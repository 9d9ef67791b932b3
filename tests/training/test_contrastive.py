"""InfoNCE equals a NumPy reference; training with it brings the embeddings of a pair together."""

import logging

import keras
import numpy as np
import pytest

from keras_transformer import data, models, pipelines
from keras_transformer.text import WordPieceTokenizer
from keras_transformer.training import InfoNCE

pytestmark = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.normal(size=(5, 2, 8)).astype("float32")
DISTINCT = np.arange(10).reshape(5, 2)
SHARED = np.array(
    [[0, 1], [0, 2], [3, 4], [5, 4], [6, 6]]
)  # pairs 0 and 1 have the same first text, 2 and 3 the same second text

PAIRS = [
    ("uno", "one"),
    ("dos tres", "two three"),
    ("cuatro", "four"),
    ("cinco seis siete", "five six seven"),
    ("ocho nueve", "eight nine"),
    ("diez", "ten"),
    ("once doce", "eleven twelve"),
    ("trece", "thirteen"),
]
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 32, "max_length": 32}


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer.train([text for pair in PAIRS for text in pair], 60, min_frequency=1)


def direct(labels, vectors, temperature, symmetric):
    """Compute the loss one pair at a time."""
    first, second = np.moveaxis(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), 1, 0)
    losses = []
    for queries, texts in [(first, second), (second, first)][: 1 + symmetric]:
        for i in range(len(labels)):
            others = [j for j in range(len(labels)) if j == i or not (labels[i] == labels[j]).any()]
            scores = np.exp([queries[i] @ texts[j] / temperature for j in others])
            losses.append(-np.log(scores[others.index(i)] / scores.sum()))
    return np.mean(losses)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("labels", [DISTINCT, SHARED], ids=["distinct", "shared"])
def test_loss_equals_a_direct_computation(labels, symmetric):
    for temperature in (0.05, 1.0):
        loss = InfoNCE(temperature, symmetric)
        np.testing.assert_allclose(
            loss(labels, VECTORS), direct(labels, VECTORS, temperature, symmetric), rtol=1e-4
        )


def test_the_loss_ignores_order_and_length_of_vectors():
    loss = InfoNCE(0.1)
    order, scale = RANDOM.permutation(5), RANDOM.uniform(0.5, 2, (5, 2, 1)).astype("float32")
    np.testing.assert_allclose(
        loss(SHARED[order], (VECTORS * scale)[order]), loss(SHARED, VECTORS), rtol=1e-5
    )
    weights = np.array([1.0, 0.0, 2.0, 0.0, 0.5])
    each = keras.ops.convert_to_numpy(loss.call(SHARED, VECTORS))
    np.testing.assert_allclose(loss(SHARED, VECTORS, weights), (each * weights).sum() / 5, rtol=1e-5)


def test_the_config_round_trips_and_invalid_arguments_are_rejected():
    loss = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(InfoNCE(0.2, True)))
    assert (loss.temperature, loss.symmetric) == (0.2, True)
    with pytest.raises(ValueError, match="`temperature` must be positive. Received: temperature=0"):
        InfoNCE(0)
    with pytest.raises(
        ValueError, match=r"`y_true` must be of shape \(B, 2\). Received: y_true.shape=\(5,\)"
    ):
        InfoNCE()(DISTINCT[:, 0], VECTORS)
    with pytest.raises(ValueError, match=r"`y_pred` must be of shape \(B, 2, D\). Received: .*\(5, 3, 8\)"):
        InfoNCE()(DISTINCT, np.zeros((5, 3, 8), "float32"))


def test_batches_have_the_pipeline_ids_and_equal_texts_share_a_label(tokenizer):
    texts = [*PAIRS, ("uno", "two three")]  # both are in other pairs too
    encoder = models.BERT(tokenizer.vocabulary_size, **SIZES)
    pipeline = pipelines.Embedding(encoder, tokenizer)
    flat = np.asarray(pipeline.preprocess([text for pair in texts for text in pair]).inputs["token_ids"])
    ids = [tuple(row[row != 0]) for row in flat]
    expected = dict(zip(zip(ids[::2], ids[1::2], strict=True), texts, strict=True))
    dataset = data.sentence_pairs(texts, tokenizer, 4, length_buckets=2)
    for _ in range(2):
        seen, names = [], {}
        for inputs, labels in dataset.as_numpy_iterator():
            for row, numbers in zip(inputs["token_ids"], labels, strict=True):
                pair = expected[tuple(tuple(side[side != 0]) for side in row)]
                seen.append(pair)
                for text, number in zip(pair, numbers, strict=True):
                    assert names.setdefault(text, number) == number
        assert sorted(seen) == sorted(texts)
        assert len(set(names.values())) == len(names) == 2 * len(PAIRS)


def test_long_texts_are_truncated_with_a_warning(tokenizer, caplog):
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        ((inputs, _),) = data.sentence_pairs(PAIRS[3:4], tokenizer, max_length=5)
    assert "truncates texts of 1 of 1 pairs to 5 ids" in caplog.text
    ids = inputs["token_ids"].numpy()
    assert ids.shape == (1, 2, 5)
    assert (ids[..., 0] == tokenizer.start_id).all()
    assert (ids[..., -1] == tokenizer.end_id).all()


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["first", "mean", "pooler"])
def test_pipeline_and_model_pool_equally(tokenizer, pooling, tmp_path):
    model = models.SentenceEncoder(models.BERT(tokenizer.vocabulary_size, **SIZES), pooling)
    ((inputs, _),) = data.sentence_pairs(PAIRS, tokenizer, length_buckets=1, shuffle=False)
    expected = keras.ops.convert_to_numpy(model(inputs))
    pipeline = pipelines.Embedding(model, tokenizer, normalize=False)
    for side in range(2):
        found = pipeline([pair[side] for pair in PAIRS])
        np.testing.assert_allclose(found, expected[:, side], rtol=1e-4, atol=1e-5)
    with pytest.raises(
        ValueError, match=f"`pooling` must be one of \\('{pooling}',\\). Received: pooling='other'"
    ):
        pipelines.Embedding(model, tokenizer, "other")
    if pooling == "first":
        pipeline.save(tmp_path / "saved")
        loaded = pipelines.load(tmp_path / "saved")
        np.testing.assert_allclose(loaded("uno"), pipeline("uno"), rtol=1e-5, atol=1e-6)
        assert loaded.pooling == "first"


@pytest.mark.slow
@pytest.mark.parametrize("symmetric", [False, True])
def test_training_makes_the_texts_of_a_pair_nearest_neighbours(tokenizer, symmetric):
    keras.utils.set_random_seed(0)
    model = models.SentenceEncoder(models.BERT(tokenizer.vocabulary_size, **SIZES))
    batches = data.sentence_pairs(PAIRS, tokenizer, length_buckets=1)
    pipeline = pipelines.Embedding(model, tokenizer)

    def accuracy():
        first, second = (pipeline([pair[side] for pair in PAIRS]) for side in range(2))
        return np.mean(np.argmax(first @ second.T, axis=1) == np.arange(len(PAIRS)))

    assert accuracy() < 0.6
    model.compile(keras.optimizers.Adam(3e-3), InfoNCE(symmetric=symmetric))
    model.fit(batches, epochs=30, shuffle=False, verbose=0)
    assert accuracy() == 1.0


@pytest.mark.slow
def test_views_of_one_text_differ_only_by_dropout(tokenizer):
    """Unsupervised SimCSE: each text is paired with itself."""
    model = models.SentenceEncoder(models.BERT(tokenizer.vocabulary_size, **SIZES, dropout=0.3))
    texts = [text for pair in PAIRS for text in pair]
    batches = data.sentence_pairs([(text, text) for text in texts], tokenizer, length_buckets=1)
    ((inputs, _),) = batches
    still, moved = (keras.ops.convert_to_numpy(model(inputs, training=on)) for on in (False, True))
    np.testing.assert_allclose(still[:, 0], still[:, 1], rtol=1e-5, atol=1e-6)
    assert np.abs(moved[:, 0] - moved[:, 1]).max() > 0.01
    model.compile(keras.optimizers.Adam(1e-3), InfoNCE())
    history = model.fit(batches, epochs=10, shuffle=False, verbose=0).history["loss"]
    assert history[-1] < history[0]


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports need the TensorFlow backend")
def test_a_trained_pipeline_exports(tokenizer, tmp_path):
    import tensorflow

    from keras_transformer import export

    model = models.SentenceEncoder(models.BERT(tokenizer.vocabulary_size, **SIZES), "first")
    pipeline = pipelines.Embedding(model, tokenizer)
    export.bundle(pipeline, tmp_path / "export")  # compares the export with the pipeline
    loaded = tensorflow.saved_model.load(next((tmp_path / "export" / "saved_model").glob("*/1")))
    found = loaded.signatures["serving_default"](text=tensorflow.constant(["uno"]))
    np.testing.assert_allclose(found["embedding"][0], pipeline("uno"), rtol=1e-4, atol=1e-5)
