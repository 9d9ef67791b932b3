/** Embeddings of texts. */

import { InvalidInputError, shown } from "../errors.js";
import { TextPipeline, asList, type CallOptions, type Outputs, type Windows } from "./texts.js";

export interface EmbeddingOptions extends CallOptions {
  /** The name of a prompt of the export that is put before each text, by default that of the export's setting. */
  promptName?: string;
  /** A prompt without a name; "" for none. */
  prompt?: string;
  /** The number of first values of vectors to keep, which are normalised again if the export normalises vectors. */
  truncateDim?: number;
}

/** An exported encoder of sentences. */
export class Embedding extends TextPipeline<Float32Array> {
  /** Return the vector of each text, a Float32Array. */
  async call(
    text: string | readonly string[],
    { promptName, prompt, truncateDim, ...options }: EmbeddingOptions = {},
  ): Promise<any> {
    const size: number = this.config.model_dim;
    if (truncateDim !== undefined && !(Number.isInteger(truncateDim) && truncateDim >= 1 && truncateDim <= size)) {
      throw new Error(`\`truncateDim\` must be an integer in [1, ${size}]. Received: truncateDim=${shown(truncateDim)}`);
    }
    const before = this.promptOf(promptName, prompt);
    const prefixed = (each: unknown): unknown => (typeof each === "string" ? before + each : each);
    const texts = typeof text === "string" ? before + text : asList("text", text).map(prefixed);
    const answers = await this.answers({ text: texts as string | string[] }, options);
    if (truncateDim === undefined) return answers;
    const first = (vector: unknown): unknown =>
      vector instanceof Float32Array ? this.normalized(vector.slice(0, truncateDim)) : vector;
    return Array.isArray(answers) ? answers.map(first) : first(answers);
  }

  protected preprocess(texts: readonly string[], truncate: boolean): [Windows, undefined] {
    return [this.windows(this.tokenizer.tokenize(texts[0]), "text", truncate), undefined];
  }

  /** Average the vectors of the windows of a text, weighted by their numbers of tokens. */
  protected postprocess(outputs: Outputs, { ids }: Windows): Float32Array {
    const { windows } = outputs.pooled;
    const weights = ids.map((window) => window.length + 2);
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const mean = windows[0].map((_, place) => windows.reduce((sum, row, w) => sum + weights[w] * row[place], 0) / total);
    return this.normalized(mean);
  }

  /** Return a vector of length 1 if the export normalises vectors. */
  private normalized(vector: Float32Array): Float32Array {
    if (!this.config.normalize) return vector;
    const norm = Math.sqrt(Math.max(vector.reduce((sum, value) => sum + value * value, 0), 1e-12));
    return vector.map((value) => value / norm);
  }

  private promptOf(promptName: string | undefined, prompt: string | undefined): string {
    const prompts: Record<string, string> = this.config.prompts ?? {};
    if (prompt !== undefined) {
      if (promptName !== undefined) {
        throw new Error(
          "`prompt` must be undefined beside a `promptName`. " +
            `Received: promptName=${shown(promptName)}, prompt=${shown(prompt)}`,
        );
      }
      if (typeof prompt !== "string") throw new Error(`\`prompt\` must be a string. Received: prompt=${shown(prompt)}`);
      return prompt;
    }
    const name = promptName ?? (this.config.default_prompt_name || undefined);
    if (name === undefined) return "";
    if (!Object.hasOwn(prompts, name)) {
      throw new InvalidInputError(
        "promptName",
        `\`promptName\` must be one of ${shown(Object.keys(prompts))}. Received: promptName=${shown(name)}`,
      );
    }
    return prompts[name];
  }
}
