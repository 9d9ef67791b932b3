"""The languages of translation models in requests, and in calls in Python."""

import json

import numpy as np
import pytest
from served_exports import INFER, call, json_call, predict, run, tensor

import keras_transformer_serving as serving
from keras_transformer_serving.pipelines import languages

# The export copies the token of the target language and the source, which begins with the token of its language.
ONE_OF = "must be one of en, es. Received:"


def test_languages_are_options_of_calls(exports):
    translate = serving.load(exports["translator"])
    assert translate("ab", target_language="es") == "<es><en>ab"
    assert translate(["ab", "c"], source_language="es", target_language=["en", "es"]) == [
        "<en><es>ab",
        "<es><es>c",
    ]
    assert translate([], target_language="es") == translate([], target_language=[]) == []
    assert translate("Un.\nDos.", target_language="es", long_texts="split") == "<es><en>Un.\n<es><en>Dos."
    found = translate.generate(["ab"], source_language="es", target_language=["en"])
    assert translate.decode(found["ids"][0]) == "<en><es>ab"
    assert translate.encode(["a"], source_language="es") != translate.encode(["a"])
    assert list(translate.languages) == ["en", "es"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, f"`target_language` {ONE_OF} none in target_language[0]"),
        ({"target_language": "EN"}, ValueError, f"`target_language` {ONE_OF} EN in target_language[0]"),
        ({"target_language": ["en", "x"]}, ValueError, f"`target_language` {ONE_OF} x in target_language[1]"),
        (
            {"target_language": "en", "source_language": "x"},
            ValueError,
            f"`source_language` {ONE_OF} x in source",
        ),
        ({"target_language": ["en"]}, ValueError, "one for each of 2 texts. Received: 1 strings"),
        (
            {"target_language": 3},
            TypeError,
            "must be a string, or one for each text. Received: target_language=3",
        ),
        ({"target_language": [3, "en"]}, TypeError, "must be a string, or one for each text. Received:"),
    ],
    ids=str,
)
def test_invalid_languages_are_errors(exports, options, error, message):
    translate = serving.load(exports["translator"])
    with pytest.raises(error) as raised:
        translate(["a", "b"], **options)
    assert message in str(raised.value)


def test_an_unknown_language_fails_only_its_row(exports):
    translate = serving.load(exports["translator"])
    first, second = translate(["a", "b"], target_language=["x", "en"], errors="return")
    assert str(first) == f"`target_language` {ONE_OF} x in target_language[0]"
    assert second == "<en><en>b"


@pytest.mark.parametrize("name", ["copier", "generator"])
def test_models_without_languages_reject_them(exports, name):
    expected = "`target_language` must be None, as the model has no languages. Received: target_language='es'"
    with pytest.raises(ValueError, match=expected):
        serving.load(exports[name])("a", target_language="es")


def test_many_languages_are_shortened_in_errors():
    names = [f"l{number}" for number in range(202)]
    error = languages.expectation("target_language", names)
    assert error.startswith("`target_language` must be one of l0, l1, ")
    assert error.endswith("l29, … (202 languages). Received: ")


def test_rows_of_requests_have_languages(exports):
    async def test(app):
        rows = [
            {"text": "ab", "source_language": "es", "target_language": "en"},
            {"text": "c", "source_language": "en", "target_language": "es"},
            {"text": "d", "source_language": "en", "target_language": "fr"},
        ]
        status, found = await predict(app, "translator", rows)
        assert (status, [row["text"] for row in found["predictions"]]) == (
            200,
            ["<en><es>ab", "<es><en>c", ""],
        )
        assert found["predictions"][2]["error"] == f"`target_language` {ONE_OF} fr"
        _, found = await predict(app, "translator", ["ab", "c"], target_language="es")
        assert [row["text"] for row in found["predictions"]] == ["<es><en>ab", "<es><en>c"]
        _, found = await predict(app, "translator", ["ab"])
        assert found["predictions"][0]["error"] == f"`target_language` {ONE_OF} none"
        body = {"inputs": [tensor("text", ["ab"]), tensor("target_language", ["es"])]}
        _, found = await json_call(app, "POST", INFER.format("translator"), body)
        assert next(each for each in found["outputs"] if each["name"] == "text")["data"] == ["<es><en>ab"]
        status, found = await predict(app, "copier", ["ab"], target_language="es")
        assert (status, "target_language" in found["error"]) == (400, True)
        status, found = await predict(app, "copier", [{"text": "ab", "target_language": "es"}])
        assert (status, "optionally long_texts" in found["error"]) == (400, True)

    run(exports, test, "translator", "copier")


def test_scores_and_attributions_have_languages(exports):
    async def test(app):
        options = {"source_language": "es", "target_language": "en"}
        _, same = await predict(
            app, "translator", [{"text": "ab", "target": "ab", **options}], signature_name="score"
        )
        (row,) = same["predictions"]
        assert np.ptp(row["token_scores"]) < 1e-5  # each token is copied
        assert row["lengths"] == 3
        _, found = await predict(
            app, "translator", [{"text": "ab", **options}], signature_name="attributions"
        )
        assert found["predictions"][0]["source_pieces"] == ["<es>", "<0x61>", "<0x62>", "</s>"]
        rows = [{"text": "ab", "source_language": "es"}, {"text": "ab", "source_language": ""}]
        _, found = await predict(app, "translator", rows, signature_name="encode")
        assert len(found["predictions"][0]["source_ids"]) == 4
        assert found["predictions"][1]["error"] == f"`source_language` {ONE_OF} none"

    run(exports, test, "translator")


def test_streams_have_languages(exports):
    async def test(app):
        path = "/v1/models/translator:stream"
        # Steps copy the source from the position after the prefix.
        status, _, content = await call(app, "POST", path, {"text": "ab", "target_language": "es"})
        assert status == 200
        assert json.loads(content.decode().split("event: done\ndata: ")[1]) == {"text": "ab"}
        status, _, content = await call(app, "POST", path, {"text": "ab"})
        assert (status, json.loads(content)["error"]) == (400, f"`target_language` {ONE_OF} none")

    run(exports, test, "translator")


def test_the_openapi_document_and_the_page_list_languages(exports):
    async def test(app):
        _, document = await json_call(app, "GET", "/openapi.json")
        stream = document["paths"]["/v1/models/translator:stream"]["post"]["requestBody"]
        schema = stream["content"]["application/json"]["schema"]["properties"]
        assert schema["source_language"] == {"type": "string", "enum": ["en", "es"], "default": "en"}
        assert schema["target_language"] == {"type": "string", "enum": ["en", "es"]}
        _, found = await json_call(app, "GET", "/v1/models")
        inputs = found["models"][0]["signatures"]["serving_default"]["inputs"]
        assert {each["name"]: each["choices"] for each in inputs}["target_language"] == ["en", "es"]

    run(exports, test, "translator")


def test_start_ids_need_a_graph_that_takes_them(exports):
    translate = serving.load(exports["copier"])
    with pytest.raises(ValueError, match="`start_ids` needs a model whose targets begin with the token of a"):
        translate.run(np.array([[9]]), start_ids=[3])
