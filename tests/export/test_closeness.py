"""How close exports in float16 and int8 must be to the model, by task."""

import json
import pathlib
import re
import runpy

import numpy as np
import pytest

import keras_transformer_serving as serving
from keras_transformer import export, models, pipelines, text
from keras_transformer.export import ParityError
from keras_transformer_serving import closeness, files, graph_files, manifest, parity, precisions

TRITON = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "export" / "triton" / "make_repository.py"))


def compare(precision, expected, found, inputs=(), limits=None, **config):
    """Compare the outputs of a graph with a pipeline's; its task is by default one without a class."""
    examples = [parity.Example("forward", dict(inputs), expected)]
    settings = {"pipeline": "Unknown", **config}
    row = precisions.compare(precision, examples, lambda *_: found, settings, thresholds=limits)
    return precisions.check(precision, row)


def test_tensors_are_compared_by_their_relative_error():
    expected = {"logits": np.array([3.0, 4.0]), "more": np.zeros(2)}
    near = {"logits": np.array([3.0, 4.04]), "more": np.zeros(2)}
    assert compare("float16", expected, near)["relative_error"] == pytest.approx(0.008)
    for far in ({**near, "logits": np.array([3.0, 4.06])}, {**near, "more": np.array([0.02, 0])}):
        with pytest.raises(ParityError, match=r"relative error is 0.0\d+ and must be at most 0.01"):
            compare("float16", expected, far)


def test_tensors_of_ids_are_compared_by_their_identical_ids():
    expected = np.full((20, 10), 1000)
    near = expected.copy()
    near[0, 5] = 0
    row = compare("int8", {"ids": expected}, {"ids": near})
    assert row == {"identical_ids": 195 / 196, "thresholds": {"identical_ids": 0.9}}
    with pytest.raises(ParityError, match="Leave int8 out. .*identical ids is 0 and must be at least 0.9"):
        compare("int8", {"ids": expected}, {"ids": expected + 1})  # a relative error of 0.001


def test_embeddings_are_compared_by_cosines_and_ranking():
    """Neither the norms nor the hidden states count."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(9, 16))
    mask = {"attention_mask": np.array([[1, 1]] * 8 + [[0, 0]])}
    near = np.concatenate([2 * vectors[:8] + 0.02 * random.normal(size=(8, 16)), np.zeros((1, 16))])
    expected = {"sentence_embedding": vectors, "last_hidden_state": np.ones((9, 2, 16))}
    found = {"sentence_embedding": near, "last_hidden_state": np.zeros((9, 2, 16))}
    row = compare("int8", expected, found, mask, pipeline="Embedding")
    cosines = [a @ b / np.sqrt(a @ a * (b @ b)) for a, b in zip(vectors[:8], near[:8], strict=True)]
    assert row["mean_cosine"] == pytest.approx(np.mean(cosines))
    assert row["least_cosine"] == pytest.approx(np.min(cosines))
    assert 0.99 < row["rank_correlation"] <= 1
    assert set(row["thresholds"]) == {"mean_cosine", "least_cosine", "rank_correlation"}
    far = {"sentence_embedding": np.concatenate([near[:7], -near[7:]])}
    with pytest.raises(ParityError, match="least cosine is -1 and must be at least 0.97"):
        compare("int8", expected, far, mask, pipeline="Embedding")


def test_rank_correlations_are_spearmans():
    """1 − 6·Σd²/(n·(n² − 1)) without ties; equal values have their mean rank: 4.5/√(4.5·5) here."""
    first, second = np.array([1.0, 2, 3, 4, 5]), np.array([1.0, 3, 2, 5, 4])
    assert closeness.rank_correlation(first, second) == pytest.approx(1 - 6 * 4 / (5 * 24))
    assert closeness.rank_correlation(first, -second) == pytest.approx(-0.8)
    tied = closeness.rank_correlation(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 3, 4]))
    assert tied == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert np.isnan(closeness.rank_correlation(first, second * np.nan))


CLASSES = {"pipeline": "TextClassification", "labels": ["a", "b", "c"], "threshold": 0.5}
LOGITS = np.log([[0.7, 0.2, 0.1], [0.41, 0.39, 0.2]] + [[0.1, 0.8, 0.1]] * 8)


def probable(logits, multi_label=False):
    probabilities = 1 / (1 + np.exp(-logits)) if multi_label else closeness.softmax(logits)
    return {"logits": logits, "probabilities": probabilities}


def test_classifiers_are_compared_by_their_labels():
    config = {**CLASSES, "problem_type": "single_label_classification"}
    near = LOGITS.copy()
    near[1] = np.log([0.39, 0.41, 0.2])  # another label, which is nearly as probable by the model
    row = compare("int8", probable(LOGITS), probable(near), **config)
    assert row["identical_labels"] == 1
    assert row["probability_difference"] == pytest.approx(0.02 / 10)
    far = LOGITS.copy()
    far[[0, 2]] = np.log([0.3, 0.3, 0.4])
    with pytest.raises(ParityError, match="identical labels is 0.8 and must be at least 0.9"):
        compare("int8", probable(LOGITS), probable(far), **config)


def test_classifiers_of_several_labels_are_compared_by_each_label():
    config = {**CLASSES, "problem_type": "multi_label_classification"}
    logits = np.array([[3.0, -3, 0.1]] * 4)
    near = np.array([[3.0, -3, -0.05]] * 4)  # below the threshold
    assert compare("int8", probable(logits, True), probable(near, True), **config)["identical_labels"] == 1
    with pytest.raises(ParityError, match="identical labels is 0.667"):
        compare("int8", probable(logits, True), probable(logits * [1, -1, 1], True), **config)


@pytest.mark.parametrize(("pipeline", "name"), [("TokenClassification", "tags"), ("FillMask", "pieces")])
def test_positions_are_compared_by_their_choices(pipeline, name):
    logits = np.stack([LOGITS[:4], LOGITS[2:6]])
    mask = {"attention_mask": np.array([[1, 1, 1, 1], [1, 1, 0, 0]])}
    other = logits.copy()
    other[1, 2:] = -logits[1, 2:]  # of padding
    limits = {f"identical_{name}": 1.0}
    row = compare("int8", {"logits": logits}, {"logits": other}, mask, limits, pipeline=pipeline)
    assert (row[f"identical_{name}"], row["probability_difference"]) == (1, 0)
    other[0, 0] = -logits[0, 0]
    with pytest.raises(ParityError, match=f"identical {name} is 0.833"):
        compare("int8", {"logits": logits}, {"logits": other}, mask, limits, pipeline=pipeline)


def test_answers_to_questions_are_compared_by_their_spans():
    start, end = np.zeros((3, 5)), np.zeros((3, 5))
    start[:, 1], end[:, 3] = 9, 9
    mask = np.array([[1] * 5, [1, 1, 1, 1, 0], [0] * 5])
    expected = {"start_logits": start, "end_logits": end}
    options = {
        "inputs": {"attention_mask": mask},
        "pipeline": "QuestionAnswering",
        "limits": {"identical_spans": 1.0},
    }
    padding = {"start_logits": start + 9 * (mask == 0), "end_logits": end}
    assert compare("float16", expected, padding, **options)["identical_spans"] == 1
    masked = [{name: np.where(mask, x, low) for name, x in expected.items()} for low in (-1e9, -65504)]
    row = compare(
        "float16", *masked, **{**options, "limits": {"logit_error": 0.0}}
    )  # of padding: −1e9 in float16
    assert row["logit_error"] == 0
    wrong = {"start_logits": np.roll(start, 1, axis=1), "end_logits": end}
    with pytest.raises(ParityError, match="identical spans is 0 "):
        compare("float16", expected, wrong, **options)


def test_rerankers_are_compared_by_their_ranking():
    scores = np.arange(10.0)
    outputs = {"logits": scores[:, None], "scores": scores}
    assert compare("int8", outputs, outputs, pipeline="Reranking")["rank_correlation"] == 1
    other = {**outputs, "scores": scores[[9, 1, 2, 3, 4, 5, 6, 7, 8, 0]]}
    with pytest.raises(ParityError, match=r"rank correlation is 0.0182 and must be at least 0.95"):
        compare("int8", outputs, other, pipeline="Reranking")


def test_an_earlier_export_is_verified_with_its_own_thresholds():
    vectors = {"sentence_embedding": np.eye(4)}
    options = {"pipeline": "Embedding", "limits": {"relative_error": 0.1}}
    assert compare("int8", vectors, vectors, **options)["thresholds"] == {"relative_error": 0.1}
    with pytest.raises(ParityError, match="relative error is 1 "):
        compare("int8", vectors, {"sentence_embedding": 2 * np.eye(4)}, **options)


def test_manifests_say_why_precisions_are_left_out(tmp_path):
    content = manifest.sealed({}, {}, None, left_out={"int8": "mean cosine is 0.84"})
    files.write_json(tmp_path / "manifest.json", content)
    it = serving.Bundle(tmp_path)
    assert it.left_out("onnx") == {"int8": "mean cosine is 0.84"}
    with pytest.raises(
        ValueError, match="float32. .*'int8', which was left out at export: mean cosine is 0.84"
    ):
        graph_files.graph_reader(serving.PartFiles.of_bundle(it, "onnx"), "int8")
    with pytest.raises(ValueError, match="Received: precision='float16'$"):
        graph_files.graph_reader(serving.PartFiles.of_bundle(it, "onnx"), "float16")


@pytest.mark.slow
def test_a_precision_that_falls_short_is_left_out_unless_it_is_named(tmp_path, monkeypatch):
    tokenizer = text.WordPieceTokenizer.train(["to be or not to be", "that is the question"], 60)
    bert = models.BERT(tokenizer.vocabulary_size, 1, 2, 32, hidden_dim=64, max_length=16)
    pipeline = pipelines.Embedding(bert, tokenizer)
    monkeypatch.setitem(precisions.THRESHOLDS["int8"], "mean_cosine", 1.1)
    lines, pattern = [], r"mean cosine is (1|0\.\d+) and must be at least 1\.1"
    folder = export.bundle(pipeline, tmp_path / "it", say=lines.append)
    assert lines[:2] == ["[1/2] saved_model/it/1", "[2/2] onnx: float32, float16, int8"]
    remedy = "pass `texts` of your own in place of those made from the vocabulary"
    reason = re.fullmatch(f"onnx/int8 is left out: ({pattern}; {remedy})", lines[2])[1]
    assert len(lines) == 3
    assert set(serving.Bundle(folder).parity["onnx"]["precisions"]) == {"float16"}
    assert json.loads((folder / "manifest.json").read_text())["left_out"] == {"int8": reason}
    shown = reason.replace("`", r"\`")
    assert f"| onnx | int8 | left out: {shown} |" in (folder / "README.md").read_text()
    assert not (folder / "onnx" / "int8").exists()
    export.verify(folder)
    for load in (
        serving.load,
        lambda path, precision: TRITON["make_repository"](path, tmp_path / "triton", precision=precision),
    ):
        with pytest.raises(
            ValueError, match=f"Received: precision='int8', which was left out at export: {pattern}"
        ):
            load(folder, precision="int8")
    export.saved_model(pipeline, folder, version=2)
    assert serving.Bundle(folder).left_out("onnx") == {"int8": reason}  # after another part, too
    with pytest.raises(ParityError, match=rf"Leave int8 out, or {remedy}\. Received: int8, whose {pattern}$"):
        export.onnx(pipeline, tmp_path / "named", precisions=("float32", "int8"))
    with pytest.raises(ParityError, match=rf"Leave int8 out\. Received: int8, whose {pattern}$"):
        export.onnx(pipeline, tmp_path / "named", precisions=("float32", "int8"), texts=["to be"])
    assert not (tmp_path / "named").exists()
