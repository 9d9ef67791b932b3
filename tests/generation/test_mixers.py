"""Constraints, chunked calls and exports of models with recurrent layers."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation
from keras_transformer.generation import Beam

from .hybrids import HYBRIDS, hybrid
from .reference import greedy_search

pytestmark = pytest.mark.backend_neutral

PROMPTS = np.array([[5, 6, 7, 8, 9], [4, 5, 6, 0, 0], [0, 0, 7, 4, 7], [9, 0, 0, 0, 0]])


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", HYBRIDS)
def test_constraints_and_limits_are_respected(name):
    model, constraint = hybrid(name), generation.NoRepeatNGram(1)

    def without_repetition(ids, scores):
        return np.where(np.isin(np.arange(12), ids), -np.inf, scores)

    out = generation.generate(model, PROMPTS, Beam(1), max_new_tokens=[6, 1, 3, 6], constraints=[constraint])
    prompts = [row[row != 0].tolist() for row in PROMPTS]
    expected = greedy_search(model, prompts, 6, without_repetition)
    for row, (limit, (ids, _)) in enumerate(zip((6, 1, 3, 6), expected, strict=True)):
        assert out.best[row, : out.lengths[row, 0]].tolist() == ids[:limit]


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", HYBRIDS)
def test_scores_and_chunked_calls_equal_one_call(name):
    model = hybrid(name)
    ids = np.array([[5, 6, 7, 8, 9, 4, 5], [4, 5, 6, 7, 4, 4, 8]])
    expected = ops.convert_to_numpy(model(ids))
    cache, parts = model.empty_cache(2, 7), []
    for start, end in ((0, 3), (3, 4), (4, 7)):
        logits, cache = model.step(
            ids[:, start:end], cache, cache_index=start, positions=np.tile(np.arange(start, end), (2, 1))
        )
        parts.append(ops.convert_to_numpy(logits))
    np.testing.assert_allclose(np.concatenate(parts, axis=1), expected, atol=1e-5)
    scores = generation.score(model, ids[:, :3], ids[:, 3:]).token_scores
    logs = ops.convert_to_numpy(ops.log_softmax(expected[:, 2:-1]))
    np.testing.assert_allclose(scores, np.take_along_axis(logs, ids[:, 3:, None], axis=-1)[..., 0], atol=1e-5)


@pytest.mark.slow
def test_mixed_precision_keeps_float32_states_after_loading(tmp_path):
    model = hybrid("hybrid", dtype="mixed_bfloat16")
    states = keras.tree.flatten(model.empty_cache(1, 4)[0])
    assert {keras.backend.standardize_dtype(each.dtype) for each in states} == {"float32"}
    generation.generate(model, PROMPTS, max_new_tokens=2)
    model = hybrid("hybrid")
    model.save(tmp_path / "it.keras")
    again = keras.saving.load_model(tmp_path / "it.keras")
    np.testing.assert_array_equal(again(PROMPTS), model(PROMPTS))


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports need TensorFlow")
@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("generation_settings", ["greedy", "beam"])
def test_saved_model_and_onnx_generate_the_same_texts(name, generation_settings, tmp_path):
    import keras_transformer_serving as serving
    from keras_transformer import export, pipelines, text

    tokenizer = text.ByteTokenizer()
    model = hybrid(
        name, vocabulary_size=tokenizer.vocabulary_size, pad_id=tokenizer.pad_id, end_id=tokenizer.end_id
    )
    pipeline = pipelines.TextGeneration(model, tokenizer, generation_settings, max_new_tokens=6)
    texts = ["to be", "it", "or not to be, that is", "x"]
    export.bundle(pipeline, tmp_path / "it", texts=texts, precisions=("float32", "float16"))
    assert export.verify(tmp_path / "it")
    assert serving.load(tmp_path / "it")(texts) == pipeline(texts)
    # A recurrent state has no keys and values, which are inputs of single-step graphs.
    assert bool(list((tmp_path / "it").rglob("model.onnx"))) == (name == "attention")
