"""Requests through reverse proxies."""

import asyncio
import json

import pytest
from served_exports import calling, write_export
from test_libre_translate import upload

from keras_transformer_serving.server import Keys, create_app
from keras_transformer_serving.server.proxies import Proxies

FORWARDED = [
    ("Host", "inner:8501"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Host", "example.com, inner"),
    ("X-Forwarded-Prefix", "/tools/translate/"),
]
FORM = {"source": "de", "target": "en"}


@pytest.fixture(scope="module")
def export(small, tmp_path_factory):
    return write_export(small, tmp_path_factory.mktemp("proxies") / "copier", "copier")


@pytest.mark.parametrize(
    ("options", "headers", "path", "base"),
    [
        ({}, FORWARDED, "", "http://inner:8501/"),
        ({"trusted_proxies": ["*"]}, FORWARDED, "", "https://example.com/tools/translate/"),
        ({"trusted_proxies": ["*"]}, FORWARDED, "/tools/translate", "https://example.com/tools/translate/"),
        ({"root_path": "/here"}, FORWARDED[:1], "", "http://inner:8501/here/"),
        ({"root_path": "/here/"}, FORWARDED[:1], "/here", "http://inner:8501/here/"),
        ({"trusted_proxies": ["10.0.0.0/8"]}, FORWARDED, "", "http://inner:8501/"),
    ],
)
def test_files_and_the_page_have_the_addresses_that_clients_see(export, options, headers, path, base):
    with calling(create_app({"de-en": export}, keys=Keys(["key"]), **options)) as answer:
        assert answer(f"{path}/health", b"", headers, "GET")[0] == 200
        assert answer(f"{path}/languages", b"", headers, "GET")[0] == 401
        status, _, page = answer(f"{path}/", b"", headers, "GET")
        assert status == 200
        prefix = base.partition("//")[2].partition("/")[2]
        assert f'<base href="/{prefix}">'.encode() in page
        assert b'="/' not in page.replace(f'<base href="/{prefix}">'.encode(), b"")
        form, body = upload("a.txt", b"eins", **FORM)
        headers = [*headers, ("X-API-Key", "key")]
        status, _, found = answer(f"{path}/translate_file", body, [*headers, *form])
        url = json.loads(found)["translatedFileUrl"]
        assert url.startswith(f"{base}download_file/")
        file = url.removeprefix(base)
        assert answer(f"{path}/{file}", b"", headers, "GET")[2] == b"eins"
        status, _, found = answer(f"{path}/v1/nothing", b"", headers, "GET")
        assert (status, json.loads(found)["error"]["type"]) == (404, "invalid_request_error")


@pytest.mark.parametrize(
    ("client", "trusted", "is_trusted"),
    [
        ("10.1.2.3", ["10.0.0.0/8"], True),
        ("::ffff:10.1.2.3", ["10.0.0.0/8"], True),
        ("11.1.2.3", ["10.0.0.0/8", "::1"], False),
        ("::1", ["127.0.0.1", "::1"], True),
        ("socket", ["::1"], False),
        (None, ["::1"], False),
        (None, ["*"], True),
    ],
)
def test_only_trusted_proxies_change_requests(client, trusted, is_trusted):
    scopes = []

    async def app(scope, receive, send):
        scopes.append(scope)

    headers = [(b"host", b"inner"), (b"x-forwarded-host", b"example.com"), (b"x-forwarded-proto", b"https")]
    headers.append((b"x-forwarded-prefix", b'/a"><script>'))  # no path
    scope = {"type": "http", "path": "/", "scheme": "http", "root_path": "", "headers": headers}
    scope["client"] = client and (client, 1)
    asyncio.run(Proxies(app, trusted)(scope, None, None))
    (found,) = scopes
    expected = ("https", b"example.com", "") if is_trusted else ("http", b"inner", "")
    assert (found["scheme"], dict(found["headers"])[b"host"], found["root_path"]) == expected
    assert scope["scheme"] == "http"


@pytest.mark.parametrize(
    "options", [{"root_path": "a"}, {"root_path": "//a"}, {"trusted_proxies": ["proxy"]}]
)
def test_wrong_prefixes_and_proxies_are_rejected(export, options):
    with pytest.raises(ValueError, match="`root_path`|`trusted_proxies`"):
        create_app({"de-en": export}, **options)
