/** Embeddings of texts. */

import { InvalidInputError, shown } from "../errors.js";
import { TextPipeline, asList, type CallOptions, type Outputs, type Windows } from "./texts.js";

export interface EmbeddingOptions extends CallOptions {
  /** The name of a prompt of the export that is put before each text, by default that of the export's setting. */
  promptName?: string;
  /** A prompt without a name; "" for none. */
  prompt?: string;
}

/** An exported encoder of sentences. */
export class Embedding extends TextPipeline<Float32Array> {
  /** Return the vector of each text, a Float32Array. */
  async call(text: string | readonly string[], { promptName, prompt, ...options }: EmbeddingOptions = {}): Promise<any> {
    const before = this.promptOf(promptName, prompt);
    const prefixed = (each: unknown): unknown => (typeof each === "string" ? before + each : each);
    const texts = typeof text === "string" ? before + text : asList("text", text).map(prefixed);
    return this.answers({ text: texts as string | string[] }, options);
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
    if (!this.config.normalize) return mean;
    const norm = Math.sqrt(Math.max(mean.reduce((sum, value) => sum + value * value, 0), 1e-12));
    return mean.map((value) => value / norm);
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
