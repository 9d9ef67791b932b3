"""Invalid arguments of generation."""

import functools

import numpy as np

from keras_transformer import generation
from keras_transformer.generation import (
    BannedWords,
    Beam,
    Contrastive,
    EndTokens,
    Ensemble,
    ForcedLastToken,
    ForcedPrefix,
    ForcedWords,
    Generator,
    MinNewTokens,
    NoRepeatNGram,
    RepetitionPenalty,
    Sample,
    Speculative,
    Timestamps,
    generate,
)
from keras_transformer.models import GPT, Transformer

from .table import POSITIVE, InvalidCalls, must

invalid = InvalidCalls()
IDS = [[7] * 5] * 2


@functools.cache
def gpt():
    """Return a small decoder-only model."""
    return GPT(40, 1, 2, 8, max_length=16, pad_id=0, end_id=3)


@functools.cache
def transformer():
    """Return a small encoder-decoder."""
    return Transformer(40, 1, 2, 8, 8)


def generated(**options):
    """Generate with a decoder-only model."""
    return generate(gpt(), **{"source_ids": [[5]], "max_new_tokens": 4, **options})


invalid(
    Sample,
    {},
    *[must("be", temperature=value) for value in (0.0, 1e-40, 1e40, float("nan"), "1", True)],
    *[must("be", top_k=top_k) for top_k in (-1, 1.5)],
    *[must("be", top_p=top_p) for top_p in (0.0, 1.1)],
    ({"top_p": np.array([0.5, 0.6])}, "`top_p` must be … Received: "),
    must("be", min_p=-0.1, num_return=0),
    *[must("be an integer in [0, 2**32)", seed=seed) for seed in (-1, 2**32)],
)
invalid(
    Beam,
    {"num_beams": 2},
    *[must("be", num_beams=number) for number in (0, 2.0)],
    *[must("be", num_return=number) for number in (0, 3)],
    *[must("be", length_penalty=penalty) for penalty in (float("nan"), None, True)],
    must("be", normalization="none"),
    must("be", diversity=-1.0),
    must("be True, False or one of", early_stopping="never"),
)
invalid(
    Contrastive,
    {},
    must("be", top_k=0),
    *[must("be", penalty_alpha=alpha) for alpha in (1.1, -0.1, "0.5")],
)
for constraint, argument, values in (
    (MinNewTokens, "count", [-1]),
    (NoRepeatNGram, "size", [0]),
    (RepetitionPenalty, "factor", [0.5, float("nan"), True, "2"]),
    (BannedWords, "words", [[], [[]], [5], ["ab"], 5]),
    (ForcedWords, "words", [[]]),
    (ForcedPrefix, "prefix", [[]]),
    (ForcedLastToken, "token_ids", [[]]),
    (EndTokens, "end_ids", [[-1], [True]]),
    (Timestamps, "no_timestamps_id", [-1, True, "5"]),
):
    invalid(constraint, {}, *[({argument: value}, "`…` must … Received: ") for value in values])


class Ragged:
    """Rows of different lengths, with the interface of `tf.RaggedTensor`."""

    row_splits = (0, 1, 3)


WRONG_IDS = {
    "rank 1": np.zeros(3, int),
    "rank 3": np.zeros((1, 2, 3), int),
    "float": np.zeros((2, 2)),
    "bool": np.ones((2, 2), bool),
    "too large": [[5, 40]],
    "negative": [[5, -1]],
    "scalar": np.array(5),
    "strings": ["hola"],
    "ragged": Ragged(),
}
invalid(
    Timestamps,
    {"no_timestamps_id": 5},
    ({"max_initial": -1}, "`max_initial` must be an integer of at least 0"),
)
invalid(
    generated,
    {},
    *[({"source_ids": ids}, "`source_ids` must … Received: ") for ids in WRONG_IDS.values()],
    ({"source_ids": [[5], [5, 6]]}, "`source_ids` must have rows of equal length… Received: [[5], [5, 6]]"),
    ({"constraints": [EndTokens([0, 4])]}, "…end tokens that are not padding. Received: …pad_id=0"),
    *[
        ({"sampler": sampler, "rows": "abc"}, "`rows` must be integers of shape… Received: rows.shape=")
        for sampler in ("greedy", Beam(2), Sample())
    ],
    *[
        ({"sampler": "sample", "rows": [row]}, "`rows` must be in [0, 2147483647]. Received: rows from")
        for row in (-1, 2**31, 2**32)
    ],
    *[must(POSITIVE, max_new_tokens=most) for most in (0, -1)],
    ({"max_new_tokens": 0, "source_ids": np.zeros((0, 3), int)}, f"`max_new_tokens` must {POSITIVE}"),
    must("be at most", max_new_tokens=2**31),
    *[
        must("…greedy", sampler=sampler)
        for sampler in ("bean", None, 5, {}, {"sampler": "bean"}, {"sampler": ["greedy"]}, ["greedy"], Beam)
    ],
    must("", sampler={"sampler": "greedy", "temperature": 2}),
    name="generate",
)
invalid(
    lambda **options: generate(transformer(), **{"source_ids": IDS, "max_new_tokens": 4, **options}),
    {},
    must("be at most 1048576", max_new_tokens=10**9),
    (
        {"max_new_tokens": [4, 10**9]},
        "`max_new_tokens` must be in [1, 1048576]. Received: max_new_tokens from",
    ),
    must("have at most 16384 hypotheses", sampler=Beam(10**6)),
    name="generate of a Transformer",
)
invalid(
    lambda **options: Generator(gpt(), **options),
    {},
    must(POSITIVE, max_new_tokens=0),
    must(POSITIVE, max_new_tokens=-1),
    must("be True or False", jit_compile="x"),
    name="Generator",
)
invalid(
    lambda **options: generation.stream(gpt(), [[5]], **options),
    {},
    must("be at most", max_new_tokens=2**31),
    must("have a single hypothesis", sampler=Beam(2)),
    ({"sampler": Sample(num_return=2)}, "`sampler` must have a single hypothesis… Received: sampler=Sample("),
    name="stream",
)
invalid(
    lambda sampler: generation.generate_ids(gpt(), np.array(IDS), 2, sampler=sampler),
    {},
    ({"sampler": Sample()}, "`seed` or `noise` must be passed … Received: sampler=Sample("),
    name="generate_ids",
)
GENERATIVE = "have `step` and `empty_cache`… Received: a "
invalid(
    generate, {"source_ids": [[5]]}, ({"model": None}, f"`model` must {GENERATIVE}NoneType"), error=TypeError
)
invalid(
    Ensemble,
    {},
    *[({"models": [member]}, f"`models` must {GENERATIVE}") for member in ("a", None, object())],
    error=TypeError,
)
invalid(
    lambda: Ensemble(gpt()),
    {},
    ({}, "`models` must be a list… Received: a "),
    name="Ensemble",
    error=TypeError,
)
invalid(
    Speculative,
    {},
    *[({"draft": draft}, f"`draft` must {GENERATIVE}") for draft in ("x", None)],
    error=TypeError,
)
