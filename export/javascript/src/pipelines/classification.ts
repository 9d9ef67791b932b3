/** Classification of texts and pairs of texts. */

import { TextPipeline, argmax, asList, type CallOptions, type Outputs, type Windows } from "./texts.js";

/** A label of an export. */
export type Label = string | number;
/** The most probable label; all labels above the threshold; the number or numbers of a regression. */
export type Classes = Label | Label[] | number[];

/** The second texts of pairs, besides the other options. */
export interface ClassificationOptions extends CallOptions {
  textPair?: string | readonly string[];
}

/** An exported text classifier, or regression. */
export class TextClassification extends TextPipeline<Float32Array> {
  /** Return the label, the labels or the number of each text, or each pair. */
  async call(text: string | readonly string[], options: ClassificationOptions = {}): Promise<any> {
    const scores = await this.scores(text, options);
    if (typeof text === "string") return this.classesOf(scores);
    return scores.map((row: Float32Array | Error) => (row instanceof Error ? row : this.classesOf(row)));
  }

  /** Return the probability of each class, a Float32Array for each text. */
  async probabilities(text: string | readonly string[], options: ClassificationOptions = {}): Promise<any> {
    if (this.config.problem_type === "regression") {
      throw new Error(
        "`probabilities` needs a classifier; `scores` are the numbers of a regression. " +
          'Received: problem_type="regression"',
      );
    }
    return this.scores(text, options);
  }

  /** Return the probabilities, or the numbers of a regression, as `probabilities` does. */
  scores(text: string | readonly string[], { textPair, ...options }: ClassificationOptions = {}): Promise<any> {
    if (typeof text !== "string") asList("text", text);
    if (textPair === undefined && this.config.symmetric) {
      throw new Error("`textPair` is required, because the model compares two texts. Received: textPair=undefined");
    }
    return this.answers(textPair === undefined ? { text } : { text, textPair }, options);
  }

  protected preprocess(texts: readonly string[], truncate: boolean): [Windows, undefined] {
    if (texts.length === 2) return [this.pairWindows(["text", "textPair"], texts, truncate), undefined];
    return [this.windows(this.tokenizer.tokenize(texts[0]), "text", truncate), undefined];
  }

  /** Average the scores of the windows of a text. */
  protected postprocess(outputs: Outputs, { ids }: Windows): Float32Array {
    const { windows } = outputs.probabilities ?? outputs.logits;
    return windows[0].map((_, place) => windows.reduce((sum, row) => sum + row[place], 0) / ids.length);
  }

  private classesOf(scores: Float32Array): Classes {
    const { labels, problem_type: problemType, threshold } = this.config;
    if (problemType === "regression") return scores.length === 1 ? scores[0] : Array.from(scores);
    if (problemType === "multi_label_classification") {
      return labels.filter((_: Label, place: number) => scores[place] > threshold);
    }
    return labels[argmax(scores)];
  }
}
