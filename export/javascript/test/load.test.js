/** Exports are verified when they are loaded, and what is lacking is refused by name. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { load } from "keras-transformer-serving";

import { CASES } from "./cases.js";

const FOLDER = fileURLToPath(new URL("generation/", CASES));
const TEXTS = JSON.parse(readFileSync(`${FOLDER}parity.json`)).onnx.examples.texts.slice(0, 3);

/** A source of an export in which the contents of some files are changed. */
function changed(contents) {
  return {
    async read(name) {
      if (contents[name] === null) throw new Error(`${name} is missing`);
      return new Uint8Array(Buffer.from(contents[name] ?? readFileSync(`${FOLDER}${name}`)));
    },
  };
}

/** The files of an export with these settings and no graph, and its manifest. */
function exportOf(config) {
  const sha256 = (text) => createHash("sha256").update(text).digest("hex");
  const contents = { "config.json": JSON.stringify(config), "parity.json": "{}" };
  const entries = Object.entries(contents).map(([name, text]) => [name, { sha256: sha256(text), size: text.length }]);
  const signed = { files: Object.fromEntries(entries), format: 1, versions: {} };
  return { ...contents, "manifest.json": JSON.stringify({ ...signed, digest: sha256(JSON.stringify(signed)) }) };
}

const GRAPH = "onnx/generate_greedy.onnx";
const flipped = readFileSync(`${FOLDER}${GRAPH}`);
flipped[flipped.length >> 1] ^= 1;
const manifest = readFileSync(`${FOLDER}manifest.json`, "utf8");

for (const [what, contents, message] of [
  ["a changed byte of a graph", { [GRAPH]: flipped }, /generate_greedy\.onnx` is damaged: its sha256 must be/],
  ["a truncated graph", { [GRAPH]: flipped.subarray(1) }, /generate_greedy\.onnx` is damaged: it must have \d+ bytes/],
  ["an edited manifest", { "manifest.json": manifest.replace('"size": ', '"size": 1') }, /it was edited or damaged/],
  ["another format", { "manifest.json": manifest.replace('"format": 1', '"format": 2') }, /must be of format 1/],
  ["a manifest that is no JSON", { "manifest.json": "<html>" }, /`manifest\.json` must be JSON. Received: "<html>/],
  ["an export of speech", exportOf({ pipeline: "SpeechToText" }), /Received: an export of "SpeechToText"/],
  ["an export of entities of tokens", exportOf({ pipeline: "TokenClassification", aggregation: "simple" }), /"simple"/],
  ["an export without graphs", exportOf({ pipeline: "TextToText" }), /must have ONNX graphs/],
]) {
  test(`${what} is an error`, async () => {
    await assert.rejects(load(changed(contents)), message);
  });
}

test("a signature that is required must be there", async () => {
  const signatureKey = new Uint8Array([1, 2, 3]);
  await assert.rejects(load(FOLDER, { signatureKey }), /Received: a manifest without a signature/);
});

test("a signed manifest is accepted with its key only", async () => {
  const { digest, ...signed } = JSON.parse(exportOf({ pipeline: "Other" })["manifest.json"]);
  const { createHmac } = await import("node:crypto");
  const signature = createHmac("sha256", "key").update(JSON.stringify(signed)).digest("hex");
  const contents = { ...exportOf({ pipeline: "Other" }), "manifest.json": JSON.stringify({ ...signed, digest, signature }) };
  const loadWith = (key) => load(changed(contents), { signatureKey: new TextEncoder().encode(key) });
  await assert.rejects(loadWith("key"), /Received: an export of "Other"/);
  await assert.rejects(loadWith("other"), /Received: another signature/);
});

test("an export at a URL has the answers of its folder, and progress ends with all bytes", async () => {
  const server = createServer((request, response) => response.end(readFileSync(`${FOLDER}${request.url.slice(3)}`)));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const progress = [];
  const onProgress = (each) => progress.push(each);
  const remote = await load(`http://127.0.0.1:${server.address().port}/e`, { onProgress });
  server.close();
  server.closeAllConnections();
  assert.deepEqual(await remote(TEXTS), await (await load(FOLDER))(TEXTS));
  assert.equal(progress.at(-1).loaded, progress.at(-1).total);
  assert.ok(progress.every(({ loaded, total }) => loaded <= total && total === progress[0].total));
});

test("a precision that the export lacks is refused by name", async () => {
  await assert.rejects(load(FOLDER, { precision: "int8" }), /Received: precision="int8"$/);
});

test("a precision that was left out at export is refused with the reason", async () => {
  const reason = "mean cosine is 0.84 and must be at least 0.99";
  const canonical = (value) =>
    value !== null && typeof value === "object"
      ? `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(",")}}`
      : JSON.stringify(value);
  const { digest: _, ...content } = { ...JSON.parse(manifest), left_out: { int8: reason } };
  const digest = createHash("sha256").update(canonical(content)).digest("hex");
  const source = changed({ "manifest.json": JSON.stringify({ ...content, digest }) });
  await assert.rejects(load(source, { precision: "int8" }), new RegExp(`"int8", which was left out at export: ${reason}`));
  await assert.rejects(load(source, { precision: "float16" }), /Received: precision="float16"$/);
});

for (const [options, message] of [
  [{ maxNewTokens: 0 }, /`maxNewTokens` must be integers in \[1, 12\]/],
  [{ maxNewTokens: [1, 2] }, /one for each of 3 texts/],
  [{ temperature: 1 }, /`temperature` needs an export that samples/],
  [{ longTexts: "split" }, /`longTexts` must be undefined for a decoder-only model/],
  [{ sourceLanguage: "en" }, /the model has no languages/],
  [{ batchSize: 0 }, /`batchSize` must be a positive integer/],
  [{ errors: "ignore" }, /`errors` must be "raise" or "return"/],
]) {
  test(`${JSON.stringify(options)} is an error`, async () => {
    const model = await load(FOLDER);
    await assert.rejects(model(TEXTS, options), message);
  });
}

test("batches have the answers of single texts", async () => {
  const model = await load(FOLDER);
  const batched = await model(TEXTS, { batchSize: 2 });
  for (const [row, text] of TEXTS.entries()) assert.equal(await model(text), batched[row]);
});

test("conversations are refused by name", async () => {
  const model = await load(FOLDER);
  await assert.rejects(model([[{ role: "user", content: "a" }]]), /`texts` must be strings/);
});
