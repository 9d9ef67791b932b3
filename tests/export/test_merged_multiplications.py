"""The products of one factor in the loops of ONNX graphs."""

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.export.to_onnx import block_quantization, conversion, graph_traversal, weights

SIZE = 64


def loop_of(step):
    """Return a function that applies a step (B, D) → (B, D) as often as it is asked to."""

    def loop(x, steps):
        y = tf.while_loop(
            lambda i, _: i < steps,
            lambda i, x: (i + 1, step(x)),
            [0, x],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, SIZE])],
        )[1]
        return {"y": y}

    return loop


def matrices(*columns):
    random = np.random.default_rng(0)
    return [
        keras.Variable(random.normal(size=(SIZE, size), scale=0.1), dtype="float32", name=f"matrix_{number}")
        for number, size in enumerate(columns)
    ]


def converted(function, variables, detached=None):
    spec = [tf.TensorSpec([None, SIZE], tf.float32, name="x"), tf.TensorSpec([], tf.int32, name="steps")]
    return conversion.convert("loop", function, spec, {"steps": []}, variables, detached)


def operations(model):
    return [node.op_type for node in graph_traversal.nodes(model.graph)]


def check_equal(model, function, rtol=1e-5):
    x, steps = np.random.default_rng(1).normal(size=(3, SIZE)).astype("float32"), np.array(3, "int32")
    expected = function(tf.constant(x), tf.constant(steps))["y"]
    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x, "steps": steps})
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)


def test_multiplications_of_one_factor_in_a_loop_become_one():
    query, key, value = variables = matrices(SIZE, SIZE, SIZE)
    function = loop_of(lambda x: ops.tanh(x @ key) * ops.relu(x @ query) - x @ value)
    model = converted(function, variables)
    assert (operations(model).count("MatMul"), operations(model).count("Split")) == (1, 1)
    (matrix,) = [each for each in model.graph.initializer if len(each.dims) == 2]
    assert matrix.name == "matrix_0+matrix_1+matrix_2"
    assert [*matrix.dims] == [SIZE, 3 * SIZE]
    check_equal(model, function)


def test_multiplications_before_the_loop_are_merged_as_in_it():
    query, key = variables = matrices(SIZE, SIZE)

    def step(x):
        return ops.tanh(x @ query) - x @ key

    def function(x, steps):
        return loop_of(step)(step(x), steps)

    model = converted(function, variables)
    assert (operations(model).count("MatMul"), operations(model).count("Split")) == (2, 2)
    assert sum(len(each.dims) == 2 for each in model.graph.initializer) == 1
    check_equal(model, function)


def test_blocks_of_merged_matrices_equal_the_blocks_of_each():
    query, key = variables = matrices(SIZE, SIZE)
    last = keras.Variable(np.eye(SIZE, dtype="float32"), name="last")

    def in_int4(step):
        readers = {}
        model = converted(loop_of(step), [*variables, last], readers)
        model = block_quantization.to_int4(model, readers)
        weights.attach(model.graph, readers)
        x, steps = np.random.default_rng(1).normal(size=(3, SIZE)).astype("float32"), np.array(3, "int32")
        (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x, "steps": steps})
        return operations(model).count("MatMulNBits"), found

    together, found = in_int4(lambda x: (ops.tanh(x @ query) - x @ key) @ last)
    # Twice the same factor, which the graph computes as two values.
    apart, expected = in_int4(lambda x: (ops.tanh(x @ query) + 0.5 * ((-2.0 * x) @ key)) @ last)
    assert (together, apart) == (2, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "step",
    [
        lambda x, one, other: ops.tanh(x @ one) - ops.relu(x) @ other,
        lambda x, one, other: ops.tanh(x @ one) - x @ other + x @ ops.transpose(one),
    ],
    ids=["two factors", "a transposition, too"],
)
def test_other_multiplications_of_a_loop_stay(step):
    variables = matrices(SIZE, SIZE)
    function = loop_of(lambda x: step(x, *variables))
    model = converted(function, variables)
    assert "Split" not in operations(model)
    check_equal(model, function)


def test_wide_multiplications_of_a_loop_stay():
    hidden, gate = variables = matrices(2 * SIZE, 2 * SIZE)
    function = loop_of(lambda x: (ops.tanh(x @ hidden) * (x @ gate))[:, :SIZE])
    model = converted(function, variables)
    assert "Split" not in operations(model)
    check_equal(model, function)


def test_multiplications_outside_of_loops_stay():
    one, other = variables = matrices(SIZE, SIZE)

    def function(x, steps):
        return {"y": ops.tanh(x @ one) - x @ other + ops.cast(steps, "float32")}

    model = converted(function, variables)
    assert "Split" not in operations(model)
    check_equal(model, function)
