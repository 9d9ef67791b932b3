import os
import tracemalloc

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
import tf2onnx

import keras_transformer_serving as serving
from keras_transformer import export, generation
from keras_transformer.export.to_onnx import conversion, graph_traversal
from keras_transformer.models import T5, Transformer
from keras_transformer.relations import SlidingWindow
from tests.random_weights import randomise

from .conversions import converted, reductions_of_empty_axes

LOOP, ENCODER, DECODER = "generate_greedy", "encoder_model", "decoder_model_merged"
BATCH, SOURCE = "batch_size", "encoder_sequence_length"
PAST, NEW, TOTAL = "past_sequence_length", "sequence_length", "past_sequence_length + sequence_length"


@pytest.fixture(scope="module")
def graphs(exported):
    return {name: onnx.load(file_of(exported, name)) for name in (LOOP, ENCODER, DECODER)}


@pytest.fixture(scope="module")
def sessions(exported):
    return {
        name: onnxruntime.InferenceSession(file_of(exported, name), providers=["CPUExecutionProvider"])
        for name in (LOOP, ENCODER, DECODER)
    }


def file_of(folder, name):
    """Return the path of a graph's file in an export, in any of its folders."""
    (path,) = (folder / "onnx").rglob(f"{name}.onnx")
    return path


def run(session, **inputs):
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def sources(pipeline, texts, columns=None):
    ids = pipeline.encode(texts).numpy().astype(np.int64)
    return ids if columns is None else np.pad(ids, [(0, 0), (0, columns - ids.shape[1])])


def shapes(values):
    return {
        value.name: (
            value.type.tensor_type.elem_type,
            [dimension.dim_param or dimension.dim_value for dimension in value.type.tensor_type.shape.dim],
        )
        for value in values
    }


FLOAT, INT = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def test_optimum_graphs_and_configurations_are_in_a_separate_folder(exported):
    onnx_folder = exported / "onnx"
    assert {path.relative_to(onnx_folder).as_posix() for path in onnx_folder.rglob("*.*")} == {
        f"{LOOP}.onnx",
        f"optimum/{ENCODER}.onnx",
        f"optimum/{DECODER}.onnx",
        "optimum/config.json",
        "optimum/generation_config.json",
    }


def test_inputs_and_outputs_of_the_loop_are_as_documented(graphs, pipeline):
    graph = graphs[LOOP].graph
    assert shapes(graph.input) == {
        "input_ids": (INT, [BATCH, SOURCE]),
        "max_new_tokens": (INT, [f"{BATCH} or 1"]),
        "min_new_tokens": (INT, [f"{BATCH} or 1"]),
        "prefix_ids": (INT, [f"{BATCH} or 1", "prefix_length"]),
    }
    found = shapes(graph.output)
    assert {name: (kind, axes[0]) for name, (kind, axes) in found.items()} == {
        "ids": (INT, BATCH),
        "lengths": (INT, BATCH),
        "scores": (FLOAT, BATCH),
    }
    assert {name: len(axes) for name, (_, axes) in found.items()} == {"ids": 2, "lengths": 1, "scores": 1}


def test_encoder_tensors_have_the_names_that_optimum_expects(graphs):
    graph = graphs[ENCODER].graph
    assert shapes(graph.input) == {
        "input_ids": (INT, [BATCH, SOURCE]),
        "attention_mask": (INT, [BATCH, SOURCE]),
    }
    found = shapes(graph.output)
    assert set(found) == {"last_hidden_state"}
    assert found["last_hidden_state"][1][:2] == [BATCH, SOURCE]


def test_decoder_tensors_have_the_names_that_optimum_expects(graphs):
    graph = graphs[DECODER].graph
    past = {
        f"past_key_values.0.{side}.{part}": (FLOAT, [BATCH, 2, length, 8])
        for side, length in (("decoder", PAST), ("encoder", "past_encoder_sequence_length"))
        for part in ("key", "value")
    }
    assert shapes(graph.input) == {
        "input_ids": (INT, [BATCH, NEW]),
        "encoder_attention_mask": (INT, [BATCH, SOURCE]),
        "encoder_hidden_states": (FLOAT, [BATCH, SOURCE, 16]),
        **past,
    }
    assert [value.name for value in graph.input if value.name.startswith("past")] == [*past]
    found = shapes(graph.output)
    assert set(found) == {"logits", *(name.replace("past_key_values", "present") for name in past)}
    assert found["present.0.encoder.key"][1][2] == SOURCE
    assert found["logits"][1][:2] == [BATCH, NEW]
    assert found["present.0.decoder.key"] == (FLOAT, [BATCH, 2, TOTAL, 8])


@pytest.mark.parametrize("name", [LOOP, ENCODER, DECODER])
def test_graphs_are_valid_use_opset_18_and_known_operations(graphs, name):
    model = graphs[name]
    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == 18
    assert model.graph.name == name
    unknown = {node.op_type for node in graph_traversal.nodes(model.graph) if not conversion._is_known(node)}
    assert unknown <= {"MultiHeadAttention"}  # of ONNX Runtime
    axes = [axis for _, dims in shapes([*model.graph.input, *model.graph.output]).values() for axis in dims]
    assert not [axis for axis in axes if str(axis).startswith("unk")]


def cases(pipeline, texts):
    return {
        "one short": sources(pipeline, texts[:1]),
        "three": sources(pipeline, texts[1:4]),
        "one long": sources(pipeline, ["uno dos " * 12]),
        "more padding": sources(pipeline, texts[:3], columns=77),
        "a row of padding": np.concatenate(
            [sources(pipeline, texts[:1]), np.zeros_like(sources(pipeline, texts[:1]))]
        ),
        "only padding": np.zeros((2, 5), np.int64),
        "one column": np.array([[3], [7]]),
    }


@pytest.mark.parametrize(
    "names",
    [
        ["three", "a row of padding"],
        pytest.param(
            ["one short", "one long", "more padding", "only padding", "one column"], marks=pytest.mark.slow
        ),
    ],
    ids=["usual", "others"],
)
def test_loop_ids_lengths_and_scores_equal_the_model_outputs(sessions, pipeline, texts, names):
    for name in names:
        ids = cases(pipeline, texts)[name]
        expected = generation.generate(pipeline.model, ids, max_new_tokens=pipeline.max_new_tokens)
        found = run(sessions[LOOP], input_ids=ids)
        np.testing.assert_array_equal(found["ids"], expected.best, err_msg=name)
        np.testing.assert_array_equal(found["lengths"], expected.lengths[:, 0], err_msg=name)
        np.testing.assert_allclose(found["scores"], expected.scores[:, 0], rtol=1e-4, atol=1e-4, err_msg=name)


def test_the_loop_reduces_no_empty_axis(exported, pipeline, texts, tmp_path):
    """The cache of its first step and, by default, the prefix are empty."""
    inputs = {"input_ids": sources(pipeline, texts)}
    assert not reductions_of_empty_axes(file_of(exported, LOOP), inputs, tmp_path / "profile")


@pytest.mark.slow
def test_options_are_loop_inputs_with_one_value_per_row(sessions, pipeline, texts):
    ids, most = sources(pipeline, texts[:4]), pipeline.max_new_tokens
    limits, minimums = np.array([1, most, most + 5, 4]), np.array([0, 3, most, 0])
    found = run(sessions[LOOP], input_ids=ids, max_new_tokens=limits, min_new_tokens=minimums)
    for row, (limit, minimum) in enumerate(zip(limits.clip(1, most), minimums, strict=True)):
        expected = generation.generate(
            pipeline.model, ids[row : row + 1], max_new_tokens=int(limit), min_new_tokens=int(minimum)
        )
        length = expected.lengths[0, 0]
        assert found["lengths"][row] == length
        np.testing.assert_array_equal(found["ids"][row, :length], expected.best[0, :length])
    once = run(sessions[LOOP], input_ids=ids, max_new_tokens=np.array([2]))
    assert (once["lengths"] <= 2).all()
    assert (once["lengths"] > 0).any()


@pytest.mark.slow
def test_prefixes_are_loop_inputs(sessions, pipeline, texts):
    ids, prefixes = sources(pipeline, texts[:3]), np.array([[5, 6], [0, 7], [0, 0]])
    found = run(sessions[LOOP], input_ids=ids, prefix_ids=prefixes)
    expected = generation.generate(
        pipeline.model, ids, max_new_tokens=pipeline.max_new_tokens, prefix_ids=prefixes
    )
    np.testing.assert_array_equal(found["ids"], expected.best)
    np.testing.assert_allclose(found["scores"], expected.scores[:, 0], rtol=1e-4, atol=1e-4)
    same = run(sessions[LOOP], input_ids=ids, prefix_ids=prefixes[:1])
    np.testing.assert_array_equal(same["ids"][0], found["ids"][0])


def test_serving_accepts_the_options_of_the_loop(exported, sessions, pipeline, texts):
    graphs, ids = serving.load(exported).graphs, sources(pipeline, texts[:3])
    limits, prefixes = np.array([2, 5, 3]), np.array([[5, 6]])
    found = graphs.generate(ids.astype("int32"), max_new_tokens=limits, min_new_tokens=2, prefix_ids=prefixes)
    options = {"max_new_tokens": limits, "min_new_tokens": np.array([2]), "prefix_ids": prefixes}
    expected = run(sessions[LOOP], input_ids=ids, **options)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.slow
def test_each_served_text_may_have_its_limit(exported, pipeline, texts):
    served, limits = serving.load(exported), np.arange(len(texts)) % 5 + 1
    assert served(texts, batch_size=3, max_new_tokens=limits) == pipeline(texts, max_new_tokens=limits)
    assert served(texts[0], max_new_tokens=2) == pipeline(texts[0], max_new_tokens=2)
    with pytest.raises(ValueError, match="`max_new_tokens` must be one number, or one for each of 2 texts"):
        served(texts[:2], max_new_tokens=[1, 2, 3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 11}, r"`max_new_tokens` must be in \[1, 10\]. Received: 11 to 11"),
        ({"max_new_tokens": [1, 2]}, "`max_new_tokens` must be integers of shape"),
        ({"max_new_tokens": 2.0}, "`max_new_tokens` must be integers of shape"),
        ({"min_new_tokens": -1}, "`min_new_tokens` must be in"),
        ({"temperature": 0.5}, "`temperature` needs an export that samples"),
        ({"prefix_ids": [[-1]]}, "`prefix_ids` must be in"),
        ({"attention_mask": [[1]]}, "`attention_mask` must be integers of shape"),
        ({"input_ids": [[1.0]]}, "`input_ids` must be integers of shape"),
        ({"input_ids": [5]}, "`input_ids` must be integers of shape"),
        ({"input_ids": [[-5]]}, "`input_ids` must be in"),
        ({"input_ids": [[5] * 201]}, "`input_ids` must have at most 200 tokens each"),
    ],
)
def test_serving_rejects_options_out_of_range(exported, options, message):
    graphs = serving.load(exported).graphs
    with pytest.raises(ValueError, match=message):
        graphs.generate(**{"input_ids": [[5, 6]] * 3, **options})


def test_an_invalid_row_generates_nothing_and_does_not_change_others(sessions, pipeline, texts):
    most, size = pipeline.max_source_tokens, pipeline.model.vocabulary_size
    good = sources(pipeline, texts[:1], most + 1)
    bad = np.repeat(good, 3, axis=0)
    bad[0, 0], bad[1, 0], bad[2] = -1, size, 5
    single = run(sessions[LOOP], input_ids=good)
    found = run(sessions[LOOP], input_ids=np.concatenate([good, bad]))
    assert found["lengths"].tolist() == [single["lengths"][0], 0, 0, 0]
    assert (found["ids"][1:] == 0).all()
    assert (found["scores"][1:] == 0).all()
    np.testing.assert_array_equal(found["ids"][0], single["ids"][0])


def test_empty_batches_and_empty_sources_give_empty_outputs(sessions, pipeline):
    most = pipeline.max_new_tokens
    none = run(sessions[LOOP], input_ids=np.zeros((0, 4), np.int64))
    assert [none[name].shape for name in ("ids", "lengths", "scores")] == [(0, most), (0,), (0,)]
    empty = run(sessions[LOOP], input_ids=np.zeros((2, 0), np.int64))
    assert empty["lengths"].tolist() == [0, 0]
    assert empty["ids"].shape == (2, most)


def memory_and_past(sessions, ids, mask):
    """Return the decoder's inputs from the encoder, and an empty past."""
    memory = run(sessions[ENCODER], input_ids=ids, attention_mask=mask)["last_hidden_state"]
    past = {
        f"past_key_values.0.{side}.{part}": np.zeros((len(ids), 2, 0, 8), np.float32)
        for side in ("decoder", "encoder")
        for part in ("key", "value")
    }
    return {"encoder_hidden_states": memory, "encoder_attention_mask": mask}, past


def step_by_step(sessions, ids, most, pad=0, start=2, end=3):
    """Run a greedy loop over encoder and decoder, as a server would."""
    mask = (ids != pad).astype(np.int64)
    memory, past = memory_and_past(sessions, ids, mask)
    token = np.full((len(ids), 1), start, np.int64)
    out, ended = np.full((len(ids), most), pad), ~mask.any(axis=1)
    for column in range(most):
        step = run(sessions[DECODER], input_ids=token, **memory, **past)
        logits = step.pop("logits")[:, -1]
        logits[:, [pad, start]] = -np.inf
        out[:, column] = np.where(ended, pad, logits.argmax(axis=-1))
        ended |= out[:, column] == end
        token = out[:, column : column + 1]
        past |= {name.replace("present", "past_key_values"): value for name, value in step.items()}
    return out


def test_running_encoder_and_decoder_step_by_step_equals_the_loop(sessions, pipeline, texts):
    for name, ids in cases(pipeline, texts).items():
        found = step_by_step(sessions, ids, pipeline.max_new_tokens)
        np.testing.assert_array_equal(found, run(sessions[LOOP], input_ids=ids)["ids"], err_msg=name)


@pytest.mark.parametrize("split", [0, 1, 3])
def test_the_decoder_accepts_several_tokens_and_a_past_of_any_length(sessions, pipeline, texts, split):
    """The logits equal the model's for any number of tokens per call."""
    ids = sources(pipeline, texts[:3])
    target = np.array([[2, 9, 14, 5, 7], [2, 30, 41, 8, 12], [2, 60, 5, 5, 70]])
    expected = np.asarray(pipeline.model({"source_ids": ids, "target_ids": target}))
    memory, past = memory_and_past(sessions, ids, (ids != 0).astype(np.int64))
    logits = []
    for part in np.split(target, [split] if split else [], axis=1):
        step = run(sessions[DECODER], input_ids=part, **memory, **past)
        logits.append(step.pop("logits"))
        past |= {name.replace("present", "past_key_values"): value for name, value in step.items()}
    np.testing.assert_allclose(np.concatenate(logits, axis=1), expected, rtol=1e-4, atol=1e-4)


def test_the_encoder_ignores_masked_ids(sessions, pipeline, texts):
    """Masked ids do not change the output, as padding does not."""
    ids = sources(pipeline, texts[:1], columns=20)
    mask = (ids != 0).astype(np.int64)
    rubbish = np.where(mask == 1, ids, 9)
    kept = mask[0].astype(bool)
    with_padding = run(sessions[ENCODER], input_ids=ids, attention_mask=mask)
    with_rubbish = run(sessions[ENCODER], input_ids=rubbish, attention_mask=mask)
    unmasked = run(sessions[ENCODER], input_ids=rubbish, attention_mask=np.ones_like(mask))
    expected, found, other = (
        each["last_hidden_state"][:, kept] for each in (with_padding, with_rubbish, unmasked)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(other, expected, rtol=1e-3)


def test_a_second_export_is_rejected_and_changes_nothing(quick, damaged, pipeline):
    before = {path: path.stat().st_mtime_ns for path in damaged.parent.rglob("*")}
    with pytest.raises(FileExistsError, match="onnx"):
        export.onnx(pipeline, damaged)
    assert {path: path.stat().st_mtime_ns for path in damaged.parent.rglob("*")} == before


def test_an_operation_without_an_onnx_equivalent_is_rejected(tmp_path):
    import tensorflow as tf

    spec = tf.TensorSpec([None, 2], tf.float32, name="x")
    with pytest.raises(ValueError, match="operations that ONNX supports. Received: .*Lgamma"):
        conversion.convert(
            "graph", lambda x: {"y": tf.math.lgamma(x)}, [spec], {"x": ["batch_size"], "y": ["batch_size"]}
        )


def test_operations_inside_loop_bodies_are_checked():
    body = onnx.helper.make_graph([onnx.helper.make_node("Strange", [], ["y"])], "body", [], [])
    loop = onnx.helper.make_node("Loop", ["m", "c"], ["y"], body=body)
    graph = onnx.helper.make_graph([loop], "main", [], [])
    assert [node.op_type for node in graph_traversal.nodes(graph)] == ["Loop", "Strange"]
    assert [conversion._is_known(node) for node in graph_traversal.nodes(graph)] == [True, False]


def test_exact_gelu_converts_and_agrees():
    """TensorFlow computes it from Erfc, which the converter does not support by itself."""
    signature = [tf.TensorSpec([None], tf.float32, name="x")]

    def gelu(x):
        return {"y": keras.activations.gelu(x, approximate=False)}

    model = conversion.convert("gelu", gelu, signature, {"x": ["n"], "y": ["n"]})
    x = np.linspace(-6, 6, 101, dtype="float32")
    (y,) = onnxruntime.InferenceSession(model.SerializeToString()).run(["y"], {"x": x})
    np.testing.assert_allclose(y, keras.ops.convert_to_numpy(gelu(x)["y"]), atol=1e-6)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("reduce", [tf.math.unsorted_segment_sum, tf.math.unsorted_segment_max])
def test_sums_and_maxima_of_segments_convert(reduce, dtype, shape):
    random = np.random.default_rng(0)
    data = random.integers(-9, 9, (2000, *shape)).astype(dtype)
    segments = random.integers(-1, 4, 2000).astype("int32")
    segments[segments == 1] = 2  # 1 is empty
    counts, found, expected, _ = converted(
        lambda x, ids: reduce(x, ids, tf.shape(ids)[0] // 400), data, segments
    )
    np.testing.assert_array_equal(found, expected)
    assert counts["ScatterElements"] == 1
    assert counts.keys().isdisjoint({"ScatterND", "TopK", "Unique"})


def test_graphs_are_not_copied_unless_an_optimisation_fails(monkeypatch):
    monkeypatch.delenv("TF2ONNX_CATCH_ERRORS", raising=False)
    copies = []

    def copied(graph, memo):
        copies.append(graph)
        return graph

    def fail(*_):
        raise NotImplementedError

    def twice():
        signature = [tf.TensorSpec([None], tf.float32, name="x")]
        model = conversion.convert("twice", lambda x: {"y": 2 * x}, signature, {"x": ["n"], "y": ["n"]})
        session = onnxruntime.InferenceSession(model.SerializeToString())
        return session.run(["y"], {"x": np.ones(2, "float32")})[0].tolist()

    monkeypatch.setattr(tf2onnx.graph.Graph, "__deepcopy__", copied, raising=False)
    assert twice() == [2, 2]
    assert copies == []
    monkeypatch.setattr(tf2onnx.optimizer.ReshapeOptimizer, "optimize", fail)
    assert twice() == [2, 2]
    assert copies
    assert "TF2ONNX_CATCH_ERRORS" not in os.environ


@pytest.mark.slow
def test_memory_of_a_conversion_is_linear_in_the_nodes_of_a_branch():
    def peak(nodes):
        def branch(x):
            for _ in range(nodes):
                x = tf.sin(x)
            return x

        def function(x):
            return {"y": tf.cond(tf.reduce_sum(x) > 0, lambda: branch(x), lambda: x)}

        tracemalloc.start()
        conversion.convert("graph", function, [tf.TensorSpec([None], tf.float32, name="x")], {})
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return memory

    peak(1)  # imports
    assert peak(400) < 6 * peak(100)


@pytest.mark.slow
def test_encoder_and_decoder_of_other_depths_are_exported_and_verified(
    pipeline, random_transformer, tmp_path
):
    model = random_transformer(
        20, 1.5, vocabulary_size=pipeline.model.vocabulary_size, num_layers=2, num_decoder_layers=1
    )
    other = type(pipeline)(model, pipeline.tokenizer, max_new_tokens=10)
    export.saved_model(other, tmp_path / "it")
    export.onnx(other, tmp_path / "it")
    assert export.verify(tmp_path / "it") == export.verify(tmp_path / "it", other)
    graph = onnx.load(file_of(tmp_path / "it", DECODER)).graph
    assert len(graph.output) == 5  # logits, and the keys and values of the only decoder layer


@pytest.mark.slow
@pytest.mark.parametrize("model_class", [Transformer, T5])
def test_exports_of_sliding_window_models_give_equal_ids(model_class, pipeline, texts, tmp_path):
    tokenizer = pipeline.tokenizer
    model = model_class(
        tokenizer.vocabulary_size,
        num_layers=1,
        num_heads=2,
        model_dim=16,
        hidden_dim=32,
        pad_id=tokenizer.pad_id,
        start_id=tokenizer.start_id,
        end_id=tokenizer.end_id,
        encoder_relation=SlidingWindow(2, 2),
        decoder_relation=SlidingWindow(1),
    )
    randomise(model)
    windowed = type(pipeline)(model, tokenizer, generation.Beam(3), max_new_tokens=8)
    export.saved_model(windowed, tmp_path / "it")
    export.onnx(windowed, tmp_path / "it")
    assert export.verify(tmp_path / "it") == export.verify(tmp_path / "it", windowed)
    session = onnxruntime.InferenceSession(file_of(tmp_path / "it", "generate_beam"))
    ids = sources(pipeline, texts)
    found = run(session, input_ids=ids)
    expected = generation.generate(model, ids, windowed.sampler, max_new_tokens=8)
    np.testing.assert_array_equal(found["ids"], expected.best)
    assert found["lengths"].max() > 4  # beyond the window
