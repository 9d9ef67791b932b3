/** Byte-pair encoding over bytes, as of GPT-2, and over characters with byte fallback, as of Llama. */

import { range } from "../errors.js";
import { Merges, type PairFile } from "./merging.js";
import { DIGIT, GPT_2, compiled, isolated } from "./patterns.js";
import {
  META_SPACE,
  VocabularyTokenizer,
  byteName,
  concatenated,
  decodeUtf8,
  encodeUtf8,
  removePrefix,
  spansOf,
  type Span,
  type Word,
} from "./tokenizer.js";

/** Base class of byte-pair encoding. */
abstract class PairTokenizer extends VocabularyTokenizer {
  protected readonly merges: Merges;

  constructor(file: PairFile) {
    super(file.vocabulary, file.settings);
    this.merges = new Merges(this.ids, file.merges);
  }
}

const GPT_2_WORDS = compiled(GPT_2);

/** Convert text to ids and back with byte-level BPE. */
export class BytePairTokenizer extends PairTokenizer {
  private readonly patterns: readonly RegExp[];
  private readonly contents: readonly Uint8Array[];

  constructor(model: Uint8Array) {
    super(JSON.parse(decodeUtf8(model)) as PairFile);
    const { pattern, individual_digits, normalization } = this.settings;
    if (normalization !== undefined && normalization !== "NFC") {
      throw new Error(`\`normalization\` must be "NFC". Received: normalization=${normalization}`);
    }
    const patterns: string[] = individual_digits ? [DIGIT] : pattern === undefined ? [] : [pattern].flat();
    this.patterns = patterns.map(compiled);
    this.contents = this.pieces.map(byteLevelContent);
  }

  protected override normalize(text: string): string {
    return this.settings.normalization ? text.normalize("NFC") : text;
  }

  protected cut(text: string): number[] {
    return this.cutWords(text).flatMap(({ ids }) => ids);
  }

  protected override sources(text: string, normal: string): Span[] {
    // Both decompose to the same characters, up to the order of marks.
    const decomposed = (character: string): string[] => Array.from(character.normalize("NFD"));
    const spans = spansOf(text).flatMap((span) => decomposed(text.slice(...span)).map(() => span));
    let place = 0;
    return Array.from(normal).flatMap((character) => {
      const span = spans[place];
      place += decomposed(character).length;
      return Array<Span>(character.length).fill(span);
    });
  }

  protected override cutWords(text: string): Word[] {
    const split = (words: string[], pattern: RegExp): string[] => words.flatMap((word) => isolated(word, pattern));
    let end = 0;
    return this.patterns.reduce(split, [text]).flatMap((part) => {
      // The library adds a space before the words of GPT-2's pattern, and before each word of the others.
      const prefix = this.settings.add_prefix_space && !part.startsWith(" ") ? " " : "";
      const words = this.settings.pattern === undefined ? isolated(prefix + part, GPT_2_WORDS) : [prefix + part];
      const first = end;
      end -= prefix.length;
      const placed = words.map((word) => {
        const start = Math.max(first, end);
        return { ids: this.cutWord(word), start, end: (end += word.length) };
      });
      return placed.filter(({ ids }) => ids.length > 0); // of a word without pieces for its bytes
    });
  }

  private cutWord(word: string): number[] {
    const characters = Array.from(encodeUtf8(word), (byte) => BYTE_CHARACTERS[byte]);
    const whole = this.settings.ignore_merges ? this.ids.get(characters.join("")) : undefined;
    if (whole !== undefined) return [whole];
    const ids = characters.map((character) => this.ids.get(character));
    return this.merges.apply(ids.filter((id): id is number => id !== undefined));
  }

  protected join(ids: readonly number[]): string {
    return decodeUtf8(concatenated(ids.map((id) => this.contents[id])));
  }
}

/** Convert text to ids and back with character-level BPE and byte fallback. */
export class LlamaTokenizer extends PairTokenizer {
  private readonly scheme: "legacy" | "always" | "first" | "never";

  constructor(model: Uint8Array) {
    super(JSON.parse(decodeUtf8(model)) as PairFile);
    this.scheme = this.settings.prepend_scheme;
  }

  protected override normalize(text: string): string {
    if (this.scheme === "first" || this.scheme === "always" || !text) return text;
    return (this.scheme === "legacy" ? META_SPACE : "") + text.replaceAll(" ", META_SPACE);
  }

  protected override cutPart(part: string, starts: boolean): number[] {
    const escaped = part.replaceAll(" ", META_SPACE);
    const prepended = this.scheme === "always" || (this.scheme === "first" && starts);
    return this.cut(prepended && !escaped.startsWith(META_SPACE) ? META_SPACE + escaped : escaped);
  }

  protected cut(text: string): number[] {
    const ids = Array.from(text).flatMap((character) => {
      const id = this.ids.get(character);
      if (id !== undefined) return [id];
      const bytes = Array.from(encodeUtf8(character), (byte) => this.ids.get(byteName(byte)));
      return bytes.every((byte) => byte !== undefined) ? (bytes as number[]) : [this.unknownId];
    });
    return this.merges.apply(ids);
  }

  protected join(ids: readonly number[]): string {
    let text = "";
    let bytes: number[] = [];
    const flush = (): void => {
      text += decodeAllOrNone(Uint8Array.from(bytes));
      bytes = [];
    };
    for (const id of ids) {
      const piece = this.pieces[id];
      const byte = /^<0x([0-9A-F]{2})>$/i.exec(piece);
      if (byte) bytes.push(parseInt(byte[1], 16));
      else {
        flush();
        text += piece.replaceAll(META_SPACE, " ");
      }
    }
    flush();
    return this.scheme === "never" ? text : removePrefix(text, " ");
  }
}

/** GPT-2's character for each byte: the Latin-1 character if printable, otherwise one from U+0100 on. */
const BYTE_CHARACTERS: readonly string[] = (() => {
  let next = 0x100;
  const isVisible = (byte: number): boolean =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
  return range(256).map((byte) => String.fromCharCode(isVisible(byte) ? byte : next++));
})();
const BYTES: ReadonlyMap<string, number> = new Map(BYTE_CHARACTERS.map((character, byte) => [character, byte]));

/** Decode UTF-8; each byte becomes U+FFFD if the whole is invalid. */
function decodeAllOrNone(bytes: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return "\ufffd".repeat(bytes.length);
  }
}

/** Return the bytes of a piece; a piece not written as bytes, such as a special token, is encoded as UTF-8. */
function byteLevelContent(piece: string): Uint8Array {
  const bytes = Array.from(piece, (character) => BYTES.get(character));
  return bytes.every((byte) => byte !== undefined) ? Uint8Array.from(bytes as number[]) : encodeUtf8(piece);
}
