import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation
from keras_transformer.generation import BannedWords, Beam, ForcedPrefix, ForcedWords, NoRepeatNGram, Sample

from .reference import every_sequence, forced, translator

pytestmark = pytest.mark.backend_neutral

ON_JAX = keras.backend.backend() == "jax"
SOURCES = np.array([[4, 5, 4, 3], [5, 3, 0, 0], [4, 4, 5, 5], [5, 3, 4, 0]])


def run(model, beam, most, *constraints, sources=SOURCES, **options):
    return generation.Generator(model, beam, most, jit_compile=ON_JAX, constraints=constraints, **options)(
        sources
    )


def holds(ids, words):
    text = " ".join(map(str, ids))
    return all(f" {' '.join(map(str, word))} " in f" {text} " for word in words)


@pytest.mark.parametrize(
    ("ids", "length", "expected"),
    [
        ([4, 5, 6, 7, 0], 4, 3),
        ([4, 5, 6, 7, 0], 2, 1),  # tokens after `length` do not count
        ([5, 6, 5, 6, 7], 3, 1),
        ([8, 9, 5, 6, 7], 5, 5),
        ([5, 5, 5, 6, 7], 5, 3),
        ([8, 8, 9, 5, 6], 5, 4),
        ([6, 7, 9, 9, 8], 5, 1),
    ],
)
def test_progress_counts_complete_and_partial_words(ids, length, expected):
    words = ForcedWords([[5, 6, 7], [8, 9]])
    assert words.total == 5
    found = words.progress(ops.convert_to_tensor([[ids]], "int32"), length)
    assert int(found[0, 0]) == expected


@pytest.mark.slow
@pytest.mark.parametrize("words", [[[4]], [[4, 5]], [[5], [4]], [[1, 5, 4]]], ids=str)
def test_wide_beam_equals_exhaustive_search_with_forced_words(words):
    model, most = translator(), 4
    rows = np.array([row for row in every_sequence([1, 3, 4, 5], [3], most) if holds(row, words)])
    out = run(model, Beam(125, num_return=4), most, ForcedWords(words))
    for row, source in enumerate(SOURCES):
        scores = forced(model, source, rows).sum(axis=1)
        ranking = scores / ((5 + (rows != 0).sum(axis=1)) / 6) ** 0.6
        best = np.argsort(-ranking)[:4]
        np.testing.assert_array_equal(out.ids[row, : len(best)], rows[best])
        np.testing.assert_allclose(out.scores[row, : len(best)], scores[best], rtol=1e-4, atol=1e-4)
        assert (out.scores[row, len(best) :] == -np.inf).all()


@pytest.mark.slow
@pytest.mark.parametrize("beams", [2, 3, 5])
def test_narrow_beams_contain_words_and_scores_equal_the_model(random_transformer, beams):
    model, words = random_transformer(6), [[17, 18], [9], [30, 31, 32]]
    sources = np.random.default_rng(0).integers(4, 40, (5, 6))
    out = run(model, Beam(beams, num_return=beams), 9, ForcedWords(words), sources=sources)
    assert (out.lengths[:, 0] > 0).all()
    for row, source in enumerate(sources):
        there = out.lengths[row] > 0
        for ids in out.ids[row][there]:
            assert holds(ids, words)
        assert len({tuple(ids) for ids in out.ids[row][there]}) == there.sum()
        expected = forced(model, source, out.ids[row][there])
        np.testing.assert_allclose(out.token_scores[row][there], expected, rtol=1e-4, atol=1e-4)
    exact = run(model, Beam(beams), 6, ForcedWords(words), sources=sources)  # no space for other tokens
    for ids in exact.best:
        assert holds(ids, words)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [None, [4, 5, 4, 5]], ids=str)
def test_hypotheses_too_long_for_the_forced_words_are_dropped(random_transformer, limits):
    model, words = random_transformer(6), [[17, 18, 9]]
    sources = np.random.default_rng(0).integers(4, 40, (4, 6))
    generator = generation.Generator(
        model, Beam(4, num_return=4), 5, jit_compile=ON_JAX, constraints=[ForcedWords(words)]
    )
    out = generator(sources, limits=limits)
    assert (out.lengths > 0).all()
    assert all(holds(ids, words) for row in out.ids for ids in row)


@pytest.mark.slow
def test_satisfied_words_do_not_change_results_in_any_mode(random_transformer, modes):
    model = random_transformer(6)
    sources = np.random.default_rng(0).integers(4, 40, (4, 6))
    words = ForcedWords([[17, 18], [9]])
    expected = generation.generate(
        model, sources, Beam(4, num_return=2), max_new_tokens=8, constraints=[words]
    )
    options = {"sampler": Beam(4, num_return=2), "constraints": [words]}
    out = modes["eager" if not ON_JAX else "xla"](
        lambda ids: generation.generate_ids(model, ids, 8, **options)["ids"]
    )(ops.array(sources))
    np.testing.assert_array_equal(ops.convert_to_numpy(out), expected.ids)


@pytest.mark.slow
def test_forced_words_combine_with_constraints_and_limits():
    model = translator(3, 12)
    words = [[6, 7], [8]]
    out = run(model, Beam(4), 6, ForcedWords(words), ForcedPrefix([9, 6]), NoRepeatNGram(1))
    for ids in out.best:
        assert holds(ids, words)
        assert ids[:2].tolist() == [9, 6]
    limits = np.array([3, 4, 8, 5])
    out = generation.generate(
        model, SOURCES, Beam(4), max_new_tokens=limits, constraints=[ForcedWords(words)]
    )
    assert (out.lengths[:, 0] <= limits).all()
    for ids in out.best:
        assert holds(ids, words)


@pytest.mark.parametrize("sampler", ["greedy", Beam(1), Sample()], ids=repr)
def test_forced_words_need_a_beam(sampler):
    with pytest.raises(ValueError, match=r"`sampler` must be a `Beam` with at least two.*Received: sampler="):
        run(translator(), sampler, 5, ForcedWords([[4]]))
    with pytest.raises(ValueError, match="`sampler` must be a `Beam`"):
        generation.generate_ids(
            translator(), ops.array(SOURCES), 5, sampler=sampler, constraints=[ForcedWords([[4]])]
        )


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "constraints",
    [
        [ForcedWords([[4, 5, 4, 5], [1]])],
        [ForcedWords([[4, 5]]), ForcedPrefix([4, 4, 4])],
        [ForcedWords([[4, 3]])],
        [ForcedWords([[0]])],
        [ForcedWords([[2]])],
        [ForcedWords([[99]])],
        [ForcedWords([[4, 5]]), BannedWords([[5]])],
        [ForcedWords([[4, 5, 4]]), NoRepeatNGram(1)],
    ],
    ids=str,
)
def test_impossible_words_are_rejected(constraints):
    with pytest.raises(ValueError, match=r"`constraints` must .*Received: "):
        run(translator(), Beam(3), 4, *constraints)
