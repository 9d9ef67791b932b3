import contextlib
import functools

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf

from keras_transformer.export.to_onnx import conversion, graph_traversal, tf2onnx_speed

SPEC = tf.TensorSpec([None, None, 4], tf.float32, name="x")


def operations(function):
    traced = tf.function(function, input_signature=[SPEC], autograph=False).get_concrete_function()
    return [node.type for node in traced.graph.get_operations()]


def test_a_dense_layer_is_one_operation_and_its_bias():
    dense = keras.layers.Dense(3)
    dense.build((None, None, 4))
    assert "Reshape" in operations(dense)
    with tf2onnx_speed.one_operation_per_multiplication():
        assert not {"Reshape", "Shape"} & {*operations(dense)}
        assert sum("MatMul" in kind for kind in operations(dense)) == 1
    assert "Reshape" in operations(dense)


@pytest.mark.parametrize("shapes", [[(2, 3, 4), (4, 5)], [(3, 4), (4, 5)], [(4,), (4, 5)], [(2, 3, 4), (4,)]])
def test_matrix_multiplications_equal_keras(shapes):
    a, b = (np.random.default_rng(0).standard_normal(shape).astype("float32") for shape in shapes)
    expected = keras.ops.matmul(a, b)
    with tf2onnx_speed.one_operation_per_multiplication():
        np.testing.assert_allclose(keras.ops.matmul(a, b), expected, rtol=1e-6)


def test_equal_operations_are_one():
    def sums(x):
        return sum(tf.shape(x)[0] + tf.reduce_sum(tf.cast(x > 0, tf.int32)) for _ in range(3))

    assert operations(sums).count("Greater") == 3
    with tf2onnx_speed.one_operation_per_value():
        found = operations(sums)
    assert found.count("Greater") == found.count("Shape") == found.count("Cast") == 1
    assert found.count("AddV2") == 4  # the sums of two differ


def test_random_numbers_and_branches_remain_separate():
    def drawn(x):
        first, second = (tf.random.uniform([2]) for _ in range(2))
        return [tf.cond(x[0, 0, 0] > 0, lambda: first, lambda: -second) for _ in range(4)]

    with tf2onnx_speed.one_operation_per_value():
        found = operations(drawn)
    assert found.count("RandomUniform") == 2
    assert sum("If" in kind for kind in found) == 4


def test_equal_outputs_of_a_branch_are_converted():
    def function(x):
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: [x + 1.0] * 3, lambda: [x, x * 2.0, x * 2.0])
        return dict(zip("abc", y, strict=True))

    model = conversion.convert("it", function, [SPEC], {})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for x in np.ones([2, 1, 1, 4], "float32") * [[[[1]]], [[[-1]]]]:
        x = x.astype("float32")
        for received, expected in zip(
            session.run(["a", "b", "c"], {"x": x}), function(x).values(), strict=True
        ):
            np.testing.assert_array_equal(received, expected)


def test_variables_are_not_frozen_where_all_weights_are_known(monkeypatch):
    from tf2onnx import tf_loader

    calls, convert = [], tf_loader.convert_variables_to_constants_v2
    monkeypatch.setattr(
        tf_loader,
        "convert_variables_to_constants_v2",
        lambda *args, **options: (calls.append(1), convert(*args, **options))[1],
    )
    layer = keras.layers.Dense(4)
    layer.build((None, None, 4))
    known = conversion.convert("it", lambda x: {"y": layer(x)}, [SPEC], {}, layer.weights)
    assert not calls
    captured = conversion.convert("it", lambda x: {"y": layer(x)}, [SPEC], {})
    assert calls
    x = np.ones((1, 2, 4), "float32")
    for model in (known, captured):
        session = onnxruntime.InferenceSession(model.SerializeToString())
        np.testing.assert_allclose(session.run(None, {"x": x})[0], layer(x), rtol=1e-6)


def test_nodes_are_sorted_and_cycles_are_errors():
    from tf2onnx.graph import Graph

    def sort(*nodes):
        made = [onnx.helper.make_node("Identity", [before], [name], name) for before, name in nodes]
        graph = Graph(made, output_shapes={}, dtypes={}, output_names=[])
        tf2onnx_speed._sort(graph, graph.get_nodes())
        return [node.name for node in graph.get_nodes()]

    assert sort(("d", "a"), ("c", "d"), ("x", "c"), ("a", "b")) == ["c", "d", "a", "b"]
    with pytest.raises(ValueError, match="a graph must have no cycle"):
        sort(("b", "a"), ("a", "b"))


def test_nodes_are_registered_once_if_none_is_unused():
    from tf2onnx.graph import Graph

    with tf2onnx_speed.fast_graphs():
        made = [
            onnx.helper.make_node("Identity", [before], [name], name) for before, name in ("xa", "ab", "ac")
        ]
        graph = Graph(made, output_shapes={}, dtypes={}, output_names=["b"])
        known = graph._nodes_by_name
        graph.delete_unused_nodes(["b", "c"])
        assert graph._nodes_by_name is known
        graph.delete_unused_nodes(["b"])
        assert {*graph._nodes_by_name} == {node.name for node in graph.get_nodes()}
        assert "c" not in graph._nodes_by_name
        assert graph._output_to_consumers["a"] == {"b"}


def repeated(x):
    def body(step, total):
        odd = keras.ops.cond(step % 2 > 0, lambda: total * 2.0, lambda: total + keras.ops.sum(x))
        return step + 1, keras.ops.transpose(keras.ops.transpose(odd, [0, 2, 1]), [0, 2, 1])

    return {"y": keras.ops.while_loop(lambda step, _: step < 3, body, (0, x * 0.5))[1]}


def test_fast_graphs_equal_slow_graphs(monkeypatch):
    def converted():
        graph = conversion.convert("it", repeated, [SPEC], {}).graph
        return [(node.op_type, len(node.input)) for node in graph_traversal.nodes(graph)]

    found = converted()
    monkeypatch.setattr(tf2onnx_speed, "fast_graphs", contextlib.nullcontext)
    assert sorted(found) == sorted(converted())


def test_a_vector_and_a_number_may_be_multiplied_before_a_tensor():
    vector = tf.constant([1.0, 2.0, 3.0, 4.0])

    def loop(body, x):
        return tf.while_loop(lambda step, _: step < 2, lambda step, total: (step + 1, body(total)), (0, x))[1]

    def function(x):  # TensorFlow reorders products in loops inside of loops
        return {"y": loop(functools.partial(loop, lambda total: total * vector * 0.5 @ tf.eye(4)), x)}

    graph = conversion.convert("it", function, [SPEC], {"x": ["batch_size", "length", None]})
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    np.testing.assert_allclose(session.run(["y"], {"x": x})[0], function(x)["y"], rtol=1e-6)
