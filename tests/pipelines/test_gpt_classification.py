import keras
import numpy as np
import pytest

from keras_transformer import data, pipelines
from keras_transformer.models import GPT, GPTClassifier
from keras_transformer.text import ByteTokenizer
from keras_transformer.training import LabelSmoothedCrossentropy
from tests.laws.cases import randomise

TOKENIZER = ByteTokenizer()
TEXTS = ["a", "bcd", "", "é and so on"]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def tiny(symmetric=False, **options):
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "max_length": 24, "dropout": 0.0}
    decoder = GPT(TOKENIZER.vocabulary_size, **{**sizes, **options}, end_id=TOKENIZER.end_id)
    return randomise(
        GPTClassifier(decoder.resize_token_embeddings(decoder.vocabulary_size + 3), 2, symmetric)
    )


def expected(model, examples, task):
    """Return the probabilities from training batches, one example at a time."""
    batches = data.fine_tuning(
        examples, [0] * len(examples), TOKENIZER, 1, task=task, shuffle=False, max_length=24
    )
    return np.concatenate([keras.ops.softmax(model(inputs)["classes"]) for inputs, _ in batches])


@pytest.mark.slow
@pytest.mark.slow_variants
@pytest.mark.parametrize("batch_size", [1, 32])
def test_predictions_equal_the_model_outputs_on_training_batches(batch_size):
    classifier = pipelines.TextClassification(tiny(), TOKENIZER, ["no", "yes"])
    found = classifier.probabilities(TEXTS, batch_size=batch_size)
    np.testing.assert_allclose(found, expected(classifier.model, TEXTS, "classification"), **CLOSE)
    assert classifier(TEXTS) == [["no", "yes"][i] for i in found.argmax(1)]
    found = classifier.probabilities(TEXTS, TEXTS[::-1], batch_size)
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    np.testing.assert_allclose(found, expected(classifier.model, pairs, "entailment"), **CLOSE)


@pytest.mark.slow
def test_a_symmetric_model_is_invariant_to_the_order_of_texts():
    classifier = pipelines.TextClassification(tiny(symmetric=True), TOKENIZER)
    found = classifier.probabilities(TEXTS, TEXTS[::-1])
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    np.testing.assert_allclose(found, expected(classifier.model, pairs, "similarity"), **CLOSE)
    np.testing.assert_allclose(found, classifier.probabilities(TEXTS[::-1], TEXTS), **CLOSE)
    with pytest.raises(ValueError, match="`text_pair` is required"):
        classifier(TEXTS)


@pytest.mark.slow
def test_long_texts_are_rejected_or_averaged_over_windows():
    long = "x" * 23
    with pytest.raises(ValueError, match=r"`text` must have at most 22 .*Received: 23 tokens in text\[1\]"):
        pipelines.TextClassification(tiny(), TOKENIZER)(["a", long])
    classifier = pipelines.TextClassification(tiny(), TOKENIZER, long_texts="window")
    windows = classifier.probabilities([long[:22], long[1:]]).mean(0)
    np.testing.assert_allclose(classifier.probabilities(long), windows, **CLOSE)
    endless = pipelines.TextClassification(tiny(position_encoding="rotary"), TOKENIZER)
    assert endless([long * 2])[0] in (0, 1)


@pytest.mark.slow
def test_the_pipeline_trains():
    keras.utils.set_random_seed(0)
    texts = [f"{a}{b}" for a in "abcd" for b in "efgh"]
    labels = [text[0] in "ab" for text in texts]
    decoder = GPT(TOKENIZER.vocabulary_size, 1, 2, 16, max_length=8, dropout=0.0, end_id=TOKENIZER.end_id)
    model = GPTClassifier(decoder.resize_token_embeddings(decoder.vocabulary_size + 3), 2)
    losses = {
        "classes": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "tokens": LabelSmoothedCrossentropy(0.0, pad_id=TOKENIZER.pad_id),
    }
    model.compile(
        keras.optimizers.Adam(2e-2), losses, loss_weights={"classes": 1.0, "tokens": 0.5}, jit_compile=False
    )
    batches = data.fine_tuning(texts, labels, TOKENIZER, 16, shuffle=False)
    model.fit(batches, epochs=30, shuffle=False, verbose=0)
    classifier = pipelines.TextClassification(model, TOKENIZER, ["late", "early"])
    assert classifier(texts) == [["late", "early"][label] for label in labels]


def test_a_mismatched_vocabulary_size_is_rejected():
    decoder = GPT(TOKENIZER.vocabulary_size + 4, 1, 2, 8, max_length=8, end_id=TOKENIZER.end_id)
    with pytest.raises(
        ValueError, match="must have the same vocabulary_size, including the special tokens .*Received: "
    ):
        pipelines.TextClassification(GPTClassifier(decoder, 2), TOKENIZER)
