"""The models on which laws of generation are tested: a row for each."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from keras import ops

from keras_transformer import relations
from keras_transformer.generation import Ensemble
from keras_transformer.models import GPT, T5, Transformer, Unlimiformer
from tests.generation.hybrids import HYBRIDS, hybrid
from tests.generation.reference import decoder, random_transformer, randomise, translator

from .models import MODERN

# Sources of different lengths; the first generates nothing.
SOURCES = [[], [5, 3], *np.random.default_rng(3).integers(4, 40, (3, 6)).tolist(), [17] * 9]
SHORT_SOURCES = [[4, 5, 4, 3], [5, 3], [4, 4, 5, 5], [5, 3, 4]]
PROMPTS = [[5, 6, 7, 8, 9], [4, 5, 6], [7, 4, 7], [9]]
WINDOWS = {
    "encoder_relation": relations.SlidingWindow(1, 1),
    "decoder_relation": relations.SlidingWindow(1),
}


@dataclasses.dataclass(frozen=True)
class GenerationCase:
    """A function that creates a model from a seed, and sources or prompts without padding."""

    make: Callable[[int], Any]
    rows: Sequence[Sequence[int]]

    def inputs(self, pad_id, left=False, extra=0):
        """Return the rows padded to the longest and by `extra` columns; the mask if there is no padding id."""
        width = max(map(len, self.rows)) + extra
        ids = np.full((len(self.rows), width), 7 if pad_id is None else pad_id)
        mask = np.zeros(ids.shape, bool)
        for i, row in enumerate(self.rows):
            place = slice(width - len(row), None) if left else slice(len(row))
            ids[i, place], mask[i, place] = row, True
        return {"source_ids": ids, **({"padding_mask": mask} if pad_id is None else {})}


def row(make, rows, quick=False):
    """Return a case and its markers."""
    return GenerationCase(make, rows), [] if quick else [pytest.mark.slow]


def transformer(seed=6, **options):
    """Return a row of an encoder–decoder; other seeds are offsets to `seed`."""
    return row(lambda offset: random_transformer(seed + offset, **options), SOURCES)


def with_block(seed=2, **block):
    """Return a row of an encoder–decoder with a decoder block."""
    return row(lambda offset: translator(seed + offset, 9, **block), SHORT_SOURCES)


def decoder_only(**options):
    """Return a row of a decoder-only model of attention layers."""
    return row(lambda seed: decoder(seed + 5, **options), PROMPTS)


def gpt(seed, **options):
    """Return a decoder-only model."""
    return randomise(GPT(12, 1, 2, 8, **{"max_length": 32, "pad_id": 0, "end_id": 3, **options}), seed, 0.7)


def t5(seed, **options):
    """Return a T5, whose start id is the padding id."""
    sizes = {"num_layers": 2, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "key_dim": 3}
    return randomise(T5(9, **sizes, num_buckets=8, max_distance=6, **options), seed, 0.6)


def with_windows(kind, seed):
    """Return an encoder–decoder with windows in encoder and decoder."""
    sizes = {"num_layers": 2, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "start_id": 2, "end_id": 3}
    return randomise(kind(9, **sizes, **WINDOWS), seed + 2)


class CallableEnsemble(Ensemble):
    """An ensemble with full forward passes."""

    def __call__(self, inputs):
        """Return the logarithm of the mean distribution."""
        members = zip(self.models, self.weights, strict=True)
        return ops.log(sum(weight * ops.softmax(model(inputs)) for model, weight in members))


def ensemble(make):
    """Return a function that creates an ensemble of two models."""
    return lambda seed: CallableEnsemble([make(seed), make(seed + 3)], [3, 1])


GENERATORS = {
    "transformer": row(lambda seed: random_transformer(seed + 6), SOURCES, quick=True),
    "transformer, post": transformer(7, normalization="post"),
    "transformer, two layers": transformer(num_layers=2, num_heads=4, activation="gelu", end_factor=3.0),
    "transformer, shallow decoder": transformer(8, num_layers=2, num_decoder_layers=1, end_factor=3.0),
    "transformer, deep decoder": transformer(5, num_layers=1, num_decoder_layers=2, end_factor=3.0),
    "transformer, other ids": transformer(pad_id=7, start_id=9, end_id=11, end_factor=4.0),
    "transformer, start is padding": transformer(start_id=0),
    "transformer, windows": row(lambda seed: with_windows(Transformer, seed + 1), SHORT_SOURCES),
    "t5": row(lambda seed: t5(seed), SHORT_SOURCES),
    "t5, v1.1": row(lambda seed: t5(seed + 1, activation="geglu_tanh", tied=False), SHORT_SOURCES),
    "t5, windows": row(lambda seed: with_windows(T5, seed), SHORT_SOURCES),
    "unlimiformer": row(lambda seed: Unlimiformer(random_transformer(seed + 6), 2, 4), SOURCES),
    "block": with_block(1),
    "block, grouped heads": with_block(1, num_kv_heads=2),
    "block, window": with_block(relation=relations.SlidingWindow(2)),
    "block, window of one": with_block(relation=relations.SlidingWindow(1), position_encoding="rotary"),
    "block, rotary": with_block(position_encoding="rotary"),
    "block, alibi, rms": with_block(1, position_encoding="alibi", norm="rms"),
    "decoder": row(lambda seed: decoder(seed + 5), PROMPTS, quick=True),
    "decoder, window": decoder_only(relation=relations.SlidingWindow(2), layers=2),
    "decoder, alibi": decoder_only(position_encoding="alibi", num_kv_heads=1),
    "decoder, grouped heads": decoder_only(num_kv_heads=2),
    "gpt": row(gpt, PROMPTS),
    "gpt, modern": row(lambda seed: gpt(seed, **MODERN, num_kv_heads=1), PROMPTS),
    "gpt, window": row(
        lambda seed: gpt(seed, relation=relations.SlidingWindow(2), position_encoding="rotary"), PROMPTS
    ),
    "gpt, no padding id": row(
        lambda seed: gpt(seed + 5, pad_id=None), [[3], [3, 5, 6, 3, 7], [4, 3], [8, 9, 10, 11, 4, 5]]
    ),
    "ensemble": row(ensemble(lambda seed: translator(seed + 1, 9)), SHORT_SOURCES),
    "decoder, ensemble": row(ensemble(lambda seed: decoder(seed + 5)), PROMPTS),
    **{f"hybrid, {name}": row(lambda seed, name=name: hybrid(name, seed), PROMPTS) for name in HYBRIDS},
}
# Models that together have all caches and inputs, for laws that do not depend on the layers.
DIFFERENT = {
    name: GENERATORS[name]
    for name in (
        "transformer",
        "transformer, start is padding",
        "decoder",
        "decoder, window",
        "gpt, no padding id",
        "hybrid, attention",
        "hybrid, hybrid",
    )
}
