/** A module worker that loads an export and answers the calls of `loadInWorker`. */

import { load, type LoadOptions, type Runtime } from "./browser.js";
import type { Generating } from "./pipelines/generating.js";

/** A request of the page; `id` is that of its messages. */
export type Request = { id: number } & (
  | { type: "load"; url: string; options: RemoteLoadOptions }
  | { type: "call"; method: string; args: unknown[] }
  | { type: "stream"; args: unknown[] }
);

/** A message of the worker; "result" and "error" are the last of a request. */
export type Reply = { id: number } & (
  | { type: "progress"; loaded: number; total: number }
  | { type: "piece"; text: string }
  | { type: "result"; value: unknown }
  | { type: "error"; error: Error }
);

/** The options of `load` that a worker can receive, and the URL of ONNX Runtime where no bundler finds the package. */
export interface RemoteLoadOptions extends Pick<LoadOptions, "precision" | "graphs" | "signatureKey" | "session"> {
  runtimeUrl?: string;
}

let model: any;

async function answer(request: Request, send: (reply: Record<string, unknown>) => void): Promise<unknown> {
  if (request.type === "load") {
    const { runtimeUrl, ...options } = request.options;
    const runtime = runtimeUrl === undefined ? {} : { runtime: (await import(runtimeUrl)) as Runtime };
    const onProgress: LoadOptions["onProgress"] = (progress) => send({ type: "progress", ...progress });
    model = await load(request.url, { ...options, ...runtime, onProgress });
    return { config: model.config, cannotStream: model.cannotStream };
  }
  if (request.type === "call") return model[request.method](...request.args);
  const args = request.args as Parameters<Generating["stream"]>;
  for await (const text of (model as Generating).stream(...args)) send({ type: "piece", text });
  return undefined;
}

// One request at a time: a session runs one call at a time, too.
let last: Promise<unknown> = Promise.resolve();

self.addEventListener("message", ({ data }: MessageEvent<Request>) => {
  const send = (reply: Record<string, unknown>): void => self.postMessage({ id: data.id, ...reply });
  last = last
    .then(() => answer(data, send))
    .then((value) => send({ type: "result", value }))
    .catch((error: unknown) => send({ type: "error", error }));
});
