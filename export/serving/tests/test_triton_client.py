"""The Open Inference Protocol with binary tensors and over gRPC, by Triton's clients."""

import json

import numpy as np
import pytest
import tritonclient.http
from served_exports import INFER, OFFSET, call, json_call, listening, run, tensor, write_export

import keras_transformer_serving as serving
from keras_transformer_serving.server import create_app

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


@pytest.mark.parametrize("binary", [True, False])
def test_the_client_over_http_gets_the_outputs_of_the_pipeline(exports, address, binary):
    pipeline = serving.load(exports["classifier"])
    client = tritonclient.http.InferenceServerClient(address)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("classifier")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    inputs, outputs = request_of(tritonclient.http, binary)
    found = client.infer("classifier", inputs, outputs=outputs, request_id="7")
    labels = found.as_numpy("label").tolist()
    assert [label.decode() if binary else label for label in labels] == pipeline(TEXTS)
    np.testing.assert_array_equal(found.as_numpy("probabilities"), pipeline.probabilities(TEXTS))
    assert found.get_response()["id"] == "7"
    ids = np.array([[OFFSET + byte for byte in b"hello"]])
    forward = tritonclient.http.InferInput("input_ids", ids.shape, "INT64")
    forward.set_data_from_numpy(ids, binary_data=binary)
    found = client.infer("classifier", [forward], parameters={"signature_name": "forward"})
    np.testing.assert_array_equal(found.as_numpy("logits"), pipeline.run(input_ids=ids)["logits"])
    client.close()


def test_binary_and_json_outputs_are_in_one_answer(exports):
    async def test(app):
        outputs = [{"name": "probabilities", "parameters": {"binary_data": True}}, {"name": "label"}]
        body = {"inputs": [tensor("text", ["a", "b"])], "outputs": outputs}
        status, headers, content = await call(app, "POST", INFER.format("classifier"), body)
        assert (status, headers["content-type"]) == (200, "application/octet-stream")
        length = int(headers[HEADER.lower()])
        label, probabilities = json.loads(content[:length])["outputs"]
        assert (
            probabilities["parameters"]
            == {"binary_data_size": 24}
            == {"binary_data_size": len(content) - length}
        )
        del outputs[0]["parameters"]
        _, expected = await json_call(app, "POST", INFER.format("classifier"), body)
        assert label == expected["outputs"][0]
        values = np.frombuffer(content[length:], "<f4")
        np.testing.assert_array_equal(values, np.float32(expected["outputs"][1]["data"]))

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
def test_wrong_binary_tensors_are_refused(exports, change, values, length, message):
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
