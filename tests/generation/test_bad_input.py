import numpy as np
import pytest
from keras import ops

from keras_transformer import generation
from keras_transformer.generation import (
    Beam,
    Ensemble,
    ForcedWords,
    NoRepeatNGram,
    Speculative,
    generate,
    score,
)

from .reference import decoder, translator

pytestmark = pytest.mark.backend_neutral


def test_targets_with_padding_inside_are_rejected():
    for target in ([0, 5], [5, 0, 6]):
        with pytest.raises(ValueError, match=r"`target_ids` must have padding after .*row 1"):
            score(decoder(), [[5], [5]], [[6] * len(target), target])
    assert score(decoder(), [[5]], [[6, 0, 0]]).lengths == [1]


def test_the_nan_logits_error_names_row_and_step_when_scoring():
    class Broken:
        """A model that gives NaN logits after token 7."""

        vocabulary_size, pad_id, end_id, variables = 12, 0, 3, []

        def empty_cache(self, batch_size, length, **options):
            return ops.zeros((batch_size, 1))

        def step(self, ids, cache, **options):
            logits = ops.zeros((*ids.shape, 12))
            return ops.where(ops.equal(ids, 7)[..., None], float("nan"), logits), cache

    with pytest.raises(ValueError, match=r"finite logits. Received: .* row 1 at step 2"):
        generation.score(Broken(), [[4], [4]], [[5, 6, 5], [5, 7, 5]])
    assert np.isfinite(generation.score(Broken(), [[4]], [[5, 6, 7]]).scores).all()


@pytest.mark.slow_variants
@pytest.mark.parametrize("seed", [-1, 2**32, "a", 1.5, True], ids=repr)
def test_invalid_seeds_are_rejected(seed):
    run = generation.Generator(decoder(), generation.Sample(), 3)
    with pytest.raises(
        ValueError, match=rf"`seed` must be an integer in \[0, 2\*\*32\). Received: seed={seed!r}"
    ):
        run([[5]], seed=seed)


@pytest.mark.slow_variants
@pytest.mark.parametrize("most", [9, [9], 2**31], ids=str)
def test_max_new_tokens_beyond_max_length_is_rejected(most):
    with pytest.raises(ValueError, match=r"`max_new_tokens` must be at most .*Received: max_new_tokens="):
        generate(decoder(max_length=8), [[5, 6]], max_new_tokens=most)
    assert generate(decoder(max_length=8), [[5]], max_new_tokens=8).ids.shape == (1, 1, 8)


def test_the_error_names_the_model_with_too_few_positions():
    long, short = decoder(max_length=32), decoder(max_length=8)
    cases = {
        "the draft": (long, Speculative(short)),
        r"models\[1\]": (Ensemble([long, short]), "greedy"),
    }
    for holder, (model, sampler) in cases.items():
        for prompt, name, most in (([[5] * 7], "source_ids", 4), ([[5]], "max_new_tokens", 9)):
            with pytest.raises(ValueError, match=rf"`{name}` must .*because {holder} has 8 positions"):
                generate(model, prompt, sampler, max_new_tokens=most)


@pytest.mark.slow_variants
@pytest.mark.parametrize("function", [score, generation.align], ids=["score", "align"])
def test_target_with_empty_source_is_rejected(function):
    model = translator(0, 9)
    for sources in ([[5, 6], [0, 0]], np.zeros((2, 0), int)):
        with pytest.raises(ValueError, match=r"`source_ids` must have a token in each row. .*row"):
            function(model, sources, [[5, 3], [5, 3]])
    if function is score:  # an empty source generates nothing
        assert score(model, [[5, 6], [0, 0]], [[5, 3], [0, 0]]).scores[1] == 0


def test_sources_with_padding_before_their_tokens_are_rejected():
    """Padding would move the positions of the tokens; prompts of a decoder-only model have none."""
    call = {
        "generate": lambda model, ids, **options: generate(model, ids, max_new_tokens=2, **options),
        "score": lambda model, ids, **options: score(model, ids, [[5, 3]] * len(ids), **options),
        "align": lambda model, ids, **options: generation.align(model, ids, [[5, 3]] * len(ids), **options),
        "stream": lambda model, ids, **options: list(
            generation.stream(model, ids, max_new_tokens=2, **options)
        ),
    }
    for name, function in call.items():
        with pytest.raises(ValueError, match=r"`source_ids` of an encoder–decoder .* padding after .*row 1"):
            function(translator(0, 9), [[5, 6], [0, 7]])
        if name != "align":
            with pytest.raises(
                ValueError, match=r"`source_ids` of an encoder–decoder .* padding after .*row 0"
            ):
                function(translator(0, 9), [[5, 6]], padding_mask=[[False, True]])
    hole = generate(translator(0, 9), [[5, 6, 7]], max_new_tokens=2, padding_mask=[[True, False, True]])
    assert hole.ids.shape == (1, 1, 2)  # a mask within the tokens moves nothing
    generate(decoder(max_length=8), [[0, 5], [5, 6]], max_new_tokens=2)


@pytest.mark.parametrize("prefix", [[5, 0, 6], [0, 5, 0, 6], [5, 0, 0, 6, 0]], ids=str)
def test_prefixes_with_padding_between_tokens_are_rejected(prefix):
    with pytest.raises(ValueError, match=r"`prefix_ids` must have padding before .*row 1"):
        generate(translator(0, 9), [[5], [5]], prefix_ids=[[5] * len(prefix), prefix])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("constraints", "least"),
    [
        ([ForcedWords([[5, 6], [5, 7]]), NoRepeatNGram(1)], 0),
        ([NoRepeatNGram(1), generation.BannedWords([[5]])], 7),
    ],
    ids=["words that exclude each other", "too few tokens"],
)
def test_unsatisfiable_constraints_are_rejected(constraints, least):
    model = translator(0, 9)
    with pytest.raises(
        ValueError, match=r"`constraints` must allow a sequence.*Received: no sequence for row 0"
    ):
        generate(model, [[4, 5]], Beam(3), max_new_tokens=8, min_new_tokens=least, constraints=constraints)
    assert generate(model, [[0, 0]], Beam(3), max_new_tokens=8, constraints=constraints).lengths == 0
