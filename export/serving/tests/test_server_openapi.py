"""Requests of the server's own OpenAPI document, valid or not, have answers of its schemas and never an error of it."""

import json
import math
import urllib.parse

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from served_exports import calling, write_export

from keras_transformer_serving.server import Limits, create_app

NAMES = {name: name for name in ("classifier", "generator", "chat", "embedder", "reranker", "images")}
NAMES["de-en"] = "copier"
REQUIRED = ("text", "query", "pixel_values")
TEXT = st.text(max_size=20)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=5,
)


def of_schema(schema):
    """Return a strategy of values of a JSON Schema, as far as the server's schemas need it."""
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return st.one_of(*map(of_schema, schema["anyOf"]))
    types = schema.get("type", "any")
    return st.one_of(*(of_type(kind, schema) for kind in ([types] if isinstance(types, str) else types)))


def of_type(kind, schema):
    if kind == "object":
        known = {name: of_schema(each) for name, each in schema.get("properties", {}).items()}
        required = {name: known.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=known)
    if kind == "array":
        least = schema.get("minItems", 0)
        most = min(schema.get("maxItems", least + 3), least + 3)
        return st.lists(of_schema(schema.get("items", {})), min_size=least, max_size=most)
    if kind == "integer":
        low, high = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63)
        return st.integers(low, min(high, low + 300)) | st.integers(low, high)
    if kind == "number":
        return st.floats(schema.get("minimum"), schema.get("maximum"), allow_nan=False, allow_infinity=False)
    simple = {"string": st.text(min_size=schema.get("minLength", 0), max_size=20), "boolean": st.booleans()}
    return {**simple, "null": st.none()}.get(kind, ANY)


@st.composite
def changed(draw, bodies):
    """Draw a body, of which a value may be another, missing or new."""
    body = draw(bodies)
    if isinstance(body, dict) and draw(st.booleans()):
        name = draw(st.sampled_from([*body, "other"]))
        if draw(st.booleans()):
            return {**body, name: draw(ANY)}
        return {key: value for key, value in body.items() if key != name}
    return body


@pytest.fixture(scope="module")
def server(small, tmp_path_factory):
    """Return a function that calls a server, its OpenAPI document, and the requests by operation."""
    folder = tmp_path_factory.mktemp("openapi")
    exports = {name: write_export(small, folder / name, source) for name, source in NAMES.items()}
    with calling(create_app(exports, Limits(timeout=5))) as answer:
        document = json.loads(answer("/openapi.json", b"", method="GET")[2])
        operations = [
            (path, method, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]
        yield answer, document, operations


BODIES = {}


def request_of(data, operation):
    """Draw the body of a request, and its headers."""
    (kind, content), *_ = operation.get("requestBody", {"content": {"": None}})["content"].items()
    if content is None:
        return b"", []
    if kind not in ("application/json", "multipart/form-data"):
        raise AssertionError(kind)
    key = json.dumps(content)
    strategy = BODIES.setdefault(key, changed(of_schema(content["schema"])))
    body = data.draw(strategy)
    if kind == "multipart/form-data":  # as a form without a file, which has an error
        given = body if isinstance(body, dict) else {}
        form = {name: str(value).encode(errors="replace") for name, value in given.items()}
        return urllib.parse.urlencode(form).encode(), [("Content-Type", "application/x-www-form-urlencoded")]
    return body, [("Content-Type", "application/json")]


ENTRIES = {"BYTES": TEXT, "INT64": st.integers(0, 260), "FP32": st.floats(0, 1, width=32)}


def with_tensors(data, body, tensors):
    """Return a body whose inputs are values of tensors, as the metadata of a model has them."""
    length, inputs = data.draw(st.integers(0, 3)), []
    for each in tensors:
        shape = [length if size < 0 else size for size in each["shape"]]
        size = math.prod(shape)
        entries = data.draw(st.lists(ENTRIES[each["datatype"]], min_size=size, max_size=size))
        inputs.append({**each, "shape": shape, "data": entries})
    return {"inputs": inputs, **{name: body[name] for name in ("id", "parameters") if name in body}}


def check(server, data):
    answer, document, operations = server
    path, method, operation = data.draw(st.sampled_from(operations))
    for parameter in operation.get("parameters", ()):
        value = data.draw(st.sampled_from(["1", "9", "stable", "x"]))
        path = path.replace(f"{{{parameter['name']}}}", value)
    body, headers = request_of(data, operation)
    if path.endswith("/infer") and isinstance(body, dict) and data.draw(st.booleans()):
        described = answer(path.removesuffix("/infer"), b"", (), "GET")
        if described[0] == 200:
            tensors = json.loads(described[2])["inputs"]
            body = with_tensors(data, body, [each for each in tensors if each["name"] in REQUIRED])
    status, headers, content = answer(path, body, headers, method.upper())
    assert status < 500, (path, body, content)
    described = operation["responses"]["200" if status == 200 else f"{status // 100}XX"]["content"]
    kind = headers["content-type"].partition(";")[0]
    assert kind in described, (path, body, kind)
    if kind == "application/json":
        schema = {**described[kind]["schema"], "components": document["components"]}
        error = next(Draft202012Validator(schema).iter_errors(json.loads(content)), None)
        assert error is None, (path, body, content, error.message)


@settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_answers_are_of_the_schemas_of_the_document(server, data):
    check(server, data)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_10000_answers_are_of_the_schemas_of_the_document(server, data):
    check(server, data)


def test_each_route_is_described(server):
    """Each operation of the document answers its own example, or a request without a body."""
    answer, _, operations = server
    for path, method, operation in operations:
        assert operation["summary"]
        if method == "get" and "{" not in path:
            status, headers, _ = answer(path, b"", (), "GET")
            assert (status, headers["content-type"]) == (200, "application/json"), path
