"""Laws of generation for every model: a new model is a row in `generation.py`."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation
from keras_transformer.generation import Beam, Contrastive, Ensemble, Sample, Speculative
from keras_transformer.ops import GrowingCache, StaticCache
from tests.generation.reference import beam_search, contrastive_search, forced, greedy_search

from .cases import over, tensors
from .generation import DIFFERENT, GENERATORS

pytestmark = pytest.mark.backend_neutral

MOST = 6
ON_JAX = keras.backend.backend() == "jax"
# Only TensorFlow loops support growing tensors.
CACHES = [StaticCache(in_place=False), *([] if ON_JAX else [GrowingCache()])]
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
SAMPLERS = ["greedy", Beam(3, num_return=2), Sample(2.0, seed=5, num_return=2), Contrastive(3)]
each_model = over(GENERATORS)
each_different = over(DIFFERENT)
each_contrastive = over(
    {
        name: case
        for name, case in GENERATORS.items()
        if name.startswith(("transformer", "gpt", "hybrid", "t5"))
    }
)
each_sampler = pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(sampler, id=str(sampler).split("(")[0], marks=pytest.mark.slow if i else [])
        for i, sampler in enumerate(SAMPLERS)
    ],
)


def run(model, sampler, inputs, compiled=ON_JAX, **options):
    """Generate with or without XLA."""
    return generation.Generator(model, sampler, MOST, jit_compile=compiled)(**inputs, **options)


def has_hidden_states(model, sampler):
    """Return whether the model has what the sampler needs."""
    return not isinstance(sampler, Contrastive) or hasattr(model, "hidden_step")


def trimmed(out, row, n=0):
    """Return the ids of a hypothesis without padding."""
    return out.ids[row, n, : out.lengths[row, n]].tolist()


def assert_same(found, expected):
    """Compare generations; sequences may be padded to another length."""
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_allclose(found.token_scores, expected.token_scores, **CLOSE)
    np.testing.assert_allclose(found.scores, expected.scores, **CLOSE)


@each_model
def test_greedy_search_equals_a_search_without_cache(case):
    model = case.make(0)
    out = run(model, "greedy", case.inputs(model.pad_id))
    for row, (ids, scores) in enumerate(greedy_search(model, case.rows, MOST)):
        assert trimmed(out, row) == ids
        np.testing.assert_allclose(out.token_scores[row, 0, : len(ids)], scores, **CLOSE)
        np.testing.assert_allclose(out.scores[row, 0], sum(scores), **CLOSE)
        padding = model.end_id if model.pad_id is None else model.pad_id
        assert (out.best[row, len(ids) :] == padding).all()
    assert len({tuple(ids) for ids in out.best.tolist()}) > 1


@pytest.mark.slow
@each_model
def test_beams_equal_a_search_without_cache(case):
    model, beam = case.make(0), Beam(3, num_return=3)
    out = run(model, beam, case.inputs(model.pad_id))
    for row, source in enumerate(case.rows):
        for n, (ids, score, ranking) in enumerate(beam_search(model, source, beam, MOST) if source else []):
            assert trimmed(out, row, n) == list(ids)
            np.testing.assert_allclose(out.scores[row, n], score, **CLOSE)
            np.testing.assert_allclose(out.ranking_scores[row, n], ranking, **CLOSE)


@pytest.mark.slow
@each_contrastive
def test_contrastive_search_equals_a_search_without_cache(case):
    model, sampler = case.make(0), Contrastive(3, 0.7)
    out = run(model, sampler, case.inputs(model.pad_id))
    for row, source in enumerate(case.rows):
        ids, scores = contrastive_search(model, source, sampler, MOST) if source else ([], [])
        assert trimmed(out, row) == ids
        np.testing.assert_allclose(out.token_scores[row, 0, : len(ids)], scores, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@each_model
def test_samples_are_scored_by_the_model(case):
    model, sampler = case.make(0), Sample(2.0, top_p=0.95, seed=3, num_return=3)
    out = run(model, sampler, case.inputs(model.pad_id))
    for row, source in enumerate(case.rows):
        for n in range(3 if source else 0):
            scores = forced(model, np.array(source), [trimmed(out, row, n)])[0]
            np.testing.assert_allclose(out.token_scores[row, n, : len(scores)], scores, **CLOSE)
    assert len({tuple(ids) for ids in out.ids.reshape(-1, MOST).tolist()}) > 3


@pytest.mark.slow
@each_different
def test_searches_with_a_single_choice_equal_greedy_search(case):
    model = case.make(0)
    inputs = case.inputs(model.pad_id)
    greedy = run(model, "greedy", inputs)
    for sampler in (Beam(1), Sample(top_k=1), Contrastive(1), Contrastive(4, 0.0)):
        if has_hidden_states(model, sampler):
            assert_same(run(model, sampler, inputs), greedy)


@pytest.mark.slow
@each_model
def test_speculative_search_equals_greedy_search_for_any_draft(case):
    model = case.make(0)
    inputs = case.inputs(model.pad_id)
    greedy = run(model, "greedy", inputs)
    for draft, num_tokens in ((model, 3), (case.make(1), 3), (case.make(1), 1)):
        assert_same(run(model, Speculative(draft, num_tokens), inputs), greedy)


@each_sampler
@over(DIFFERENT, slow=("decoder",))
def test_rows_do_not_depend_on_other_rows_and_padding(case, sampler):
    model = case.make(0)
    if not has_hidden_states(model, sampler):
        pytest.skip("no hidden states")
    generator = generation.Generator(model, sampler, MOST, jit_compile=ON_JAX)
    out = generator(**case.inputs(model.pad_id))
    padded = [case.inputs(model.pad_id, extra=2)]
    if not hasattr(model, "start_id"):
        padded.append(case.inputs(model.pad_id, left=True, extra=1))
    for others in padded:
        assert_same(generator(**others), out)
    for row, source in enumerate(case.rows):
        rows = {"rows": [row]} if isinstance(sampler, Sample) else {}
        single = generator(np.array([source], "int32"), **rows)
        np.testing.assert_array_equal(single.ids[0], out.ids[row])
        np.testing.assert_allclose(single.scores[0], out.scores[row], **CLOSE)


@each_sampler
@over(DIFFERENT, slow=("transformer",))
def test_ids_do_not_depend_on_the_mode_and_the_cache(case, sampler, modes):
    model = case.make(0)
    if not has_hidden_states(model, sampler):
        pytest.skip("no hidden states")
    inputs = case.inputs(model.pad_id)
    expected = run(model, sampler, inputs, compiled=True)
    if not ON_JAX:
        assert_same(run(model, sampler, inputs), expected)
    for (mode, wrap), kv_cache in itertools.product(modes.items(), CACHES):
        if mode == "xla" and not ON_JAX:
            continue  # the default is `expected`; exports run without XLA

        def loop(inputs, kv_cache=kv_cache):
            options = {"kv_cache": kv_cache, "sampler": sampler, **inputs}
            return generation.generate_ids(model, max_new_tokens=MOST, **options)["ids"]

        found = wrap(loop)(tensors(inputs))
        np.testing.assert_array_equal(ops.convert_to_numpy(found), expected.ids, err_msg=mode)


@pytest.mark.slow
@each_sampler
@each_different
def test_limits_of_rows_equal_single_row_generation(case, sampler):
    model = case.make(0)
    if not has_hidden_states(model, sampler):
        pytest.skip("no hidden states")
    limits = np.resize([3, 1, MOST], len(case.rows))
    generators = {
        int(limit): generation.Generator(model, sampler, int(limit), jit_compile=ON_JAX) for limit in limits
    }
    out = run(model, sampler, case.inputs(model.pad_id), limits=limits)
    for row, (source, limit) in enumerate(zip(case.rows, limits, strict=True)):
        rows = {"rows": [row]} if isinstance(sampler, Sample) else {}
        single = generators[limit](np.array([source], "int32"), **rows)
        np.testing.assert_array_equal(out.ids[row, :, :limit], single.ids[0])
        np.testing.assert_array_equal(out.lengths[row], single.lengths[0])
        np.testing.assert_allclose(out.ranking_scores[row], single.ranking_scores[0], **CLOSE)


@pytest.mark.slow
@each_model
def test_streamed_tokens_equal_generated_tokens(case):
    model = case.make(0)
    inputs = case.inputs(model.pad_id)
    for sampler in ("greedy", Sample(2.0, seed=5)):
        out = generation.generate(model, sampler=sampler, max_new_tokens=MOST, **inputs)
        streamed = np.stack(
            list(generation.stream(model, sampler=sampler, max_new_tokens=MOST, **inputs)), axis=1
        )
        assert streamed.shape[1] == out.lengths.max()
        np.testing.assert_array_equal(streamed, out.best[:, : streamed.shape[1]])


@pytest.mark.slow
@each_model
def test_scores_of_outputs_as_targets_equal_the_scores_of_generation(case):
    model = case.make(0)
    inputs = case.inputs(model.pad_id)
    for sampler in ("greedy", Beam(3), Sample(seed=1)):
        out = run(model, sampler, inputs)
        found = generation.score(model, target_ids=out.best, **inputs)
        np.testing.assert_array_equal(found.lengths, out.lengths[:, 0])
        np.testing.assert_allclose(found.token_scores, out.token_scores[:, 0], **CLOSE)
        np.testing.assert_allclose(found.scores, out.scores[:, 0], **CLOSE)


@pytest.mark.slow
@each_different
def test_an_ensemble_of_equal_models_equals_the_model(case):
    model = case.make(0)
    inputs = case.inputs(model.pad_id)
    for times in (1, 2):
        assert_same(run(Ensemble([model] * times), "greedy", inputs), run(model, "greedy", inputs))
