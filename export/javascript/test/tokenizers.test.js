/** Ids and texts equal those of Python's tokenizers. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { tokenizerOf } from "keras-transformer-serving";

import { CASES, readCases } from "./cases.js";
import { differencesOfTokenizer } from "./checks.js";

for (const [name, tokenizer] of Object.entries(readCases("tokenizers.json"))) {
  test(`${name}: ids and texts of difficult lines equal Python's`, () => {
    const model = readFileSync(new URL(`tokenizers/${tokenizer.file}`, CASES));
    assert.deepEqual(differencesOfTokenizer(tokenizerOf, model, tokenizer), []);
  });
}

test("a tokenizer that needs TensorFlow is refused by name", () => {
  assert.throws(() => tokenizerOf("MyTokenizer", new Uint8Array()), /Received: "MyTokenizer"/);
});
