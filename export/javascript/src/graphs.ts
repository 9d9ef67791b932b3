/** Generation by the ONNX graphs of an export: token ids in, token ids out. */

import type { Tensor } from "onnxruntime-common";

import type { Config } from "./bundle.js";
import { range, shown } from "./errors.js";
import { floatValues, integerValues, type Feeds, type Sessions } from "./onnx.js";

const ENCODER = "encoder_model";
const DECODER = "decoder_model_merged";
const MODEL = "model"; // a decoder-only model
const TEMPERATURES: [number, number] = [1e-20, 1e20];

/** The number of new tokens and the temperature of sampling of each row, and the first tokens of its output. */
export interface RowOptions {
  maxNewTokens?: readonly number[];
  minNewTokens?: readonly number[];
  temperature?: readonly number[];
}

/** The first tokens of a row's output, in a model of several languages. */
export interface TargetInputs {
  prefixIds?: readonly number[];
  startId?: number;
}

/** The N hypotheses of a row. */
export interface Hypotheses {
  ids: number[][];
  lengths: number[];
  scores: number[];
}

/** The graphs of a pipeline that generates. */
export class Graphs {
  readonly padId: number | null;
  readonly startId: number | null;
  readonly endId: number;
  readonly maxNewTokens: number;
  readonly maxSourceTokens: number;
  readonly vocabularySize: number;
  readonly numReturn: number;
  private readonly sampler: NonNullable<Config["generation"]>;
  private readonly loop: string;

  constructor(
    readonly sessions: Sessions,
    config: Config,
  ) {
    this.padId = config.pad_id;
    this.startId = config.start_id ?? null; // null for a decoder-only model
    this.endId = config.end_id;
    this.maxNewTokens = config.max_new_tokens;
    this.maxSourceTokens = config.max_source_tokens;
    this.vocabularySize = config.vocabulary_size;
    this.sampler = config.generation!;
    this.numReturn = this.sampler.num_return ?? 1;
    this.loop = `generate_${this.sampler.sampler}`;
  }

  /** The graphs of the loop, and of single steps. */
  get names(): { loop: string[]; steps: string[] } {
    return { loop: [this.loop], steps: this.startId === null ? [MODEL] : [ENCODER, DECODER] };
  }

  /** The id that pads rows. */
  get paddingValue(): number {
    return this.padId ?? this.endId;
  }

  /** Throw an error unless the options of rows are in their ranges, and the sampler has them. */
  checkOptions(options: RowOptions): void {
    this.checkRange("maxNewTokens", options.maxNewTokens, 1, this.maxNewTokens);
    this.checkRange("minNewTokens", options.minNewTokens, 0, this.maxNewTokens);
    if (options.temperature && this.sampler.sampler !== "sample") {
      throw new Error(`\`temperature\` needs an export that samples. Received: temperature=${shown(options.temperature)}`);
    }
    this.checkRange("temperature", options.temperature, ...TEMPERATURES, false);
  }

  /**
   * Generate with the graph of the generation loop.
   *
   * @param rows the ids of B ≥ 1 rows.
   * @param indices the index of each row, on which the noise of sampling depends.
   */
  async generate(
    rows: readonly (readonly number[])[],
    indices: readonly number[],
    options: RowOptions = {},
    targets: readonly TargetInputs[] = [],
  ): Promise<Hypotheses[]> {
    const { sessions, loop } = this;
    const size = rows.length;
    const [ids, mask] = this.padded(rows);
    const feeds: Feeds = this.padId === null ? { input_ids: ids, attention_mask: mask } : { input_ids: ids };
    if (this.sampler.sampler === "sample") {
      const noise = uniformNoise(this.seed(), indices, this.numReturn, this.maxNewTokens);
      feeds.noise = sessions.floats(noise, [size, this.numReturn, this.maxNewTokens]);
    }
    const starts = targets.flatMap(({ startId }) => (startId === undefined ? [] : [startId]));
    const prefixes = targets.flatMap(({ prefixIds }) => (prefixIds === undefined ? [] : [prefixIds]));
    const given: Record<string, [readonly number[], number[]] | undefined> = {
      max_new_tokens: options.maxNewTokens && [options.maxNewTokens, [size]],
      min_new_tokens: options.minNewTokens && [options.minNewTokens, [size]],
      temperature: options.temperature && [options.temperature, [size]],
      prefix_ids: prefixes.length > 0 ? [prefixes.flat(), [size, prefixes[0].length]] : undefined,
      start_ids: starts.length > 0 ? [starts, [size]] : undefined,
    };
    for (const [name, value] of Object.entries(sessions.defaults(loop))) {
      const [numbers, dims] = given[name] ?? withDims(value);
      feeds[name] = name === "temperature" ? sessions.floats(numbers, dims) : sessions.integers(numbers, dims);
    }
    const outputs = await sessions.run(loop, feeds);
    const found = integerValues(outputs.ids);
    const lengths = integerValues(outputs.lengths);
    const scores = Array.from(floatValues(outputs.scores));
    const length = found.length / lengths.length;
    return range(size).map((row) => {
      const each = range(this.numReturn).map((hypothesis) => row * this.numReturn + hypothesis);
      return {
        ids: each.map((place) => found.slice(place * length, (place + 1) * length)),
        lengths: each.map((place) => lengths[place]),
        scores: each.map((place) => scores[place]),
      };
    });
  }

  /**
   * Yield the ids of a row while they are generated greedily, with the graphs of a single step.
   *
   * The sampler and the constraints of the export do not apply.
   */
  async *steps(ids: readonly number[], target: TargetInputs = {}, limit = this.maxNewTokens): AsyncGenerator<number> {
    if (ids.length === 0) return;
    const step = this.startId === null ? this.prompted(ids) : await this.encoded(ids, target);
    const never = [this.padId, this.startId].filter((id) => id !== null && id !== this.endId);
    let token: number | undefined;
    for (let count = 0; count < limit && token !== this.endId; count += 1) {
      const logits = await step(token);
      let best = -1;
      for (let id = 0; id < logits.length; id += 1) {
        if ((best < 0 || logits[id] > logits[best]) && !never.includes(id)) best = id;
      }
      token = best;
      yield token;
    }
  }

  private async encoded(
    ids: readonly number[],
    { prefixIds = [], startId = this.startId! }: TargetInputs,
  ): Promise<(token: number | undefined) => Promise<Float32Array>> {
    const [source, mask] = this.padded([ids]);
    const memory = await this.sessions.run(ENCODER, { input_ids: source, attention_mask: mask });
    const constants: Feeds = { encoder_hidden_states: memory.last_hidden_state, encoder_attention_mask: mask };
    let cache = await this.emptyCache(DECODER);
    const first = [startId, ...prefixIds];
    return async (token) => {
      const input = token === undefined ? first : [token];
      const outputs = await this.sessions.run(DECODER, {
        input_ids: this.sessions.integers(input, [1, input.length]),
        ...constants,
        ...cache,
      });
      cache = asPast(outputs);
      return lastRow(outputs.logits);
    };
  }

  private prompted(ids: readonly number[]): (token: number | undefined) => Promise<Float32Array> {
    const { sessions } = this;
    let cache: Feeds | undefined;
    let seen = 0;
    return async (token) => {
      const input = token === undefined ? ids : [token];
      const positions = range(input.length).map((place) => seen + place);
      seen += input.length;
      const outputs = await sessions.run(MODEL, {
        input_ids: sessions.integers(input, [1, input.length]),
        attention_mask: sessions.integers(Array<number>(seen).fill(1), [1, seen]),
        position_ids: sessions.integers(positions, [1, input.length]),
        ...(cache ?? (await this.emptyCache(MODEL))),
      });
      cache = asPast(outputs);
      return lastRow(outputs.logits);
    };
  }

  private async emptyCache(name: string): Promise<Feeds> {
    const session = await this.sessions.get(name);
    const cache: Feeds = {};
    for (const entry of session.inputMetadata) {
      if (!entry.isTensor || !entry.name.startsWith("past_key_values")) continue;
      const dims = [1, entry.shape[1] as number, 0, entry.shape[3] as number];
      const { Tensor } = this.sessions.runtime;
      cache[entry.name] =
        entry.type === "float16" ? new Tensor("float16", new Uint16Array(), dims) : this.sessions.floats([], dims);
    }
    return cache;
  }

  /** Return padded ids and their mask (0 for padding), both (B, S), S at least 1. */
  private padded(rows: readonly (readonly number[])[]): [Tensor, Tensor] {
    const length = Math.max(1, ...rows.map((row) => row.length));
    const places = rows.flatMap((row) => range(length).map((place) => row[place]));
    const dims = [rows.length, length];
    return [
      this.sessions.integers(places.map((id) => id ?? this.paddingValue), dims),
      this.sessions.integers(places.map((id) => (id === undefined ? 0 : 1)), dims),
    ];
  }

  private seed(): number {
    return this.sampler.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
  }

  private checkRange(name: string, values: readonly number[] = [], low: number, high: number, integers = true): void {
    const wrong = values.find((value) => !(value >= low && value <= high) || (integers && !Number.isInteger(value)));
    if (wrong !== undefined) {
      const kind = integers ? "integers " : "";
      throw new Error(`\`${name}\` must be ${kind}in [${low}, ${high}]. Received: ${name}=${shown(values)}`);
    }
  }
}

/** Return the numbers of nested lists, and the sizes of their axes. */
function withDims(value: unknown): [number[], number[]] {
  if (!Array.isArray(value)) return [[value as number], []];
  const inner: [number[], number[]][] = value.map(withDims);
  return [inner.flatMap(([numbers]) => numbers), [value.length, ...(inner[0]?.[1] ?? [])]];
}

function lastRow(logits: Tensor): Float32Array {
  return floatValues(logits).slice(-logits.dims.at(-1)!);
}

/** Return the outputs of a step that are inputs of the next. */
function asPast(outputs: Feeds): Feeds {
  const present = Object.entries(outputs).filter(([name]) => name.startsWith("present"));
  return Object.fromEntries(present.map(([name, value]) => [name.replace("present", "past_key_values"), value]));
}

/**
 * Return uniform numbers in (0, 1) that depend only on (seed, row, hypothesis, step), in this order of axes.
 *
 * A counter-based hash: bit for bit the noise of `keras_transformer.generation`.
 */
export function uniformNoise(seed: number, rows: readonly number[], hypotheses: number, steps: number): Float32Array {
  const golden = 0x9e3779b1;
  const mixed = (state: number, value: number): number => mix((state + Math.imul(value, golden)) | 0);
  const start = mix((seed + golden) | 0);
  const noise = new Float32Array(rows.length * hypotheses * steps);
  let place = 0;
  for (const row of rows) {
    for (const hypothesis of range(hypotheses)) {
      const state = mixed(mixed(start, row), hypothesis);
      for (const step of range(steps)) noise[place++] = ((mixed(state, step) >>> 9) + 0.5) * 2 ** -23;
    }
  }
  return noise;
}

/** Apply the 32-bit finaliser of MurmurHash3. */
function mix(state: number): number {
  const first = Math.imul(state ^ (state >>> 16), 0x85ebca6b);
  const second = Math.imul(first ^ (first >>> 13), 0xc2b2ae35);
  return second ^ (second >>> 16);
}
