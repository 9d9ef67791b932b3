/** Classification of the words of a text. */

import { range } from "../errors.js";
import type { Label } from "./classification.js";
import { TextPipeline, argmax, at, softmax, type CallOptions, type Outputs, type Windows } from "./texts.js";

/** A word and its most probable label; `text.slice(start, end)` is the word. */
export interface TaggedWord {
  word: string;
  label: Label;
  probability: number;
  start: number;
  end: number;
}

interface TextWord {
  word: string;
  start: number;
  /** The index of its first token. */
  token: number;
}

/** An exported token classifier. */
export class TokenClassification extends TextPipeline<TaggedWord[], TextWord[]> {
  /** Return the words of each text that have tokens, with their labels. */
  call(text: string | readonly string[], options: CallOptions = {}): Promise<any> {
    return this.answers({ text }, options);
  }

  protected preprocess([text]: readonly string[], truncate: boolean): [Windows, TextWord[]] {
    const words: TextWord[] = [];
    const ids: number[] = [];
    for (const { ids: wordIds, start, end } of this.tokenizeWords(text)) {
      if (wordIds.length > 0 && end > start) words.push({ word: text.slice(start, end), start, token: ids.length });
      ids.push(...wordIds);
    }
    const windows = this.windows(ids, "text", truncate);
    const begin = windows.starts[0];
    const end = windows.starts.at(-1)! + windows.ids.at(-1)!.length;
    return [windows, words.filter(({ token }) => token >= begin && token < end)];
  }

  protected postprocess(outputs: Outputs, windows: Windows, words: TextWord[]): TaggedWord[] {
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
