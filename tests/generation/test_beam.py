import keras
import numpy as np
import pytest

from keras_transformer import generation
from keras_transformer.generation import Beam

from .reference import beam_search, every_sequence, forced, translator

pytestmark = pytest.mark.backend_neutral

SOURCES = np.array([[4, 5, 4, 3], [5, 3, 0, 0], [4, 4, 5, 5], [5, 3, 4, 0]])
ON_JAX = keras.backend.backend() == "jax"


def run(model, beam, most, sources=SOURCES, *, compiled=ON_JAX, **options):
    return generation.Generator(model, beam, most, jit_compile=compiled, **options)(sources)


def lengths_of(rows):
    return (rows != 0).sum(axis=1)


@pytest.mark.slow_variants
@pytest.mark.parametrize("normalization", ["gnmt", "length"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, -1.0])
def test_wide_beam_equals_exhaustive_search(alpha, normalization):
    model, most = translator(), 3
    rows = every_sequence([1, 3, 4, 5], [3], most)
    assert len(rows) == 40
    out = run(model, Beam(45, alpha, normalization, num_return=45), most)
    lengths = lengths_of(rows)
    penalties = ((5 + lengths) / 6 if normalization == "gnmt" else lengths) ** alpha
    for row, source in enumerate(SOURCES):
        scores = forced(model, source, rows).sum(axis=1)
        order = np.argsort(-scores / penalties)
        np.testing.assert_array_equal(out.ids[row, :40], rows[order])
        np.testing.assert_allclose(out.scores[row, :40], scores[order], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            out.ranking_scores[row, :40], (scores / penalties)[order], rtol=1e-4, atol=1e-4
        )
        # There are only 40 sequences: the other hypotheses are empty.
        assert (out.lengths[row, 40:] == 0).all()
        assert (out.scores[row, 40:] == -np.inf).all()


@pytest.mark.slow
@pytest.mark.parametrize("early_stopping", ["heuristic", "num_beams"])
def test_early_stopping_and_num_beams_follow_their_definitions(early_stopping):
    model, most = translator(1, 9), 9
    beam = Beam(2, 2.0, "length", early_stopping, num_return=2)
    out = run(model, beam, most)
    for row, source in enumerate(SOURCES):
        expected = beam_search(model, source[source != 0].tolist(), beam, most)
        for found, (ids, _, ranking) in enumerate(expected):
            assert tuple(out.ids[row, found, : out.lengths[row, found]]) == ids
            np.testing.assert_allclose(out.ranking_scores[row, found], ranking, rtol=1e-4, atol=1e-4)
    exact = run(model, Beam(2, 2.0, "length", num_return=2), most)
    assert (exact.ids != out.ids).any()


@pytest.fixture(scope="module")
def many(random_transformer):
    """A model, sources, and the hypotheses of four beams."""
    model = random_transformer(6)
    sources = np.random.default_rng(0).integers(4, 40, (12, 6))
    sources[::3, 3:] = 0
    return model, sources, run(model, Beam(4, num_return=4), 8, sources, compiled=True)


@pytest.mark.slow
def test_n_best_are_sorted_distinct_and_scored_by_the_model(many):
    model, sources, out = many
    assert (np.diff(out.ranking_scores, axis=1) <= 0).all()
    for row, source in enumerate(sources):
        assert len({tuple(ids) for ids in out.ids[row]}) == 4
        expected = forced(model, source, out.ids[row])
        np.testing.assert_allclose(out.token_scores[row], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(out.token_scores.sum(axis=-1), out.scores, rtol=1e-6)
    np.testing.assert_allclose(
        out.ranking_scores, out.scores / ((5 + out.lengths) / 6) ** 0.6, rtol=1e-5, atol=1e-5
    )
    assert len(set(out.lengths.ravel().tolist())) > 3
    fewer = run(model, Beam(4, num_return=2), 8, sources)
    np.testing.assert_array_equal(fewer.ids, out.ids[:, :2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alpha", "normalization"),
    [(-1.0, "length"), (-1.0, "gnmt"), (0.0, "gnmt"), (0.6, "gnmt"), (1.0, "length"), (3.0, "length")],
)
def test_early_stopping_does_not_change_results(many, alpha, normalization):
    model, sources, _ = many
    early, late = (run(model, Beam(3, alpha, normalization, stop, 2), 8, sources) for stop in (True, False))
    for name in ("ids", "lengths", "scores", "ranking_scores", "token_scores"):
        np.testing.assert_array_equal(getattr(early, name), getattr(late, name))


@pytest.mark.parametrize("early_stopping", [True, False])
def test_beams_run_while_a_longer_sequence_can_be_better(early_stopping):
    """The end token is better than the next tokens of another sequence, but not than all of its tokens."""

    class AfterTheFirstToken:
        vocabulary_size, pad_id, start_id, end_id = 4, 0, 1, 2

        def encode(self, source_ids):
            return source_ids

        def empty_cache(self, batch_size, length, **_):
            return keras.ops.zeros((batch_size, 1))

        def step(self, token_ids, cache, context, *, positions, **_):
            first, later = (
                np.log(np.array(p, "float32")) for p in ([1e-9, 1e-9, 0.8, 0.2], [1e-9, 1e-9, 1e-3, 1])
            )
            return keras.ops.where(keras.ops.equal(positions, 0)[..., None], first, later), cache

    beam = Beam(2, 2.0, "length", early_stopping)
    out = generation.generate_ids(AfterTheFirstToken(), np.array([[3]], "int32"), 9, sampler=beam)
    np.testing.assert_array_equal(out["ids"], [[[3] * 9]])


@pytest.mark.slow
def test_early_stopping_saves_steps(many):
    """Steps are counted by a model whose `step` runs eagerly."""
    model, sources, _ = many
    if ON_JAX:
        pytest.skip("JAX traces the body once for any number of steps")

    class Counted:
        vocabulary_size, pad_id, start_id, end_id = 40, model.pad_id, model.start_id, model.end_id
        encode, empty_cache = model.encode, model.empty_cache

        def step(self, *arguments, **options):
            steps.append(1)
            return model.step(*arguments, **options)

    counts = []
    for stop in (True, False):
        steps = []
        generation.generate_ids(Counted(), sources[:1], 30, sampler=Beam(2, 0.0, early_stopping=stop))
        counts.append(len(steps))
    assert counts[0] < counts[1] == 30


@pytest.mark.slow
def test_the_diversity_penalty_spreads_hypotheses_over_parents(many):
    model, sources, plain = many
    diverse = run(model, Beam(4, num_return=4, diversity=5.0), 8, sources)

    def first_tokens(out):
        return np.mean([len(set(ids[:, 0])) for ids in out.ids])

    assert first_tokens(diverse) > first_tokens(plain)
    for row in diverse.ids:
        assert len({tuple(ids) for ids in row}) == 4


@pytest.mark.slow
def test_beams_continue_prefixes():
    model = translator(4, 9)
    prefixes = np.array([[6, 7, 0], [0, 6, 7], [8, 0, 0], [0, 0, 0]])
    sources = SOURCES[[0, 0, 1, 2]]
    out = generation.Generator(model, Beam(3, num_return=2), 5, jit_compile=ON_JAX)(sources, prefixes)
    np.testing.assert_array_equal(out.ids[0], out.ids[1])
    np.testing.assert_array_equal(out.ids[3], run(model, Beam(3, num_return=2), 5, sources).ids[3])
    for row in range(3):
        prefix = prefixes[row][prefixes[row] != 0]
        whole = np.concatenate([np.repeat(prefix[None], 2, 0), out.ids[row]], axis=1)
        expected = forced(model, sources[row], whole)[:, len(prefix) :]
        np.testing.assert_allclose(out.token_scores[row], expected, rtol=1e-4, atol=1e-4)
