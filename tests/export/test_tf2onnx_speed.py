import contextlib

import keras
import numpy as np
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
