/** SentencePiece's normalisation of texts: its character map, prefix space and removal of spaces. */

import { asBytes, asNumber, message } from "../protobuf.js";
import { decodeUtf8, encodeUtf8 } from "./tokenizer.js";

const SPACE = 0x20;
const META_SPACE = encodeUtf8("\u2581");
const PRECOMPILED_CHARSMAP = 2;
const ADD_DUMMY_PREFIX = 3;
const REMOVE_EXTRA_WHITESPACES = 4;
const ESCAPE_WHITESPACES = 5;

/**
 * Normalise texts.
 *
 * @see `Normalizer::Normalize` of sentencepiece, `src/normalizer.cc`.
 */
export class Normalizer {
  readonly addDummyPrefix: boolean;
  readonly removeExtraWhitespaces: boolean;
  /** The character map as the model has it, empty if it has none. */
  readonly charsmap: Uint8Array;
  private readonly space: Uint8Array;
  private readonly characterMap: CharacterMap | undefined;

  /**
   * @param spec a serialised `NormalizerSpec`.
   * @param suffix whether spaces are at the end of words, instead of at their beginning.
   * @param symbols the user-defined symbols, which are not normalised.
   */
  constructor(
    spec: Uint8Array,
    private readonly suffix: boolean,
    private readonly symbols: readonly Uint8Array[],
  ) {
    const fields = message(spec);
    const isSet = (number: number): boolean => asNumber(fields.get(number), 1) !== 0;
    this.addDummyPrefix = isSet(ADD_DUMMY_PREFIX);
    this.removeExtraWhitespaces = isSet(REMOVE_EXTRA_WHITESPACES);
    this.space = isSet(ESCAPE_WHITESPACES) ? META_SPACE : Uint8Array.of(SPACE);
    this.charsmap = asBytes(fields.get(PRECOMPILED_CHARSMAP));
    this.characterMap = this.charsmap.length > 0 ? new CharacterMap(this.charsmap) : undefined;
  }

  /** Return a text in normal form. */
  normalize(text: string): string {
    const input = encodeUtf8(text);
    let begin = 0;
    while (this.removeExtraWhitespaces && begin < input.length) {
      const [replaced, length] = this.prefix(input, begin);
      if (replaced.length !== 1 || replaced[0] !== SPACE) break;
      begin += length;
    }
    if (begin === input.length) return "";
    const output: number[] = [];
    if (this.addDummyPrefix && !this.suffix) output.push(...this.space);
    let afterSpace = this.removeExtraWhitespaces;
    while (begin < input.length) {
      const [replaced, length] = this.prefix(input, begin);
      begin += length;
      let first = 0;
      while (afterSpace && replaced[first] === SPACE) first += 1;
      for (const byte of replaced.subarray(first)) output.push(...(byte === SPACE ? this.space : [byte]));
      if (first < replaced.length) afterSpace = replaced[replaced.length - 1] === SPACE;
      if (!this.removeExtraWhitespaces) afterSpace = false;
    }
    while (this.removeExtraWhitespaces && this.endsWithSpace(output)) output.length -= this.space.length;
    if (this.addDummyPrefix && this.suffix) output.push(...this.space);
    return decodeUtf8(Uint8Array.from(output));
  }

  /** Return what replaces the first character or characters from a place on, and their number of bytes. */
  private prefix(input: Uint8Array, begin: number): [Uint8Array, number] {
    const symbol = longestSymbol(this.symbols, input, begin);
    if (symbol > 0) return [input.subarray(begin, begin + symbol), symbol];
    const found = this.characterMap?.longest(input, begin);
    if (found) return found;
    const length = characterLength(input[begin]);
    return [input.subarray(begin, begin + length), length];
  }

  private endsWithSpace(output: readonly number[]): boolean {
    const start = output.length - this.space.length;
    return start >= 0 && this.space.every((byte, index) => output[start + index] === byte);
  }
}

/** Return the number of bytes of the longest symbol at a place, 0 if there is none. */
export function longestSymbol(symbols: readonly Uint8Array[], input: Uint8Array, begin: number): number {
  let longest = 0;
  for (const symbol of symbols) {
    if (symbol.length > longest && symbol.every((byte, index) => input[begin + index] === byte)) {
      longest = symbol.length;
    }
  }
  return longest;
}

/** Return the number of bytes of a character of valid UTF-8, by its first byte. */
export function characterLength(first: number): number {
  if (first < 0x80) return 1;
  return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/**
 * A map from strings to strings, as SentencePiece stores it: a double-array trie, and the strings one after the other.
 *
 * A unit of the trie is the label of a node (its lowest 8 bits), whether a string ends there (bit 8), and the offset of
 * the children (bits 10 to 30, in units of 256 if bit 9 is set); the unit of a string that ends is its value.
 *
 * @see Yata, Darts-clone, `darts.h`.
 */
export class CharacterMap {
  private readonly units: Uint32Array;
  private readonly strings: Uint8Array;

  constructor(blob: Uint8Array) {
    const view = new DataView(blob.buffer, blob.byteOffset, blob.byteLength);
    const size = view.getUint32(0, true);
    this.units = Uint32Array.from({ length: size / 4 }, (_, index) => view.getUint32(4 + 4 * index, true));
    this.strings = blob.subarray(4 + size);
  }

  /** Return a text, as UTF-8, in which the longest known string at each place is replaced. */
  apply(text: string): Uint8Array {
    const input = encodeUtf8(text);
    const output: number[] = [];
    for (let begin = 0; begin < input.length; ) {
      const size = characterLength(input[begin]);
      const [replaced, length] = this.longest(input, begin) ?? [input.subarray(begin, begin + size), size];
      for (const byte of replaced) output.push(byte);
      begin += length;
    }
    return Uint8Array.from(output);
  }

  /** Return what replaces the longest string at a place, and its number of bytes; undefined if there is none. */
  longest(input: Uint8Array, begin: number): [Uint8Array, number] | undefined {
    let found: [number, number] | undefined;
    let node = offset(this.units[0]);
    for (let place = begin; place < input.length; place += 1) {
      node ^= input[place];
      const unit = this.units[node];
      if (unit === undefined || (unit & 0x800000ff) >>> 0 !== input[place]) break;
      node ^= offset(unit);
      if ((unit >>> 8) & 1) found = [this.units[node] & 0x7fffffff, place + 1 - begin];
    }
    if (!found) return undefined;
    const [value, length] = found;
    return [this.strings.subarray(value, this.strings.indexOf(0, value)), length];
  }
}

function offset(unit: number): number {
  return (unit >>> 10) << ((unit & 0x200) >>> 6);
}
