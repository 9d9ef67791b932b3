/** The entry point for Node: exports in a folder or at a URL, run by onnxruntime-node. */

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { UrlSource } from "./browser.js";
import type { Source } from "./bundle.js";
import { loadFrom, type LoadOptions, type Model, type Pipelines } from "./load.js";
import type { Runtime } from "./onnx.js";

export * from "./index.js";
export { UrlSource } from "./browser.js";

/**
 * Load an export, after verifying its files.
 *
 * @param folder the export's folder, a path or URL, or where its files are.
 * @returns a function from texts to answers, with the methods of the pipeline's class.
 * @throws if a file is not the one that was exported, the tokenizer gives other ids than at export, or the pipeline,
 * tokenizer or precision is not one that this package runs.
 */
export async function load<Name extends keyof Pipelines = any>(
  folder: string | URL | Source,
  options: LoadOptions = {},
): Promise<Model<Name>> {
  return loadFrom(sourceOf(folder), options.runtime ?? ((await import("onnxruntime-node")) as unknown as Runtime), options);
}

function sourceOf(folder: string | URL | Source): Source {
  if (typeof folder !== "string" && !(folder instanceof URL)) return folder;
  const text = `${folder}`;
  if (/^https?:/.test(text)) return new UrlSource(text);
  return new FolderSource(text.startsWith("file:") ? fileURLToPath(text) : text);
}

/** The files of an export in a folder. */
export class FolderSource implements Source {
  constructor(private readonly folder: string) {}

  async read(name: string): Promise<Uint8Array<ArrayBuffer>> {
    return new Uint8Array(await readFile(join(this.folder, name)));
  }
}
