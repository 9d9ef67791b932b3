/** The entry point for browsers: exports at a URL, run by onnxruntime-web. */

import type { Source } from "./bundle.js";
import { loadFrom, type LoadOptions, type Model, type Pipelines } from "./load.js";
import type { Runtime } from "./onnx.js";
import { concatenated } from "./text/tokenizer.js";

export * from "./index.js";
export { RemoteModel, loadInWorker, type RemoteLoadOptions } from "./remote.js";

/**
 * Load an export, after verifying its files.
 *
 * @param url the URL of the export's folder, or where its files are.
 * @returns a function from texts to answers, with the methods of the pipeline's class.
 * @throws if a file is not the one that was exported, the tokenizer gives other ids than at export, or the pipeline,
 * tokenizer or precision is not one that this package runs.
 */
export async function load<Name extends keyof Pipelines = any>(
  url: string | URL | Source,
  options: LoadOptions = {},
): Promise<Model<Name>> {
  const source = typeof url === "string" || url instanceof URL ? new UrlSource(url) : url;
  return loadFrom(source, options.runtime ?? ((await import("onnxruntime-web")) as unknown as Runtime), options);
}

/** The files of an export at a URL. */
export class UrlSource implements Source {
  private readonly base: URL;

  constructor(url: string | URL) {
    this.base = new URL(`${url}`, globalThis.document?.baseURI);
    if (!this.base.pathname.endsWith("/")) this.base.pathname += "/";
  }

  async read(name: string, onBytes: (loaded: number) => void = () => {}): Promise<Uint8Array<ArrayBuffer>> {
    const url = new URL(name.split("/").map(encodeURIComponent).join("/"), this.base);
    const response = await fetch(url);
    if (!response.ok || !response.body) {
      throw new Error(`\`url\` must be that of an export, with ${name}. Received: ${response.status} of ${url}`);
    }
    const parts: Uint8Array[] = [];
    let loaded = 0;
    const reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      parts.push(part.value);
      loaded += part.value.length;
      onBytes(loaded);
    }
    return concatenated(parts);
  }
}
