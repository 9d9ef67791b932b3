"""What clients of other servers expect of the same protocols, against a live server."""

import json
import urllib.error
import urllib.parse
import urllib.request

import pytest
from served_exports import listening, tensor, write_export

from keras_transformer_serving.server import create_app

NAMES = ("classifier", "chat", "embedder", "reranker")


@pytest.fixture(scope="module")
def address(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("peers")
    exports = {name: write_export(small, folder / name, name) for name in NAMES}
    exports["de-en"] = write_export(small, folder / "de-en", "copier")
    with listening(create_app(exports)) as address:
        yield address


@pytest.fixture
def ask(address):
    """Return a function that sends a request, with a JSON body or a form, and returns the status and the answer."""

    def ask(method, path, body=None, form=None):
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if form is not None:
            content = urllib.parse.urlencode(form).encode()
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
        request = urllib.request.Request(address + path, content, headers, method=method)
        try:
            with urllib.request.urlopen(request) as response:
                status, found = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, found = error.code, error.read()
        try:
            return status, json.loads(found)
        except ValueError:
            return status, found

    return ask


# OpenAI


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/models/other", None, 404, "model_not_found"),
        ("GET", "/v1/other", None, 404, None),
        ("POST", "/v1/chat/other", {}, 404, None),
        ("GET", "/v1/chat/completions", None, 405, None),
        ("DELETE", "/v1/models/chat", None, 405, None),
        ("POST", "/v1/chat/completions", {"messages": []}, 400, None),
        ("POST", "/v1/completions", {"prompt": "a"}, 400, None),
        ("POST", "/v1/embeddings", {"input": "a", "model": None}, 400, None),
    ],
)
def test_openai_s_errors_are_objects(ask, method, path, body, status, code):
    found, answer = ask(method, path, body)
    assert found == status
    assert answer.keys() == {"error"}
    assert answer["error"].keys() == {"message", "type", "param", "code"}
    assert (answer["error"]["code"], answer["error"]["type"]) == (code, "invalid_request_error")
    if status == 400:
        assert answer["error"]["param"] == "model"


# KServe


def test_outputs_are_in_the_order_of_the_request(ask):
    for names in (["probabilities", "label"], ["label", "probabilities"], ["error", "label"]):
        body = {"inputs": [tensor("text", ["a"])], "outputs": [{"name": name} for name in names]}
        _, found = ask("POST", "/v2/models/classifier/infer", body)
        assert [output["name"] for output in found["outputs"]] == names


def test_unknown_models_and_versions_are_not_ready(ask):
    assert ask("GET", "/v2/models/classifier/ready")[0] == 200
    assert ask("GET", "/v2/models/other/ready")[0] == 404
    assert ask("GET", "/v2/models/classifier/versions/9/ready")[0] == 404


@pytest.mark.parametrize("value", [0, "", [], False])
@pytest.mark.parametrize("place", ["parameters", "inputs", "outputs"])
def test_falsy_values_of_wrong_types_are_rejected(ask, place, value):
    body = {"inputs": [tensor("text", ["a"])], "outputs": [{"name": "label"}]}
    if place == "parameters":
        body["parameters"] = value
    else:
        body[place][0]["parameters"] = value
    status, found = ask("POST", "/v2/models/classifier/infer", body)
    assert status == 400
    assert "parameters` must be an object" in found["error"]


# TensorFlow Serving


def test_an_empty_signature_name_is_the_default(ask):
    path, body = "/v1/models/classifier:predict", {"instances": ["a"]}
    expected = ask("POST", path, body)
    assert expected[0] == 200
    assert ask("POST", path, {**body, "signature_name": ""}) == expected
    for wrong in (0, [], False, None):
        status, found = ask("POST", path, {**body, "signature_name": wrong})
        assert status == 400
        assert found["error"].startswith("`signature_name` must be")


@pytest.mark.parametrize("method", ["classify", "regress"])
def test_errors_of_examples_name_predict(ask, method):
    for version in ("", "/versions/1", "/labels/stable"):
        status, found = ask("POST", f"/v1/models/classifier{version}:{method}", {"examples": [{"text": "a"}]})
        assert status == 400
        assert ":predict" in found["error"]
    assert ask("POST", f"/v1/models/other:{method}", {})[0] == 404
