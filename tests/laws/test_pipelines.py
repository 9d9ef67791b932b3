"""Laws of every pipeline: a new pipeline is a row in `pipelines.py`."""

import inspect
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer import export
from keras_transformer import pipelines as kt_pipelines
from keras_transformer.export.parity import outputs
from keras_transformer.pipelines.forward import FORWARD as FORWARD_GRAPH
from keras_transformer.pipelines.pipeline import DEFAULT
from keras_transformer_serving import files, parity
from keras_transformer_serving.server import forward
from tests.serving.in_tensorflow import served_in_tensorflow, signature_outputs

from .cases import over
from .pipelines import (
    DIFFERENT,
    GENERATING,
    LONG,
    OF_TEXTS,
    PIPELINES,
    comparable,
    result_of,
    run_of,
)

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
NO_TEXTS = [None, 3, float("nan"), b"\xff", ["a"], "a\ud800"]
ALL_BUT_TEXT = tuple(name for name in PIPELINES if name != "text")
each_forward = over(DIFFERENT)
each_different = over({**DIFFERENT, **GENERATING})
BATCHED = {name: case for name, case in {**DIFFERENT, **GENERATING}.items() if name != "nodes"}


def assert_identical(found, expected):
    """Compare answers of any structure without a tolerance."""
    keras.tree.map_structure(np.testing.assert_array_equal, found, expected)


def gathered(columns, rows):
    """Return columns of rows, images as an array."""
    found = zip(*rows, strict=True)
    return [
        np.stack(values) if isinstance(column, np.ndarray) else list(values)
        for column, values in zip(columns, found, strict=True)
    ]


def test_every_pipeline_has_a_row():
    classes = {
        kind
        for kind in kt_pipelines.Pipeline.classes.values()
        if kind.__module__.startswith("keras_transformer.") and not inspect.isabstract(kind)
    }
    first = {name.split(",")[0]: case for name, (case, _) in reversed(PIPELINES.items())}
    assert classes == {type(case.pipeline) for case in first.values()}


@each_different
def test_outputs_and_settings_are_equal_after_loading(case, tmp_path):
    pipeline = case.pipeline
    pipeline.save(tmp_path / "it")
    again = kt_pipelines.load(tmp_path / "it")
    assert type(again) is type(pipeline)
    assert again.settings() == pipeline.settings()
    is_graph = isinstance(pipeline, kt_pipelines.NodeClassification)  # a call takes one graph
    columns = [column[0] for column in case.columns] if is_graph else case.columns
    assert_identical(again(*columns), pipeline(*columns))


@pytest.mark.backend_neutral
@over(BATCHED, slow=ALL_BUT_TEXT)
def test_an_answer_does_not_depend_on_the_batch_and_the_order(case, assert_equal):
    pipeline = case.pipeline
    expected = pipeline(*case.columns)
    assert len(expected) == len(case.columns[0])
    for batch_size in (1, 2):
        assert_equal(pipeline(*case.columns, batch_size=batch_size), expected)
    assert_equal(pipeline(*(column[::-1] for column in case.columns), batch_size=2), expected[::-1])
    assert_equal(pipeline(*(column[0] for column in case.columns)), rows_of(expected)[0])
    empty = pipeline(*(column[:0] for column in case.columns))
    assert type(empty) is type(expected)
    assert len(empty) == 0


def rows_of(answers):
    """Return a list of answers, numbers of an array as such."""
    return answers.tolist() if isinstance(answers, np.ndarray) and answers.ndim == 1 else list(answers)


def invalid_rows(case):
    """Return rows that a call rejects: the one of the case and, for texts, one for each invalid value."""
    if not case.reads_texts:
        return [case.invalid]
    first = [column[0] for column in case.columns]
    rows = [[*first[:at], bad, *first[at + 1 :]] for at in range(len(first)) for bad in NO_TEXTS]
    return [case.invalid, *rows]


@over(BATCHED)
def test_an_invalid_row_fails_only_its_own_row_and_its_error_names_the_row(case, assert_equal):
    pipeline, bad = case.pipeline, invalid_rows(case)
    first, *others = zip(*case.columns, strict=True)
    rows = gathered(case.columns, [first, *bad, *others])
    found = pipeline(*rows, errors="return", batch_size=2)
    answers = pipeline(*case.columns)
    assert_equal([found[0], *found[len(bad) + 1 :]], rows_of(answers))
    for index, values in enumerate(bad, 1):
        error = result_of(pipeline, *gathered(case.columns, [*[first] * index, values]))
        assert comparable(found[index]) == error
        assert f"[{index}]" in error[1]
    every = pipeline(*gathered(case.columns, bad), errors="return")
    assert all(isinstance(each, Exception) for each in every)
    assert pipeline(*(column[:0] for column in case.columns), errors="return") == []
    assert comparable(pipeline(*bad[-1], errors="return")) == result_of(pipeline, *bad[-1])
    assert_equal(pipeline(*first, errors="return"), rows_of(answers)[0])
    with pytest.raises(ValueError, match="`errors` must be"):
        pipeline(*case.columns, errors="ignore")


@each_forward
def test_signatures_equal_the_pipeline(case):
    pipeline = case.pipeline
    examples = outputs.examples_of(pipeline, texts_of(case, pipeline))
    report = parity.compare_tensors(examples, run_of(pipeline), 1e-4)
    assert set(report["graphs"]) == set(pipeline.signatures())
    if case.reads_texts:
        sizes = {len(next(iter(one.inputs.values()))) for one in examples if one.graph == DEFAULT}
        assert sizes == {1, len(case.columns[0])}


def texts_of(case, pipeline):
    """Return the texts of a case, or the pairs of texts that its signature takes; None for images and graphs."""
    if not case.reads_texts:
        return None
    takes_pairs = len(pipeline.columns(pipeline.config)[DEFAULT]) > 1
    return list(zip(*case.columns, strict=True)) if takes_pairs else case.columns[0]


@each_forward
def test_signatures_return_an_error_for_an_invalid_row_and_do_not_change_other_rows(case):
    pipeline = case.pipeline
    valid = list(zip(*(column[:2] for column in case.columns), strict=True))
    columns = gathered(case.columns, [valid[0], case.invalid, valid[1]])
    answers = {key: values.numpy() for key, values in pipeline.serve(*map(tf.constant, columns)).items()}
    assert [bool(error) for error in answers["error"]] == [False, True, False]
    declared = pipeline.tensors(pipeline.config)[DEFAULT][1]
    found = {key: (tf.as_dtype(values.dtype).name, values.ndim - 1) for key, values in answers.items()}
    assert found == {each.name: (each.dtype, len(each.shape)) for each in declared}
    all_invalid = pipeline.serve(*map(tf.constant, gathered(case.columns, [case.invalid])))
    assert all_invalid["error"].numpy().tolist() == answers["error"][1:2].tolist()
    empty = {"O": b"", "i": -1, "f": 0}
    for key in answers.keys() - {"error"}:
        nothing = empty[answers[key].dtype.kind]
        assert np.all(answers[key][1] == nothing)
        assert np.all(all_invalid[key].numpy() == nothing)
    accepted = pipeline.outputs_of(*gathered(case.columns, valid))
    for output, expected in accepted.items():
        values = answers[output][[0, 2]][tuple(map(slice, expected.shape))]
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(values, expected, **CLOSE)
        else:
            np.testing.assert_array_equal(values, expected)
    none = pipeline.serve(*(tf.constant(column)[:0] for column in columns))
    assert all(len(values) == 0 for values in none.values())
    if case.reads_texts:
        texts = tf.constant([b"a b", b"hola\xffque", b"\xed\xa0\x80", "\ufffd\u2603".encode(), b"\x00"])
        errors = pipeline.serve(*[texts] * len(columns))["error"].numpy()
        assert [b"must be UTF-8" in error for error in errors] == [False, True, True, False, False]


INVALID = [
    ["a", LONG * 9, "b"],
    ["a", 5],
    ["b\ud800", "b"],
    ["a", "\u3000", "b"],
    [LONG, "a b", LONG + "x"],
    ["[MASK]", "a"],
]


@over(OF_TEXTS)
def test_served_outputs_and_errors_equal_the_pipeline(case, assert_equal):
    pipeline, columns = case.pipeline, case.columns
    served = served_in_tensorflow(pipeline)
    for batch_size in (32, 2):
        assert_equal(served(*columns, batch_size=batch_size), pipeline(*columns, batch_size=batch_size))
    first, none = [column[0] for column in columns], [[] for _ in columns]
    assert_equal(served(*first), pipeline(*first))
    assert_equal(served(*none), pipeline(*none))
    scores = [name for name in ("scores", "probabilities") if hasattr(pipeline, name)]
    for name in scores:
        assert_equal(*(result_of(getattr(each, name), *columns) for each in (served, pipeline)))
    for rows in INVALID:
        for others in (rows, ["a"] * len(rows), ["a"] * 9)[: 2 * len(columns) - 1]:
            invalid = [rows, others][: len(columns)]
            assert_equal(*(result_of(each, *invalid, batch_size=2) for each in (served, pipeline)))
    assert_equal(*(result_of(each, *columns, batch_size=0) for each in (served, pipeline)))
    bad = [LONG * 9, 5, "b\ud800", "\u3000", "a b [MASK]"]
    rows = [[*columns[0], *bad, *bad], [*columns[-1], *["a b"] * len(bad), *bad]][: len(columns)]
    for options in ({}, {"truncate": True}):
        assert_equal(*(result_of(each, *rows, errors="return", **options) for each in (served, pipeline)))
    for name in scores:
        calls = (getattr(each, name) for each in (served, pipeline))
        assert_equal(*(result_of(call, *rows, errors="return", truncate=True) for call in calls))


@over(OF_TEXTS)
def test_server_and_saved_model_signatures_give_equal_outputs(case):
    columns = [[*column, other] for column, other in zip(case.columns, (LONG * 9, "x"), strict=False)]
    pipeline = case.pipeline
    in_tensorflow = served_in_tensorflow(pipeline)
    signatures = forward.signatures(in_tensorflow)
    assert set(signatures) == set(pipeline.signatures())
    for signature, graph in pipeline.signatures().items():
        inputs = [spec.name for spec in graph.inputs]
        assert [tensor.name for tensor in signatures[signature].inputs] == inputs
        if signature == FORWARD_GRAPH or len(inputs) != len(columns):
            continue
        expected = graph.function(*map(tf.constant, columns))
        served = signatures[signature]
        found = signature_outputs(in_tensorflow, served, dict(zip(inputs, columns, strict=True)))
        assert set(found) == set(expected)
        for tensor in served.outputs:
            values = expected[tensor.name].numpy()
            assert tensor.dtype == expected[tensor.name].dtype.name
            if tensor.dtype == "float32":
                np.testing.assert_allclose(found[tensor.name], values, **CLOSE)
            else:
                strings = np.vectorize(lambda value: value.decode(), otypes=[object])
                np.testing.assert_array_equal(
                    found[tensor.name], strings(values) if tensor.dtype == "string" else values
                )


@pytest.mark.slow
@each_forward
def test_exports_are_verified_loaded_and_served(case, tmp_path, served_without_tensorflow, assert_equal):
    pipeline, folder = case.pipeline, tmp_path / "it"
    path = export.saved_model(pipeline, folder)
    export.onnx(pipeline, folder)
    results = export.verify(folder)
    again = export.verify(folder, pipeline)
    keras.tree.assert_same_structure(results, again)
    for one, other in zip(keras.tree.flatten(results), keras.tree.flatten(again), strict=True):
        assert one == pytest.approx(other, abs=1e-5)  # rounding differs between stored and new outputs
    graphs = [graph for part in results.values() for graph in part["graphs"].values()]
    assert all(graph["largest_difference"] < 1e-4 for graph in graphs)
    served = serving.load(folder)
    example = next(each for each in outputs.examples_of(pipeline) if each.graph == FORWARD_GRAPH)
    found = served.run(**example.inputs)
    for output, values in example.outputs.items():
        np.testing.assert_allclose(found[output], values, **CLOSE)
    loaded = tf.saved_model.load(str(path)).signatures
    if case.reads_texts:
        expected = json.dumps(pipeline(*case.columns), default=np.ndarray.tolist)
        assert_equal(served_without_tensorflow(folder, *case.columns), json.loads(expected))
        is_limited = getattr(pipeline, "long_texts", None) == "refuse" and pipeline.max_length is not None
        if is_limited and len(case.columns) == 1:
            error = loaded[DEFAULT](text=tf.constant([case.columns[0][0], *case.invalid]))["error"].numpy()
            assert [b"as `max_length` is 40" in each for each in error] == [False, True]
    elif isinstance(pipeline, kt_pipelines.SpeechToText):
        assert served(list(case.columns[0])) == pipeline(*case.columns)
    else:
        with pytest.raises(ValueError, match="texts are for the export's SavedModel"):
            served(["a"])
    twice = [
        loaded[FORWARD_GRAPH](**{key: tf.constant(values) for key, values in example.inputs.items()})
        for _ in range(2)
    ]
    assert_identical(*twice)  # no dropout
    (path / "examples.npz").write_bytes((path / "examples.npz").read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"examples\.npz is damaged"):
        export.verify(folder)
    assert files.read_json(folder / "config.json")["pipeline"] == type(pipeline).__name__
