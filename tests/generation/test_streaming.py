import keras
import numpy as np
import pytest

from keras_transformer import generation
from keras_transformer.generation import Beam, NoRepeatNGram, Sample
from keras_transformer.generation.search.interface import TokenSearch
from keras_transformer.generation.streaming import Streamer

from .reference import decoder, translator

pytestmark = pytest.mark.backend_neutral

SOURCES = np.array([[4, 5, 4, 3], [5, 3, 0, 0], [4, 4, 5, 5], [0, 0, 0, 0]])
PROMPTS = np.array([[5, 6, 7, 8, 9], [0, 0, 4, 5, 6], [4, 5, 6, 0, 0]])


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        (Beam(1), {"constraints": [NoRepeatNGram(2)], "min_new_tokens": 3}),
        (Sample(1.3, seed=3), {"rows": [5, 2, 0, 1]}),
    ],
    ids=repr,
)
def test_streamed_tokens_equal_generate(random_transformer, sampler, options):
    model = random_transformer(6)
    expected = generation.generate(model, SOURCES, sampler, max_new_tokens=7, **options)
    steps = list(generation.stream(model, SOURCES, sampler, max_new_tokens=7, **options))
    assert len(steps) == expected.lengths.max()
    np.testing.assert_array_equal(np.stack(steps, axis=1), expected.best[:, : len(steps)])
    assert steps[0].shape == (4,)


@pytest.mark.slow
def test_streams_continue_prefixes():
    model, prefix = translator(2, 9), np.array([[6, 7], [0, 8], [0, 0], [5, 0]])
    expected = generation.generate(model, SOURCES, max_new_tokens=6, prefix_ids=prefix)
    steps = list(generation.stream(model, SOURCES, max_new_tokens=6, prefix_ids=prefix))
    np.testing.assert_array_equal(np.stack(steps, axis=1), expected.best[:, : len(steps)])


@pytest.mark.slow
def test_tokens_are_yielded_one_by_one_and_similar_sizes_compile_once(monkeypatch):
    traced = []
    original = TokenSearch.step
    monkeypatch.setattr(TokenSearch, "step", lambda *given: traced.append(1) or original(*given))
    run = Streamer(decoder(5), max_new_tokens=5, jit_compile=keras.backend.backend() == "jax")
    first = next(run.stream(PROMPTS))
    assert first.shape == (3,)
    for rows, columns in ((3, 5), (4, 8), (3, 2)):
        assert len(list(run.stream(np.full((rows, columns), 5)))) == 5
    assert len(traced) == 1


@pytest.mark.slow
def test_similar_limits_and_other_seeds_compile_once(monkeypatch):
    traced = []
    original = TokenSearch.step
    monkeypatch.setattr(TokenSearch, "step", lambda *given: traced.append(1) or original(*given))
    model, sampler = decoder(5), Sample(seed=3)
    for most in (9, 12, 16, [2, 11, 9]):
        expected = generation.generate(model, PROMPTS, sampler, max_new_tokens=most)
        traced.clear() if most == 9 else None
        steps = np.stack(list(generation.stream(model, PROMPTS, sampler, max_new_tokens=most)), axis=1)
        assert steps.shape[1] == expected.lengths.max()
        np.testing.assert_array_equal(steps, expected.best[:, : steps.shape[1]])
    list(generation.stream(model, PROMPTS, Sample(seed=4), max_new_tokens=10))
    assert len(traced) == 1


def test_streams_reject_invalid_prompts_immediately():
    model = decoder(5)
    with pytest.raises(ValueError, match="`source_ids` must be in"):
        generation.stream(model, [[99]])
    assert list(generation.stream(model, PROMPTS[:0])) == []
