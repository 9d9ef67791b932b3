/** Answers, errors and ids equal those of Python's pipelines. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { load } from "keras-transformer-serving";

import { CASES, readCases } from "./cases.js";
import { differencesOfExport, differencesOfParity } from "./checks.js";

for (const [name, calls] of Object.entries(readCases("exports.json"))) {
  test(`${name}: answers and errors equal Python's`, async () => {
    const folder = new URL(`${name}/`, CASES);
    const loadAs = (precision) => load(fileURLToPath(folder), { precision });
    assert.deepEqual(await differencesOfExport(loadAs, calls), []);
    const model = await loadAs("float32");
    const parity = JSON.parse(readFileSync(new URL("parity.json", folder)));
    if ("examples" in parity.onnx) assert.deepEqual(await differencesOfParity(model, parity.onnx), []);
    await model.release();
  });
}
