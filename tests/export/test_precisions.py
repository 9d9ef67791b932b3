"""Exports in float16 and int8."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest

import keras_transformer_serving as serving
from keras_transformer import export, generation, models, pipelines, text
from keras_transformer.export import ParityError, to_saved_model
from keras_transformer.export.to_onnx import conversion, graph_traversal, precisions, target
from keras_transformer_serving import parity
from keras_transformer_serving import precisions as thresholds
from tests.laws.pipelines import classify_images, embed, recognize_speech

ALL = ("float32", "float16", "int8")
LOOP = "generate_greedy.onnx"
OPENINGS = ("", "y ", "pero ", "cuando ", "mañana ", "casi ", "¿")


@pytest.fixture(scope="module")
def sentences(sentence_pairs):
    """Enough texts for a threshold of 98 %: among few, one near tie would change more than 2 % of the ids."""
    return [opening + source for opening in OPENINGS for source, _ in sentence_pairs]


@pytest.fixture(scope="module")
def folder(exported, pipeline, sentences, tmp_path_factory):
    """The pipeline in every precision: converted from the graphs of `exported`."""
    folder = tmp_path_factory.mktemp("precisions") / "it"

    def convert(name, *_):
        return onnx.load(next((exported / "onnx").rglob(f"{name}.onnx")))

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(conversion, "convert", convert)
        export.onnx(pipeline, folder, precisions=ALL, texts=sentences)
    return folder


def test_loop_graphs_have_a_folder_for_each_precision(folder):
    files = {path.relative_to(folder / "onnx").as_posix() for path in (folder / "onnx").rglob("*.onnx")}
    assert {f"float16/{LOOP}", f"int8/{LOOP}", LOOP} <= files
    assert {name for name in files if name.split("/")[0] in ALL} == {f"float16/{LOOP}", f"int8/{LOOP}"}


@pytest.mark.parametrize(
    ("precision", "dtypes"),
    [("", {"FLOAT"}), ("float16", {"FLOAT16"}), ("int8", {"INT8"})],
)
def test_weights_are_stored_in_the_requested_precision(folder, precision, dtypes):
    graph = onnx.load(folder / "onnx" / precision / LOOP).graph
    constants = [each for part in graph_traversal.graphs(graph) for each in part.initializer]
    matrices = [each for each in constants if len(each.dims) == 2 and min(each.dims) >= 16]
    if precision == "int8":  # small tables are in float32
        matrix_names = {
            node.input[1] for node in graph_traversal.nodes(graph) if node.op_type == "MatMulInteger"
        }
        matrices = [each for each in matrices if each.name in matrix_names or np.prod(each.dims) >= 1024]
    assert len(matrices) > 10
    assert {onnx.TensorProto.DataType.Name(each.data_type) for each in matrices} == dtypes


def test_every_precision_is_verified_with_its_thresholds(folder, sentences):
    stored = json.loads((folder / "parity.json").read_text())["onnx"]["precisions"]
    assert set(stored) == {"float16", "int8"}
    for precision, row in stored.items():
        assert row["identical"] + row["different"] == len(sentences)
        threshold = thresholds.THRESHOLDS[precision]
        assert row["identical_ids"] >= threshold["identical_ids"]
        assert 0 < row["score_difference"] <= threshold["score_difference"]
        assert row["thresholds"] == {name: threshold[name] for name in ("identical_ids", "score_difference")}
    assert serving.verify(folder)["onnx"]["precisions"] == stored
    assert export.verify(folder)["onnx"]["precisions"] == stored


@pytest.mark.slow
def test_verify_compares_every_precision_with_a_pipeline(folder, pipeline, texts):
    rows = export.verify(folder, pipeline, texts)["onnx"]["precisions"]
    assert {row["identical"] + row["different"] for row in rows.values()} == {len(texts)}


@pytest.mark.parametrize(
    ("precision", "low", "high"), [("float32", 0, 0), ("float16", 1e-3, 0.1), ("int8", 1e-3, 1)]
)
def test_load_accepts_a_precision(folder, exported, texts, precision, low, high):
    expected, found = (
        each.generate(texts) for each in (serving.load(exported), serving.load(folder, precision=precision))
    )
    same = (found["ids"] == expected["ids"]).all(axis=1)
    assert same.mean() > 0.5  # of an untrained model, whose logits are close
    assert low <= np.abs(found["scores"] - expected["scores"])[same].max() <= high
    assert serving.load(folder, precision=precision)(texts[0]) == serving.load(exported)(texts[0])


def test_loading_a_precision_that_was_not_exported_raises_an_error(folder, exported):
    with pytest.raises(
        ValueError, match="`precision` must be .* float32, float16, int8. Received: precision='int4'"
    ):
        serving.load(folder, precision="int4")
    with pytest.raises(ValueError, match="`precision` must be .*: float32. Received: precision='int8'"):
        serving.load(exported, precision="int8")


@pytest.mark.parametrize(
    "wrong", [(), ("int8",), ("float32", "int2"), ("float32", "int8", "int8"), "float32"]
)
def test_invalid_precisions_are_rejected_before_anything_is_written(pipeline, tmp_path, wrong):
    for write in (export.onnx, export.bundle):
        with pytest.raises(
            ValueError, match="`precisions` must be None or a list of 'float32' and .*Received: precisions="
        ):
            write(pipeline, tmp_path / "it", precisions=wrong)
    assert not (tmp_path / "it").exists()


def test_int4_is_rejected_for_models_that_are_not_decoder_only(pipeline, tmp_path):
    for write in (export.onnx, export.bundle):
        with pytest.raises(ValueError, match="without 'int4' unless .*decoder-only.* a Transformer"):
            write(pipeline, tmp_path / "it", precisions=("float32", "int4"))
    assert not (tmp_path / "it").exists()


IDS = np.array([[5, 6, 3, 0], [7, 3, 0, 0], [0, 0, 0, 0]])
LENGTHS, SCORES = np.array([3, 2, 0]), np.array([-3.0, -2.0, 0.0])


class Graphs:
    """Stand-in for graphs, with fixed outputs."""

    def __init__(self, ids=IDS, scores=SCORES, lengths=LENGTHS):
        self._outputs = {"ids": np.array(ids), "scores": np.array(scores), "lengths": np.array(lengths)}

    def generate(self, _):
        return self._outputs


def reference(ids=IDS):
    return parity.Reference(["a", "b", ""], ids, ["A", "B", ""], scores=SCORES)


def test_ids_after_a_difference_are_not_compared():
    ids = IDS.copy()
    ids[0, 1:] = [9, 9, 9]
    row = thresholds._compare_ids(reference(), Graphs(ids, np.add(SCORES, [5, 0.5, 0])).generate(None))
    assert row == {"identical": 2, "different": 1, "identical_ids": 3 / 4, "score_difference": 0.25}


def test_choices_that_are_nearly_as_probable_count_as_identical():
    ids = IDS.copy()
    ids[0, 1:] = [9, 9, 9]
    expected = dataclasses.replace(reference(), near_choices=lambda row: [(1, 9)] if row == 0 else [])
    row = thresholds._compare_ids(expected, Graphs(ids).generate(None))
    assert (row["different"], row["identical_ids"]) == (1, 1.0)
    ids[0, 1] = 8
    row = thresholds._compare_ids(expected, Graphs(ids).generate(None))
    assert row["identical_ids"] == 3 / 4
    # They are stored, to verify the export without the model.
    report = parity.compare_generated(expected, lambda texts: {"graph": (IDS, ["A", "B", ""])}, True)
    stored = parity.Reference.stored(json.loads(json.dumps(report)))
    assert [*map(stored.near_choices, range(3))] == [[(1, 9)], [], []]


def test_only_the_first_of_several_hypotheses_is_compared():
    several = np.stack([IDS, np.full_like(IDS, 9)], axis=1)
    scores, lengths = np.stack([SCORES, SCORES], 1), np.stack([LENGTHS, LENGTHS], 1)
    other = several.copy()
    other[:, 1] = 8
    row = thresholds.compare("int8", reference(several), Graphs(other, scores, lengths), {})
    assert (row["identical"], row["identical_ids"], row["score_difference"]) == (3, 1.0, 0.0)


@pytest.mark.parametrize(
    "graphs",
    [Graphs(IDS + 1), Graphs(scores=SCORES - 1), Graphs(scores=SCORES * np.nan)],
    ids=["ids", "scores", "NaN"],
)
@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_outputs_beyond_the_thresholds_raise_an_error_that_names_the_precision(graphs, precision):
    row = thresholds.compare(precision, reference(), graphs, {})
    with pytest.raises(
        ParityError, match=f"Leave {precision} out. Received: {precision}, whose (ident|score)"
    ):
        thresholds.check(precision, row)


def test_a_conversion_that_fails_is_left_out_unless_it_is_named(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("an operation\nof the model")

    monkeypatch.setattr(conversion, "convert", lambda *_: onnx.parser.parse_model(LOOP_THAT_READS_A_GATHER))
    monkeypatch.setattr(conversion, "CONVERTERS", {"float16": fail})
    graph, left_out = SimpleNamespace(function=None, inputs=None, axes=None, defaults={}), {}
    paths = {"float16": tmp_path / "float16"}
    conversion.write_graph("it", graph, [], tmp_path, paths, [], left_out)
    assert left_out == {"float16": "RuntimeError: an operation of the model"}
    with pytest.raises(RuntimeError):
        conversion.write_graph("it", graph, [], tmp_path, paths, [], None)


LOOP_OF_SENSITIVE_OPERATIONS = """
<ir_version: 10, opset_import: ["" : 18]>
loop (float[n, 16] x) => (float[n, 16] hidden, float[n, 3] chosen)
<int64 steps = {6}, bool go = {1}, int64 offset = {2000}, float period = {2.6525}, float scale = {400},
 int64[1] last = {-1}, int64[1] three = {3}, int64[1] zero = {0}>
{
  first = Slice(x, zero, three, last)
  rate = Reciprocal(period)
  hidden, chosen = Loop(steps, go, x, first) <body = step
    (int64 i, bool going, float[n, 16] before, float[n, 3] sums)
    => (bool goes_on, float[n, 16] after, float[n, 3] new_sums) {
      position = Add(i, offset)
      number = Cast <to = 1> (position)
      angle = Mul(number, rate)
      wave = Sin(angle)
      product = MatMul(before, matrix)
      sum = Add(product, wave)
      bounded = Tanh(sum)
      large = Mul(bounded, scale)
      square = Mul(large, large)
      mean = ReduceMean <keepdims = 1> (square, last)
      root = Sqrt(mean)
      after = Div(large, root)
      top, places = TopK(after, three)
      new_sums = Add(sums, top)
      goes_on = Identity(going)
    }>
}
"""


def test_float16_keeps_angles_norms_and_searches_of_loops_in_float32():
    """Angles of large positions, squares of large values, and the k largest values."""
    model = onnx.parser.parse_model(LOOP_OF_SENSITIVE_OPERATIONS)
    matrix = np.random.default_rng(0).normal(size=(16, 16)).astype("float32") / 4
    model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, "matrix"))
    before = model.SerializeToString()
    found = {"float32": model, **{name: convert(model) for name, convert in precisions.CONVERTERS.items()}}
    assert model.SerializeToString() == before
    x = {"x": np.random.default_rng(1).normal(size=(5, 16)).astype("float32")}
    outputs = {}
    for name, graph in found.items():
        onnx.checker.check_model(graph)
        outputs[name] = onnxruntime.InferenceSession(graph.SerializeToString()).run(["hidden", "chosen"], x)
    for expected, half, *quantised in zip(*outputs.values(), strict=True):
        assert {each.dtype for each in (half, *quantised)} == {np.dtype(np.float32)}
        np.testing.assert_allclose(half, expected, atol=0.02)
        assert np.abs(half - expected).max() > 0
        for each in quantised:
            np.testing.assert_allclose(each, expected, atol=0.3)


LOGARITHM_OF_ENERGIES = """
<ir_version: 10, opset_import: ["" : 18]>
features (double[n] energies) => (float[n] half)
<float scale = {0.5}>
{
  single = Cast <to = 1> (energies)
  logarithm = Log(single)
  half = Mul(logarithm, scale)
}
"""


def test_float16_keeps_logarithms_of_float64_in_float32():
    """Energies of quiet audio are below the range of float16."""
    model = precisions.to_float16(onnx.parser.parse_model(LOGARITHM_OF_ENERGIES))
    energies = np.array([1e-10, 1, 1e10])
    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(["half"], {"energies": energies})
    np.testing.assert_allclose(found, np.log(energies) / 2, rtol=2**-10)


SIZE_OF_A_SLICE = """
<ir_version: 10, opset_import: ["" : 18]>
slice (float[n] x) => (float[m] end)
<int64[1] start = {0}, int64[1] added = {2147483000}, float[1] least = {0}, int64[1] axis = {0}>
{
  size = Shape(x)
  large = Add(size, added)
  number = Cast <to = 1> (large)
  most = Max(number, least)
  stop = Cast <to = 7> (most)
  end = Slice(x, start, stop, axis)
}
"""


def test_float16_keeps_sizes_that_are_computed_in_floats():
    """tf2onnx compares the bounds of a slice as floats, whose largest exceed float16's."""
    model = precisions.to_float16(onnx.parser.parse_model(SIZE_OF_A_SLICE))
    x = np.arange(5, dtype="float32")
    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(["end"], {"x": x})
    np.testing.assert_array_equal(found, x)


DRAW = """
<ir_version: 10, opset_import: ["" : 18]>
draw (float[n] logits, float[n] noise, float[n] temperature) => (bool[n] passed, bool[n] large)
<float two = {2.0}, float one = {1.0}, float limit = {1e18}>
{
  doubled = Mul(logits, two)
  scaled = Div(doubled, temperature)
  large = Greater(scaled, limit)
  threshold = Mul(noise, two)
  passed = Greater(threshold, one)
}
"""


def test_float16_draws_in_float32():
    """Between 1/2 and 1 float16 has 1,024 numbers, so that noise would not draw rare tokens."""
    model = precisions.to_float16(onnx.parser.parse_model(DRAW))
    inputs = {
        "logits": np.array([-1, 0, 2], "float32"),
        "noise": np.array([0.49999, 0.5, 0.50001], "float32"),
        "temperature": np.full(3, 1e-20, "float32"),
    }
    # ONNX Runtime computes in float32 on a CPU, and drops casts before it.
    with np.errstate(over="ignore"):  # the largest become infinite
        passed, large = onnx.reference.ReferenceEvaluator(model).run(["passed", "large"], inputs)
    np.testing.assert_array_equal(passed, [False, False, True])
    np.testing.assert_array_equal(large, [False, False, True])


LOOP_THAT_READS_A_GATHER = """
<ir_version: 10, opset_import: ["" : 18]>
loop (int64[n] ids, float[n, 16] start) => (float[n, 16] sum)
<int64 steps = {3}, bool go = {1}>
{
  [gather] bias = Gather(table, ids)
  sum = Loop(steps, go, start) <body = step
    (int64 i, bool going, float[n, 16] before) => (bool goes_on, float[n, 16] after) {
      after = Add(before, bias)
      goes_on = Identity(going)
    }>
}
"""


def test_int8_quantizes_gathers_read_by_loops():
    """The relative position biases of T5 are such gathers."""
    model = onnx.parser.parse_model(LOOP_THAT_READS_A_GATHER)
    table = np.random.default_rng(0).normal(size=(4, 16)).astype("float32")
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    session = onnxruntime.InferenceSession(precisions.to_int8(model).SerializeToString())
    start = np.ones((2, 16), "float32")
    (found,) = session.run(["sum"], {"ids": np.array([2, 0]), "start": start})
    np.testing.assert_allclose(found, start + 3 * table[[2, 0]], rtol=1e-5)  # a small table is in float32


def test_int8_keeps_vectors_in_float32():
    """The length penalties of beam search are such a vector: its rounding would change the order of hypotheses."""
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 18]>
    penalties (int64[n] lengths) => (float[n] penalty) { penalty = Gather(table, lengths) }
    """)
    table = np.arange(1, 65, dtype="float32") ** 0.6
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    lengths = np.arange(64)
    session = onnxruntime.InferenceSession(precisions.to_int8(model).SerializeToString())
    np.testing.assert_array_equal(session.run(["penalty"], {"lengths": lengths})[0], table)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler", [generation.Beam(3, num_return=2), generation.Sample(0.8, top_p=0.9, seed=1)]
)
def test_loops_of_other_samplers_are_converted(pipeline, sampler, tmp_path):
    """A looser bound than the threshold of int8, which changes many ids of this untrained model."""
    folder = tmp_path / "it"
    export.onnx(pipeline.with_settings(sampler), folder, precisions=("float32", "float16"))
    assert set(serving.verify(folder)["onnx"]["precisions"]) == {"float16"}
    name = f"generate_{type(sampler).__name__.lower()}"
    quantised = precisions.to_int8(onnx.load(folder / "onnx" / f"{name}.onnx"))
    config = serving.Bundle(folder).config
    graphs = serving.Graphs(serving.Sessions(lambda _: quantised.SerializeToString()), config)
    ids = pipeline.encode(["uno dos", "hoy llueve"]).numpy().astype("int64")
    expected = serving.load(folder).graphs.generate(ids)
    assert (graphs.generate(ids)["ids"] == expected["ids"]).mean() > 0.3


def test_a_model_in_float16_is_not_converted(tmp_path, pipeline, monkeypatch):
    monkeypatch.setattr(type(pipeline.model), "compute_dtype", "float16")
    with pytest.raises(ValueError, match=r"`precisions` must be \('float32',\).*computes in float16"):
        export.onnx(pipeline, tmp_path / "it", precisions=ALL)


@pytest.mark.parametrize("write", [export.onnx, export.bundle])
def test_a_model_in_bfloat16_raises_an_error_before_the_export(write, tmp_path, pipeline, monkeypatch):
    monkeypatch.setattr(type(pipeline.model), "compute_dtype", "bfloat16")
    with pytest.raises(ValueError, match="`pipeline` must .*float32 or float16.*Received: .*in bfloat16"):
        write(pipeline, tmp_path / "it")
    assert not (tmp_path / "it").exists()


@pytest.mark.slow
def test_a_bundle_is_committed_at_once(quick, pipeline, sentence_pairs, tmp_path, capsys):
    texts = [source for source, _ in sentence_pairs]
    folder = export.bundle(pipeline, tmp_path / "it", precisions=("float32", "int8"), version=2, texts=texts)
    assert folder == tmp_path / "it"
    assert capsys.readouterr().out.splitlines() == ["[1/2] saved_model/it/2", "[2/2] onnx: float32, int8"]
    report = serving.Bundle(folder).parity
    assert set(report) == {"saved_model/it/2", "onnx"}
    assert set(report["onnx"]["precisions"]) == {"int8"}
    with pytest.raises(FileExistsError, match="onnx` must be new"):
        export.bundle(pipeline, folder)


def test_an_interrupted_bundle_leaves_no_files(pipeline, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(
        to_saved_model.SavedModel, "export", lambda _, __, new, *___: (new / "saved_model.pb").touch()
    )
    monkeypatch.setattr(conversion, "convert", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export.bundle(pipeline, tmp_path / "it", say=lambda line: None)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_a_non_generating_pipeline_is_exported_in_every_precision(tmp_path):
    tokenizer = text.WordPieceTokenizer.train(["to be or not to be", "that is the question"], 60)
    bert = models.BERT(tokenizer.vocabulary_size, 1, 2, 16, hidden_dim=32, max_length=16)
    pipeline = pipelines.TextClassification(models.SequenceClassifier(bert, 3), tokenizer)
    export.bundle(pipeline, tmp_path / "it", precisions=("float32", "float16", "int8"))
    files = {path.relative_to(tmp_path / "it" / "onnx").as_posix() for path in tmp_path.rglob("*.onnx")}
    assert files == {"optimum/model.onnx", "float16/model.onnx", "int8/model.onnx"}
    stored = export.verify(tmp_path / "it")["onnx"]["precisions"]
    assert stored == serving.verify(tmp_path / "it")["onnx"]["precisions"]
    assert 0 < stored["float16"]["logit_error"] < stored["int8"]["logit_error"] < 0.1
    assert stored["float16"]["identical_labels"] == stored["int8"]["identical_labels"] == 1
    ids = np.array([[5, 6, 7]])
    expected = serving.load(tmp_path / "it").run(input_ids=ids)["logits"]
    found = serving.load(tmp_path / "it", precision="int8").run(input_ids=ids)["logits"]
    assert 0 < np.abs(found - expected).max() < 0.1


def test_int8_is_fitted_to_examples_that_are_like_real_inputs(tmp_path, monkeypatch):
    """The channels of noise are not those of speech or images: fitted to them, int8 wrote other words."""
    seen = []
    monkeypatch.setattr(conversion, "write_graph", lambda *arguments: seen.append(len(arguments[5])))
    monkeypatch.setattr(target.optimum, "configurations", lambda pipeline: None)
    compare = SimpleNamespace(texts=None, remedy="", tokenizers=lambda: None)
    for make in (recognize_speech, embed, classify_images):
        with pytest.raises(AttributeError):  # nothing is compared
            target.Onnx(("float32", "int8")).export(make(), tmp_path, {}, compare, print)
    assert seen == [2, 3, 0]
