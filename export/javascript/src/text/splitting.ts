/** Splitting of long texts at line breaks, sentence ends and spaces, for models that read short ones. */

import { range } from "../errors.js";
import { escaped } from "./tokenizer.js";

// Punctuation that ends a sentence before a space, and in scripts without spaces.
const FINAL = ".!?…‼⁇⁈⁉؟۔܀܁܂।॥།༎։።፧፨។៕။᙮᠃᠉᱾᱿꓿꘎．";
const FINAL_WITHOUT_SPACE = "。！？｡";
const CLOSING = "\"'”’»›)]}）］｝」』】》〉〕";
const CLAUSE = ",;:،؛、，；：፣፤";
const NO_BREAK_SPACE = "\u00a0\u202f\u2007";
// Python's white space, in which the separators of files and records count.
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
// A period after one of them ends no sentence; after the others only before a number does it not.
const ABBREVIATIONS = [
  "dr jr messrs mr mrs ms mt mx prof rev sr st vs cf eg ie approx",
  "bzw ca evtl frl ggf hr hrn inkl nr sog str vgl zzgl",
  "dra dres ee lic sra sras sres srta ud uds vd vds",
  "me mlle mlles mm mme mmes mgr",
  "avv dott ing sig sigg signa",
  "exmo exma sto",
  "bijv dhr drs ir mevr",
  "gen inż np św tzw",
  "гр им напр проф св см ул",
];
const BEFORE_NUMBERS = "abs app art cap cf ch chap eq fig kap n no nos nr num núm p par pág págs pp s sec vol";
const EVERYWHERE = new Set(ABBREVIATIONS.flatMap((words) => words.split(" ")));
const ONLY_BEFORE_NUMBERS = new Set(BEFORE_NUMBERS.split(" "));

const END = new RegExp(
  `[${FINAL}${FINAL_WITHOUT_SPACE}]+` +
    // “ closes in German and opens in Chinese; French has a space before ».
    `(?:[${inClass(CLOSING)}]|[“‘](?![\\p{L}\\p{N}_])|[ ${NO_BREAK_SPACE}][»›](?![^${SPACE}]))*`,
  "gu",
);
const BREAKABLE_SPACE = new RegExp(`^(?:(?![${NO_BREAK_SPACE}])[${SPACE}]|$)`, "u");
const WINDOW = 24; // characters before and after a period that decide whether it ends a sentence
const LAST_WORD = /[\p{L}\p{N}_]+(?:\.[\p{L}\p{N}_]+)*$/u;
const ENDS_OF_CLAUSES = new RegExp(
  `[${CLAUSE}${FINAL}—–][${inClass(CLOSING)}]*(?=[${SPACE}])|[、，；：${FINAL_WITHOUT_SPACE}]`,
  "gu",
);
const SPACES = new RegExp(`[${SPACE}]+`, "gu");
const LINE_BREAK = /\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/gu;
const AROUND = new RegExp(`^[${SPACE}]+|[${SPACE}]+$`, "gu");
// General categories of characters that belong to the one before: marks, joiners, modifiers of emoji.
const EXTENDING = /^[\p{Mn}\p{Mc}\p{Me}\p{Cf}\p{Sk}\u1160-\u11ff\u0e33\u0eb3]/u;
// Signs that join two consonants: those of the canonical combining class 9.
const VIRAMAS =
  "\\u094d\\u09cd\\u0a4d\\u0acd\\u0b4d\\u0bcd\\u0c4d\\u0ccd\\u0d3b-\\u0d3c\\u0d4d\\u0dca\\u0e3a\\u0eba\\u0f84" +
  "\\u1039-\\u103a\\u1714-\\u1715\\u1734\\u17d2\\u1a60\\u1b44\\u1baa-\\u1bab\\u1bf2-\\u1bf3\\u2d7f\\ua806\\ua82c\\ua8c4" +
  "\\ua953\\ua9c0\\uaaf6\\uabed\\u{10a3f}\\u{11046}\\u{11070}\\u{1107f}\\u{110b9}\\u{11133}-\\u{11134}\\u{111c0}" +
  "\\u{11235}\\u{112ea}\\u{1134d}\\u{11442}\\u{114c2}\\u{115bf}\\u{1163f}\\u{116b6}\\u{1172b}\\u{11839}" +
  "\\u{1193d}-\\u{1193e}\\u{119e0}\\u{11a34}\\u{11a47}\\u{11a99}\\u{11c3f}\\u{11d44}-\\u{11d45}\\u{11d97}";
// They, the zero-width joiner and leading Jamo.
const JOINING = new RegExp(`[${VIRAMAS}\\u200d\\u1100-\\u115f]$`, "u");
const REGIONAL_INDICATOR = "[\\u{1f1e6}-\\u{1f1ff}]";
const FLAG = new RegExp(`^${REGIONAL_INDICATOR}${REGIONAL_INDICATOR}`, "u");

/** A text as P ≥ 1 parts, and P + 1 strings before, between and after them, which are not translated. */
export interface Split {
  parts: string[];
  between: string[];
}

/** Return the outputs for the parts of a text with the strings between them. */
export function joined({ between }: Split, outputs: readonly string[]): string {
  return between.map((separator, place) => separator + (outputs[place] ?? "")).join("");
}

/**
 * Split a text into parts that fit a number of tokens.
 *
 * A text of one line that fits is one part. Another is split into lines and these into sentences, one a part: models of
 * translation are trained on sentences, and omit some of several. A sentence that does not fit is halved until its parts
 * do: near its middle at the end of a clause, else at the space nearest to the middle, else between two characters.
 * Strings without letters, such as "* * *", are skipped. A text with a character that does not fit is its only part.
 */
export function splitText(text: string, countTokens: (part: string) => number, maxTokens: number): Split {
  const fits = (part: string): boolean => part === "" || countTokens(part) <= maxTokens;
  const whole = { parts: [text], between: ["", ""] };
  const lines = linesOf(text);
  if (fits(text) && (lines.length === 0 || (lines.length === 1 && text.search(LINE_BREAK) < 0))) return whole;
  const cut = (piece: string): string[] => {
    if (fits(core(piece))) return [piece];
    const parts = halves(piece);
    return parts.length > 1 ? parts.flatMap(cut) : parts;
  };
  const pieces = lines.flatMap(sentences).flatMap(cut);
  if (!pieces.every((piece) => fits(core(piece)))) return whole;
  const parts: string[] = [];
  const between = [""];
  for (const piece of pieces) {
    const part = core(piece);
    const start = part ? piece.indexOf(part) : piece.length;
    between[between.length - 1] += piece.slice(0, start);
    if (!part) continue;
    parts.push(part);
    between.push(piece.slice(start + part.length));
  }
  return parts.length > 0 ? { parts, between } : { parts: [""], between: [...between, ""] };
}

/** Split a text after its line breaks. */
function linesOf(text: string): string[] {
  const ends = [...text.matchAll(LINE_BREAK)].map((match) => match.index + match[0].length);
  return between([0, ...ends, text.length], text);
}

/**
 * Split a line after each of its sentences; spaces after a sentence belong to the next string.
 *
 * A sentence ends with final punctuation, such as "?" or "。", and closing quotes and brackets, before a space, except
 * before a small letter or a comma, and after an abbreviation, an initial or a number of one or two digits. Scripts
 * without spaces need none.
 */
export function sentences(line: string): string[] {
  const ends = [...line.matchAll(END)].filter((match) => isEnd(line, match));
  return between([0, ...ends.map((match) => match.index + match[0].length), line.length], line);
}

function between(cuts: readonly number[], text: string): string[] {
  return range(cuts.length - 1)
    .map((place) => text.slice(cuts[place], cuts[place + 1]))
    .filter((part) => part !== "");
}

/** Return whether final punctuation, and closing quotes and brackets after it, end a sentence. */
function isEnd(line: string, match: RegExpMatchArray): boolean {
  const end = match.index! + match[0].length;
  const after = line.slice(end);
  if (!BREAKABLE_SPACE.test(after)) {
    return FINAL_WITHOUT_SPACE.includes(line[end - 1]) && !CLAUSE.includes(line[end]);
  }
  const following = first(after, WINDOW).replace(new RegExp(`^[${SPACE}]+`, "u"), "");
  const letter = /[\p{L}\p{N}]/u.exec(following)?.[0] ?? "";
  if (/\p{Lowercase}/u.test(letter) || (following && CLAUSE.includes(following[0]))) return false;
  return match[0] !== "." || !isAbbreviation(line.slice(0, match.index), /[\p{Nd}²³¹⁰⁴-⁹₀-₉]/u.test(letter));
}

/** Return whether the word at the end of a text is an abbreviation, an initial or a number of one or two digits. */
function isAbbreviation(text: string, beforeNumber: boolean): boolean {
  const word = LAST_WORD.exec(Array.from(text.slice(-2 * WINDOW)).slice(-WINDOW).join(""));
  if (!word) return false;
  const letters = word[0].toLowerCase();
  return (
    EVERYWHERE.has(letters) ||
    (beforeNumber && ONLY_BEFORE_NUMBERS.has(letters)) ||
    /^[\p{Nd}²³¹⁰⁴-⁹₀-₉]{1,2}$/u.test(letters) ||
    letters.split(".").every((letter) => /^\p{L}$/u.test(letter))
  );
}

/** Return a piece without spaces around it, "" if it has no letters. */
function core(piece: string): string {
  return /\p{L}/u.test(piece) ? piece.replace(AROUND, "") : "";
}

/** Cut a piece in two near its middle; one of a single character is returned as it is. */
function halves(piece: string): string[] {
  // Places are counted in characters, not in the units of UTF-16.
  const characters = Array.from(piece);
  const length = (text: string): number => Array.from(text).length;
  const end = length(piece.replace(new RegExp(`[${SPACE}]+$`, "u"), ""));
  const start = characters.length - length(piece.replace(new RegExp(`^[${SPACE}]+`, "u"), ""));
  const middle = Math.floor((start + end) / 2);
  const quarter = (end - start) / 4;
  const inside = characters.slice(start, end).join("");
  const [clauses, spaces] = [ENDS_OF_CLAUSES, SPACES].map((pattern) =>
    [...piece.matchAll(pattern)]
      .map((match) => length(piece.slice(0, match.index + match[0].length)))
      .filter((cut) => start < cut && cut < end),
  );
  let cuts = clauses.filter((cut) => Math.abs(cut - middle) <= quarter);
  if (cuts.length === 0) cuts = spaces;
  if (cuts.length === 0) {
    const around = range(length(inside)).flatMap((distance) => [middle + distance, middle - distance]);
    cuts = around.filter((cut) => start < cut && cut < end && !isInside(characters, cut)).slice(0, 1);
  }
  if (cuts.length === 0) return [piece];
  const distance = (cut: number): number => Math.abs(cut - middle);
  const cut = cuts.reduce((one, other) => (distance(other) < distance(one) ? other : one));
  return [characters.slice(0, cut).join(""), characters.slice(cut).join("")];
}

/**
 * Return whether a place is inside a user-perceived character.
 *
 * @see Unicode Standard Annex #29, section 3: extended grapheme clusters, here with all flags and all conjuncts in a row
 * as one.
 */
function isInside(characters: readonly string[], cut: number): boolean {
  const [before, after] = [characters[cut - 1], characters[cut]];
  return EXTENDING.test(after) || JOINING.test(before) || FLAG.test(before + after);
}

function first(text: string, count: number): string {
  return Array.from(text.slice(0, 2 * count))
    .slice(0, count)
    .join("");
}

/** Escape characters for a class of a regular expression. */
function inClass(characters: string): string {
  return escaped(characters).replaceAll("-", "\\-");
}
