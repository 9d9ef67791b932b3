import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation
from keras_transformer.generation import Beam, Contrastive, Sample
from keras_transformer.generation.loop import generate_ids
from keras_transformer.ops import GrowingCache

from .reference import decoder, traced_searches, translator

pytestmark = pytest.mark.backend_neutral

ON_JAX = keras.backend.backend() == "jax"


def run(model, prompts, sampler="greedy", most=6, **options):
    return generation.Generator(model, sampler, most, jit_compile=ON_JAX)(prompts, **options)


@pytest.mark.slow
def test_prompts_of_similar_lengths_compile_once(monkeypatch):
    traced = traced_searches(monkeypatch)
    run = generation.Generator(decoder(), Beam(2), 3, jit_compile=ON_JAX)
    for rows, columns in ((3, 2), (4, 8), (3, 5)):
        run(np.full((rows, columns), 5))
    assert len(traced) == 1
    run(np.full((3, 9), 5))
    assert len(traced) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "start_id", [0, 2], ids="start_id={}".format
)  # the start token of T5 has the padding id
@pytest.mark.parametrize("sampler", ["greedy", Contrastive()], ids=repr)
def test_prefix_continues_the_greedy_target(random_transformer, sampler, start_id):
    model = random_transformer(6, num_layers=2, start_id=start_id)
    sources = np.random.default_rng(0).integers(4, 40, (5, 6))
    expected = run(model, sources, sampler, 9)
    assert expected.lengths.max() > 4
    for given in (1, 3):
        found = run(model, sources, sampler, 9 - given, prefix_ids=expected.best[:, :given])
        for row in np.flatnonzero(expected.lengths[:, 0] > given):
            np.testing.assert_array_equal(found.best[row], expected.best[row, given:])
            np.testing.assert_allclose(
                found.token_scores[row, 0], expected.token_scores[row, 0, given:], rtol=1e-4, atol=1e-4
            )


def test_scores_need_a_target_for_each_row():
    model = decoder()
    assert generation.score(model, np.zeros((0, 3), int), np.zeros((0, 3), int)).scores.shape == (0,)
    with pytest.raises(ValueError, match="`target_ids` must have as many rows"):
        generation.score(model, [[5], [6], [7]], [[5], [6]])


@pytest.mark.parametrize("sampler", ["greedy", Beam(2), Sample(seed=0)], ids=repr)
def test_the_loop_takes_no_rows(sampler):
    none = ops.zeros((0, 3), "int32")
    for model, prefix_ids in ((decoder(), None), (translator(), None), (translator(), none)):
        out = generate_ids(model, none, 4, sampler=sampler, prefix_ids=prefix_ids)
        assert {name: values.shape[0] for name, values in out.items()} == dict.fromkeys(out, 0)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["greedy", Beam(3)], ids=repr)
def test_start_ids_replace_the_start_token(random_transformer, sampler):
    model, other = (random_transformer(6, start_id=start_id) for start_id in (2, 7))
    sources = np.random.default_rng(0).integers(8, 40, (4, 6))
    options = {"constraints": [generation.BannedWords([[2], [7]])], "prefix_ids": [[9], [0], [9], [9]]}
    options["max_new_tokens"] = 6
    expected = [generation.generate(each, sources, sampler, **options) for each in (model, other)]
    found = generation.generate(model, sources, sampler, start_ids=[7, 2, 2, 7], **options)
    for row, reference in enumerate([1, 0, 0, 1]):
        np.testing.assert_array_equal(found.ids[row], expected[reference].ids[row])
    targets, prefix = expected[1].best, np.array(options["prefix_ids"])
    scores = generation.score(model, sources, targets, prefix_ids=prefix, start_ids=[7] * 4).token_scores
    reference = generation.score(other, sources, targets, prefix_ids=prefix).token_scores
    np.testing.assert_allclose(scores, reference, atol=1e-5)
    without = generation.score(model, sources[1:2], targets[1:2], start_ids=[7]).token_scores
    np.testing.assert_allclose(without, scores[1:2], atol=1e-5)


def test_target_beyond_max_length_is_rejected():
    model = decoder(max_length=8)
    fits = generation.score(model, [[5, 5, 5]], [[4] * 6 + [0] * 3])  # the last token is not read
    assert fits.lengths == 6
    with pytest.raises(ValueError, match=r"`target_ids` must fit .* of 8 .*Received: 9 tokens in row 1"):
        generation.score(model, [[5, 0, 0], [5, 5, 5]], [[4] * 7, [4] * 7])


def test_invalid_prompts_are_rejected():
    model = decoder(max_length=8)
    with pytest.raises(ValueError, match="`source_ids` must have a token in each row.*row 1"):
        run(model, [[5, 0], [0, 0]])
    assert run(model, [[5, 5, 5]], most=6).ids.shape == (1, 1, 6)
    with pytest.raises(
        ValueError, match=r"`source_ids` must have at most 3 tokens.*Received: 4 tokens in row 0"
    ):
        run(model, [[5, 5, 5, 5], [5, 0, 0, 0]], most=6)
    with pytest.raises(ValueError, match="`prefix_ids` must be None"):
        run(model, [[5]], prefix_ids=[[5]])
    for wrong in ([[5], [5]], [5], [[99]], [[0.5]]):
        with pytest.raises(ValueError, match=r"`prefix_ids` must .*Received: "):
            run(translator(), [[5]], prefix_ids=wrong)
    with pytest.raises(ValueError, match="`start_ids` must be None for a decoder-only model"):
        run(model, [[5]], start_ids=[5])
    for wrong in ([5, 5], [[5]], [99], [0.5]):
        with pytest.raises(ValueError, match=r"`start_ids` must be .*Received: "):
            run(translator(), [[5]], start_ids=wrong)


@pytest.mark.slow_variants
@pytest.mark.parametrize("sampler", ["greedy", Beam(2), Sample(seed=0)], ids=repr)
def test_the_nan_logits_error_names_row_and_step(sampler):
    class Broken:
        """A model that gives NaN logits after 5, 6, 7, and repeats 9 after 9."""

        vocabulary_size, pad_id, end_id, variables = 12, 0, 3, []

        def empty_cache(self, batch_size, length, **options):
            return ops.zeros((batch_size, 1))

        def step(self, ids, cache, **options):
            following = ops.where(ops.equal(ids, 9), 9, ops.where(ops.equal(ids, 6), 7, 6))
            logits = 20.0 * ops.one_hot(following, 12)
            return ops.where(ops.equal(ids, 7)[..., None], float("nan"), logits), cache

    with pytest.raises(ValueError, match=r"`model` must return finite logits. Received: .* row 1 at step 2"):
        run(Broken(), [[4, 9], [4, 5]], sampler, most=5)
    assert run(Broken(), [[4, 9]], sampler, most=5).lengths[0, 0] == 5


@pytest.mark.skipif(not ON_JAX, reason="TensorFlow's loops may carry what grows")
def test_growing_cache_is_rejected_on_fixed_shape_backends():
    with pytest.raises(
        ValueError, match=r"`kv_cache` must have a fixed size.*Received: kv_cache=GrowingCache"
    ):
        generation.generate_ids(decoder(5), ops.array([[5, 6]]), 3, GrowingCache())
