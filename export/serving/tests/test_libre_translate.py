"""LibreTranslate's protocol, by its client for Python."""

import asyncio
import json
import urllib.error
import urllib.request

import pytest
from libretranslatepy import LibreTranslateAPI
from served_exports import SOURCE, call, calling, json_call, listening, run, write_export

from keras_transformer_serving import load
from keras_transformer_serving.server import create_app, libre_translate

BOUNDARY = "7b1"


@pytest.fixture(scope="module")
def exports(small, tmp_path_factory):
    """A model of many languages, and one of a pair; both copy, the first with the token of the target before."""
    folder = tmp_path_factory.mktemp("libre")
    names = {"many": "translator", "opus-mt-de-en": "copier", "classifier": "classifier"}
    return {name: write_export(small, folder / name, source) for name, source in names.items()}


@pytest.fixture(scope="module")
def answer(exports):
    with calling(create_app(exports)) as answer:
        yield answer


@pytest.fixture(scope="module")
def address(exports):
    with listening(create_app(exports)) as address:
        yield address


def upload(name, content, **fields):
    """Return the headers and the body of a form with a file."""
    parts = [f'form-data; name="{field}"\r\n\r\n{value}' for field, value in fields.items()]
    body = "".join(f"--{BOUNDARY}\r\nContent-Disposition: {part}\r\n" for part in parts).encode()
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    body += head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()
    return [("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")], body


def test_the_client_translates_and_lists_languages(address):
    client = LibreTranslateAPI(address)
    assert client.translate("Das Haus", "de", "en") == "Das Haus"
    assert client.translate("casa", "es", "en") == "<en><es>casa"
    assert client.translate("ñandú & co", "de", "en") == "ñandú & co"
    assert client.languages() == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": ["es"]},
        {"code": "es", "name": "Spanish", "targets": ["en"]},
    ]
    with pytest.raises(urllib.error.HTTPError, match="400"):
        client.detect("hello")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        client.translate("hello", "auto", "en")


def test_texts_in_json_are_translated_together_and_split(exports):
    async def test(app):
        long = "Ein Haus. " * 20
        body = {"q": ["eins", long, ""], "source": "de", "target": "en", "format": "text", "alternatives": 0}
        status, found = await json_call(app, "POST", "/translate", body)
        assert status == 200
        first, second, third = found["translatedText"]
        assert (first, third) == ("eins", "")
        assert second == "Ein Haus. " * 20
        headers, form = upload("x.txt", b"", q="eins", source="de", target="en")
        status, _, content = await call(app, "POST", "/translate", form, headers)
        assert (status, json.loads(content)) == (200, {"translatedText": "eins"})

    run(exports, test)


def test_translations_of_many_languages_are_listed_once():
    many = ("many", tuple(f"l{number}_Latn" for number in range(200)))
    found = libre_translate._of_models((many, ("opus-mt-l1-l2", ()), ("de-en", ())))
    assert sum(map(len, found.values())) == 200 * 199 + 1
    assert found["l1"]["l2"].model == "many"  # the first model that has them
    assert libre_translate._of_models((many, ("opus-mt-l1-l2", ()), ("de-en", ()))) is found


def test_codes_of_languages_are_read_in_any_case_and_as_many_hypotheses_answered_as_there_are(answer):
    body = {"q": "eins", "source": "DE", "target": "En", "alternatives": 3}
    status, _, content = answer("/translate", body)
    assert (status, json.loads(content)) == (200, {"translatedText": "eins", "alternatives": []})


@pytest.mark.parametrize(("count", "others"), [(0, None), (1, ["fjot"]), (3, ["fjot"])])
def test_other_hypotheses_of_an_export_are_in_the_answer(small, tmp_path, count, others):
    export = write_export(small, tmp_path / "n-best", "n-best")
    body = {"q": "eins", "source": "de", "target": "en", "alternatives": count}
    with calling(create_app({"de-en": export})) as answer:
        _, _, content = answer("/translate", body)
        assert json.loads(content) == {"translatedText": "eins"} | ({"alternatives": others} if count else {})
        _, _, content = answer("/translate", {**body, "q": ["eins", "ab"]})
        expected = {"alternatives": [others, ["bc"]]} if count else {}
        assert json.loads(content) == {"translatedText": ["eins", "ab"]} | expected


def test_json_of_another_content_type_is_read(answer):
    body = {"q": "eins", "source": "de", "target": "en"}
    status, _, content = answer("/translate", body, [("Content-Type", "application/x-www-form-urlencoded")])
    assert (status, json.loads(content)) == (200, {"translatedText": "eins"})


def test_a_form_has_each_field_once(answer):
    form = [("Content-Type", "application/x-www-form-urlencoded")]
    status, _, content = answer("/translate", b"q=eins&q=zwei&source=de&target=en", form)
    assert (status, json.loads(content)["error"]) == (400, "`q` must be given once. Received: several")


def test_html_keeps_its_tags(answer):
    body = {"q": "<b>eins</b>", "source": "de", "target": "en", "format": "html"}
    status, _, content = answer("/translate", body)
    assert (status, json.loads(content)) == (200, {"translatedText": "<b>eins</b>"})


@pytest.mark.parametrize("style", ["text", "html"])
def test_a_megabyte_of_html_is_rejected_while_others_are_served(exports, style):
    page = "<p><b>eins</b> zwei</p>" * (2**20 // 23)

    async def test(app):
        body = {"q": page, "source": "de", "target": "en", "format": style}
        large = asyncio.create_task(json_call(app, "POST", "/translate", body))
        status, _ = await json_call(app, "POST", "/translate", {"q": "eins", "source": "de", "target": "en"})
        assert status == 200
        status, found = await large
        assert status == 400
        assert found["error"].startswith("`q` must have at most 100000 characters")
        headers, form = upload("page.html", page.encode(), source="de", target="en")
        assert (await call(app, "POST", "/translate_file", form, headers))[0] == 400

    run(exports, test)


def test_files_are_translated_and_downloaded(address):
    headers, body = upload("brief.TXT", b"eins\n\nzwei", source="de", target="en")
    request = urllib.request.Request(f"{address}/translate_file", body, dict(headers))
    with urllib.request.urlopen(request) as response:
        url = json.load(response)["translatedFileUrl"]
    assert url.startswith(f"{address}/download_file/")
    with urllib.request.urlopen(url) as response:
        assert response.read() == b"eins\n\nzwei"
        assert response.headers["content-type"].startswith("text/plain")
        assert response.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_subtitles_keep_their_numbers_times_and_tags(exports, newline):
    cues = [
        f"{number}\n00:00:{number % 60:02},500 --> 00:01:00,000\n{text}"
        for number, text in enumerate(["eins", "<i>zwei & drei</i>", "vier\nfünf", *["sechs"] * 300], 1)
    ]
    content = "\n\n".join([*cues, "304\n00:00:04,000 --> 00:00:05,000\n\n"]).replace("\n", newline)

    async def test(app):
        headers, body = upload("film.srt", content.encode(), source="de", target="en")
        status, _, answer = await call(app, "POST", "/translate_file", body, headers)
        assert status == 200
        path = json.loads(answer)["translatedFileUrl"].removeprefix("http://test")
        status, headers, found = await call(app, "GET", path)
        assert (status, headers["content-type"]) == (200, "application/x-subrip")
        expected = content.replace(f"vier{newline}fünf", "vier fünf")
        assert found.decode().splitlines() == expected.splitlines()

    run(exports, test, "opus-mt-de-en")


@pytest.mark.parametrize("max_tokens", [SOURCE, 200])
def test_a_text_of_as_many_characters_as_is_said_fits(exports, max_tokens):
    pipeline = load(exports["opus-mt-de-en"])
    pipeline.max_source_tokens = max_tokens
    with calling(create_app({"opus-mt-de-en": pipeline})) as answer:
        limit = json.loads(answer("/frontend/settings", b"", method="GET")[2])["charLimit"]
        text = "Wer reitet so spät durch\nNacht und Wind mit dem Kind\n"  # verse, whose lines are short
        text *= limit // len(text)
        assert answer("/translate", {"q": text, "source": "de", "target": "en"})[0] == 200
        assert answer("/translate", {"q": text * 3, "source": "de", "target": "en"})[0] == 400


def test_only_the_latest_files_are_kept(exports):
    async def test(app):
        urls = []
        for number in range(70):
            headers, body = upload("a.txt", str(number).encode(), source="de", target="en")
            _, _, content = await call(app, "POST", "/translate_file", body, headers)
            urls.append(json.loads(content)["translatedFileUrl"].removeprefix("http://test"))
        assert len(app.state.server.files) == 64
        assert (await call(app, "GET", urls[0]))[0] == 404
        assert (await call(app, "GET", urls[-1]))[2] == b"69"

    run(exports, test, "opus-mt-de-en")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Invalid request: missing q parameter"),
        (
            {"q": "a", "source": "auto", "target": "en"},
            "auto is not supported, as the server does not detect languages",
        ),
        ({"q": "a", "source": ["de"], "target": "en"}, "`source` must be de or en or es. Received: ['de']"),
        ({"q": "a", "source": "de", "target": "es"}, "es is not supported"),
        (
            {"q": "a", "source": "de", "target": "en", "alternatives": -1},
            "`alternatives` must be an integer in [0, 2147483647]",
        ),
        ({"q": "\ud800", "source": "de", "target": "en"}, "`q` must be UTF-8"),
        (["a"], "Invalid JSON format"),
    ],
)
def test_invalid_requests_are_rejected_by_field(answer, body, message):
    status, _, content = answer("/translate", body)
    assert status == 400
    assert json.loads(content)["error"].startswith(message)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.docx", b"PK", "`file` must be one of .txt, .html, .srt. Received: 'a.docx'"),
        ("a", b"a", "`file` must be one of .txt, .html, .srt. Received: 'a'"),
        ("a.txt", b"a\xff", "`file` must be UTF-8. Received: another byte at 1"),
    ],
)
def test_invalid_files_are_rejected(answer, name, content, message):
    headers, body = upload(name, content, source="de", target="en")
    status, _, found = answer("/translate_file", body, headers)
    assert (status, json.loads(found)["error"]) == (400, message)
    for kind in ("application/json", "multipart/form-data; boundary=other", "multipart/form-data"):
        assert answer("/translate_file", body, [("Content-Type", kind)])[0] == 400


def test_the_error_of_a_server_without_translations_has_a_hint(exports):
    async def test(app):
        body = {"q": "a", "source": "de", "target": "en"}
        status, found = await json_call(app, "POST", "/translate", body)
        assert status == 404
        assert "keras-transformer-serve es-en=FOLDER" in found["error"]
        assert await json_call(app, "GET", "/languages") == (200, [])
        _, document = await json_call(app, "GET", "/openapi.json")
        assert "/translate" not in document["paths"]

    run(exports, test, "classifier")


def test_settings_and_routes_are_described(exports):
    async def test(app):
        _, found = await json_call(app, "GET", "/frontend/settings")
        assert found["language"]["source"] == {"code": "en", "name": "English"}
        assert found["charLimit"] == 256 * SOURCE // 2
        _, document = await json_call(app, "GET", "/openapi.json")
        schema = document["paths"]["/translate"]["post"]["requestBody"]["content"]["application/json"][
            "schema"
        ]
        assert schema["properties"]["source"]["enum"] == ["de", "en", "es"]

    run(exports, test)
