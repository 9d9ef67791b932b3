/** The base class of pipelines that run their model once on texts: special ids, windows and batches. */

import type { Tensor } from "onnxruntime-common";

import type { Config } from "../bundle.js";
import { InvalidInputError, RowErrors, checkPositiveInteger, checkString, range, shown, type Errors } from "../errors.js";
import { floatValues, type Feeds, type Sessions } from "../onnx.js";
import type { Tokenizer } from "../text/index.js";
import type { Word } from "../text/tokenizer.js";

/** The options of a call. */
export interface CallOptions {
  /** The number of rows in a batch. */
  batchSize?: number;
  /** "raise" the error of a text, or "return" it in place of its answer. */
  errors?: Errors;
  /** Whether to truncate a text that is too long to its first tokens. */
  truncate?: boolean;
}

/** Overlapping windows of a text's token ids that fit the model's maximum length. */
export interface Windows {
  ids: number[][];
  /** The offset of each window in the text's ids. */
  starts: number[];
  /** The ids of the first text of a pair, which each window repeats; undefined for a single text. */
  before?: number[] | undefined;
}

/** An output of the model for a text: the values of each of its windows, and how many of them are of one token. */
export interface Output {
  windows: Float32Array[];
  width: number;
}

export type Outputs = Record<string, Output>;

const MODEL = "model";

/** A pipeline that runs its model once on texts; `State` is what a task keeps of a text for its answer. */
export abstract class TextPipeline<Answer, State = undefined> {
  constructor(
    protected readonly sessions: Sessions,
    readonly config: Config,
    readonly tokenizer: Tokenizer,
  ) {}

  /** The graphs that `load` reads. */
  get graphNames(): string[] {
    return [MODEL];
  }

  /** Release the memory of the model, which is read again when it is needed. */
  release(): Promise<void> {
    return this.sessions.release();
  }

  /** Convert a text or pair to windows of ids, and what `postprocess` needs. */
  protected abstract preprocess(texts: readonly string[], truncate: boolean, option?: number): [Windows, State];

  /** Convert the model's outputs for the windows of a text to its answer. */
  protected abstract postprocess(outputs: Outputs, windows: Windows, state: State): Answer;

  /** Return the answers for lists of texts, by argument, or the answer for single strings; `preprocess` takes an option. */
  protected async answers(
    texts: Record<string, string | readonly string[]>,
    { batchSize = 32, errors = "raise", truncate = false }: CallOptions = {},
    option?: number,
  ): Promise<any> {
    checkPositiveInteger("batchSize", batchSize);
    const rowErrors = new RowErrors(errors);
    const columns = Object.entries(texts).map(([name, values]) => {
      const column = typeof values === "string" ? [values] : asList(name, values);
      column.forEach((text, row) => rowErrors.of(row, () => checkString(name, row, text)));
      return column;
    });
    if (new Set(columns.map((column) => column.length)).size > 1) {
      const names = Object.keys(texts).map((name) => `\`${name}\``);
      const counts = columns.map((column) => column.length);
      throw new Error(`${names.join(" and ")} must have the same length. Received: ${counts.join(" and ")} texts`);
    }
    // Long texts are first, so that those that are too long are errors at once.
    const size = (row: number): number => columns.reduce((sum, column) => sum + column[row].length, 0);
    const order = rowErrors.accepted(columns[0].length).sort((row, other) => size(other) - size(row));
    const answers = new Map<number, Answer>();
    for (let begin = 0; begin < order.length; begin += batchSize) {
      const rows = order.slice(begin, begin + batchSize).sort((row, other) => row - other);
      const batch = rows.flatMap((row) => {
        const pre = rowErrors.of(row, () => this.preprocess(columns.map((column) => column[row]), truncate, option));
        return pre ? [{ row, windows: pre[0], state: pre[1] }] : [];
      });
      if (batch.length === 0) continue;
      const outputs = await this.runWindows(
        batch.map(({ windows }) => windows),
        batchSize,
      );
      batch.forEach(({ row, windows, state }, place) => {
        answers.set(row, this.postprocess(outputs[place], windows, state));
      });
    }
    const merged = rowErrors.merge(answers);
    return Object.values(texts).every((values) => typeof values === "string") ? merged[0] : merged;
  }

  /** Return the model's outputs for the windows of each text. */
  private async runWindows(batch: readonly Windows[], batchSize: number): Promise<Outputs[]> {
    const rows = batch.flatMap(({ ids, before }) => ids.map((window) => this.withSpecialIds(before, window)));
    const names = (await this.sessions.get(MODEL)).inputNames;
    const all: Record<string, Output> = {};
    for (let begin = 0; begin < rows.length; begin += batchSize) {
      const part = rows.slice(begin, begin + batchSize);
      const outputs = await this.sessions.run(MODEL, this.feeds(part, names));
      for (const [name, tensor] of Object.entries(outputs)) {
        all[name] ??= { windows: [], width: tensor.dims.slice(2).reduce((one, other) => one * other, 1) };
        all[name].windows.push(...rowsOf(tensor));
      }
    }
    let end = 0;
    return batch.map(({ ids }) => {
      const start = end;
      end += ids.length;
      const entries = Object.entries(all);
      return Object.fromEntries(
        entries.map(([name, { windows, width }]) => [name, { windows: windows.slice(start, end), width }]),
      );
    });
  }

  private feeds(rows: readonly SpecialIds[], names: readonly string[]): Feeds {
    const { symmetric } = this.config;
    const length = Math.max(1, ...rows.flatMap(({ orders }) => orders.map((ids) => ids.length)));
    const dims = symmetric ? [rows.length, rows[0].orders.length, length] : [rows.length, length];
    const padId = this.tokenizer.padId;
    const tensor = (values: number[]): Tensor => this.sessions.integers(values, dims);
    const padded = (ids: readonly number[], value: number): number[] =>
      range(length).map((place) => ids[place] ?? value);
    const ids = rows.flatMap(({ orders }) => orders.flatMap((each) => padded(each, this.tokenizer.paddingValue)));
    const feeds: Feeds = { input_ids: tensor(ids) };
    if (names.includes("attention_mask")) {
      feeds.attention_mask = tensor(ids.map((id) => (this.config.pad_id === null || id !== padId ? 1 : 0)));
    }
    if (names.includes("token_type_ids")) {
      feeds.token_type_ids = tensor(rows.flatMap(({ orders, segments }) => orders.flatMap(() => padded(segments, 0))));
    }
    return feeds;
  }

  /**
   * Split ids into windows that fit the model, or truncate them to one.
   *
   * Windows overlap by half, the last one more; or by the setting `doc_stride`, and the last is shorter.
   */
  protected windows(
    ids: number[],
    name: string,
    truncate: boolean,
    first?: { name: string; ids: number[] },
  ): Windows {
    const { max_length: limit, long_texts: setting } = this.config;
    const maxIds = this.maxIds(first ? 2 : 1) - (first?.ids.length ?? 0);
    let offset = 0;
    if (maxIds > 0 && (truncate || setting === "truncate")) [offset, ids] = this.truncated(ids, maxIds);
    const split = setting === "window";
    if (ids.length > maxIds && !(split && maxIds >= 2)) {
      const hint = split ? "" : ', or an export with long_texts="window"';
      const question = first ? ` beside its \`${first.name}\`` : "";
      throw new InvalidInputError(
        name,
        `\`${name}\` must have at most ${Math.max(maxIds, 0)} tokens each${question}, as \`max_length\` is ${limit}` +
          `${hint}. Received: ${ids.length} tokens`,
      );
    }
    const docStride: number | null = this.config.doc_stride ?? null;
    const overlap = docStride === null ? Math.floor(maxIds / 2) : Math.min(docStride, maxIds - 1);
    const stride = Math.max(maxIds - overlap, 1);
    const lastStart = Math.max(ids.length - maxIds, 0);
    const count = Math.ceil((lastStart + stride) / stride);
    const starts = range(count).map((place) => (docStride === null ? Math.min(place * stride, lastStart) : place * stride));
    return {
      ids: starts.map((start) => ids.slice(start, start + maxIds)),
      starts: starts.map((start) => start + offset),
      before: first?.ids,
    };
  }

  /**
   * Convert a pair of texts to windows of ids.
   *
   * The second text is split into windows; or the longer text is truncated first.
   */
  protected pairWindows(names: readonly [string, string], texts: readonly string[], truncate: boolean): Windows {
    let [first, second] = texts.map((text) => this.tokenizer.tokenize(text));
    if (truncate || this.config.long_texts === "truncate") {
      [, first] = this.truncated(first, firstLength(first.length, second.length, this.maxIds(2)));
    }
    return this.windows(second, names[1], truncate, { name: names[0], ids: first });
  }

  /** Return the offset and the ids of a text that are kept, `count` or fewer: the first or the last. */
  private truncated(ids: number[], count: number): [number, number[]] {
    const begin = this.config.truncation_side === "left" ? Math.max(ids.length - count, 0) : 0;
    return [begin, ids.slice(begin, begin + count)];
  }

  /** Return the words of a text; white space delimits those of exports of earlier versions. */
  protected tokenizeWords(text: string): Word[] {
    return this.config.words === "tokenizer"
      ? this.tokenizer.tokenizeWords(text)
      : this.tokenizer.tokenizeWhiteSpaceWords(text);
  }

  /** Return the maximum number of ids of one or two texts, without special ids. */
  private maxIds(numTexts: number): number {
    const limit: number = this.config.max_length ?? 2 ** 30;
    return limit - 1 - numTexts - (numTexts - 1) * (this.tokenizer.pairSeparators - 1);
  }

  /** Return the ids of a window, in one or both orders of a pair, and its segment ids. */
  private withSpecialIds(first: number[] | undefined, second: number[]): SpecialIds {
    const { special_ids: special, symmetric } = this.config;
    if (special === null || special === undefined) {
      const { startId, endId, pairSeparators } = this.tokenizer;
      const before = [startId, ...(first ?? second), endId];
      const after = first ? [...Array<number>(pairSeparators - 1).fill(endId), ...second, endId] : [];
      return { orders: [[...before, ...after]], segments: [...before.map(() => 0), ...after.map(() => 1)] };
    }
    const [start, delimiter, extract]: number[] = special;
    if (!first) return { orders: [[start, ...second, extract]], segments: [] };
    const orders = symmetric ? [[first, second], [second, first]] : [[first, second]];
    return { orders: orders.map(([one, other]) => [start, ...one, delimiter, ...other, extract]), segments: [] };
  }
}

interface SpecialIds {
  orders: number[][];
  segments: number[];
}

/** Return the number of ids of the first text when a pair is truncated to `limit` ids, the longer text first. */
function firstLength(first: number, second: number, limit: number): number {
  const both = Math.max(limit, 0);
  const half = Math.floor(both / 2);
  return first > second ? Math.min(first, both - Math.min(second, half)) : Math.min(first, half);
}

/** Return texts as a list, or throw an error if they are none. */
export function asList(name: string, values: unknown): string[] {
  if (!Array.isArray(values)) {
    throw new Error(`\`${name}\` must be a list of strings. Received: ${name}=${shown(values)}`);
  }
  return values;
}

/** Return the values of each row of a tensor. */
function rowsOf(tensor: Tensor): Float32Array[] {
  const values = floatValues(tensor);
  const size = values.length / tensor.dims[0];
  return range(tensor.dims[0]).map((row) => values.slice(row * size, (row + 1) * size));
}

/** Return the probabilities of logits. */
export function softmax(logits: Float32Array): Float32Array {
  const largest = logits.reduce((one, other) => Math.max(one, other), -Infinity);
  const exponentials = logits.map((logit) => Math.exp(logit - largest));
  const sum = exponentials.reduce((one, other) => one + other, 0);
  return exponentials.map((value) => value / sum);
}

/** Return the index of the first of the largest values. */
export function argmax(values: ArrayLike<number>): number {
  let best = 0;
  for (let index = 1; index < values.length; index += 1) if (values[index] > values[best]) best = index;
  return best;
}

/** Return the values of a token of a window. */
export function at({ windows, width }: Output, window: number, place: number): Float32Array {
  return windows[window].slice(place * width, (place + 1) * width);
}
