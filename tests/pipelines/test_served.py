"""Pipelines in memory behind the server, on any backend, with TensorFlow and without."""

import json

import keras
import numpy as np
import pytest
from asgi_calls import call, json_call, run

import keras_transformer as kt
from keras_transformer import models, pipelines
from keras_transformer.lazy_tensorflow import is_installed
from keras_transformer_serving import TextClassification, TextToText

# With TensorFlow only its tokenizers differ.
pytestmark = [pytest.mark.backend_neutral, *([pytest.mark.slow] if is_installed() else [])]
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
BYTES = kt.text.ByteTokenizer()
TEXTS = ["casa", "ñ ☃", ""]


@pytest.fixture(scope="module")
def translator():
    ids = {name: getattr(BYTES, name) for name in ("pad_id", "start_id", "end_id")}
    model = models.Transformer(BYTES.vocabulary_size, **SIZES, **ids)
    return pipelines.TextToText(model, BYTES, max_new_tokens=4, max_source_tokens=8)


@pytest.fixture(scope="module")
def classifier():
    encoder = models.BERT(BYTES.vocabulary_size, **SIZES, max_length=8, pad_id=BYTES.pad_id)
    return pipelines.TextClassification(models.SequenceClassifier(encoder, 2), BYTES, ["x", "y"])


def test_a_pipeline_is_served_without_an_export(translator, classifier):
    served = {"es-en": translator.served(), "reviews": classifier.served()}
    assert [type(each) for each in served.values()] == [TextToText, TextClassification]

    async def requests(app):
        path, body = "/v1/models/{}:predict", {"instances": [*TEXTS, "a" * 20]}
        answers = [await json_call(app, "POST", path.format(name), body) for name in served]
        question = {"q": "casa", "source": "es", "target": "en"}
        translated = await json_call(app, "POST", "/translate", question)
        stream = await call(app, "POST", "/v1/models/es-en:stream", json.dumps({"text": "casa"}).encode())
        return *answers, translated, stream

    (_, outputs), (status, scores), (_, translated), (_, _, stream) = run(served, requests)
    assert status == 200
    expected = translator(TEXTS)
    assert [row["text"] for row in outputs["predictions"][:3]] == expected
    assert "`texts` must have at most 8 tokens" in outputs["predictions"][3]["error"]
    found = [row["probabilities"] for row in scores["predictions"][:3]]
    np.testing.assert_allclose(found, classifier.scores(TEXTS), rtol=1e-4)
    assert translated["translatedText"] == expected[0]
    pieces = [json.loads(line[6:]) for line in stream.decode().splitlines() if line.startswith("data: {")]
    assert "".join(piece["text"] for piece in pieces[:-1]) == pieces[-1]["text"] == expected[0]


def test_answers_are_of_the_weights_after_the_last_fit(classifier):
    served = classifier.served()
    before = served.scores(TEXTS[:2])
    classifier.model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batches = kt.data.classification(TEXTS[:2] * 4, [0, 0] * 4, BYTES, 8, max_length=8)
    classifier.model.fit(batches, epochs=2, verbose=0)
    np.testing.assert_allclose(served.scores(TEXTS[:2]), classifier.scores(TEXTS[:2]), rtol=1e-4)
    assert np.abs(served.scores(TEXTS[:2]) - before).max() > 1e-4
