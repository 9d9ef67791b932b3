import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import generation
from keras_transformer.generation import (
    BannedWords,
    ForcedPrefix,
    NoRepeatNGram,
    RepetitionPenalty,
    Speculative,
)

from .reference import decoder, translator

pytestmark = pytest.mark.backend_neutral

ON_JAX = keras.backend.backend() == "jax"
PROMPTS = np.array([[5, 6, 7, 8, 9], [0, 0, 4, 5, 6], [4, 5, 6, 0, 0], [0, 7, 7, 0, 0], [9, 0, 0, 0, 0]])
SOURCES = np.random.default_rng(0).integers(4, 40, (6, 6))
SOURCES[2] = 0


def run(model, sampler, most, ids, *, compiled=ON_JAX, constraints=(), **given):
    return generation.Generator(model, sampler, most, jit_compile=compiled, constraints=constraints)(
        ids, **given
    )


def check_same(found, expected):
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_allclose(found.token_scores, expected.token_scores, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "start_id", [0, 2], ids="start_id={}".format
)  # the start token of T5 has the padding id
def test_drafting_past_the_limit_does_not_change_ids(random_transformer, start_id):
    model = random_transformer(6, end_factor=0.0, start_id=start_id)
    expected = run(model, "greedy", 7, SOURCES)
    assert (expected.lengths[:, 0] == 7).sum() > 2
    check_same(run(model, Speculative(model, 4), 7, SOURCES), expected)


@pytest.mark.slow
def test_constraints_prefixes_and_limits_are_respected(random_transformer):
    model, draft = random_transformer(6), random_transformer(7)
    constraints = [
        NoRepeatNGram(2),
        BannedWords([[17, 18], [9]]),
        RepetitionPenalty(1.3),
        ForcedPrefix([12, 13]),
        generation.MinNewTokens(4),
    ]
    given = {
        "prefix_ids": np.array([[6, 7], [0, 8], [0, 0], [5, 0], [0, 0], [9, 9]]),
        "limits": np.array([9, 4, 5, 7, 9, 5]),
    }
    expected = run(model, "greedy", 9, SOURCES, constraints=constraints, **given)
    for each in (model, draft):
        check_same(run(model, Speculative(each, 3), 9, SOURCES, constraints=constraints, **given), expected)


@pytest.mark.slow
def test_a_correct_draft_saves_steps(random_transformer):
    if ON_JAX:
        pytest.skip("JAX traces the body once for any number of steps")
    model = random_transformer(6)

    class Counted:
        vocabulary_size, pad_id, start_id, end_id = 40, model.pad_id, model.start_id, model.end_id
        encode, empty_cache = model.encode, model.empty_cache

        def step(self, *arguments, **options):
            steps.append(1)
            return model.step(*arguments, **options)

    steps = []
    max_length = int(run(model, "greedy", 9, SOURCES).lengths.max())
    generation.generate_ids(Counted(), ops.array(SOURCES), 9, sampler=Speculative(model, 3))
    assert len(steps) == -(-max_length // 4)
    worst = random_transformer(9)
    steps = []
    generation.generate_ids(Counted(), ops.array(SOURCES), 9, sampler=Speculative(worst, 3))
    assert len(steps) <= max_length


@pytest.mark.slow
def test_positions_stay_within_max_length():
    asked = []
    model, draft = decoder(5, max_length=10), decoder(6, max_length=10)
    original = draft.step
    draft.step = lambda ids, cache, **options: (
        asked.append(options["positions"]) or original(ids, cache, **options)
    )
    if ON_JAX:
        pytest.skip("positions are symbols")
    generation.generate_ids(model, ops.array(PROMPTS), 6, sampler=Speculative(draft, 4))
    assert max(int(ops.max(positions)) for positions in asked) < 10


INVALID = {
    "draft of another vocabulary": (
        lambda decoder, _: run(decoder(5), Speculative(decoder(5, vocabulary_size=13)), 5, PROMPTS),
        r"`draft` must .*Received: ",
    ),
    "draft with an encoder": (
        lambda decoder, translator: run(decoder(5), Speculative(translator(0, 12)), 5, PROMPTS),
        r"`draft` must .*Received: ",
    ),
    "num_tokens": (
        lambda decoder, _: Speculative(decoder(5), 0),
        "`num_tokens` must be a positive integer",
    ),
    "serialize": (
        lambda decoder, _: generation.samplers.serialize(Speculative(decoder(5))),
        "`sampler` must be serializable",
    ),
    "stream": (
        lambda decoder, _: generation.stream(decoder(5), PROMPTS, Speculative(decoder(6))),
        "`sampler` must have a single hypothesis",
    ),
    "forced words": (
        lambda decoder, _: run(
            decoder(5), Speculative(decoder(6)), 5, PROMPTS, constraints=[generation.ForcedWords([[4]])]
        ),
        "`sampler` must be a `Beam`",
    ),
}


@pytest.mark.parametrize(("call", "message"), INVALID.values(), ids=INVALID)
def test_invalid_drafts_and_settings_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call(decoder, translator)
