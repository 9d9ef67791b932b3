/** Extractive question answering. */

import { InvalidInputError, range } from "../errors.js";
import { TextPipeline, asList, type CallOptions, type Outputs, type Windows } from "./texts.js";

/** An answer: a span of the context, `context.slice(start, end)`, and its probability among all of its window. */
export interface Span {
  text: string;
  start: number;
  end: number;
  probability: number;
}

interface Context {
  text: string;
  /** For each token, the places of the first character of its word, and after the last. */
  starts: number[];
  ends: number[];
}

interface Best {
  sum: number;
  first: number;
  last: number;
  probability: number;
}

/** Exported extractive question answering. */
export class QuestionAnswering extends TextPipeline<Span, Context> {
  /** Return the most probable span of a context for its question, or of each context for its question. */
  async call(question: string | readonly string[], context: string | readonly string[], options: CallOptions = {}): Promise<any> {
    if (typeof question !== "string") asList("question", question);
    return this.answers({ question, context }, options);
  }

  protected preprocess([question, text]: readonly string[], truncate: boolean): [Windows, Context] {
    const context: Context = { text, starts: [], ends: [] };
    const ids: number[] = [];
    for (const word of this.tokenizeWords(text)) {
      for (const id of word.ids) {
        ids.push(id);
        context.starts.push(word.start);
        context.ends.push(word.end);
      }
    }
    if (!context.starts.some((start, token) => context.ends[token] > start)) throw new InvalidInputError("context", "`context` must contain a word. Received: none");
    const first = { name: "question", ids: this.tokenizer.tokenize(question) };
    return [this.windows(ids, "context", truncate, first), context];
  }

  /** Return the span with the largest sum of start and end logits. */
  protected postprocess(outputs: Outputs, windows: Windows, { text, starts, ends }: Context): Span {
    const spans = range(windows.ids.length).map((window) => this.best(outputs, windows, window));
    const { first, last, probability } = spans.reduce((one, other) => (other.sum >= one.sum ? other : one));
    const [start, end] = [starts[first], ends[last]];
    return { text: text.slice(start, end), start, end, probability };
  }

  private best(outputs: Outputs, windows: Windows, window: number): Best {
    const before = (windows.before?.length ?? 0) + 1 + this.tokenizer.pairSeparators;
    const count = windows.ids[window].length;
    const [starts, ends] = [outputs.start_logits, outputs.end_logits].map(({ windows: rows }) =>
      rows[window].slice(before, before + count),
    );
    const spans = range(count).flatMap((first) => {
      const after = Math.min(count, first + this.config.max_answer_tokens);
      return range(after - first).map((length) => {
        const last = first + length;
        return { first, last, sum: Math.fround(starts[first] + ends[last]) };
      });
    });
    const { first, last, sum } = spans.reduce((one, other) => (other.sum > one.sum ? other : one));
    const total = spans.reduce((all, span) => all + Math.exp(span.sum - sum), 0);
    const offset = windows.starts[window];
    return { sum, first: first + offset, last: last + offset, probability: 1 / total };
  }
}
