/** The cases that `write_cases.py` wrote. */

import { readFileSync } from "node:fs";

export const CASES = new URL("cases/", import.meta.url);

export function readCases(name) {
  return JSON.parse(readFileSync(new URL(name, CASES), "utf8"));
}
