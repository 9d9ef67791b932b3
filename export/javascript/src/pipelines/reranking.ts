/** Reranking: the scores of texts for a query. */

import { checkPositiveInteger, shown } from "../errors.js";
import { TextPipeline, asList, type CallOptions, type Outputs, type Windows } from "./texts.js";

/** A text in a ranking: its index among those that were ranked, and its score. */
export interface RankedText {
  textIndex: number;
  score: number;
}

export interface RankOptions extends CallOptions {
  /** The maximum number of texts; by default all. */
  topK?: number;
}

/** An exported cross-encoder. */
export class Reranking extends TextPipeline<number> {
  /** Return the score of each text for the query, or for its own query of a list. */
  async call(query: string | readonly string[], text: string | readonly string[], options: CallOptions = {}): Promise<any> {
    const texts = typeof text === "string" ? text : asList("text", text);
    const queries = typeof query === "string" && Array.isArray(texts) ? texts.map(() => query) : query;
    return this.answers({ query: queries, text: texts }, options);
  }

  /** Return the texts with the highest scores for a query, the highest first. */
  async rank(query: string, text: readonly string[], { topK, ...options }: RankOptions = {}): Promise<RankedText[]> {
    if (topK !== undefined) checkPositiveInteger("topK", topK);
    if (typeof query !== "string") throw new Error(`\`query\` must be a string. Received: query=${shown(query)}`);
    const scores: number[] = await this.call(query, asList("text", text), options);
    return scores
      .map((score, textIndex) => ({ textIndex, score }))
      .sort((one, other) => other.score - one.score)
      .slice(0, topK);
  }

  protected preprocess(texts: readonly string[], truncate: boolean): [Windows, undefined] {
    return [this.pairWindows(["query", "text"], texts, truncate), undefined];
  }

  /** Return the largest score of the windows of a text. */
  protected postprocess(outputs: Outputs): number {
    return Math.max(...outputs.scores.windows.map(([score]) => score));
  }
}
