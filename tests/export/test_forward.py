"""Exports of pipelines that run a model once equal their pipelines."""

import json

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer import export
from keras_transformer.export import ParityError
from keras_transformer.export.parity import outputs
from keras_transformer.pipelines.pipeline import DEFAULT
from keras_transformer_cli import commands
from keras_transformer_serving import closeness, files, parity
from tests.laws.pipelines import (
    LABELS,
    LONG,
    PIPELINES,
    TEXTS,
    answer,
    classify_images,
    fill_mask,
    rerank,
    run_of,
    several_labels,
    word_pieces,
)


@pytest.mark.slow
def test_exports_resize_images_as_the_pipeline_does():
    pipeline = classify_images(labels=LABELS)
    pipeline.resize = True
    images = np.random.default_rng(0).uniform(0, 255, (2, 11, 6, 3)).astype("float32")
    found = run_of(pipeline)(DEFAULT, {"pixel_values": images})
    np.testing.assert_allclose(found["probabilities"], pipeline.probabilities(images), rtol=1e-4, atol=1e-4)


def test_examples_have_rows_of_all_lengths_and_the_texts():
    pipeline = rerank()
    before = pipeline.example_inputs()["forward"]
    lengths = [count for batch in before for count in batch["attention_mask"].sum(axis=1).tolist()]
    assert len(lengths) == 37
    assert {*range(17)} == {*lengths}
    # Two neighbours that change places do not decide about a precision.
    scores = np.arange(lengths.count(0), len(lengths), dtype="float32")
    swapped = scores.copy()
    swapped[[0, 1]] = scores[[1, 0]]
    assert closeness.rank_correlation(scores, swapped) > 0.999
    texts = [["a b", "c"], ["ñandú", "x y"]] * 20
    after = pipeline.example_inputs(texts)["forward"]
    assert [len(batch["input_ids"]) for batch in after[len(before) :]] == [32, 8]
    expected = pipeline.preprocess(*map(tf.constant, zip(*texts[:2], strict=True))).inputs
    np.testing.assert_array_equal(after[-1]["input_ids"][:2], expected["token_ids"])
    np.testing.assert_array_equal(after[-1]["token_type_ids"][:2], expected["segment_ids"])
    np.testing.assert_array_equal(after[-1]["attention_mask"].sum(axis=1)[:2], [7, 13])
    assert {array.dtype for batch in after for array in batch.values()} == {np.dtype("int64")}


@pytest.mark.slow
def test_texts_without_a_mask_or_word_have_an_empty_row():
    pipeline = fill_mask(word_pieces(), top=2)
    found = run_of(pipeline)(DEFAULT, {"text": np.array(["a [MASK]", "a"])})
    assert found["pieces"].shape == (2, 1, 2)
    assert found["pieces"][1].tolist() == [["", ""]]
    answerer = answer()
    found = run_of(answerer)(DEFAULT, {"question": np.array(["a", "a"]), "context": np.array([" ", "b"])})
    assert {name: values[0] for name, values in found.items()} == {
        "answer": "",
        "start": -1,
        "end": -1,
        "probability": 0,
        "error": "`context` must contain a word. Received: none",
    }
    assert found["answer"][1] == "b"


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("text, refuse", {"text": ["a", LONG]}, "as `max_length` is 40"),
        ("span", {"question": ["a"], "context": [LONG]}, "as `max_length` is 40"),
        ("rerank", {"query": ["a"], "text": [LONG]}, "tokens each beside its `query`, as `max_length` is 40"),
        ("span, window", {"question": [LONG], "context": ["a"]}, "as `max_length` is 40"),
        (
            "image",
            {"pixel_values": np.full((1, 8, 8, 3), np.nan, "float32")},
            "must have values from 0.0 to 255.0",
        ),
        (
            "image",
            {"pixel_values": np.full((1, 8, 8, 3), 256, "float32")},
            "must have values from 0.0 to 255.0",
        ),
        (
            "nodes",
            {"nodes": np.ones((1, 2, 5), "float32"), "edges": np.array([[[0, 2]]])},
            "`edges` must connect nodes of the graph",
        ),
        (
            "nodes",
            {"nodes": np.full((1, 2, 5), np.inf, "float32"), "edges": np.array([[[0, 1]]])},
            "`nodes` must be finite",
        ),
    ],
)
def test_inputs_that_the_pipeline_rejects_have_an_error(name, inputs, message):
    found = run_of(PIPELINES[name][0].make())(
        DEFAULT, {key: np.array(values) for key, values in inputs.items()}
    )
    assert any(message in str(error) for error in found["error"])


@pytest.mark.parametrize("name", ["text", "span"])
@pytest.mark.parametrize("texts", [[], [5], [["a", "b", "c"]], ["ab", ("a", "b")]], ids=repr)
def test_texts_of_another_dtype_are_rejected(name, texts):
    with pytest.raises(ValueError, match="`texts` must be (pairs of )?strings"):
        PIPELINES[name][0].make().example_inputs(texts)


@pytest.mark.slow
def test_texts_are_rejected_for_graphs_without_text_inputs(tmp_path):
    for function in (export.saved_model, export.onnx):
        with pytest.raises(ValueError, match="`texts` must be None for a ImageClassification"):
            function(classify_images(labels=LABELS), tmp_path / "it", texts=["a"])


EXAMPLE = outputs.Example(
    "graph", {"x": np.ones((2, 1))}, {"y": np.array([1.0, 200.0], "float32"), "label": np.array(["ñ", ""])}
)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": np.array([1.0003, 200.0], "float32")}, "`graph` must have the model's y"),
        ({"y": np.array([1.0, np.nan], "float32")}, "`graph` must have the model's y"),
        ({"y": np.array([[1.0, 200.0]], "float32")}, r"shape \(1, 2\)"),
        ({"label": np.array(["n", ""])}, "`graph` must have the model's label"),
        (
            {"more": np.zeros(1)},
            r"must have the outputs \['label', 'y'\]. Received: \['label', 'more', 'y'\]",
        ),
    ],
)
def test_a_different_output_raises_a_parity_error(changed, message):
    with pytest.raises(ParityError, match=message):
        parity.compare_tensors([EXAMPLE], lambda *_: {**EXAMPLE.outputs, **changed}, 1e-4)


def test_small_differences_are_reported():
    near = {**EXAMPLE.outputs, "y": np.array([1.0, 200.01], "float32")}
    report = parity.compare_tensors([EXAMPLE, EXAMPLE], lambda *_: near, 1e-4)
    assert report["graphs"]["graph"]["rows"] == 4
    assert report["graphs"]["graph"]["largest_difference"] == pytest.approx(0.01, rel=0.01)


def test_examples_round_trip(tmp_path):
    examples = [EXAMPLE, outputs.Example("other", {"text": np.array(["a", "☃ b"])}, {"n": np.array([1, -1])})]
    outputs.save(tmp_path / "it.npz", examples)
    again = parity.load_examples(tmp_path / "it.npz")
    assert [one.graph for one in again] == ["graph", "other"]
    for one, other in zip(examples, again, strict=True):
        for side in ("inputs", "outputs"):
            expected, found = getattr(one, side), getattr(other, side)
            assert set(expected) == set(found)
            for name in expected:
                np.testing.assert_array_equal(expected[name], found[name])
                assert expected[name].dtype == found[name].dtype


@pytest.fixture(scope="module")
def classifier():
    return classify_images(labels=LABELS)


@pytest.fixture(scope="module")
def folder(classifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "digits"
    export.saved_model(classifier, folder)
    export.onnx(classifier, folder)
    return folder


def everything(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


@pytest.mark.slow
def test_an_export_verifies_against_itself_and_its_pipeline(folder, classifier):
    results = export.verify(folder)
    assert set(results) == {"saved_model/digits/1", "onnx"}
    assert set(results["onnx"]["graphs"]) == {"forward"}
    assert set(results["saved_model/digits/1"]["graphs"]) == {"serving_default", "forward"}
    assert export.verify(folder, classifier) == results
    with pytest.raises(ParityError, match="`forward` must have the model's logits"):
        export.verify(folder, classify_images(3, LABELS, seed=2))


def test_a_graph_with_different_weights_fails_verification(folder, tmp_path):
    examples = parity.load_examples(folder / "onnx" / "examples.npz")
    examples[0].outputs["logits"][0, 0] += 0.01
    graphs = serving.PartFiles.of_folder(folder / "onnx")
    run = serving.ServedOnnx.runner(graphs, serving.Bundle(folder).config, None)
    with pytest.raises(ParityError, match="logits"):
        parity.compare_tensors(examples, run, 1e-4)


@pytest.mark.slow
def test_exports_are_not_overwritten_and_failed_exports_leave_no_files(
    folder, classifier, tmp_path, monkeypatch
):
    before = everything(folder)
    for function in (export.saved_model, export.onnx):
        with pytest.raises(FileExistsError):
            function(classifier, folder)
    monkeypatch.setattr(outputs, "save", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        export.onnx(classifier, tmp_path / "new")
    assert everything(folder) == before
    assert everything(tmp_path) == {}


def test_an_export_is_served_without_tensorflow(folder, classifier):
    served = serving.load(folder)
    images = np.random.default_rng(3).integers(0, 256, (4, 8, 8, 3))
    images[0, 0, 0] = 0, 255, 255
    found = served.run(pixel_values=images)["logits"]
    assert [served.config["labels"][i] for i in found.argmax(-1)] == classifier(images.astype("uint8"))
    assert served.answers(pixel_values=images) == classifier(images.astype("uint8"))
    with pytest.raises(
        ValueError, match="`pixel_values` must be from 0.0 to 255.0. Received: from 0.0 to 510.0"
    ):
        served.run(pixel_values=2 * images * (images == 255))
    assert "tokenizer_file" not in served.config
    assert not (folder / "tokenizer").exists()


@pytest.mark.slow
def test_the_command_line_verifies_an_export_and_rejects_generation(folder, capsys):
    assert commands.main(["verify", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out) == export.verify(folder)
    assert commands.main(["generate", str(folder), "a"]) == 2
    assert "must be a generating pipeline" in capsys.readouterr().err


def test_values_other_than_pipelines_are_rejected(tmp_path):
    for function in (export.saved_model, export.onnx):
        with pytest.raises(
            ValueError, match="`pipeline` must be a pipeline of keras_transformer.pipelines. Received: a ViT"
        ):
            function(classify_images(labels=LABELS).model, tmp_path / "it")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text, several labels", "text, number"])
def test_multi_label_classifiers_and_regressions_are_exported_and_served(name, tmp_path):
    pipeline, texts = PIPELINES[name][0].make(), TEXTS[:5]
    report = files.read_json(export.onnx(pipeline, tmp_path / "it").parent / "parity.json")
    assert report["onnx"]["graphs"]["forward"]["largest_difference"] < 1e-4
    served = serving.load(tmp_path / "it")
    assert served.config["problem_type"] == pipeline.problem_type
    batch = {name: ids.numpy() for name, ids in pipeline.preprocess(tf.constant(texts)).inputs.items()}
    inputs = {"input_ids": batch["token_ids"], "token_type_ids": batch["segment_ids"]}
    found = served.run(**inputs)
    regression = pipeline.problem_type == "regression"
    scores = found["logits" if regression else "probabilities"]
    np.testing.assert_allclose(scores, pipeline.scores(texts), rtol=1e-4, atol=1e-4)
    assert set(found) == ({"logits"} if regression else {"logits", "probabilities"})
    if regression:
        np.testing.assert_allclose(served.answers(**inputs), pipeline(texts), rtol=1e-4, atol=1e-4)
    else:
        assert served.answers(**inputs) == pipeline(texts)


@pytest.mark.slow
def test_multiple_labels_are_padded_and_numbers_are_float32():
    found = run_of(several_labels())(DEFAULT, {"text": np.array(TEXTS)})
    answers = several_labels()(TEXTS)
    assert [[label for label in row if label] for row in found["labels"].tolist()] == answers
    assert found["labels"].shape == (len(TEXTS), max(map(len, answers)))
    assert len(set(map(len, answers))) > 1
    found = run_of(PIPELINES["text, number"][0].make())(DEFAULT, {"text": np.array(TEXTS)})
    assert {name: (values.shape, values.dtype) for name, values in found.items()} == {
        "values": ((len(TEXTS), 1), "float32"),
        "error": ((len(TEXTS),), found["error"].dtype),
    }


def test_only_a_classifier_may_have_several_candidate_answers():
    model = object.__new__(serving.Model)
    model.config = {"pipeline": "Embedding"}
    with pytest.raises(ValueError, match="`answers` needs an export of a classifier .*Received: Embedding"):
        model.answers(input_ids=np.zeros((1, 2)))
