"""Decoding step by step equals one call, for every layer and kind of cache."""

import numpy as np
import pytest

from keras_transformer.layers import S4D, Mamba2, MultiHeadAttention
from keras_transformer.ops import GrowingCache, StaticCache
from keras_transformer.relations import Dilated, SlidingWindow, Strided
from tests.layers.block_makers import decoder_block

from .cases import CLOSE, call, cases, normal, numbers, over
from .layers import ATTENTION

T = 9
X, MEMORY = normal(2, T, 16), normal(2, 4, 16)
CAUSAL = {"num_heads": 4, "key_dim": 4, "relation": "causal"}
BLOCK = {"num_heads": 4, "hidden_dim": 32}
WINDOWS = cases(
    MultiHeadAttention,
    {"num_heads": 4, "key_dim": 4, "position_encoding": "rotary", "num_kv_heads": 2},
    {"query": X},
    {
        "window": {"relation": SlidingWindow(3)},
        "dilated window": {"relation": Dilated(2, 2)},
        "strided window": {"relation": SlidingWindow(4) & Strided(2)},
    },
)
LAYERS = {
    **cases(
        MultiHeadAttention,
        CAUSAL,
        {"query": X},
        {
            "grouped": {"num_kv_heads": 2, "value_dim": 2},
            "plain": {},
            "multi-query": {"num_kv_heads": 1},
            **ATTENTION,
        },
    ),
    **cases(decoder_block, {**BLOCK, "cross": False}, {"inputs": X}, {"decoder-only": {}}, everyday=False),
    **cases(
        decoder_block,
        BLOCK,
        {"inputs": X, "memory": MEMORY, "memory_padding_mask": np.arange(4) < [[2], [4]]},
        {
            "pre": {},
            "post": {"normalization": "post"},
            "rotary, window": {
                "position_encoding": "rotary",
                "num_kv_heads": 2,
                "relation": SlidingWindow(3),
            },
            "gat, relative bias": ATTENTION["gat, relative bias"],
        },
    ),
    **WINDOWS,
    **cases(S4D, {}, {"inputs": X}, {"small": {"state_dim": 4}}),
    **cases(Mamba2, {"num_heads": 4}, {"inputs": X}, {"grouped": {"state_dim": 8, "num_groups": 2}}),
}
# Kinds of cache, with the room that they are given for more tokens.
CACHES = {
    "in place": (StaticCache(), T + 3),
    "compared": (StaticCache(in_place=False), T),
    "growing": (GrowingCache(rolling=False), 0),
    "growing, rolling": (GrowingCache(), 0),
}
PARTS = {"one by one": (1,) * T, "prompt first": (4, 1, 4), "whole": (T,), "in parts": (2, 6, 1)}


def decoded(*ways):
    """Parametrize over caches and parts, the first of them quick."""
    return pytest.mark.parametrize(
        ("cache", "parts"),
        [
            pytest.param(*way, id="-".join(way), marks=[] if way == ways[0] else pytest.mark.slow)
            for way in ways
        ],
    )


def steps(layer, inputs, cache, parts, **options):
    """Return the outputs of a step for each part of the first input, and the last cache."""
    x, *memory = inputs.values()
    kv_cache, room = CACHES[cache]
    mixer = getattr(layer, "self_attention", layer)
    state = mixer.empty_cache(len(x), room, kv_cache=kv_cache)
    options = {"positions": np.broadcast_to(np.arange(T), x.shape[:2]), **options}
    constant, projected = {}, []
    if memory:
        projected = [layer.cross_attention.project(memory[0])]
        constant = {"memory_padding_mask": memory[1]}
    outputs, start = [], 0
    for length in PARTS[parts]:
        now = slice(start, start + length)
        part = {name: value[:, now] for name, value in options.items()}
        output, state = layer.step(
            x[:, now], state, *projected, cache_index=start, kv_cache=kv_cache, **part, **constant
        )
        outputs.append(numbers(output))
        start += length
    return np.concatenate(outputs, axis=1), state


@over(LAYERS)
@decoded(
    ("in place", "prompt first"),
    ("in place", "one by one"),
    ("in place", "whole"),
    ("compared", "one by one"),
    ("compared", "in parts"),
    ("growing", "prompt first"),
    ("growing, rolling", "one by one"),
    ("growing, rolling", "in parts"),
)
def test_steps_equal_one_call(case, cache, parts):
    layer = case.built()
    found, _ = steps(layer, case.inputs, cache, parts)
    np.testing.assert_allclose(found, call(layer, case.inputs), **CLOSE)


@over(LAYERS, slow=("DecoderBlock", "S4D", "Mamba2"))
@decoded(("growing", "prompt first"), ("in place", "one by one"), ("growing, rolling", "in parts"))
@pytest.mark.parametrize("before", [pytest.param(0, marks=pytest.mark.slow), -T], ids=["clipped", "negative"])
def test_rows_padded_on_the_left_equal_unpadded_rows(case, cache, parts, before):
    layer, lengths = case.built(), (T, 4)
    positions = np.arange(T) - [[T - length] for length in lengths]
    real = positions >= 0
    padded = {
        **case.inputs,
        next(iter(case.inputs)): np.where(real[..., None], X, 50 * normal(*X.shape, seed=5)),
    }
    found, _ = steps(layer, padded, cache, parts, positions=np.maximum(positions, before), padding_mask=real)
    for row, length in enumerate(lengths):
        single = {name: value[row : row + 1] for name, value in case.inputs.items()}
        single[next(iter(single))] = X[row : row + 1, T - length :]
        np.testing.assert_allclose(found[row, T - length :], call(layer, single)[0], **CLOSE)


@over(WINDOWS)
@decoded(("in place", "prompt first"), ("compared", "in parts"), ("growing, rolling", "one by one"))
def test_a_window_needs_a_cache_of_its_own_size(case, cache, parts):
    layer = case.built()
    kv_cache, _ = CACHES[cache]
    size = layer.relation.bandwidth()[0] + 1
    assert layer.empty_cache(2, 100, kv_cache=kv_cache)["key"].shape[-2] == size
    _, state = steps(layer, case.inputs, cache, parts)
    assert state["key"].shape[-2] == size
