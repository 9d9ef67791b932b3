/** Regular expressions of words, as in a tokenizer's file: in the syntax of Oniguruma, written in JavaScript's. */

import { WHITE_SPACE } from "./tokenizer.js";

export const GPT_2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
export const DIGIT = "\\p{N}";

const SPACES = WHITE_SPACE.slice(1, -1); // JavaScript's \s differs from Unicode's white space
const TOKEN = /\(\?i:|\(\?[:!]|[()[\]$]|\\[pP]\{\w+\}|\\.|./gsu;
// The long s and the sign of the kelvin have the lower case of an s and a k.
const OTHER_CASES: Record<string, string> = { s: "\u017f", k: "\u212a" };

/** Return the regular expression of a pattern, which the tokenizer that wrote the file has checked. */
export function compiled(pattern: string): RegExp {
  const groups = [false]; // whether the case is ignored in each open group
  let inClass = false;
  const parts = Array.from(pattern.matchAll(TOKEN), ([token]) => {
    if (inClass) {
      inClass = token !== "]";
      if (token === "\\s") return SPACES;
      return token.startsWith("\\") ? escape(token) : token;
    }
    switch (token) {
      case "[":
        inClass = true;
        return token;
      case "(?i:":
      case "(?:":
      case "(?!":
      case "(":
        groups.push(token === "(?i:" || groups[groups.length - 1]);
        return token === "(?!" ? token : "(?:";
      case ")":
        groups.pop();
        return token;
      case "$": // also before a line break
        return "(?=\\n|$)";
      case "\\s":
        return WHITE_SPACE;
      case "\\S":
        return `[^${SPACES}]`;
    }
    if (groups[groups.length - 1] && /^[a-z]$/i.test(token)) {
      const small = token.toLowerCase();
      return `[${small}${small.toUpperCase()}${OTHER_CASES[small] ?? ""}]`;
    }
    return token.startsWith("\\") ? escape(token) : token;
  });
  return new RegExp(parts.join(""), "gu");
}

/** Return an escape without a backslash that JavaScript refuses. */
function escape(token: string): string {
  return /^\\[^pPrnt\\^$.*+?()[\]{}|/-]$/u.test(token) ? token.slice(1) : token;
}

/** Return the strings that match a pattern, and those between them. */
export function isolated(text: string, pattern: RegExp): string[] {
  const parts: string[] = [];
  let end = 0;
  for (const { 0: match, index } of text.matchAll(pattern)) {
    parts.push(text.slice(end, index), match);
    end = index + match.length;
  }
  return [...parts, text.slice(end)].filter((part) => part !== "");
}
