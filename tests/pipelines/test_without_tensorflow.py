"""Pipelines where TensorFlow is not installed, by `make test-core`: answers that TensorFlow gave, stored by exports."""

import json
import pathlib
import tarfile

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import models, pipelines
from keras_transformer.lazy_tensorflow import is_installed

pytestmark = [
    pytest.mark.backend_neutral,
    pytest.mark.skipif(is_installed(), reason="TensorFlow is installed"),
]
FOLDER = pathlib.Path(__file__).resolve().parent.parent / "saved_files"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.glob("[A-Z]*.tar.xz"))
GENERATING = [name for name in NAMES if name.startswith(("TextToText", "TextGeneration"))]
FORWARD = [name for name in NAMES if name not in GENERATING]
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
BYTES = kt.text.ByteTokenizer()


@pytest.fixture
def unpacked(tmp_path):
    """Return unpacked(name), which gives the folder of an unpacked archive."""

    def unpack(name):
        with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path / name, filter="data")
        return tmp_path / name

    return unpack


def stored_batch(folder):
    """Return the inputs and the outputs of the first batch of `serving_default` of the SavedModel of an export."""
    (path,) = folder.glob("export/saved_model/*/1/examples.npz")
    with np.load(path) as arrays:
        keys = [key.split("/") for key in arrays if key.split("/")[1] == "serving_default"]
        first = [key for key in keys if key[0] == keys[0][0]]
        return [
            {key[3]: arrays["/".join(key)] for key in first if key[2] == kind}
            for kind in ("inputs", "outputs")
        ]


def called(pipeline, inputs):
    """Return the answer or the error of each row of a batch."""
    columns = [*inputs.values()]
    if isinstance(pipeline, pipelines.NodeClassification):
        return [pipeline(nodes, edges[edges[:, 0] >= 0]) for nodes, edges in zip(*columns, strict=True)]
    if isinstance(pipeline, pipelines.SpeechToText):
        audio, lengths = columns
        return pipeline([row[:length] for row, length in zip(audio, lengths, strict=True)], errors="return")
    columns = [values.tolist() if values.dtype.kind == "U" else values for values in columns]
    return pipeline(*columns, errors="return")


def assert_answers_are_close(found, expected):
    for answer, other in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        if isinstance(answer, str | int):
            assert answer == other
        else:
            np.testing.assert_allclose(answer, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FORWARD)
def test_answers_and_errors_equal_the_saved_model(name, unpacked):
    folder = unpacked(name)
    pipeline = pipelines.load(folder / "pipeline")
    inputs, outputs = stored_batch(folder)
    answers = called(pipeline, inputs)
    assert len(answers) == len(outputs["error"])
    for row, answer in enumerate(answers):
        if outputs["error"][row]:
            assert str(answer) == f"{outputs['error'][row]} in {next(iter(inputs))}[{row}]"
        else:
            values = {key: column[row] for key, column in outputs.items()}
            assert_answers_are_close(answer, pipeline.answer(values, pipeline.config))


@pytest.mark.parametrize("name", GENERATING)
def test_generated_texts_and_scores_equal_the_saved_model(name, unpacked):
    folder = unpacked(name)
    pipeline = pipelines.load(folder / "pipeline")
    report = json.loads((folder / "export" / "parity.json").read_text())
    examples = report["saved_model/m/1"]["examples"]
    texts, stored = examples["texts"][:4], examples["answers"][:4]
    options = {key: column[:4] for key, column in examples.get("languages", {}).items()}
    if name == "TextToText_int8":
        options["long_texts"] = "refuse"  # as the SavedModel, which does not split texts
    assert pipeline(texts, **options) == [np.ravel(answers)[0] for answers in stored]
    found = pipeline.answers(texts, **options)
    for answers, others, ids, score in zip(found, stored, examples["ids"], examples["scores"], strict=False):
        assert [answer.text for answer in answers] == np.ravel(others)[: len(answers)].tolist()
        assert answers[0].ids == np.atleast_2d(ids)[0][: len(answers[0].ids)].tolist()
        assert answers[0].score == pytest.approx(score, abs=1e-4)


def translate(**options):
    """Return a pipeline of an encoder–decoder."""
    ids = {name: getattr(BYTES, name) for name in ("pad_id", "start_id", "end_id")}
    model = models.Transformer(BYTES.vocabulary_size, **SIZES, **ids)
    return pipelines.TextToText(model, BYTES, max_new_tokens=5, max_source_tokens=16, **options)


def classify(**options):
    """Return a classifier of texts and pairs."""
    encoder = models.BERT(BYTES.vocabulary_size, **SIZES, max_length=16, pad_id=BYTES.pad_id)
    return pipelines.TextClassification(models.SequenceClassifier(encoder, 3), BYTES, **options)


def test_options_of_texts_apply_and_an_error_is_of_its_row():
    classifier = classify(labels=["x", "y", "z"])
    texts, long = ["casa", "", "ñ ☃"], "a" * 40
    scores = classifier.scores([*texts, long[:14]])
    np.testing.assert_allclose(classifier.scores([*texts, long], truncate=True), scores, rtol=1e-5)
    assert np.abs(classifier.scores(texts, [*texts[1:], "a"]) - scores[:3]).min(axis=0).max() > 0
    found = classifier(["casa", long, 3, b"casa", "a\ud800"], errors="return")
    assert found[0] == found[3] == classifier("casa")
    assert "`text` must have at most 14 tokens each" in str(found[1])
    assert "in text[1]" in str(found[1])
    assert [type(error) for error in found[2:]] == [TypeError, str, ValueError]
    windows = pipelines.TextClassification(classifier.model, BYTES, long_texts="window").scores([long])
    # Windows of 14 bytes that begin at 0, 7, 14, 21 and 26 are equal.
    np.testing.assert_allclose(windows, scores[3:], rtol=1e-5)


def test_fit_changes_the_answers_of_later_calls(tmp_path):
    classifier, texts = classify(), ["casa", "perro"]
    before = classifier.scores(texts)
    classifier.model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batches = kt.data.classification(texts * 4, [0, 2] * 4, BYTES, 8, max_length=16)
    classifier.model.fit(batches, epochs=2, verbose=0)
    after = classifier.scores(texts)
    assert np.abs(after - before).max() > 1e-4
    classifier.save(tmp_path / "it")
    np.testing.assert_allclose(pipelines.load(tmp_path / "it").scores(texts), after, rtol=1e-6)


def test_translations_are_scored_streamed_split_and_evaluated():
    translator = translate(long_texts="split")
    texts = ["casa", "a. b"]
    outputs = translator(texts)
    assert translator.encode(texts).dtype == np.int32
    assert translator.encode(texts).tolist() == [[*BYTES.tokenize(text), BYTES.end_id] for text in texts]
    assert "".join(translator.stream(texts[0])) == outputs[0]
    generated, limited = translator.generate(texts), translator.generate(texts, max_new_tokens=[5, 1])
    np.testing.assert_array_equal(limited.ids[0], generated.ids[0])
    assert limited.lengths[1].max() == 1
    (scored,) = translator.score(["casa"], ["b"])
    assert scored.score == pytest.approx(sum(scored.token_scores), abs=1e-5)
    sentences = [f"{letter * 9}." for letter in "ab"]
    assert translator(" ".join(sentences)) == " ".join(translator(sentences))
    metrics = pipelines.evaluate(translator, zip(texts, outputs, strict=True), metrics=["chrf"])
    assert metrics["exact_match"] == 1


def test_images_are_resized_as_by_a_triangular_filter():
    classifier = pipelines.ImageClassification(models.ViT(8, 4, num_classes=3, **SIZES), resize=True)
    images = np.random.default_rng(0).uniform(0, 255, (2, 16, 24, 3)).astype("float32")

    def weights(size, count):
        """Return the weights (count, size) of pixels whose centres are at most a step from a new pixel's."""
        step = size / count
        centres = (np.arange(count)[:, None] + 0.5) * step
        near = np.maximum(1 - np.abs(np.arange(size) + 0.5 - centres) / step, 0)
        return near / near.sum(axis=1, keepdims=True)

    resized = np.einsum("yh,xw,bhwc->byxc", weights(16, 8), weights(24, 8), images)
    np.testing.assert_allclose(classifier.scores(images), classifier.scores(resized), rtol=1e-4)
    found = classifier(np.concatenate([images[:1], images[:1] + 300]), errors="return")
    assert found[0] == classifier(images[0])
    assert "`images` must have values from 0" in str(found[1])
    assert "in images[1]" in str(found[1])


def test_recipes_evaluate_a_saved_pipeline(unpacked, tmp_path):
    pipeline, texts = pipelines.load(unpacked("TextClassification") / "pipeline"), ["a b", "casa"]
    examples = tmp_path / "examples.tsv"
    examples.write_text("".join(f"{text}\t{label}\n" for text, label in zip(texts, "xy", strict=True)))
    correct = sum(map(str.__eq__, pipeline(texts), "xy"))
    assert kt.recipes.evaluate(pipeline, [examples])["accuracy"] == correct / 2


class Stars(pipelines.TextClassification):
    """A task without a class that serves its exports."""


def test_exports_and_new_tasks_require_tensorflow(tmp_path):
    classifier = classify()
    for function in (classifier.signatures, lambda: classifier.preprocess("a"), translate().onnx_graphs):
        with pytest.raises(ImportError, match="`signatures`, .* of pipelines, .* require TensorFlow"):
            function()
    with pytest.raises(ImportError, match="`keras_transformer.export` requires TensorFlow"):
        kt.export  # noqa: B018
    with pytest.raises(ImportError, match="`keras_transformer.text.from_hugging_face` requires TensorFlow"):
        kt.text.from_hugging_face(tmp_path)
    with pytest.raises(
        ImportError, match="`Stars` requires TensorFlow .* or a class that serves its exports"
    ):
        Stars(classifier.model, BYTES)("a")
