"""Tags, placeholders and glossaries in calls of exports and in requests."""

import asyncio
import re

import pytest
from served_exports import INFER, json_call, predict, run, tensor, until, write_export

import keras_transformer_serving as serving
from keras_transformer_serving.server import Limits, batching

PAGE = "<h1>Uno</h1>\n<p>a <b>c</b> {x} &amp; d<p>Dos<script>if (a<b) {}</script>"
TAG = re.compile(r"<[^>]*>|\{\w*\}")


def without_tags(text):
    return "".join(TAG.sub("", text).split())


def test_calls_keep_the_tags_of_copied_texts(exports):
    copier = serving.load(exports["copier"])
    output = copier(PAGE, tag_handling="html")
    assert sorted(TAG.findall(output)) == sorted(TAG.findall(PAGE))
    assert without_tags(output) == without_tags(PAGE)
    assert output.startswith("<h1>Uno</h1>\n<p>")
    assert copier(["ab {x}", "%s c"], tag_handling="placeholders") == ["ab {x}", "%s c"]
    assert copier([PAGE, PAGE], tag_handling="html", max_new_tokens=[12, 3])[0] == output
    assert copier([], tag_handling="html") == []
    output = copier("a :b %s", placeholders=["colon"])
    assert sorted(output.split()) == ["%s", ":b", "a"]


def test_calls_place_the_terms_of_a_glossary(exports):
    copier = serving.load(exports["copier"])
    assert copier("ab", glossary={"ab": "xyz"}) == "xyz"
    assert copier(["ab", "Ab", "abc"], glossary={"ab": "xyz"}) == ["xyz", "Xyz", "abc"]
    assert copier(["ab", "ab"], glossary=[None, {"ab": "xyz"}]) == ["ab", "xyz"]
    assert copier("ab", glossary={"ab": "xyz"}, glossary_mode="soft") == "ab"
    assert copier("<p>ab</p>", tag_handling="html", glossary={"ab": "x & y"}) == "<p>x &amp; y</p>"
    assert "xyz" in copier("c ab d", glossary={"ab": "xyz"})


def test_an_error_names_the_text_or_the_argument(exports):
    copier = serving.load(exports["copier"])
    outputs = copier(
        ["<b>x", None, "<p>ab<p>cd", "<p>ab<p>" + "c" * 99], tag_handling="html", errors="return"
    )
    assert outputs[2] == "<p>ab<p>cd"
    assert [str(output) for output in outputs[:2]] == [
        "`texts` must have an end tag for each start tag. Received: none for <b> at character 0 in texts[0]",
        "`texts` must be strings. Received: texts[1]=None",
    ]
    assert str(outputs[3]).endswith("or truncate=True. Received: 100 tokens in texts[3]")
    for options, message in (
        ({"tag_handling": "xml"}, "`tag_handling` must be one of"),
        ({"tag_handling": "html", "placeholders": ["xml"]}, "`placeholders` must be a list of names in"),
        ({"tag_handling": "html", "truncate": True}, "`truncate` must be False with `tag_handling`"),
        ({"glossary": {"a": "b"}, "glossary_mode": "x"}, "`glossary_mode` must be one of"),
        ({"glossary": [None]}, "`glossary` must be a mapping, or one for each of 2 texts. Received: 1 items"),
        ({"glossary": {str(i): "x" for i in range(10_000)}}, "`glossary` must have at most 1000 entries"),
    ):
        with pytest.raises(ValueError, match=message):
            copier(["ab", "cd"], **options)
    for glossary in ("ab", 3, [3, 3]):
        with pytest.raises(TypeError, match="`glossary` must be a mapping from strings to strings"):
            copier(["ab", "cd"], glossary=glossary)
    with pytest.raises(ValueError, match="must be None for a decoder-only model"):
        serving.load(exports["generator"])("ab", tag_handling="html")


def test_an_export_without_graphs_of_steps_names_the_remedy(small, tmp_path, monkeypatch):
    copier = serving.load(write_export(small, tmp_path / "copier", "copier"))
    monkeypatch.setattr(type(copier.graphs), "has_steps", False)
    with pytest.raises(
        ValueError, match="need.* the graphs of single steps, encoder_model and .* with precision='float32'"
    ):
        copier("ab", tag_handling="html")


def test_requests_keep_tags_and_place_terms(exports):
    copier = serving.load(exports["copier"])
    expected = copier(PAGE, tag_handling="html")

    async def test(app):
        rows = [{"text": PAGE, "tag_handling": "html"}, {"text": "ab", "tag_handling": "html"}]
        for signature in ("serving_default", "generate"):
            status, found = await predict(app, "copier", rows, signature_name=signature)
            assert status == 200
            assert [row["text"] for row in found["predictions"]] == [expected, "ab"]
        row = {"text": "<b>ab</b>", "tag_handling": "html", "glossary": {"ab": "xyz"}}
        for value in ({"ab": "xyz"}, '{"ab": "xyz"}'):
            _, found = await predict(app, "copier", [{**row, "glossary": value}])
            assert found["predictions"] == [{"text": "<b>xyz</b>", "error": ""}]
        row = {"text": "ab :c"}
        for value in (["colon"], "colon at", []):
            status, found = await predict(app, "copier", [{**row, "placeholders": value}])
            assert (status, found["predictions"]) == (200, [{"text": "ab :c", "error": ""}])
        _, found = await predict(app, "copier", ["ab", "ab c"], glossary={"ab": "xyz"})
        assert ["xyz" in row["text"] for row in found["predictions"]] == [True, True]
        body = {"inputs": [tensor("text", ["ab"])], "parameters": {"glossary": {"ab": "xyz"}}}
        _, found = await json_call(app, "POST", INFER.format("copier"), body)
        assert next(each for each in found["outputs"] if each["name"] == "text")["data"] == ["xyz"]

    run(exports, test, "copier")


def test_invalid_rows_have_errors_that_name_the_remedy(exports):
    glossary = {f"word{i}": "x" for i in range(10_000)}

    async def test(app):
        for row, message in (
            ({"text": "<b>" * 50, "tag_handling": "html"}, "`texts` must have an end tag for each start tag"),
            ({"text": "<i>" * 200, "tag_handling": "html"}, "at most 100 elements inside one another"),
            ({"text": "<p>a</p>" * 131_072, "tag_handling": "html"}, "`text` must have at most 100000 char"),
            ({"text": "ab", "glossary": glossary}, "must have at most"),
            ({"text": "ab", "glossary": dict(list(glossary.items())[:2000])}, "at most 1000 entries"),
            ({"text": "ab", "glossary": "ab"}, "`glossary` must be a JSON object. Received: Expecting"),
            ({"text": "ab", "glossary": "[1]"}, "`glossary` must be a mapping from strings to strings"),
            ({"text": "ab", "glossary": ["ab"]}, "`glossary` must be a string"),
            (
                {"text": "ab", "tag_handling": "html", "placeholders": "xml"},
                "`placeholders` must be a list of names",
            ),
            ({"text": "ab", "tag_handling": "html", "placeholders": [3]}, "`placeholders` must be a string"),
            ({"text": "ab", "tag_handling": "xml"}, "`tag_handling` must be one of"),
            ({"text": "ab", "tag_handling": 3}, "`tag_handling` must be a string"),
        ):
            status, found = await predict(app, "copier", [row])
            assert status == 200
            assert message in found["predictions"][0]["error"]
        row = {"text": "<p>ab</p>" * 300, "tag_handling": "html"}
        status, found = await predict(app, "copier", [row])
        assert (status, "at most 256 rows and parts" in found["error"]) == (400, True)
        status, found = await predict(app, "generator", [{"text": "ab", "tag_handling": "html"}])
        assert status == 400
        assert "optionally" not in found["error"].split("Received")[1]

    run(exports, test, "copier", "generator")


@pytest.mark.parametrize("name", ["copier", "generator", "sampler"])
def test_settings_of_an_export_are_rejected_by_name(exports, name):
    async def test(app):
        for setting, call in (
            ("num_beams", "Beam(num_beams=…)"),
            ("top_p", "Sample(top_p=…)"),
            ("banned_words", "constraints=[BannedWords(…)]"),
        ):
            expected = f"`{setting}` must be set when the model is exported: pipeline.with_settings({call})."
            for signature in ("serving_default", "generate"):
                for request in (([{"text": "ab", setting: 1}], {}), (["ab"], {setting: 1})):
                    status, found = await predict(
                        app, name, request[0], signature_name=signature, **request[1]
                    )
                    assert status == 400
                    assert found["error"].startswith(expected)

    run(exports, test, name)


def test_other_requests_are_computed_between_the_parts_of_a_document(exports, blocked, monkeypatch):
    page = "".join(f"<p>ab <b>cd</b> ef {i}</p>" for i in range(200))
    computed, compute = [], batching.compute_each
    monkeypatch.setattr(batching, "compute_each", lambda *batch: computed.append(batch) or compute(*batch))

    async def test(app):
        document = asyncio.create_task(predict(app, "copier", [{"text": page, "tag_handling": "html"}]))
        await until(lambda: computed)
        other = asyncio.create_task(predict(app, "copier", ["a" * 12]))
        await until(lambda: app.state.server.active == 2)
        blocked.set()
        assert (await other)[0] == 200
        status, found = await document
        assert status == 200
        assert sorted(TAG.findall(found["predictions"][0]["text"])) == sorted(TAG.findall(page))
        sizes = [max(len(getattr(values, "ids", ())) for values in batch) for _, batch in computed]
        assert len(computed) > 20
        assert sizes.index(13) <= 3

    run(exports, test, "copier", limits=Limits(timeout=60))
