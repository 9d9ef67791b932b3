"""Per-row limits and noise, which change between calls without compiling again."""

import keras
import numpy as np
import pytest

from keras_transformer import generation
from keras_transformer.generation import (
    BannedWords,
    Beam,
    Contrastive,
    ForcedLastToken,
    MinNewTokens,
    Sample,
    Speculative,
)
from keras_transformer.generation.constraints import FORBIDDEN, History
from keras_transformer.generation.logits_processors import LogitsProcessors
from keras_transformer.generation.search import categorical

from .reference import decoder, traced_searches

pytestmark = pytest.mark.backend_neutral

ON_JAX = keras.backend.backend() == "jax"
SOURCES = np.random.default_rng(0).integers(4, 40, (5, 6))
LIMITS = np.array([1, 6, 3, 11, 4])


@pytest.fixture(scope="module")
def model(random_transformer):
    return random_transformer(6)


FIRST, THREE = [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("constraints", "minimums", "forbidden"),
    [
        ((), None, [FIRST, FIRST, FIRST]),
        ((), [0, 2, 3], [FIRST, FIRST, THREE]),
        ((MinNewTokens(2), MinNewTokens(1)), None, [FIRST, FIRST, FIRST]),
        ((MinNewTokens(2), MinNewTokens(1)), [0, 2, 3], [FIRST, FIRST, THREE]),
        ((MinNewTokens(1), MinNewTokens(3)), None, [THREE, THREE, THREE]),
        ((MinNewTokens(3),), [0, 2, 3], [THREE, THREE, THREE]),
    ],
    ids=repr,
)
def test_end_tokens_are_forbidden_before_the_minimum_of_each_row(constraints, minimums, forbidden):
    processors = LogitsProcessors(constraints=constraints, end_ids=(1, 2), never=(0,))
    minimums = None if minimums is None else np.array(minimums)
    history = History(np.zeros((3, 2, 4), "int32"), 2, (1, 2), minimums=minimums)
    logits = np.random.default_rng(0).normal(size=(3, 2, 5)).astype("float32")
    found = keras.ops.convert_to_numpy(processors(logits, history))
    forbidden = np.array(forbidden, bool)[:, None]
    np.testing.assert_array_equal(found <= FORBIDDEN / 2, np.broadcast_to(forbidden, found.shape))
    np.testing.assert_array_equal(found[found > FORBIDDEN / 2], logits[found > FORBIDDEN / 2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    ["greedy", Beam(3), Sample(2.0, seed=0), Contrastive(3), "speculative"],
    ids=lambda value: str(value)[:11],
)
def test_the_forced_last_token_is_at_the_limit_of_each_row(model, random_transformer, sampler):
    sampler = Speculative(random_transformer(7), 3) if sampler == "speculative" else sampler
    constraints = [ForcedLastToken([model.end_id]), BannedWords([[5, 6]])]
    out = generation.generate(model, SOURCES, sampler, max_new_tokens=LIMITS, constraints=constraints)
    plain = generation.generate(model, SOURCES, sampler, max_new_tokens=LIMITS, constraints=constraints[1:])
    for row, limit in enumerate(LIMITS):
        length = out.lengths[row, 0]
        assert out.ids[row, 0, length - 1] == model.end_id
        assert length <= limit
        if sampler != Beam(3):
            np.testing.assert_array_equal(out.ids[row, 0, : limit - 1], plain.ids[row, 0, : limit - 1])
    assert (plain.ids != out.ids).any()


@pytest.mark.slow
def test_different_limits_seeds_and_noise_do_not_recompile(random_transformer, monkeypatch):
    traced = traced_searches(monkeypatch)
    model = random_transformer(6)
    for limits in (LIMITS, [5, 5, 5, 5, 9], np.full(7, 12)):
        ids = np.resize(SOURCES, (len(limits), 6))
        assert generation.generate(model, ids, max_new_tokens=limits).ids.shape == (
            len(limits),
            1,
            max(limits),
        )
    for most in (9, 10, 16):
        assert generation.generate(model, ids, max_new_tokens=most).ids.shape == (len(ids), 1, most)
    assert len(traced) == 1
    for _ in range(2):
        noise = np.random.default_rng(len(traced)).random((5, 1, 6))
        generation.generate(model, SOURCES, "sample", max_new_tokens=6, noise=noise)
    assert len(traced) == 2
    drawn = [
        generation.generate(model, SOURCES, Sample(seed=seed), max_new_tokens=6).ids
        for seed in (0, 1, 2**32 - 1, 0)
    ]
    assert len(traced) == 3
    np.testing.assert_array_equal(drawn[0], drawn[3])
    assert (drawn[0] != drawn[1]).any()
    assert (drawn[1] != drawn[2]).any()


@pytest.mark.slow
def test_noise_drawn_from_a_seed_equals_the_seed(model):
    sampler = Sample(1.5, seed=11, num_return=2)
    expected = generation.generate(model, SOURCES, sampler, max_new_tokens=6)
    noise = keras.ops.convert_to_numpy(categorical.uniform(11, np.arange(5), 2, np.arange(6)))
    other = Sample(1.5, seed=12, num_return=2)
    out = generation.generate(model, SOURCES, other, max_new_tokens=6, noise=noise)
    np.testing.assert_array_equal(out.ids, expected.ids)


@pytest.mark.parametrize("limits", [[0, 5, 5, 5, 5], [5, 5], [-1] * 5, [1.5] * 5, [[5] * 5]], ids=str)
def test_invalid_limits_are_rejected(model, limits):
    with pytest.raises(ValueError, match=r"`max_new_tokens` must .*Received: "):
        generation.generate(model, SOURCES, max_new_tokens=limits)


@pytest.mark.slow
def test_limits_must_be_compatible_with_other_settings(model):
    with pytest.raises(ValueError, match="`min_new_tokens` must be at most `max_new_tokens`"):
        generation.generate(model, SOURCES, max_new_tokens=LIMITS, constraints=[MinNewTokens(2)])
    with pytest.raises(ValueError, match="`limits` must be in"):
        generation.Generator(model, max_new_tokens=4)(SOURCES, limits=LIMITS)
    bounded = decoder(max_length=8)  # the limit determines the noise shape, not the compiled size
    assert generation.generate(bounded, [[5, 5, 5]], max_new_tokens=[6]).ids.shape == (1, 1, 6)
    with pytest.raises(ValueError, match="`source_ids` must have at most 3 tokens"):
        generation.generate(bounded, [[5, 5, 5, 5]], max_new_tokens=[6])


@pytest.mark.parametrize("shape", [(5, 1, 5), (4, 1, 6), (5, 2, 6), (5, 6), (5, 1, 6, 40)], ids=str)
def test_noise_of_wrong_shape_is_rejected(model, shape):
    with pytest.raises(ValueError, match=r"`noise` must be numbers in .*Received: noise.shape="):
        generation.generate(model, SOURCES, "sample", max_new_tokens=6, noise=np.zeros(shape))


@pytest.mark.parametrize(
    ("noise", "received"),
    [
        (np.full((5, 1, 6), 2.0), "noise from 2.0 to 2.0"),
        (np.full((5, 1, 6), np.nan), "noise from nan to nan"),
        ("x", "x"),
        ([[1], [1, 2]], r"\[\[1\], \[1, 2\]\]"),
    ],
    ids=["range", "nan", "text", "ragged"],
)
def test_noise_errors_name_type_range_or_shape(model, noise, received):
    with pytest.raises(
        ValueError, match=rf"`noise` must be numbers in \[0, 1\] of shape .*Received: {received}"
    ):
        generation.generate(model, SOURCES, "sample", max_new_tokens=6, noise=noise)
    with pytest.raises(ValueError, match="`noise` must be None"):
        generation.generate(model, SOURCES, max_new_tokens=6, noise=noise)
