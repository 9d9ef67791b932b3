"""The option `long_texts` of requests, and of calls in Python."""

import json

import numpy as np
import pytest
from served_exports import INFER, call, json_call, predict, run, tensor, write_export
from served_graphs import OFFSET, STEPS

import keras_transformer_serving as serving
from keras_transformer_serving.server import Limits

# The export copies up to 12 bytes, and accepts 40 tokens.
LONG = "\tUne maison.\r\n\r\n  * * *\r\nDeux!  Trois.\n" + "Oui, oui.\n" * 4
TOO_LONG = (
    "`texts` must have at most 40 tokens each (max_source_tokens), or long_texts='split', or truncate=True. "
    "Received: "
)


def ids_of(text):
    return [OFFSET + byte for byte in text.encode()]


def test_calls_reject_or_split_long_texts(exports):
    copier = serving.load(exports["copier"])
    assert copier([LONG, "ab"], long_texts="split") == [LONG, "ab"]
    assert (
        copier(LONG, long_texts="split", max_new_tokens=2)
        == copier([LONG], long_texts="split", max_new_tokens=[2])[0]
        == "\tUn\r\n\r\n  * * *\r\nDe  Tr\n" + "Ou\n" * 4
    )
    for options in ({}, {"long_texts": "refuse"}):
        with pytest.raises(
            ValueError,
            match=r"\(max_source_tokens\), or long_texts='split', or truncate=True. Received: 80 tokens in",
        ):
            copier(["ab", LONG], **options)
    with pytest.raises(ValueError, match="`long_texts` must be one of .* Received: long_texts='window'"):
        copier("ab", long_texts="window")
    with pytest.raises(ValueError, match="`max_new_tokens` must be one number, or one for each of 2 texts"):
        copier([LONG, "ab"], long_texts="split", max_new_tokens=[1, 2, 3])


def test_an_error_names_the_row_of_its_text(exports):
    copier = serving.load(exports["copier"])
    accented = "e" + "\u0301" * 30 + "\n"  # a character of 61 bytes
    options = {"long_texts": "split", "errors": "return"}
    long, none, lone, invalid, last = copier([LONG, None, LONG + "\ud800", accented, "ab"], **options)
    assert (long, last) == (LONG, "ab")
    assert str(none) == "`texts` must be strings. Received: texts[1]=None"
    assert str(lone).startswith("`texts` must be text without lone surrogates. Received: texts[2]=")
    assert str(invalid) == f"{TOO_LONG}63 tokens in texts[3]"
    assert copier(accented, long_texts="split", truncate=True).startswith("e\u0301")
    with pytest.raises(TypeError, match=r"Received: texts\[1\]=None"):
        copier([LONG, None], long_texts="split")


def test_rows_of_requests_are_split_on_request(exports):
    async def test(app):
        rows = [{"text": text, "long_texts": "split"} for text in (LONG, "ab", "")]
        status, found = await predict(app, "copier", rows)
        assert (status, found["predictions"]) == (
            200,
            [{"text": text, "error": ""} for text in (LONG, "ab", "")],
        )
        _, found = await predict(app, "copier", [LONG, "ab"])
        invalid, accepted = found["predictions"]
        assert invalid["error"].startswith(TOO_LONG)
        assert accepted == {"text": "ab", "error": ""}
        _, found = await predict(app, "copier", [{"text": "ab", "long_texts": "window"}])
        assert found["predictions"][0]["error"].startswith("`long_texts` must be one of ('refuse', 'split').")
        body = {"inputs": [tensor("text", [LONG]), tensor("long_texts", ["split"])]}
        _, found = await json_call(app, "POST", INFER.format("copier"), body)
        assert next(each for each in found["outputs"] if each["name"] == "text")["data"] == [LONG]

    run(exports, test, "copier")


def test_a_request_option_applies_to_all_rows(exports):
    async def test(app):
        _, found = await predict(app, "copier", [LONG, "ab"], long_texts="split")
        assert [row["text"] for row in found["predictions"]] == [LONG, "ab"]
        _, found = await predict(app, "copier", [{"text": LONG, "long_texts": "refuse"}], long_texts="split")
        assert found["predictions"][0]["error"].startswith(TOO_LONG)
        _, found = await predict(app, "copier", ["ab"], long_texts="window")
        assert found["predictions"][0]["error"].startswith("`long_texts` must be one of ('refuse', 'split').")
        body = {"inputs": [tensor("text", [LONG, "ab"])], "parameters": {"long_texts": "split"}}
        _, found = await json_call(app, "POST", INFER.format("copier"), body)
        assert next(each for each in found["outputs"] if each["name"] == "text")["data"] == [LONG, "ab"]

    run(exports, test, "copier")


def test_scores_of_a_split_row_combine_its_parts(exports):
    async def test(app):
        options = {"long_texts": "split", "max_new_tokens": 3}
        rows = [{"text": "Un.\nDeux.", **options}, {"text": "ab", **options}]
        _, found = await predict(app, "copier", rows, signature_name="generate")
        split, whole = found["predictions"]
        assert split["text"] == "Un.\nDeu"
        assert split["ids"][:6] == ids_of("Un.Deu")
        assert split["lengths"] == 6
        assert whole["ids"][:3] == [*ids_of("ab"), 1]
        _, found = await predict(
            app,
            "copier",
            [{"text": text, "max_new_tokens": 3} for text in ("Un.", "Deux.")],
            signature_name="generate",
        )
        assert split["scores"] == pytest.approx(sum(each["scores"] for each in found["predictions"]))
        _, found = await predict(app, "copier", [{"text": LONG}], signature_name="generate")
        assert np.shape(found["predictions"][0]["ids"]) == (STEPS,)

    run(exports, test, "copier")


def test_parts_of_a_text_count_as_rows(exports):
    async def test(app):
        row = {"text": "Aa. Be. Ce. De.\n", "long_texts": "split"}
        assert (await predict(app, "copier", [row]))[0] == 200
        status, found = await predict(app, "copier", [row, row])
        assert (status, found["error"]) == (
            400,
            "A request must have at most 6 rows and parts of long texts. Received: 8",
        )
        assert (await predict(app, "copier", [row]))[0] == 200  # the queue is empty again

    run(exports, test, "copier", limits=Limits(max_rows=6, max_queue=6))


def test_streamed_pieces_of_a_long_text_concatenate_to_the_output(exports):
    async def test(app):
        body = {"text": LONG, "long_texts": "split"}
        _, _, content = await call(app, "POST", "/v1/models/copier:stream", body)
        *pieces, (kind, last, _) = [
            (*event.rpartition("data: ")[::2], None) for event in content.decode().split("\n\n") if event
        ]
        assert kind == "event: done\n"
        assert "".join(json.loads(data)["text"] for _, data, _ in pieces) == json.loads(last)["text"] == LONG
        status, found = await json_call(app, "POST", "/v1/models/copier:stream", {"text": LONG})
        assert (status, found["error"].startswith(TOO_LONG)) == (400, True)
        status, found = await json_call(app, "POST", "/v1/models/generator:stream", body)
        assert status == 400
        assert found["error"].startswith(
            'The request must be {"text": …}, optionally with max_new_tokens, min_new_tokens, truncate. Received'
        )

    run(exports, test, "copier", "generator")


def test_the_exported_setting_is_the_default(small, tmp_path):
    folder = write_export(small, tmp_path / "copier", "copier", long_texts="split")
    assert serving.load(folder)(LONG) == LONG

    async def test(app):
        _, found = await predict(app, "it", [LONG])
        assert found["predictions"] == [{"text": LONG, "error": ""}]
        _, found = await predict(app, "it", [LONG], signature_name="generate_ids")
        assert found["predictions"][0]["error"].startswith(TOO_LONG)
        _, found = await json_call(app, "GET", "/openapi.json")
        schema = found["paths"]["/v1/models/it:predict"]["post"]["requestBody"]["content"]["application/json"]
        assert (
            '"long_texts": {"type": "string", "enum": ["refuse", "split"], "default": "split"}'
            in json.dumps(schema)
        )

    run({"it": folder}, test, "it")
