import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation, relations
from keras_transformer.generation import Beam
from keras_transformer.models import T5, Transformer
from keras_transformer.ops import GrowingCache, StaticCache

pytestmark = pytest.mark.backend_neutral

SOURCES = np.array([[4, 5, 4, 3], [5, 3, 0, 0], [4, 4, 5, 5], [5, 3, 4, 0]])
ON_JAX = keras.backend.backend() == "jax"
# Cache updates of loops without TensorFlow's XLA: only TensorFlow loops support growing tensors.
CACHE = StaticCache(in_place=False) if ON_JAX else GrowingCache()
MODELS = {
    "plain": {},
    "grouped heads": {"num_kv_heads": 2},
    "window": {"relation": relations.SlidingWindow(2)},
    "window of one": {"relation": relations.SlidingWindow(1), "position_encoding": "rotary"},
    "rotary": {"position_encoding": "rotary"},
    "alibi, rms": {"position_encoding": "alibi", "norm": "rms"},
}


def run(model, beam, most, sources=SOURCES, *, compiled=ON_JAX, **options):
    return generation.Generator(model, beam, most, jit_compile=compiled, **options)(sources)


def lengths_of(rows):
    return (rows != 0).sum(axis=1)


@pytest.mark.slow_variants
@pytest.mark.parametrize("normalization", ["gnmt", "length"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, -1.0])
def test_wide_beam_equals_exhaustive_search(translator, forced, every_sequence, alpha, normalization):
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
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("seed", [1, 2])
def test_cached_beam_equals_full_forward(translator, reference_beam, options, seed):
    model, most = translator(seed, 9, **options), 7
    beam = Beam(3, num_return=3)
    out = run(model, beam, most)
    for row, source in enumerate(SOURCES):
        expected = reference_beam(model, source, beam, most, [1, 3, 4, 5, 6, 7, 8])
        for found, (ids, score, ranking) in enumerate(expected):
            assert tuple(out.ids[row, found, : out.lengths[row, found]]) == ids
            np.testing.assert_allclose(out.scores[row, found], score, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(out.ranking_scores[row, found], ranking, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model_class", [Transformer, T5])
def test_encoder_decoder_with_windows_equals_full_forward(model_class, reference_beam):
    sizes = {"num_layers": 2, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "start_id": 2, "end_id": 3}
    windows = {
        "encoder_relation": relations.SlidingWindow(1, 1),
        "decoder_relation": relations.SlidingWindow(1),
    }
    model, beam = model_class(9, **sizes, **windows), Beam(3, num_return=3)
    random = np.random.default_rng(2)
    for weight in model.trainable_weights:
        values = random.normal(size=weight.shape) * 0.5
        if weight.name == "embeddings":
            values[model.end_id] *= 0.1  # an end token is unlikely
        weight.assign(values)
    out = run(model, beam, 7)
    for row, source in enumerate(SOURCES):
        expected = reference_beam(model, source, beam, 7, [1, 3, 4, 5, 6, 7, 8])
        for found, (ids, score, _) in enumerate(expected):
            assert tuple(out.ids[row, found, : out.lengths[row, found]]) == ids
            np.testing.assert_allclose(out.scores[row, found], score, rtol=1e-4, atol=1e-4)
    assert out.lengths.max() > 3


@pytest.mark.slow
@pytest.mark.parametrize("early_stopping", ["heuristic", "num_beams"])
def test_early_stopping_and_num_beams_follow_their_definitions(translator, reference_beam, early_stopping):
    model, most = translator(1, 9), 9
    beam = Beam(2, 2.0, "length", early_stopping, num_return=2)
    out = run(model, beam, most)
    for row, source in enumerate(SOURCES):
        expected = reference_beam(model, source, beam, most, [1, 3, 4, 5, 6, 7, 8])
        for found, (ids, _, ranking) in enumerate(expected):
            assert tuple(out.ids[row, found, : out.lengths[row, found]]) == ids
            np.testing.assert_allclose(out.ranking_scores[row, found], ranking, rtol=1e-4, atol=1e-4)
    exact = run(model, Beam(2, 2.0, "length", num_return=2), most)
    assert (exact.ids != out.ids).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"relation": relations.SlidingWindow(2), "layers": 2}, {"num_kv_heads": 2}], ids=str
)
def test_decoder_only_beams_continue_prompts(decoder, reference_beam, options):
    model, beam = decoder(3, **options), Beam(3, num_return=2)
    prompts = np.array([[0, 0, 5, 6, 7], [5, 6, 7, 0, 0], [9, 8, 7, 6, 5], [0, 4, 0, 0, 0]])
    out = run(model, beam, 6, prompts)
    np.testing.assert_array_equal(out.ids[0], out.ids[1])
    for row in (0, 2, 3):
        expected = reference_beam(model, prompts[row], beam, 6, [i for i in range(12) if i != 0])
        for found, (ids, score, _) in enumerate(expected):
            assert tuple(out.ids[row, found, : out.lengths[row, found]]) == ids
            np.testing.assert_allclose(out.scores[row, found], score, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_beam_of_one_equals_greedy(random_transformer):
    model = random_transformer(6)
    sources = np.random.default_rng(0).integers(4, 40, (12, 6))
    greedy = run(model, "greedy", 8, sources)
    out = run(model, Beam(1, 0.6), 8, sources)
    np.testing.assert_array_equal(out.ids, greedy.ids)
    np.testing.assert_array_equal(out.scores, greedy.scores)
    np.testing.assert_allclose(
        out.ranking_scores, greedy.scores / ((5 + greedy.lengths) / 6) ** 0.6, rtol=1e-6
    )
    assert len(set(out.lengths.ravel().tolist())) > 2


@pytest.fixture(scope="module")
def many(random_transformer):
    """A model, sources, and the hypotheses of four beams."""
    model = random_transformer(6)
    sources = np.random.default_rng(0).integers(4, 40, (12, 6))
    sources[::3, 3:] = 0
    return model, sources, run(model, Beam(4, num_return=4), 8, sources, compiled=True)


@pytest.mark.slow
def test_n_best_are_sorted_distinct_and_scored_by_the_model(many, forced):
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
def test_rows_do_not_depend_on_other_rows_and_padding(many):
    model, sources, out = many
    for row in (0, 4):
        single = run(model, Beam(4, num_return=4), 8, sources[row : row + 1, : lengths_of(sources)[row]])
        np.testing.assert_array_equal(single.ids[0], out.ids[row])
    with_padding_row = np.concatenate([sources[:2], np.zeros((1, 6), int), sources[2:]])
    padded = run(model, Beam(4, num_return=4), 8, with_padding_row)
    np.testing.assert_array_equal(np.delete(padded.ids, 2, axis=0), out.ids)
    assert not padded.lengths[2].any()
    assert padded.scores[2, 0] == 0


@pytest.mark.slow
def test_every_mode_and_cache_update_gives_equal_beams(many, modes):
    model, sources, expected = many
    for mode, wrap in modes.items():
        if mode == "xla" and not ON_JAX:
            continue  # the default is `expected`; exports run without XLA
        loop = wrap(lambda ids: generation.generate_ids(model, ids, 8, CACHE, sampler=Beam(4, num_return=4)))
        out = {name: ops.convert_to_numpy(value) for name, value in loop(ops.array(sources)).items()}
        np.testing.assert_array_equal(out["ids"], expected.ids, err_msg=mode)
        np.testing.assert_allclose(out["scores"], expected.scores, rtol=1e-4, atol=1e-4, err_msg=mode)


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
def test_beams_continue_prefixes(translator, forced):
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
