/** The base class of tokenizers, which converts special tokens and decodes ids. */

/** Unicode's white space, as a class of a regular expression. */
export const WHITE_SPACE = "[\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";

/** U+2581, which pieces of SentencePiece have for a space. */
export const META_SPACE = "\u2581";
const PUNCTUATION =
  /[!-\/:-@\[-`{-~\u00a1-\u00a9\u00ab-\u00b1\u00b4\u00b6-\u00b8\u00bb\u00bf\u060c\u061b\u061f\u0964\u0965\u2010-\u2027\u2030-\u205e\u20a0-\u20cf\u2190-\u2bff\u3001-\u3003\u3008-\u3020\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]/u;

/** The settings in a tokenizer's file. */
export interface Settings {
  special_tokens: Partial<Record<"pad" | "unknown" | "start" | "end" | "mask", string>>;
  special_tokens_in_text?: boolean;
  [name: string]: any;
}

/** A word of a text, its ids, and where it starts and ends there; of white space, both are equal. */
export interface Word {
  ids: number[];
  start: number;
  end: number;
}

/** The start and the end of a character in a text. */
export type Span = readonly [number, number];

/** Convert text to ids and back; a subclass sets the fields and implements `cut` and `join`. */
export abstract class Tokenizer {
  /** The padding id; null if there is none. */
  padId: number | null = null;
  /** The id of text that is out of vocabulary, and of the tokens of these roles; −1 if there is none. */
  unknownId = -1;
  startId = -1;
  endId = -1;
  maskId = -1;
  /** The special tokens and their ids. */
  specialTokenIds: ReadonlyMap<string, number> = new Map();
  /** The pieces in the order of their ids. */
  pieces: readonly string[] = [];
  /** The number of end tokens between the texts of a pair. */
  pairSeparators = 1;
  /** The ids before each source of an encoder–decoder, which decoded texts are without. */
  sourcePrefixIds: readonly number[] = [];
  /** Whether a mask token takes the white space before it. */
  lstripMask = false;
  /** The id of each language's token, by the code of the language. */
  languages: ReadonlyMap<string, number> = new Map();
  /** Whether a source is followed by the token of its language, instead of beginning with it. */
  languageAfterSource = false;
  /** Whether a target begins with the token of its language in place of the start token. */
  languageIsStart = false;
  /** The settings in the tokenizer's file, among them those of tokens that are recognised in texts. */
  protected readonly settings: Settings = { special_tokens: {} };
  /** The pieces and their ids. */
  protected readonly ids: ReadonlyMap<string, number> = new Map();
  /** Other ids that decoded texts are without. */
  protected skippedIds: readonly number[] = [];
  private readonly stages = new Map<boolean, TokensInText[]>();

  /** Convert a text without special tokens to ids. */
  protected abstract cut(text: string): number[];

  /** Normalise a text. */
  protected normalize(text: string): string {
    return text;
  }

  /** Convert a normalised part of a text, which may start it, to ids. */
  protected cutPart(part: string, _starts: boolean): number[] {
    return this.cut(part);
  }

  /** Return the words of a normalised text without special tokens; undefined if white space delimits words. */
  protected cutWords?(text: string): Word[];

  /** Return for each unit of a normalised text the character of the text from which it is. */
  protected sources(text: string, _normal: string): Span[] {
    return spansOf(text).flatMap((span) => Array<Span>(this.normalize(text.slice(...span)).length).fill(span));
  }

  /** Convert ids to text. */
  protected abstract join(ids: readonly number[]): string;

  /** The id that pads short rows: `padId`, or `endId` if that is null. */
  get paddingValue(): number {
    return this.padId ?? this.endId;
  }

  /** Convert a text to ids, without special ids around them, and with those of special tokens in it if they are to be. */
  tokenize(text: string, specialTokens = false): number[] {
    return this.tokenizePart(text, true, this.tokensInText(specialTokens));
  }

  /**
   * Return the words of a text, which have its ids.
   *
   * Byte-level BPE and WordPiece have the words of their pre-tokenizer; white space delimits those of other tokenizers,
   * whose pieces of punctuation are words of their own.
   */
  tokenizeWords(text: string): Word[] {
    if (!this.cutWords) return this.tokenizeWhiteSpaceWords(text).flatMap((word) => this.aroundPunctuation(word, text));
    return this.wordsOf(text, this.tokensInText(false)).map(({ ids, start, end }) => {
      const word = text.slice(start, end);
      const trimmed = word.replace(LEADING_SPACE, "");
      const first = end - trimmed.length;
      return { ids, start: first, end: first + trimmed.replace(TRAILING, "").length };
    });
  }

  /**
   * Split a word of a text around its pieces of punctuation.
   *
   * If the pieces do not have the word's number of characters, as after normalisation, only the places of leading and
   * trailing punctuation are known.
   */
  private aroundPunctuation(word: Word, text: string): Word[] {
    const characters = Array.from(text.slice(word.start, word.end));
    const isPunctuation = characters.map((character) => PUNCTUATION.test(character));
    const ends = [0]; // of pieces, in characters
    for (const id of word.ids) ends.push(ends.at(-1)! + Array.from(this.pieces[id].replaceAll(META_SPACE, "")).length);
    const missing = characters.length - ends.at(-1)!;
    let before = isPunctuation.indexOf(false);
    let after = isPunctuation.lastIndexOf(false) + 1;
    if (after === 0) [before, after] = [0, characters.length]; // the word is punctuation
    const isApart = word.ids.map((_, place) => {
      const [start, end] = [ends[place], ends[place + 1]];
      if (missing !== 0) return end <= before || start + missing >= after;
      return end > start && isPunctuation.slice(start, end).every(Boolean);
    });
    const firsts = [0];
    const starts = [0];
    for (let place = 1; place < word.ids.length; place += 1) {
      if (ends[place] === 0 || !(isApart[place - 1] || isApart[place])) continue;
      firsts.push(place);
      starts.push(ends[place] + missing >= after ? ends[place] + missing : ends[place]);
    }
    firsts.push(word.ids.length);
    starts.push(characters.length);
    const places = starts.map((start) => word.start + characters.slice(0, start).join("").length);
    return firsts.slice(1).map((next, part) => {
      return { ids: word.ids.slice(firsts[part], next), start: places[part], end: places[part + 1] };
    });
  }

  /** Return the words of a text that white space delimits, tokenised one by one. */
  tokenizeWhiteSpaceWords(text: string): Word[] {
    return Array.from(text.matchAll(WHITE_SPACE_WORD), ({ 0: word, index }) => {
      return { ids: this.tokenize(word), start: index, end: index + word.length };
    });
  }

  /**
   * Convert ids to text, up to the first end id and without padding and start ids.
   *
   * If the same id starts and ends a row, as in GPT-2, it does not end a row in the first position.
   */
  detokenize(ids: readonly number[]): string {
    const end = ids.findIndex((id, place) => id === this.endId && (place > 0 || this.startId !== this.endId));
    const dropped = new Set([this.startId, this.padId, ...this.sourcePrefixIds, ...this.skippedIds]);
    return this.join(ids.slice(0, end < 0 ? ids.length : end).filter((id) => !dropped.has(id)));
  }

  /** Convert a part of a text, which may start it, to ids, by the tokens that remain to be recognised. */
  private tokenizePart(text: string, starts: boolean, [tokens, ...rest]: readonly TokensInText[]): number[] {
    return tokens.split(text).flatMap((part, place) => {
      if (typeof part === "number") return [part];
      if (!part) return [];
      const here = starts && place === 0;
      const normal = rest.length === STAGES - 1 ? this.normalize(part) : part;
      return rest.length > 0 ? this.tokenizePart(normal, here, rest) : this.cutPart(normal, here);
    });
  }

  /** Return the words of a part of a text, by the tokens that remain to be recognised. */
  private wordsOf(text: string, [tokens, ...rest]: readonly TokensInText[]): Word[] {
    return tokens.places(text).flatMap(({ part, start, end }): Word[] => {
      if (typeof part === "number") return [{ ids: [part], start, end }];
      if (!part) return [];
      const normal = rest.length === STAGES - 1 ? this.normalize(part) : part;
      let words = rest.length > 0 ? this.wordsOf(normal, rest) : this.cutWords!(normal);
      if (normal !== part) words = atSources(words, [...this.sources(part, normal), [part.length, part.length]]);
      return words.map((word) => ({ ids: word.ids, start: start + word.start, end: start + word.end }));
    });
  }

  /** Return the tokens that are recognised: in texts, in normalised texts, and at the start of what remains. */
  private tokensInText(specialTokens: boolean): TokensInText[] {
    let stages = this.stages.get(specialTokens);
    if (stages) return stages;
    const list = (name: string): string[] => this.settings[name] ?? [];
    const inText = list("tokens_in_text");
    const atStart = new Set(this.settings.place_in_text === "start" ? inText : list("start_tokens"));
    const special = specialTokens || this.settings.special_tokens_in_text ? this.specialTokenIds : new Map();
    const recognized = new Map([...inText.map((token): [string, number] => [token, this.ids.get(token)!]), ...special]);
    const inNormalized = new Set(list("normalized_tokens"));
    const stage = (isChosen: (token: string) => boolean, normalized = false, anywhere = true): TokensInText => {
      const chosen = [...recognized.keys()].filter(isChosen).sort();
      const names = new Map(chosen.map((token) => [token, normalized ? this.normalize(token) : token]));
      const flagged = (name: string): Set<string> =>
        new Set(list(name).flatMap((token) => (names.has(token) ? [names.get(token)!] : [])));
      return new TokensInText(
        new Map([...names].filter(([, name]) => name !== "").map(([token, name]) => [name, recognized.get(token)!])),
        { lstrip: flagged("lstrip_tokens"), rstrip: flagged("rstrip_tokens"), singleWord: flagged("single_word_tokens") },
        anywhere,
      );
    };
    stages = [
      stage((token) => !atStart.has(token) && !inNormalized.has(token)),
      stage((token) => !atStart.has(token) && inNormalized.has(token), true),
      stage((token) => atStart.has(token), false, false),
    ];
    this.stages.set(specialTokens, stages);
    return stages;
  }
}

/** Base class of tokenizers with a vocabulary of pieces, some of which are special tokens. */
export abstract class VocabularyTokenizer extends Tokenizer {
  protected override readonly settings: Settings;
  protected override readonly ids: ReadonlyMap<string, number>;

  constructor(pieces: readonly string[], settings: Settings) {
    super();
    this.settings = settings;
    this.pieces = [...pieces, ...Array<string>(settings.unused ?? 0).fill("")];
    this.ids = new Map(pieces.map((piece, id) => [piece, id]));
    const roles = settings.special_tokens;
    const of = (role: keyof Settings["special_tokens"]): number => (role in roles ? this.idOf(roles[role]!) : -1);
    this.padId = "pad" in roles ? of("pad") : null;
    this.unknownId = of("unknown");
    this.startId = of("start");
    this.endId = of("end");
    this.maskId = of("mask");
    this.specialTokenIds = this.idsOf(Object.values(roles));
    this.pairSeparators = settings.pair_separators ?? 1;
    this.lstripMask = settings.lstrip_mask ?? false;
    this.sourcePrefixIds = [...(settings.source_prefix ?? [])].map((token: string) => this.idOf(token));
    const languages = Object.entries<string>(settings.languages ?? {});
    this.languages = new Map(languages.map(([name, token]) => [name, this.idOf(token)]));
    this.languageAfterSource = settings.language_after_source ?? false;
    this.languageIsStart = settings.language_is_start ?? false;
  }

  /** Return tokens and their ids. */
  protected idsOf(tokens: Iterable<string>): Map<string, number> {
    return new Map([...tokens].map((token) => [token, this.idOf(token)]));
  }

  private idOf(token: string): number {
    const id = this.ids.get(token);
    if (id === undefined) throw new Error(`the vocabulary must have the token ${JSON.stringify(token)}`);
    return id;
  }
}

/** The tokens that take the white space before or after them, and those recognised only beside no character of words. */
interface Flags {
  lstrip?: ReadonlySet<string>;
  rstrip?: ReadonlySet<string>;
  singleWord?: ReadonlySet<string>;
}

/** The number of times that tokens are recognised in a text. */
const STAGES = 3;
const LEADING = new RegExp(`${WHITE_SPACE}*`, "uy");
const LEADING_SPACE = new RegExp(`^${WHITE_SPACE}+`, "u");
const TRAILING = new RegExp(`${WHITE_SPACE}+$`, "u");
/** What is not white space, in which Python counts separators of files and records. */
const WHITE_SPACE_WORD =
  /[^\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/gu;
const WORD = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]";
const STARTS_WITH_WORD = new RegExp(`^${WORD}`, "u");
const ENDS_WITH_WORD = new RegExp(`${WORD}$`, "u");

/** Tokens that are recognised in texts, as they are written there, the longest of several at one place. */
export class TokensInText {
  private readonly pattern: RegExp;

  constructor(
    private readonly ids: ReadonlyMap<string, number>,
    private readonly flags: Flags = {},
    private readonly anywhere = true,
  ) {
    const patterns = [...ids.keys()].sort((token, other) => other.length - token.length).map(escaped);
    this.pattern = new RegExp(`${anywhere ? "" : "^"}(?:${patterns.join("|")})`, "gu");
  }

  /** Split a text into the ids of tokens, and the text before, between and after them, which may be empty. */
  split(text: string): (string | number)[] {
    return this.places(text).map(({ part }) => part);
  }

  /** Return the parts of `split`, and where each starts and ends in the text. */
  places(text: string): Place[] {
    if (this.ids.size === 0) return [{ part: text, start: 0, end: text.length }];
    const { lstrip, rstrip, singleWord } = this.flags;
    const parts: Place[] = [];
    let end = 0;
    for (const match of text.matchAll(this.pattern)) {
      const token = match[0];
      const stop = match.index + token.length;
      if (singleWord?.has(token)) {
        const before = text.slice(Math.max(0, match.index - 2), match.index);
        if (ENDS_WITH_WORD.test(before) || STARTS_WITH_WORD.test(text.slice(stop, stop + 2))) continue;
      }
      let between = text.slice(end, match.index);
      if (lstrip?.has(token)) between = between.replace(TRAILING, "");
      parts.push({ part: between, start: end, end: end + between.length });
      parts.push({ part: this.ids.get(token)!, start: match.index, end: stop });
      LEADING.lastIndex = stop;
      end = rstrip?.has(token) ? stop + LEADING.exec(text)![0].length : stop;
    }
    const rest = text.slice(end); // after a token at the start, it may be one itself
    const part = this.anywhere ? rest : (this.ids.get(rest) ?? rest);
    return [...parts, { part, start: end, end: text.length }];
  }
}

/** A token or the text between tokens, and where it starts and ends. */
interface Place {
  part: string | number;
  start: number;
  end: number;
}

/** Return the start and the end of each character of a text. */
export function spansOf(text: string): Span[] {
  let end = 0;
  return Array.from(text, (character): Span => [end, (end += character.length)]);
}

/** Return the words of a normalised text at their places in the text, by the characters from which its units are. */
export function atSources(words: readonly Word[], sources: readonly Span[]): Word[] {
  return words.map(({ ids, start, end }) => {
    const first = sources[start][0];
    return { ids, start: first, end: end > start ? sources[end - 1][1] : first };
  });
}

/** Return a string as a pattern that matches it. */
export function escaped(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}

/** Decode UTF-8; invalid bytes become U+FFFD. */
export function decodeUtf8(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}

/** Encode a text as UTF-8. */
export function encodeUtf8(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

/** Return the bytes of several arrays as one. */
export function concatenated(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const joined = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let end = 0;
  for (const part of parts) {
    joined.set(part, end);
    end += part.length;
  }
  return joined;
}

/** Return the name of a byte as a piece, such as "<0x0A>". */
export function byteName(byte: number): string {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
}

/** Return a text without a prefix, if it starts with it. */
export function removePrefix(text: string, prefix: string): string {
  return text.startsWith(prefix) ? text.slice(prefix.length) : text;
}
