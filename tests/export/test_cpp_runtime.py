"""SavedModels give the pipeline outputs in the TensorFlow C++ runtime, without Python TensorFlow and XLA.

`cpp_runtime.py` serves them over gRPC with TensorFlow Serving's messages. The slow tests also take the libraries of
TensorFlow 2.20, the version of the newest TensorFlow Serving, from `.venv-oldest`, which `make test-oldest` installs,
or from the environment that the variable TENSORFLOW_2_20 names.
"""

import functools
import json
import os
import pathlib
import subprocess
import sys

import grpc
import keras
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import json_format  # also loads protobuf before TensorFlow's messages
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import saved_model_pb2

import keras_transformer_serving as serving
from keras_transformer import text
from keras_transformer.export import to_saved_model
from keras_transformer.export.tensorflow_serving import operations, warmup
from keras_transformer.export.tensorflow_serving.messages import CLASSES
from keras_transformer.generation import Beam, NoRepeatNGram, Sample
from keras_transformer.models import BERT, GAT, GPT, SequenceClassifier, SpanClassifier, ViT
from keras_transformer.pipelines import (
    ImageClassification,
    NodeClassification,
    QuestionAnswering,
    TextClassification,
    TextGeneration,
)
from keras_transformer.pipelines.pipeline import ExportedFunction
from tests.random_weights import randomise

PROGRAM = pathlib.Path(__file__).with_name("cpp_runtime.py")
INSTALLED = pathlib.Path(tf.sysconfig.get_lib()).parent
OLDEST = pathlib.Path(os.environ.get("TENSORFLOW_2_20", PROGRAM.parents[2] / ".venv-oldest"))
ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.fixture(scope="module", params=["installed", "2.20"])
def packages(request):
    """Return the folder of installed packages with TensorFlow's libraries."""
    if request.param == "installed":
        return INSTALLED
    found = list(OLDEST.glob("lib/python*/site-packages"))
    if not found:
        pytest.skip("needs TensorFlow 2.20: `make test-oldest`, or TENSORFLOW_2_20=<its environment>")
    return found[0]


class Server:
    """A process that serves a SavedModel."""

    def __init__(self, packages, path):
        command = [sys.executable, str(PROGRAM), "serve", str(packages), str(path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        self.version, port = self._process.stdout.readline().split()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._predict = self._channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=CLASSES["PredictRequest"].SerializeToString,
            response_deserializer=CLASSES["PredictResponse"].FromString,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._channel.close()
        self._process.communicate("")
        assert self._process.returncode == 0

    def send(self, request):
        """Return the outputs of a request, as arrays."""
        return warmup.arrays(self._predict(request, timeout=60).outputs)

    def run(self, signature, **inputs):
        """Return the outputs of a signature, as arrays."""
        return self.send(warmup.predict_request("it", signature, inputs))


GOLDEN = (
    b"2.\n,\n\x11\n\x05es-en\x1a\x08generate\x12\x17\n\x01n\x12\x12\x08\x03\x12\x04\x12\x02\x08\x02"
    b'"\x08\x01\x00\x00\x00\x02\x00\x00\x00'
)


def check_equal(found, expected):
    assert set(found) == set(expected)
    for name, values in expected.items():
        values = np.asarray(values)
        assert found[name].dtype == values.dtype
        if values.dtype.kind == "f":
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_array_equal(found[name], values)


def check_signatures(server, pipeline, examples):
    """Check that the outputs of each signature equal the outputs of the Python function."""
    graphs = pipeline.signatures()
    assert set(examples) == set(graphs)
    for name, several in examples.items():
        for inputs in several:
            check_equal(server.run(name, **inputs), graphs[name].function(*map(tf.constant, inputs.values())))


@pytest.fixture(scope="module")
def path(exported):
    return exported / "saved_model" / "tiny" / "1"


@pytest.mark.slow
def test_ids_and_errors_equal_the_pipeline_outputs(path, exported):
    """The reference is the ids stored at export."""
    expected = serving.Bundle(exported).parity["saved_model/tiny/1"]["examples"]
    texts = [*map(str.encode, expected["texts"]), b"\xff", b"o" * 10_000]
    with Server(INSTALLED, path) as server:
        found = server.run("generate_ids", text=np.array(texts))
        assert server.version == tf.__version__
        with pytest.raises(grpc.RpcError) as error:
            server.run("generate_ids", text=np.array(["a"]), max_new_tokens=np.array([5], "int32"))
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError, match='Serving signature name: "translate" not found'):
            server.run("translate", text=np.array(["a"]))
    np.testing.assert_array_equal(found["ids"][:-2], expected["ids"])
    assert [bool(error) for error in found["error"]] == [False] * len(expected["ids"]) + [True] * 2


def test_inputs_and_outputs_can_be_batched(path):
    """TensorFlow Serving batches tensors whose first dimension is the batch, and no scalars."""
    saved_model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    (meta_graph,) = saved_model.meta_graphs
    signatures = dict(meta_graph.signature_def)
    assert signatures.pop("__saved_model_init_op")
    assert set(signatures) == {"serving_default", "generate", "generate_ids", "encode", "score"}
    assert set(signatures["serving_default"].inputs) == {"text"}
    for name, signature in signatures.items():
        assert signature.method_name == "tensorflow/serving/predict"
        assert bool(signature.defaults) == (name == "generate")
        for tensor in [*signature.inputs.values(), *signature.outputs.values()]:
            shape = tf.TensorShape(tensor.tensor_shape)
            assert shape.rank >= 1, (name, tensor.name)
            assert shape[0] is None, (name, tensor.name)


def test_warm_up_requests_call_every_signature_with_one_row_and_several(path, pipeline):
    requests = warmup.requests(path)
    sizes = {}
    for request in requests:
        inputs = warmup.arrays(request.inputs)
        (size,) = {len(values) for values in inputs.values()}
        sizes.setdefault(request.model_spec.signature_name, []).append(size)
        assert request.model_spec.name == "tiny"
        assert inputs["text"][0] == b"uno dos"
    assert sizes == {name: [1, 8] for name in pipeline.signatures()}


def test_warm_up_requests_are_encoded_as_by_tensorflow_serving():
    """The expected bytes come from `PredictionLog` of tensorflow-serving-api 2.21.0."""
    log = CLASSES["PredictionLog"]()
    log.predict_log.request.CopyFrom(
        warmup.predict_request("es-en", "generate", {"n": np.array([1, 2], "int32")})
    )
    assert log.SerializeToString() == GOLDEN
    assert CLASSES["PredictionLog"].FromString(GOLDEN) == log


@pytest.mark.slow
def test_signatures_and_warm_up_requests_give_the_pipeline_outputs(packages, path, pipeline, texts):
    given = [*texts, "o" * 10_000]
    with Server(packages, path) as server:
        check_signatures(server, pipeline, pipeline.example_inputs(given))
        assert [
            text.decode() for text in server.run("serving_default", text=np.array(texts))["text"]
        ] == pipeline(texts)
        for request in warmup.requests(path):
            inputs = warmup.arrays(request.inputs)
            graph = pipeline.signatures()[request.model_spec.signature_name]
            check_equal(
                server.send(request),
                graph.function(*(tf.constant(inputs[spec.name]) for spec in graph.inputs)),
            )


@pytest.mark.slow
def test_requests_stored_in_the_export_give_the_pipeline_outputs(packages, path, exported, pipeline):
    folder = exported / "serving" / "requests" / "tiny"
    graphs = pipeline.signatures()
    assert {file.name.split(".")[0] for file in folder.iterdir()} == set(graphs)
    with Server(packages, path) as server:
        for name, graph in graphs.items():
            (row,) = json.loads((folder / f"{name}.json").read_text())["instances"]
            row = row if isinstance(row, dict) else {graph.inputs[0].name: row}
            given = {spec.name: tf.constant([row[spec.name]], spec.dtype) for spec in graph.inputs}
            expected = graph.function(*given.values())
            check_equal(server.run(name, **given), expected)
            request = json.loads((folder / f"{name}.grpc.json").read_text())
            inputs = {
                key: json_format.ParseDict(value, tensor_pb2.TensorProto())
                for key, value in request["inputs"].items()
            }
            check_equal(server.run(name, **warmup.arrays(inputs)), expected)


SENTENCES = ["to be, or not to be: that is the question", "whether 'tis nobler in the mind", "ñandú ☃"]
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 8}


randomised = functools.partial(randomise, scale=1.0, seed=2)


def writer(sampler):
    roles = dict.fromkeys(("unknown", "start", "end"), "<|endoftext|>")
    tokenizer = text.BytePairTokenizer.train(SENTENCES, 290, special_tokens=roles)
    model = GPT(tokenizer.vocabulary_size, **SIZES, max_length=80, pad_id=None, end_id=tokenizer.end_id)
    return TextGeneration(randomised(model), tokenizer, sampler, max_new_tokens=5, max_source_tokens=30)


def reader(head, **options):
    """Return a BERT model with a head, and its tokenizer."""
    tokenizer = text.WordPieceTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefx", "##b", "##x", "."]
    )
    encoder = BERT(tokenizer.vocabulary_size, **SIZES, hidden_dim=16, max_length=20)
    return randomised(head(encoder, **options)), tokenizer


PIPELINES = {
    "beam": lambda pipeline: pipeline.with_settings(Beam(2, num_return=2), constraints=[NoRepeatNGram(2)]),
    "sample": lambda pipeline: pipeline.with_settings(Sample(0.8, seed=3)),
    "gpt": lambda _: writer("greedy"),
    "classifier": lambda _: TextClassification(*reader(SequenceClassifier, num_classes=3), ["a", "b", "c"]),
    "span, window": lambda _: QuestionAnswering(*reader(SpanClassifier), long_texts="window"),
    "image": lambda _: ImageClassification(randomised(ViT(8, 4, num_classes=3, **SIZES, hidden_dim=16))),
    "nodes": lambda _: NodeClassification(randomised(GAT(5, 3, num_heads=(2, 1), head_dim=4))),
}


@pytest.fixture(scope="module", params=PIPELINES)
def other(request, pipeline, tmp_path_factory):
    """Return another pipeline and its SavedModel."""
    made = PIPELINES[request.param](pipeline)
    path = tmp_path_factory.mktemp("other") / "1"
    resources = [each for each in (made.model, made.tokenizer) if each is not None]
    to_saved_model.write_signatures(made.signatures(), resources, path)
    return made, path


@pytest.mark.slow
def test_signatures_of_every_pipeline_give_its_outputs(other, packages):
    pipeline, path = other
    with Server(packages, path) as server:
        check_signatures(server, pipeline, pipeline.example_inputs())


@pytest.mark.slow
def test_a_model_that_needs_xla_does_not_run(packages, tmp_path, monkeypatch):
    """As in TensorFlow Serving: otherwise these tests would not detect such a model."""
    monkeypatch.setattr(operations, "unsupported", lambda _: [])
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(4)])
    compiled = tf.function(tf.nn.relu, jit_compile=True, autograph=False)
    rows = tf.TensorSpec([None, 4], tf.float32, name="rows")
    signature = ExportedFunction(lambda rows: {"rows": compiled(model(rows))}, [rows])
    to_saved_model.write_signatures({"serving_default": signature}, [model], tmp_path)
    with Server(packages, tmp_path) as server, pytest.raises(grpc.RpcError, match="(?i)xla"):
        server.run("serving_default", rows=np.ones((2, 4), "float32"))


@pytest.mark.slow
@pytest.mark.parametrize("packages", ["2.20"], indirect=True)
def test_the_recorded_operations_equal_the_operations_of_tensorflow_2_20(packages):
    command = [sys.executable, str(PROGRAM), "operations", str(packages)]
    listed = subprocess.run(
        command, capture_output=True, text=True, check=True, env=ENVIRONMENT
    ).stdout.splitlines()
    assert {
        name: frozenset(attributes) for name, *attributes in map(str.split, listed)
    } == operations.supported()
