"""The Open Inference Protocol with binary tensors and over gRPC, by Triton's clients."""

import json
import os
import subprocess
import sys

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from served_exports import INFER, OFFSET, call, json_call, listening, run, tensor, write_export
from tritonclient.utils import InferenceServerException

import keras_transformer_serving as serving
from keras_transformer_serving import protobuf
from keras_transformer_serving.server import create_app, open_inference_grpc
from keras_transformer_serving.server.open_inference_grpc import SERVICE

NAMES = ("classifier", "generator", "embedder")
TEXTS = ["hello", "¿qué?", "a", ""]
HEADER = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def exports(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    return {name: write_export(small, folder / name, name) for name in NAMES}


@pytest.fixture(scope="module")
def address(exports):
    with listening(create_app(exports)) as address:
        yield address.removeprefix("http://")


def request_of(module, binary):
    """Return the inputs and outputs of a request for classes, in binary form or JSON."""
    options = {} if binary is None else {"binary_data": binary}
    text = module.InferInput("text", [len(TEXTS)], "BYTES")
    text.set_data_from_numpy(np.array([each.encode() for each in TEXTS], object), **options)
    names = ("label", "probabilities", "error")
    return [text], [module.InferRequestedOutput(name, **options) for name in names]


HARMLESS = {
    "sequence_id": 3,
    "sequence_start": True,
    "sequence_end": True,
    "priority": 1,
    "timeout": 9_000_000,
}
CLASSES = r"The fields of `outputs\[0\].parameters` must be of .* Received: 'classification'"


@pytest.mark.parametrize("binary", [True, False])
def test_the_client_over_http_gets_the_outputs_of_the_pipeline(exports, address, binary):
    pipeline = serving.load(exports["classifier"])
    client = tritonclient.http.InferenceServerClient(address)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("classifier")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    config = client.get_model_config("classifier", "1")
    assert config["output"][1] == {"name": "probabilities", "data_type": "TYPE_FP32", "dims": [3]}
    assert {each["state"] for each in client.get_model_repository_index()} == {"READY"}
    inputs, outputs = request_of(tritonclient.http, binary)
    for algorithm in ("gzip", "deflate"):
        client.infer("classifier", inputs, request_compression_algorithm=algorithm)
    found = client.infer("classifier", inputs, outputs=outputs, request_id="7", **HARMLESS)
    labels = found.as_numpy("label").tolist()
    assert [label.decode() if binary else label for label in labels] == pipeline(TEXTS)
    np.testing.assert_array_equal(found.as_numpy("probabilities"), pipeline.probabilities(TEXTS))
    assert found.get_response()["id"] == "7"
    ids = np.array([[OFFSET + byte for byte in b"hello"]])
    forward = tritonclient.http.InferInput("input_ids", ids.shape, "INT64")
    forward.set_data_from_numpy(ids, binary_data=binary)
    found = client.infer("classifier", [forward], parameters={"signature_name": "forward"})
    np.testing.assert_array_equal(found.as_numpy("logits"), pipeline.run(input_ids=ids)["logits"])
    with pytest.raises(InferenceServerException, match=CLASSES):
        client.infer(
            "classifier", inputs, outputs=[tritonclient.http.InferRequestedOutput("label", class_count=1)]
        )
    client.close()


def test_binary_and_json_outputs_are_in_one_answer(exports):
    async def test(app):
        outputs = [{"name": "probabilities", "parameters": {"binary_data": True}}, {"name": "label"}]
        body = {"inputs": [tensor("text", ["a", "b"])], "outputs": outputs}
        status, headers, content = await call(app, "POST", INFER.format("classifier"), body)
        assert (status, headers["content-type"]) == (200, "application/octet-stream")
        length = int(headers[HEADER.lower()])
        probabilities, label = json.loads(content[:length])["outputs"]
        assert (
            probabilities["parameters"]
            == {"binary_data_size": 24}
            == {"binary_data_size": len(content) - length}
        )
        del outputs[0]["parameters"]
        _, expected = await json_call(app, "POST", INFER.format("classifier"), body)
        assert label == expected["outputs"][1]
        values = np.frombuffer(content[length:], "<f4")
        np.testing.assert_array_equal(values, np.float32(expected["outputs"][0]["data"]))

    run(exports, test, "classifier")


TEXT = {"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}}
ONE = b"\1\0\0\0a"


@pytest.mark.parametrize(
    ("change", "values", "length", "message"),
    [
        ({}, ONE, "x", "The header Inference-Header-Content-Length must be the length"),
        ({}, ONE, "999", "The header Inference-Header-Content-Length must be the length"),
        ({}, ONE, "9" * 5000, "The header Inference-Header-Content-Length must be the length"),
        ({}, ONE + b"b", None, "The tensors must have all bytes after the JSON. Received: 1 more"),
        ({}, ONE[:4], None, "`inputs[0].parameters.binary_data_size` must be from 0 to 4"),
        ({}, b"\2\0\0\0a", None, "`inputs[0]` must have the bytes of values of BYTES. Received: 5 others"),
        ({"datatype": "FP64"}, ONE, None, "`inputs[0].datatype` must be BYTES or INT32"),
        ({"datatype": "INT64"}, ONE, None, "`inputs[0]` must have the bytes of values of INT64"),
        ({"datatype": []}, ONE, None, "`inputs[0].datatype` must be"),
        (
            {"parameters": {"binary_data_size": True}},
            ONE,
            None,
            "`inputs[0].parameters.binary_data_size` must be",
        ),
        ({"shape": [2]}, ONE, None, "`inputs[0].data` must be a list of 2 values"),
    ],
)
def test_invalid_binary_tensors_are_rejected(exports, change, values, length, message):
    async def test(app):
        head = json.dumps({"inputs": [{**TEXT, **change}]}).encode()
        headers = [(HEADER, length or str(len(head)))]
        status, _, content = await call(app, "POST", INFER.format("classifier"), head + values, headers)
        assert status == 400
        assert json.loads(content)["error"].startswith(message)
        head = json.dumps({"inputs": [TEXT]}).encode()
        headers = [(HEADER, str(len(head)))]
        assert (await call(app, "POST", INFER.format("classifier"), head + ONE, headers))[0] == 200

    run(exports, test, "classifier")


@pytest.fixture(scope="module")
def port(exports, tmp_path_factory):
    """The port of gRPC of a server in a process of its own, as gRPC's threads do not survive other tests' forks."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("secret\n")
    folders = [f"{name}={folder}" for name, folder in exports.items()]
    options = ["--port", "0", "--grpc-port", "0", "--api-key-file", str(keys), "--max-rows", "5"]
    code = "import sys; from keras_transformer_serving.command_line import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, *folders, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            for line in process.stdout:
                if line.startswith("grpc://"):
                    yield line.strip().rpartition(":")[2]
                    break
        finally:
            process.terminate()
    assert process.returncode == 0


def test_the_client_over_grpc_gets_the_outputs_of_the_pipeline(exports, port):
    pipeline = serving.load(exports["classifier"])
    headers = {"authorization": "Bearer secret"}
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("classifier", headers=headers)
        assert not client.is_model_ready("classifier", "9", headers=headers)
        assert not client.is_model_ready("other", headers=headers)
        metadata = client.get_model_metadata("classifier", headers=headers, as_json=True)
        assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": ["-1"]}]
        config = client.get_model_config("classifier", headers=headers, as_json=True)["config"]
        assert (config["name"], config["platform"], config["backend"]) == (
            "classifier",
            "onnxruntime_onnx",
            "onnxruntime",
        )
        assert config["input"] == [{"name": "text", "data_type": "TYPE_STRING", "dims": ["1"], "reshape": {}}]
        assert [(each["name"], each["data_type"], each["dims"]) for each in config["output"]] == [
            ("label", "TYPE_STRING", ["1"]),
            ("probabilities", "TYPE_FP32", ["3"]),
            ("error", "TYPE_STRING", ["1"]),
        ]
        index = client.get_model_repository_index(headers=headers, as_json=True)["models"]
        assert {"name": "classifier", "version": "1", "state": "READY"} in index
        assert client.get_server_metadata(headers=headers).name == "keras-transformer-serve"
        inputs, outputs = request_of(tritonclient.grpc, None)
        found = client.infer(
            "classifier", inputs, outputs=outputs, request_id="7", headers=headers, **HARMLESS
        )
        assert [label.decode() for label in found.as_numpy("label").tolist()] == pipeline(TEXTS)
        np.testing.assert_array_equal(found.as_numpy("probabilities"), pipeline.probabilities(TEXTS))
        assert found.get_response().id == "7"
        ids = np.array([[OFFSET + byte for byte in b"hello"]])
        forward = tritonclient.grpc.InferInput("input_ids", ids.shape, "INT64")
        forward.set_data_from_numpy(ids)
        options = {"parameters": {"signature_name": "forward"}, "headers": headers}
        found = client.infer("classifier", [forward], **options)
        np.testing.assert_array_equal(found.as_numpy("logits"), pipeline.run(input_ids=ids)["logits"])
        text = tritonclient.grpc.InferInput("text", [1], "BYTES")
        text.set_data_from_numpy(np.array([b"hello"], object))
        options["parameters"] = {"signature_name": "generate", "max_new_tokens": 2}
        found = client.infer("generator", [text], **options)
        assert found.as_numpy("lengths").tolist() == [2]
        wanted = [tritonclient.grpc.InferRequestedOutput("label", class_count=1)]
        with pytest.raises(InferenceServerException, match=CLASSES):
            client.infer("classifier", inputs, outputs=wanted, headers=headers)


def test_wrong_calls_have_grpc_s_codes(port):
    headers = {"x-api-key": "secret"}

    def text(count=1, name="text", datatype="BYTES"):
        tensor = tritonclient.grpc.InferInput(name, [count], datatype)
        values = np.array([b"a"] * count, object) if datatype == "BYTES" else np.ones(count, "int64")
        tensor.set_data_from_numpy(values)
        return [tensor]

    cases = [
        ("classifier", text(), {}, "UNAUTHENTICATED", "The request must have a key"),
        ("other", text(), headers, "NOT_FOUND", "The model must be"),
        (
            "classifier",
            text(name="x"),
            headers,
            "INVALID_ARGUMENT",
            "`inputs[0]` must have one of the names text",
        ),
        (
            "classifier",
            text(datatype="INT64"),
            headers,
            "INVALID_ARGUMENT",
            "`inputs[0].datatype` must be BYTES",
        ),
        ("classifier", text(6), headers, "INVALID_ARGUMENT", "A request must have at most 5 rows"),
    ]
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
        for name, inputs, options, code, message in cases:
            with pytest.raises(InferenceServerException) as raised:
                client.infer(name, inputs, headers=options)
            assert raised.value.status() == f"StatusCode.{code}"
            assert raised.value.message().startswith(message)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        for content in (b"\xff", b"\x0a\xff", b"\x0a\x01\xff", b"\x08\x01", b""):
            with pytest.raises(grpc.RpcError) as raised:
                call(content, metadata=(("x-api-key", "secret"),))
            assert raised.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


def test_typed_contents_are_read():
    of_ids = protobuf.message(
        (1, "ids"), (2, "INT64"), (3, b"\2"), (5, protobuf.message((3, b"\1" + protobuf.varint(-2))))
    )
    of_text = protobuf.message((1, "text"), (2, "BYTES"), (3, b"\1"), (5, protobuf.message((8, "é"))))
    fields = open_inference_grpc._fields(protobuf.message((5, of_ids), (5, of_text)))
    ids, text = open_inference_grpc._document(fields)["inputs"]
    assert (ids["shape"], ids["data"]) == ([2], [1, -2])
    assert (text["name"], text["datatype"], text["data"]) == ("text", "BYTES", ["é".encode()])
    assert (text["shape"], text["parameters"]) == ([1], {})
