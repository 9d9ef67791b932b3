/** The normalisers, pre-tokenizers and decoders of a `tokenizer.json` of unigrams. */

import { CharacterMap } from "./normalizer.js";
import { WHITE_SPACE, decodeUtf8, escaped } from "./tokenizer.js";

/** A step of a `tokenizer.json`, as the tokenizer's file has it. */
export interface Step {
  type: string;
  [name: string]: any;
}

const TEXT_CLEANED: readonly [string, string][] = [
  ...[".", "?", "!", ","].map((mark): [string, string] => [` ${mark}`, mark]),
  [" ' ", "'"],
  ...["n't", "'m", "'s", "'ve", "'re"].map((ending): [string, string] => [` ${ending}`, ending]),
];

/** Return a decoded text without the spaces before punctuation, as `clean_up_tokenization` of `transformers`. */
export function cleanedText(text: string): string {
  return TEXT_CLEANED.reduce((whole, [old, now]) => whole.replaceAll(old, now), text);
}

/**
 * Return a function that normalises texts.
 *
 * @param steps the normalisers: "Replace", "Strip", or "Precompiled", whose map is that of the model if it has none.
 * @param ownMap the model's character map.
 */
export function normalizer(steps: readonly Step[], ownMap: Uint8Array): (text: string) => string {
  const functions = steps.map((step) => normalizerStep(step, ownMap));
  return (text) => functions.reduce((normal, apply) => apply(normal), text);
}

function normalizerStep(step: Step, ownMap: Uint8Array): (text: string) => string {
  switch (step.type) {
    case "Replace": {
      const pattern = new RegExp(step.pattern.Regex ?? escaped(step.pattern.String), "gu");
      return (text) => text.replace(pattern, () => step.content);
    }
    case "Strip": {
      const left = new RegExp(`^${WHITE_SPACE}+`, "u");
      const right = new RegExp(`${WHITE_SPACE}+$`, "u");
      return (text) => {
        const rest = step.strip_left ? text.replace(left, "") : text;
        return step.strip_right ? rest.replace(right, "") : rest;
      };
    }
    case "Precompiled": {
      const blob =
        step.precompiled_charsmap === undefined
          ? ownMap
          : Uint8Array.from(atob(step.precompiled_charsmap), (unit) => unit.charCodeAt(0));
      if (blob.length === 0) return (text) => text;
      const map = new CharacterMap(blob);
      return (text) => decodeUtf8(map.apply(text));
    }
    default:
      throw new Error(`\`normalizers\` must be Replace, Strip or Precompiled. Received: ${step.type}`);
  }
}

/**
 * Return a function that splits a part of a text, which may start it, into words.
 *
 * @param steps the pre-tokenizers: "WhitespaceSplit", and after it "Metaspace".
 */
export function preTokenizer(steps: readonly Step[]): (part: string, starts: boolean) => string[] {
  const splits = steps.some(({ type }) => type === "WhitespaceSplit");
  const metaspace = steps.find(({ type }) => type === "Metaspace");
  const spaces = new RegExp(`${WHITE_SPACE}+`, "u");
  return (part, starts) => {
    const words = splits ? part.split(spaces) : [part];
    const first = starts && words[0] !== ""; // no white space is before the word
    const found = words.filter((word) => word !== "");
    if (!metaspace) return found;
    const space: string = metaspace.replacement;
    return found.flatMap((word, place) => {
      const whole = word.replaceAll(" ", space);
      const scheme = metaspace.prepend_scheme;
      const needsSpace = scheme === "always" || (scheme === "first" && first && place === 0);
      const prefixed = needsSpace && !whole.startsWith(space) ? space + whole : whole;
      if (!metaspace.split) return [prefixed];
      const [beginning, ...rest] = prefixed.split(space);
      return [...(beginning ? [beginning] : []), ...rest.map((piece) => space + piece)];
    });
  };
}

/** Return the texts of pieces that are the first of their row, and of others; no decoder separates pieces by spaces. */
export function decodedPieces(pieces: readonly string[], decoders: readonly Step[]): [string[], string[]] {
  const [metaspace] = decoders;
  if (!metaspace) return [[...pieces], pieces.map((piece) => ` ${piece}`)];
  const following = pieces.map((piece) => piece.replaceAll(metaspace.replacement, " "));
  const dropped = pieces.map((piece) => piece.replaceAll(metaspace.replacement, ""));
  return [metaspace.prepend_scheme === "never" ? [...following] : dropped, following];
}
