"""The server's page, in Chromium."""

import asyncio
import base64
import itertools
import json
import re
import shutil
import subprocess
import urllib.request

import pytest
from PIL import Image
from served_exports import listening, write_export

from keras_transformer_serving.server import create_app, versions

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, of which there is none in PATH"),
]


@pytest.fixture(scope="module")
def address(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    names = ("classifier", "generator", "tagger", "answers", "images", "copier", "translator")
    app = create_app({name: write_export(small, folder / name, name) for name in names})
    with listening(app) as found:
        yield found


class Page:
    """A page in Chromium, controlled by the DevTools protocol."""

    def __init__(self, socket):
        self._socket, self._numbers = socket, itertools.count(1)
        self.errors = []

    async def do(self, method, **parameters):
        number = next(self._numbers)
        await self._socket.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(await asyncio.wait_for(self._socket.read_message(), 30))
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(message["params"])
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    async def run(self, code):
        found = await self.do("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, code):
        for _ in range(200):
            if value := await self.run(code):
                return value
            await asyncio.sleep(0.05)
        raise AssertionError(f"never: {code}")

    async def screenshot(self, path):
        path.write_bytes(base64.b64decode((await self.do("Page.captureScreenshot"))["data"]))


def browse(address, test, folder, *options):
    from tornado.websocket import websocket_connect

    async def main():
        process = subprocess.Popen(
            [
                CHROMIUM,
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"),
                *("--window-size=900,1000", f"--user-data-dir={folder / 'profile'}", *options, "about:blank"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            for line in process.stderr:
                if found := re.search(r"DevTools listening on ws://([^/]+)/", line):
                    break
            targets = json.loads(urllib.request.urlopen(f"http://{found[1]}/json/list").read())
            url = next(each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page")
            connection = await websocket_connect(url, max_message_size=2**26)
            page = Page(connection)
            for domain in ("Page", "Runtime", "Log"):
                await page.do(f"{domain}.enable")
            await page.do("Page.navigate", url=address)
            await page.until("document.querySelector('#rows textarea') !== null")
            await test(page)
            connection.close()
            while await connection.read_message() is not None:
                pass
            assert page.errors == []
        finally:
            process.kill()
            process.communicate()

    asyncio.run(main())


ANSWERS = "[...document.querySelectorAll('.answer')].map(each => each.innerText)"
FILL = "document.querySelectorAll('#rows textarea')[{}].value = {}"
SEND = "document.querySelector('#send').click()"


async def choose(page, select, value):
    await page.run(
        f"{{const it = document.querySelector('#{select}');"
        f" it.selectedIndex = [...it.options].findIndex(each => each.textContent.startsWith('{value}'));"
        " it.dispatchEvent(new Event('change'))}"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_shows_labels_texts_and_errors(address, tmp_path, scheme):
    async def test(page):
        await page.do(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        await page.run(FILL.format(0, "'hello'"))
        await page.run("document.querySelector('#add').click()")
        await page.run(FILL.format(1, f"'{'x' * 99}'"))
        await page.run(SEND)
        good, invalid = await page.until(f"{ANSWERS}.length === 2 && {ANSWERS}")
        assert {"bad", "fair", "good"} <= set(re.findall(r"\w+", good))
        assert await page.run("document.querySelectorAll('meter').length") == 3
        assert invalid.startswith("`text` must have at most 38 tokens")
        await page.screenshot(tmp_path / "classifier.png")
        dark = await page.run("matchMedia('(prefers-color-scheme: dark)').matches")
        assert dark == (scheme == "dark")

    browse(address, test, tmp_path)


def test_the_page_streams_a_text(address, tmp_path):
    async def test(page):
        await choose(page, "model", "generator")
        await page.run(FILL.format(0, "'abd'"))
        await page.run(SEND)
        (whole,) = await page.until(f"{ANSWERS}.length === 1 && {ANSWERS}")
        assert whole
        await page.run("document.querySelector('#answers').replaceChildren()")
        await page.run("document.querySelector('#stream').checked = true")
        await page.run(SEND)
        await page.until(f"{ANSWERS}[0] === {json.dumps(whole)}")
        await choose(page, "signature", "generate")
        await page.run(FILL.format(0, "'abd'"))
        await page.run("document.querySelector('#row-0-max_new_tokens').value = 2")
        await page.run(SEND)
        (found,) = await page.until(f"{ANSWERS}.length === 1 && {ANSWERS}")
        assert "lengths: 2" in found
        await page.screenshot(tmp_path / "generator.png")

    browse(address, test, tmp_path)


def test_the_page_highlights_the_span_of_an_answer(address, tmp_path):
    async def test(page):
        await choose(page, "model", "answers")
        await page.run(FILL.format(0, "'where?'"))
        await page.run(FILL.format(1, "'🙂 in <the sea>, say'"))
        await page.run(SEND)
        assert await page.until("document.querySelector('mark')?.innerText") == "<the sea>,"
        (found,) = await page.run(ANSWERS)
        assert found.startswith("🙂 in <the sea>, say")
        await page.screenshot(tmp_path / "answers.png")

    browse(address, test, tmp_path)


def test_the_page_shows_the_attributions_of_a_translation(address, tmp_path):
    async def test(page):
        await choose(page, "model", "copier")
        await choose(page, "signature", "attributions")
        await page.run(FILL.format(0, "'abc'"))
        await page.run(SEND)
        await page.until("document.querySelectorAll('td meter').length")
        rows = await page.run(
            "[...document.querySelectorAll('tr')].slice(1).map("
            "row => [...row.querySelectorAll('meter')].map(each => each.value))"
        )
        assert [[round(value, 2) for value in row] for row in rows] == [
            [float(i == j) for j in range(4)] for i in range(4)
        ]
        await page.screenshot(tmp_path / "copier.png")

    browse(address, test, tmp_path)


def test_the_page_names_languages(address, tmp_path):
    async def test(page):
        await choose(page, "model", "translator")
        labels = "[...document.querySelectorAll('#row-0-target_language option')].map(each => each.label)"
        assert await page.run(labels) == ["", "English (en)", "Spanish (es)"]
        codes = ["spa_Latn", "zho_Hant", "srp_Latn", "es_XX", "pt_BR", "xx", "not a code"]
        assert await page.run(f"{json.dumps(codes)}.map(languageName)") == [
            "Spanish (spa_Latn)",
            "Traditional Chinese (zho_Hant)",
            "Serbian (Latin) (srp_Latn)",
            "Spanish (es_XX)",
            "Portuguese (pt_BR)",
            "xx",
            "not a code",
        ]
        await page.run(FILL.format(0, "'ab'"))
        await page.run("document.querySelector('#row-0-target_language').value = 'es'")
        await page.run(SEND)
        assert await page.until(f"{ANSWERS}.length === 1 && {ANSWERS}[0]") == "<es><en>ab"

    browse(address, test, tmp_path)


def test_the_page_begins_with_an_example_and_shows_errors_beside_their_fields(address, tmp_path):
    async def test(page):
        await page.run("models[0].example = { text: 'abc' }; showForm()")
        assert await page.run("document.querySelector('#row-0-text').value") == "abc"
        await choose(page, "model", "generator")
        await choose(page, "signature", "generate")
        error = "document.querySelector('#row-0-{}-error')"
        for name, value, message in (
            ("text", "x" * 99, "`texts` must have at most"),
            ("max_new_tokens", "99", "max_new_tokens` must be in"),
        ):
            await page.run("document.querySelector('#row-0-text').value = 'abd'")
            await page.run(f"document.querySelector('#row-0-{name}').value = '{value}'")
            await page.run(SEND)
            await page.until(f"!{error.format(name)}.hidden")
            assert message in await page.run(f"{error.format(name)}.textContent")
            field = f"document.querySelector('#row-0-{name}')"
            assert await page.run(f"{field}.getAttribute('aria-describedby')") == f"row-0-{name}-error"
            await page.screenshot(tmp_path / f"{name}.png")
        await page.run("document.querySelector('#row-0-max_new_tokens').value = ''")
        await page.run(SEND)
        await page.until(f"{ANSWERS}.length === 1")
        assert await page.run("document.querySelector('[aria-invalid]')") is None

    browse(address, test, tmp_path)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ({}, {}),
        ({"onnx": {"examples": {"texts": ["una casa", "b"]}}}, {"text": "una casa"}),
        ({"onnx": {"examples": {"texts": [[5, 6]]}}}, {}),
        (
            {
                "onnx": {"examples": {"texts": ["b"]}},
                "saved_model/a/1": {
                    "signatures": {"serving_default": {"example": {"question": "q", "k": 3}}}
                },
            },
            {"question": "q"},
        ),
    ],
)
def test_the_example_is_the_first_that_was_compared(reports, expected):
    assert versions._example(reports) == expected


def test_the_page_lists_tagged_words(address, tmp_path):
    async def test(page):
        await choose(page, "model", "tagger")
        await page.run(FILL.format(0, "'my friend Ana ☃'"))
        await page.run(SEND)
        await page.until("document.querySelectorAll('td').length")
        rows = await page.run("[...document.querySelectorAll('tr')].slice(1).map(each => each.innerText)")
        assert [row.split("\t")[:2] for row in rows] == [
            ["my", "word"],
            ["friend", "word"],
            ["Ana", "name"],
            ["☃", "word"],
        ]
        await page.screenshot(tmp_path / "tagger.png")

    browse(address, test, tmp_path)


def test_the_page_classifies_images(address, tmp_path):
    async def test(page):
        await choose(page, "model", "images")
        await page.run("document.querySelector('#add').click()")
        for index, color in enumerate(("white", "black")):
            root = (await page.do("DOM.getDocument"))["root"]["nodeId"]
            file = tmp_path / f"{color}.png"
            Image.new("L", (8, 6), color).save(file)
            selector = f"#row-{index}-pixel_values"
            node = (await page.do("DOM.querySelector", nodeId=root, selector=selector))["nodeId"]
            await page.do("DOM.setFileInputFiles", nodeId=node, files=[str(file)])
        await page.run(SEND)
        bright, dark = await page.until(f"{ANSWERS}.length === 2 && {ANSWERS}")
        assert bright.startswith("bright")
        assert "label: bright" in bright
        assert dark.startswith("dark")
        assert "label: dark" in dark
        await page.screenshot(tmp_path / "images.png")

    browse(address, test, tmp_path)


def test_the_page_uploads_audio_and_says_that_an_output_is_empty(address, tmp_path):
    async def test(page):
        tensor = '{name: "audio", shape: [-1], dtype: "float32", choices: [], required: true}'
        code = f"""(async () => {{
            const box = field({tensor}, "audio"), input = box.querySelector("input"), files = new DataTransfer();
            files.items.add(new File([new Uint8Array([1, 2, 255])], "a.wav"));
            input.files = files.files;
            return JSON.stringify([input.type, await box.read(), answer({{ text: "" }}, {{}}).textContent]);
        }})()"""
        content = base64.b64encode(bytes([1, 2, 255])).decode()
        assert json.loads(await page.run(code)) == ["file", {"b64": content}, "The output is empty."]

    browse(address, test, tmp_path)


def test_the_page_reads_lists_of_strings_and_booleans_and_shows_scores_of_labels(address, tmp_path):
    async def test(page):
        code = """(async () => {
            const make = (name, dtype, shape, rest) => field({ name, dtype, shape, choices: [], ...rest }, name);
            const labels = make("candidate_labels", "string", [-1], { required: true });
            const several = make("multi_label", "bool", [], { required: false, default: true });
            labels.fill(["a", "b"]);
            const shown = answer({ labels: ["a", "b"], scores: [0.25, 0.75], error: "" }, {}).textContent;
            return JSON.stringify([await labels.read(), await several.read(), shown]);
        })()"""
        labels, several, shown = json.loads(await page.run(code))
        assert (labels, several) == (["a", "b"], True)
        assert shown.index("b") < shown.index("0.750") < shown.index("a") < shown.index("0.250")

    browse(address, test, tmp_path)


def test_the_page_has_labels_and_no_external_assets(address, tmp_path):
    async def test(page):
        fields = "[...document.querySelectorAll('input, select, textarea')]"
        assert await page.run(f"{fields}.filter(each => !each.labels.length).length") == 0
        names = await page.run("performance.getEntriesByType('resource').map(each => each.name)")
        assert all(name.startswith((address, "data:")) for name in names)

    browse(address, test, tmp_path)
