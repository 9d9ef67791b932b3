/**
 * Segmentation by SentencePiece's unigram models, as in the version of the library inside tensorflow_text.
 *
 * Segmentations of equal probability differ only by rounding: a candidate in float64 is compared with the best so far in
 * float32, which newer versions of the library do not.
 */

import { encodeUtf8 } from "./tokenizer.js";

/** The types of pieces in a SentencePiece model. */
export const NORMAL = 1;
export const UNKNOWN = 2;
export const CONTROL = 3;
export const USER_DEFINED = 4;
export const UNUSED = 5;
export const BYTE = 6;

/** A piece of a SentencePiece model. */
export interface Piece {
  text: string;
  score: number;
  type: number;
}

const SMALLEST = 2 ** -126; // the smallest positive normal float32
const UNKNOWN_PENALTY = 10;

/**
 * Split normalised texts into the most probable pieces.
 *
 * @see `Model::EncodeOptimized` of sentencepiece 0.1.96, `src/unigram_model.cc`.
 */
export class Unigram {
  private readonly unknownScore: number;
  /** The id and score of each piece; undefined for the beginning of a piece that is not a piece. */
  private readonly table = new Map<string, [number, number] | undefined>();

  constructor(
    pieces: readonly Piece[],
    private readonly unknownId: number,
  ) {
    let lowest = Infinity;
    let largest = SMALLEST;
    for (const { score, type } of pieces) {
      if (type !== NORMAL) continue;
      lowest = Math.min(lowest, score);
      largest = Math.max(largest, score);
    }
    this.unknownScore = Math.fround(lowest - UNKNOWN_PENALTY);
    pieces.forEach(({ text, score, type }, id) => {
      if (type !== NORMAL && type !== USER_DEFINED && type !== UNUSED) return;
      let beginning = "";
      for (const character of text) {
        if (beginning && !this.table.has(beginning)) this.table.set(beginning, undefined);
        beginning += character;
      }
      const own = type === USER_DEFINED ? Math.fround(encodeUtf8(text).length * largest) - 0.1 : score;
      this.table.set(text, type === UNUSED ? undefined : [id, own]);
    });
  }

  /** Return the pieces of a normalised text and their ids; each unknown character is a piece. */
  encode(text: string): [string, number][] {
    const characters = [...text];
    const count = characters.length;
    const scores = new Float32Array(count + 1);
    const starts = new Int32Array(count + 1).fill(-1);
    const ids = new Int32Array(count + 1).fill(this.unknownId);
    const update = (start: number, end: number, score: number, id: number): void => {
      if (starts[end] >= 0 && score <= scores[end]) return;
      scores[end] = score;
      starts[end] = start;
      ids[end] = id;
    };
    for (let start = 0; start < count; start += 1) {
      const here = scores[start];
      let single = false;
      let piece = "";
      for (let end = start + 1; end <= count; end += 1) {
        piece += characters[end - 1];
        const entry = this.table.get(piece);
        if (entry) {
          update(start, end, entry[1] + here, entry[0]); // in float64
          single ||= end === start + 1;
        } else if (!this.table.has(piece)) break;
      }
      if (!single) update(start, start + 1, Math.fround(this.unknownScore + here), this.unknownId);
    }
    const pieces: [string, number][] = [];
    for (let end = count; end > 0; end = starts[end]) {
      pieces.push([characters.slice(starts[end], end).join(""), ids[end]]);
    }
    return pieces.reverse();
  }
}
