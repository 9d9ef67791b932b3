/** The tokenizers of exports. */

import { ParityError, shown } from "../errors.js";
import { ByteTokenizer } from "./bytes.js";
import { BytePairTokenizer, LlamaTokenizer } from "./pairs.js";
import { MarianT5Tokenizer, SentencePieceTokenizer } from "./sentence-piece.js";
import type { Tokenizer } from "./tokenizer.js";
import { OpenAIGPTTokenizer, WordPieceTokenizer } from "./words.js";

export { Tokenizer } from "./tokenizer.js";

const CLASSES: Record<string, new (model: Uint8Array) => Tokenizer> = {
  BytePairTokenizer,
  ByteTokenizer,
  LlamaTokenizer,
  MarianT5Tokenizer,
  OpenAIGPTTokenizer,
  SentencePieceTokenizer,
  WordPieceTokenizer,
};

/** Texts, and their ids and decoded ids at export. */
export interface TokenizerExamples {
  texts: string[];
  ids: number[][];
  decoded: string[];
}

/**
 * Return the tokenizer of a class from the content of its file.
 *
 * @throws if the class is unknown: the tokenizer needs TensorFlow.
 */
export function tokenizerOf(name: string | undefined, model: Uint8Array): Tokenizer {
  const known = name !== undefined && Object.hasOwn(CLASSES, name);
  if (!known) {
    throw new Error(`\`tokenizer_class\` must be one of ${Object.keys(CLASSES).join(", ")}. Received: ${shown(name)}`);
  }
  return new CLASSES[name](model);
}

/** Throw a ParityError unless a tokenizer gives the ids and texts of the pipeline's tokenizer at export. */
export function compareTokenizers(tokenizer: Tokenizer, { texts, ids, decoded }: TokenizerExamples): void {
  texts.forEach((text, row) => {
    const found = tokenizer.tokenize(text);
    const back = tokenizer.detokenize(ids[row]);
    if (shown(found, Infinity) !== shown(ids[row], Infinity) || back !== decoded[row]) {
      throw new ParityError(
        "`tokenizer` must give the ids and texts of the pipeline's, which this engine's version of Unicode may not. " +
          `For ${shown(text)}, expected ${shown(ids[row])} ${shown(decoded[row])}. ` +
          `Received: ${shown(found)} ${shown(back)}`,
      );
    }
  });
}
