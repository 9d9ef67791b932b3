/** Extractive question answering. */

import { InvalidInputError, range, shown } from "../errors.js";
import { TextPipeline, asList, type CallOptions, type Outputs, type Windows } from "./texts.js";

/** An answer: a span of the context, `context.slice(start, end)`, or none: "". */
export interface Span {
  text: string;
  start: number;
  end: number;
  /** The product of the probabilities of its first and its last token. */
  probability: number;
  /** The logarithm of how many times more probable no answer is than the best span; null without `no_answer_threshold`. */
  noAnswerScore: number | null;
}

export interface QuestionOptions extends CallOptions {
  /** The score above which the answer is "", in place of the export's `no_answer_threshold`, which it must have. */
  noAnswerThreshold?: number;
}

interface Context {
  text: string;
  /** For each token, the places of the first character of its word, and after the last. */
  starts: number[];
  ends: number[];
  threshold: number | null;
}

/** The most probable span of a window, its log-probability, and that of no answer. */
interface Best {
  logProbability: number;
  first: number;
  last: number;
  noAnswer: number;
}

/** Exported extractive question answering. */
export class QuestionAnswering extends TextPipeline<Span, Context> {
  /** Return the most probable span of a context for its question, or of each context for its question. */
  async call(question: string | readonly string[], context: string | readonly string[], options: QuestionOptions = {}): Promise<any> {
    if (typeof question !== "string") asList("question", question);
    const { noAnswerThreshold } = options;
    if (noAnswerThreshold !== undefined) {
      const expected = typeof this.config.no_answer_threshold === "number" ? "a number" : "undefined for an export without no_answer_threshold";
      if (!Number.isFinite(noAnswerThreshold) || expected !== "a number")
        throw new Error(`\`noAnswerThreshold\` must be ${expected}. Received: ${shown(noAnswerThreshold)}`);
    }
    return this.answers({ question, context }, options, noAnswerThreshold);
  }

  protected preprocess([question, text]: readonly string[], truncate: boolean, noAnswerThreshold?: number): [Windows, Context] {
    const threshold = noAnswerThreshold ?? this.config.no_answer_threshold ?? null;
    const context: Context = { text, starts: [], ends: [], threshold };
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

  /** Return the most probable span of all windows, or none. */
  protected postprocess(outputs: Outputs, windows: Windows, { text, starts, ends, threshold }: Context): Span {
    const found = range(windows.ids.length).map((window) => this.best(outputs, windows, window));
    const best = found.reduce((one, other) => (other.logProbability >= one.logProbability ? other : one));
    const [start, end] = [starts[best.first], ends[best.last]];
    const span = { text: text.slice(start, end), start, end, probability: Math.exp(best.logProbability), noAnswerScore: null };
    if (threshold === null) return span;
    const noAnswer = Math.min(...found.map((each) => each.noAnswer));
    const noAnswerScore = noAnswer - best.logProbability;
    if (noAnswerScore <= threshold) return { ...span, noAnswerScore };
    return { text: "", start: 0, end: 0, probability: Math.exp(noAnswer), noAnswerScore };
  }

  private best(outputs: Outputs, windows: Windows, window: number): Best {
    const before = (windows.before?.length ?? 0) + 1 + this.tokenizer.pairSeparators;
    const count = windows.ids[window].length;
    const [starts, ends] = [outputs.start_logits, outputs.end_logits].map(({ windows: rows }) => {
      // The start token means no answer.
      const read = [rows[window][0], ...rows[window].slice(before, before + count)];
      const largest = read.reduce((one, other) => Math.max(one, other));
      const logSum = largest + Math.log(read.reduce((sum, logit) => sum + Math.exp(logit - largest), 0));
      return read.map((logit) => Math.fround(logit - logSum));
    });
    const spans = range(count).flatMap((first) => {
      const after = Math.min(count, first + this.config.max_answer_tokens);
      return range(after - first).map((length) => {
        const last = first + length;
        return { first, last, sum: Math.fround(starts[1 + first] + ends[1 + last]) };
      });
    });
    const { first, last, sum } = spans.reduce((one, other) => (other.sum > one.sum ? other : one));
    const offset = windows.starts[window];
    return { logProbability: sum, first: first + offset, last: last + offset, noAnswer: starts[0] + ends[0] };
  }
}
