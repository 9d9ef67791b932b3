"""The ONNX graph from strings to strings gives the texts of the pipeline."""

import importlib.util
import json
import subprocess
import sys

import pytest

from keras_transformer import export, text
from keras_transformer.export.to_onnx import text_graphs
from keras_transformer.export.tokenizer_examples import HARD_LINES
from keras_transformer.generation import Beam, Sample
from keras_transformer.models import Transformer
from keras_transformer.pipelines import TextToText
from tests.laws.cases import randomise
from tests.laws.pipelines import SIZES, classify, translate, write

needs_operators = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_extensions") is None, reason="needs onnxruntime-extensions"
)
TRAINING = [line.replace("\0", "") for line in HARD_LINES]
TEXTS = ["the cat sat", "", "  ", " ¿Dónde está?", "1,000 👍🏽", "x y " * 30]
RUN = """
import json, sys, numpy, onnxruntime, onnxruntime_extensions
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
session = onnxruntime.InferenceSession(sys.argv[1], options)
texts = numpy.array(json.load(sys.stdin), object)
print(json.dumps([each.tolist() for each in session.run(["generated_text", "error"], {"text": texts})]))
"""


@pytest.fixture(autouse=True)
def operators(monkeypatch):
    """Pretend that the operators are installed, for errors that come before their use."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        text_graphs.importlib.util,
        "find_spec",
        lambda name: True if name == "onnxruntime_extensions" else find_spec(name),
    )


def translator(normalization="identity", sampler="greedy", model_type="unigram"):
    tokenizer = text.SentencePieceTokenizer.train(
        TRAINING, 600, model_type, byte_fallback=True, normalization=normalization
    )
    ids = {name: getattr(tokenizer, name) for name in ("pad_id", "start_id", "end_id")}
    model = randomise(Transformer(tokenizer.vocabulary_size, **SIZES, **ids), 1)
    return TextToText(model, tokenizer, sampler, max_new_tokens=8, max_source_tokens=20)


def run(path, texts):
    """Return the generated texts and the errors, in a process without TensorFlow."""
    command = [sys.executable, "-c", RUN, str(path)]
    process = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    return json.loads(process.stdout)


@needs_operators
@pytest.mark.slow
@pytest.mark.parametrize(
    ("normalization", "sampler", "model_type"),
    [
        ("identity", "greedy", "unigram"),
        ("nmt_nfkc", "greedy", "unigram"),
        ("nmt_nfkc_cf", Beam(3, num_return=2), "bpe"),
    ],
)
def test_texts_and_errors_equal_the_pipeline(tmp_path, normalization, sampler, model_type):
    pipeline = translator(normalization, sampler, model_type)
    folder = export.onnx(pipeline, tmp_path / "export", text_graph=True)
    texts, errors = run(folder / "text_to_text.onnx", TEXTS)
    answers = pipeline(TEXTS, errors="return")
    assert texts == ["" if isinstance(answer, Exception) else answer for answer in answers]
    assert [bool(error) for error in errors] == [isinstance(answer, Exception) for answer in answers]
    assert errors[-1] == "`text` must have at most 20 tokens (max_source_tokens)"
    report = json.loads((folder.parent / "parity.json").read_text())["onnx"]
    assert report["text_graph"]["tokenizer_examples"] > len(HARD_LINES) - 2
    assert report["signatures"]["text_to_text"]["outputs"]["generated_text"] == ["string", ["batch_size"]]
    assert export.verify(folder.parent)


@needs_operators
@pytest.mark.slow
def test_a_graph_that_differs_is_rejected_and_nothing_is_written(tmp_path, monkeypatch):
    examples = text_graphs.tokenizer_examples
    monkeypatch.setattr(
        text_graphs,
        "tokenizer_examples",
        lambda tokenizer: {**examples(tokenizer), "ids": [[5, *ids] for ids in examples(tokenizer)["ids"]]},
    )
    with pytest.raises(ValueError, match="`text_graph` must give the ids .* Received: .*expected ids"):
        export.onnx(translator(), tmp_path / "export", text_graph=True)
    assert not (tmp_path / "export" / "onnx").exists()


@pytest.mark.parametrize(
    ("pipeline", "received"),
    [
        (classify, "a TextClassification"),
        (write, "a TextGeneration"),
        (translate, "a ByteTokenizer"),
        (lambda: translator(sampler=Sample(1.0)), "the sampler 'sample'"),
    ],
)
def test_other_pipelines_tokenizers_and_samplers_are_rejected_by_name(tmp_path, pipeline, received):
    for function in (export.onnx, export.bundle):
        with pytest.raises(ValueError, match=f"`text_graph` needs .* Received: {received}"):
            function(pipeline(), tmp_path / "export", text_graph=True)
