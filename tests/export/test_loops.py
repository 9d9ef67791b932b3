import keras
import numpy as np
import pytest
import tensorflow as tf

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from keras_transformer.export.to_onnx import conversion, graph_traversal, loops, rewrites  # noqa: E402

X = np.random.default_rng(0).normal(size=(2, 3, 8)).astype("float32")


def converted(function):
    """Check that the graph equals TensorFlow; return its only loop and the loop's body."""
    spec = [tf.TensorSpec([None, 3, 8], tf.float32, name="x")]
    graph = conversion.convert("f", lambda x: {"y": function(x)}, spec, {"x": [], "y": []})
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["y"], {"x": X})[0], function(tf.constant(X)), atol=1e-5)
    (loop,) = [node for node in graph.graph.node if node.op_type == "Loop"]
    (body,) = [attribute.g for attribute in loop.attribute if attribute.name == "body"]
    return loop, body, graph.graph


def test_loop_invariant_weights_are_read_from_outside_the_body():
    layer = keras.layers.Dense(8)
    layer.build((None, None, 8))

    def function(x):
        def body(i, x, kept):
            return i + 1, tf.tanh(layer(x)) + kept, kept

        return sum(tf.while_loop(lambda i, *_: i < 3, body, (0, x, 2 * x))[1:])

    loop, _, _ = converted(function)
    assert len(loop.input) == 2 + 2  # i and x: neither weights nor constants


def test_loop_invariant_nodes_are_hoisted():
    def function(x):
        def body(i, y):
            return i + 1, y + tf.exp(tf.sin(x)) * tf.cos(y)

        return tf.while_loop(lambda i, _: i < 3, body, (0, x))[1]

    _, body, graph = converted(function)
    inside, outside = ({node.op_type for node in each.node} for each in (body, graph))
    assert {"Sin", "Exp"} <= outside
    assert not {"Sin", "Exp"} & inside
    assert "Cos" in inside


def test_random_nodes_are_not_hoisted():
    drawn = helper.make_node("RandomUniform", [], ["drawn"], shape=[1])
    sums = helper.make_node("Add", ["x", "drawn"], ["x_out"])
    same = helper.make_node("Identity", ["c"], ["c_out"])

    def value(name, kind=TensorProto.FLOAT, shape=(1,)):
        return helper.make_tensor_value_info(name, kind, shape)

    states = [value("i", TensorProto.INT64, ()), value("c", TensorProto.BOOL, ()), value("x")]
    body = helper.make_graph(
        [drawn, sums, same], "body", states, [value("c_out", TensorProto.BOOL, ()), value("x_out")]
    )
    loop = helper.make_node("Loop", ["n", "yes", "start"], ["y"], body=body)
    graph = helper.make_graph([loop], "g", [], [value("y")])
    loops.compute_before_loops(graph, ())
    assert [node.op_type for node in graph.node] == ["Loop"]


def test_weights_of_a_loop_in_a_loop_are_constants_of_the_body_around_it(tmp_path):
    layer = keras.layers.Dense(8)
    layer.build((None, None, 8))

    def function(x):
        def outer(i, x):
            kernel = tf.transpose(layer.kernel.value)
            body = lambda j, y: (j + 1, tf.tanh(tf.matmul(layer(y), kernel)))  # noqa: E731
            return i + 1, tf.while_loop(lambda j, _: j < 2, body, (0, x))[1]

        return {"y": tf.while_loop(lambda i, _: i < 2, outer, (0, x))[1]}

    spec = [tf.TensorSpec([None, 3, 8], tf.float32, name="x")]
    detached = {}
    model = conversion.convert("f", function, spec, {"x": [], "y": []}, layer.weights, detached)
    conversion.save(model, {}, tmp_path / "f.onnx", detached)
    session = onnxruntime.InferenceSession(tmp_path / "f.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["y"], {"x": X})[0], function(tf.constant(X))["y"], atol=1e-5)
    graph = onnx.load(tmp_path / "f.onnx").graph
    (outer,) = [body for node in graph.node for body in graph_traversal.inner(node)]
    (inner,) = [body for node in outer.node for body in graph_traversal.inner(node)]
    assert layer.kernel.path in {constant.name for constant in outer.initializer}
    assert "Transpose" in {node.op_type for node in outer.node}
    assert "Transpose" not in {node.op_type for node in [*graph.node, *inner.node]}


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("start", "step", "carried"),
    [
        ((0, 0), lambda a, b: (a + 1, b + 1), 1),
        ((0, 0), lambda a, b: (b + 1, a + 1), 1),
        ((0, 0), lambda a, b: (a + 1, b + 2), 2),
        ((0, 0), lambda a, b: (a + 1, tf.sin(a) + b), 2),
        ((0, 1), lambda a, b: (a + 1, b + 1), 2),
        ((0, 0, 0), lambda a, b, c: (a + 1, b + 1, c + a * b), 2),
        ((0, 0, 0), lambda a, b, c: (a + b, b + c, c + 1), 3),
    ],
    ids=[
        "alike",
        "crosswise",
        "other steps",
        "one from the other",
        "other starts",
        "two of three",
        "a chain",
    ],
)
def test_equal_loop_variables_are_carried_once(start, step, carried):
    def function(x):
        def body(i, *states):
            return i + 1, *step(*states)

        begun = [x + np.float32(each) for each in start]
        states = tf.while_loop(lambda i, *_: i < 4, body, (0, *begun))[1:]
        return tf.add_n([(place + 1.0) * state for place, state in enumerate(states)])

    loop, _, _ = converted(function)
    assert len(loop.input) == 2 + 1 + carried


@pytest.mark.parametrize(
    ("branch", "step", "carried"),
    [(tf.sin, tf.tanh, 1), (tf.cos, tf.tanh, 2), (tf.sin, tf.sin, 2)],
    ids=["alike", "another branch", "another step"],
)
def test_equal_values_of_branches_and_of_loops_in_loops_are_carried_once(branch, step, carried):
    def function(x):
        def outer(i, a, b):
            values = tf.cond(
                tf.reduce_sum(a) + tf.cast(i, "float32") < 0.0,
                lambda: (tf.exp(a), tf.exp(b)),
                lambda: (tf.sin(a), branch(b)),
            )
            inner = tf.while_loop(
                lambda j, *_: j < 2, lambda j, c, d: (j + 1, tf.tanh(a + c), step(b + d)), (0, *values)
            )
            return i + 1, *inner[1:]

        states = tf.while_loop(lambda i, *_: i < 3, outer, (0, x, x))[1:]
        return states[0] + 2.0 * states[1]

    loop, body, _ = converted(function)
    (choice,) = [node for node in body.node if node.op_type == "If"]
    (inner,) = [node for node in body.node if node.op_type == "Loop"]
    assert len(loop.input) == 2 + 1 + carried
    assert len(choice.output) == carried
    assert {len(each.output) for each in graph_traversal.inner(choice)} == {carried}
    assert len(inner.input) == 2 + 1 + carried


@pytest.mark.parametrize("is_main", [False, True])
@pytest.mark.parametrize("same", [("Neg", "x"), ("Identity", "a")], ids=["computed again", "copied"])
def test_a_body_returns_the_first_of_equal_values(is_main, same):
    make = onnx.helper.make_node
    nodes = [make("Neg", ["x"], ["a"]), make(same[0], [same[1]], ["b"]), make("Exp", ["b"], ["c"])]
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xbc"]
    graph = onnx.helper.make_graph(nodes, "body", values[:1], values[1:])
    loops.compute_once(graph, is_main)
    assert [output.name for output in graph.output] == ["b" if is_main else "a", "c"]
    assert [*graph.node[-1].input] == ["a"]


def test_equal_constants_are_shared():
    values = {
        "one": np.arange(3, dtype="int64"),
        "same": np.arange(3, dtype="int64"),
        "typed": np.arange(3, dtype="int32"),
        "shaped": np.arange(3, dtype="int64")[None],
        "other": np.arange(1, 4, dtype="int64"),
    }
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in values]
    outputs = [helper.make_tensor_value_info(f"{name}_out", TensorProto.UNDEFINED, None) for name in values]
    constants = [numpy_helper.from_array(array, name) for name, array in values.items()]
    model = helper.make_model(helper.make_graph(nodes, "g", [], outputs, constants))
    graph = rewrites.simplify(model).graph
    assert [node.input[0] for node in graph.node] == ["one", "one", "typed", "shaped", "other"]
    assert [constant.name for constant in graph.initializer] == ["one", "typed", "shaped", "other"]


def test_the_values_of_attention_to_a_memory_are_selected_before_the_loop():
    def function(x):
        visible = tf.reduce_sum(x, axis=[1, 2], keepdims=True) > 0

        def body(i, y):
            weights = tf.nn.softmax(tf.matmul(y, x, transpose_b=True))
            return i + 1, y + tf.where(visible, tf.matmul(weights, tf.tanh(x)), 0.0)

        return tf.while_loop(lambda i, _: i < 3, body, (0, tf.zeros_like(x)))[1]

    _, body, graph = converted(function)
    assert "Where" in {node.op_type for node in graph.node}
    assert not {"Where", "Mul"} & {node.op_type for node in body.node}
