import collections
import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")

from keras_transformer.export.to_onnx import conversion, graph_traversal, rewrites, sizes  # noqa: E402
from keras_transformer.generation.search import logits  # noqa: E402
from keras_transformer.layers.feed_forward import activation_function  # noqa: E402
from keras_transformer.models import BERT  # noqa: E402
from keras_transformer.ops import indexing  # noqa: E402
from tests.export.conversions import converted  # noqa: E402

X = np.random.default_rng(0).normal(size=(2, 3, 8)).astype("float32")


def test_a_dense_layer_is_one_multiplication_and_one_addition():
    layer = keras.layers.Dense(5, bias_initializer="normal")
    layer.build((None, None, 8))
    counts, found, expected, _ = converted(layer, X)
    assert counts["MatMul"] == 1
    assert counts["Reshape"] == 0
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_dense_layer_of_a_branch_in_a_loop_is_not_reshaped():
    layer = keras.layers.Dense(8)
    layer.build((None, None, 8))

    def function(x):
        def body(i, y):
            return i + 1, y + tf.cond(tf.equal(i, 0), lambda: layer(y), lambda: tf.sin(y))

        return tf.while_loop(lambda i, _: i < 2, body, (0, x))[1]

    counts, found, expected, _ = converted(function, X, variables=layer.weights)
    assert counts["MatMul"] == 1
    assert counts["Reshape"] == 0
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("axes", [[[1], [0]], [[1, 2], [1, 0]]], ids=str)
def test_multiplications_over_other_axes_are_unchanged(axes):
    shape = (3, 4) if len(axes[0]) == 1 else (8, 3)
    weights = np.random.default_rng(1).normal(size=shape).astype("float32")
    _, found, expected, _ = converted(lambda x: tf.tensordot(x, weights, axes), X)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("scale", [True, False])
def test_layer_normalization_is_one_operation(scale):
    layer = keras.layers.LayerNormalization(
        epsilon=0.1, gamma_initializer="normal", beta_initializer="normal", scale=scale
    )
    layer.build(X.shape)
    counts, found, expected, _ = converted(layer, X)
    assert counts["LayerNormalization"] == int(scale)  # every published model has a scale
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_similar_normalizations_are_not_fused():
    def function(x):
        mean = tf.reduce_mean(x, axis=-1, keepdims=True)
        other = tf.reduce_mean(x, axis=1, keepdims=True)
        variance = tf.reduce_mean((x - other) ** 2, axis=-1, keepdims=True)
        scale = tf.math.rsqrt(variance + 0.1) * np.arange(8, dtype="float32")
        return x * scale + (-mean * scale + np.ones(8, "float32"))

    counts, found, expected, _ = converted(function, X)
    assert counts["LayerNormalization"] == 0
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_where_ignores_nan_in_values_that_are_not_selected(dtype):
    condition = np.array([True, False, True])[:, None] & np.ones((3, 4), bool)
    yes = np.full((3, 4), 7).astype(dtype)
    no = np.full((3, 4), np.nan if dtype == "float32" else 0).astype(dtype)
    counts, found, expected, _ = converted(tf.where, condition, yes, no)
    assert counts["Mul"] == 0
    np.testing.assert_array_equal(found, expected)


def test_unused_nodes_are_removed():
    layer = keras.layers.Dense(5)
    layer.build((None, None, 8))
    *_, graph = converted(layer, X)
    read = {name for node in graph.graph.node for name in node.input}
    assert {constant.name for constant in graph.graph.initializer} <= read


def test_known_sizes_of_reshapes_become_constants():
    def function(x):
        shape = tf.shape(x)
        return tf.reshape(x * 2, [shape[0], shape[1] * 2, 4])

    counts, found, expected, _ = converted(function, X)
    assert counts["Shape"] == 0
    np.testing.assert_array_equal(found, expected)


def test_a_new_axis_needs_no_slice():
    counts, found, expected, _ = converted(lambda x: tf.tanh(x)[:, None] * x[:, :, None], X)
    assert counts["Slice"] == 0
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_partial_slices_are_kept():
    counts, found, expected, _ = converted(lambda x: (x[:, 1:, None] * x[:, None, ::2])[:, :1, :, :-1], X)
    assert counts["Slice"]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_lookups_support_negative_indices(axis):
    index = np.array([-1, 0, 1, -2, 0], "int32")[:, None]

    def function(x, index):
        return keras.ops.take(tf.tanh(x), index[:, 0] - 0, axis=axis)

    counts, found, expected, _ = converted(function, X, index)
    assert counts["Where"] == counts["Less"] == 0
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2], ids="index + {}".format)
def test_other_index_computations_are_kept(size):
    index = np.array([-1, 0, 1, -2, 0], "int32")[:, None]

    def function(x, index):
        row = index[:, 0]
        return tf.gather(x, tf.where(row < 0, row + size, row), axis=1)

    counts, found, expected, _ = converted(function, X, index + 1)
    assert counts["Where"]
    np.testing.assert_array_equal(found, expected)


def test_integers_are_compared_as_integers():
    close = np.array([[2**24, 2**24 + 1]], "int32")
    _, found, _, _ = converted(lambda x: (x[:, :1] < x[:, 1:]) | (x[:, :1] > x[:, 1:]), close)
    assert found.all()


def test_consecutive_reshapes_are_merged():
    def function(x):
        heads = tf.reshape(tf.tanh(x), [-1, 3, 2, 4]) * 0.5
        return tf.reshape(heads, [-1, 6, 4])

    counts, found, expected, _ = converted(function, X)
    assert counts["Reshape"] == 1
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_heads_computed_from_all_nodes_keep_their_shape():
    layer = keras.layers.Dense(6)
    layer.build((None, None, 8))

    def function(x):
        rows = tf.reshape(layer(x), [tf.shape(x)[0], tf.shape(x)[1], 1, 6])
        return tf.reshape(rows, [-1, 1, 6])

    _, found, expected, _ = converted(function, X)
    assert found.shape == (6, 1, 6)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_reshape_to_the_same_sizes_is_removed():
    counts, found, expected, _ = converted(lambda x: tf.reshape(2 * x, [tf.shape(x)[0], 3, 8]) + 1, X)
    assert counts["Reshape"] == 0
    np.testing.assert_array_equal(found, expected)

    counts, found, expected, _ = converted(lambda x: tf.reshape(2 * x, [tf.shape(x)[0], 8, 3]) + 1, X)
    assert counts["Reshape"] == 1
    np.testing.assert_array_equal(found, expected)


def test_a_reshape_with_another_consumer_is_kept():
    def function(x):
        heads = tf.reshape(tf.tanh(x), [-1, 3, 2, 4])
        return tf.reshape(heads, [-1, 24]) + tf.reduce_max(heads, axis=[1, 2, 3])[:, None]

    counts, found, expected, _ = converted(function, X)
    assert counts["Reshape"] == 2
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_broadcast_mask_becomes_an_addition():
    mask = np.array([[True, False, True, True]] * 2)[:, None]

    def function(x, mask):
        scores = tf.matmul(x, x[:, :, :], transpose_b=True)[:, :, :, None] * tf.ones(4)
        return tf.nn.softmax(tf.where(mask[:, None], scores, -1e30))

    counts, found, expected, _ = converted(function, X, mask)
    assert (counts["Where"], counts["Softmax"]) == (1, 1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (found[..., 1] == 0).all()


def test_a_where_with_consumers_other_than_softmax_is_kept():
    mask = np.array([[True, False, True]] * 2)[:, None]

    def function(x, mask):
        scores = tf.where(mask, tf.matmul(x, x, transpose_b=True), -1e30)
        return tf.nn.softmax(scores) + scores

    _, found, expected, _ = converted(function, np.rint(4 * X), mask)  # products of integers are exact
    np.testing.assert_array_equal(found, expected)


def optimized(graph, path):
    """Return the operations of a graph after ONNX Runtime's optimization."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(path), 3
    onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return collections.Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.mark.parametrize("of_keras", [True, False])
def test_gelu_is_fused_with_the_bias_before_it(of_keras, tmp_path):
    activation = keras.activations.gelu if of_keras else activation_function(keras.activations.gelu)
    layer = keras.layers.Dense(5, activation=activation, bias_initializer="normal")
    layer.build((None, None, 8))
    _, found, expected, graph = converted(layer, X)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert optimized(graph, tmp_path / "it.onnx")["BiasGelu"] == 1


def test_normalization_by_the_root_mean_square_is_fused(tmp_path):
    layer = keras.layers.RMSNormalization(epsilon=0.1)
    layer.build((None, *X.shape[1:]))
    layer.scale.assign(np.random.default_rng(1).normal(size=8))
    counts, found, expected, graph = converted(layer, X)
    assert counts["Reciprocal"] == 0
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert optimized(graph, tmp_path / "it.onnx")["SimplifiedLayerNormalization"] == 1


def test_other_quotients_of_roots_are_kept():
    def function(x):
        return tf.tanh(x) * tf.math.rsqrt(tf.reduce_mean(x * x, axis=-1, keepdims=True) + 0.1)

    counts, found, expected, _ = converted(function, X)
    assert (counts["Reciprocal"], counts["Pow"]) == (1, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "computed"),
    [
        (lambda x: [-1, tf.shape(x)[1], 2, 4], 0),  # heads
        (lambda x: [tf.shape(x)[0], tf.shape(x)[1], 2, 4], 0),
        (lambda x: [tf.shape(x)[1], -1, 8], 1),  # another axis
        (lambda x: [-1, tf.shape(x)[1] * 2, 4], 1),
    ],
)
def test_sizes_of_the_input_are_copied_by_reshapes(sizes, computed):
    spec = [tf.TensorSpec([None, None, 8], tf.float32, name="x")]
    graph = conversion.convert(
        "f", lambda x: {"y": tf.reshape(x, sizes(x))}, spec, {"x": ["a", "b"], "y": []}
    )
    counts = collections.Counter(node.op_type for node in graph.graph.node)
    assert (counts["Shape"] > 0) == computed
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    for x in (X, X[:, :1], X[:1]):
        np.testing.assert_array_equal(session.run(["y"], {"x": x})[0], tf.reshape(x, sizes(x)))


@pytest.mark.slow
def test_an_encoder_has_one_gelu_for_each_layer_and_few_casts(tmp_path):
    encoder = BERT(30, num_layers=2, num_heads=2, model_dim=8, hidden_dim=16, max_length=20)
    for weight in encoder.trainable_weights:  # biases of zero are removed
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    spec = [tf.TensorSpec([None, None], tf.int64, name="input_ids")]
    graph = conversion.convert("f", lambda ids: {"y": encoder(ids)}, spec, {"input_ids": [], "y": []})
    counts = optimized(graph, tmp_path / "it.onnx")
    assert counts["BiasGelu"] == 2
    assert counts["Cast"] <= 2
    assert counts["Shape"] <= 2


@pytest.mark.parametrize("transposed", [True, False])
def test_the_scale_of_queries_follows_the_split_into_heads(transposed):
    def function(x):
        heads = tf.reshape(tf.tanh(x) * 0.5, [-1, 3, 2, 4])
        return tf.matmul(tf.transpose(heads, [0, 2, 1, 3]) if transposed else heads, tf.ones((4, 5)))

    _, found, expected, graph = converted(function, X)
    (product,) = [node for node in graph.graph.node if node.op_type == "MatMul"]
    (scale,) = [node for node in graph.graph.node if node.op_type == "Mul"]
    assert product.input[0] == scale.output[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def walks_of_graphs(layers, monkeypatch):
    """Return how often rewrites walk a graph of layers that have all that is rewritten once for each."""
    steps = [
        f"""
        slice{i} = Slice(x{i}, start, end)
        scaled{i} = Mul(slice{i}, half)
        split{i} = Reshape(scaled{i}, heads)
        heads{i} = Transpose<perm = [0, 2, 1, 3]>(split{i})
        shape{i} = Shape(heads{i})
        size{i} = Cast<to = 6>(shape{i})
        sizes{i} = Cast<to = 7>(size{i})
        same{i} = Reshape(heads{i}, sizes{i})
        back{i} = Transpose<perm = [0, 2, 1, 3]>(same{i})
        joined{i} = Reshape(back{i}, rows)
        x{i + 1} = Tanh(joined{i})
        """
        for i in range(layers)
    ]
    model = onnx.parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 18]>
    layers (float[b, t, 8] x0) => (float[b, t, 8] x{layers})
    <int64[1] start = {{0}}, int64[1] end = {{9223372036854775807}}, float half = {{0.5}},
     int64[4] heads = {{0, -1, 2, 4}}, int64[3] rows = {{0, -1, 8}}>
    {{ {"".join(steps)} }}
    """)
    x, walks = X[:, :, :8], []
    walk = graph_traversal.nodes
    with monkeypatch.context() as patch:
        patch.setattr(graph_traversal, "nodes", lambda graph: walks.append(graph) or walk(graph))
        found = rewrites.simplify(copy.deepcopy(model))
    operations = [node.op_type for node in found.graph.node]
    assert "Slice" not in operations
    assert "Cast" not in operations
    multiplications = [node for node in found.graph.node if node.op_type == "Mul"]
    made = {node.output[0]: node.op_type for node in found.graph.node}
    assert [made[node.input[0]] for node in multiplications] == ["Transpose"] * layers
    results = [
        onnxruntime.InferenceSession(each.SerializeToString()).run(None, {"x0": x}) for each in (model, found)
    ]
    np.testing.assert_array_equal(*results)
    return len(walks)


def test_the_number_of_walks_does_not_depend_on_the_number_of_layers(monkeypatch):
    assert walks_of_graphs(2, monkeypatch) == walks_of_graphs(6, monkeypatch)


def test_the_highest_logit_is_found_by_top_k():
    ties = np.array([[[1, 3, 3, 0], [2, 2, 2, 2], [-5, -6, -7, -5]]], "float32")

    def function(x):
        ids, best = logits.highest(x * 1)
        return tf.cast(ids, "float32") * 10 + best

    counts, found, expected, _ = converted(function, ties)
    assert (counts["TopK"], counts["Equal"], counts["ReduceMin"]) == (1, 0, 0)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, [[13, 2, -5]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, best: tf.reduce_min(tf.where(x == best, np.arange(8, dtype="int32")[::-1], 7), axis=-1),
        lambda x, best: tf.reduce_min(tf.where(x == best, np.arange(8, dtype="int32"), 8), axis=-1),
        lambda x, best: tf.reduce_min(tf.where(x == best, np.arange(8, dtype="int32"), 7), axis=1),
    ],
    ids=["other ids", "another size", "another axis"],
)
def test_similar_choices_are_kept(function):
    def of_highest(x):
        best = tf.reduce_max(x * 1, axis=-1)[..., None]
        return tf.cast(function(x * 1, best), tf.float32)

    counts, found, expected, _ = converted(of_highest, np.rint(X * 2))
    assert counts["TopK"] == 0
    np.testing.assert_array_equal(found, expected)


TOKENS = np.array([[7, 0, 3], [1, 1, 5]], "int32")


@pytest.mark.parametrize("count", [1, 3])
def test_the_chosen_log_probability_is_gathered(count):
    counts, found, expected, _ = converted(
        lambda x, tokens: logits.choose(x[:, :count] * 2, tokens[:, :count]), X, TOKENS
    )
    assert (counts["GatherElements"], counts["Where"], counts["ReduceMax"]) == (1, 0, 0)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, np.take_along_axis(X * 2, TOKENS[..., None], axis=2)[:, :count, 0])


def test_log_probabilities_of_targets_of_any_length_are_gathered():
    def of_any_length(x, tokens):
        return logits.choose(tf.transpose(x * 2, (1, 0, 2)), tf.transpose(tokens))

    _, found, expected, _ = converted(of_any_length, X, TOKENS)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, np.take_along_axis(X * 2, TOKENS[..., None], axis=2)[..., 0].T)


FORBIDDEN = [np.where(np.arange(8) == id_, -1e30, 0).astype("float32") for id_ in (1, 5)]


@pytest.mark.parametrize("axis", [0, 1])
def test_constant_vectors_are_selected_by_a_gather(axis):
    def function(x):
        return x + tf.where(tf.reduce_sum(x, axis=[axis, 2], keepdims=True) > 0, *FORBIDDEN)

    counts, found, expected, _ = converted(function, X)
    assert (counts["GatherND"], counts["Where"]) == (1, 0)
    np.testing.assert_array_equal(found, expected)
    assert {*np.argwhere(found < -1e29)[:, 2]} == {1, 5}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.where(x > 0, *FORBIDDEN),
        lambda x: tf.where(x[..., :1] > 0, FORBIDDEN[0], 0.0),
        lambda x: tf.where(x[..., :1] > 0, FORBIDDEN[0], x),
        lambda x: tf.where(x[..., 0] > 0, FORBIDDEN[0][:3], FORBIDDEN[1][:3]),
    ],
    ids=["elements", "a number", "a value", "no axis of one element"],
)
def test_other_selections_are_kept(function):
    counts, found, expected, _ = converted(lambda x: function(x * 1), X)
    assert (counts["GatherND"], counts["Where"]) == (0, 1)
    np.testing.assert_array_equal(found, expected)


def test_a_maximum_below_all_logits_is_removed():
    counts, found, expected, _ = converted(lambda x: keras.ops.maximum(x * 2, -3e38) + 1, X)
    assert counts["Max"] == 0
    np.testing.assert_array_equal(found, expected)
    counts, found, expected, _ = converted(lambda x: keras.ops.maximum(x * 2, -0.5) + 1, X)
    assert counts["Max"] == 1
    np.testing.assert_array_equal(found, expected)


def test_a_factor_of_one_is_removed():
    counts, found, expected, _ = converted(lambda x: keras.ops.silu(keras.ops.tanh(x)), X)
    assert counts["Mul"] == 1
    np.testing.assert_allclose(found, expected, atol=1e-6)
    counts, found, expected, _ = converted(lambda x: keras.ops.tanh(x) * np.ones((1, 1, 1, 1), "float32"), X)
    assert (counts["Mul"], found.ndim) == (1, 4)


INDEX = np.array([[2, 0, 0, 1], [1, 1, 2, 0]], "int32")


@pytest.mark.parametrize("vectors", [True, False])
def test_rows_are_picked_by_one_gather(vectors):
    def function(x, index):
        return indexing.pick(x * 1 if vectors else x[..., 0] * 1, index)

    counts, found, expected, _ = converted(function, X, INDEX)
    assert counts["GatherND" if vectors else "GatherElements"] == 1
    assert counts["Gather"] == counts["Reshape"] == 0
    np.testing.assert_array_equal(found, expected)


def test_picked_rows_are_joined_after_the_gather():
    def function(x, index):
        return tf.reshape(indexing.pick(x * 1, index), [-1, 4 * 8])

    counts, found, expected, _ = converted(function, X, INDEX)
    assert (counts["GatherND"], counts["Gather"], counts["Reshape"]) == (1, 0, 1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("sizes", [[-1, 16], [-1, 2, 16], [-1, 4, 2, 4]], ids=str)
def test_picked_rows_with_other_sizes_are_kept(sizes):
    def function(x, index):
        return tf.reshape(indexing.pick(x * 1, index), sizes)

    counts, found, expected, _ = converted(function, X, INDEX)
    assert counts["GatherND"] == 0
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("offset", [(0, 2), (1, 1), (1, 3)], ids=str)
def test_gathers_with_other_offsets_are_kept(offset):
    first, step = offset

    def function(x, index):
        row = tf.range(tf.shape(index)[0])[:, None] * step + first
        return tf.reshape(tf.gather(tf.reshape(x * 1, [-1, 8]), tf.reshape(row + index, [-1])), [-1, 4, 8])

    counts, found, expected, _ = converted(function, X, np.minimum(INDEX, 1))
    assert counts["GatherND"] == 0
    np.testing.assert_array_equal(found, expected)


def test_outputs_of_queries_without_keys_are_multiplied_by_zero():
    visible = np.array([True, False])[:, None, None]

    def function(x, visible):
        return tf.where(visible, tf.matmul(tf.tanh(x), x, transpose_b=True), 0.0) * 2

    counts, found, expected, graph = converted(function, X, visible)
    (select,) = [node for node in graph.graph.node if node.op_type == "Where"]
    assert select.input[0] == "x1"  # of one element for each matrix
    assert counts["Mul"] == 2
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (found[1] == 0).all()
    assert found[0].all()


def test_the_factor_of_queries_with_a_key_is_the_highest_value_of_their_mask():
    visible = np.array([[0, 1, 0], [0, 0, 0]])[:, None]

    def function(x, visible):
        allowed = tf.equal(visible, 1)
        product = tf.matmul(tf.tanh(x), x)
        return tf.where(tf.reduce_any(allowed, axis=-1, keepdims=True), product, 0.0) * 2

    counts, found, expected, _ = converted(function, X[:, :, :3], visible)
    assert (counts["Where"], counts["Greater"], counts["ReduceMax"]) == (0, 0, 1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (found[1] == 0).all()
    assert found[0].all()


def test_a_condition_for_each_value_is_kept():
    def function(x):
        product = tf.matmul(tf.tanh(x), x, transpose_b=True)
        return tf.where(product > 0, product, 0.0)

    counts, found, expected, _ = converted(function, X)
    assert (counts["Where"], counts["Mul"]) == (1, 0)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_any_of_one_element_is_the_element():
    def function(x):
        return tf.where(tf.reduce_any(x > 0, axis=1)[:, None], x, 0.0)

    counts, found, expected, _ = converted(function, X[:, 0, :1])
    assert (counts["ReduceSum"], counts["Squeeze"]) == (0, 1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.reduce_sum(tf.cast(x > 0, "float32"), axis=1) > 1,
        lambda x: tf.reduce_sum(tf.cast(tf.abs(tf.cast(2 * x, "int32")), "float32"), axis=1) > 0,
        lambda x: tf.reduce_any(tf.concat([x, -x], 1) > 0, axis=1),
    ],
    ids=["more than one", "of numbers", "of two"],
)
def test_similar_sums_are_kept(function):
    x = np.array([[0.5], [-1.5], [0.0]], "float32")
    counts, found, expected, _ = converted(lambda x: tf.cast(function(x), "float32"), x)
    assert counts["ReduceSum"] == 1
    np.testing.assert_array_equal(found, expected)


def test_indices_are_sorted_as_integers():
    def function(x, y):
        index = tf.math.top_k(x[:, 0], 4)[1]
        ascending = tf.cast(-tf.math.top_k(-tf.cast(index, "float32"), 3)[0], "int32")
        return tf.gather(y[:, 0], ascending, batch_dims=1)

    counts, found, expected, _ = converted(function, X, X[::-1])
    assert (counts["TopK"], counts["Neg"]) == (2, 0)
    assert counts["Cast"] <= 1
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda index: -tf.math.top_k(-tf.cast(index, "float32"), 3)[0] / 2,
        lambda index: tf.cast(-tf.math.top_k(-tf.cast(index * 2, "float32"), 3)[0], "int32"),
        lambda index: tf.cast(-tf.math.top_k(-tf.cast(index, "float32") / 2, 3)[0], "int32"),
        lambda index: (
            tf.math.top_k(-tf.cast(index, "float32"), 3)[1]
            - tf.cast(-tf.math.top_k(-tf.cast(index, "float32"), 3)[0], "int32")
        ),
    ],
    ids=["floats", "other integers", "other floats", "their indices"],
)
def test_similar_sorts_are_kept(function):
    counts, found, expected, _ = converted(lambda x: function(tf.math.top_k(x[:, 0], 4)[1]), X)
    assert counts["Neg"] >= 2
    np.testing.assert_array_equal(found, expected)


def test_the_indices_of_top_k_are_not_cast_twice():
    def function(x):
        index = tf.math.top_k(x, 2)[1]
        return tf.concat([tf.cast(index, "float32"), tf.gather(x, index, axis=1, batch_dims=1)], 1)

    counts, found, expected, _ = converted(function, X[:, 0])
    assert counts["Cast"] == 1
    np.testing.assert_array_equal(found, expected)


def test_rows_of_other_axes_are_picked_after_a_reshape():
    def function(x, index):
        return indexing.pick(tf.reshape(x * 1, [-1, 24]), index)

    index = np.array([[0, 23, 5], [7, 7, 1]], "int32")
    counts, found, expected, _ = converted(function, X, index)
    assert (counts["GatherElements"], counts["Gather"], counts["Reshape"]) == (1, 0, 1)
    np.testing.assert_array_equal(found, expected)


def test_rows_of_a_reshape_that_merges_rows_are_picked():
    def function(x, index):
        return indexing.pick(tf.reshape(tf.reshape(x, [-1, 8]) * 2, [-1, 24]), index)

    index = np.array([[0, 23, 5], [7, 7, 1]], "int32")
    counts, found, expected, _ = converted(function, X, index)
    assert (counts["GatherElements"], counts["Gather"]) == (1, 0)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("heads", [1, 3])
def test_elements_of_rows_of_unknown_size_are_picked_by_one_gather(heads):
    def function(x, index):
        return {"y": indexing.pick(x * heads, index)}

    specs = [tf.TensorSpec([None, None], dtype, name) for dtype, name in (("float32", "x"), ("int32", "i"))]
    graph = conversion.convert("f", function, specs, {"x": ["a", "b"], "i": ["a", "c"], "y": ["a", "c"]})
    assert {node.op_type for node in graph.graph.node} <= {"Mul", "GatherElements"}
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    for index in (INDEX, INDEX[:, :1]):
        (found,) = session.run(["y"], {"x": X[..., 0], "i": index})
        np.testing.assert_array_equal(found, np.take_along_axis(X[..., 0], index, 1) * heads)


@pytest.mark.parametrize("function", [lambda x, i, y: (y, i), lambda x, i, y: (x, y)], ids=["rows", "result"])
def test_gathers_by_sizes_of_other_values_are_kept(function):
    """The rows or the result have the size of another value."""

    def gathered(x, index, other):
        x = x * 1
        sized, counted = function(x, index, other)
        offset = tf.range(tf.shape(index)[0])[:, None] * tf.shape(sized)[1]
        flat = tf.gather(tf.reshape(x, [-1]), tf.reshape(offset + index, [-1]))
        return {"y": tf.reshape(flat, [-1, tf.shape(counted)[1]])}

    specs = [tf.TensorSpec([None, None], dtype, name) for dtype, name in (("float32", "x"), ("int32", "i"))]
    specs.append(tf.TensorSpec([None, None], tf.float32, "other"))
    graph = conversion.convert("f", gathered, specs, {name: ["a", "b"] for name in ("x", "i", "other", "y")})
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    index = np.array([[0, 1], [1, 0]], np.int32)
    values = {"x": X[..., 0], "i": index, "other": X[:, 0, :4]}
    expected = gathered(*map(tf.constant, values.values()))["y"]
    np.testing.assert_array_equal(session.run(["y"], values)[0], expected)


SIZES = {
    "a sum of sizes": (lambda x: tf.zeros([tf.shape(x)[0] + 2 * tf.shape(x)[1], 3]), 0),
    "a larger size": (lambda x: tf.ones(tf.maximum(tf.shape(x)[:2], 3)), 0),
    "a quotient": (lambda x: tf.fill([tf.shape(x)[1] * 3 // 2 - 1], 1.0), 0),
    "the last sizes": (lambda x: tf.ones(tf.shape(x)[-2:]), 0),
    "a size as a value": (lambda x: x + tf.cast(tf.shape(x)[1], tf.float32), 1),
    "an integer": (lambda x: tf.shape(x)[1] * 5, 1),
    "sizes that are returned": (lambda x: tf.cast(tf.shape(x), tf.int64), 1),
    "every other size": (lambda x: tf.ones(tf.shape(x)[::2]), 0),
    "a limit": (lambda x: tf.range(tf.shape(x)[1]), 1),
    "a branch": (
        lambda x: tf.cond(tf.shape(x)[1] > 2, lambda: tf.ones([tf.shape(x)[0]]), lambda: x[:, 0, 0]),
        1,
    ),
}


@pytest.mark.parametrize(("function", "casts"), SIZES.values(), ids=SIZES)
def test_sizes_are_computed_without_casts(function, casts):
    spec = [tf.TensorSpec([None, None, 8], tf.float32, name="x")]
    graph = conversion.convert("f", lambda x: {"y": function(x)}, spec, {"x": ["a", "b"], "y": []})
    counts = collections.Counter(node.op_type for node in graph_traversal.nodes(graph.graph))
    assert counts["Cast"] == casts
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    for x in (X, X[:, :1], X[:1]):
        (found,) = session.run(["y"], {"x": x})
        expected = function(tf.constant(x)).numpy()
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype


def test_constants_of_sizes_are_added_in_the_order_of_their_use():
    """The order of a set would differ between processes."""
    names = ["a", "b", "c", "d", "e", "f"]
    model = onnx.parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 18]>
    f (float[n] x) => (int32[7] y) {{
        shape = Shape(x)
        size = Cast<to = 6>(shape)
        y = Concat<axis = 0>(size, {", ".join(names)})
    }}
    """)
    for place, name in enumerate(names):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([place], "int32"), name))
    sizes.compute_in_int64(model.graph)
    assert [item.name for item in model.graph.initializer] == [*names, *(f"{name}_int64" for name in names)]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(["y"], {"x": np.zeros(9, "float32")})[0], [9, *range(6)])
