"""Multi-head attention with every position encoding, score, kernel and relation, and its cache."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.ops import (
    RollingCache,
)
from keras_transformer.relations import Adjacency, Causal, SlidingWindow
from tests.laws.cases import CLOSE, normal, randomise
from tests.laws.layers import ATTENTION

neutral = pytest.mark.backend_neutral

LENGTH = 9
variants = pytest.mark.parametrize("options", ATTENTION.values(), ids=ATTENTION)
X = normal(2, LENGTH, 16)


def make(seed=1, **options):
    """Return a layer with random weights and biases, so that no law holds by chance."""
    config = {"num_heads": 4, "key_dim": 4, **options}
    layer = MultiHeadAttention(**MultiHeadAttention(**config).get_config())
    layer.build(X.shape)
    return randomise(layer, seed=seed)


@pytest.mark.slow_variants
@variants
def test_every_kernel_gives_the_same_output(options):
    relation = SlidingWindow(3)
    expected = make(relation=relation, kernel="dense", **options)(X)
    for kernel in ("auto", "chunked", "banded"):
        np.testing.assert_allclose(make(relation=relation, kernel=kernel, **options)(X), expected, **CLOSE)


@neutral
@pytest.mark.parametrize("in_place", [True, False], ids="in_place={}".format)
def test_a_rolling_cache_keeps_the_last_entries(in_place):
    state = {"positions": np.zeros((1, 4), "float32")}
    for start, end in ((0, 2), (2, 3), (3, 9), (9, 10), (10, 14)):
        new = {"positions": np.arange(start, end, dtype="float32")[None] + 1}
        _, state = RollingCache(in_place).write(state, new, start)
        expected = np.zeros(4)
        for token in range(end):
            expected[token % 4] = token + 1
        np.testing.assert_array_equal(state["positions"][0], expected)


@neutral
def test_edges_and_adjacency_give_equal_outputs():
    pairs = [(i, (3 * i + 1) % LENGTH) for i in range(LENGTH)] + [(2, 4), (5, 4)]
    edges = np.array([pairs, pairs], "int32")
    fixed = make(relation=Adjacency(pairs, LENGTH))
    given = make()
    np.testing.assert_allclose(given(X, edges=edges), fixed(X), **CLOSE)
    np.testing.assert_allclose(given.attention_weights(X, edges=edges), fixed.attention_weights(X), **CLOSE)


@pytest.mark.parametrize("name", ["rotary", "alibi", "relative_bias"])
def test_single_query_cross_attention_uses_query_positions(name):
    layer, memory = make(position_encoding=name), normal(2, 5, 16)
    expected = layer(X, memory)
    projected = layer.project(memory)
    found = [layer.attend(X[:, i : i + 1], projected, positions=np.array([i])) for i in range(LENGTH)]
    np.testing.assert_allclose(ops.concatenate(found, axis=1), expected, **CLOSE)


@pytest.mark.parametrize("name", ["rotary", "alibi", "relative_bias"])
def test_translating_all_positions_does_not_change_outputs(name):
    layer = make(position_encoding=name, relation=Causal())
    moved = layer(X, positions=np.arange(LENGTH) + 40)
    np.testing.assert_allclose(moved, layer(X), **CLOSE)
    stretched = layer(X, positions=np.arange(LENGTH) * 3)
    assert np.abs(np.asarray(stretched) - np.asarray(layer(X))).max() > 1e-3
