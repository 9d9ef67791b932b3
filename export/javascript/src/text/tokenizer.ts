/** The base class of tokenizers, which converts special tokens and decodes ids. */

/** Unicode's white space, as a class of a regular expression. */
export const WHITE_SPACE = "[\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";

/** The settings in a tokenizer's file. */
export interface Settings {
  special_tokens: Partial<Record<"pad" | "unknown" | "start" | "end" | "mask", string>>;
  special_tokens_in_text?: boolean;
  [name: string]: any;
}

/** Convert text to ids and back; a subclass sets the fields and implements `cut` and `join`. */
export abstract class Tokenizer {
  /** The padding id; null if there is none. */
  padId: number | null = null;
  /** The id of text that is out of vocabulary, and of the tokens of these roles; −1 if there is none. */
  unknownId = -1;
  startId = -1;
  endId = -1;
  maskId = -1;
  /** The special tokens and their ids. */
  specialTokenIds: ReadonlyMap<string, number> = new Map();
  /** The pieces in the order of their ids. */
  pieces: readonly string[] = [];
  /** The number of end tokens between the texts of a pair. */
  pairSeparators = 1;
  /** The ids before each source of an encoder–decoder, which decoded texts are without. */
  sourcePrefixIds: readonly number[] = [];
  /** Whether a mask token takes the white space before it. */
  lstripMask = false;
  /** The id of each language's token, by the code of the language. */
  languages: ReadonlyMap<string, number> = new Map();
  /** Whether a source is followed by the token of its language, instead of beginning with it. */
  languageAfterSource = false;
  /** Whether a target begins with the token of its language in place of the start token. */
  languageIsStart = false;
  /** The special tokens that are recognised in every text, anywhere or only at its start. */
  protected inText: ReadonlyMap<string, number> = new Map();
  protected anywhere = true;

  /** Convert a text without special tokens to ids. */
  protected abstract cut(text: string): number[];

  /** Convert ids to text. */
  protected abstract join(ids: readonly number[]): string;

  /** The id that pads short rows: `padId`, or `endId` if that is null. */
  get paddingValue(): number {
    return this.padId ?? this.endId;
  }

  /** Convert a text to ids, without special ids around them, and with those of special tokens in it if they are to be. */
  tokenize(text: string, specialTokens = false): number[] {
    const parts = splitAround(text, specialTokens ? this.specialTokenIds : new Map());
    return parts.flatMap((part) => (typeof part === "number" ? [part] : this.tokenizePart(part)));
  }

  /**
   * Convert ids to text, up to the first end id and without padding and start ids.
   *
   * If the same id starts and ends a row, as in GPT-2, it does not end a row in the first position.
   */
  detokenize(ids: readonly number[]): string {
    const end = ids.findIndex((id, place) => id === this.endId && (place > 0 || this.startId !== this.endId));
    const dropped = new Set([this.startId, this.padId, ...this.sourcePrefixIds]);
    return this.join(ids.slice(0, end < 0 ? ids.length : end).filter((id) => !dropped.has(id)));
  }

  private tokenizePart(text: string): number[] {
    const parts = splitAround(text, this.inText, { anywhere: this.anywhere });
    return parts.flatMap((part) => (typeof part === "number" ? [part] : part ? this.cut(part) : []));
  }
}

/** Base class of tokenizers with a vocabulary of pieces, some of which are special tokens. */
export abstract class VocabularyTokenizer extends Tokenizer {
  protected readonly ids: ReadonlyMap<string, number>;

  constructor(pieces: readonly string[], settings: Settings) {
    super();
    this.pieces = [...pieces, ...Array<string>(settings.unused ?? 0).fill("")];
    this.ids = new Map(pieces.map((piece, id) => [piece, id]));
    const roles = settings.special_tokens;
    const of = (role: keyof Settings["special_tokens"]): number => (role in roles ? this.idOf(roles[role]!) : -1);
    this.padId = "pad" in roles ? of("pad") : null;
    this.unknownId = of("unknown");
    this.startId = of("start");
    this.endId = of("end");
    this.maskId = of("mask");
    this.specialTokenIds = this.idsOf(Object.values(roles));
    this.pairSeparators = settings.pair_separators ?? 1;
    this.lstripMask = settings.lstrip_mask ?? false;
    this.sourcePrefixIds = [...(settings.source_prefix ?? [])].map((token: string) => this.idOf(token));
    const languages = Object.entries<string>(settings.languages ?? {});
    this.languages = new Map(languages.map(([name, token]) => [name, this.idOf(token)]));
    this.languageAfterSource = settings.language_after_source ?? false;
    this.languageIsStart = settings.language_is_start ?? false;
    if (settings.special_tokens_in_text) this.inText = this.specialTokenIds;
  }

  /** Return tokens and their ids. */
  protected idsOf(tokens: Iterable<string>): Map<string, number> {
    return new Map([...tokens].map((token) => [token, this.idOf(token)]));
  }

  private idOf(token: string): number {
    const id = this.ids.get(token);
    if (id === undefined) throw new Error(`the vocabulary must have the token ${JSON.stringify(token)}`);
    return id;
  }
}

/** The tokens that take the white space before or after them, and whether tokens are recognised only at the start. */
export interface SplitOptions {
  anywhere?: boolean;
  lstrip?: ReadonlySet<string>;
  rstrip?: ReadonlySet<string>;
}

/**
 * Split a text around the tokens that occur in it, the longest of several at one place.
 *
 * @returns the parts in order: the id of each token, and the text between them, which may be empty.
 */
export function splitAround(
  text: string,
  tokens: ReadonlyMap<string, number>,
  { anywhere = true, lstrip = new Set(), rstrip = new Set() }: SplitOptions = {},
): (string | number)[] {
  if (tokens.size === 0) return [text];
  const spaces = `${WHITE_SPACE}*`;
  const patterns = [...tokens.keys()]
    .sort((token, other) => other.length - token.length)
    .map((token) => `${lstrip.has(token) ? spaces : ""}${escaped(token)}${rstrip.has(token) ? spaces : ""}`);
  const around = new RegExp(`^${spaces}|${spaces}$`, "gu");
  const parts: (string | number)[] = [];
  let end = 0;
  for (const match of text.matchAll(new RegExp(`${anywhere ? "" : "^"}(?:${patterns.join("|")})`, "gu"))) {
    const token = tokens.has(match[0]) ? match[0] : match[0].replace(around, "");
    parts.push(text.slice(end, match.index), tokens.get(token)!);
    end = match.index + match[0].length;
  }
  const rest = text.slice(end); // after a token at the start, it may be one itself
  return [...parts, tokens.get(rest) ?? rest];
}

/** Return a string as a pattern that matches it. */
export function escaped(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}

/** Decode UTF-8; invalid bytes become U+FFFD. */
export function decodeUtf8(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}

/** Encode a text as UTF-8. */
export function encodeUtf8(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

/** Return the bytes of several arrays as one. */
export function concatenated(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const joined = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let end = 0;
  for (const part of parts) {
    joined.set(part, end);
    end += part.length;
  }
  return joined;
}

/** Return the name of a byte as a piece, such as "<0x0A>". */
export function byteName(byte: number): string {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
}

/** Return a text without a prefix, if it starts with it. */
export function removePrefix(text: string, prefix: string): string {
  return text.startsWith(prefix) ? text.slice(prefix.length) : text;
}
