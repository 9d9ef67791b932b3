/** ONNX Runtime's sessions of the graphs of an export, and its tensors. */

import type { InferenceSession, Tensor } from "onnxruntime-common";

import type { Bundle } from "./bundle.js";
import { shown } from "./errors.js";
import { asBytes, asText, bytesField, fields, message } from "./protobuf.js";
import { concatenated } from "./text/tokenizer.js";

/** ONNX Runtime: the module `onnxruntime-node` or `onnxruntime-web`. */
export type Runtime = typeof import("onnxruntime-common");
export type Precision = "float32" | "float16" | "int8" | "int4";
export type Feeds = Record<string, Tensor>;

/** The tensors of a graph, an entry of "signatures" in `parity.json`. */
interface Signature {
  defaults: Record<string, unknown[]>;
}

const ONNX = "onnx";
// Fields of ModelProto, of GraphProto and of TensorProto.
const GRAPH = 7;
const INITIALIZER = 5;
const TENSOR_NAME = 8;

/** The sessions of an export's graphs, each of which is created when it is first used. */
export class Sessions {
  private readonly sessions = new Map<string, Promise<InferenceSession>>();

  constructor(
    private readonly bundle: Bundle,
    readonly runtime: Runtime,
    private readonly signatures: Record<string, Signature>,
    private readonly precision: Precision,
    private readonly options: InferenceSession.SessionOptions,
  ) {
    const known = ["float32", "float16", "int8", "int4"].includes(precision);
    if (!known || !(precision === "float32" || Object.keys(signatures).some((name) => bundle.has(this.file(name))))) {
      const reason = bundle.whyLeftOut(precision);
      throw new Error(
        `\`precision\` must be one of the export's. Received: precision=${shown(precision)}` +
          (reason === undefined ? "" : `, which was left out at export: ${reason}`),
      );
    }
  }

  /** Return whether the export has a graph. */
  has(name: string): boolean {
    return this.bundle.has(this.file(name));
  }

  /** Return the names of the files of a graph. */
  files(name: string): string[] {
    const file = this.file(name);
    return [file, `${file}_data`].filter((each) => this.bundle.has(each));
  }

  /** Return the session of a graph. */
  get(name: string): Promise<InferenceSession> {
    let session = this.sessions.get(name);
    if (!session) {
      session = this.create(name);
      this.sessions.set(name, session);
      session.catch(() => this.sessions.delete(name)); // so that it is tried again
    }
    return session;
  }

  /** The default values of a graph's inputs, by name. */
  defaults(name: string): Record<string, unknown[]> {
    return this.signatures[name]?.defaults ?? {};
  }

  /** Run a graph. */
  async run(name: string, feeds: Feeds): Promise<Feeds> {
    return { ...(await (await this.get(name)).run(feeds)) } as Feeds;
  }

  /** Return a tensor of rows of integers (B, …). */
  integers(values: readonly number[], dims: readonly number[]): Tensor {
    return new this.runtime.Tensor("int64", BigInt64Array.from(values, BigInt), dims);
  }

  /** Return a tensor of float32. */
  floats(values: Iterable<number>, dims: readonly number[]): Tensor {
    return new this.runtime.Tensor("float32", Float32Array.from(values), dims);
  }

  /** Release the memory of all sessions, which are created again when they are needed. */
  async release(): Promise<void> {
    const created = [...this.sessions.values()];
    this.sessions.clear();
    await Promise.all(created.map(async (session) => (await session).release()));
  }

  private file(name: string): string {
    if (this.precision !== "float32") return `${ONNX}/${this.precision}/${name}.onnx`;
    const optimum = `${ONNX}/optimum/${name}.onnx`;
    return this.bundle.has(optimum) ? optimum : `${ONNX}/${name}.onnx`;
  }

  private async create(name: string): Promise<InferenceSession> {
    const [file, weights] = this.files(name);
    if (file === undefined) throw new Error(`\`precision\` must be one that ${name}.onnx has. Received: ${this.precision}`);
    const model = withInputs(await this.bundle.read(file), new Set(Object.keys(this.defaults(name))));
    // Otherwise the threads wait busily for some 40 ms after each request.
    const extra = { session: { force_spinning_stop: "1" } };
    const options: InferenceSession.SessionOptions = { logSeverityLevel: 3, extra, ...this.options };
    if (weights !== undefined) {
      options.externalData = [{ path: weights.split("/").at(-1)!, data: await this.bundle.read(weights) }];
    }
    return this.runtime.InferenceSession.create(model, options);
  }
}

/**
 * Return a serialised `onnx.ModelProto` in which initializers of the given names are inputs only.
 *
 * An input with a default is an initializer that may be replaced, which ONNX Runtime's API for JavaScript cannot do.
 */
export function withInputs(model: Uint8Array, names: ReadonlySet<string>): Uint8Array {
  if (names.size === 0) return model;
  const parts: Uint8Array[] = [];
  for (const { number, value, start, end } of fields(model)) {
    parts.push(...(number === GRAPH ? bytesField(GRAPH, kept(asBytes(value), names)) : [model.subarray(start, end)]));
  }
  return concatenated(parts);
}

/** Return the fields of a graph without the initializers of the given names. */
function kept(graph: Uint8Array, names: ReadonlySet<string>): Uint8Array[] {
  return [...fields(graph)]
    .filter(({ number, value }) => {
      return number !== INITIALIZER || !names.has(asText(message(asBytes(value)).get(TENSOR_NAME)));
    })
    .map(({ start, end }) => graph.subarray(start, end));
}

/** Return the values of a tensor of floats, converted from float16 if need be. */
export function floatValues(tensor: Tensor): Float32Array {
  if (tensor.data instanceof Float32Array) return tensor.data;
  const { buffer, byteOffset, byteLength } = tensor.data as Uint16Array;
  return Float32Array.from(new Uint16Array(buffer, byteOffset, byteLength / 2), fromHalf);
}

/** Return the values of a tensor of integers. */
export function integerValues(tensor: Tensor): number[] {
  return Array.from(tensor.data as BigInt64Array, Number);
}

function fromHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = (bits & 0x3ff) / 1024;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  return sign * (exponent === 0 ? fraction * 2 ** -14 : (1 + fraction) * 2 ** (exponent - 15));
}
