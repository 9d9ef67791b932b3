import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation
from keras_transformer.generation import Sample
from keras_transformer.generation.constraints import FORBIDDEN
from keras_transformer.generation.search import categorical
from keras_transformer.generation.search.logits import choose

pytestmark = pytest.mark.backend_neutral

ON_JAX = keras.backend.backend() == "jax"
LOGITS = np.array([2.0, 1.5, 1.5, 0.3, -0.5, -2.0, -1e30, 0.3], np.float32)
ALL = set(range(8)) - {6}


def draws(sampler, count=20_000):
    """Draw ids from `LOGITS`, one for each of `count` rows."""
    noise = categorical.uniform(sampler.seed, ops.arange(count), 1, 0)
    logits = ops.broadcast_to(ops.array(LOGITS), (count, 1, 8))
    return ops.convert_to_numpy(categorical.draw(logits, sampler, sampler.temperature, noise))[:, 0]


@pytest.mark.parametrize("vocabulary_size", [5, 40, 150])
def test_an_id_of_the_vocabulary_is_drawn_where_all_tokens_are_forbidden(vocabulary_size):
    logits = ops.full((2, 1, vocabulary_size), FORBIDDEN)
    found = categorical.draw(logits, Sample(seed=0), 1.0, ops.array([[0.3], [1.0]]))
    assert (ops.convert_to_numpy(found) < vocabulary_size).all()
    np.testing.assert_allclose(choose(logits, found), FORBIDDEN)


def softmax(logits):
    shares = np.exp(logits - logits.max())
    return shares / shares.sum()


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, ALL),
        ({"temperature": 0.7}, ALL),
        ({"temperature": 2.0}, ALL),
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1, 2}),  # a tie with the second
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 100}, ALL),
        ({"top_p": 0.01}, {0}),
        ({"top_p": 0.6}, {0, 1, 2}),
        ({"top_p": 1.0}, ALL),
        ({"min_p": 0.5}, {0, 1, 2}),
        ({"min_p": 0.1}, {0, 1, 2, 3, 7}),
        ({"min_p": 1.0}, {0}),
        ({"temperature": 3.0, "min_p": 0.5}, {0, 1, 2, 3, 7}),
        ({"top_k": 5, "top_p": 0.95, "min_p": 0.05}, {0, 1, 2, 3, 7}),
    ],
    ids=str,
)
def test_sample_frequencies_follow_the_filtered_distribution(settings, kept):
    sampler = Sample(seed=5, **settings)
    found = np.bincount(draws(sampler), minlength=8)
    filtered = np.where(np.isin(np.arange(8), [*kept]), LOGITS / sampler.temperature, -np.inf)
    expected = softmax(filtered) * found.sum()
    assert set(np.flatnonzero(found)) <= kept
    used = expected > 0
    chi_square = ((found - expected)[used] ** 2 / expected[used]).sum()
    assert chi_square < 24.3  # 0.1 % of draws are above it with 7 degrees of freedom, fewer with fewer


@pytest.mark.parametrize("size", [1, 2, 3, 97, 4000])
def test_draws_invert_the_cumulative_distribution(size):
    random = np.random.default_rng(size)
    logits = random.normal(0, 3, (64, 1, size)).astype("float32")
    logits[:, :, random.random(size) < 0.3] = FORBIDDEN
    logits[:, :, random.integers(size)] = 0.0
    weights = np.where(logits > FORBIDDEN / 2, np.exp(logits.astype("float64")), 0)
    cumulated = weights.cumsum(-1) / weights.sum(-1, keepdims=True)
    noise = random.random((64, 1)).astype("float32")
    noise[:4, 0] = 0, 1, 2**-24, 1 - 2**-24
    found = ops.convert_to_numpy(categorical.draw(ops.array(logits), Sample(), 1.0, ops.array(noise)))
    assert (np.take_along_axis(weights, found[..., None], axis=-1) > 0).all()
    before = np.where(np.arange(size) < found[..., None], weights, 0).sum(-1) / weights.sum(-1)
    after = np.take_along_axis(cumulated, found[..., None], axis=-1)[..., 0]
    assert (before - 1e-5 <= noise).all()
    assert (noise <= after + 1e-5).all()


def test_noise_is_uniform_and_equal_in_every_mode(modes):
    def make(rows):
        return categorical.uniform(7, rows, 30, ops.arange(25))

    expected = None
    for wrap in modes.values():
        found = ops.convert_to_numpy(wrap(make)(ops.arange(40)))
        expected = found if expected is None else expected
        np.testing.assert_array_equal(found, expected)
    assert expected.shape == (40, 30, 25)
    assert 0 < expected.min() < expected.max() < 1
    shares = np.histogram(expected, 20, (0, 1))[0] / expected.size
    np.testing.assert_allclose(shares, 0.05, atol=0.006)
    assert len(np.unique(expected)) > 0.99 * expected.size
    np.testing.assert_array_equal(
        ops.convert_to_numpy(categorical.uniform(7, ops.array([3]), 30, 4))[0], expected[3, :, 4]
    )
    other = ops.convert_to_numpy(categorical.uniform(8, ops.arange(40), 30, ops.arange(25)))
    assert (other != expected).mean() > 0.99


@pytest.fixture(scope="module")
def model(random_transformer):
    return random_transformer(6)


SOURCES = np.random.default_rng(0).integers(4, 40, (9, 6))
SAMPLER = Sample(temperature=1.5, top_p=0.95, seed=11, num_return=3)


@pytest.fixture(scope="module")
def expected(model):
    return generation.Generator(model, SAMPLER, 8)(SOURCES)


@pytest.mark.slow
def test_a_seed_reproduces_rows_in_any_batch(model, expected):
    assert len({tuple(ids) for row in expected.ids for ids in row}) > 20
    run = generation.Generator(model, SAMPLER, 8, jit_compile=ON_JAX)
    for size in (1, 3, 9):
        np.testing.assert_array_equal(run(SOURCES[:size]).ids, expected.ids[:size])
    rows = np.array([7, 2])
    np.testing.assert_array_equal(run(SOURCES[rows], rows=rows).ids, expected.ids[rows])
    assert (run(SOURCES[rows]).ids != expected.ids[rows]).any()
    other = generation.Generator(model, Sample(1.5, top_p=0.95, seed=12, num_return=3), 8, jit_compile=ON_JAX)
    assert (other(SOURCES).ids != expected.ids).any()
    fewer = generation.Generator(model, Sample(1.5, top_p=0.95, seed=11), 8, jit_compile=ON_JAX)
    np.testing.assert_array_equal(fewer(SOURCES).ids, expected.ids[:, :1])


@pytest.mark.slow
def test_noise_replaces_the_seed(model, expected):
    noise = categorical.uniform(SAMPLER.seed, ops.arange(9), 3, ops.arange(8))
    other = Sample(temperature=1.5, top_p=0.95, seed=99, num_return=3)
    out = generation.generate_ids(model, ops.array(SOURCES), 8, sampler=other, noise=noise)
    np.testing.assert_array_equal(ops.convert_to_numpy(out["ids"]), expected.ids)


@pytest.mark.slow
def test_per_row_minimums_temperatures_and_seeds_equal_the_settings(model):
    minimums, temperatures = np.array([0, 8, 3], "int32"), np.array([0.5, 1.0, 3.0], "float32")
    seeds, sources = np.array([4, 4, 9], "int32"), ops.array(SOURCES[:3])
    same = {
        "minimums": ops.array(minimums),
        "temperatures": ops.array(temperatures),
        "seed": ops.array(seeds),
    }
    found = generation.generate_ids(model, sources, 8, sampler=Sample(2.0, seed=1), **same)
    found = {name: ops.convert_to_numpy(values) for name, values in found.items()}
    assert found["lengths"][1, 0] == 8
    for row in range(3):
        sampler = Sample(float(temperatures[row]), seed=int(seeds[row]))
        expected = generation.generate_ids(
            model,
            sources[row : row + 1],
            8,
            sampler=sampler,
            min_new_tokens=int(minimums[row]),
            rows=ops.array([row]),
        )
        np.testing.assert_array_equal(found["ids"][row], ops.convert_to_numpy(expected["ids"])[0])


@pytest.mark.slow
def test_calls_without_a_seed_draw_a_new_one_and_return_it(model):
    sources, sampler = SOURCES[:2], Sample(temperature=3.0, num_return=2)

    def run(sampler):
        return generation.generate(model, sources, sampler, max_new_tokens=4)

    first, second = run(sampler), run(sampler)
    assert first.seed != second.seed
    assert (first.ids != second.ids).any()
    repeated = run(dataclasses.replace(sampler, seed=first.seed))
    np.testing.assert_array_equal(repeated.ids, first.ids)
    assert repeated.seed == first.seed
    drawn = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        drawn.append(run(sampler).seed)
    assert drawn[0] == drawn[1]


def test_invalid_rows_are_rejected(model):
    with pytest.raises(ValueError, match=r"`rows` must .*Received: "):
        generation.generate(model, SOURCES, SAMPLER, rows=[1, 2])
