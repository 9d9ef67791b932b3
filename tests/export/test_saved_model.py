import json
import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format  # noqa: F401  (loads protobuf before the SavedModel's messages)
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer import export
from keras_transformer.export import to_saved_model
from keras_transformer.pipelines.pipeline import ExportedFunction


@pytest.fixture(scope="module")
def folder(exported):
    return exported / "saved_model" / "tiny" / "1"


@pytest.fixture(scope="module")
def signatures(folder):
    loaded = tf.saved_model.load(str(folder))
    # The signatures need their module alive.
    return loaded, loaded.signatures


def run(signatures, texts, name="serving_default"):
    return signatures[1][name](text=tf.constant(texts, tf.string))


def answers(signatures, texts):
    return [answer.decode() for answer in run(signatures, texts)["text"].numpy()]


def test_signatures_have_the_documented_names_types_and_dynamic_batch_size(signatures, pipeline):
    _, found = signatures
    assert set(found) == {"serving_default", "generate", "generate_ids", "encode", "score"}
    most = pipeline.max_new_tokens
    outputs = {
        "serving_default": {"text": (tf.string, [None]), "error": (tf.string, [None])},
        "generate_ids": {
            "ids": (tf.int32, [None, most]),
            "lengths": (tf.int32, [None]),
            "scores": (tf.float32, [None]),
            "error": (tf.string, [None]),
        },
    }
    for name, expected in outputs.items():
        (inputs,) = found[name].structured_input_signature[1].values()
        assert (inputs.name, inputs.dtype, inputs.shape.as_list()) == ("text", tf.string, [None])
        assert set(found[name].structured_outputs) == set(expected)
        for output, (dtype, shape) in expected.items():
            spec = found[name].structured_outputs[output]
            assert spec.dtype == dtype, output
            assert len(spec.shape) == len(shape), output
            assert spec.shape[0] is None, output


def test_texts_equal_the_pipeline_outputs(signatures, pipeline, texts):
    assert answers(signatures, texts) == pipeline(texts)


@pytest.mark.slow_variants
@pytest.mark.parametrize("size", [1, 3])
def test_ids_lengths_and_scores_equal_the_pipeline_outputs(signatures, pipeline, texts, size):
    expected = pipeline.generate(texts[:size])
    found = {name: value.numpy() for name, value in run(signatures, texts[:size], "generate_ids").items()}
    np.testing.assert_array_equal(found["ids"], expected.best)
    np.testing.assert_array_equal(found["lengths"], expected.lengths[:, 0])
    np.testing.assert_allclose(found["scores"], expected.scores[:, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_options_are_inputs_with_one_value_per_row(signatures, pipeline):
    most = pipeline.max_new_tokens
    limits = tf.constant([1, most, 0, most + 1, 2])
    generate, text = signatures[1]["generate"], tf.constant(["uno dos"] * 5)
    found = generate(text=text, max_new_tokens=limits, min_new_tokens=tf.constant([0]))
    expected = pipeline.generate(["uno dos"] * 3, max_new_tokens=[1, most, 2])
    np.testing.assert_array_equal(found["ids"].numpy()[[0, 1, 4]], expected.best)
    np.testing.assert_array_equal(found["lengths"].numpy()[[0, 1, 4]], expected.lengths[:, 0])
    assert found["lengths"].numpy()[[2, 3]].tolist() == [0, 0]
    message = f"`max_new_tokens` must be in [1, {most}]. Received: ".encode()
    assert found["error"].numpy().tolist() == [b"", b"", message + b"0", message + b"%d" % (most + 1), b""]
    assert found["text"].numpy()[1].decode() == pipeline("uno dos")
    minimums = tf.constant([0, most, 3, -1, most + 1])
    found = generate(text=text, max_new_tokens=tf.constant([most]), min_new_tokens=minimums)
    assert found["lengths"].numpy().tolist()[1] == most
    assert [bool(error) for error in found["error"].numpy()] == [False, False, False, True, True]


def test_options_default_to_the_pipeline_settings(folder, pipeline):
    graph = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes()).meta_graphs[0]
    for name, signature in graph.signature_def.items():
        defaults = {key: tf.make_ndarray(value).tolist() for key, value in signature.defaults.items()}
        options = {"max_new_tokens": [pipeline.max_new_tokens], "min_new_tokens": [0]}
        assert defaults == (options if name == "generate" else {})


def test_scores_and_ids_equal_the_pipeline_outputs(signatures, pipeline):
    texts, targets = ["uno dos", "", "tres", "o" * 10_000], ["one two", "nothing", "three", "long"]
    found = {
        name: values.numpy()
        for name, values in signatures[1]["score"](
            text=tf.constant(texts), target=tf.constant(targets)
        ).items()
    }
    for row in (0, 2):
        (expected,) = pipeline.score(texts[row : row + 1], targets[row : row + 1])
        np.testing.assert_allclose(found["scores"][row], expected.score, rtol=1e-4, atol=1e-4)
        length = found["lengths"][row]
        assert length == len(expected.ids)
        np.testing.assert_allclose(
            found["token_scores"][row, :length], expected.token_scores, rtol=1e-4, atol=1e-4
        )
    assert [bool(error) for error in found["error"]] == [False, True, False, True]
    assert (found["lengths"][[1, 3]] == 0).all()
    encoded = run(signatures, texts, "encode")
    np.testing.assert_array_equal(
        encoded["source_ids"].numpy()[:3], pipeline.preprocess(tf.constant(texts[:3])).inputs["source_ids"]
    )
    assert encoded["padding_mask"].numpy().any(axis=1).tolist() == [True, False, True, False]


def test_an_empty_batch_gives_an_empty_output(signatures):
    assert answers(signatures, []) == []
    assert run(signatures, [], "generate_ids")["ids"].shape[0] == 0


def test_an_invalid_text_gives_an_error_and_does_not_change_other_outputs(signatures, pipeline):
    texts = [b"uno dos", b"\xff\xfe", b"o" * 10_000, b"uno \x80 dos", b"\xed\xa0\x80", b"\x00"]
    found = run(signatures, texts, "serving_default")
    invalid, limit = b"must be UTF-8", f"must have at most {pipeline.max_source_tokens} tokens each".encode()
    for error, expected in zip(
        found["error"].numpy(), [b"", invalid, limit, invalid, invalid, b""], strict=True
    ):
        assert expected in error
        assert bool(error) == bool(expected)
    answered = [text.decode() for text in found["text"].numpy()]
    assert answered == [pipeline("uno dos"), "", "", "", "", pipeline("\x00")]
    ids = run(signatures, texts, "generate_ids")
    np.testing.assert_array_equal(ids["error"], found["error"])
    assert (ids["lengths"].numpy() > 0).tolist()[:5] == [True, False, False, False, False]


def test_the_tokenizer_is_in_the_graph_without_external_files(folder):
    content = (folder / "saved_model.pb").read_bytes()
    assert b"SentencepieceOp" in content
    assert b"/tmp" not in content


def test_each_signature_is_traced_once(tmp_path):
    traced = []

    def twice(x):
        traced.append(x)
        return {"y": x * 2}

    graph = ExportedFunction(
        twice, [tf.TensorSpec([None], tf.float32, name="x")], defaults={"x": np.ones(3, "float32")}
    )
    to_saved_model.write_signatures({"serving_default": graph}, [], tmp_path / "it")
    assert len(traced) == 1
    loaded = tf.saved_model.load(str(tmp_path / "it")).signatures["serving_default"]
    assert loaded(x=tf.constant([1.0]))["y"].numpy() == [2]


def test_each_weight_is_stored_once(folder, pipeline):
    stored = dict(tf.train.list_variables(str(folder / "variables" / "variables")))
    del stored["_CHECKPOINTABLE_OBJECT_GRAPH"]
    assert sorted(map(tuple, stored.values())) == sorted(tuple(each.shape) for each in pipeline.model.weights)


@pytest.mark.slow
def test_plain_tensorflow_gives_equal_outputs_without_this_package(folder, pipeline, texts):
    program = """
        import json, sys
        sys.modules["keras_transformer"] = None  # TensorFlow imports Keras by itself
        import tensorflow as tf, tensorflow_text
        model = tf.saved_model.load(sys.argv[1])
        answers = model.signatures["serving_default"](text=tf.constant(json.loads(sys.argv[2])))["text"]
        print(json.dumps([answer.decode() for answer in answers.numpy()]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(folder), json.dumps(texts)],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.strip().splitlines()[-1]) == pipeline(texts)


@pytest.mark.slow
def test_several_versions_can_be_exported(quick, damaged, pipeline):
    before = (damaged / "saved_model" / "tiny" / "1" / "saved_model.pb").read_bytes()
    path = export.saved_model(pipeline, damaged, name="tiny", version=2)
    assert path == damaged / "saved_model" / "tiny" / "2"
    assert {entry.name for entry in path.parent.iterdir()} == {"1", "2"}
    assert (path.parent / "1" / "saved_model.pb").read_bytes() == before
    assert set(export.verify(damaged)) == {"onnx", "saved_model/tiny/1", "saved_model/tiny/2"}


def everything(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def test_the_error_for_an_existing_version_names_the_next_free_one(damaged, pipeline):
    (damaged / "saved_model" / "tiny" / "1").rename(damaged / "saved_model" / "tiny" / "7")
    before = everything(damaged.parent)
    with pytest.raises(FileExistsError, match=r"version 7; the next free one is 8"):
        export.saved_model(pipeline, damaged, name="tiny", version=7)
    assert everything(damaged.parent) == before


@pytest.mark.parametrize("version", [0, -1, 1.5, "2", None, True], ids=repr)
def test_a_version_that_is_not_a_positive_integer_is_rejected(quick, tmp_path, pipeline, version):
    with pytest.raises(ValueError, match="`version` must be a positive integer. Received: version="):
        export.saved_model(pipeline, tmp_path / "new", version=version)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../elsewhere", "..", ".hidden", "a/b", "/absolute"])
def test_a_name_that_is_not_a_plain_folder_name_is_rejected(quick, tmp_path, pipeline, name):
    with pytest.raises(ValueError, match="`name` must"):
        export.saved_model(pipeline, tmp_path / "new", name=name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_default_model_name_is_the_folder_name(quick, tmp_path, monkeypatch, pipeline):
    monkeypatch.chdir(tmp_path)
    assert export.saved_model(pipeline, "es-en").as_posix() == "es-en/saved_model/es-en/1"
    monkeypatch.chdir(tmp_path / "es-en")
    with pytest.raises(FileExistsError, match="next free one is 2"):
        export.saved_model(pipeline, ".")


@pytest.mark.slow
def test_a_saved_model_only_export_passes_verification_in_a_new_process(damaged, pipeline):
    shutil.rmtree(damaged / "onnx")
    (damaged / "saved_model" / "tiny" / ".2.temporary").mkdir()
    command = [sys.executable, "-m", "keras_transformer_cli", "generate", str(damaged), "uno dos"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, f"{pipeline('uno dos')}\n"), run.stderr
    run = subprocess.run([*command[:-1], "uno " * 500], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "keras-transformer: error: `texts` must have at most 200 tokens each" in run.stderr
    assert "in input 1" in run.stderr
