"""Zero-shot classification equals that of `transformers`, on folders that `benchmarks/parity/zero_shot.py` writes."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from asgi_calls import calling

from keras_transformer import pipelines
from keras_transformer.export import card
from keras_transformer_serving.pipelines.zero_shot_classification import entailment_classes
from keras_transformer_serving.server import create_app, forward
from keras_transformer_serving.tasks import DEFAULT

FOLDERS = sorted((pathlib.Path(__file__).parent / "zero_shot").iterdir())
BART, BERT, DISTIL_BERT = FOLDERS
LABELS = ["Ada", "London", "in"]


@pytest.fixture(scope="module")
def classifier():
    return pipelines.from_hugging_face(BERT, pipeline=pipelines.ZeroShotClassification)


@pytest.mark.slow_variants
@pytest.mark.parametrize("folder", [BERT, BART, DISTIL_BERT], ids=lambda folder: folder.name)
def test_labels_and_scores_equal_transformers(folder):
    classifier = pipelines.from_hugging_face(folder, pipeline=pipelines.ZeroShotClassification)
    served, calls = classifier.served(), {}
    for text, arguments, expected in json.loads((folder / "expected.json").read_text()):
        calls.setdefault(json.dumps(arguments), []).append((text, expected))
    for arguments, rows in calls.items():
        texts = [text for text, _ in rows]
        for answerer in (classifier, served):
            answers = answerer(texts, **json.loads(arguments), truncate=True)
            for answer, (_, expected) in zip(answers, rows, strict=True):
                assert [label for label, _ in answer] == [label for label, _ in expected]
                scores = [score for _, score in expected]
                np.testing.assert_allclose([score for _, score in answer], scores, atol=1e-5)


def test_settings_are_the_arguments_of_calls_and_of_signatures(classifier, tmp_path):
    settings = {"candidate_labels": "Ada, London,in", "hypothesis_template": "{}?", "multi_label": True}
    other = pipelines.ZeroShotClassification(
        classifier.model, classifier.tokenizer, classifier.labels, **settings
    )
    texts = ["said Ada", ""]
    expected = classifier(texts, LABELS, hypothesis_template="{}?", multi_label=True)
    assert other(texts) == expected
    assert dict(other(texts[0])) == pytest.approx(dict(expected[0]))
    assert [{label for label, _ in row} for row in expected] == [{*LABELS}] * 2
    other.save(tmp_path / "saved")
    assert pipelines.load(tmp_path / "saved").settings() == other.settings()
    # Rows of a signature have labels, templates and one or several labels of their own.
    columns = [["Ada", "London", "in"], ["lives", "", "km"]], ["{}?", "a {}"], [True, False]
    mixed = classifier.serve(tf.constant(texts), *map(tf.constant, columns))
    assert mixed["labels"].numpy().tolist() == [[b"Ada", b"London", b"in"], [b"lives", b"km", b""]]
    scores = dict(expected[0])
    np.testing.assert_allclose(mixed["scores"][0], [scores[label] for label in LABELS], rtol=1e-5)
    scores = dict(classifier("", ["lives", "km"], hypothesis_template="a {}"))
    np.testing.assert_allclose(mixed["scores"][1], [scores["lives"], scores["km"], 0], rtol=1e-5)
    assert classifier.text([("Ada", 0.75), ("in", 0.25)]) == "Ada: 0.750, in: 0.250"


def test_invalid_rows_have_the_same_errors_in_calls_and_in_signatures(classifier):
    long = "Ada lives in London. " * 15
    rows = [
        ("ok", ["Ada"], "a {}"),
        (long, ["Ada"], "a {}"),
        ("a", [""], "a {}"),
        ("a", ["Ada"], "a {} {}"),
        ("a", [long], "{}"),
    ]
    columns = [[text for text, *_ in rows], [labels for _, labels, _ in rows], [each for *_, each in rows]]
    errors = classifier.serve(*map(tf.constant, columns))["error"].numpy()
    served = classifier.served()
    signature = forward.signatures(served)["classify"]
    engine = forward.Rows(served, 8)
    columns = dict(zip(("text", "candidate_labels", "hypothesis_template"), columns, strict=True))
    answers = signature.compute(signature.rows(columns, "{}[{}]".format), {}, engine, 8)
    assert [error.decode() for error in errors] == [row["error"] for row in answers]
    assert [message.split(". Received")[0] for message in (row["error"] for row in answers)] == [
        "",
        "`text` must have at most 55 tokens each beside its `candidate_labels`, as `max_length` is 60",
        "`candidate_labels` must have at least one label",
        "`hypothesis_template` must have {} once, in place of the label",
        "`text` must have at most 0 tokens each beside its `candidate_labels`, as `max_length` is 60",
    ]
    with pytest.raises(ValueError, match=r"`text` must have at most 48 tokens each beside .* in text\[1\]"):
        classifier(["a", long], LABELS)
    first, second = classifier(["a", long], LABELS, errors="return")
    assert isinstance(second, ValueError)
    assert dict(first) == pytest.approx(dict(classifier("a", LABELS)))
    assert set(classifier.columns(classifier.config)) == {DEFAULT, "classify"}


def test_the_card_of_an_export_has_a_call_with_labels(classifier):
    texts, labels = eval(card.forward_call(classifier, {}), {"model": lambda *columns: columns})
    assert len(texts) == 1
    answers = classifier.served()(texts, labels)
    assert {label for label, _ in answers[0]} == {*labels}


def test_classes_are_known_by_their_names():
    assert entailment_classes(["neutral", "CONTRADICTION", "Entailment"]) == (2, 1)
    assert entailment_classes(["entailment", "not_entailment"]) == (0, 1)
    assert entailment_classes(["no", "entailed"]) == (1, 0)
    for labels in (["a", "b"], ["entailment"]):
        with pytest.raises(ValueError, match="`labels` must name two or more classes"):
            entailment_classes(labels)


def test_a_server_takes_labels_templates_and_booleans(classifier):
    texts = ["said Ada", "Who?"]
    expected = {
        several: classifier(texts, LABELS, hypothesis_template="said {}!", multi_label=several)
        for several in (False, True)
    }

    def scored(rows):
        return [dict(zip(row["labels"], row["scores"], strict=True)) for row in rows]

    with calling(create_app({"nli": classifier.served()})) as answer:

        def post(path, **body):
            status, _, content = answer(path, body)
            return status, json.loads(content)

        instances = [{"text": text, "candidate_labels": LABELS} for text in texts]
        options = {"signature_name": "classify", "hypothesis_template": "said {}!"}
        for several in (False, True):
            _, found = post("/v1/models/nli:predict", instances=instances, multi_label=several, **options)
            for row, labels in zip(scored(found["predictions"]), expected[several], strict=True):
                assert list(row) == LABELS
                assert row == pytest.approx(dict(labels), rel=1e-5)
        columns = {"text": texts, "candidate_labels": [*LABELS, *LABELS], "multi_label": [True, True]}
        types = {"text": "BYTES", "candidate_labels": "BYTES", "multi_label": "BOOL"}
        inputs = [
            {
                "name": name,
                "datatype": types[name],
                "shape": [2] if len(values) == 2 else [2, 3],
                "data": values,
            }
            for name, values in columns.items()
        ]
        _, found = post("/v2/models/nli/infer", inputs=inputs, parameters=options)
        labels, scores, _ = (output["data"] for output in found["outputs"])
        assert labels == [*LABELS, *LABELS]
        of_labels = [dict(row)[label] for row in expected[True] for label in LABELS]
        np.testing.assert_allclose(scores, of_labels, rtol=1e-5)
        for wrong, message in (
            ("Ada", "`candidate_labels` must be string of shape (any)"),
            ([1], "`candidate_labels` must be string of shape (any)"),
            ([], "`candidate_labels` must have at least one label"),
            (["\ud800"], "`candidate_labels` must be UTF-8"),
        ):
            _, found = post(
                "/v1/models/nli:predict", instances=[{"text": "a", "candidate_labels": wrong}, instances[0]]
            )
            assert found["predictions"][0]["error"].startswith(message)
            assert found["predictions"][1]["error"] == ""
        for labels, message in (
            (["a"] * 300, "at most 256 rows. Received: 600"),
            (["a" * 100_001], "100000 char"),
        ):
            status, found = post(
                "/v1/models/nli:predict",
                instances=[{"text": text, "candidate_labels": labels} for text in texts],
            )
            assert (status == 400) == ("rows" in message)
            assert message in json.dumps(found)
        status, found = post("/v1/models/nli:predict", instances=instances, multi_label=1, **options)
        assert (status, found["error"]) == (
            400,
            "`multi_label` must be true or false. Received: instances[0].multi_label=1",
        )
