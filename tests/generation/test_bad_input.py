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

pytestmark = pytest.mark.backend_neutral


class Ragged:
    """Rows as `tf.RaggedTensor` has them."""

    row_splits = (0, 1, 3)


NOT_GENERATIVE = r"must have `step` and `empty_cache`.*Received: a "
UNEQUAL = r"`source_ids` must have rows of equal length"
BEYOND_INT32 = r"`max_new_tokens` must be at most .*Received: max_new_tokens=2147483648"
REFUSED = {
    "model": (lambda decoder: generate(None, [[5]]), TypeError, f"`model` {NOT_GENERATIVE}NoneType"),
    "models is no list": (
        lambda decoder: Ensemble(decoder()),
        TypeError,
        r"`models` must be a list.*Received: a ",
    ),
    **{
        f"models=[{name}]": (
            lambda decoder, member=member: Ensemble([member]),
            TypeError,
            f"`models` {NOT_GENERATIVE}",
        )
        for name, member in {"text": "a", "None": None, "object": object()}.items()
    },
    **{
        f"draft={draft}": (
            lambda decoder, draft=draft: Speculative(draft),
            TypeError,
            f"`draft` {NOT_GENERATIVE}",
        )
        for draft in ("x", None)
    },
    "ragged list": (
        lambda decoder: generate(decoder(), [[5], [5, 6]]),
        ValueError,
        rf"{UNEQUAL}.*Received: \[\[5\], \[5, 6\]\]",
    ),
    "ragged tensor": (lambda decoder: generate(decoder(), Ragged()), ValueError, UNEQUAL),
    "early_stopping": (
        lambda decoder: Beam(4, early_stopping="never"),
        ValueError,
        r"`early_stopping` must be True, False or one of .*Received: .*never",
    ),
    "padding as end token": (
        lambda decoder: generate(decoder(), [[5]], constraints=[generation.EndTokens([0, 4])]),
        ValueError,
        r"end tokens that are not padding. Received: .*pad_id=0",
    ),
    **{
        f"row {row}": (
            lambda decoder, row=row: generate(decoder(), [[5]], "sample", rows=np.array([row])),
            ValueError,
            r"`rows` must be in \[0, 2147483647\]. Received: rows from",
        )
        for row in (-1, 2**31, 2**32)
    },
    **{
        f"rows, {name}": (
            lambda decoder, sampler=sampler: generate(decoder(), [[5]], sampler, rows="abc"),
            ValueError,
            r"`rows` must be integers of shape",
        )
        for name, sampler in {"greedy": "greedy", "beam": Beam(2), "sample": generation.Sample()}.items()
    },
    "max_new_tokens of generate": (
        lambda decoder: generate(decoder(), [[5]], max_new_tokens=2**31),
        ValueError,
        BEYOND_INT32,
    ),
    "max_new_tokens of stream": (
        lambda decoder: generation.stream(decoder(), [[5]], max_new_tokens=2**31),
        ValueError,
        BEYOND_INT32,
    ),
    "jit_compile": (
        lambda decoder: generation.Generator(decoder(), jit_compile="x"),
        ValueError,
        r"`jit_compile` must be True or False. Received: jit_compile='x'",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_arguments_are_refused(decoder, call, error, message):
    with pytest.raises(error, match=message):
        call(decoder)


def test_targets_with_padding_before_token_are_refused(decoder):
    for target in ([0, 5], [5, 0, 6]):
        with pytest.raises(ValueError, match=r"`target_ids` must have padding after .*row 1"):
            score(decoder(), [[5], [5]], [[6] * len(target), target])
    assert score(decoder(), [[5]], [[6, 0, 0]]).lengths == [1]


def test_nan_logits_error_names_row_and_step_when_scoring():
    class Broken:
        """After 7 comes NaN."""

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
def test_invalid_seeds_are_refused(decoder, seed):
    run = generation.Generator(decoder(), generation.Sample(), 3)
    with pytest.raises(
        ValueError, match=rf"`seed` must be an integer in \[0, 2\*\*32\). Received: seed={seed!r}"
    ):
        run([[5]], seed=seed)


@pytest.mark.slow_variants
@pytest.mark.parametrize("most", [9, [9], 2**31], ids=str)
def test_max_new_tokens_beyond_max_length_is_refused(decoder, most):
    with pytest.raises(ValueError, match=r"`max_new_tokens` must be at most .*Received: max_new_tokens="):
        generate(decoder(max_length=8), [[5, 6]], max_new_tokens=most)
    assert generate(decoder(max_length=8), [[5]], max_new_tokens=8).ids.shape == (1, 1, 8)


def test_error_names_the_model_with_too_few_positions(decoder):
    long, short = decoder(max_length=32), decoder(max_length=8)
    cases = {
        "the draft": (long, Speculative(short)),
        r"models\[1\]": (Ensemble([long, short]), "greedy"),
    }
    for holder, (model, sampler) in cases.items():
        for prompt, name, most in (([[5] * 7], "source_ids", 4), ([[5]], "max_new_tokens", 9)):
            with pytest.raises(ValueError, match=rf"`{name}` must .*for {holder} has 8 positions"):
                generate(model, prompt, sampler, max_new_tokens=most)


@pytest.mark.slow_variants
@pytest.mark.parametrize("function", [score, generation.align], ids=["score", "align"])
def test_target_with_empty_source_is_refused(translator, function):
    model = translator(0, 9)
    for sources in ([[5, 6], [0, 0]], np.zeros((2, 0), int)):
        with pytest.raises(ValueError, match=r"`source_ids` must have a token in each row. .*row"):
            function(model, sources, [[5, 3], [5, 3]])
    if function is score:  # nothing is what is generated for no source
        assert score(model, [[5, 6], [0, 0]], [[5, 3], [0, 0]]).scores[1] == 0


@pytest.mark.parametrize("prefix", [[5, 0, 6], [0, 5, 0, 6], [5, 0, 0, 6, 0]], ids=str)
def test_prefixes_with_padding_between_tokens_are_refused(translator, prefix):
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
def test_unsatisfiable_constraints_are_refused(translator, constraints, least):
    model = translator(0, 9)
    with pytest.raises(
        ValueError, match=r"`constraints` must allow a sequence.*Received: no sequence for row 0"
    ):
        generate(model, [[4, 5]], Beam(3), max_new_tokens=8, min_new_tokens=least, constraints=constraints)
    assert generate(model, [[0, 0]], Beam(3), max_new_tokens=8, constraints=constraints).lengths == 0
