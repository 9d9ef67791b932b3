"""Kernel choice, block schedules, and equality of the outputs of every choice."""

import contextlib
import functools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_transformer.ops import attention, dispatch, edges, explain, scores
from keras_transformer.ops.attention_inputs import AttentionInputs
from keras_transformer.ops.blockwise import passes, schedule
from keras_transformer.relations import (
    EMPTY,
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

from .covering import AXES, legal, name, random_cases
from .reference import build

neutral = pytest.mark.backend_neutral
CLOSE = {"rtol": 2e-5, "atol": 2e-6}
X = np.zeros((2, 6, 2, 4), "float32")
EDGES = np.zeros((2, 3, 2), "int32")


def label(value):
    """Return a short test id."""
    return "+".join(value) if isinstance(value, dict) else str(value)[:40]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def attention_inputs(relation, num_queries, num_keys, score=None, batch=1, heads=1):
    query, key = np.zeros((batch, num_queries, heads, 4)), np.zeros((batch, num_keys, heads, 4))
    return AttentionInputs(query, key, key, relation, score or scores.get(None))


def scheduled_pairs(block_schedule, num_queries, num_keys):
    """Return the numbers of blocks and of full blocks that compute each pair, (T, S) each."""
    size, count = block_schedule.block_size, block_schedule.num_parallel
    padding = block_schedule.num_leading_key_blocks * size
    shape = block_schedule.num_query_blocks * size, block_schedule.num_key_blocks * size
    assert shape[0] >= num_queries
    assert shape[1] >= padding + num_keys
    computed = np.zeros((2, *shape), int)
    starts = zip(block_schedule.query_starts, block_schedule.key_starts, strict=True)
    for block, (row, column) in enumerate(starts):
        # `ops.slice` would move a slice that exceeds the end.
        assert 0 <= row <= block_schedule.num_query_blocks - count
        assert 0 <= column <= block_schedule.num_key_blocks - (count + block_schedule.window - 1)
        for offset in range(count):
            queries = slice((row + offset) * size, (row + offset + 1) * size)
            keys = slice((column + offset) * size, (column + offset + block_schedule.window) * size)
            computed[0, queries, keys] += 1
            computed[1, queries, keys] += block >= block_schedule.num_partial
    assert computed[0].sum() == block_schedule.num_pairs
    return computed[:, :num_queries, padding : padding + num_keys]


small = st.integers(0, 12)
RELATIONS = st.recursive(
    st.one_of(
        st.sampled_from([Full(), Bipartite(), Causal()]),
        st.builds(SlidingWindow, st.none() | small, st.none() | small),
        st.builds(PrefixLM, small),
        st.builds(Strided, st.integers(1, 7), st.booleans()),
        st.builds(Dilated, st.integers(0, 4), st.integers(1, 4)),
        st.builds(GlobalTokens, st.lists(small, max_size=3)),
        st.builds(Adjacency, st.lists(st.tuples(small, small), max_size=8), st.just(13)),
    ),
    lambda some: st.one_of(
        st.builds(lambda a, b: a & b, some, some),
        st.builds(lambda a, b: a | b, some, some),
        st.builds(lambda a: ~a, some),
    ),
    max_leaves=3,
)
lengths = st.integers(1, 45)
bandwidths = st.integers(0, 12)


def block_sizes(patch, **sizes):
    """Patch the block sizes."""
    device = schedule.device_type()
    patch.setitem(schedule.BLOCK_SIZES, device, schedule.BLOCK_SIZES[device]._replace(**sizes))


@contextlib.contextmanager
def constants(**sizes):
    """Patch the block sizes within tests that hypothesis repeats."""
    with pytest.MonkeyPatch.context() as patch:
        block_sizes(patch, **sizes)
        yield


class TestBlockSchedule:
    @pytest.mark.slow
    @given(RELATIONS, lengths, lengths, st.integers(1, 20), st.sampled_from([1, 4]))
    @settings(max_examples=150, deadline=None)
    def test_chunks_contain_every_related_pair_once(self, relation, num_queries, num_keys, size, width):
        score = scores.Additive(np.zeros((1, width))) if width > 1 else None
        with constants(largest=size * width):
            block_schedule = schedule.chunked(attention_inputs(relation, num_queries, num_keys, score))
        self.check(relation, num_queries, num_keys, block_schedule)

    @given(RELATIONS, bandwidths, bandwidths, lengths, lengths, st.integers(1, 20), st.integers(1, 3000))
    @settings(max_examples=150, deadline=None)
    def test_bands_contain_every_related_pair_once(
        self, relation, left, right, num_queries, num_keys, size, pairs
    ):
        relation = SlidingWindow(left, right) & relation
        with constants(narrow_band=size, wide_band=size, band_pairs=pairs):
            block_schedule = schedule.banded(attention_inputs(relation, num_queries, num_keys))
        self.check(relation, num_queries, num_keys, block_schedule)

    @staticmethod
    def check(relation, num_queries, num_keys, block_schedule):
        computed, full = scheduled_pairs(block_schedule, num_queries, num_keys)
        related = relation.matrix(num_queries, num_keys)
        assert computed.max(initial=0) <= 1
        assert (computed[related] == 1).all()
        assert related[full > 0].all()

    @pytest.mark.parametrize("length", [1, 15, 16, 64, 70])
    @pytest.mark.parametrize(
        "relation", [Causal(), SlidingWindow(20), SlidingWindow(3, 5), Strided(40), ~Full()], ids=str
    )
    def test_chunks_are_the_non_empty_blocks(self, relation, length, small_blocks):
        block_schedule = schedule.chunked(attention_inputs(relation, length, length))
        blocks = relation.blocks(block_schedule.block_size, length, length)
        assert block_schedule.num_pairs == (blocks != EMPTY).sum() * block_schedule.block_size**2
        assert block_schedule.num_partial == (blocks == 1).sum()
        if relation == Causal() and length == 64:
            assert block_schedule.num_pairs == (4 * 5 // 2) * 16**2

    def test_bands_grow_only_with_the_length_and_the_bandwidth(self, small_blocks, monkeypatch):
        block_sizes(monkeypatch, band_pairs=1)
        pairs = [
            schedule.banded(attention_inputs(SlidingWindow(8), n, n)).num_pairs for n in (256, 512, 1024)
        ]
        assert pairs == [256 * 16, 512 * 16, 1024 * 16]  # the block of the query and the previous one
        assert schedule.banded(attention_inputs(SlidingWindow(9), 256, 256)).num_pairs == 256 * 24

    @pytest.mark.parametrize("length", [2**15, 2**17, 2**20])
    def test_long_bands_have_few_blocks(self, length):
        block_schedule = schedule.banded(attention_inputs(SlidingWindow(256), length, length))
        assert block_schedule.num_blocks <= schedule.MAX_BAND_BLOCKS
        size = schedule.BLOCK_SIZES[schedule.device_type()].wide_band
        assert block_schedule.num_pairs < 1.1 * length * (256 + 2 * size)

    @pytest.mark.slow
    @given(st.lists(st.integers(0, 5), max_size=20), st.integers(0, 20))
    @settings(deadline=None)
    def test_a_scan_accumulates_every_block_once_as_partial_or_full(self, starts, num_partial):
        num_partial = min(num_partial, len(starts))
        order = schedule.scan_order(np.array(starts, "int32"), num_partial)

        def scan_step(step, found):
            start = ops.convert_to_tensor(order.starts)[step]

            def accumulate(block, found, is_partial):
                assert is_partial == bool(block < num_partial)
                return ops.scatter_update(found, [[block]], [start + 10 * (1 + found[block])])

            return passes.accumulate_step(order, step, accumulate, found)

        found = passes.scan(order, scan_step, ops.zeros(max(1, len(starts)), "int32"))
        assert ops.convert_to_numpy(found)[: len(starts)].tolist() == [start + 10 for start in starts]

    @pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="TensorFlow alone overlaps iterations")
    def test_scan_steps_do_not_overlap(self):
        import tensorflow as tf

        events = []

        def note(event, start, value):
            events.append((event, int(start)))
            return value

        def scan_step(step, carry):
            # One computation depends on the carry, the other does not. TensorFlow orders stateful functions.
            python = functools.partial(tf.numpy_function, Tout=tf.float32, stateful=False)
            begun = python(lambda step: note("begin", step, np.float32(0)), [step])
            ended = python(lambda step, *values: note("end", step, sum(values)), [step, begun, carry[0]])
            return [tf.ensure_shape(ended, [])]

        order = schedule.scan_order(np.arange(20, dtype="int32"), 20)
        scan = tf.function(lambda carry: passes.scan(order, scan_step, [carry]), autograph=False)
        scan(tf.zeros([]))
        assert events == [(event, step) for step in range(20) for event in ("begin", "end")]

    @pytest.mark.parametrize("kernel", ["chunked", "banded"])
    @pytest.mark.parametrize("lengths", [(100, 3), (3, 100), (16, 17)], ids=str)
    def test_queries_without_keys_in_the_window_give_zeros(self, kernel, lengths, small_blocks):
        query, key = normal(2, lengths[0], 2, 4), normal(2, lengths[1], 2, 4)
        relation = SlidingWindow(2)
        found = np.asarray(attention(query, key, key, relation, kernel=kernel))
        np.testing.assert_allclose(found, attention(query, key, key, relation, kernel="dense"), **CLOSE)
        assert (found[:, ~relation.matrix(*lengths).any(-1)] == 0).all()


@pytest.mark.parametrize("kernel", ["dense", "chunked", "banded"])
@pytest.mark.parametrize("left", [36, 37, 1000])
def test_a_window_of_the_sequence_length_equals_causal_attention(kernel, left, small_blocks):
    tensors = [normal(2, 37, 2, 4, seed=seed) for seed in range(3)]
    expected = attention(*tensors, "causal", kernel="dense")
    np.testing.assert_allclose(attention(*tensors, SlidingWindow(left), kernel=kernel), expected, **CLOSE)


@pytest.fixture
def eager_to_choose(small_blocks, monkeypatch):
    """ "auto" chooses the special kernels for short sequences too."""
    monkeypatch.setattr(dispatch, "MAX_DENSE_LENGTH", 12)
    monkeypatch.setattr(dispatch, "MAX_DENSE_BAND_LENGTH", 12)
    monkeypatch.setattr(dispatch, "FEW_TOKENS", 4)
    monkeypatch.setattr(dispatch, "EDGE_COST", 2)
    block_sizes(monkeypatch, pairs=2**20, band_pairs=2**20)


@pytest.fixture
def used(monkeypatch):
    """Record the kernels that `attention` used, in order."""
    names = []
    for key, function in list(dispatch._ATTEND.items()):
        record = lambda *given, key=key, function=function: names.append(key) or function(*given)  # noqa: E731
        monkeypatch.setitem(dispatch._ATTEND, key, record)
    return names


# Every relation with every score; the quick tests combine each with some.
ANY = [
    pytest.param(
        case | {"dtype": "float32"},
        id=name(case),
        marks=pytest.mark.slow
        if (AXES["relation"].index(case["relation"]) + AXES["score"].index(case["score"])) % 4
        else (),
    )
    for case in random_cases({**AXES, "kernel": ["dense"]}, legal, ("relation", "score"))
]


class TestAuto:
    @pytest.mark.slow_variants
    @pytest.mark.parametrize("case", ANY)
    def test_auto_equals_dense_and_uses_the_explained_kernel(self, case, eager_to_choose, used):
        given = build(case)
        inputs = given.tensors()
        tensors = inputs["query"], inputs["key"], inputs["value"]
        options = given.options(inputs) | given.arguments
        found = attention(*tensors, **options)
        explanation = explain(*tensors, **options)
        assert used == [explanation.kernel]
        assert explanation.reason
        assert explanation.flops >= 0
        np.testing.assert_allclose(found, attention(*tensors, **options, kernel="dense"), **CLOSE)

    @pytest.mark.parametrize(
        ("relation", "options", "kernel"),
        [
            (None, {}, "chunked"),
            ("causal", {}, "chunked"),
            ("causal", {"key_positions": np.arange(64)}, "chunked"),
            (SlidingWindow(4), {}, "banded"),
            (SlidingWindow(4), {"query_positions": np.arange(64)}, "chunked"),
            (SlidingWindow(60), {}, "chunked"),
            (Adjacency([(0, 1), (5, 2)], 64), {}, "edges"),
            (Adjacency(np.argwhere(np.ones((64, 64))), 64), {}, "chunked"),
            (None, {"edges": EDGES}, "edges"),
            (None, {"edges": np.zeros((2, 4000, 2), "int32")}, "dense"),
            (None, {"score": "linear"}, "linear"),
            ("causal", {"score": "linear", "dropout": 0.1, "seed": np.array([1, 2])}, "chunked"),
        ],
        ids=label,
    )
    def test_auto_chooses_a_suitable_kernel(self, relation, options, kernel, eager_to_choose, used):
        x = normal(2, 64, 2, 4)
        attention(x, x, x, relation, **options)
        assert used == [kernel] == [explain(x, x, x, relation, **options).kernel]
        assert dispatch.MAX_DENSE_LENGTH == 12

    def test_auto_chooses_dense_for_short_sequences(self, used):
        attention(X, X, X, SlidingWindow(2))
        assert used == ["dense"]

    @pytest.mark.parametrize("relation", [None, "causal", SlidingWindow(1)], ids=str)
    @pytest.mark.parametrize("lengths", [(0, 3), (3, 0), (0, 0)], ids=str)
    def test_auto_accepts_zero_queries_and_keys(self, lengths, relation):
        query, key = normal(2, lengths[0], 2, 4), normal(2, lengths[1], 2, 4)
        for score in ("linear", None):
            found = attention(query, key, key, relation, score=score)
            np.testing.assert_array_equal(found, np.zeros_like(query))


def test_blocks_are_larger_on_gpus(monkeypatch):
    x = keras.KerasTensor((8, 4096, 8, 64))

    def blocks(relation, kernel):
        return explain(x, x, x, relation, kernel=kernel).bytes

    on_cpu = [blocks("causal", "chunked"), blocks(SlidingWindow(1024), "banded")]
    monkeypatch.setattr(schedule, "device_type", lambda: "gpu")
    on_gpu = [blocks("causal", "chunked"), blocks(SlidingWindow(1024), "banded")]
    assert on_gpu[0] > on_cpu[0]
    assert on_gpu[1] > on_cpu[1]


class TestExplain:
    def test_explain_counts_operations_and_bytes(self, small_blocks):
        x, y = np.zeros((3, 32, 4, 4), "float32"), np.zeros((3, 32, 2, 6), "float32")
        key = np.zeros((3, 32, 2, 4), "float32")
        rows = 3 * 4

        def costs(relation, kernel, **options):
            found = explain(x, key, y, relation, kernel=kernel, **options)
            assert (found.kernel, found.reason) == (kernel, "requested")
            return found.flops / (2 * rows * (4 + 6)), found.bytes / (4 * rows)

        assert costs("causal", "dense") == (32 * 32, 32 * 32)
        assert costs("causal", "chunked") == (3 * 16 * 16, 16 * 16)
        assert costs(SlidingWindow(8), "banded")[0] == 32 * 16
        assert costs(None, "edges", edges=np.zeros((3, 7, 2), "int32")) == (7, 7)
        assert costs(Adjacency([(0, 1), (1, 1)], 32), "edges") == (2, 2)
        assert costs(None, "linear", score="linear")[0] < 32 * 32
        additive = scores.Additive(np.zeros((4, 4), "float32"))
        assert costs(None, "dense", score=additive) == (32 * 32, 4 * 32 * 32)

    def test_explain_needs_only_shapes(self):
        x = keras.KerasTensor((1, 100_000, 8, 64))
        found = explain(x, x, x, SlidingWindow(128))
        assert found.kernel == "banded"
        assert found.bytes < 2**26
        assert explain(x, x, x, "causal").kernel == "chunked"
        assert explain(x, x, x, score="linear").kernel == "linear"

    def test_an_empty_relation_has_no_operations(self):
        assert explain(X, X, X, ~Full(), kernel="chunked").flops == 0


@pytest.mark.parametrize(
    ("kernel", "relation", "options", "reason"),
    [
        ("chunked", None, {"edges": EDGES}, "edges"),
        ("banded", None, {}, "no finite bandwidth"),
        ("banded", "causal", {}, "no finite bandwidth"),
        ("banded", SlidingWindow(None, 3), {}, "no finite bandwidth"),
        ("banded", SlidingWindow(2), {"query_positions": np.arange(6)}, "positions"),
        ("banded", SlidingWindow(2), {"edges": EDGES}, "edges"),
        ("edges", None, {}, "edges"),
        ("edges", Adjacency([(0, 1)], 2), {"key_positions": np.arange(6)}, "positions"),
        ("linear", None, {}, "LinearFeatures"),
        ("linear", SlidingWindow(2), {"score": "linear"}, "neither full nor causal"),
        ("linear", None, {"score": "linear", "bias": np.zeros((6, 6))}, "`bias`"),
        ("linear", None, {"score": "linear", "mask": np.ones((6, 6), bool)}, "`mask`"),
        ("linear", None, {"score": "linear", "edges": EDGES}, "`edges`"),
        ("linear", None, {"score": "linear", "segment_ids": np.zeros((2, 6), "int32")}, "`segment_ids`"),
        ("linear", "causal", {"score": "linear", "key_positions": np.arange(6)}, "`key_positions`"),
        ("linear", None, {"score": "linear", "dropout": 0.1, "seed": np.array([1, 2])}, "dropped"),
        ("flash", None, {}, "'auto' or one of"),
    ],
    ids=label,
)
@neutral
def test_explain_names_the_reasons_against_a_kernel(kernel, relation, options, reason):
    for function in (attention, explain):
        with pytest.raises(ValueError, match=f"`kernel` .*{kernel!r}|`kernel`.*{reason}") as error:
            function(X, X, X, relation, **options, kernel=kernel)
        assert reason in str(error.value)
        assert repr(kernel) in str(error.value)
    if kernel != "flash":
        attention(X, X, X, relation, **options)


@neutral
def test_the_causal_linear_kernel_needs_equally_many_queries_and_keys():
    with pytest.raises(ValueError, match="`kernel`.*unequal numbers of queries and keys"):
        attention(X[:, :3], X, X, "causal", score="linear", kernel="linear")


STACKS = {
    "dense": ("causal", "scaled_dot_product"),
    "chunked": ("causal", "scaled_dot_product"),
    "banded": (SlidingWindow(5, 2), "scaled_dot_product"),
    "edges": (Adjacency(np.argwhere(SlidingWindow(5, 2).matrix(37)), 37), "scaled_dot_product"),
    "linear": ("causal", "linear"),
}


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="JAX has static shapes")
class TestUnknownShapes:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "compiled", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["graph", "xla"]
    )
    @pytest.mark.parametrize("kernel", STACKS)
    def test_gradients_with_an_unknown_batch_size_equal_eager_gradients(self, kernel, compiled, small_blocks):
        import tensorflow as tf

        relation, score = STACKS[kernel]
        dropout = {} if kernel == "linear" else {"dropout": 0.2, "seed": np.array([1, 2])}

        def stack(x, padding_mask):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x
                for _ in range(4):
                    y = x + attention(
                        y, y, y, relation, score=score, padding_mask=padding_mask, kernel=kernel, **dropout
                    )
            return y, tape.gradient(y, x)

        signature = [tf.TensorSpec((None, 37, 2, 4)), tf.TensorSpec((None, 37), tf.bool)]
        traced = tf.function(stack, input_signature=signature, jit_compile=compiled)
        for batch in (1, 3):
            x = tf.constant(normal(batch, 37, 2, 4) / 2)
            padding_mask = tf.constant(np.arange(37) < np.array([[30], [0], [37]])[:batch])
            for found, expected in zip(traced(x, padding_mask), stack(x, padding_mask), strict=True):
                tolerance = 1e-4 * np.max(np.abs(expected))
                np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("relation", "options"),
        [("causal", {}), (SlidingWindow(3), {}), ("causal", {"score": "linear"})],
        ids=label,
    )
    def test_auto_chooses_dense_for_unknown_lengths(self, relation, options, eager_to_choose, used):
        import tensorflow as tf

        signature = [tf.TensorSpec((2, None, 2, 4))] * 2
        function = tf.function(
            lambda x, y: attention(x, y, y, relation, **options), input_signature=signature
        )
        for num_queries, num_keys in ((37, 37), (21, 30)):
            x, y = normal(2, num_queries, 2, 4), normal(2, num_keys, 2, 4, seed=1)
            np.testing.assert_allclose(
                function(x, y), attention(x, y, y, relation, **options, kernel="dense"), **CLOSE
            )
        assert used[0] == "dense"
        chunked = tf.function(
            lambda x, y: attention(x, y, y, relation, kernel="chunked"), input_signature=signature
        )
        with pytest.raises(ValueError, match="`kernel` .*kernel='chunked', but lengths are not static"):
            chunked(x, y)

    @pytest.mark.slow
    @pytest.mark.slow_variants
    @pytest.mark.parametrize("compiled", [False, True], ids=["graph", "xla"])
    def test_edges_of_unknown_length_are_supported(self, compiled):
        import tensorflow as tf

        signature = [tf.TensorSpec((None, None, 2, 4)), tf.TensorSpec((None, None, 2), tf.int32)]
        function = tf.function(
            lambda x, edges: attention(x, x, x, "causal", edges=edges),
            input_signature=signature,
            jit_compile=compiled,
        )
        for nodes in (5, 9):
            x, edges = normal(2, nodes, 2, 4), np.random.default_rng(nodes).integers(-1, nodes, (2, 20, 2))
            edges = edges.astype("int32")
            expected = attention(x, x, x, "causal", edges=edges, kernel="dense")
            np.testing.assert_allclose(function(x, edges), expected, **CLOSE)


@pytest.mark.parametrize("kernel", STACKS)
@neutral
def test_an_empty_batch_gives_an_empty_batch(kernel, eager_to_choose):
    relation, score = STACKS[kernel]
    empty = ops.zeros((0, 37, 2, 4))
    assert attention(empty, empty, empty, relation, score=score).shape == (0, 37, 2, 4)


@pytest.mark.parametrize("kernel", ["dense", "chunked", "edges"])
@neutral
def test_an_empty_relation_gives_zeros_and_zero_gradients(kernel, gradients):
    edges = {"edges": np.full((2, 1, 2), -1, "int32")} if kernel == "edges" else {}
    x = normal(2, 6, 2, 4)
    assert (np.asarray(attention(x, x, x, ~Full(), **edges, kernel=kernel)) == 0).all()
    for gradient in gradients(lambda x: ops.sum(attention(x, x, x, ~Full(), **edges, kernel=kernel)), x):
        assert (gradient == 0).all()


def test_an_additive_score_of_large_heads_can_be_chunked():
    size = schedule.BLOCK_SIZES[schedule.device_type()].largest + 1
    x = normal(1, 3, 1, size)
    score = scores.Additive(normal(1, size))
    np.testing.assert_allclose(
        attention(x, x, x, score=score, kernel="chunked"), attention(x, x, x, score=score), **CLOSE
    )


@neutral
@pytest.mark.parametrize("num_nodes", [7, 60_000], ids="{} nodes".format)
def test_edges_are_sorted_by_target_for_any_number_of_nodes(num_nodes):
    pairs = np.random.default_rng(0).integers(num_nodes - 5, num_nodes, (2, 40, 2)).astype("int32")
    source, target = edges._by_target(pairs[..., 0], pairs[..., 1], num_nodes, num_nodes + 1)
    found = np.stack([ops.convert_to_numpy(target), ops.convert_to_numpy(source)], axis=-1)
    assert found.tolist() == [sorted(row) for row in pairs[..., ::-1].tolist()]
