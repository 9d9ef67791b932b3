"""Laws of kernels: outputs and gradients equal the definition, and masked keys have no effect."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.ops import attention
from keras_transformer.relations import Adjacency, Causal, SlidingWindow, Strided

from .covering import AXES, legal, name, pairwise, random_cases
from .reference import RELATIONS, build, rounded, solve

neutral = pytest.mark.backend_neutral
on_tensorflow = pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="TensorFlow only")

# The rounding error of one (in float64, of the reference's difference quotients), and the allowed multiple.
UNIT = {"float64": 1e-10, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
ROUNDINGS = {"float64": 64, "float32": 64, "float16": 16, "bfloat16": 16}
CLOSE = {"rtol": 2e-5, "atol": 2e-6}

# The first cases also run on JAX, where each compiles for a second: every feature, but not with every score.
ON_JAX, MORE = pairwise(
    AXES, legal, (lambda a, b: "kernel" in (a, b) and "score" not in (a, b), lambda a, b: True)
)
COVERING = [
    *(pytest.param(case, id=name(case), marks=neutral) for case in ON_JAX[::2]),
    *(pytest.param(case, id=name(case), marks=(neutral, pytest.mark.slow)) for case in ON_JAX[1::2]),
    *(pytest.param(case, id=name(case), marks=pytest.mark.slow) for case in MORE),
]
# Every kernel with every supported relation, score and mode; other axes are random.
GRID = [
    pytest.param(case, id=name(case), marks=(neutral, pytest.mark.slow))
    for case in random_cases(AXES, legal, ("kernel", "relation", "score", "mode"))
]


def attend(reference_inputs, kernel, inputs, arguments):
    tensors = inputs["query"], inputs["key"], inputs["value"]
    return attention(*tensors, **reference_inputs.options(inputs), **arguments, kernel=kernel)


def check(case, pull_back, dtype=None):
    """Compare a case with the reference: finite, zero for queries without keys, equal up to rounding errors.

    Errors are relative to sums of absolute values: to the sum of the entry, and, as a rounded logit changes every
    weight of its row and derivatives such as of tanh cancel, to the mean of the sums.
    The reference has the same rounded inputs. In half precision, logits, weights and upstream gradients are rounded
    too, sometimes across the kink of a LeakyReLU: errors are compared as root mean squares.
    """
    reference_inputs = build(case, dtype)
    query, value = reference_inputs.inputs["query"], reference_inputs.inputs["value"]
    upstream = np.random.default_rng(3).normal(size=(*query.shape[:3], value.shape[-1]))
    upstream = rounded(upstream, reference_inputs.dtype)
    expected, sizes = solve(reference_inputs, upstream)
    # JAX compiles single operations for each shape; compiled graphs run the same operations.
    mode = "xla" if keras.config.backend() == "jax" else case["mode"]
    output, found = pull_back(
        mode,
        lambda inputs, arguments: attend(reference_inputs, case["kernel"], inputs, arguments),
        reference_inputs.tensors(),
        reference_inputs.arguments,
        ops.cast(upstream, reference_inputs.dtype),
    )
    found["output"] = output
    assert found.keys() == expected.keys()
    blind = ~reference_inputs.allowed.any(-1).transpose(0, 2, 1)
    assert (output[blind] == 0).all()
    for key, actual in found.items():
        assert np.isfinite(actual).all(), key
        size = sizes[key] + sizes[key].mean()
        error = abs(actual - expected[key])
        if "16" in reference_inputs.dtype:
            size, error = ((array**2).mean() ** 0.5 for array in (size, error))
        tiniest = 6e-8 if reference_inputs.dtype == "float16" else 1e-30  # the spacing of numbers near zero
        allowed = ROUNDINGS[reference_inputs.dtype] * (UNIT[reference_inputs.dtype] * size + tiniest)
        assert np.all(error <= allowed), f"{key}: {np.max(error / allowed):.1f} times what is allowed"


@pytest.mark.parametrize("case", COVERING)
def test_every_pair_of_options_equals_the_definition(case, small_blocks, pull_back):
    check(case, pull_back)


@pytest.mark.parametrize("case", GRID)
def test_every_score_in_every_kernel_equals_the_definition(case, small_blocks, pull_back):
    """Kernel × relation × score × mode, about 900 cases; dtype, lengths, heads and features are random."""
    check(case, pull_back)


# The most error-prone supported options of each kernel.
PLAIN = dict.fromkeys(AXES, "") | {
    "mode": "eager",
    "dtype": "float32",
    "score": "dot product",
    "lengths": "37x37",
    "heads": "2 of 4 heads",
}
TYPICAL = {
    "dense": {"relation": "causal", "mask": "mask BNTS", "padding": "padding", "segments": "segments"},
    "chunked": {"relation": "causal", "mask": "mask BNTS", "padding": "padding", "segments": "segments"},
    "banded": {"relation": "window", "mask": "mask BNTS", "padding": "padding", "segments": "segments"},
    "edges": {"relation": "graph", "mask": "mask BNTS", "padding": "padding", "edges": "edges"},
    "linear": {"relation": "causal", "score": "linear features", "padding": "padding"},
}
each_kernel = pytest.mark.parametrize("kernel", AXES["kernel"])


def typical(kernel, **changed):
    return PLAIN | TYPICAL[kernel] | {"kernel": kernel} | changed


# Masks, a short sequence or half precision may hide an error.
LENGTHS = ("37x37", "37x21", "21x37")
BARE = [
    PLAIN | {"kernel": kernel, "relation": relation, "lengths": lengths, "score": score}
    for kernel, score in zip(AXES["kernel"], ("dot product",) * 4 + ("linear features",), strict=True)
    for relation in AXES["relation"]
    for lengths in LENGTHS
] + [
    PLAIN | {"kernel": kernel, "relation": relation, "score": score}
    for kernel, relation in (("chunked", "causal"), ("banded", "window"), ("edges", "graph"))
    for score in AXES["score"][1:]
]


def bare(case):
    """Quick tests: each kernel with each relation (with other lengths), each score, and the linear kernel."""
    place = AXES["relation"].index(case["relation"]) + LENGTHS.index(case["lengths"])
    quick = place % 3 == 0 or case["score"] != "dot product"
    return pytest.param(case, id=name(case), marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize("case", [bare(case) for case in BARE if legal(case)])
def test_each_relation_and_score_without_other_options_equals_the_definition(case, small_blocks, pull_back):
    check(case, pull_back)


@on_tensorflow
@pytest.mark.slow_variants
@each_kernel
def test_float64_inputs_give_float64_outputs(kernel, small_blocks, pull_back):
    for score in ("linear features",) if kernel == "linear" else ("soft cap", "cosine", "gatv2", "gat"):
        check(typical(kernel, score=score), pull_back, "float64")


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(kernel, marks=neutral if kernel in ("chunked", "edges") else ())
        for kernel in AXES["kernel"]
    ],
)
def test_every_mode_gives_equal_outputs(kernel, small_blocks, modes):
    reference_inputs = build(typical(kernel, dropout="" if kernel == "linear" else "dropout"))
    arguments = {key: ops.convert_to_tensor(argument) for key, argument in reference_inputs.arguments.items()}
    found = {
        mode: wrap(lambda inputs, arguments: attend(reference_inputs, kernel, inputs, arguments))(
            reference_inputs.tensors(), arguments
        )
        for mode, wrap in modes.items()
    }
    for mode, output in found.items():
        np.testing.assert_allclose(output, found["eager"], **CLOSE, err_msg=mode)


class TestLeakage:
    """Changing a key and its value does not change a bit of the output of queries that do not attend to it."""

    @pytest.mark.slow_variants
    @pytest.mark.parametrize("dropout", ["", "dropout"])
    @pytest.mark.parametrize("dtype", AXES["dtype"])
    @pytest.mark.parametrize("kernel", ["dense", "chunked", "banded", "edges"])
    def test_masked_keys_do_not_change_the_output(self, kernel, dtype, dropout, small_blocks, modes):
        self.check(typical(kernel, dtype=dtype, dropout=dropout), modes)

    @pytest.mark.slow_variants
    @pytest.mark.parametrize("kernel", ["dense", "chunked", "banded", "edges"])
    @neutral
    def test_masked_keys_do_not_change_the_output_on_any_backend(self, kernel, small_blocks, modes):
        self.check(typical(kernel, dtype="float16", dropout="dropout"), modes)

    @pytest.mark.parametrize("dtype", AXES["dtype"])
    @pytest.mark.parametrize("relation", ["full", "causal"])
    @neutral
    def test_masked_keys_do_not_change_the_output_of_the_linear_kernel(
        self, relation, dtype, small_blocks, modes
    ):
        self.check(typical("linear", relation=relation, dtype=dtype), modes)

    @staticmethod
    def check(case, modes):
        reference_inputs = build(case)
        arguments = {
            key: ops.convert_to_tensor(argument) for key, argument in reference_inputs.arguments.items()
        }

        @modes["xla" if keras.config.backend() == "jax" else "graph"]
        def function(inputs, moved):
            key = inputs["key"] + moved[:, :, None, None]
            value = inputs["value"] - moved[:, :, None, None]
            return attend(reference_inputs, case["kernel"], inputs | {"key": key, "value": value}, arguments)

        inputs = reference_inputs.tensors()
        before = np.asarray(ops.cast(function(inputs, ops.zeros((1, 37), case["dtype"])), "float32"))
        checked = 0
        for j in range(0, 37, 4):
            moved = 50.0 * np.eye(37)[None, j]
            after = np.asarray(ops.cast(function(inputs, ops.cast(moved, case["dtype"])), "float32"))
            blind = ~reference_inputs.allowed[..., j].transpose(0, 2, 1)  # (B, T, N)
            np.testing.assert_array_equal(after[blind], before[blind])
            assert not np.array_equal(after, before) or blind.all()
            checked += blind.sum()
        assert checked > 1000


@pytest.mark.slow_variants
@pytest.mark.parametrize("hidden", ["-1e9", "lowest float32", "-inf"])
@pytest.mark.parametrize("kernel", ["dense", "chunked", "banded", "edges"])
def test_a_bias_may_be_an_additive_mask(kernel, hidden, small_blocks, pull_back):
    reference_inputs = build(typical(kernel, bias="bias BNTS", mask="", padding="", segments="", edges=""))
    lowest = {"-1e9": -1e9, "lowest float32": np.finfo("float32").min, "-inf": -np.inf}[hidden]
    mask = np.random.default_rng(1).random(reference_inputs.allowed.shape) < 0.6
    masked = reference_inputs.allowed & mask
    mask |= ~masked.any(
        -1, keepdims=True
    )  # each query keeps a key, as otherwise all biases would be equally low
    inputs = reference_inputs.tensors()
    additive = np.where(mask, reference_inputs.inputs["bias"], lowest).astype("float32")
    upstream = ops.ones_like(inputs["query"])
    tensors = inputs | {"bias": ops.convert_to_tensor(additive)}
    function = lambda inputs, arguments: attend(reference_inputs, kernel, inputs, arguments)  # noqa: E731
    found = pull_back("eager", function, tensors, {}, upstream)
    expected = pull_back("eager", function, inputs, {"mask": mask}, upstream)
    np.testing.assert_allclose(found[0], expected[0], **CLOSE)
    for key, gradient in found[1].items():
        np.testing.assert_allclose(gradient, expected[1][key], **CLOSE, err_msg=key)


@pytest.mark.parametrize("kernel", ["chunked", "banded", "edges"])
@pytest.mark.parametrize("size", [-300.0, 300.0])
def test_logits_may_be_large_and_increase_from_block_to_block(kernel, size, small_blocks):
    reference_inputs = build(typical(kernel, mask="", padding="", segments="", edges=""))
    bias = (size * np.arange(37.0)).astype("float32")
    tensors = [reference_inputs.inputs[key].astype("float32") for key in ("query", "key", "value")]
    relation = RELATIONS[reference_inputs.case["relation"]][0]
    found = np.asarray(attention(*tensors, relation, bias=bias, kernel=kernel))
    np.testing.assert_allclose(found, attention(*tensors, relation, bias=bias, kernel="dense"), **CLOSE)


class TestDropout:
    @pytest.mark.slow
    def test_every_kernel_drops_equal_pairs_in_every_mode(self, small_blocks, modes):
        # With basis vectors as values, the output is the matrix of weights after dropout.
        window = SlidingWindow(7, 3)
        matrix = window.matrix(37)
        graph = Adjacency(np.argwhere(matrix.T), 37)
        reference_inputs = build(typical("dense"))
        query, key = (ops.cast(reference_inputs.inputs[name], "float32") for name in ("query", "key"))
        value = np.broadcast_to(np.eye(37, dtype="float32")[:, None], (3, 37, 2, 37))
        expected = None
        for kernel, relation in (
            ("dense", window),
            ("chunked", window),
            ("banded", window),
            ("edges", graph),
        ):
            for mode, wrap in modes.items():
                output = np.asarray(
                    wrap(
                        lambda seed, kernel=kernel, relation=relation: attention(
                            query, key, value, relation, dropout=0.4, seed=seed, kernel=kernel
                        )
                    )(ops.convert_to_tensor([3, 5], "uint32"))
                )
                expected = output if expected is None else expected
                np.testing.assert_array_equal(output == 0, expected == 0, err_msg=f"{kernel}, {mode}")
                np.testing.assert_allclose(output, expected, **CLOSE)
        dropped = (expected == 0) & matrix[None, :, None]
        assert 0.35 < dropped.sum() / (matrix.sum() * 3 * 4) < 0.45


class TestEdges:
    """`edges` lists the related pairs of each row of the batch."""

    either = pytest.mark.parametrize("kernel", ["dense", "edges"])

    def tensors(self):
        return [
            build(PLAIN | {"relation": "full"}).inputs[key].astype("float32")
            for key in ("query", "key", "value")
        ]

    def listed(self):
        return np.random.default_rng(0).integers(0, 37, (2, 80, 2)).astype("int32")

    def matrix(self, edges):
        found = np.zeros((2, 37, 37), bool)
        for row in range(2):
            found[row, edges[row, :, 1], edges[row, :, 0]] = True
        return found

    @either
    def test_edges_are_equivalent_to_their_mask(self, kernel):
        edges = self.listed()
        expected = attention(*self.tensors(), mask=self.matrix(edges)[:, None], kernel="dense")
        np.testing.assert_allclose(attention(*self.tensors(), edges=edges, kernel=kernel), expected, **CLOSE)

    @either
    def test_duplicate_edges_count_once_in_any_order(self, kernel, gradients):
        edges = self.listed()
        again = np.concatenate([edges, edges[:, ::-1], edges[:, :30]], axis=1)
        for run in (
            lambda edges: attention(*self.tensors(), edges=edges, kernel=kernel),
            lambda edges: gradients(
                lambda *tensors: ops.sum(attention(*tensors, edges=edges, kernel=kernel) ** 2),
                *self.tensors(),
            ),
        ):
            for found, expected in zip(run(again), run(edges), strict=True):
                np.testing.assert_allclose(found, expected, **CLOSE)

    def ignored(self, kernel, nowhere):
        edges = self.listed()
        more = np.broadcast_to(np.array(nowhere, "int32"), (2, len(nowhere), 2))
        found = attention(*self.tensors(), edges=np.concatenate([more, edges, more], axis=1), kernel=kernel)
        np.testing.assert_allclose(found, attention(*self.tensors(), edges=edges, kernel="dense"), **CLOSE)

    @either
    @neutral
    def test_edges_may_be_padded_with_minus_one(self, kernel):
        self.ignored(kernel, [(-1, -1), (-1, 3), (5, -1), (-7, 2)])

    @pytest.mark.parametrize("edge", [(37, 3), (5, 37), (40, 45)], ids=str)
    @either
    @neutral
    def test_edges_outside_keys_or_queries_are_ignored(self, kernel, edge):
        self.ignored(kernel, [edge])

    @pytest.mark.parametrize("kernel", ["auto", "dense", "edges"])
    @neutral
    def test_attention_without_edges_gives_zeros(self, kernel):
        for edges in (np.zeros((2, 0, 2), "int32"), np.full((2, 4, 2), -1, "int32")):
            assert (np.asarray(attention(*self.tensors(), edges=edges, kernel=kernel)) == 0).all()

    @pytest.mark.parametrize(
        "relation", [Causal(), Strided(3), SlidingWindow(9, 9) & ~SlidingWindow(1, 1)], ids=str
    )
    def test_edges_and_a_relation_are_intersected(self, relation):
        edges = self.listed()
        mask = self.matrix(edges) & relation.matrix(37)
        expected = attention(*self.tensors(), mask=mask[:, None], kernel="dense")
        found = attention(*self.tensors(), relation, edges=edges, kernel="edges")
        np.testing.assert_allclose(found, expected, **CLOSE)

    @pytest.mark.parametrize("lengths", [(37, 0), (0, 37)], ids=str)
    @pytest.mark.parametrize("kernel", ["auto", "edges"])
    @neutral
    def test_zero_queries_or_keys_are_accepted(self, kernel, lengths):
        query, key, value = self.tensors()
        query, key, value = query[:, : lengths[0]], key[:, : lengths[1]], value[:, : lengths[1]]
        found = attention(query, key, value, edges=self.listed(), kernel=kernel)
        np.testing.assert_array_equal(found, np.zeros_like(query))
