"""A complete protocol of the server in one file, without changes to the package."""

from served_exports import PREDICT, json_call, run

import keras_transformer_serving as serving
from keras_transformer_serving.server import Api, fields, openapi, requests
from keras_transformer_serving.server.api import encoded_response
from keras_transformer_serving.tasks import DEFAULT

FIELDS = (fields.Field("prompt", fields.STRING, required=True),)
ENTRY_POINTS = """[keras_transformer_serving.apis]
complete = test_new_protocol:API
"""


async def complete(server, request):
    """Continue a prompt."""
    document, size = await server.document(request)
    prompt = fields.read(document, FIELDS)["prompt"]
    with server.choose(serving.TextGeneration).use() as (_, loaded, batcher):
        content = await requests.compute(
            request,
            size,
            lambda: (DEFAULT, [{"text": prompt}], None),
            lambda signature, outputs, _: {"completion": outputs["text"][0]},
            loaded.signatures,
            batcher,
            server.limits,
        )
    return encoded_response(content)


def paths(server):
    body = fields.schema([FIELDS])
    operation = openapi.operation("Continue a prompt", {"type": "object"}, body, api="complete")
    return {"/complete": {"post": operation}} if server.named(serving.TextGeneration) else {}


API = Api("complete", (("POST", "/complete", complete),), paths)


async def assert_answers(app):
    """Check the answers to requests of the new protocol and of a built-in one."""
    _, expected = await json_call(app, "POST", PREDICT.format("generator"), {"instances": ["ab"]})
    status, found = await json_call(app, "POST", "/complete", {"prompt": "ab"})
    assert (status, found) == (200, {"completion": expected["predictions"][0]["text"]})
    assert (await json_call(app, "POST", "/complete", {"prompt": "ab", "top_k": 1}))[0] == 400
    status, found = await json_call(app, "POST", "/complete", {"prompt": 1})
    assert (status, found) == (400, {"error": "`prompt` must be a string. Received: 1"})
    _, document = await json_call(app, "GET", "/openapi.json")
    content = document["paths"]["/complete"]["post"]["requestBody"]["content"]
    assert content["application/json"]["schema"]["properties"] == {"prompt": {"type": "string"}}


def test_a_new_protocol_answers_beside_the_built_in_ones(exports):
    run(exports, assert_answers, "generator", apis=["openai", API])


def test_a_new_protocol_is_found_by_its_entry_point(exports, tmp_path, monkeypatch):
    (tmp_path / "complete-1.0.dist-info").mkdir()
    (tmp_path / "complete-1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "complete-1.0.dist-info" / "METADATA").write_text("Name: complete\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    run(exports, assert_answers, "generator", apis=["complete"])
