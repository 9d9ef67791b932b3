"""Check the symmetry of each attention mechanism on its outputs, and that it fails where it should.

Each symmetry is a function that asserts it. For a mechanism without the symmetry, the function must raise.
"""

import keras
import numpy as np
import pytest

from keras_transformer import ops as kt_ops
from keras_transformer import relations
from keras_transformer.layers import MultiHeadAttention, SinusoidalPositions
from keras_transformer.relations import (
    Adjacency,
    Bipartite,
    Causal,
    Dilated,
    Full,
    GlobalTokens,
    PrefixLM,
    SlidingWindow,
    Strided,
)

# JAX compiles for every new shape, so only representative cases run there.
neutral = pytest.mark.backend_neutral

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
LENGTH = 7
ORDER = [3, 0, 6, 2, 5, 1, 4]
INCREASING = np.array([0, 3, 4, 9, 20, 21, 50])
CYCLE = Adjacency([(i, (i + 1) % LENGTH) for i in range(LENGTH)], LENGTH)
RELATIONS = (
    Full(),
    Causal(),
    SlidingWindow(2),
    SlidingWindow(1, 2),
    PrefixLM(3),
    Strided(3),
    Dilated(2, 2),
    GlobalTokens([1, 4]),
    CYCLE,
    Bipartite(),
    Adjacency([(0, 1), (4, 2), (2, 2)], 5),
    SlidingWindow(2) | Strided(3),
    ~Causal(),
    Causal() & ~Causal(),
)
every_relation = pytest.mark.parametrize("relation", RELATIONS, ids=repr)


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32")


X = normal(2, LENGTH, 8)


def attention_layer(relation=None, *shapes, seed=0):
    """Return multi-head attention with random weights and biases, so that no symmetry holds by chance."""
    layer = MultiHeadAttention(2, 4, relation=relation)
    layer.build(*(shapes or [X.shape]))
    layer.set_weights([normal(*w.shape, seed=seed + i) * 0.6 for i, w in enumerate(layer.weights)])
    return layer


def with_positions(layer):
    """Return the layer applied after sinusoidal positions."""
    encode = SinusoidalPositions()
    return lambda x, **options: layer(encode(x), **options)


def with_distance_bias(x):
    """Complete attention with the ALiBi bias −|i − j|: the relation has every symmetry, the score does not."""
    heads = x[:, :, None, :]
    index = np.arange(x.shape[1])
    bias = -np.abs(index[:, None] - index).astype("float32")
    return kt_ops.attention(heads, heads, heads, bias=bias[None, None])


PLACED = [
    relation
    for relation in RELATIONS
    if relations.PERMUTATIONS not in relation.symmetries() and relation.matrix(LENGTH).any()
]

# The symmetries.


def check_equivariant(attend, x, order):
    """Check that permuting the sequence permutes the outputs and changes nothing else."""
    np.testing.assert_allclose(attend(x[:, order]), np.asarray(attend(x))[:, order], **CLOSE)


def check_kept_by_relabelling(attend, x, positions):
    """Check that other positions give the same outputs."""
    np.testing.assert_allclose(attend(x, positions=np.asarray(positions, "int32")), attend(x), **CLOSE)


def check_masked_front_shifts(attend, x, count):
    """Check that leading masked positions shift the outputs and change nothing else."""
    batch, length, size = x.shape
    padded = np.concatenate([normal(batch, count, size, seed=9) * 5, x], axis=1)
    mask = np.broadcast_to(np.arange(count + length) >= count, (batch, count + length))
    np.testing.assert_allclose(attend(padded, padding_mask=mask)[:, count:], attend(x), **CLOSE)


def check_front_leaves_rows(attend, x, count, rows):
    """Check that leading unmasked positions shift the outputs of the given rows and do not change them."""
    padded = np.concatenate([normal(x.shape[0], count, x.shape[2], seed=9) * 5, x], axis=1)
    rows = np.array(rows)
    np.testing.assert_allclose(
        np.asarray(attend(padded))[:, count + rows], np.asarray(attend(x))[:, rows], **CLOSE
    )


def check_invariant(attend, query, memory, order):
    """Check that permuting the memory changes nothing."""
    np.testing.assert_allclose(attend(query, memory[:, order]), attend(query, memory), **CLOSE)


def check_rows_apart(attend, query, memory):
    """Check that the output of a query does not depend on the other queries."""
    for i in range(query.shape[1]):
        single = attend(query[:, i : i + 1], memory)
        np.testing.assert_allclose(single, attend(query, memory)[:, i : i + 1], **CLOSE)


def check_stochastic(weights, related):
    """Check that rows sum to one, or to zero without related keys, and weights are positive exactly where related."""
    weights = np.asarray(weights)
    np.testing.assert_allclose(
        weights.sum(-1), np.broadcast_to(related.any(-1), weights.shape[:-1]), rtol=1e-5
    )
    np.testing.assert_array_equal(weights > 0, np.broadcast_to(related, weights.shape))
    assert (weights[~np.broadcast_to(related, weights.shape)] == 0).all()


def check_no_leak(attend, x, visible):
    """Check that keys invisible to a query do not change a bit of its output."""
    outputs = np.asarray(attend(x, x))
    for i in range(x.shape[1]):
        changed = np.where(visible[i][:, None], x, normal(*x.shape, seed=5) * 100)
        np.testing.assert_array_equal(np.asarray(attend(x, changed))[:, i], outputs[:, i])


# Complete attention: sets.


@neutral
def test_complete_attention_is_equivariant_under_permutations():
    check_equivariant(attention_layer(), X, ORDER)
    check_equivariant(attention_layer(Bipartite()), X, ORDER)


@pytest.mark.slow_variants
@pytest.mark.parametrize("relation", PLACED, ids=repr)
def test_attention_that_compares_positions_is_not_equivariant(relation):
    with pytest.raises(AssertionError):
        check_equivariant(attention_layer(relation), X, ORDER)


def test_complete_attention_with_positions_or_biases_is_not_equivariant():
    for attend in (with_positions(attention_layer()), with_distance_bias):
        with pytest.raises(AssertionError):
            check_equivariant(attend, X, ORDER)


def test_without_positions_attention_ignores_word_order():
    embedding = {word: normal(8, seed=i) for i, word in enumerate(("Alicia", "come", "manzanas"))}

    def sentence(words):
        return np.stack([embedding[word] for word in words.split()])[None]

    def pooled(attend, words):
        return np.asarray(attend(sentence(words))).mean(axis=1)

    def check_alike(attend):
        said, reversed_ = pooled(attend, "Alicia come manzanas"), pooled(attend, "manzanas come Alicia")
        np.testing.assert_allclose(said, reversed_, **CLOSE)

    layer = attention_layer()
    check_alike(layer)
    for tells in (with_positions(layer), attention_layer("causal")):
        with pytest.raises(AssertionError):
            check_alike(tells)


# Causal attention: sequences.


@neutral
@pytest.mark.parametrize("positions", [INCREASING, np.arange(LENGTH) + 12], ids=["stretched", "moved"])
def test_causal_attention_is_invariant_under_increasing_relabelling(positions):
    check_kept_by_relabelling(attention_layer("causal"), X, positions)


def test_causal_attention_is_not_invariant_under_other_relabellings():
    with pytest.raises(AssertionError):
        check_kept_by_relabelling(attention_layer("causal"), X, INCREASING[ORDER])


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "relation",
    [relation for relation in RELATIONS if relations.INCREASING_RELABELLINGS not in relation.symmetries()],
    ids=repr,
)
def test_distance_relations_are_not_invariant_under_increasing_relabelling(relation):
    with pytest.raises(AssertionError):
        check_kept_by_relabelling(attention_layer(relation), X, INCREASING)


@pytest.mark.parametrize(
    ("query_positions", "key_positions"),
    [
        (INCREASING, INCREASING),
        (np.stack([INCREASING, INCREASING**2]), np.stack([INCREASING, INCREASING**2])),
        (2 * INCREASING + 1, 2 * INCREASING),
    ],
    ids=["shared", "one for each sample", "one for each side"],
)
def test_attention_compares_the_passed_positions(query_positions, key_positions):
    heads = X[:, :, None, :]
    found = kt_ops.attention(
        heads, heads, heads, "causal", query_positions=query_positions, key_positions=key_positions
    )
    np.testing.assert_allclose(found, kt_ops.attention(heads, heads, heads, "causal"), **CLOSE)


# Windows and other relations of distance: bounded sequences.

BY_DISTANCE = [r for r in RELATIONS if relations.TRANSLATIONS in r.symmetries()]
BY_PLACE = [r for r in RELATIONS if relations.TRANSLATIONS not in r.symmetries()]


@pytest.mark.slow_variants
@pytest.mark.parametrize("relation", BY_DISTANCE, ids=repr)
def test_distance_relations_are_invariant_under_translation(relation):
    layer = attention_layer(relation)
    check_kept_by_relabelling(layer, X, np.arange(LENGTH) + 12)
    check_masked_front_shifts(layer, X, 3)


@neutral
def test_windows_are_invariant_under_translation():
    check_kept_by_relabelling(attention_layer(SlidingWindow(2)), X, np.arange(LENGTH) + 12)
    check_masked_front_shifts(attention_layer(SlidingWindow(2)), X, 3)


@pytest.mark.parametrize("relation", BY_PLACE, ids=repr)
def test_relations_to_fixed_positions_are_not_translation_invariant(relation):
    layer = attention_layer(relation)
    with pytest.raises(AssertionError):
        check_kept_by_relabelling(layer, X, np.arange(LENGTH) + 12)
    with pytest.raises(AssertionError):
        check_masked_front_shifts(layer, X, 3)


def test_absolute_positions_change_outputs_after_masked_positions():
    layer = attention_layer(SlidingWindow(2))
    check_masked_front_shifts(layer, X, 3)
    with pytest.raises(AssertionError):
        check_masked_front_shifts(with_positions(layer), X, 3)


class TestStacks:
    """L layers with a window of k attend to L·k earlier positions."""

    LAYERS, WINDOW = 2, 2

    def stack(self, relation):
        layers = [attention_layer(relation, seed=10 * i) for i in range(self.LAYERS)]

        def attend(x):
            for layer in layers:
                x = x + layer(x)
            return x

        return attend

    @neutral
    def test_added_leading_positions_do_not_change_later_rows(self):
        rows = range(self.LAYERS * self.WINDOW, LENGTH)
        check_front_leaves_rows(self.stack(SlidingWindow(self.WINDOW)), X, 3, rows)

    @pytest.mark.parametrize("relation", [Dilated(1, 2), SlidingWindow(1) | Dilated(1, 2)], ids=repr)
    def test_the_bandwidth_gives_the_first_unchanged_row(self, relation):
        left, right = relation.bandwidth()
        assert right == 0
        check_front_leaves_rows(self.stack(relation), X, 3, range(self.LAYERS * left, LENGTH))

    def test_every_earlier_row_changes(self):
        attend = self.stack(SlidingWindow(self.WINDOW))
        for row in range(self.LAYERS * self.WINDOW):
            with pytest.raises(AssertionError):
                check_front_leaves_rows(attend, X, 3, [row])

    @pytest.mark.slow_variants
    @pytest.mark.parametrize("relation", [Causal(), Full()], ids=repr)
    def test_without_a_bandwidth_every_row_changes(self, relation):
        assert relation.bandwidth()[0] is None
        for row in range(LENGTH):
            with pytest.raises(AssertionError):
                check_front_leaves_rows(self.stack(relation), X, 3, [row])


@pytest.mark.parametrize("left", [LENGTH - 1, LENGTH, 1000, None])
def test_a_window_of_the_sequence_length_equals_causal_attention(left):
    np.testing.assert_array_equal(attention_layer(SlidingWindow(left))(X), attention_layer("causal")(X))


def test_a_window_one_shorter_differs_from_causal_attention():
    window, causal = (np.asarray(attention_layer(r)(X)) for r in (SlidingWindow(LENGTH - 2), Causal()))
    np.testing.assert_allclose(window[:, :-1], causal[:, :-1], **CLOSE)
    assert not np.allclose(window[:, -1], causal[:, -1], **CLOSE)


# Encoder–decoder attention: sets X → Y.

QUERY = normal(2, 4, 8, seed=1)
MEMORY = normal(2, LENGTH, 6, seed=2)


def cross_layer(relation):
    return attention_layer(relation, QUERY.shape, MEMORY.shape)


@neutral
def test_cross_attention_is_equivariant_in_queries_and_invariant_in_memory():
    layer = cross_layer(Bipartite())
    check_invariant(layer, QUERY, MEMORY, ORDER)
    check_equivariant(lambda query: layer(query, MEMORY), QUERY, [2, 0, 3, 1])


def test_cross_attention_never_mixes_the_queries():
    check_rows_apart(cross_layer(Bipartite()), QUERY, MEMORY)
    before, layer = attention_layer(None, QUERY.shape), cross_layer(Bipartite())
    with pytest.raises(AssertionError):  # earlier self-attention mixes queries
        check_rows_apart(lambda query, memory: layer(before(query), memory), QUERY, MEMORY)


@pytest.mark.parametrize("relation", ["causal", SlidingWindow(2, 2), GlobalTokens([0])], ids=repr)
def test_cross_attention_that_compares_positions_has_neither_symmetry(relation):
    layer = cross_layer(relation)
    with pytest.raises(AssertionError):
        check_invariant(layer, QUERY, MEMORY, ORDER)
    with pytest.raises(AssertionError):
        check_equivariant(lambda query: layer(query, MEMORY), QUERY, [2, 0, 3, 1])


def test_with_positions_in_the_memory_cross_attention_is_not_invariant():
    layer, encode = cross_layer(Bipartite()), SinusoidalPositions()
    with pytest.raises(AssertionError):
        check_invariant(lambda query, memory: layer(query, encode(memory)), QUERY, MEMORY, ORDER)


# A fixed graph.


@neutral
def test_a_graph_is_equivariant_under_its_automorphisms():
    layer = attention_layer(CYCLE)
    for shift in (1, 3):
        check_equivariant(layer, X, np.roll(np.arange(LENGTH), shift))


@pytest.mark.parametrize("order", [ORDER, range(LENGTH)[::-1]], ids=["shuffled", "mirrored"])
def test_a_graph_is_not_equivariant_under_other_permutations(order):
    """A mirrored cycle has the same neighbours, but not the same direction."""
    with pytest.raises(AssertionError):
        check_equivariant(attention_layer(CYCLE), X, list(order))


def test_a_cycle_without_direction_is_equivariant_under_mirroring_too():
    both_ways = CYCLE | Adjacency([(target, source) for source, target in CYCLE.edges()], LENGTH)
    check_equivariant(attention_layer(both_ways), X, np.arange(LENGTH)[::-1])


@pytest.mark.parametrize(
    ("relation", "order"),
    [(GlobalTokens([1, 4]), [6, 4, 0, 5, 1, 2, 3]), (PrefixLM(3), [2, 0, 1, 3, 4, 5, 6])],
    ids=["global tokens among themselves, others among themselves", "within the prefix"],
)
def test_patterns_are_equivariant_under_their_automorphisms(relation, order):
    check_equivariant(attention_layer(relation), X, order)
    with pytest.raises(AssertionError):
        check_equivariant(attention_layer(relation), X, ORDER)


# Attention weights.


@every_relation
def test_weights_sum_to_one_and_are_zero_exactly_where_unrelated(relation):
    check_stochastic(attention_layer(relation).attention_weights(X), relation.matrix(LENGTH))
    query, key = normal(2, 4, 2, 3), normal(2, 9, 2, 3)
    check_stochastic(kt_ops.attention_weights(query, key, relation), relation.matrix(4, 9))


@neutral
def test_weights_sum_to_one_next_to_padding():
    mask = np.arange(LENGTH) < np.array([[LENGTH], [2]])
    weights = attention_layer(SlidingWindow(1)).attention_weights(X, padding_mask=mask)
    check_stochastic(weights, SlidingWindow(1).matrix(LENGTH) & mask[:, None, None, :])
    with pytest.raises(AssertionError):
        check_stochastic(weights, SlidingWindow(1).matrix(LENGTH))


@every_relation
def test_masked_keys_do_not_leak(relation):
    check_no_leak(attention_layer(relation), X, relation.matrix(LENGTH))


@neutral
def test_keys_outside_a_window_do_not_change_the_output():
    check_no_leak(attention_layer(SlidingWindow(2)), X, SlidingWindow(2).matrix(LENGTH))


@pytest.mark.parametrize("relation", [Full(), Causal(), SlidingWindow(3), SlidingWindow(2, 1)], ids=repr)
def test_keys_of_a_larger_relation_change_the_output(relation):
    with pytest.raises(AssertionError):
        check_no_leak(attention_layer(relation), X, SlidingWindow(2).matrix(LENGTH))


@pytest.mark.slow_variants
@every_relation
def test_layers_with_any_relation_save_and_load(relation):
    layer = attention_layer(relation)
    config = layer.get_config()
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.relation == relation
    assert again.get_config() == config
