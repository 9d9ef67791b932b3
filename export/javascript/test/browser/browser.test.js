/** In headless Chromium, ids, answers and errors equal those of Python, and the page runs an export in its worker. */

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import { demoServer } from "../../demo/serve.js";
import { CASES, readCases } from "../cases.js";
import { codeBlocks } from "../documentation.js";
import { Chromium, findChromium } from "./chromium.js";

const path = findChromium();
assert.ok(path, "Chromium must be installed, or CHROMIUM be its path");
const TEST = fileURLToPath(new URL("..", import.meta.url));
const TEMPORARY = mkdtempSync(join(tmpdir(), "pages-"));
const server = demoServer({
  "/test/": TEST,
  "/export/": fileURLToPath(new URL("translation/", CASES)),
  "/pages/": TEMPORARY,
});
let browser;
let url;

before(async () => {
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${server.address().port}/`;
  browser = await Chromium.start(path);
  await browser.open(url);
});

after(async () => {
  await browser?.close();
  server.close();
  rmSync(TEMPORARY, { recursive: true });
});

/** Return the value of an async function in the page, given arguments of JSON. */
function inPage(run, ...args) {
  return browser.evaluate(`(${run})(...${JSON.stringify(args)})`);
}

for (const name of Object.keys(readCases("tokenizers.json"))) {
  test(`${name}: ids and texts of difficult lines equal Python's`, async () => {
    const found = await inPage(async (name) => {
      const [{ tokenizerOf }, checks] = await Promise.all([import("/dist/browser.js"), import("/test/checks.js")]);
      const tokenizer = (await (await fetch("/test/cases/tokenizers.json")).json())[name];
      const model = await (await fetch(`/test/cases/tokenizers/${tokenizer.file}`)).arrayBuffer();
      return checks.differencesOfTokenizer(tokenizerOf, new Uint8Array(model), tokenizer);
    }, name);
    assert.deepEqual(found, []);
  });
}

for (const name of Object.keys(readCases("exports.json"))) {
  test(`${name}: answers and errors equal Python's`, async () => {
    const found = await inPage(async (name) => {
      const [{ load }, checks, runtime] = await Promise.all([
        import("/dist/browser.js"),
        import("/test/checks.js"),
        import("/runtime/ort.wasm.bundle.min.mjs"),
      ]);
      const folder = `/test/cases/${name}/`;
      const read = async (path) => (await fetch(path)).json();
      const calls = (await read("/test/cases/exports.json"))[name];
      const parity = await read(`${folder}parity.json`);
      const loadAs = (precision) => load(folder, { runtime, precision });
      const differences = await checks.differencesOfExport(loadAs, calls);
      const model = await loadAs("float32");
      if ("examples" in parity.onnx) differences.push(...(await checks.differencesOfParity(model, parity.onnx)));
      await model.release();
      return differences;
    }, name);
    assert.deepEqual(found, []);
  });
}

test("the page loads an export in a worker with progress, and streams the pipeline's output", async () => {
  const { texts, answers } = JSON.parse(readFileSync(new URL("translation/parity.json", CASES))).onnx.examples;
  const row = answers.reduce((best, answer, index) => (answer.length > answers[best].length ? index : best), 0);
  await browser.open(url);
  const progress = await inPage(async () => {
    const values = [];
    const bar = document.getElementById("progress");
    new MutationObserver(() => values.push(bar.value)).observe(bar, { attributes: true });
    document.getElementById("load").click();
    await new Promise((resolve) => setTimeout(resolve, 50));
    while (document.getElementById("load").disabled) await new Promise((resolve) => setTimeout(resolve, 50));
    return values;
  });
  assert.equal(await browser.evaluate("document.getElementById('status').textContent"), "TextToText, ready");
  assert.ok(progress.some((value) => value > 0) && Math.max(...progress) === 1, `progress ${progress}`);
  const pieces = await inPage(async (text) => {
    const values = [];
    const answer = document.getElementById("answer");
    const options = { characterData: true, childList: true, subtree: true };
    new MutationObserver(() => values.push(answer.textContent)).observe(answer, options);
    document.querySelector("textarea.text").value = text;
    document.getElementById("send").click();
    while (!document.getElementById("time").textContent) await new Promise((resolve) => setTimeout(resolve, 50));
    return values;
  }, texts[row]);
  assert.equal(pieces.at(-1), answers[row]);
  const partial = new Set(pieces.filter((piece) => piece && piece !== answers[row] && answers[row].startsWith(piece)));
  assert.ok(partial.size >= 2, `pieces ${JSON.stringify(pieces)}`);
});

test("the page shows the error of an export that is not there", async () => {
  await browser.open(url);
  await inPage(() => {
    document.getElementById("url").value = "missing/";
    document.getElementById("load").click();
  });
  await browser.until("document.getElementById('status').className === 'error'");
  assert.match(await browser.evaluate("document.getElementById('status').textContent"), /manifest\.json/);
});

for (const [number, code] of codeBlocks("html").entries()) {
  test(`page ${number + 1} of the guide runs`, async () => {
    writeFileSync(join(TEMPORARY, `${number}.html`), `<base href="/">${code}`);
    await browser.open(`${url}pages/${number}.html`);
    await browser.until("document.getElementById('output')?.dataset.done === 'true'");
    assert.notEqual(await browser.evaluate("document.getElementById('output').textContent"), "");
  });
}
