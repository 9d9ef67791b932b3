"""Invalid requests get a status code, and an error with the field, the expectation and the value."""

import gzip
import json
import zlib

import pytest
from served_exports import INFER, PREDICT, call, json_call, predict, run, tensor

from keras_transformer_serving.server import Limits


def with_limit(limit):
    return {"instances": [{"text": "a", "max_new_tokens": limit}], "signature_name": "generate"}


WRONG = [
    ("", 400, "The request must be JSON. Received: Expecting value"),
    ("{", 400, "The request must be JSON"),
    (b"\xff\xfe", 400, "The request must be UTF-8. Received: another byte at 0"),
    ("[" * 100_000, 400, "The request must be JSON. Received: values nested too deeply"),
    ("9" * 5_000, 400, "The request must be JSON"),
    ('{"instances": [NaN]}', 400, "The request must be JSON. Received: the constant NaN"),
    ("5", 400, "The request must be a JSON object. Received: 5"),
    ({}, 400, 'The request must have either "instances" or "inputs". Received: []'),
    ({"instances": [], "inputs": []}, 400, 'The request must have either "instances" or "inputs"'),
    ({"instances": "a"}, 400, "`instances` must be a list. Received: 'a'"),
    ({"inputs": {"text": "a"}}, 400, "`inputs.text` must be a list"),
    ({"instances": [{"txt": "a"}]}, 400, "The inputs must be text. Received: 'txt'"),
    ({"instances": [{"text": "a"}, {"x": "a"}]}, 400, "`instances` must have the same inputs"),
    ({"instances": ["a"], "signature_name": "x"}, 400, "`signature_name` must be serving_default or"),
    ({"instances": ["a"], "signature_name": []}, 400, "`signature_name` must be serving_default or"),
    ({"instances": ["a"] * 257}, 400, "A request must have at most 256 rows. Received: 257"),
    ({"instances": ["a" * 9 * 2**20]}, 413, "The request must have at most 8388608 bytes"),
    (with_limit(1.5), 400, "`max_new_tokens` must be an int32. Received: instances[0].max_new_tokens=1.5"),
    (with_limit(True), 400, "`max_new_tokens` must be an int32"),
    (with_limit(2**40), 400, "`max_new_tokens` must be an int32"),
]  # fmt: skip
FORWARD = [
    ([], "int64 of shape"), ([[1]], "Received"), ("a", "int64 of shape (any)"), ([1.5], "int64 of shape (any)"),
    ([10**30], "int64 of shape (any)"), ([-1], "`input_ids` must be from 0"), ([999], "`input_ids` must be from 0"),
    ([1] * 99, "`input_ids` must have at most"), ([[1], [1, 2]], "int64 of shape (any)"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "message"), WRONG, ids=range(len(WRONG)))
def test_invalid_requests_are_answered_with_field_and_value(exports, body, status, message):
    async def test(app):
        content = body.encode() if isinstance(body, str) else body
        found = await json_call(app, "POST", PREDICT.format("generator"), content)
        assert found[0] == status
        assert found[1]["error"].startswith(message)
        assert (await predict(app, "generator", ["a"]))[0] == 200
        assert app.state.server.active == 0

    run(exports, test, "generator")


def test_invalid_ids_are_rejected(exports):
    async def test(app):
        for ids, message in FORWARD[1:]:
            found = await predict(app, "classifier", [{"input_ids": ids}], signature_name="forward")
            assert found[0] == 400
            assert message in found[1]["error"], found

    run(exports, test, "classifier")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "x"}, "`inputs[0]` must have one of the names text"),
        ({"name": []}, "`inputs[0]` must have one of the names text"),
        ({"datatype": "INT64"}, "`inputs[0].datatype` must be BYTES. Received: 'INT64'"),
        ({"shape": [2]}, "`inputs[0].data` must be a list of 2 values"),
        ({"shape": [1, 1]}, "`inputs[0].shape` must be [any]. Received: [1, 1]"),
        ({"shape": [-1]}, "`inputs[0].shape` must be"),
        ({"shape": [True]}, "`inputs[0].shape` must be"),
        ({"shape": None}, "`inputs[0].shape` must be"),
        ({"data": "a"}, "`inputs[0].data` must be a list"),
    ],
)
def test_an_invalid_tensor_is_rejected(exports, change, message):
    async def test(app):
        request = {"inputs": [{**tensor("text", ["a"]), **change}]}
        status, found = await json_call(app, "POST", INFER.format("classifier"), request)
        assert status == 400
        assert found["error"].startswith(message)

    run(exports, test, "classifier")


def test_an_empty_axis_does_not_allocate_memory(exports):
    async def test(app):
        given = {**tensor("input_ids", [], "INT64"), "shape": [10**9, 0]}
        request = {"inputs": [given], "parameters": {"signature_name": "forward"}}
        assert (await json_call(app, "POST", INFER.format("classifier"), request))[0] == 400

    run(exports, test, "classifier")


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate"])
def test_compressed_requests_are_read_within_the_limit(exports, encoding):
    compress = zlib.compress if encoding == "deflate" else gzip.compress
    headers = [("Content-Encoding", encoding)]

    async def test(app):
        async def ask(content):
            status, _, found = await call(app, "POST", PREDICT.format("classifier"), content, headers)
            return status, json.loads(found)

        body = json.dumps({"instances": ["a"]}).encode()
        expected = await json_call(app, "POST", PREDICT.format("classifier"), body)
        assert await ask(compress(body)) == expected
        assert (await ask(compress(body + b" " * (1000 - len(body)))))[0] == 200
        assert (await ask(compress(body + b" " * (1001 - len(body)))))[0] == 413
        bomb = compress(b" " * 900_000)
        assert len(bomb) < 1000
        assert (await ask(bomb))[0] == 413
        for wrong in (body, compress(body)[:-1], compress(body) + b"a"):
            status, found = await ask(wrong)
            assert (status, "must be compressed by" in found["error"]) == (400, True)

    run(exports, test, "classifier", limits=Limits(max_bytes=1000))


def test_unknown_routes_models_and_versions_are_client_errors(exports):
    async def test(app):
        for method, path, status in [
            ("GET", "/nothing", 404),
            ("GET", "/v1/models/x", 404),
            ("POST", "/v1/models/x:predict", 404),
            ("POST", "/v1/models/classifier/versions/9:predict", 404),
            ("POST", "/v1/models/classifier/versions/x:predict", 400),
            ("POST", "/v1/models/classifier/labels/canary:predict", 404),
            ("GET", "/v1/models/classifier:predict", 404),
            ("DELETE", "/v1/models/classifier", 405),
            ("GET", "/v1/models/classifier/versions/9", 404),
            ("GET", "/v2/models/x/ready", 404),
        ]:
            found = await json_call(app, method, path, {"instances": ["a"]})
            assert found[0] == status, path
            assert found[1]["error"]
        headers = [("Content-Encoding", "br")]
        assert (await call(app, "POST", PREDICT.format("classifier"), b"", headers))[0] == 415
        headers = [("Inference-Header-Content-Length", "9")]
        assert (await call(app, "POST", INFER.format("classifier"), b"", headers))[0] == 400

    run(exports, test, "classifier")
