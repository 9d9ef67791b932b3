"""Laws of exports: every pipeline answers in each precision, for batches of one length and of several."""

import contextlib
import dataclasses

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer import export, pipelines
from keras_transformer.export.to_onnx import graph_traversal, weights
from keras_transformer.pipelines.forward import FORWARD
from keras_transformer_serving import closeness, external_data, graph_files

from . import pipelines as rows
from .cases import randomise

# By precision, the largest relative error of floats, and the least share of identical ids up to the first that differs.
LIMITS = {"float32": (1e-4, 1), "float16": (0.01, 0.95), "int8": (0.15, 0.7)}
LARGE = {"num_layers": 2, "num_heads": 4, "model_dim": 64, "hidden_dim": 256}


def each_pipeline(sizes=("small", "large", "external data")):
    """Return a row of each pipeline and those of other kinds of generation, in each size."""
    cases = {
        name: case for name, (case, _) in rows.PIPELINES.items() if "," not in name or name in rows.GENERATING
    }
    return [
        pytest.param(
            case,
            size,
            id=f"{name}-{size}",
            marks=[] if (name, size) == ("image", "small") else pytest.mark.slow,
        )
        for name, case in cases.items()
        for size in sizes
    ]


@contextlib.contextmanager
def sizes(size):
    """Create and export models of a size; with "external data", weights are in a file beside the graph."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in LARGE.items() if size != "small" else ():
            patch.setitem(rows.SIZES, name, value)
        for module in (weights, external_data) if size == "external data" else ():
            patch.setattr(module, "MAX_BYTES", 2**9)
        yield


@pytest.mark.parametrize(("case", "size"), each_pipeline())
def test_each_precision_answers_as_the_model(case, size, tmp_path):
    with sizes(size):
        pipeline = case.make()
        randomise(pipeline.model, 2 * rows.SIZES["model_dim"] ** -0.5)
        export.onnx(pipeline, tmp_path / "it", precisions=[*LIMITS])
    assert any(tmp_path.rglob("*.onnx_data")) == (size == "external data")
    if not isinstance(pipeline, pipelines.NodeClassification):
        assert operations(tmp_path) & {"FusedMatMul", "MultiHeadAttention"}  # of attention
    assert_close = assert_ids_are_close if pipeline.generates else assert_tensors_are_close
    for precision, limits in LIMITS.items():
        assert_close(pipeline, serving.load(tmp_path / "it", precision=precision), case, limits)


# Their features are computed in float64, which LiteRT's operations do not take.
WITHOUT_LITERT = ("speech", "transcription")


@pytest.mark.slow  # tests/export/test_litert.py has a quick one
@pytest.mark.parametrize(("case", "size"), each_pipeline(("small", "large")))
def test_each_precision_of_litert_answers_as_the_model(case, size, tmp_path, request):
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
    name = request.node.callspec.id
    with sizes(size):
        pipeline = case.make()
        randomise(pipeline.model, 2 * rows.SIZES["model_dim"] ** -0.5)
        arguments = {"targets": ["litert"], "say": lambda line: None}
        if pipeline.generates or name.startswith(WITHOUT_LITERT):
            expected = (
                "must not generate for LiteRT|operations LiteRT has|not computed in float64, which LiteRT's"
            )
            with pytest.raises(ValueError, match=expected):
                export.bundle(pipeline, tmp_path / "it", **arguments)
            assert not (tmp_path / "it").exists()
            return
        export.bundle(pipeline, tmp_path / "it", **arguments)
    left_out = serving.Bundle(tmp_path / "it").left_out("litert")
    assert left_out.keys() <= {"int8"}
    for precision, limits in LIMITS.items():
        if precision not in left_out:
            served = serving.load(tmp_path / "it", precision=precision)
            assert_tensors_are_close(pipeline, served, case, limits)


CTRANSLATE2 = {
    name: case for name, (case, _) in rows.PIPELINES.items() if "," not in name or name in rows.GENERATING
}
CTRANSLATE2 |= {
    "transcription, greedy": dataclasses.replace(
        CTRANSLATE2["transcription"], make=lambda: rows.transcribe("greedy")
    ),
    "transcription, languages": dataclasses.replace(
        CTRANSLATE2["transcription"], make=lambda: rows.transcribe_languages(prefix_ids=[92])
    ),
}
WITHOUT_CTRANSLATE2 = {
    "image": "CTranslate2 runs.*Received: a ViT",
    "speech": "CTranslate2 runs.*Received: a CTC",
    "transcription": "greedy search for speech in CTranslate2",
    "nodes": "CTranslate2 runs.*Received: a GAT",
}


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", CTRANSLATE2)
def test_ctranslate2_answers_as_the_pipeline_or_rejects_it(name, tmp_path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    case, folder = CTRANSLATE2[name], tmp_path / "it"
    pipeline, arguments = case.make(), {"targets": ["ctranslate2"], "precisions": ["float32"]}
    if name in WITHOUT_CTRANSLATE2:
        with pytest.raises(ValueError, match=WITHOUT_CTRANSLATE2[name]):
            export.bundle(pipeline, folder, **arguments)
        assert not folder.exists()
        return
    export.bundle(pipeline, folder, **arguments)
    assert_close = assert_ids_are_close if pipeline.generates else assert_tensors_are_close
    assert_close(pipeline, serving.load(folder), case, LIMITS["float32"])


WITH_INT4 = ("generation", "generation, no padding id")


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", CTRANSLATE2)
def test_int4_answers_as_a_language_model_and_is_rejected_for_others(name, tmp_path):
    case, folder, precisions = CTRANSLATE2[name], tmp_path / "it", ["float32", "int4"]
    with sizes("large"):
        pipeline = case.make()
        randomise(pipeline.model, 2 * rows.SIZES["model_dim"] ** -0.5)
        if name not in WITH_INT4:
            kind = type(pipeline.model).__name__
            with pytest.raises(ValueError, match=f"`precisions` must be without 'int4' unless.*, a {kind}"):
                export.onnx(pipeline, folder, precisions=precisions)
            assert not folder.exists()
            return
        export.onnx(pipeline, folder, precisions=precisions)
    texts, options = [*case.columns[0]], {"max_new_tokens": 4, "min_new_tokens": 4}
    found = serving.load(folder, precision="int4").generate(texts, **options)
    expected = pipeline.generate(texts, **options)
    # The most probable tokens of random weights may be others.
    np.testing.assert_allclose(found["scores"] / 4, expected.scores[:, 0] / 4, atol=0.3)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", [*CTRANSLATE2, "translation, SentencePiece"])
def test_argos_translates_as_the_pipeline_or_rejects_it(name, tmp_path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    file, codes = tmp_path / "es_en.argosmodel", {"from_code": "es", "to_code": "en"}
    if name in CTRANSLATE2:
        pipeline = CTRANSLATE2[name].make()
        expected = "have a `SentencePieceTokenizer`" if name == "translation" else "be a `TextToText`"
        with pytest.raises(ValueError, match=f"`pipeline` must {expected}"):
            export.argos_package(pipeline, file, **codes)
        assert not any(tmp_path.iterdir())
        return
    pipeline = rows.translate(rows.sentence_pieces())
    said = []
    export.argos_package(pipeline, file, precision="float32", **codes, say=said.append)
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    assert said[-1].startswith("compared")


def operations(folder):
    """Return the operations of the float32 graph that is served, after ONNX Runtime's optimization."""
    paths = [path for path in folder.rglob("*.onnx") if path.parent.name not in graph_files.CONVERTED]
    path = next(path for name in ("generate_*", "model") for path in paths if path.match(f"{name}.onnx"))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(folder / "optimized.onnx"), 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(folder / "optimized.onnx", load_external_data=False)
    return {node.op_type for node in graph_traversal.nodes(optimized.graph)}


def assert_tensors_are_close(pipeline, served, case, limits):
    """Compare the outputs of the model."""
    forward = pipeline.forward_graph().function
    for name, inputs in batches_of(pipeline.example_inputs()[FORWARD][0], pipeline).items():
        tensors = forward(*(tf.constant(values) for values in inputs.values()))
        expected = {output: tensor.numpy() for output, tensor in tensors.items()}
        pair = closeness.Pair(inputs, expected, served.run(**inputs))
        real = [{output: side[output][pair.real(output)] for output in expected} for side in pair[1:]]
        figures = closeness.tensors([closeness.Pair(inputs, *real)])
        assert figures.get("relative_error", 0) <= limits[0], name
        assert figures.get("identical_ids", 1) >= limits[1], name


def batches_of(inputs, pipeline):
    """Return batches of one row, of one length, of several lengths, and of very different lengths."""
    first = {name: values[:1] for name, values in inputs.items()}
    different = {name: np.array(values) for name, values in inputs.items()}
    if "attention_mask" in different:
        different["attention_mask"][1:, ..., 1:] = 0
        different["input_ids"][1:, ..., 1:] = pipeline.tokenizer.padding_value
    elif "lengths" in different:
        different["lengths"][1:] = pipeline.min_samples
    elif "edges" in different:
        different["edges"][1:] = -1
    return {
        "one row": first,
        "one length": {name: np.repeat(values, 3, axis=0) for name, values in first.items()},
        "several lengths": inputs,
        "very different lengths": different,
    }


def assert_ids_are_close(pipeline, served, case, limits):
    """Compare generated ids; rows end after different numbers of tokens."""
    texts = [*case.columns[0]]
    for name, batch in {
        "one row": texts[-1:],
        "one length": texts[-1:] * 3,
        "several lengths": texts,
        "very different lengths": ["a", "a " * 9, "a"],
    }.items():
        options = {"max_new_tokens": [1 + 3 * row % 5 for row in range(len(batch))]}
        expected, found = pipeline.generate(batch, **options), served.generate(batch, **options)
        ids = expected.best
        equal = closeness.identical_ids(found["ids"][:, : ids.shape[1]], ids, found["lengths"])
        assert closeness.share(*equal) >= limits[1], name
