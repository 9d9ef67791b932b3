"""Test a live server with requests that clients of other servers send, and the answers that they expect."""

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


# LibreTranslate


def test_libre_translate_is_healthy_and_described(ask):
    assert ask("GET", "/health") == (200, {"status": "ok"})
    status, found = ask("GET", "/spec")
    assert (status, "/translate" in found["paths"]) == (200, True)
    for path in ("/health", "/spec", "/languages"):
        assert ask("POST", path, {})[0] == 405
    assert ask("GET", "/detect")[0] == 405
    assert ask("GET", "/frontend/settings")[1]["filesTranslation"] is True
    status, found = ask("GET", "/nothing")
    assert (status, isinstance(found["error"], str)) == (404, True)


FORM = {"q": "Haus", "source": "de", "target": "en", "format": "text"}


def test_fields_are_in_a_form_json_or_the_query_string(ask):
    expected = (200, {"translatedText": "Haus"})
    assert ask("POST", "/translate", form=FORM) == expected
    assert ask("POST", "/translate", FORM) == expected
    assert ask("POST", f"/translate?{urllib.parse.urlencode(FORM)}") == expected
    assert ask("POST", "/translate?source=de&target=en", {"q": "Haus"}) == expected
    assert ask("POST", "/translate", {**FORM, "q": ["a", "b"]}) == (200, {"translatedText": ["a", "b"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": None}, "Invalid request: missing q parameter"),
        ({"source": None}, "Invalid request: missing source parameter"),
        ({"target": None}, "Invalid request: missing target parameter"),
        ({"source": "zz"}, "zz is not supported"),
        ({"target": "zz"}, "zz is not supported"),
        ({"format": "xml"}, "xml format is not supported"),
        ({"alternatives": "abc"}, "Invalid request: alternatives parameter is not a number"),
    ],
)
def test_errors_have_libre_translate_s_words(ask, change, message):
    body = {name: value for name, value in {**FORM, **change}.items() if value is not None}
    for options in ({"form": body}, {"body": body}):
        status, found = ask("POST", "/translate", **options)
        assert status == 400
        assert found["error"].startswith(message)
    status, found = ask("POST", "/translate", {**FORM, "q": []})
    assert (status, found["error"]) == (400, "Invalid request: missing q parameter")


def test_languages_are_not_detected(ask):
    status, found = ask("POST", "/detect", form={"q": "Haus"})
    assert (status, found["error"].partition(":")[0]) == (400, "The server does not detect languages")


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


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": [[]]}, "`input_ids` must have at least one column"),
        ({"input_ids": [[5, 6]], "attention_mask": [[1]]}, "`attention_mask` must have the shape"),
        ({"input_ids": [[5, 6]], "attention_mask": [[1, 1, 1]]}, "`attention_mask` must have the shape"),
        ({"input_ids": [[5, 6]], "token_type_ids": [[1]]}, "`token_type_ids` must have the shape"),
    ],
)
def test_arrays_of_forward_have_the_shape_of_the_ids(ask, inputs, message):
    body = {"signature_name": "forward", "inputs": inputs}
    status, found = ask("POST", "/v1/models/classifier:predict", body)
    assert (status, found["error"].startswith(message)) == (400, True), found
    body["inputs"] = {**inputs, "input_ids": [[5, 6]], "attention_mask": [[1, 1]], "token_type_ids": [[0, 1]]}
    assert ask("POST", "/v1/models/classifier:predict", body)[0] == 200


@pytest.mark.parametrize("method", ["classify", "regress"])
def test_errors_of_examples_name_predict(ask, method):
    for version in ("", "/versions/1", "/labels/stable"):
        status, found = ask("POST", f"/v1/models/classifier{version}:{method}", {"examples": [{"text": "a"}]})
        assert status == 400
        assert ":predict" in found["error"]
    assert ask("POST", f"/v1/models/other:{method}", {})[0] == 404
