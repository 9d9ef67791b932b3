import dataclasses
import json
import operator

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import relations
from keras_transformer.relations import EMPTY, FULL, PARTIAL, And, Causal, Full, Not, Or, Relation

pytestmark = pytest.mark.backend_neutral

LEAVES = (Full(), Causal())
SIZES = st.integers(1, 24)
RELATIONS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.builds(operator.and_, inner, inner),
        st.builds(operator.or_, inner, inner),
        inner.map(operator.invert),
    ),
    max_leaves=4,
)
quick = settings(deadline=None, max_examples=100)


@dataclasses.dataclass(frozen=True)
class Near(Relation):
    """At most one apart: a user's relation, with neither a block map nor all the symmetries."""

    def related(self, query_positions, key_positions):
        return (query_positions - key_positions <= 1) & (key_positions - query_positions <= 1)

    def symmetries(self):
        return frozenset({relations.TRANSLATIONS})


@dataclasses.dataclass(frozen=True)
class ToFirst(Relation):
    """Everybody attends to position 0: no symmetry of any kind but those that fix 0."""

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
        case And(left, right):
            return by_definition(left, i, j) and by_definition(right, i, j)
        case Or(left, right):
            return by_definition(left, i, j) or by_definition(right, i, j)
        case Not(inner):
            return not by_definition(inner, i, j)
    raise AssertionError(relation)


def tiles(relation, block_size, num_queries, num_keys):
    """(block map entry, the block of the matrix) for every block."""
    matrix = relation.matrix(num_queries, num_keys)
    blocks = relation.blocks(block_size, num_queries, num_keys)
    assert blocks.shape == (-(-num_queries // block_size), -(-num_keys // block_size))
    assert blocks.dtype == np.uint8
    for (row, column), kind in np.ndenumerate(blocks):
        tile = matrix[row * block_size :, column * block_size :][:block_size, :block_size]
        yield kind, tile


@quick
@given(RELATIONS, SIZES, SIZES)
def test_matrix_is_the_definition_pair_by_pair(relation, num_queries, num_keys):
    expected = [[by_definition(relation, i, j) for j in range(num_keys)] for i in range(num_queries)]
    matrix = relation.matrix(num_queries, num_keys)
    assert matrix.dtype == bool
    np.testing.assert_array_equal(matrix, expected)


def test_matrix_is_square_by_default_and_the_callers_own():
    matrix = Causal().matrix(3)
    np.testing.assert_array_equal(matrix, np.tril(np.ones((3, 3), bool)))
    matrix[:] = False
    assert Causal().matrix(3).any()


@quick
@given(RELATIONS, st.integers(1, 9), SIZES, SIZES)
def test_empty_blocks_hold_nothing_and_full_blocks_everything(relation, block_size, num_queries, num_keys):
    for kind, tile in tiles(relation, block_size, num_queries, num_keys):
        assert kind in (EMPTY, PARTIAL, FULL)
        assert kind != EMPTY or not tile.any()
        assert kind != FULL or tile.all()


@quick
@given(st.sampled_from(LEAVES), st.booleans(), st.integers(1, 9), SIZES, SIZES)
def test_block_maps_of_simple_relations_are_exact(relation, negated, block_size, num_queries, num_keys):
    relation = ~relation if negated else relation
    for kind, tile in tiles(relation, block_size, num_queries, num_keys):
        assert kind == (FULL if tile.all() else PARTIAL if tile.any() else EMPTY)


@quick
@given(RELATIONS, RELATIONS, st.integers(1, 9), SIZES, SIZES)
def test_composition_is_boolean_algebra(a, b, block_size, num_queries, num_keys):
    sizes = (num_queries, num_keys)
    np.testing.assert_array_equal((a & b).matrix(*sizes), a.matrix(*sizes) & b.matrix(*sizes))
    np.testing.assert_array_equal((a | b).matrix(*sizes), a.matrix(*sizes) | b.matrix(*sizes))
    np.testing.assert_array_equal((~a).matrix(*sizes), ~a.matrix(*sizes))
    de_morgan = ~(~a | ~b)
    np.testing.assert_array_equal((a & b).matrix(*sizes), de_morgan.matrix(*sizes))
    tiling = (block_size, *sizes)
    np.testing.assert_array_equal((a & b).blocks(*tiling), de_morgan.blocks(*tiling))
    np.testing.assert_array_equal((a | a).blocks(*tiling), a.blocks(*tiling))


@given(RELATIONS)
def test_negation_twice_is_the_relation_itself(relation):
    assert ~~relation == relation


@pytest.mark.parametrize("other", [True, None, np.ones((3, 3), bool)], ids=["bool", "None", "array"])
@pytest.mark.parametrize("compose", [operator.and_, operator.or_])
def test_a_relation_composes_with_relations_only(compose, other):
    with pytest.raises(TypeError):
        compose(Causal(), other)


def test_a_users_relation_without_a_block_map_is_partial_everywhere_and_composes():
    assert (Near().blocks(2, 5, 5) == PARTIAL).all()
    np.testing.assert_array_equal((Near() & Causal()).matrix(4), np.eye(4) + np.eye(4, k=-1) > 0)
    for kind, tile in tiles(Near() & Causal(), 2, 7, 7):
        assert kind != FULL or tile.all()
        assert kind != EMPTY or not tile.any()


@pytest.mark.parametrize("name", ["block_size", "num_queries", "num_keys"])
def test_block_maps_of_nothing_are_refused(name):
    sizes = {"block_size": 2, "num_queries": 3, "num_keys": 4, name: 0}
    for relation in LEAVES:
        with pytest.raises(ValueError, match=f"`{name}` must be positive. Received: {name}=0"):
            relation.blocks(**sizes)


@given(RELATIONS)
def test_config_round_trip_is_the_identity(relation):
    config = relation.get_config()
    again = type(relation).from_config(config)
    assert again == relation
    assert again.get_config() == config
    assert json.loads(json.dumps(config)) == config


@given(RELATIONS)
def test_keras_serialisation_through_json_gives_an_equal_relation(relation):
    text = json.dumps(keras.saving.serialize_keras_object(relation))
    again = keras.saving.deserialize_keras_object(json.loads(text), safe_mode=True)
    assert again == relation
    assert relations.get(json.loads(text)) == relation


@given(RELATIONS, RELATIONS)
def test_relations_are_values_equal_and_hashable(a, b):
    assert (a & b) == And(a, b)
    assert hash(a | b) == hash(Or(a, b))
    assert len({a, dataclasses.replace(a)}) == 1
    assert Full() != Causal()


def test_relations_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        (Causal() & Full()).left = Full()


def test_relations_take_no_arrays_into_their_hash_or_repr():
    assert repr(Causal() & ~Full()) == "And(left=Causal(), right=Not(relation=Full()))"


# Symmetries: f is one of a group's maps of positions; a relation has the symmetry if related(f(i), f(j)) is
# related(i, j) for every pair.


def keeps(relation, positions):
    """Whether moving position i to positions[i], on both sides, changes nothing."""
    positions = np.asarray(positions)
    moved = relation.related(positions[:, None], positions[None, :])
    return np.array_equal(np.broadcast_to(moved, (len(positions),) * 2), relation.matrix(len(positions)))


LENGTH = 7
GROUPS = {
    relations.TRANSLATIONS: st.integers(0, 50).map(lambda m: np.arange(LENGTH) + m),
    relations.INCREASING_RELABELLINGS: st.lists(
        st.integers(0, 60), min_size=LENGTH, max_size=LENGTH, unique=True
    ).map(sorted),
    relations.PERMUTATIONS: st.permutations(range(LENGTH)),
}


@pytest.mark.parametrize("group", GROUPS)
@quick
@given(relation=RELATIONS, data=st.data())
def test_every_claimed_symmetry_holds(group, relation, data):
    if group in (relation & Full()).symmetries():
        assert keeps(relation, data.draw(GROUPS[group]))


@pytest.mark.parametrize(
    ("relation", "group", "positions"),
    [
        (Causal(), relations.PERMUTATIONS, [1, 0, 2]),
        (~Causal(), relations.PERMUTATIONS, [1, 0, 2]),
        (Causal() & Full(), relations.PERMUTATIONS, [2, 1, 0]),
        (Near(), relations.INCREASING_RELABELLINGS, [0, 2, 3]),
        (Near(), relations.PERMUTATIONS, [0, 2, 1]),
        (Near() | Causal(), relations.INCREASING_RELABELLINGS, [0, 2, 3]),
        (ToFirst(), relations.TRANSLATIONS, [1, 2, 3]),
    ],
    ids=str,
)
def test_a_symmetry_that_is_not_claimed_fails(relation, group, positions):
    assert group not in relation.symmetries()
    assert not keeps(relation, positions)


def test_symmetries_are_those_of_the_table():
    every = {relations.PERMUTATIONS, relations.INCREASING_RELABELLINGS, relations.TRANSLATIONS}
    assert Full().symmetries() == every
    assert Causal().symmetries() == every - {relations.PERMUTATIONS}
    assert (Near() & Causal()).symmetries() == {relations.TRANSLATIONS}


@pytest.mark.parametrize("relation", [Full(), Causal(), ~Causal(), (Full() & Causal()) | ~Full()], ids=repr)
def test_the_predicate_runs_on_tensors_and_on_batches_of_positions(relation):
    queries = np.array([[0, 1, 2], [5, 3, 4]], "int32")
    keys = np.array([[0, 1, 2, 3], [4, 5, 6, 3]], "int32")
    tensors = keras.ops.convert_to_tensor(queries), keras.ops.convert_to_tensor(keys)
    found = relation.related(tensors[0][..., None], tensors[1][:, None, :])
    expected = [
        [[by_definition(relation, i, j) for j in row] for i in q]
        for q, row in zip(queries, keys, strict=True)
    ]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("identifier", "expected"),
    [
        (None, Full()),
        ("full", Full()),
        ("causal", Causal()),
        (~Causal(), ~Causal()),
        (keras.saving.serialize_keras_object(Causal() | ~Full()), Causal() | ~Full()),
    ],
    ids=["None", "full", "causal", "relation", "config"],
)
def test_get_takes_every_identifier(identifier, expected):
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
def test_get_refuses_anything_else_and_says_what_it_got(identifier):
    with pytest.raises(ValueError, match="`relation` must be a Relation.*Received: relation="):
        relations.get(identifier)


@pytest.mark.parametrize("hidden", [-1e4, -1e9, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_from_additive_is_true_where_nothing_is_subtracted(hidden, dtype):
    allowed = Causal().matrix(4)
    with np.errstate(over="ignore"):
        additive = np.where(allowed, 0.0, hidden).astype(dtype)
    np.testing.assert_array_equal(relations.from_additive(additive), allowed)
    np.testing.assert_array_equal(relations.from_additive(keras.ops.convert_to_tensor(additive)), allowed)


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
def test_from_hidden_is_true_where_nothing_hides(dtype):
    allowed = Causal().matrix(4)
    hidden = (~allowed).astype(dtype)
    np.testing.assert_array_equal(relations.from_hidden(hidden), allowed)
    np.testing.assert_array_equal(relations.from_hidden(keras.ops.convert_to_tensor(hidden)), allowed)
