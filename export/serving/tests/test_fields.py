"""The fields of requests: the server accepts what its OpenAPI document describes, and names the field of all else."""

import contextlib
import copy
import functools
import json

import pytest
from jsonschema import Draft202012Validator
from served_exports import INFER, PREDICT, calling, write_export

from keras_transformer_serving.server import create_app
from keras_transformer_serving.server.fields import BOOLEAN, Field, integer, one_of, schema

NAMES = {
    "generator": "generator",
    "chat": "chat",
    "embedder": "embedder",
    "reranker": "reranker",
    "de-en": "copier",
}
MESSAGES = [{"role": "user", "content": "a"}]
BODIES = [
    ("/v1/completions", {"model": "generator", "prompt": "a"}),
    ("/v1/completions", {"model": "sampler", "prompt": "a"}),
    ("/v1/chat/completions", {"model": "chat", "messages": MESSAGES}),
    ("/v1/embeddings", {"model": "embedder", "input": "a"}),
    ("/embed", {"inputs": "a"}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ("/rerank", {"query": "a", "texts": ["b"]}),
    ("/tokenize", {"inputs": "a", "model": "embedder"}),
    ("/translate", {"q": "a", "source": "de", "target": "en"}),
]
VALUES = [True, 0, 1, 5, 99, -1, 0.5, "a", "html", "query", [], ["a"], ["a"] * 5, ["a", 5], {}, {"a": 1}]
VALUES += [{"truncate": True}, {"include_usage": False}, {"source_sentence": "a", "sentences": "b"}, MESSAGES]
BESIDE = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}}


@pytest.fixture(scope="module")
def answers(small, tmp_path_factory):
    """Servers of a sampling export, and of the others."""
    folder = tmp_path_factory.mktemp("fields")
    exports = {name: write_export(small, folder / name, source) for name, source in NAMES.items()}
    sampler = write_export(small, folder / "sampler", "sampler")
    with contextlib.ExitStack() as stack:
        apps = {"sampler": create_app({"sampler": sampler}), "others": create_app(exports)}
        yield {name: stack.enter_context(calling(app)) for name, app in apps.items()}


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_requests_of_the_schema_are_answered_and_others_name_the_wrong_field(answers, path, body):
    answer = answers["sampler" if body.get("model") == "sampler" else "others"]
    operation = json.loads(answer("/openapi.json", b"", method="GET")[2])["paths"][path]["post"]
    described = operation["requestBody"]["content"]["application/json"]["schema"]
    validator = Draft202012Validator(described)
    for name in {*described["properties"], "typo"} - {"best_of"}:  # which must be n
        for value in VALUES:
            request = {**body, **BESIDE.get(name, {}), name: value}
            status, _, content = answer(path, request)
            assert (status == 200) == validator.is_valid(request), (request, content)
            error = "" if status == 200 else str(json.loads(content)["error"])
            named = name in error or error.endswith("is not supported")  # LibreTranslate's words
            assert status == 200 or named, (request, content)
        is_optional = name in {*described["properties"]} - {*described["required"]}
        assert (answer(path, {**body, name: None})[0] == 200) == is_optional


UNKNOWN = ["max_new_tokens", "stop", "seed", "signatureName", "top_p", "truncated"]
TEXT = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        (PREDICT, {"instances": ["a"]}, ()),
        (PREDICT, {"inputs": ["a"]}, ()),
        (INFER, {"inputs": [TEXT]}, ()),
        (INFER, {"inputs": [TEXT], "parameters": {}}, ("parameters",)),
        (INFER, {"inputs": [TEXT]}, ("inputs", 0)),
        (INFER, {"inputs": [{**TEXT, "parameters": {}}]}, ("inputs", 0, "parameters")),
        (INFER, {"inputs": [TEXT], "outputs": [{"name": "text"}]}, ("outputs", 0)),
    ],
)  # fmt: skip
def test_unknown_fields_of_tensors_and_rows_are_errors(answers, path, body, place, name):
    assert answers["others"](path.format("generator"), body)[0] == 200
    request = copy.deepcopy(body)
    functools.reduce(lambda value, key: value[key], place, request)[name] = 1
    status, _, content = answers["others"](path.format("generator"), request)
    assert (status, name in json.loads(content)["error"]) == (400, True), content


@pytest.mark.parametrize(("path", "body"), [(PREDICT, {"instances": ["a"]}), (INFER, {"inputs": [TEXT]})])
def test_an_option_of_another_signature_is_an_error_with_its_name(answers, path, body):
    options = {"max_new_tokens": 2}
    request = {**body, **options} if path == PREDICT else {**body, "parameters": options}
    status, _, content = answers["others"](path.format("generator"), request)
    message = "`max_new_tokens` needs `signature_name` generate. Received"
    assert (status, json.loads(content)["error"].startswith(message)) == (400, True)


def test_an_empty_list_of_outputs_means_all(answers):
    (status, _, content), every = (
        answers["others"](INFER.format("generator"), {"inputs": [TEXT], **outputs})
        for outputs in ({"outputs": []}, {})
    )
    assert (status, content) == (200, every[2])


def test_requests_of_kserve_have_the_name_of_the_model(answers):
    body = {"id": "1", "model_name": "generator", "inputs": [{**TEXT, "parameters": {"content_type": "str"}}]}
    assert answers["others"](INFER.format("generator"), body)[0] == 200


def test_the_schema_of_several_models_has_the_values_of_any():
    tables = [
        (
            Field("model", one_of(name), required=True),
            Field("n", integer(1, high), 1),
            Field("flag", BOOLEAN, False),
        )
        for name, high in (("a", 2), ("b", 3))
    ]
    counts = [{"type": "integer", "minimum": 1, "maximum": high} for high in (2, 3)]
    assert schema(tables) == {
        "type": "object",
        "properties": {
            "model": {"enum": ["a", "b"]},
            "n": {"anyOf": counts, "default": 1},
            "flag": {"type": "boolean", "default": False},
        },
        "required": ["model"],
        "additionalProperties": False,
    }
