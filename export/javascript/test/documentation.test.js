/** The code of the guide runs. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, mkdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { CASES } from "./cases.js";
import { codeBlocks } from "./documentation.js";

for (const [number, code] of codeBlocks("js").entries()) {
  test(`block ${number + 1} of the guide runs`, () => {
    // Inside the package, which can then import itself by its name.
    const folder = mkdtempSync(fileURLToPath(new URL("documentation-", CASES)));
    try {
      mkdirSync(join(folder, "export"));
      symlinkSync(fileURLToPath(new URL("translation/", CASES)), join(folder, "export/es-en"));
      writeFileSync(join(folder, "block.mjs"), code);
      const { status, stdout, stderr } = spawnSync("node", ["block.mjs"], { cwd: folder, encoding: "utf8" });
      assert.equal(status, 0, stderr);
      assert.ok(stdout.length > 0);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
}
