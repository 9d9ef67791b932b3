/** Exports in a worker, so that a page stays responsive while they run. */

import type { Config, Progress } from "./bundle.js";
import type { StreamOptions } from "./pipelines/generating.js";
import type { RemoteLoadOptions, Reply, Request } from "./worker.js";

export type { RemoteLoadOptions } from "./worker.js";

/** A request without its id. */
type Unsent = Request extends infer Each ? (Each extends Request ? Omit<Each, "id"> : never) : never;

/** An export in a worker. */
export class RemoteModel {
  private readonly listeners = new Map<number, (reply: Reply) => void>();
  private lastId = 0;
  /** The settings of the pipeline. */
  config!: Config;
  /** The reason why the export cannot stream: "" if it can, undefined for a pipeline that does not generate. */
  cannotStream: string | undefined;

  constructor(private readonly worker: Worker) {
    worker.addEventListener("message", ({ data }: MessageEvent<Reply>) => this.listeners.get(data.id)?.(data));
    worker.addEventListener("error", ({ message }) => {
      for (const [id, listen] of this.listeners) listen({ id, type: "error", error: new Error(message) });
    });
  }

  /** Load an export; `loadInWorker` does. */
  async load(url: string, options: RemoteLoadOptions, onProgress: (progress: Progress) => void): Promise<void> {
    const loaded = await this.request({ type: "load", url, options }, (reply) => {
      if (reply.type === "progress") onProgress(reply);
    });
    Object.assign(this, loaded);
  }

  /** Call the pipeline, with the arguments of its class. */
  call(...args: unknown[]): Promise<any> {
    return this.callMethod("call", ...args);
  }

  /** Call a method of the pipeline's class. */
  callMethod(method: string, ...args: unknown[]): Promise<any> {
    return this.request({ type: "call", method, args });
  }

  /** Yield the text of an output while it is generated, in pieces. */
  async *stream(text: string, options: StreamOptions = {}): AsyncGenerator<string> {
    const pieces: string[] = [];
    let wake = (): void => {};
    let done = false;
    const finished = this.request({ type: "stream", args: [text, options] }, (reply) => {
      if (reply.type === "piece") pieces.push(reply.text);
      wake();
    }).finally(() => {
      done = true;
      wake();
    });
    finished.catch(() => {}); // it is thrown below, after the pieces
    while (!done || pieces.length > 0) {
      if (pieces.length > 0) yield pieces.shift()!;
      else await new Promise<void>((resolve) => (wake = resolve));
    }
    await finished;
  }

  /** End the worker. */
  terminate(): void {
    this.worker.terminate();
  }

  private request(request: Unsent, listen: (reply: Reply) => void = () => {}): Promise<any> {
    const id = ++this.lastId;
    return new Promise((resolve, reject) => {
      this.listeners.set(id, (reply) => {
        listen(reply);
        if (reply.type === "result") resolve(reply.value);
        if (reply.type === "error") reject(reply.error);
        if (reply.type === "result" || reply.type === "error") this.listeners.delete(id);
      });
      this.worker.postMessage({ id, ...request });
    });
  }
}

/**
 * Load an export in a worker.
 *
 * @param url the URL of the export's folder.
 * @param options those of `load`, and `runtimeUrl`, the URL of ONNX Runtime's module for pages without a bundler.
 */
export async function loadInWorker(
  url: string | URL,
  { onProgress = () => {}, ...options }: RemoteLoadOptions & { onProgress?: (progress: Progress) => void } = {},
): Promise<RemoteModel> {
  const model = new RemoteModel(new Worker(new URL("./worker.js", import.meta.url), { type: "module" }));
  try {
    await model.load(new URL(url, globalThis.document?.baseURI).href, options, onProgress);
  } catch (error) {
    model.terminate();
    throw error;
  }
  return model;
}
