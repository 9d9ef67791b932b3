"""The model of texts for Triton's Python backend gives the answers of the export."""

import pathlib
import re
import runpy
import sys
import types

import numpy as np
import pytest
import served_exports

import keras_transformer_serving as serving
from keras_transformer_serving.triton import text_model_config

TRITON = pathlib.Path(__file__).parents[2] / "triton"
make_repository = runpy.run_path(str(TRITON / "make_repository.py"))["make_repository"]


class Tensor:
    def __init__(self, name, array):
        self.name, self.array = name, array

    def as_numpy(self):
        return self.array


class Response:
    def __init__(self, tensors, error=None):
        self.outputs = {tensor.name: tensor.as_numpy() for tensor in tensors}
        self.error = error


@pytest.fixture
def served(monkeypatch, tmp_path):
    """Return a function that creates the model of an export as Triton does, and one that requests answers."""
    backend = types.ModuleType("triton_python_backend_utils")
    backend.Tensor, backend.InferenceResponse, backend.TritonError = Tensor, Response, ValueError
    backend.get_input_tensor_by_name = lambda request, name: request.get(name)
    monkeypatch.setitem(sys.modules, backend.__name__, backend)

    def load(export):
        version = make_repository(export, tmp_path / "models", name=export.name, text=True)
        model = runpy.run_path(str(version / "model.py"))["TritonPythonModel"]()
        model.initialize({"model_repository": str(version.parent), "model_version": version.name})
        return model, (version.parent / "config.pbtxt").read_text()

    return load


def request(**columns):
    """Return a request with values (B, 1), as Triton passes them."""
    arrays = {
        name: np.array([[value] for value in values], object if isinstance(values[0], bytes) else None)
        for name, values in columns.items()
    }
    return {name: Tensor(name, array) for name, array in arrays.items()}


def test_texts_and_errors_of_several_requests_equal_the_export(served, exports):
    model, config = served(exports["copier"])
    texts = [["a", "é"], ["x" * 99], ["b\xff", "", "abc"]]
    found = model.execute([request(text=[text.encode() for text in row]) for row in texts])
    answers = serving.load(exports["copier"])
    for row, response in zip(texts, found, strict=True):
        expected = answers(row, errors="return")
        errors = [str(each) if isinstance(each, Exception) else "" for each in expected]
        assert response.error is None
        assert response.outputs["text"].shape == (len(row), 1)
        decoded = [value.decode() for value in response.outputs["text"][:, 0]]
        assert decoded == ["" if error else answer for answer, error in zip(expected, errors, strict=True)]
        assert [bool(value) for value in response.outputs["error"][:, 0]] == [bool(error) for error in errors]
    names = re.findall(r'name: "(\w+)"\n  data_type: (\w+)', config)
    options = [("max_new_tokens", "TYPE_INT32"), ("min_new_tokens", "TYPE_INT32")]
    assert names == [("text", "TYPE_STRING"), *options, ("text", "TYPE_STRING"), ("error", "TYPE_STRING")]


def test_labels_and_probabilities_equal_the_export(served, exports):
    model, config = served(exports["classifier"])
    (response,) = model.execute([request(text=[b"a", b"bb"])])
    answers = serving.load(exports["classifier"])
    assert [value.decode() for value in response.outputs["label"][:, 0]] == answers(["a", "bb"])
    np.testing.assert_allclose(
        response.outputs["probabilities"], answers.probabilities(["a", "bb"]), rtol=1e-6
    )
    assert "dims: [3]" in config


def test_labels_of_a_call_are_an_input_of_any_size(served, small, tmp_path):
    export = served_exports.write_export(small, tmp_path / "entailment", "entailment")
    model, config = served(export)
    assert 'name: "candidate_labels"\n  data_type: TYPE_STRING\n  dims: [-1]' in config
    labels = [["good", "bé"], ["bad", ""], ["", ""]]
    columns = {
        "text": np.array([[b"a"], [b"bb"], [b"c"]], object),
        "candidate_labels": np.array([[label.encode() for label in row] for row in labels], object),
    }
    (response,) = model.execute([{name: Tensor(name, array) for name, array in columns.items()}])
    answers = serving.load(export)
    found = [
        dict(zip(*row, strict=True))
        for row in zip(response.outputs["labels"], response.outputs["scores"], strict=True)
    ]
    for text, row, scores in zip(["a", "bb"], labels, found, strict=False):
        expected = {
            each.label.encode(): each.score for each in answers(text, [label for label in row if label])
        }
        assert {label: score for label, score in scores.items() if label} == pytest.approx(expected)
    assert [bool(error) for error in response.outputs["error"][:, 0]] == [False, False, True]


def test_options_of_rows_are_optional_inputs(served, exports):
    model, config = served(exports["sampler"])
    answers = serving.load(exports["sampler"])
    options = {"max_new_tokens": [2, 5], "seed": [4, 5], "temperature": [0.5, 2.0]}
    assert config.count("optional: true") == 5
    found = model.execute([request(text=[b"a", b"a"], **options), request(text=[b"a"], seed=[-2])])
    assert [text.decode() for text in found[0].outputs["text"][:, 0]] == answers(["a", "a"], **options)
    assert found[1].outputs["error"][0, 0].startswith(b"`seed` must be in [-1, 4294967295]")


def test_languages_are_optional_inputs(served, exports):
    model, config = served(exports["translator"])
    assert config.count("optional: true") == 4
    found = model.execute(
        [
            request(text=[b"a"], target_language=[b"es"]),
            request(text=[b"a"]),
            request(source_language=[b"en"]),
        ]
    )
    expected = serving.load(exports["translator"])(["a"], target_language="es")
    assert [found[0].outputs["text"][0, 0].decode()] == expected
    assert found[1].outputs["error"][0, 0].startswith(b"`target_language` must be one of en, es")
    assert "The inputs must be text" in str(found[2].error)


def test_a_model_of_texts_has_other_versions_but_no_other_precision(exports, tmp_path):
    for version in (1, 2):
        make_repository(exports["copier"], tmp_path / "models", version=version, text=True)
    with pytest.raises(ValueError, match="`name` must be of a new model"):
        make_repository(exports["copier"], tmp_path / "models", version=3, text=True, max_batch_size=4)
    with pytest.raises(ValueError, match="`precision` must be 'float32' for texts"):
        make_repository(exports["copier"], tmp_path / "other", text=True, precision="int8")


def test_an_export_without_texts_is_rejected_by_name():
    with pytest.raises(ValueError, match="`text` needs an export of texts. Received: an export of a Image"):
        text_model_config(served_exports.IMAGES | {"resize": False, "image_size": [2, 2], "num_channels": 1})
