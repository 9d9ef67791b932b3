"""The target of ONNX graphs, and the checks of engines that run a model once."""

import gc
import types
import weakref

import numpy as np
import onnxruntime
import pytest
from served_exports import write_export

import keras_transformer_serving as serving
from keras_transformer_serving.parity import exported_tokenizer
from keras_transformer_serving.tasks import Tensor

SIZES = {"model.onnx": 1, "model.onnx_data": 2, "int8/model.onnx": 4, "optimum/model.onnx": 8}


@pytest.mark.parametrize(("precision", "expected"), [("float32", 3), ("int8", 4), ("float16", 0)])
def test_the_size_of_graphs_depends_on_their_precision(precision, expected):
    assert serving.ServedOnnx.size(SIZES, serving.EngineOptions(precision)) == expected


@pytest.mark.parametrize(("precision", "threads"), [("float32", None), ("int8", 1), ("float16", 1)])
def test_converted_graphs_are_compared_on_one_thread(precision, threads, monkeypatch):
    given = []

    def engine(files, config, options):
        given.append(options)
        return types.SimpleNamespace(inputs=())

    monkeypatch.setattr(serving.ServedOnnx, "engine", engine)
    serving.ServedOnnx.runner(serving.PartFiles([], {}.get), {}, None, precision)
    assert given == [serving.EngineOptions(precision, threads=threads, save_memory=True)]


def test_a_comparison_keeps_no_session(small, tmp_path, monkeypatch):
    """Or the weights of two precisions would be in memory, as garbage is collected later."""
    kept, create = [], onnxruntime.InferenceSession

    def session(*arguments, **options):
        made = create(*arguments, **options)
        kept.append(weakref.ref(made))
        return made

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    bundle = serving.Bundle(write_export(small, tmp_path / "it", "generator"))
    files = serving.PartFiles.of_folder(bundle.folder / "onnx")
    run = serving.ServedOnnx.runner(files, bundle.config, exported_tokenizer(bundle))
    gc.disable()
    try:
        assert {*run(["ab"])} == {"onnx_loop", "onnx_steps"}
        assert [each() for each in kept] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 3), (1, 2, 2)])
def test_arrays_must_have_the_sizes_of_the_input(shape):
    pixels = Tensor("pixel_values", "float32", (2, 2))
    engine = types.SimpleNamespace(inputs=(pixels,), run=dict)
    model = serving.Model(engine, {"value_range": (0, 1)})
    array = np.ones(shape)
    if shape == (1, 2, 2):
        np.testing.assert_array_equal(model.run(pixel_values=array)["pixel_values"], array)
        return
    with pytest.raises(ValueError, match=r"`pixel_values` must be float32 of shape \(batch_size, 2, 2\)"):
        model.run(pixel_values=array)
