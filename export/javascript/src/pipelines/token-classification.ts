/** Classification of the words of a text. */

import { range } from "../errors.js";
import type { Label } from "./classification.js";
import { TextPipeline, argmax, at, softmax, type CallOptions, type Outputs, type Windows } from "./texts.js";

/** A word and its most probable label, or an entity of several words; `text.slice(start, end)` is the word. */
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
  /** The indices of its tokens. */
  tokens: number[];
}

interface TextWithWords {
  text: string;
  words: TextWord[];
}

const OUTSIDE = "O"; // the label of words that are in no entity

/** An exported token classifier. */
export class TokenClassification extends TextPipeline<TaggedWord[], TextWithWords> {
  /** Return the words of each text that have tokens, with their labels, or entities if the export groups words. */
  call(text: string | readonly string[], options: CallOptions = {}): Promise<any> {
    return this.answers({ text }, options);
  }

  protected preprocess([text]: readonly string[], truncate: boolean): [Windows, TextWithWords] {
    const words: TextWord[] = [];
    const ids: number[] = [];
    for (const { ids: wordIds, start, end } of this.tokenizeWords(text)) {
      const tokens = range(wordIds.length).map((place) => ids.length + place);
      if (wordIds.length > 0 && end > start) words.push({ word: text.slice(start, end), start, tokens });
      ids.push(...wordIds);
    }
    const windows = this.windows(ids, "text", truncate);
    const begin = windows.starts[0];
    const end = windows.starts.at(-1)! + windows.ids.at(-1)!.length;
    const isRead = (token: number): boolean => token >= begin && token < end;
    const read = words.filter(({ tokens }) => isRead(tokens[0]));
    return [windows, { text, words: read.map((word) => ({ ...word, tokens: word.tokens.filter(isRead) })) }];
  }

  protected postprocess(outputs: Outputs, windows: Windows, { text, words }: TextWithWords): TaggedWord[] {
    const tagged = words.map(({ word, start, tokens }) => {
      const probabilities = this.probabilities(outputs, windows, tokens);
      const best = argmax(probabilities);
      const label: Label = this.config.labels[best];
      return { word, label, probability: probabilities[best], start, end: start + word.length };
    });
    return this.config.aggregation ? entities(tagged, text) : tagged;
  }

  /** Return the probabilities of the classes of a word, from those of its tokens. */
  private probabilities(outputs: Outputs, windows: Windows, tokens: number[]): Float32Array {
    const aggregation = this.config.aggregation ?? "first";
    const read = aggregation === "first" ? tokens.slice(0, 1) : tokens;
    const rows = read.map((token) => softmax(at(outputs.logits, ...deepest(windows, token))));
    if (aggregation === "average") {
      return rows[0].map((_, label) => rows.reduce((sum, row) => sum + row[label], 0) / rows.length);
    }
    return rows[argmax(rows.map((row) => Math.max(...row)))];
  }
}

/** Join adjacent words of one tag, unless a label begins another entity; words in no entity are omitted. */
function entities(tagged: readonly TaggedWord[], text: string): TaggedWord[] {
  const found: { tag: Label; words: TaggedWord[] }[] = [];
  for (const word of tagged) {
    const [, prefix, name] = /^([BI])-(.*)$/s.exec(String(word.label)) ?? [];
    const tag = name ?? word.label;
    if (found.length === 0 || prefix === "B" || found.at(-1)!.tag !== tag) found.push({ tag, words: [] });
    found.at(-1)!.words.push(word);
  }
  return found
    .filter(({ tag }) => tag !== OUTSIDE)
    .map(({ tag, words }) => {
      const { start } = words[0];
      const { end } = words.at(-1)!;
      const probability = words.reduce((sum, word) => sum + word.probability, 0) / words.length;
      return { word: text.slice(start, end), label: tag, probability, start, end };
    });
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
