"""The quantisation of ONNX graphs to int8."""

import numpy as np
import onnx
import onnxruntime
import pytest

from keras_transformer.export.to_onnx import graph_traversal, quantization, weights

GRAPH = """
<ir_version: 10, opset_import: ["" : 18]>
multiplication (double[n, K] x) => (float[n, N] y) { h = Cast<to=1>(x) y = MatMul(h, matrix) }
"""  # the first product of an input in float32 would stay as it is


def quantised(matrix, readers=None, examples=()):
    """Return the graph of a multiplication by a matrix, in int8, and its integers."""
    model = onnx.parser.parse_model(GRAPH)
    tensor = onnx.numpy_helper.from_array(matrix.astype("float32"), "matrix")
    if readers is not None:
        readers["matrix"] = lambda: matrix.astype("float32")
        tensor = weights.without_values("matrix", tensor.data_type, matrix.shape)
    model.graph.initializer.append(tensor)
    graph = quantization.to_int8(model, readers, examples)
    if readers is not None:
        weights.attach(graph.graph, readers)
    (integers,) = [each for each in graph.graph.initializer if each.data_type == onnx.TensorProto.INT8]
    return graph, onnx.numpy_helper.to_array(integers).astype("int64")


def run(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {"x": x.astype("float64")})[0]


@pytest.mark.parametrize("rows", [1, 6, 7])
def test_no_pair_of_rows_overflows_16_bits(rows):
    """`pmaddubsw`, of processors without VNNI, adds two results of 8 bits and saturates."""
    random = np.random.default_rng(0)
    matrix = np.concatenate([random.normal(size=(rows, 40)), np.ones((rows, 1)), -np.ones((rows, 1))], axis=1)
    _, integers = quantised(matrix)
    padded = np.pad(integers, [(0, rows % 2), (0, 0)])
    for sign in (1, -1):
        sums = np.maximum(sign * padded, 0).reshape(-1, 2, 42).sum(axis=1)
        assert (255 * sums).max() < 2**15
    assert (np.abs(integers).max(axis=0) >= 64).all()
    assert np.abs(integers).max() > 100


def test_columns_have_their_own_scales():
    random = np.random.default_rng(0)
    matrix = random.normal(size=(32, 4)) * [1, 100, 0.01, 0]
    x = random.normal(size=(5, 32))
    model, _ = quantised(matrix)
    errors = np.linalg.norm(run(model, x) - x @ matrix, axis=0)
    assert (errors[:3] / np.linalg.norm(x @ matrix, axis=0)[:3] < 0.03).all()
    assert errors[3] == 0


def test_channels_that_are_large_in_the_examples_are_divided():
    random = np.random.default_rng(0)
    matrix, x = random.normal(size=(64, 48)), random.normal(size=(20, 64))
    x[:, 7] *= 50
    errors = []
    for examples in ((), [{"x": x[:10]}, {"x": x[10:15]}]):
        model, _ = quantised(matrix, examples=examples)
        errors.append(np.linalg.norm(run(model, x) - x @ matrix))
    assert errors[1] < 0.5 * errors[0]


def test_hidden_channels_that_few_examples_fill_are_not_divided():
    """Each text fills other channels between the layers of a feed-forward network; one is large in all."""
    random = np.random.default_rng(0)
    matrix, hidden = random.normal(size=(400, 50)), np.maximum(random.normal(size=(2, 20, 400)), 0)
    hidden[..., 7] = 40
    model, _ = quantised(matrix, examples=[{"x": hidden[0]}])
    (factors,) = [
        onnx.numpy_helper.to_array(each) for each in model.graph.initializer if "smoothing" in each.name
    ]
    assert (factors < 1).sum() <= 8
    assert factors[7] < 0.5
    error = np.linalg.norm(run(model, hidden[1]) - hidden[1] @ matrix)
    without, _ = quantised(matrix)
    assert error < 0.5 * np.linalg.norm(run(without, hidden[1]) - hidden[1] @ matrix)


def test_weights_without_values_are_read_when_they_are_written():
    random = np.random.default_rng(0)
    matrix, x = random.normal(size=(64, 48)), random.normal(size=(4, 64))
    readers = {}
    large, integers = quantised(matrix, readers, [{"x": x}])
    small, expected = quantised(matrix, examples=[{"x": x}])
    assert [*readers] == ["matrix_0_int8"]
    np.testing.assert_array_equal(integers, expected)
    np.testing.assert_array_equal(run(large, x), run(small, x))


def test_constants_in_float64_are_not_quantised():
    """Such as the filters of Whisper's features."""
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 18]>
    multiplication (double[n, K] x) => (double[n, N] y) { y = MatMul(x, matrix) }
    """)
    matrix = np.random.default_rng(0).normal(size=(8, 4))
    model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, "matrix"))
    session = onnxruntime.InferenceSession(quantization.to_int8(model).SerializeToString())
    np.testing.assert_allclose(session.run(None, {"x": np.eye(8)})[0], matrix)


def test_matrices_that_are_not_weights_stay_in_float():
    """Such as the filters of a spectrogram, which are constants of the graph."""
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 18]>
    layers (double[n, 8] x) => (float[n, 8] y) { h = Cast<to=1>(x) g = MatMul(h, filters) y = MatMul(g, matrix) }
    """)
    values = np.random.default_rng(0).normal(size=(2, 8, 8)).astype("float32")
    model.graph.initializer.append(onnx.numpy_helper.from_array(values[0], "filters"))
    model.graph.initializer.append(weights.without_values("matrix", onnx.TensorProto.FLOAT, (8, 8)))
    found = quantization.to_int8(model, {"matrix": lambda: values[1]})
    inputs = {node.op_type: [*node.input] for node in found.graph.node}
    assert inputs["MatMul"] == ["h", "filters"]
    assert inputs["MatMulInteger"][1] == "matrix_0_int8"


def test_only_the_first_product_of_floats_stays_in_float():
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 18]>
    layers (float[n, 8] x) => (float[n, 8] y) { r = Relu(x) h = MatMul(r, first) g = Relu(h) y = MatMul(g, second) }
    """)
    random = np.random.default_rng(0)
    for name in ("first", "second"):
        matrix = random.normal(size=(8, 8)).astype("float32")
        model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, name))
    inputs = {node.op_type: [*node.input] for node in quantization.to_int8(model).graph.node}
    assert inputs["MatMul"] == ["r", "first"]
    assert inputs["MatMulInteger"][1] == "second_0_int8"


LOOP = """
<ir_version: 10, opset_import: ["" : 18]>
loop (double[n, 8] x) => (float[n, 8] y)
<int64 steps = {1}, bool go = {1}>
{
  before = Cast<to=1>(x)
  start = MatMul(before, matrix)
  y = Loop(steps, go, start) <body = step
    (int64 i, bool going, float[n, 8] last) => (bool goes_on, float[n, 8] after) {
      again = Mul(before, before)
      after = MatMul(again, matrix)
      goes_on = Identity(going)
    }>
}
"""


def test_multiplications_in_loops_share_the_factors_of_those_before():
    """Whisper's first step, of its prefix, is before the loop of the others: the matrices are stored once."""
    model = onnx.parser.parse_model(LOOP)
    random = np.random.default_rng(0)
    matrix, x = random.normal(size=(8, 8)).astype("float32"), random.normal(size=(20, 8))
    x[:, 7] *= 20
    model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, "matrix"))
    errors = []
    for examples in ((), [{"x": x[:5]}]):
        found = quantization.to_int8(model, examples=examples)
        assert [each.name for each in found.graph.initializer if each.data_type == onnx.TensorProto.INT8] == [
            "matrix_0_int8"
        ]
        errors.append(np.linalg.norm(run(found, x) - x**2 @ matrix))
    assert errors[1] < 0.7 * errors[0]


WIDE = """
<ir_version: 10, opset_import: ["" : 18]>
steps (double[n, 8] x) => (float[n, N] y, float[n, N] before)
<int64 steps = {1}, bool go = {1}>
{
  h = Cast<to=1>(x)
  before = MatMul(h, matrix)
  y = Loop(steps, go, before) <body = step
    (int64 i, bool going, float[n, N] last) => (bool goes_on, float[n, N] after) {
      twice = Add(h, h)
      after = MatMul(twice, matrix)
      goes_on = Identity(going)
    }>
}
"""


def test_columns_of_wide_matrices_in_loops_are_scaled_after_the_product(monkeypatch, tmp_path):
    """ONNX Runtime still fuses the product, with the one scale that remains."""
    model = onnx.parser.parse_model(WIDE)
    random = np.random.default_rng(0)
    matrix = random.normal(size=(8, quantization._WIDE)) * np.geomspace(0.01, 100, quantization._WIDE)
    model.graph.initializer.append(onnx.numpy_helper.from_array(matrix.astype("float32"), "matrix"))
    found = quantization.to_int8(model)
    path, options = tmp_path / "optimized.onnx", onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(found.SerializeToString(), options)
    optimized = onnx.load(path).graph
    dims = {
        each.name: [*each.dims] for graph in graph_traversal.graphs(optimized) for each in graph.initializer
    }
    scales = [
        [dims[node.input[2]] for node in graph.node if node.op_type == "DynamicQuantizeMatMul"]
        for graph in graph_traversal.graphs(optimized)
    ]
    assert scales == [[[quantization._WIDE]], [[1]]]
    monkeypatch.setattr(quantization, "_WIDE", matrix.shape[1] + 1)
    x = random.normal(size=(5, 8))
    np.testing.assert_allclose(run(found, x), run(quantization.to_int8(model), x), rtol=1e-5)
