"""Models with recurrent layers generate the ids of a search without cache."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation
from keras_transformer import ops as kt_ops
from keras_transformer.generation import Beam, Contrastive, Greedy, Sample, Speculative
from keras_transformer.models import GPT

from .hybrids import HYBRIDS, hybrid

pytestmark = pytest.mark.backend_neutral

MOST = 6
PROMPTS = np.array([[5, 6, 7, 8, 9], [4, 5, 6, 0, 0], [0, 0, 7, 4, 7], [9, 0, 0, 0, 0]])
TOKENS = [token for token in range(12) if token]


def prompt_of(row):
    return row[row != 0]


def next_logits(model, ids):
    """Return the logits (V,) after ids from a full forward pass, with −∞ for padding."""
    logits = ops.convert_to_numpy(model(ops.array([ids])))[0, -1].astype(float)
    logits[model.pad_id] = -np.inf
    return logits


def greedy_without_cache(model, prompt, allowed=lambda ids, logits: logits):
    ids = []
    while len(ids) < MOST and model.end_id not in ids:
        ids.append(int(np.argmax(allowed(ids, next_logits(model, [*prompt, *ids])))))
    return ids


def trimmed(out, row, n=0):
    return out.ids[row, n, : out.lengths[row, n]].tolist()


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", HYBRIDS)
def test_greedy_streamed_and_speculative_ids_equal_a_search_without_cache(name):
    model = hybrid(name)
    expected = [greedy_without_cache(model, prompt_of(row)) for row in PROMPTS]
    out = generation.generate(model, PROMPTS, max_new_tokens=MOST)
    assert [trimmed(out, row) for row in range(len(PROMPTS))] == expected
    streamed = np.stack(list(generation.stream(model, PROMPTS, max_new_tokens=MOST)), axis=1)
    np.testing.assert_array_equal(streamed, out.best[:, : streamed.shape[1]])
    drafts = [hybrid(name, seed=1), GPT(12, 1, 2, 8, pad_id=0, end_id=3), model]
    for draft in drafts:
        found = generation.generate(model, PROMPTS, Speculative(draft, 3), max_new_tokens=MOST)
        np.testing.assert_array_equal(found.ids, out.ids)
        np.testing.assert_allclose(found.scores, out.scores, atol=1e-4)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", HYBRIDS)
def test_beams_equal_a_search_without_cache(name, reference_beam):
    model, beam = hybrid(name), Beam(3, num_return=3)
    out = generation.generate(model, PROMPTS, beam, max_new_tokens=MOST)
    for row, source in enumerate(PROMPTS):
        expected = reference_beam(model, source, beam, MOST, TOKENS)
        assert [trimmed(out, row, n) for n in range(3)] == [list(ids) for ids, _, _ in expected]
        np.testing.assert_allclose(out.scores[row], [total for _, total, _ in expected], atol=1e-4)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", HYBRIDS)
def test_contrastive_choices_equal_a_search_without_cache(name):
    model, sampler = hybrid(name), Contrastive(3, 0.5)
    out = generation.generate(model, PROMPTS, sampler, max_new_tokens=MOST)

    def unit(ids):
        hidden = ops.convert_to_numpy(model.hidden(ops.array([ids])))[0]
        return hidden / np.linalg.norm(hidden, axis=-1, keepdims=True)

    for row, source in enumerate(PROMPTS):
        prompt, ids = prompt_of(source).tolist(), []
        while len(ids) < MOST and model.end_id not in ids:
            logits, seen = next_logits(model, prompt + ids), unit(prompt + ids)
            probabilities = np.exp(logits - np.logaddexp.reduce(logits))
            candidates = np.argsort(-logits)[:3].tolist()
            objective = [
                0.5 * probabilities[one] - 0.5 * (unit([*prompt, *ids, one])[-1] @ seen.T).max()
                for one in candidates
            ]
            ids.append(candidates[int(np.argmax(objective))])
        assert trimmed(out, row) == ids


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", HYBRIDS)
def test_samples_are_scored_by_the_model_and_reproducible(name, forced):
    model, sampler = hybrid(name), Sample(3.0, seed=3, num_return=3)
    out = generation.generate(model, PROMPTS, sampler, max_new_tokens=MOST)
    for row, source in enumerate(PROMPTS):
        np.testing.assert_allclose(out.token_scores[row], forced(model, source, out.ids[row]), atol=1e-4)
    assert len({tuple(each) for each in out.ids.reshape(-1, MOST)}) > 3
    single = generation.generate(model, PROMPTS[1:2], sampler, max_new_tokens=MOST, rows=[1])
    np.testing.assert_array_equal(single.ids[0], out.ids[1])


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", HYBRIDS)
def test_constraints_and_limits_are_respected(name):
    model, constraint = hybrid(name), generation.NoRepeatNGram(1)

    def without_repetition(ids, logits):
        return np.where(np.isin(np.arange(12), ids), -np.inf, logits)

    out = generation.generate(model, PROMPTS, Beam(1), max_new_tokens=[6, 1, 3, 6], constraints=[constraint])
    for row, limit in enumerate((6, 1, 3, 6)):
        expected = greedy_without_cache(model, prompt_of(PROMPTS[row]), without_repetition)
        assert trimmed(out, row) == expected[:limit]


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


def test_mixed_precision_keeps_float32_states_after_loading(tmp_path):
    model = hybrid("hybrid", dtype="mixed_bfloat16")
    states = keras.tree.flatten(model.empty_cache(1, 4)[0])
    assert {keras.backend.standardize_dtype(each.dtype) for each in states} == {"float32"}
    generation.generate(model, PROMPTS, max_new_tokens=2)
    model = hybrid("hybrid")
    model.save(tmp_path / "it.keras")
    again = keras.saving.load_model(tmp_path / "it.keras")
    np.testing.assert_array_equal(again(PROMPTS), model(PROMPTS))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="loops that grow need TensorFlow")
@pytest.mark.slow_variants
@pytest.mark.parametrize("name", HYBRIDS)
def test_loops_give_equal_ids_in_every_mode(name):
    import tensorflow as tf

    model = hybrid(name)
    for sampler in (Greedy(), Beam(3, num_return=2)):
        expected = generation.generate(model, PROMPTS, sampler, max_new_tokens=MOST)

        def loop(ids, kv_cache, sampler=sampler):
            return generation.generate_ids(model, ids, MOST, kv_cache, sampler=sampler)["ids"]

        ids = tf.constant(PROMPTS, tf.int32)
        np.testing.assert_array_equal(loop(ids, kt_ops.GrowingCache()), expected.ids)
        traced = tf.function(lambda ids, loop=loop: loop(ids, kt_ops.GrowingCache()))
        np.testing.assert_array_equal(traced(ids), expected.ids)


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
