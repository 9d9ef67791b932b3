import copy
import dataclasses
import itertools
import json
import operator

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import relations
from keras_transformer.relations import (
    AUTOMORPHISMS,
    EMPTY,
    FULL,
    INCREASING_RELABELLINGS,
    PARTIAL,
    PERMUTATIONS,
    SEPARATE_PERMUTATIONS,
    TRANSLATIONS,
    Adjacency,
    And,
    Bipartite,
    Causal,
    Dilated,
    Full,
    GlobalTokens,
    Not,
    Or,
    PrefixLM,
    Relation,
    SlidingWindow,
    Strided,
)

pytestmark = pytest.mark.backend_neutral

LARGEST = 4  # maximum of a relation's numbers: small compared with LENGTH, so that every kind of row occurs
SMALL = st.integers(0, LARGEST)


@st.composite
def graphs(draw, num_nodes=None):
    num_nodes = draw(st.integers(1, 6)) if num_nodes is None else num_nodes
    node = st.integers(0, num_nodes - 1)
    return Adjacency(draw(st.lists(st.tuples(node, node), max_size=12)), num_nodes)


ATOMS = {
    Full: st.just(Full()),
    Causal: st.just(Causal()),
    SlidingWindow: st.builds(SlidingWindow, st.none() | SMALL, st.none() | SMALL),
    PrefixLM: st.builds(PrefixLM, SMALL),
    Strided: st.builds(Strided, st.integers(1, LARGEST), st.booleans()),
    Dilated: st.builds(Dilated, st.integers(0, 3), st.integers(1, LARGEST)),
    GlobalTokens: st.builds(GlobalTokens, st.lists(st.integers(0, 8), max_size=3)),
    Adjacency: graphs(),
    Bipartite: st.just(Bipartite()),
}
EXAMPLES = (
    Full(),
    Causal(),
    SlidingWindow(3),
    SlidingWindow(2, 1),
    SlidingWindow(None, 1),
    PrefixLM(3),
    Strided(3),
    Strided(2, causal=False),
    Dilated(2, 3),
    GlobalTokens([4, 0]),
    Adjacency([(0, 1), (1, 2), (2, 0), (3, 3)], 5),
    Bipartite(),
)
SIZES = st.integers(1, 24)


def relation_trees(atoms=None):
    """Generate relations of every kind and their compositions."""
    return st.recursive(
        st.one_of(*ATOMS.values()) if atoms is None else atoms,
        lambda inner: st.one_of(
            st.builds(operator.and_, inner, inner),
            st.builds(operator.or_, inner, inner),
            inner.map(operator.invert),
        ),
        max_leaves=4,
    )


RELATIONS = relation_trees()
quick = settings(deadline=None, max_examples=100, derandomize=True)
each_kind = pytest.mark.parametrize("kind", ATOMS, ids=lambda kind: kind.__name__)


@dataclasses.dataclass(frozen=True)
class Near(Relation):
    """Relate positions at most one apart: a custom relation without a block map, and with few symmetries."""

    def related(self, query_positions, key_positions):
        return (query_positions - key_positions <= 1) & (key_positions - query_positions <= 1)

    def symmetries(self):
        return frozenset({relations.TRANSLATIONS})


@dataclasses.dataclass(frozen=True)
class ToFirst(Relation):
    """Every query attends to position 0: all symmetries fix 0."""

    def related(self, query_positions, key_positions):
        return (query_positions == query_positions) & (key_positions == 0)

    def symmetries(self):
        return frozenset()


def by_definition(relation, i, j):
    match relation:
        case Full():
            return True
        case Causal():
            return j <= i
        case SlidingWindow(left, right):
            return (left is None or i - left <= j) and (right is None or j <= i + right)
        case PrefixLM(length):
            return j < length or j <= i
        case Strided(stride, causal):
            return (i - j) % stride == 0 and (j <= i or not causal)
        case Dilated(window, rate):
            return j <= i and i - j in range(0, rate * window + 1, rate)
        case GlobalTokens(indices):
            return i in indices or j in indices
        case Adjacency(pairs=pairs):
            return (j, i) in pairs
        case And(left, right):
            return by_definition(left, i, j) and by_definition(right, i, j)
        case Or(left, right):
            return by_definition(left, i, j) or by_definition(right, i, j)
        case Not(inner):
            return not by_definition(inner, i, j)
    raise AssertionError(relation)


def classified_blocks(relation, block_size, num_queries, num_keys):
    """Return (block map entry, block of the matrix) for every block."""
    matrix = relation.matrix(num_queries, num_keys)
    blocks = relation.blocks(block_size, num_queries, num_keys)
    assert blocks.shape == (-(-num_queries // block_size), -(-num_keys // block_size))
    assert blocks.dtype == np.uint8
    for (row, column), kind in np.ndenumerate(blocks):
        block = matrix[row * block_size :, column * block_size :][:block_size, :block_size]
        yield kind, block


@quick
@given(RELATIONS, SIZES, SIZES)
def test_the_matrix_equals_the_pairwise_definition(relation, num_queries, num_keys):
    expected = [[by_definition(relation, i, j) for j in range(num_keys)] for i in range(num_queries)]
    matrix = relation.matrix(num_queries, num_keys)
    assert matrix.dtype == bool
    np.testing.assert_array_equal(matrix, expected)


def test_the_matrix_is_square_by_default_and_a_new_array():
    matrix = Causal().matrix(3)
    np.testing.assert_array_equal(matrix, np.tril(np.ones((3, 3), bool)))
    matrix[:] = False
    assert Causal().matrix(3).any()


@quick
@given(RELATIONS, st.integers(1, 9), SIZES, SIZES)
def test_empty_blocks_contain_no_pair_and_full_blocks_every_pair(relation, block_size, num_queries, num_keys):
    for kind, block in classified_blocks(relation, block_size, num_queries, num_keys):
        assert kind in (EMPTY, PARTIAL, FULL)
        assert kind != EMPTY or not block.any()
        assert kind != FULL or block.all()


@pytest.mark.slow_variants
@each_kind
@quick
@given(data=st.data(), negated=st.booleans(), block_size=st.integers(1, 9), num_queries=SIZES, num_keys=SIZES)
def test_block_maps_of_simple_relations_are_exact(kind, data, negated, block_size, num_queries, num_keys):
    relation = data.draw(ATOMS[kind])
    relation = ~relation if negated else relation
    for found, block in classified_blocks(relation, block_size, num_queries, num_keys):
        assert found == (FULL if block.all() else PARTIAL if block.any() else EMPTY)


@pytest.mark.parametrize("relation", EXAMPLES, ids=repr)
def test_block_maps_of_long_sequences_need_no_matrix(relation):
    """A million positions: the matrix would have 10¹² pairs."""
    blocks = relation.blocks(8192, 2**20, 2**20)
    assert blocks.shape == (128, 128)
    near = relation.blocks(8192, 2 * 8192, 2 * 8192)
    np.testing.assert_array_equal(blocks[:2, :2], near)


@quick
@given(RELATIONS, RELATIONS, st.integers(1, 9), SIZES, SIZES)
def test_composition_follows_boolean_algebra(a, b, block_size, num_queries, num_keys):
    sizes = (num_queries, num_keys)
    np.testing.assert_array_equal((a & b).matrix(*sizes), a.matrix(*sizes) & b.matrix(*sizes))
    np.testing.assert_array_equal((a | b).matrix(*sizes), a.matrix(*sizes) | b.matrix(*sizes))
    np.testing.assert_array_equal((~a).matrix(*sizes), ~a.matrix(*sizes))
    de_morgan = ~(~a | ~b)
    np.testing.assert_array_equal((a & b).matrix(*sizes), de_morgan.matrix(*sizes))
    sizes_of_blocks = (block_size, *sizes)
    np.testing.assert_array_equal((a & b).blocks(*sizes_of_blocks), de_morgan.blocks(*sizes_of_blocks))
    np.testing.assert_array_equal((a | a).blocks(*sizes_of_blocks), a.blocks(*sizes_of_blocks))


@quick
@given(RELATIONS)
def test_double_negation_is_the_relation_itself(relation):
    assert ~~relation == relation


@pytest.mark.parametrize("other", [True, None, np.ones((3, 3), bool)], ids=["bool", "None", "array"])
@pytest.mark.parametrize("compose", [operator.and_, operator.or_])
def test_a_relation_composes_with_relations_only(compose, other):
    with pytest.raises(TypeError):
        compose(Causal(), other)


def test_a_custom_relation_without_a_block_map_is_partial_everywhere_and_composes():
    assert (Near().blocks(2, 5, 5) == PARTIAL).all()
    np.testing.assert_array_equal((Near() & Causal()).matrix(4), np.eye(4) + np.eye(4, k=-1) > 0)
    for kind, block in classified_blocks(Near() & Causal(), 2, 7, 7):
        assert kind != FULL or block.all()
        assert kind != EMPTY or not block.any()


@pytest.mark.parametrize("name", ["block_size", "num_queries", "num_keys"])
def test_empty_block_maps_are_rejected(name):
    sizes = {"block_size": 2, "num_queries": 3, "num_keys": 4, name: 0}
    for relation in EXAMPLES:
        with pytest.raises(ValueError, match=f"`{name}` must be a positive integer. Received: {name}=0"):
            relation.blocks(**sizes)


@quick
@given(RELATIONS)
def test_config_round_trip_is_the_identity(relation):
    config = relation.get_config()
    again = type(relation).from_config(config)
    assert again == relation
    assert again.get_config() == config
    assert json.loads(json.dumps(config)) == config


@quick
@given(RELATIONS)
def test_keras_serialization_round_trips_through_json(relation):
    text = json.dumps(keras.saving.serialize_keras_object(relation))
    again = keras.saving.deserialize_keras_object(json.loads(text), safe_mode=True)
    assert again == relation
    assert relations.get(json.loads(text)) == relation


@quick
@given(RELATIONS, RELATIONS)
def test_relations_are_compared_by_value_and_hashable(a, b):
    assert (a & b) == And(a, b)
    assert hash(a | b) == hash(Or(a, b))
    assert len({a, copy.deepcopy(a), type(a).from_config(a.get_config())}) == 1
    assert Full() != Causal()


def test_relations_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        (Causal() & Full()).left = Full()


def test_hash_and_repr_of_relations_contain_no_arrays():
    assert repr(Causal() & ~Full()) == "And(left=Causal(), right=Not(relation=Full()))"


@quick
@given(RELATIONS, SIZES, SIZES)
def test_no_pair_exceeds_the_bandwidth(relation, num_queries, num_keys):
    left, right = relation.bandwidth()
    queries, keys = np.nonzero(relation.matrix(num_queries, num_keys))
    assert left is None or (left >= 0 and (queries - keys <= left).all())
    assert right is None or (right >= 0 and (keys - queries <= right).all())


@each_kind
@quick
@given(data=st.data())
def test_the_bandwidth_of_simple_relations_is_exact(kind, data):
    relation = data.draw(ATOMS[kind])
    queries, keys = np.nonzero(relation.matrix(40))
    for bound, offsets in zip(relation.bandwidth(), (queries - keys, keys - queries), strict=True):
        if bound is None:
            assert offsets.max() > 20
        else:
            assert offsets.max(initial=0) == bound


@pytest.mark.parametrize(
    ("relation", "expected"),
    [
        (Full(), (None, None)),
        (Causal(), (None, 0)),
        (SlidingWindow(3, 2), (3, 2)),
        (SlidingWindow(None, 2), (None, 2)),
        (SlidingWindow(4) & Dilated(2, 3), (4, 0)),
        (SlidingWindow(4) | Dilated(2, 3), (6, 0)),
        (SlidingWindow(3, 2) & Causal(), (3, 0)),
        (SlidingWindow(3, 2) | Causal(), (None, 2)),
        (Adjacency([(5, 1), (0, 3)], 6), (3, 4)),
        (Adjacency([(0, 3)], 6) | SlidingWindow(1, 1), (3, 1)),
        (~SlidingWindow(3), (None, None)),
        (Near(), (None, None)),
    ],
    ids=str,
)
def test_bandwidths_of_examples_are_as_expected(relation, expected):
    assert relation.bandwidth() == expected


class TestEdges:
    """`edges()` are the pairs (source, target) = (column, row) of the matrix."""

    @staticmethod
    def of_matrix(relation):
        queries, keys = np.nonzero(relation.matrix(8))  # more than the nodes of any graph here
        return tuple(sorted(zip(keys.tolist(), queries.tolist(), strict=True)))

    @quick
    @given(relation_trees(graphs() | st.sampled_from(EXAMPLES)))
    def test_edges_are_all_related_pairs_where_known(self, relation):
        if relation.edges() is not None:
            assert relation.edges() == self.of_matrix(relation)

    @quick
    @given(graphs(), graphs(), st.sampled_from(EXAMPLES))
    def test_edges_of_compositions_are_exact(self, a, b, other):
        assert (a & b).edges() == tuple(sorted({*a.pairs} & {*b.pairs}))
        assert (a | b).edges() == tuple(sorted({*a.pairs} | {*b.pairs}))
        assert (a & other).edges() == (other & a).edges() == self.of_matrix(a & other)
        assert (a & ~b).edges() == tuple(sorted({*a.pairs} - {*b.pairs}))

    @pytest.mark.parametrize("relation", [r for r in EXAMPLES if not isinstance(r, Adjacency)], ids=repr)
    def test_edges_are_unknown_for_unbounded_positions(self, relation):
        graph = Adjacency([(0, 1)], 2)
        assert relation.edges() is (relation | graph).edges() is (graph | relation).edges() is None
        assert (~graph).edges() is (relation & relation).edges() is None


# Symmetries: (f, g) is a pair of position maps from a group; a relation has the symmetry if related(f(i), g(j))
# is related(i, j) for every pair.

LENGTH = 12


def check_kept(relation, queries, keys):
    """Check that moving query i to queries[i] and key j to keys[j] keeps the relation."""
    moved = relation.related(np.array(queries)[:, None], np.array(keys)[None, :])
    shape = (len(queries), len(keys))
    np.testing.assert_array_equal(np.broadcast_to(moved, shape), relation.matrix(*shape))


def same(maps):
    return maps.map(lambda moved: (moved, moved))


GROUPS = {
    TRANSLATIONS: same(st.integers(-50, 50).map(lambda m: np.arange(LENGTH) + m)),
    INCREASING_RELABELLINGS: same(
        st.lists(st.integers(-60, 60), min_size=LENGTH, max_size=LENGTH, unique=True).map(sorted)
    ),
    PERMUTATIONS: same(st.permutations(range(LENGTH))),
    SEPARATE_PERMUTATIONS: st.tuples(st.permutations(range(LENGTH)), st.permutations(range(LENGTH))),
}


def transpositions():
    for i, j in itertools.combinations(range(LENGTH), 2):
        swapped = list(range(LENGTH))
        swapped[i], swapped[j] = j, i
        yield swapped


# Maps of each group that are not in the smaller groups, for relations with the small numbers above.
WITNESSES = {
    TRANSLATIONS: [(np.arange(LENGTH) + m,) * 2 for m in (1, -1, 5, -5, 50)],
    INCREASING_RELABELLINGS: [(np.arange(LENGTH) * m,) * 2 for m in (2, 3, 50)]
    + [(np.arange(LENGTH) + (np.arange(LENGTH) > i),) * 2 for i in range(LENGTH)]
    + [(np.arange(LENGTH) + m,) * 2 for m in (-5, 50)],
    PERMUTATIONS: [(swapped, swapped) for swapped in transpositions()],
    SEPARATE_PERMUTATIONS: [(range(LENGTH), swapped) for swapped in transpositions()],
}


def is_kept(relation, queries, keys):
    try:
        check_kept(relation, queries, keys)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("group", GROUPS)
@quick
@given(relation=RELATIONS, data=st.data())
def test_every_listed_symmetry_holds(group, relation, data):
    if group in relation.symmetries():
        check_kept(relation, *data.draw(GROUPS[group]))


@each_kind
@quick
@given(data=st.data())
def test_every_symmetry_that_a_simple_relation_does_not_list_fails(kind, data):
    relation = data.draw(ATOMS[kind])
    for group in WITNESSES.keys() - relation.symmetries():
        assert not all(is_kept(relation, *maps) for maps in WITNESSES[group]), group


@pytest.mark.parametrize(
    ("relation", "group", "positions"),
    [
        (Causal(), PERMUTATIONS, [1, 0, 2]),
        (~Causal(), PERMUTATIONS, [1, 0, 2]),
        (Causal() & Full(), PERMUTATIONS, [2, 1, 0]),
        (SlidingWindow(1), INCREASING_RELABELLINGS, [0, 2, 4]),
        (SlidingWindow(1) | GlobalTokens([0]), TRANSLATIONS, [1, 2, 3]),
        (Strided(2), INCREASING_RELABELLINGS, [0, 1, 3]),
        (Dilated(1, 2), INCREASING_RELABELLINGS, [0, 1, 3]),
        (PrefixLM(2), TRANSLATIONS, [1, 2, 3]),
        (Adjacency([(0, 1), (1, 2)], 3), TRANSLATIONS, [1, 2, 3]),
        (Near(), INCREASING_RELABELLINGS, [0, 2, 3]),
        (Near(), PERMUTATIONS, [0, 2, 1]),
        (Near() | Causal(), INCREASING_RELABELLINGS, [0, 2, 3]),
        (ToFirst(), TRANSLATIONS, [1, 2, 3]),
    ],
    ids=str,
)
def test_a_symmetry_that_is_not_listed_fails(relation, group, positions):
    assert group not in relation.symmetries()
    with pytest.raises(AssertionError):
        check_kept(relation, positions, positions)


def test_separate_permutations_keep_only_relations_that_do_not_compare_positions():
    for relation in (Full(), Bipartite(), ~Full(), Full() & Bipartite()):
        check_kept(relation, [2, 0, 1], [1, 2, 0])
    for relation in (Causal(), SlidingWindow(0, 0)):
        with pytest.raises(AssertionError):
            check_kept(relation, [2, 0, 1], [1, 2, 0])
    check_kept(SlidingWindow(0, 0), [2, 0, 1], [2, 0, 1])


class TestAutomorphisms:
    """Automorphisms are permutations of the nodes that map the edges onto the edges."""

    @staticmethod
    def of(graph):
        for order in itertools.permutations(range(graph.num_nodes)):
            moved = {(order[source], order[target]) for source, target in graph.pairs}
            yield order, moved == {*graph.pairs}

    @settings(quick, max_examples=30)
    @given(graphs().filter(lambda graph: graph.num_nodes < 6))
    def test_exactly_the_automorphisms_keep_a_graph(self, graph):
        assert AUTOMORPHISMS in graph.symmetries()
        for order, is_automorphism in self.of(graph):
            assert is_kept(graph, order, order) == is_automorphism

    def test_automorphisms_of_a_directed_cycle_are_its_rotations(self):
        cycle = Adjacency([(i, (i + 1) % 5) for i in range(5)], 5)
        found = [order for order, is_automorphism in self.of(cycle) if is_automorphism]
        assert found == [tuple((i + m) % 5 for i in range(5)) for m in range(5)]
        with pytest.raises(AssertionError):
            check_kept(cycle, [0, 4, 3, 2, 1], [0, 4, 3, 2, 1])

    @settings(quick, max_examples=30)
    @given(st.lists(graphs(num_nodes=4), min_size=2, max_size=2))
    def test_shared_automorphisms_of_two_graphs_keep_their_compositions(self, both):
        a, b = both
        for (order, of_a), (_, of_b) in zip(self.of(a), self.of(b), strict=True):
            if of_a and of_b:
                for composed in (a & b, a | b, ~a, a & ~b, ~(a | b)):
                    assert AUTOMORPHISMS in composed.symmetries()
                    check_kept(composed, order, order)

    @quick
    @given(SMALL, st.permutations(range(LENGTH)))
    def test_automorphisms_of_a_prefix_permute_the_prefix(self, length, order):
        prefix = sorted(range(length), key=order.index)
        moved = [*prefix, *range(length, LENGTH)]
        check_kept(PrefixLM(length), moved, moved)
        with pytest.raises(AssertionError):
            check_kept(PrefixLM(length), range(LENGTH)[::-1], range(LENGTH)[::-1])

    @quick
    @given(st.sets(st.integers(0, LENGTH - 1), min_size=1, max_size=3), st.permutations(range(LENGTH)))
    def test_automorphisms_of_global_tokens_map_global_tokens_to_global_tokens(self, indices, order):
        onto_themselves = {order[index] for index in indices} == indices
        assert is_kept(GlobalTokens(indices), order, order) == onto_themselves


ORDERS = {TRANSLATIONS, INCREASING_RELABELLINGS, AUTOMORPHISMS}
DISTANCES = {TRANSLATIONS, AUTOMORPHISMS}
EVERY = {SEPARATE_PERMUTATIONS, PERMUTATIONS, *ORDERS}


@pytest.mark.parametrize(
    ("relation", "expected"),
    [
        (Full(), EVERY),
        (Bipartite(), EVERY),
        (Causal(), ORDERS),
        (SlidingWindow(3), DISTANCES),
        (SlidingWindow(None), ORDERS),
        (SlidingWindow(0, None), ORDERS),
        (SlidingWindow(None, None), EVERY),
        (SlidingWindow(0, 0), EVERY - {SEPARATE_PERMUTATIONS}),
        (Strided(2), DISTANCES),
        (Strided(1), ORDERS),
        (Dilated(2, 2), DISTANCES),
        (PrefixLM(2), {AUTOMORPHISMS}),
        (GlobalTokens([1]), {AUTOMORPHISMS}),
        (Adjacency([(0, 1)], 2), {AUTOMORPHISMS}),
        (SlidingWindow(3) | Strided(3), DISTANCES),
        (Causal() & Adjacency([(0, 1)], 2), {AUTOMORPHISMS}),
        (Causal() | ~Causal(), ORDERS),  # sound, though it is everything
        (Near() & Causal(), {TRANSLATIONS}),
    ],
    ids=lambda value: None if isinstance(value, set | frozenset) else str(value),
)
def test_symmetries_equal_the_documented_table(relation, expected):
    assert relation.symmetries() == expected


TREE = (SlidingWindow(2) | Strided(3)) & ~GlobalTokens([1]) | Adjacency([(5, 0)], 6) & PrefixLM(6)


@pytest.mark.slow_variants
@pytest.mark.parametrize("relation", [*EXAMPLES, ~Causal(), TREE], ids=repr)
def test_the_predicate_is_equal_on_arrays_and_on_tensors_in_every_mode(relation, modes):
    queries = np.array([[0, 1, 2], [5, 3, -1]], "int32")
    keys = np.array([[0, 1, 2, 3], [4, 90, -1, 3]], "int32")
    expected = [
        [[by_definition(relation, i, j) for j in row] for i in q]
        for q, row in zip(queries.tolist(), keys.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(relation.related(queries[..., None], keys[:, None, :]), expected)
    tensors = keras.ops.convert_to_tensor(queries), keras.ops.convert_to_tensor(keys)
    for name, wrap in modes.items():
        found = wrap(lambda q, k: relation.related(q[..., None], k[:, None, :]))(*tensors)
        assert keras.backend.standardize_dtype(found.dtype) == "bool"
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_the_largest_arguments_do_not_overflow():
    far = 2**30
    positions = keras.ops.convert_to_tensor([-1, 0, far - 1], "int32")
    for relation in (SlidingWindow(far, far), Dilated(far, 1) | ~Causal(), Strided(far) | PrefixLM(far)):
        found = np.asarray(relation.related(positions[:, None], positions[None, :]))
        expected = [[by_definition(relation, i, j) for j in (-1, 0, far - 1)] for i in (-1, 0, far - 1)]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("relation", [Adjacency([(0, 1)], 3), Strided(2), GlobalTokens([2])], ids=repr)
def test_the_predicate_compares_arrays_with_tensors(relation):
    positions = np.arange(3, dtype="int32")
    for convert in (np.asarray, keras.ops.convert_to_tensor):
        found = relation.related(positions[:, None], convert(positions[None, :]))
        np.testing.assert_array_equal(found, relation.matrix(3))


class TestArguments:
    def test_numpy_arguments_become_python_values(self):
        found = [
            SlidingWindow(np.int64(2), np.int32(1)),
            Strided(np.uint8(2), np.True_),
            GlobalTokens(np.array([4, 1, 4])),
            Adjacency(np.array([[2, 0], [0, 1], [2, 0]]), np.int64(3)),
        ]
        expected = [
            SlidingWindow(2, 1),
            Strided(2),
            GlobalTokens((1, 4)),
            Adjacency([[0, 1], [2, 0]], num_nodes=3),
        ]
        assert found == expected
        assert [hash(relation) for relation in found] == [hash(relation) for relation in expected]
        for relation in found:
            values = [
                value for field in dataclasses.fields(relation) for value in field_values(relation, field)
            ]
            assert {type(value) for value in values} <= {int, bool}

    def test_edges_of_a_graph_are_sorted_and_unique(self):
        graph = Adjacency(iter([(2, 0), (0, 1), (2, 0)]), num_nodes=3)
        assert graph.pairs == graph.edges() == ((0, 1), (2, 0))
        assert repr(graph) == "Adjacency(edges=((0, 1), (2, 0)), num_nodes=3)"
        assert eval(repr(graph)) == graph
        assert graph != Adjacency(graph.pairs, num_nodes=4)
        assert not Adjacency(np.zeros((0, 2), int), 3).matrix(3).any()
        with pytest.raises(dataclasses.FrozenInstanceError):
            graph.num_nodes = 4

    def test_large_graphs_support_edges_and_block_maps(self):
        graph = Adjacency([(0, 1), (99_999, 99_998)], 100_000)
        assert graph.bandwidth() == (1, 1)
        np.testing.assert_array_equal(graph.blocks(50_000, 10**5, 10**5), np.diag([PARTIAL] * 2))


def field_values(relation, field):
    value = getattr(relation, field.name)
    return np.array(value).ravel().tolist() if isinstance(value, tuple) else [value]


@pytest.mark.parametrize(
    ("identifier", "expected"),
    [
        (None, Full()),
        ("full", Full()),
        ("causal", Causal()),
        ("bipartite", Bipartite()),
        (~Causal(), ~Causal()),
        (keras.saving.serialize_keras_object(Causal() | ~Full()), Causal() | ~Full()),
    ],
    ids=["None", "full", "causal", "bipartite", "relation", "config"],
)
def test_get_accepts_every_identifier(identifier, expected):
    assert relations.get(identifier) == expected


@pytest.mark.parametrize(
    "identifier",
    [
        "Causal",
        "",
        3,
        True,
        Causal,
        {},
        {"a": 1},
        {"class_name": "Nope", "config": {}},
        keras.saving.serialize_keras_object(keras.initializers.Zeros()),
    ],
    ids=str,
)
def test_get_names_the_invalid_value(identifier):
    with pytest.raises(
        ValueError, match="`relation` must be a Relation.*'bipartite', 'causal', 'full'.*Received: relation="
    ):
        relations.get(identifier)


def test_get_names_the_error_in_a_config():
    config = keras.saving.serialize_keras_object(SlidingWindow(1))
    config["config"]["left"] = -1
    with pytest.raises(ValueError, match="`left` must be .*Received: left=-1"):
        relations.get(config)
    del config["config"]["left"]
    with pytest.raises(ValueError, match="`relation` must be a Relation") as caught:
        relations.get(config)
    assert "'left'" in str(caught.value.__cause__)


def test_configs_of_earlier_versions_still_load():
    config = keras.saving.serialize_keras_object(~Causal())
    config["module"] = "keras_transformer.relations"
    config["config"]["relation"]["module"] = "keras_transformer.relations"
    assert relations.get(config) == ~Causal()


@pytest.mark.parametrize("hidden", [-1e4, -1e9, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_from_additive_is_true_where_the_bias_is_zero(hidden, dtype):
    allowed = Causal().matrix(4)
    with np.errstate(over="ignore"):
        additive = np.where(allowed, 0.0, hidden).astype(dtype)
    np.testing.assert_array_equal(relations.from_additive(additive), allowed)
    np.testing.assert_array_equal(relations.from_additive(keras.ops.convert_to_tensor(additive)), allowed)


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
def test_from_hidden_is_the_negated_mask(dtype):
    allowed = Causal().matrix(4)
    hidden = (~allowed).astype(dtype)
    np.testing.assert_array_equal(relations.from_hidden(hidden), allowed)
    np.testing.assert_array_equal(relations.from_hidden(keras.ops.convert_to_tensor(hidden)), allowed)
