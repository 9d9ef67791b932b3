"""Exports for LiteRT equal their pipelines, and run without TensorFlow."""

import importlib.metadata
import json
import logging
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer import export
from keras_transformer.export import ParityError, to_litert
from keras_transformer.pipelines.pipeline import ExportedFunction
from keras_transformer_cli import commands
from keras_transformer_serving import precisions
from keras_transformer_serving.litert_target import model_file
from tests.laws.pipelines import IMAGES, LABELS, TEXTS, classify, classify_images, recognize_speech, translate

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
ALL = ("float32", "float16", "int8")


@pytest.fixture(scope="module")
def pipeline():
    return classify_images(labels=LABELS)


@pytest.fixture(scope="module")
def folder(pipeline, tmp_path_factory):
    saved, folder = (tmp_path_factory.mktemp("litert") / name for name in ("saved", "it"))
    pipeline.save(saved)
    arguments = ["export", saved, folder, "--formats", "litert", "--precisions", *ALL]
    assert commands.main([str(each) for each in arguments]) == 0
    return folder


@pytest.fixture
def converted(folder, monkeypatch):
    """Convert every pipeline to the model of `folder`."""
    monkeypatch.setattr(to_litert, "frozen", lambda graph: None)
    path = folder / "litert"
    monkeypatch.setattr(
        to_litert, "convert", lambda _, precision: (path / model_file(precision)).read_bytes()
    )


def test_every_precision_is_compared_and_verified(folder, pipeline):
    report = serving.verify(folder)["litert"]
    assert report["graphs"]["forward"]["rows"] == 4
    assert [*report["precisions"]] == ["float16", "int8"]
    assert export.verify(folder)["litert"] == report
    card = (folder / "README.md").read_text()
    assert "## LiteRT, on phones" in card
    assert "`pixel_values` float32 (batch_size, 8, 8, 3)" in card


@pytest.mark.parametrize("precision", ALL)
@pytest.mark.parametrize("rows", [1, 3])
def test_batches_of_any_size_equal_the_pipeline(folder, pipeline, precision, rows):
    served = serving.load(folder, precision=precision, threads=1)
    found = served.run(pixel_values=IMAGES[:rows])["probabilities"]
    np.testing.assert_allclose(
        found, pipeline.probabilities(IMAGES[:rows]), atol=1e-5 if precision == ALL[0] else 0.02
    )


def test_batches_of_several_workers_equal_one_worker(folder):
    batches = [IMAGES[:rows] for rows in (1, 2, 3, 1, 2, 3)]
    one, two = (serving.load(folder, workers=workers).engine for workers in (1, 2))
    found = two.map(lambda images: two.run({"pixel_values": images})["logits"], batches)
    for logits, images in zip(found, batches, strict=True):
        np.testing.assert_array_equal(logits, one.run({"pixel_values": images})["logits"])


def test_the_model_runs_without_tensorflow(folder, pipeline):
    program = """
        import json, sys
        sys.modules.update(dict.fromkeys(["tensorflow", "keras", "jax", "onnxruntime", "keras_transformer"]))
        import keras_transformer_serving as serving
        print(json.dumps(serving.load(sys.argv[1]).answers(pixel_values=json.loads(sys.argv[2]))))
    """
    arguments = [sys.executable, "-c", "".join(line[8:] + "\n" for line in program.splitlines())]
    images = json.dumps(IMAGES.tolist())
    done = subprocess.run([*arguments, str(folder), images], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == pipeline(IMAGES)
    assert done.stderr == ""


def test_a_wrong_model_is_found(converted, tmp_path):
    pipeline = classify_images(labels=LABELS, seed=2)
    with pytest.raises(ParityError, match="`forward` must have the model's logits"):
        export.bundle(pipeline, tmp_path / "it", targets=["litert"], precisions=["float32"])
    assert not (tmp_path / "it").exists()


def test_a_precision_that_is_not_close_is_left_out(pipeline, converted, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(precisions.THRESHOLDS["float16"], "probability_difference", -1)
    export.bundle(pipeline, tmp_path / "it", targets=["litert"])
    assert "litert/float16 is left out: probability difference is" in capsys.readouterr().out
    with pytest.raises(ValueError, match="one of the export's: float32, int8.*'float16', which was left out"):
        serving.load(tmp_path / "it", precision="float16")


def test_unsupported_pipelines_raise_before_anything_is_written(tmp_path, monkeypatch):
    def check(pipeline, error, message, **options):
        with pytest.raises(error, match=message):
            export.bundle(pipeline, tmp_path / "it", targets=["litert"], **options)
        assert not (tmp_path / "it").exists()

    check(translate(), ValueError, "`pipeline` must not generate for LiteRT.*Received: a TextToText")
    check(classify(dtype="mixed_float16"), ValueError, "computes in float32 for LiteRT.*in float16")
    images = classify_images(labels=LABELS)
    check(
        images,
        ValueError,
        "a list of .* and 'int8' for the target 'litert'.*'int4'",
        precisions=["float32", "int4"],
    )
    check(images, ValueError, "`text_graph` needs the target 'onnx'", text_graph=True)
    install = r"2\.1 or later, of the extra \[litert\]: pip install 'ai-edge-litert>=2\.1'"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ai_edge_litert", None)
        check(images, ImportError, rf"{install}\. Received: .*ai_edge_litert")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.0.1")
    check(images, ImportError, rf"{install}\. Received: version 1\.0\.1")


def test_the_engine_raises_on_unknown_options_and_models(folder, monkeypatch):
    with pytest.raises(ValueError, match="`providers` must be None for the engine 'litert'"):
        serving.load(folder, providers=["CPUExecutionProvider"])
    with pytest.raises(ValueError, match="`threads` must be a positive integer. Received: threads=0"):
        serving.load(folder, threads=0)
    with pytest.raises(ValueError, match="Update ai-edge-litert. Received: ai-edge-litert 2"):
        serving.litert_target.LiteRtModel(b"no model")
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    with pytest.raises(ImportError, match=r"the extra \[litert\]"):
        serving.load(folder)


def test_an_operation_that_litert_lacks_is_named():
    graph = ExportedFunction(
        lambda x: {"y": tf.linalg.det(x)}, [tf.TensorSpec([None, 2, 2], "float32")], {"x": ["batch_size"]}
    )
    with pytest.raises(ValueError, match="operations LiteRT has. Received: MatrixDeterminant of f32$"):
        to_litert.convert(to_litert.frozen(graph))


def test_a_conversion_adds_no_handler_of_logs(monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    graph = ExportedFunction(
        lambda x: {"y": 2 * x}, [tf.TensorSpec([None], "float32")], {"x": ["batch_size"]}
    )
    to_litert.convert(to_litert.frozen(graph))
    assert logging.getLogger().handlers == []


def test_matrices_are_stored_in_the_requested_precision():
    matrix = tf.constant(np.random.default_rng(0).normal(size=(256, 256)), "float32")
    graph = ExportedFunction(
        lambda x: {"y": x @ matrix}, [tf.TensorSpec([None, 256], "float32")], {"x": ["batch_size"]}
    )
    function = to_litert.frozen(graph)
    for precision, size in (("float32", 4), ("float16", 2), ("int8", 1)):
        assert len(to_litert.convert(function, precision)) // 256**2 == size


@pytest.mark.parametrize(
    "slices",
    [
        lambda x: x[:, None],
        lambda x: x[..., None],
        lambda x: x[None, 1:, ..., None, 0],
        lambda x: x[:, None, 0, None, ::2],
        lambda x: x[None, ..., 1, None, :, None],
        lambda x: tf.while_loop(
            lambda i, y: i < 2, lambda i, y: (i + 1, (y[..., None] + 1.0)[..., 0]), (0, x)
        )[1],
    ],
)
def test_slices_that_add_axes_keep_their_values(slices):
    spec = tf.TensorSpec([None, None, 4, 5], "float32")
    graph = ExportedFunction(lambda x: {"y": slices(x)}, [spec], {"x": ["batch_size"]})
    function = to_litert.frozen(graph).get_concrete_function()
    graph_def = function.graph.as_graph_def()
    nodes = [node for each in graph_def.library.function for node in each.node_def]
    assert any(node.op == "ExpandDims" for node in nodes)
    assert not any(node.attr["new_axis_mask"].i for node in nodes if node.op == "StridedSlice")
    values = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype("float32")
    np.testing.assert_array_equal(function(tf.constant(values))["y"], slices(tf.constant(values)))


@pytest.mark.slow
def test_texts_and_requests_are_answered_as_by_the_pipeline(tmp_path):
    from served_exports import json_call, run

    pipeline = classify(labels=LABELS)
    folder = export.bundle(pipeline, tmp_path / "it", targets=["litert"])
    assert serving.load(folder)(TEXTS) == pipeline(TEXTS)

    async def requests(app):
        return await json_call(app, "POST", "/v1/models/it:predict", {"instances": TEXTS})

    status, answer = run({"it": folder}, requests)
    assert status == 200
    assert [row["label"] for row in answer["predictions"]] == pipeline(TEXTS)


@pytest.mark.slow
def test_features_in_float64_are_rejected_before_the_conversion(tmp_path, capfd):
    with pytest.raises(ValueError, match="not computed in float64.*Received: float64 in AddV2, .*Square"):
        export.bundle(recognize_speech(), tmp_path / "it", targets=["litert"])
    assert not (tmp_path / "it").exists()
    assert "callsite" not in capfd.readouterr().err


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_quantized_models_are_rejected(pipeline, tmp_path):
    copy = type(pipeline)(keras.models.clone_model(pipeline.model), labels=LABELS)
    copy.model.quantize("int8")
    with pytest.raises(ValueError, match="weights that are not quantized.*a model with quantized layers"):
        export.bundle(copy, tmp_path / "it", targets=["litert"])
    assert not (tmp_path / "it").exists()
