/** Pipelines that generate: texts in, texts out. */

import type { Config } from "../bundle.js";
import { InvalidInputError, RowErrors, checkPositiveInteger, checkString, range, shown } from "../errors.js";
import type { Graphs, Hypotheses, RowOptions, TargetInputs } from "../graphs.js";
import type { Tokenizer } from "../text/index.js";
import { joined, splitText, type Split } from "../text/splitting.js";
import { removePrefix } from "../text/tokenizer.js";
import type { CallOptions } from "./texts.js";

/** An option of a call: one value for all texts, or one for each. */
export type OfEach<T> = T | readonly T[];

/** The options of a call. */
export interface GenerateOptions extends CallOptions {
  /** The maximum number of new tokens, at most that of the export. */
  maxNewTokens?: OfEach<number>;
  /** The minimum number of tokens before an end token. */
  minNewTokens?: OfEach<number>;
  /** The temperature of sampling. */
  temperature?: OfEach<number>;
  /** Of a translation model of many languages, the language of the texts, and of the outputs. */
  sourceLanguage?: OfEach<string>;
  targetLanguage?: OfEach<string>;
  /** Of an encoder–decoder, "refuse" long texts or "split" them; by default the export's setting. */
  longTexts?: "refuse" | "split";
}

/** The options of a stream, which has one text. */
export interface StreamOptions {
  maxNewTokens?: number;
  sourceLanguage?: string;
  targetLanguage?: string;
  longTexts?: "refuse" | "split";
  truncate?: boolean;
}

/** The source ids of a row, and the first tokens of its output. */
interface Source {
  ids: number[];
  target: TargetInputs;
}

interface Languages {
  source: string[];
  target: string[];
}

/** Base class of pipelines that generate. */
export abstract class Generating {
  private readonly otherEnds: ReadonlySet<number>;

  constructor(
    protected readonly graphs: Graphs,
    readonly config: Config,
    readonly tokenizer: Tokenizer,
  ) {
    const constraints: { constraint: string; end_ids?: number[] }[] = config.constraints ?? [];
    this.otherEnds = new Set(constraints.flatMap(({ constraint, end_ids: ids }) => (constraint === "EndTokens" ? ids! : [])));
  }

  /** The graphs that `load` reads, of the loop or of single steps. */
  get graphNames(): Graphs["names"] {
    return this.graphs.names;
  }

  /** The languages of a translation model of many languages; none for most models. */
  get languages(): readonly string[] {
    return this.config.languages ?? [];
  }

  /** The reason why the export cannot stream, "" if it can. */
  get cannotStream(): string {
    const sampler = this.config.generation!.sampler;
    if (sampler !== "greedy") return `the greedy sampler. Received: the sampler ${shown(sampler)}`;
    const constraints: unknown[] = this.config.constraints ?? [];
    if (constraints.length > 0) return `generation without constraints. Received: constraints=${shown(constraints)}`;
    const missing = this.graphNames.steps.filter((name) => !this.graphs.sessions.has(name));
    return missing.length > 0 ? `the graphs of single steps. Received: an export without ${missing.join(", ")}` : "";
  }

  /** Release the memory of the model, which is read again when it is needed. */
  release(): Promise<void> {
    return this.graphs.sessions.release();
  }

  /** Return the source ids of a text, which is in a language if the model has languages. */
  abstract tokenize(text: string, sourceLanguage?: string): number[];

  /** Return the text of generated ids. */
  abstract decode(ids: readonly number[]): string;

  /** Return `limit` of more source ids, special ones among them. */
  protected abstract truncated(ids: number[], limit: number): number[];

  /** Return the inputs of the generation loop for a row in a target language. */
  protected abstract targetInputs(language: string): TargetInputs;

  /** Return a text as parts that fit; undefined if long texts are errors. */
  protected abstract split(text: string, longTexts: string | undefined): Split | undefined;

  /** Return the first hypothesis of each text, as a list for a list, as a string for a string. */
  async call(texts: string | readonly string[], options: GenerateOptions = {}): Promise<any> {
    const { longTexts, errors = "raise", ...others } = options;
    const list: unknown = typeof texts === "string" ? [texts] : texts;
    if (!Array.isArray(list)) throw new Error(`\`texts\` must be a list of strings. Received: texts=${shown(texts)}`);
    const rowErrors = new RowErrors(errors);
    list.forEach((text, row) => rowErrors.of(row, () => checkString("texts", row, text)));
    const splits = list.map((text) => (typeof text === "string" && this.split(text, longTexts)) || whole(text));
    // The first part of each text has the index of the text, on which samples depend; the other parts follow.
    const owners = [...range(list.length), ...splits.flatMap(({ parts }, row) => parts.slice(1).map(() => row))];
    const parts = [...splits.map((split) => split.parts[0]), ...splits.flatMap((split) => split.parts.slice(1))];
    const partErrors = new RowErrors(errors);
    const found = await this.run(parts, partErrors, others, owners);
    const answers = partErrors.merge(new Map([...found].map(([row, { ids }]) => [row, this.decode(ids[0])])));
    const outputs = splits.map((split, row) => {
      const ofText = answers.filter((_, part) => owners[part] === row);
      return ofText.find((answer) => answer instanceof Error) ?? joined(split, ofText as string[]);
    });
    return typeof texts === "string" ? outputs[0] : outputs;
  }

  /** Return the ids, lengths and scores of the N hypotheses of each text. */
  async generate(texts: readonly string[], options: GenerateOptions = {}): Promise<(Hypotheses | Error)[]> {
    const { errors = "raise", ...others } = options;
    const rowErrors = new RowErrors(errors);
    return rowErrors.merge(await this.run(texts, rowErrors, others, range(texts.length)));
  }

  /** Return the source ids of each text. */
  encode(texts: readonly string[], { truncate = false, sourceLanguage }: StreamOptions = {}): number[][] {
    const { source } = this.languagesOf(texts.length, sourceLanguage, undefined, range(texts.length));
    const rowErrors = new RowErrors();
    return texts.map((text, row) => rowErrors.of(row, () => this.preprocess(text, row, truncate, source[row]))!);
  }

  /**
   * Yield the text of an output while it is generated, in pieces; joined, they are the output.
   *
   * @throws if the sampler of the export is not greedy, or it has constraints.
   */
  async *stream(text: string, options: StreamOptions = {}): AsyncGenerator<string> {
    if (this.cannotStream) throw new Error(`Streaming needs ${this.cannotStream}`);
    const { maxNewTokens = this.graphs.maxNewTokens, longTexts, truncate = false } = options;
    checkString("text", 0, text);
    this.graphs.checkOptions({ maxNewTokens: [maxNewTokens] });
    const { source, target } = this.languagesOf(1, options.sourceLanguage, options.targetLanguage, [0]);
    const { parts, between } = this.split(text, longTexts) ?? whole(text);
    const rows = parts.map((part, row) => this.preprocess(part, row, truncate, source[0]));
    const first = this.targetInputs(target[0]);
    for (const [place, ids] of rows.entries()) {
      if (between[place]) yield between[place];
      yield* this.streamText(this.graphs.steps(ids, first, maxNewTokens));
    }
    if (between.at(-1)) yield between.at(-1)!;
  }

  private async *streamText(tokens: AsyncIterable<number>): AsyncGenerator<string> {
    const ids: number[] = [];
    let emitted = "";
    for await (const token of tokens) {
      ids.push(token);
      const text = this.decode(ids);
      // The last character may be incomplete until later tokens add its remaining bytes.
      if (!text.startsWith(emitted) || text.endsWith("\ufffd")) continue;
      if (text !== emitted) yield text.slice(emitted.length);
      emitted = text;
    }
    const rest = ids.length > 0 ? this.decode(ids).slice(emitted.length) : "";
    if (rest) yield rest;
  }

  /** Return the hypotheses of each row without an error, generated in batches of similar lengths. */
  private async run(
    texts: readonly unknown[],
    errors: RowErrors,
    options: Omit<GenerateOptions, "errors" | "longTexts">,
    owners: readonly number[],
  ): Promise<Map<number, Hypotheses>> {
    const { batchSize = 64, truncate = false, sourceLanguage, targetLanguage } = options;
    checkPositiveInteger("batchSize", batchSize);
    const numbers: RowOptions = {};
    for (const name of ["maxNewTokens", "minNewTokens", "temperature"] as const) {
      const value = options[name];
      if (value !== undefined) numbers[name] = ofEach(name, value, owners);
    }
    this.graphs.checkOptions(numbers);
    const { source, target } = this.languagesOf(texts.length, sourceLanguage, targetLanguage, owners);
    const rows = new Map<number, Source>();
    texts.forEach((text, row) => {
      const found = errors.of(row, () => ({
        ids: this.preprocess(text, row, truncate, source[row]),
        target: this.targetInputs(target[row]),
      }));
      if (found) rows.set(row, found);
    });
    const order = [...rows.keys()].sort((row, other) => rows.get(row)!.ids.length - rows.get(other)!.ids.length);
    const found = new Map<number, Hypotheses>();
    for (let begin = 0; begin < order.length; begin += batchSize) {
      const batch = order.slice(begin, begin + batchSize);
      const sources = batch.map((row) => rows.get(row)!);
      const outputs = await this.graphs.generate(
        sources.map(({ ids }) => ids),
        batch,
        Object.fromEntries(Object.entries(numbers).map(([name, values]) => [name, batch.map((row) => values[row])])),
        sources.map((each) => each.target),
      );
      batch.forEach((row, place) => found.set(row, outputs[place]));
    }
    return found;
  }

  private preprocess(text: unknown, row: number, truncate: boolean, language: string): number[] {
    checkString("texts", row, text);
    const ids = this.tokenize(text, language);
    if (this.graphs.startId === null && ids.length === 0) {
      throw new InvalidInputError("texts", "`texts` must each have a token. Received: none");
    }
    const limit = this.graphs.maxSourceTokens;
    if (ids.length <= limit) return ids;
    if (truncate) return this.truncated(ids, limit);
    const split = this.graphs.startId === null ? "" : ', or longTexts: "split"';
    throw new InvalidInputError(
      "texts",
      `\`texts\` must have at most ${limit} tokens each (max_source_tokens)${split}, or truncate: true. ` +
        `Received: ${ids.length} tokens`,
    );
  }

  /**
   * Return the ids before the first of the other end tokens, without special tokens to skip.
   *
   * The tokenizer finds the model's own end token.
   */
  protected decodedIds(ids: readonly number[]): readonly number[] {
    const end = ids.findIndex((id) => this.otherEnds.has(id));
    const beforeEnd = end < 0 ? ids : ids.slice(0, end);
    if (!this.config.skip_special_tokens) return beforeEnd;
    const special = new Set(this.tokenizer.specialTokenIds.values());
    return beforeEnd.filter((id) => id === this.graphs.endId || !special.has(id));
  }

  private languagesOf(
    count: number,
    source: OfEach<string> | undefined,
    target: OfEach<string> | undefined,
    owners: readonly number[],
  ): Languages {
    const of = (name: string, value: OfEach<string> | undefined, setting: string | null | undefined): string[] => {
      if (value !== undefined && this.languages.length === 0) {
        throw new Error(`\`${name}\` must be undefined, as the model has no languages. Received: ${name}=${shown(value)}`);
      }
      return value === undefined ? Array<string>(count).fill(setting ?? "") : ofEach(name, value, owners);
    };
    return {
      source: of("sourceLanguage", source, this.config.source_language),
      target: of("targetLanguage", target, this.config.target_language),
    };
  }
}

/** An exported encoder–decoder. */
export class TextToText extends Generating {
  /** Return the source ids of a text, the end id and its language's; none for only spaces and unknown characters. */
  tokenize(text: string, sourceLanguage = ""): number[] {
    const { tokenizer, graphs, config } = this;
    const language = this.languageIds("sourceLanguage", sourceLanguage);
    const ids = tokenizer.tokenize(text);
    const noText = new Set([graphs.padId, graphs.endId, ...config.empty_ids]);
    if (ids.every((id) => noText.has(id))) return [];
    const complete = [...tokenizer.sourcePrefixIds, ...ids, graphs.endId];
    return tokenizer.languageAfterSource ? [...complete, ...language] : [...language, ...complete];
  }

  decode(ids: readonly number[]): string {
    return this.tokenizer.detokenize(this.decodedIds(ids));
  }

  protected truncated(ids: number[], limit: number): number[] {
    const { languages, languageAfterSource, sourcePrefixIds } = this.tokenizer;
    const first = sourcePrefixIds.length + (languages.size > 0 && !languageAfterSource ? 1 : 0);
    const last = languageAfterSource ? 2 : 1;
    const begin = this.config.truncation_side === "left" ? first : limit - last;
    return [...ids.slice(0, begin), ...ids.slice(begin + ids.length - limit)];
  }

  protected targetInputs(language: string): TargetInputs {
    const [id] = this.languageIds("targetLanguage", language);
    if (id === undefined) return {};
    return this.tokenizer.languageIsStart ? { startId: id } : { prefixIds: [id] };
  }

  protected split(text: string, longTexts: string | undefined): Split | undefined {
    const setting = longTexts ?? this.config.long_texts ?? "refuse";
    if (setting !== "refuse" && setting !== "split") {
      throw new Error(`\`longTexts\` must be "refuse" or "split". Received: longTexts=${shown(setting)}`);
    }
    if (setting === "refuse" || /\p{Surrogate}/u.test(text)) return undefined;
    const anyLanguage = [...this.tokenizer.languages.keys()][0] ?? ""; // all have one token
    return splitText(text, (part) => this.tokenize(part, anyLanguage).length, this.graphs.maxSourceTokens);
  }

  private languageIds(name: string, language: string): number[] {
    const known = this.tokenizer.languages;
    if (known.size === 0) return [];
    const id = known.get(language);
    if (id === undefined) {
      const listed = [...known.keys()].slice(0, 60).join(", ");
      throw new InvalidInputError(name, `\`${name}\` must be one of ${listed}. Received: ${language || "none"}`);
    }
    return [id];
  }
}

/** An exported decoder-only model, from prompts to their continuations. */
export class TextGeneration extends Generating {
  tokenize(text: string): number[] {
    const ids = this.tokenizer.tokenize(text, this.config.special_tokens);
    return this.config.add_start ? [this.tokenizer.startId, ...ids] : ids;
  }

  /** Return the text of generated ids, including the space after the prompt. */
  decode(ids: readonly number[]): string {
    // Without an ordinary token before them, the leading space would be stripped.
    const anchor: number = this.config.anchor_id;
    const [text, prefix] = [[anchor, ...this.decodedIds(ids)], [anchor]].map((row) => this.tokenizer.detokenize(row));
    return removePrefix(text, prefix);
  }

  protected truncated(ids: number[], limit: number): number[] {
    const start = this.config.add_start ? 1 : 0;
    return [...ids.slice(0, start), ...ids.slice(ids.length - limit + start)];
  }

  protected targetInputs(): TargetInputs {
    return {};
  }

  protected split(_: string, longTexts: string | undefined): undefined {
    if (longTexts !== undefined) {
      throw new Error(`\`longTexts\` must be undefined for a decoder-only model. Received: longTexts=${shown(longTexts)}`);
    }
    return undefined;
  }
}

function whole(text: unknown): Split {
  return { parts: [text as string], between: ["", ""] };
}

/** Return the value of an option for each row, given the index of its text. */
function ofEach<T>(name: string, value: OfEach<T>, owners: readonly number[]): T[] {
  const count = new Set(owners).size;
  if (!Array.isArray(value)) return owners.map(() => value as T);
  if (value.length !== count) {
    throw new Error(`\`${name}\` must be one value, or one for each of ${count} texts. Received: ${shown(value)}`);
  }
  return owners.map((owner) => value[owner]);
}
