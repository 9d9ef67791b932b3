/** Classification of the words of a text. */

import { range } from "../errors.js";
import type { Label } from "./classification.js";
import { TextPipeline, argmax, at, softmax, type CallOptions, type Outputs, type Windows } from "./texts.js";

/** What is not white space, in which Python counts separators of files and records. */
export const WORD =
  /[^\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/gu;

/** A word and its most probable label; `text.slice(start, end)` is the word. */
export interface TaggedWord {
  word: string;
  label: Label;
  probability: number;
  start: number;
  end: number;
}

interface Word {
  word: string;
  start: number;
  /** The index of its first token. */
  token: number;
}

/** An exported token classifier. */
export class TokenClassification extends TextPipeline<TaggedWord[], Word[]> {
  /** Return the words of each text that have tokens, with their labels. */
  call(text: string | readonly string[], options: CallOptions = {}): Promise<any> {
    return this.answers({ text }, options);
  }

  protected preprocess([text]: readonly string[], truncate: boolean): [Windows, Word[]] {
    const words: Word[] = [];
    const ids: number[] = [];
    for (const match of text.matchAll(WORD)) {
      const wordIds = this.tokenizer.tokenize(match[0]);
      if (wordIds.length > 0) words.push({ word: match[0], start: match.index, token: ids.length });
      ids.push(...wordIds);
    }
    const windows = this.windows(ids, "text", truncate);
    const read = windows.starts.at(-1)! + windows.ids.at(-1)!.length;
    return [windows, words.filter(({ token }) => token < read)];
  }

  protected postprocess(outputs: Outputs, windows: Windows, words: Word[]): TaggedWord[] {
    return words.map(({ word, start, token }) => {
      const probabilities = softmax(at(outputs.logits, ...deepest(windows, token)));
      const best = argmax(probabilities);
      const label = this.config.labels[best];
      return { word, label, probability: probabilities[best], start, end: start + word.length };
    });
  }
}

/** Return the first window in which a token is farthest from a margin, and its place there. */
function deepest({ ids, starts }: Windows, token: number): [number, number] {
  const depths = range(ids.length).map((window) => {
    const place = token - starts[window];
    return Math.min(place, ids[window].length - 1 - place);
  });
  const window = argmax(depths);
  return [window, token - starts[window] + 1]; // after the start id
}
