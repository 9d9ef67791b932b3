/** SentencePiece tokenizers. */

import { asBytes, asNumber, asText, fields, message } from "../protobuf.js";
import { mergePairs } from "./merging.js";
import { Normalizer, characterLength, longestSymbol } from "./normalizer.js";
import { cleanedText, decodedPieces, normalizer, preTokenizer } from "./steps.js";
import {
  META_SPACE,
  Tokenizer,
  VocabularyTokenizer,
  byteName,
  decodeUtf8,
  encodeUtf8,
  removePrefix,
  type Settings,
} from "./tokenizer.js";
import { BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Unigram, type Piece } from "./unigram.js";

const REPLACEMENT = "\ufffd";
const UNKNOWN_SURFACE = " \u2047 ";
// Fields of ModelProto, of SentencePiece and of TrainerSpec.
const PIECES = 1;
const TRAINER = 2;
const NORMALIZER = 3;
const [PIECE, SCORE, TYPE] = [1, 2, 3];
const MODEL_TYPE = 3;
const SUFFIX = 24;
const BYTE_FALLBACK = 35;
const SURFACE_OF_UNKNOWN = 44;
const ROLES = { unknown: 45, start: 46, end: 47, pad: 48 };
const DEFAULT_ROLES = { unknown: "<unk>", start: "<s>", end: "</s>", pad: "<pad>" };
const MODEL_TYPES = ["unigram", "bpe", "word", "char"] as const;

/** A part of a text while pairs of parts are merged; a user-defined symbol is frozen. */
interface Symbol {
  text: string;
  frozen: boolean;
}

/** A SentencePiece model: unigram, BPE, words or characters. */
export class SentencePieceModel {
  readonly pieces: readonly Piece[];
  readonly normalizer: Normalizer;
  readonly unknownId: number;
  private readonly type: (typeof MODEL_TYPES)[number];
  private readonly trainer: ReadonlyMap<number, number | Uint8Array>;
  private readonly symbols: readonly Uint8Array[];
  /** The ids of pieces that occur in texts, and of the others. */
  private readonly ids = new Map<string, number>();
  private readonly reserved = new Map<string, number>();
  private readonly byteFallback: boolean;
  private readonly unigram: Unigram | undefined;

  constructor(model: Uint8Array) {
    const entries = [...fields(model)];
    const last = new Map(entries.map(({ number, value }) => [number, asBytes(value)]));
    this.pieces = entries
      .filter(({ number }) => number === PIECES)
      .map(({ value }) => message(asBytes(value)))
      .map((piece) => ({
        text: asText(piece.get(PIECE)),
        score: asNumber(piece.get(SCORE), 0),
        type: asNumber(piece.get(TYPE), NORMAL),
      }));
    this.pieces.forEach(({ text, type }, id) => {
      (type === NORMAL || type === USER_DEFINED || type === UNUSED ? this.ids : this.reserved).set(text, id);
    });
    this.unknownId = this.pieces.findIndex(({ type }) => type === UNKNOWN);
    this.trainer = message(last.get(TRAINER) ?? new Uint8Array());
    this.type = MODEL_TYPES[asNumber(this.trainer.get(MODEL_TYPE), 1) - 1];
    this.byteFallback = asNumber(this.trainer.get(BYTE_FALLBACK), 0) !== 0;
    this.symbols = this.pieces.filter(({ type }) => type === USER_DEFINED).map(({ text }) => encodeUtf8(text));
    const suffix = asNumber(this.trainer.get(SUFFIX), 0) !== 0;
    this.normalizer = new Normalizer(last.get(NORMALIZER) ?? new Uint8Array(), suffix, this.symbols);
    if (this.type === "unigram") this.unigram = new Unigram(this.pieces, this.unknownId);
    if (this.type === "word" && suffix) {
      throw new Error("a SentencePiece model of words must have spaces before words. Received: spaces after words");
    }
  }

  /** Return the id of the token of a role, −1 if there is none. */
  roleId(role: keyof typeof ROLES): number {
    const text = this.trainer.has(ROLES[role]) ? asText(this.trainer.get(ROLES[role])) : DEFAULT_ROLES[role];
    const id = this.idOf(text);
    return this.pieces[id].type === (role === "unknown" ? UNKNOWN : CONTROL) ? id : -1;
  }

  /** Return the pieces of a text and their ids. */
  encode(text: string): [string, number][] {
    const joined: [string, number][] = [];
    let afterUnknown = false;
    for (const [piece, id] of this.segments(this.normalizer.normalize(text))) {
      const isUnknown = id === this.unknownId;
      if (isUnknown && this.byteFallback) {
        for (const byte of encodeUtf8(piece)) joined.push([byteName(byte), this.idOf(byteName(byte))]);
      } else if (isUnknown && afterUnknown) {
        joined[joined.length - 1][0] += piece; // adjacent unknown characters are one piece
      } else joined.push([piece, id]);
      afterUnknown = isUnknown;
    }
    return joined;
  }

  /**
   * Return the text of ids.
   *
   * @see `SentencePieceProcessor::Decode` of sentencepiece, `src/sentencepiece_processor.cc`.
   */
  decode(ids: readonly number[]): string {
    const { addDummyPrefix, removeExtraWhitespaces } = this.normalizer;
    const surface = this.trainer.has(SURFACE_OF_UNKNOWN) ? asText(this.trainer.get(SURFACE_OF_UNKNOWN)) : UNKNOWN_SURFACE;
    let text = "";
    let bytes: number[] = [];
    let atStart = true;
    let prefixSeen = false;
    const flush = (): void => {
      text += decodeEachByte(Uint8Array.from(bytes));
      bytes = [];
    };
    for (const id of ids) {
      let { text: piece, type } = this.pieces[id];
      if (type === BYTE) {
        bytes.push(parseInt(piece.slice(3, 5), 16));
        continue;
      }
      flush();
      if (prefixSeen || text) atStart = false;
      prefixSeen = false;
      if (type === CONTROL) continue;
      if (type === UNKNOWN) {
        text += surface;
        continue;
      }
      if (atStart && (addDummyPrefix || removeExtraWhitespaces) && piece.startsWith(META_SPACE)) {
        piece = piece.slice(META_SPACE.length);
        prefixSeen = !removeExtraWhitespaces;
      }
      text += piece.replaceAll(META_SPACE, " ");
    }
    flush();
    return text;
  }

  private idOf(piece: string): number {
    return this.reserved.get(piece) ?? this.ids.get(piece) ?? this.unknownId;
  }

  private segments(text: string): [string, number][] {
    if (this.unigram) return this.unigram.encode(text);
    const symbols = this.symbolsOf(text);
    if (this.type === "bpe") return this.mergedPieces(symbols);
    const strings = this.type === "char" ? symbols.map((symbol) => symbol.text) : words(text);
    return strings.map((piece) => [piece, this.idOf(piece)]);
  }

  /** Split a text into user-defined symbols and characters. */
  private symbolsOf(text: string): Symbol[] {
    if (this.symbols.length === 0) return Array.from(text, (character) => ({ text: character, frozen: false }));
    const input = encodeUtf8(text);
    const symbols: Symbol[] = [];
    for (let begin = 0; begin < input.length; ) {
      const length = longestSymbol(this.symbols, input, begin);
      const end = begin + (length || characterLength(input[begin]));
      symbols.push({ text: decodeUtf8(input.subarray(begin, end)), frozen: length > 0 });
      begin = end;
    }
    return symbols;
  }

  /** Merge symbols into pieces, those with the highest scores first; unused pieces are split again. */
  private mergedPieces(symbols: Symbol[]): [string, number][] {
    const parts = new Map<string, [string, string]>();
    const merged = mergePairs(symbols, (left, right) => {
      const text = left.text + right.text;
      const id = left.frozen || right.frozen ? undefined : this.ids.get(text);
      if (id === undefined) return undefined;
      if (this.pieces[id].type === UNUSED) parts.set(text, [left.text, right.text]);
      return { rank: -this.pieces[id].score, merged: { text, frozen: false } };
    });
    const split = (text: string): [string, number][] => {
      const id = this.idOf(text);
      const halves = this.pieces[id].type === UNUSED ? parts.get(text) : undefined;
      return halves ? halves.flatMap(split) : [[text, id]];
    };
    return merged.flatMap(({ text }) => split(text));
  }
}

/** Convert text to ids and back with a SentencePiece model. */
export class SentencePieceTokenizer extends Tokenizer {
  private readonly model: SentencePieceModel;
  private readonly guard: string;

  constructor(content: Uint8Array) {
    super();
    const model = (this.model = new SentencePieceModel(content));
    const pad = model.roleId("pad");
    this.padId = pad;
    this.unknownId = model.roleId("unknown");
    this.startId = model.roleId("start");
    this.endId = model.roleId("end");
    this.pieces = model.pieces.map(({ text }) => text);
    const special = [pad, this.unknownId, this.startId, this.endId].filter((id) => id >= 0);
    this.specialTokenIds = new Map(special.map((id) => [this.pieces[id], id]));
    this.guard = keepsSpaces(model) ? this.text([this.unknownId]) : "";
  }

  protected cut(text: string): number[] {
    return this.model.encode(text).map(([, id]) => id);
  }

  protected join(ids: readonly number[]): string {
    if (!this.guard) return this.text(ids);
    // A token before the text keeps its leading spaces.
    return removePrefix(removePrefix(this.text([this.unknownId, ...ids]), this.guard), " ");
  }

  private text(ids: readonly number[]): string {
    // A model without a piece for spaces, such as a word model, decodes U+2581 from bytes unchanged.
    return this.model.decode(ids).replaceAll(META_SPACE, " ");
  }
}

/** Convert text to ids and back with a SentencePiece model and a separate vocabulary of its pieces. */
export class MarianT5Tokenizer extends VocabularyTokenizer {
  private readonly model: SentencePieceModel;
  private readonly keepsSpaces: boolean;
  private readonly idsOfPieces: ReadonlyMap<string, number>;
  private readonly normalizer: (text: string) => string;
  /** Splits a part of a text into words; undefined if the model does. */
  private readonly words: ((part: string, starts: boolean) => string[]) | undefined;
  private readonly initial: readonly string[];
  private readonly following: readonly string[];

  constructor(content: Uint8Array) {
    const file: { model: string; vocabulary: string[]; settings: Settings } = JSON.parse(decodeUtf8(content));
    super(file.vocabulary, file.settings);
    this.model = new SentencePieceModel(Uint8Array.from(atob(file.model), (unit) => unit.charCodeAt(0)));
    this.keepsSpaces = keepsSpaces(this.model);
    const special = new Set([...this.specialTokenIds.values(), ...this.languages.values()]);
    const entries = file.vocabulary.map((piece, id): [string, number] => [piece, id]);
    this.idsOfPieces = new Map(entries.filter(([, id]) => !special.has(id)));
    const { normalizers, pre_tokenizers, decoders } = file.settings;
    this.normalizer = normalizer(normalizers ?? [], this.model.normalizer.charsmap);
    this.words = pre_tokenizers && preTokenizer(pre_tokenizers);
    const whole = this.pieces.map((piece) => piece.replaceAll(META_SPACE, " "));
    const texts = this.words ? decodedPieces(this.pieces, decoders) : [whole, whole];
    if (this.words) this.skippedIds = [...special].filter((id) => id !== this.unknownId);
    [this.initial, this.following] = texts.map((contents) =>
      contents.map((content, id) => {
        if (id === this.unknownId) return UNKNOWN_SURFACE;
        return special.has(id) || id >= file.vocabulary.length ? "" : content;
      }),
    );
  }

  protected override normalize(text: string): string {
    return this.normalizer(text);
  }

  protected override cutPart(part: string, starts: boolean): number[] {
    return this.words ? this.words(part, starts).flatMap((word) => this.cut(word)) : this.cut(part);
  }

  protected cut(text: string): number[] {
    return this.model.encode(text).map(([piece]) => this.idsOfPieces.get(piece) ?? this.unknownId);
  }

  protected join(ids: readonly number[]): string {
    let text = ids.map((id, place) => (place === 0 ? this.initial : this.following)[id]).join("");
    // The prefix space that the model adds, or the leading spaces that it ignores.
    if (!this.words) text = this.keepsSpaces ? removePrefix(text, " ") : text.replace(/^ +/, "");
    return this.settings.clean_up_texts ? cleanedText(text) : text;
  }
}

/** Return whether a model adds a prefix space and preserves all spaces of the text. */
function keepsSpaces(model: SentencePieceModel): boolean {
  return model.normalizer.normalize("  a") === "\u2581\u2581\u2581a";
}

/** Split a text before each space. */
function words(text: string): string[] {
  const split: string[] = [];
  for (const character of text) {
    if (split.length === 0 || character === META_SPACE) split.push("");
    split[split.length - 1] += character;
  }
  return split;
}

/** Decode UTF-8; each byte of an invalid sequence becomes U+FFFD. */
function decodeEachByte(bytes: Uint8Array): string {
  let text = "";
  for (let begin = 0; begin < bytes.length; ) {
    const end = begin + characterLength(bytes[begin]);
    const character = end <= bytes.length ? decodeUtf8(bytes.subarray(begin, end)) : REPLACEMENT;
    const valid = character.codePointAt(0) !== 0xfffd || isReplacement(bytes.subarray(begin, end));
    text += valid ? character : REPLACEMENT;
    begin = valid ? end : begin + 1;
  }
  return text;
}

function isReplacement(bytes: Uint8Array): boolean {
  return bytes.length === 3 && encodeUtf8(REPLACEMENT).every((byte, index) => bytes[index] === byte);
}
