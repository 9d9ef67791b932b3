"""The quantisation of ONNX graphs to int4."""

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest

import keras_transformer_serving as serving
from keras_transformer import export, models, pipelines, text
from keras_transformer.export.to_onnx import block_quantization, graph_traversal, loops, weights
from keras_transformer_serving import precisions

MULTIPLICATIONS = """
<ir_version: 10, opset_import: ["" : 18]>
multiplications (float[n, K] x) => (float[n, N] y) { h = MatMul(x, hidden) y = MatMul(h, last) }
"""
TIED = """
<ir_version: 10, opset_import: ["" : 18]>
tied (int64[n, t] ids) => (float[n, t, D] vectors, float[n, t, V] logits) {
  vectors = Gather(table, ids)
  transposed = Transpose<perm = [1, 0]>(table)
  logits = MatMul(vectors, transposed)
}
"""


def quantised(source, values, detached=False):
    """Return a graph in int4 of a graph whose weights have values."""
    model, readers = onnx.parser.parse_model(source), {}
    for name, array in values.items():
        tensor = onnx.numpy_helper.from_array(array.astype("float32"), name)
        if detached:
            readers[name] = lambda array=array: array.astype("float32")
            tensor = weights.without_values(name, tensor.data_type, array.shape)
        model.graph.initializer.append(tensor)
    graph = block_quantization.to_int4(model, readers)
    weights.attach(graph.graph, readers)
    onnx.checker.check_model(graph)
    return graph


def run(model, **inputs):
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)


def bits(model):
    """Return the bits of the matrices, by the outputs of products."""
    nodes = [node for node in graph_traversal.nodes(model.graph) if node.op_type == "MatMulNBits"]
    return {
        node.output[0]: next(attribute.i for attribute in node.attribute if attribute.name == "bits")
        for node in nodes
    }


def error(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize(("rows", "columns"), [(64, 96), (96, 40), (40, 33)])
def test_multiplications_are_close_and_the_last_has_8_bits(rows, columns):
    random = np.random.default_rng(0)
    x = random.normal(size=(5, rows)).astype("float32")
    hidden, last = random.normal(size=(rows, rows)), random.normal(size=(rows, columns))
    model = quantised(MULTIPLICATIONS, {"hidden": hidden, "last": last})
    assert bits(model) == {"h": 4, "y": 8}
    assert 0.01 < error(run(model, x=x)[0], x @ hidden @ last) < 0.12


def test_each_block_has_its_own_scale():
    random = np.random.default_rng(0)
    sizes = np.repeat([1, 100, 0.01, 0], 64)[:, None]
    hidden, last = random.normal(size=(256, 48)) * sizes, np.eye(48)
    model = quantised(MULTIPLICATIONS, {"hidden": hidden, "last": last})
    for block in range(3):
        x = np.zeros((1, 256), "float32")
        x[:, 64 * block : 64 * block + 64] = random.normal(size=64)
        assert error(run(model, x=x)[0], x @ hidden) < 0.15


def test_scales_round_with_less_error_than_the_whole_range():
    blocks = np.random.default_rng(0).normal(size=(50, 4, 64)).astype("float32")
    steps, zeros = block_quantization._scales(blocks, 4)
    whole = (blocks.max(axis=-1, keepdims=True) - blocks.min(axis=-1, keepdims=True)) / 15

    def errors(steps, zeros):
        rounded = (np.clip(np.rint(blocks / steps) + zeros, 0, 15) - zeros) * steps
        return np.square(rounded - blocks).sum(axis=-1)

    found = errors(steps, zeros)
    of_whole = errors(whole, np.rint(-blocks.min(axis=-1, keepdims=True) / whole))
    assert (found <= of_whole * 1.001).all()
    assert found.sum() < 0.95 * of_whole.sum()


@pytest.mark.parametrize("size", [64, 48])
def test_a_tied_table_is_stored_once_in_8_bits(size):
    random = np.random.default_rng(0)
    table = random.normal(size=(50, size)).astype("float32")
    model = quantised(TIED, {"table": table})
    matrices = [each for each in model.graph.initializer if len(each.dims) == 3]
    assert [each.data_type for each in matrices] == [onnx.TensorProto.UINT8]
    assert [*bits(model).values()] == [8]
    ids = np.array([[3, 49], [0, 3]])
    vectors, logits = run(model, ids=ids)
    step = np.abs(table[ids]).max() / 127
    assert 0 < np.abs(vectors - table[ids]).max() <= step / 2 * 1.001
    assert error(logits, table[ids] @ table.T) < 0.02


def test_weights_without_values_are_read_when_they_are_written():
    random = np.random.default_rng(0)
    values = {"hidden": random.normal(size=(64, 64)), "last": random.normal(size=(64, 32))}
    x = random.normal(size=(2, 64)).astype("float32")
    small, large = (quantised(MULTIPLICATIONS, values, detached) for detached in (False, True))
    np.testing.assert_array_equal(run(small, x=x)[0], run(large, x=x)[0])


NESTED = """
<ir_version: 10, opset_import: ["" : 18]>
nested (bool a, bool c, float[n] x) => (float[n] y) <float one = {1.0}, float two = {2.0}, float three = {3.0}> {
  y = If(a) <
    then_branch = first () => (float[n] inner) {
      b = Add(x, one)
      inner = If(c) <
        then_branch = d () => (float[n] d_out) { d_out = Mul(b, two) },
        else_branch = e () => (float[n] e_out) { e_out = Mul(b, three) }
      >
    },
    else_branch = f () => (float[n] f_out) { f_out = Sub(x, one) }
  >
}
"""


def test_merged_branches_compute_the_same():
    model = onnx.parser.parse_model(NESTED)
    merged = onnx.parser.parse_model(NESTED)
    loops.merge_branches(merged.graph)
    onnx.checker.check_model(merged, full_check=True)
    (first,) = [node for node in merged.graph.node if node.op_type == "If"]
    then, otherwise = (attribute.g for attribute in first.attribute)
    assert sorted(len([*graph_traversal.graphs(each)]) for each in (then, otherwise)) == [1, 3]
    x = np.array([5, 7], "float32")
    for a, c in itertools.product((True, False), repeat=2):
        inputs = {"a": np.array(a), "c": np.array(c), "x": x}
        np.testing.assert_array_equal(run(model, **inputs)[0], run(merged, **inputs)[0])


MODELS = {
    "GPT": lambda *size, **ids: models.GPT(*size, 2, 2, 64, max_length=64, **ids),
    "Llama": lambda *size, **ids: models.Llama(*size, 2, 4, 64, 96, num_kv_heads=2, **ids),
    "Llama, tied": lambda *size, **ids: models.Llama(*size, 2, 4, 64, 96, num_kv_heads=2, tied=True, **ids),
    "Gemma": lambda *size, **ids: models.Gemma(*size, 2, 4, 64, 96, num_kv_heads=1, key_dim=16, **ids),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_language_models_are_exported(name, tmp_path):
    tokenizer = text.BytePairTokenizer.train(["to be or not to be that is the question"], 300)
    ids = {"pad_id": tokenizer.pad_id, "end_id": tokenizer.end_id}
    model = MODELS[name](tokenizer.vocabulary_size, **ids)
    pipeline = pipelines.TextGeneration(model, tokenizer, max_new_tokens=8)
    export.onnx(pipeline, tmp_path / "it", precisions=("float32", "int8", "int4"))
    report = serving.verify(tmp_path / "it")["onnx"]["precisions"]
    assert set(report) == {"int8", "int4"}
    assert report["int4"]["thresholds"] == {
        name: precisions.THRESHOLDS["int4"][name] for name in ("identical_ids", "score_difference")
    }
    graph = onnx.load(tmp_path / "it" / "onnx" / "int4" / "generate_greedy.onnx")
    assert {each.data_type for each in graph.graph.initializer if len(each.dims) == 2} <= {1, 7}
    assert not [node for node in graph_traversal.nodes(graph.graph) if _multiplies_a_matrix(graph, node)]
    assert {*bits(graph).values()} == {4, 8}
    sizes = {path.parent.name: path.stat().st_size for path in tmp_path.rglob("generate_greedy.onnx")}
    assert sizes["int4"] < sizes["int8"] < sizes["onnx"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
def test_a_model_in_int4_of_keras_is_exported(tmp_path):
    tokenizer = text.BytePairTokenizer.train(["to be or not to be that is the question"], 300)
    ids = {"pad_id": tokenizer.pad_id, "end_id": tokenizer.end_id}
    model = MODELS["Llama, tied"](tokenizer.vocabulary_size, **ids)
    model.quantize("int4")
    pipeline = pipelines.TextGeneration(model, tokenizer, max_new_tokens=8)
    export.onnx(pipeline, tmp_path / "it")  # compares the ids
    assert serving.load(tmp_path / "it")("to be") == pipeline("to be")


def _multiplies_a_matrix(model, node):
    constants = {each.name for graph in graph_traversal.graphs(model.graph) for each in graph.initializer}
    return node.op_type == "MatMul" and node.input[1] in constants
