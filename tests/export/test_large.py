"""Exports whose weights are too large for one file."""

import json
import subprocess
import sys
import tracemalloc
import weakref

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer import export, models, pipelines, text
from keras_transformer.export.signatures import of_graphs
from keras_transformer.export.to_onnx import conversion, loops, precisions, weights
from keras_transformer.pipelines import generation_graphs
from keras_transformer_serving import external_data, sessions


@pytest.fixture
def small_files(monkeypatch):
    """Limit graph files to 4 KiB of weights."""
    monkeypatch.setattr(weights, "MAX_BYTES", 2**12)


@pytest.fixture(scope="module")
def classifier():
    tokenizer = text.WordPieceTokenizer.train(["to be or not to be", "that is the question"], 60)
    bert = models.BERT(tokenizer.vocabulary_size, 1, 2, 32, hidden_dim=64, max_length=16)
    return pipelines.TextClassification(models.SequenceClassifier(bert, 3), tokenizer)


@pytest.mark.slow
def test_large_weights_are_stored_in_a_file_beside_the_graph(small_files, classifier, tmp_path):
    folder = tmp_path / "it"
    export.onnx(classifier, folder)
    names = {path.name for path in (folder / "onnx" / "optimum").iterdir()}
    assert {"model.onnx", "model.onnx_data"} <= names
    assert (folder / "onnx/optimum/model.onnx").stat().st_size < 40_000
    assert export.verify(folder) == {**export.verify(folder), **serving.verify(folder)}
    texts = ["to be", "that question"]
    assert serving.load(folder)(texts) == classifier(texts)
    # Other programs open the file by its path.
    session = onnxruntime.InferenceSession(folder / "onnx/optimum/model.onnx")
    feed = {each.name: np.ones((1, 3), "int64") for each in session.get_inputs()}
    expected = serving.load(folder).run(**feed)["logits"]
    np.testing.assert_array_equal(session.run(["logits"], feed)[0], expected)


@pytest.mark.slow
def test_loops_read_large_weights(small_files, pipeline, texts, tmp_path):
    export.onnx(pipeline, tmp_path / "it", texts=texts[:4])
    assert {path.name for path in (tmp_path / "it").rglob("*_data")} == {
        f"{name}.onnx_data" for name in ("generate_greedy", "encoder_model", "decoder_model_merged")
    }
    assert serving.load(tmp_path / "it")(texts) == pipeline(texts)


@pytest.mark.parametrize(("limit", "drops_rows"), [(2**30, True), (2**12, False)])
def test_graphs_with_weights_in_another_file_keep_all_rows(pipeline, monkeypatch, limit, drops_rows):
    caches = []

    def generate_ids(_, ids, mask, kv_cache, **options):
        caches.append(kv_cache)
        return {"ids": ids, "lengths": ids[:, 0]}

    monkeypatch.setattr(external_data, "MAX_BYTES", limit)
    monkeypatch.setattr(generation_graphs, "generate_ids", generate_ids)
    graph = pipeline.onnx_graphs()["generate_greedy"]
    tf.function(graph.function, input_signature=graph.inputs, autograph=False).get_concrete_function()
    assert [cache.drops_rows for cache in caches] == [drops_rows]


@pytest.mark.slow_variants
def test_initializers_have_the_paths_of_the_variables(classifier):
    graph = classifier.onnx_graphs()["model"]
    converted = conversion.convert(
        "model", graph.function, graph.inputs, graph.axes, classifier.model.weights
    ).graph
    stored = {each.name: onnx.numpy_helper.to_array(each) for each in converted.initializer}
    matrices = {each.path: each.numpy() for each in classifier.model.weights if len(each.shape) > 1}
    assert len(matrices) > 8
    for path, values in matrices.items():
        np.testing.assert_array_equal(stored[path], values)
    assert {each.name for each in converted.input} == {"input_ids", "attention_mask", "token_type_ids"}


@pytest.mark.slow
@pytest.mark.slow_variants
@pytest.mark.parametrize("precision", ["", "float16"])
def test_a_tied_embedding_is_stored_once(random_transformer, precision):
    """The transposed matrix for logits is an operation, which ONNX Runtime computes once."""
    pipeline = pipelines.TextToText(random_transformer(0, vocabulary_size=260), text.ByteTokenizer())
    graph = pipeline.onnx_graphs()["decoder_model_merged"]
    model = conversion.convert("decoder", graph.function, graph.inputs, graph.axes, pipeline.model.weights)
    converted = precisions.CONVERTERS[precision](model) if precision else model
    assert len([each for each in converted.graph.initializer if 260 in each.dims]) == 1


def new_writer():
    """Return a language model, whose tied embedding is transposed and gathered."""
    tokenizer = text.ByteTokenizer()
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 32, "hidden_dim": 64, "max_length": 32}
    model = models.GPT(tokenizer.vocabulary_size, **sizes, pad_id=tokenizer.pad_id, end_id=tokenizer.end_id)
    return pipelines.TextGeneration(model, tokenizer, max_new_tokens=4)


@pytest.fixture(scope="module")
def writer():
    writer, random = new_writer(), np.random.default_rng(0)
    for weight in writer.model.weights:  # some beyond the range of float16
        weight.assign(random.normal(size=weight.shape) * np.exp(random.normal(size=weight.shape) * 3))
    return writer


def saved(model, precision, readers, path):
    """Convert a graph to a precision, save it, and return it with its weights."""
    readers = dict(readers)
    converted = precisions.CONVERTERS[precision](model, readers) if precision != "float32" else copied(model)
    conversion.save(converted, {}, path / precision / "it.onnx", readers)
    loaded = onnx.load(path / precision / "it.onnx")
    for tensor in loaded.graph.initializer:
        tensor.ClearField("data_location")
    return loaded.SerializeToString()


def copied(model):
    return onnx.ModelProto.FromString(model.SerializeToString())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["generate_greedy", "model"])
def test_weights_outside_the_graph_give_the_same_bits(writer, name, tmp_path, monkeypatch):
    # Weights in a file of their own are those of the main graph.
    monkeypatch.setattr(loops, "place_constants", lambda graph: None)
    graph, detached = writer.onnx_graphs()[name], {}
    outside = conversion.convert(
        name, graph.function, graph.inputs, graph.axes, writer.model.weights, detached
    )
    inside = copied(outside)
    weights.attach(inside.graph, detached)
    assert outside.ByteSize() < inside.ByteSize() - 4 * 8_000
    for precision in ("float16", "int8", "float32"):
        folders = [tmp_path / each for each in ("small", "large")]
        for folder in folders:
            folder.mkdir(exist_ok=True)
        small = saved(inside, precision, {}, folders[0])
        with monkeypatch.context() as patch:
            patch.setattr(weights, "MAX_BYTES", 2**12)
            large = saved(outside, precision, detached, folders[1])
        assert large == small
        assert [path.name for path in (folders[1] / precision).iterdir() if path.suffix != ".onnx"] == [
            "it.onnx_data"
        ]


@pytest.mark.slow
def test_large_weights_are_exported_in_every_precision(small_files, classifier, tmp_path):
    folder = tmp_path / "it"
    export.onnx(classifier, folder, precisions=("float32", "float16", "int8"))
    files = {path.relative_to(folder / "onnx").as_posix() for path in folder.rglob("*.onnx_data")}
    assert {"optimum/model.onnx_data", "float16/model.onnx_data", "int8/model.onnx_data"} == files
    sizes = {file.split("/")[0]: (folder / "onnx" / file).stat().st_size for file in files}
    assert sizes["optimum"] > sizes["float16"] > sizes["int8"]
    expected = classifier.scores(["to be", "that question"])
    for precision in ("float16", "int8"):
        found = serving.load(folder, precision=precision).scores(["to be", "that question"])
        for row, other in zip(found, expected, strict=True):
            assert row == pytest.approx(other, abs=0.05)
    assert serving.verify(folder)


@pytest.mark.slow
def test_the_weights_of_one_graph_at_a_time_are_in_memory(small_files, tmp_path, monkeypatch):
    writer, alive, new_session = new_writer(), [], sessions._new_session
    table = writer.model.embedding.embedding.embeddings
    table.assign(np.random.default_rng(0).normal(size=table.shape))  # it repeats the last token

    def watched(*arguments):
        assert not [session for session in alive if session() is not None]
        session = new_session(*arguments)
        alive.append(weakref.ref(session))
        return session

    monkeypatch.setattr(sessions, "_new_session", watched)
    export.onnx(writer, tmp_path / "it", precisions=("float32", "float16"), texts=["ab", "c"])
    assert len(alive) == 3  # the loop, the single steps, the loop in float16


LARGE = """
import json, sys, threading, time
import keras_transformer as kt

def memory():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["RssAnon"].split()[0]) * 1024

def watch():
    while True:
        peak[0] = max(peak[0], memory())
        time.sleep(0.02)

tokenizer = kt.text.ByteTokenizer()
model = kt.models.GPT(tokenizer.vocabulary_size, num_layers=3, num_heads=16, model_dim=4096, hidden_dim=17408,
    max_length=64, pad_id=tokenizer.pad_id, end_id=tokenizer.end_id)
pipeline = kt.pipelines.TextGeneration(model, tokenizer, max_new_tokens=4)
pipeline(["a"])
weights, peak = sum(each.numpy().nbytes for each in model.weights), [0]
threading.Thread(target=watch, daemon=True).start()
getattr(kt.export, sys.argv[2])(pipeline, sys.argv[1], texts=["ab", "The"])
print(json.dumps([weights, peak[0], pipeline(["ab", "x y"])]))
"""


def exported(form, folder):
    """Export a model in a separate process; return its bytes of weights and memory, and two outputs."""
    command = [sys.executable, "-c", LARGE, folder, form]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    size, peak, answers = json.loads(done.stdout.splitlines()[-1])
    assert size > 2.5e9
    return size, peak, answers


@pytest.mark.slow
def test_exporting_2_5_gb_to_onnx_needs_at_most_three_times_the_memory(tmp_path):
    """Memory-mapped files are not counted, as the operating system can reclaim them."""
    size, peak, expected = exported("onnx", tmp_path / "it")
    assert peak < 3 * size
    assert serving.load(tmp_path / "it")(["ab", "x y"]) == expected


@pytest.mark.slow
def test_a_model_of_2_5_gb_is_exported_as_a_saved_model(tmp_path):
    size, peak, expected = exported("saved_model", tmp_path / "it")
    assert peak < 3.5 * size
    (folder,) = (tmp_path / "it" / "saved_model").glob("*/1")
    assert sum(path.stat().st_size for path in folder.rglob("variables.data*")) < 1.01 * size
    found = tf.saved_model.load(folder).signatures["serving_default"](tf.constant(["ab", "x y"]))
    assert [text.decode() for text in found["text"].numpy()] == expected


def test_signatures_of_graphs_have_the_defaults_of_inputs_and_no_weights(tmp_path):
    values = {
        name: onnx.numpy_helper.from_array(np.array([number], "float32"), name)
        for number, name in enumerate(["limit", "weight"])
    }
    x, limit, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [size])
        for name, size in (("x", "batch_size"), ("limit", 1), ("y", "batch_size"))
    )
    node = onnx.helper.make_node("Sum", ["x", *values], ["y"])
    graph = onnx.helper.make_graph([node], "it", [x, limit], [y], [*values.values()])
    (tmp_path / "float16").mkdir()
    onnx.save(onnx.helper.make_model(graph), tmp_path / "float16" / "it.onnx")
    batch = ["float32", ["batch_size"]]
    expected = {
        "inputs": {"x": batch, "limit": ["float32", [1]]},
        "outputs": {"y": batch},
        "defaults": {"limit": [0.0]},
    }
    assert of_graphs(tmp_path) == {"float16/it": expected}


@pytest.mark.parametrize("in_loop", [False, True])
def test_weights_are_written_one_at_a_time(in_loop, tmp_path):
    count, shape = 8, (256, 256)
    names = [f"w{number}" for number in range(count)]
    constants = [weights.without_values(name, onnx.TensorProto.FLOAT, shape) for name in names]
    constants.append(onnx.numpy_helper.from_array(np.array(3), "steps"))
    sums = [onnx.helper.make_node("Sum", names, ["y"])]
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)
    nodes = sums
    if in_loop:
        condition = [
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, []) for name in ("c", "d")
        ]
        step = onnx.helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [])
        same = onnx.helper.make_node("Identity", ["c"], ["d"])
        body = onnx.helper.make_graph(
            [same, *sums], "body", [step, condition[0]], [condition[1], y], constants[:-1]
        )
        nodes = [onnx.helper.make_node("Loop", ["steps", ""], ["y_last"], body=body)]
        y = onnx.helper.make_tensor_value_info("y_last", onnx.TensorProto.FLOAT, [3, *shape])
        constants = constants[-1:]
    graph = onnx.helper.make_graph(nodes, "it", [], [y], constants)
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", conversion.OPSET)], ir_version=8
    )
    readers = {
        name: lambda number=number: np.full(shape, number, "float32") for number, name in enumerate(names)
    }
    tracemalloc.start()
    weights.save(model, readers, tmp_path / "it.onnx")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 4 * np.prod(shape)
    onnx.checker.check_model(onnx.load(tmp_path / "it.onnx"), full_check=True)
    (result,) = onnxruntime.InferenceSession(tmp_path / "it.onnx").run(None, {})
    np.testing.assert_array_equal(result, np.full(result.shape, sum(range(count)), "float32"))
