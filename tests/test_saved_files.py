"""Files written by earlier versions load and give the stored outputs: see `saved_files/write.py`."""

import functools
import json
import pathlib
import pickle
import tarfile

import keras
import numpy as np
import pytest

import keras_transformer as kt
import keras_transformer_serving as serving

FOLDER = pathlib.Path(__file__).resolve().parent / "saved_files"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.glob("*.tar.xz"))
PIPELINES = [name for name in NAMES if name.partition("_")[0] in kt.pipelines.Pipeline.classes]
MODELS = [name for name in NAMES if name not in PIPELINES]
OTHERS = ("ImageClassification", "NodeClassification", "SpeechToText", "SpeechToText_generating")
TEXT_PIPELINES = [name for name in PIPELINES if name not in OTHERS]
TEXTS, MASKED = ["a b", "casa ñ", "hound and house"], ["a [MASK]", "[MASK] hound [MASK]"]
COLUMNS = {
    "FillMask": [MASKED],
    "QuestionAnswering": [TEXTS, TEXTS[::-1]],
    "Reranking": [TEXTS, TEXTS[::-1]],
}
# On JAX every new shape compiles for seconds.
ON_JAX = dict.fromkeys(("bert", "gpt_relative_bias", "transformer"), pytest.mark.backend_neutral)
# A configuration has every argument: quick tests load one variant of a class, and each format of weights.
SLOW = (
    "gpt",
    "gpt_alibi_window",
    "gpt_llama",
    "gpt_post_without_padding_id",
    "t5",
    "transformer_post",
    "transformer_trained",
)
# Weights and sums of float16 round differently on other processors.
TOLERANCE = {"gpt_float16": 5e-3, "gpt_int8": 5e-3}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Return unpacked(name), which gives the folder of an unpacked archive; the tests share and do not change it."""

    @functools.cache
    def unpack(name):
        folder = tmp_path_factory.mktemp("saved") / name
        with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        return folder

    return unpack


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ON_JAX.get(name, ())) for name in MODELS],
)
def test_saved_models_load_and_give_the_stored_outputs(name, unpacked, monkeypatch):
    folder = unpacked(name)
    # Keras takes two objects with one address for one object, and an address is given again when an object is gone.
    monkeypatch.setattr("keras.src.saving.serialization_lib.id", lambda value: 0, raising=False)
    model = keras.saving.load_model(folder / "model.keras")
    with np.load(folder / "arrays.npz") as arrays:
        inputs = {key.removeprefix("input/"): arrays[key] for key in arrays if key.startswith("input/")}
        expected = [arrays[key] for key in arrays if key.startswith("output/")]
        optimizer = {key: arrays[key] for key in arrays if key.startswith("optimizer/")}
    if "0" in inputs:
        inputs = list(inputs.values()) if "1" in inputs else inputs["0"]
    outputs = keras.tree.flatten(model(inputs, training=False))
    assert len(outputs) == len(expected)
    for output, values in zip(outputs, expected, strict=True):
        tolerance = TOLERANCE.get(name, 1e-5)
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(keras.ops.cast(output, "float32")),
            values,
            rtol=tolerance,
            atol=tolerance,
        )
    for variable in model.optimizer.variables if optimizer else ():
        np.testing.assert_array_equal(variable, optimizer.pop(f"optimizer/{variable.path}"))
    assert not optimizer


@pytest.fixture(scope="module")
def loaded(unpacked):
    """Return loaded(name), which gives the pipeline of an archive; the tests share and do not change it."""
    return functools.cache(lambda name: kt.pipelines.load(unpacked(name) / "pipeline"))


@pytest.mark.parametrize("name", PIPELINES)
def test_saved_pipelines_have_the_settings_of_their_exports(name, unpacked, loaded):
    config = json.loads((unpacked(name) / "export" / "config.json").read_text())
    now = json.loads(json.dumps(loaded(name).export_config()))
    assert {key: now[key] for key in config} == config


@pytest.mark.parametrize("name", PIPELINES)
def test_exported_onnx_graphs_give_the_stored_outputs(name, unpacked):
    assert serving.verify(unpacked(name) / "export")["onnx"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_exported_saved_models_give_the_stored_outputs(name, unpacked):
    assert len(kt.export.verify(unpacked(name) / "export")) == 2


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", TEXT_PIPELINES)
def test_saved_pipelines_give_the_outputs_of_their_exports(name, unpacked, loaded):
    columns = COLUMNS.get(name, [TEXTS])
    pipeline, served = loaded(name), serving.load(unpacked(name) / "export")
    answers, exported = pipeline(*columns), served(*columns)
    assert len(answers) == len(exported)
    for answer, other in zip(keras.tree.flatten(answers), keras.tree.flatten(exported), strict=True):
        assert answer == (other if isinstance(answer, str) else pytest.approx(other, abs=1e-4))
    for each, found in ((pipeline, answers), (served, exported)):  # as `multiprocessing` sends them
        again = pickle.loads(pickle.dumps(each))(*columns)
        np.testing.assert_equal(again, found)


@pytest.mark.parametrize("name", ["TextToText", "SpeechToText", "ImageClassification"])
def test_values_that_are_no_rows_are_rejected(name, unpacked, loaded):
    for pipeline in (loaded(name), serving.load(unpacked(name) / "export")):
        for value in (None, 5, {}, {"text": "a"}, np.array("a"), [None], [{"text": "a"}]):
            with pytest.raises((TypeError, ValueError), match=r"^`(texts|audio|images)` must .*Received: "):
                pipeline(value)
        assert len(pipeline([])) == 0
