"""Keys of requests, their limits, and pages of other servers."""

import argparse
import hmac
import urllib.error

import openai
import pytest
from libretranslatepy import LibreTranslateAPI
from served_exports import call, json_call, listening, predict, run, write_export

from keras_transformer_serving import command_line
from keras_transformer_serving.server import Keys, create_app
from keras_transformer_serving.server import keys as keys_module
from keras_transformer_serving.server.signatures import RequestError

LINES = ["# keys", "", "first", "second 2", "third"]


@pytest.fixture(scope="module")
def exports(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return {"de-en": write_export(small, folder / "copier", "copier")}


def bearer(key):
    return [("Authorization", f"Bearer {key}")]


def test_every_route_but_of_health_needs_a_key(exports):
    async def test(app):
        public = []
        for route in app.routes:
            (method,) = route.methods - {"HEAD"}
            path = route.path.format(name="de-en", version="1", label="stable", file="x")
            status, headers, _ = await call(app, method, path, {})
            if status == 401:
                assert headers["www-authenticate"] == "Bearer"
                assert (await call(app, method, path, {}, bearer("other")))[0] == 401
                assert (await call(app, method, path, {}, bearer("first")))[0] != 401
            else:
                public.append(path)
        assert [*dict.fromkeys(public)] == ["/", "/v2/health/live", "/v2/health/ready", "/health"]
        assert (await predict(app, "de-en", ["a"]))[0] == 401
        assert (await json_call(app, "GET", "/v1/models", headers=[("X-API-Key", "first")]))[0] == 200

    run(exports, test, keys=Keys(LINES))


def test_keys_are_compared_in_constant_time_with_all(monkeypatch):
    compared, compare_digest = [], hmac.compare_digest

    def compare(known, given):
        compared.append((len(known), len(given)))
        return compare_digest(known, given)

    keys = Keys(LINES)
    monkeypatch.setattr(keys_module.hmac, "compare_digest", compare)
    keys.check("first")
    assert compared == [(32, 32)] * 3
    with pytest.raises(RequestError, match="another key"):
        keys.check("x" * 999)
    assert compared == [(32, 32)] * 6


def test_a_key_has_its_number_of_requests_per_minute(exports, monkeypatch):
    now = 100.0
    monkeypatch.setattr(keys_module.time, "monotonic", lambda: now)

    async def test(app):
        nonlocal now

        async def ask(key):
            status, headers, _ = await call(app, "GET", "/v1/models", headers=bearer(key))
            return status, headers.get("retry-after")

        assert [await ask("second") for _ in range(3)] == [(200, None), (200, None), (429, "30")]
        assert (await ask("first"))[0] == 200
        now += 29
        assert await ask("second") == (429, "1")
        now += 1
        assert [(await ask("second"))[0] for _ in range(2)] == [200, 429]
        assert [(await ask("first"))[0] for _ in range(9)] == [200] * 8 + [429]
        now += 1e6
        assert [(await ask("second"))[0] for _ in range(3)] == [200, 200, 429]

    run(exports, test, keys=Keys(LINES, per_minute=8))


def test_clients_send_their_keys(exports):
    with listening(create_app(exports, keys=Keys(LINES))) as address:
        for key, is_known in (("first", True), ("other", False)):
            options = {"base_url": f"{address}/v1", "api_key": key, "max_retries": 0}
            with openai.OpenAI(**options) as client:
                if is_known:
                    assert client.completions.create(model="de-en", prompt="a").choices[0].text == "a"
                else:
                    with pytest.raises(openai.AuthenticationError) as raised:
                        client.completions.create(model="de-en", prompt="a")
                    assert raised.value.code == "invalid_api_key"
            translator = LibreTranslateAPI(address, key)
            if is_known:
                assert translator.translate("a", "de", "en") == "a"
                assert translator.languages()
            else:
                with pytest.raises(urllib.error.HTTPError, match="401"):
                    translator.translate("a", "de", "en")
                with pytest.raises(urllib.error.HTTPError, match="401"):
                    translator.languages()


def test_pages_of_listed_origins_may_send_requests(exports):
    async def test(app):
        asked = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "POST")]
        asked.append(("Access-Control-Request-Headers", "authorization,content-type"))
        status, headers, _ = await call(app, "OPTIONS", "/v1/completions", headers=asked)
        assert (status, headers["access-control-allow-origin"]) == (200, "https://a.example")
        assert "authorization" in headers["access-control-allow-headers"]
        asked[0] = ("Origin", "https://b.example")
        status, headers, _ = await call(app, "OPTIONS", "/v1/completions", headers=asked)
        assert (status, "access-control-allow-origin" in headers) == (400, False)
        _, headers, _ = await call(app, "GET", "/v1/models", headers=[("Origin", "https://a.example")])
        assert headers["access-control-allow-origin"] == "https://a.example"

    for origin in ("https://a.example", " https://A.example/", "https://a.example:443"):
        run(exports, test, cors_origins=[origin])
    for wrong in ("a.example", "https://a.example/page", "", "https://a.example?b"):
        with pytest.raises(ValueError, match="`cors_origins` must be of the form"):
            create_app(exports, cors_origins=[wrong])

    async def test_without(app):
        _, headers, _ = await call(app, "GET", "/v1/models", headers=[("Origin", "https://a.example")])
        assert "access-control-allow-origin" not in headers

    run(exports, test_without)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "must have at least one key. Received: none"),
        (["# only"], "must have at least one key"),
        (["key many"], "Received: another line 1"),
        (["key", "other 0"], "Received: another line 2"),
        (["key 5 6"], "Received: another line 1"),
        (["key", "schlüssel"], "must be of printable ASCII characters.* Received: others in line 2"),
    ],
)
def test_a_wrong_file_of_keys_is_an_error_without_the_keys(lines, message):
    with pytest.raises(ValueError, match=message) as raised:
        Keys(lines)
    assert "key " not in str(raised.value).split("Received")[1]


def test_the_command_line_reads_the_file_of_keys(exports, tmp_path, capsys):
    file = tmp_path / "keys"
    file.write_bytes("key".encode("utf-16"))
    assert command_line.main([str(exports["de-en"]), "--port", "0", "--api-key-file", str(file)]) == 2
    assert "`--api-key-file` must be a file of UTF-8" in capsys.readouterr().err
    file.write_text("key many\n", encoding="utf-8-sig")
    with pytest.raises(ValueError, match="another line 1"):
        command_line._keys(argparse.Namespace(api_key_file=file, requests_per_minute=None))
    file.write_text("key\n", encoding="utf-8-sig")
    command_line._keys(argparse.Namespace(api_key_file=file, requests_per_minute=None)).check("key")
    file.write_text("key many\n")
    folder = str(exports["de-en"])
    assert command_line.main([folder, "--port", "0", "--api-key-file", str(file)]) == 2
    assert "another line 1" in capsys.readouterr().err
    assert command_line.main([folder, "--port", "0", "--api-key-file", str(tmp_path / "none")]) == 2
    assert command_line.main([folder, "--port", "0", "--requests-per-minute", "5"]) == 2
    assert "beside `--api-key-file`" in capsys.readouterr().err
