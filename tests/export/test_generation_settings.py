"""Exports with every sampler and constraint equal their pipelines."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer import export, generation
from keras_transformer.generation import (
    BannedWords,
    Beam,
    ForcedLastToken,
    MinNewTokens,
    NoRepeatNGram,
    RepetitionPenalty,
    Sample,
)
from keras_transformer.generation.search.categorical import uniform

SETTINGS = {
    "beam": (Beam(3), [NoRepeatNGram(2), MinNewTokens(2)]),
    "forced": (Beam(3, 1.0, "length", "num_beams"), [RepetitionPenalty(3.0), ForcedLastToken([3])]),
    "n-best": (Beam(4, 1.0, "length", num_return=3), []),
    "sample": (Sample(1.2, top_k=20, top_p=0.95, seed=7), []),
    "samples": (Sample(1.2, seed=7, num_return=2), [BannedWords([[5], [6, 7]])]),
}
NO_SEED = Sample(3.0)


@pytest.fixture(params=SETTINGS.values(), ids=SETTINGS)
def changed(request, pipeline):
    sampler, constraints = request.param
    return pipeline.with_settings(sampler, constraints=constraints)


def expected_ids(pipeline, texts):
    out = pipeline.generate(texts)
    return out.ids if pipeline.sampler.num_return > 1 else out.best


def test_serving_and_generation_draw_the_same_noise():
    rows = np.array([3, 0, 2**20])
    expected = keras.ops.convert_to_numpy(uniform(2**32 - 5, rows, 3, np.arange(5)))
    np.testing.assert_array_equal(serving.uniform_noise(2**32 - 5, rows, 3, 5), expected)


@pytest.mark.slow
def test_exported_functions_equal_generation_in_python(changed, texts):
    texts = texts[:6]
    expected = expected_ids(changed, texts)
    run = tf.function(changed.signatures()["generate_ids"].function, autograph=False)
    np.testing.assert_array_equal(run(tf.constant(texts))["ids"].numpy(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["n-best", "samples"])
def test_exports_store_the_settings_and_pass_verification(pipeline, texts, tmp_path, name):
    sampler, constraints = SETTINGS[name]
    changed = pipeline.with_settings(sampler, constraints=constraints)
    folder = tmp_path / "tiny"
    path = export.saved_model(changed, folder)
    export.onnx(changed, folder)
    results = export.verify(folder)
    assert {graph for part in results.values() for graph in part["graphs"]} == {
        "saved_model",
        "onnx_loop",
        "onnx_steps",
    }
    config = json.loads((folder / "config.json").read_text())
    assert generation.get(config["generation"]) == sampler
    assert tuple(map(generation.constraints.get, config["constraints"])) == tuple(constraints)

    expected = expected_ids(changed, texts)
    served = serving.load(folder)
    assert (folder / "onnx" / f"generate_{config['generation']['sampler']}.onnx").is_file()
    np.testing.assert_array_equal(served.generate(texts, batch_size=5)["ids"], expected)
    assert served(texts) == changed(texts)

    signatures = tf.saved_model.load(str(path)).signatures
    found = signatures["serving_default"](text=tf.constant(texts))["text"].numpy()
    assert found.shape == (len(texts), sampler.num_return)
    assert [text.decode() for text in found[:, 0]] == changed(texts)
    if name == "samples":
        noise = np.random.default_rng(0).random((len(texts), 2, 10)).astype("float32")
        ids = changed.encode(texts).numpy()
        given = generation.generate(
            changed.model, ids, sampler, max_new_tokens=10, constraints=constraints, noise=noise
        )
        assert (given.ids != expected).any()
        by_saved_model = signatures["generate_ids"](text=tf.constant(texts), noise=tf.constant(noise))
        np.testing.assert_array_equal(by_saved_model["ids"].numpy(), given.ids)
        by_onnx = served.graphs.generate(ids.astype(np.int64), noise=noise)
        np.testing.assert_array_equal(by_onnx["ids"], given.ids)


@pytest.mark.slow
def test_an_export_without_a_seed_draws_a_new_one_at_each_call(pipeline, texts, tmp_path):
    changed, folder = pipeline.with_settings(NO_SEED), tmp_path / "tiny"
    keras.utils.set_random_seed(0)  # a seed of the exporting process has no effect on the server
    path = export.saved_model(changed, folder)
    export.onnx(changed, folder)
    export.verify(folder)
    assert json.loads((folder / "config.json").read_text())["generation"]["seed"] is None
    signatures, given = tf.saved_model.load(str(path)).signatures, tf.constant(texts)
    first, second = (signatures["serving_default"](text=given)["text"].numpy() for _ in range(2))
    assert (first != second).any()
    served = serving.load(folder)
    assert served(texts) != served(texts)
    ids = changed.encode(texts).numpy()
    expected = generation.generate(
        changed.model, ids, dataclasses.replace(NO_SEED, seed=5), max_new_tokens=10
    ).best
    options = {"max_new_tokens": 10, "min_new_tokens": 0, "temperature": 3.0, "seed": 5, "rows": -1}
    dtypes = ("int32", "int32", "float32", "int64", "int32")
    found = signatures["generate"](
        text=given,
        **{
            name: tf.constant([value], dtype)
            for (name, value), dtype in zip(options.items(), dtypes, strict=True)
        },
    )
    np.testing.assert_array_equal(found["ids"].numpy(), expected)
