/** Tokenizers that split texts into words as in BERT: WordPiece, and GPT-1's byte-pair encoding. */

import { Merges, type PairFile } from "./merging.js";
import { isolated } from "./patterns.js";
import { cleanedText, decodedPieces } from "./steps.js";
import {
  VocabularyTokenizer,
  WHITE_SPACE,
  atSources,
  decodeUtf8,
  removePrefix,
  spansOf,
  type Settings,
  type Span,
  type Word,
} from "./tokenizer.js";

const CONTINUES = "##";
const END = "</w>";
/** What the decoder of the library `tokenizers` replaces in each piece. */
const CLEANED: readonly [string, string][] = [
  ...[".", "?", "!", ","].map((mark): [string, string] => [` ${mark}`, mark]),
  [" ' ", "'"],
  [" n't", "n't"],
  [" 'm", "'m"],
  [" do not", " don't"],
  [" 's", "'s"],
  [" 've", "'ve"],
  [" 're", "'re"],
];
const MAX_WORD_LENGTH = 100;
// Marks, punctuation and control characters since Unicode 9, which the library `tokenizers` does not know as such;
// others changed their category since.
const LATER =
  "\\u061d\\u07fd\\u0890-\\u08e2\\u09fd-\\u09fe\\u0a76\\u0afa-\\u0aff\\u0b55\\u0c04-\\u0c3c\\u0c77\\u0c84\\u0d00" +
  "\\u0d3b-\\u0d3c\\u0d81\\u0eba\\u0ece\\u180f-\\u1886\\u1abf-\\u1aeb\\u1b4e-\\u1b4f\\u1b7d-\\u1b7f\\u1df6-\\u1dfb" +
  "\\u2e43-\\u2e5d\\ua82c\\ua8c5\\ua8ff\\ua9bd\\u{105c9}-\\u{105e4}\\u{10d24}-\\u{10f89}\\u{11070}-\\u{11074}" +
  "\\u{110c2}-\\u{110cd}\\u{111c9}\\u{111cf}\\u{1123e}-\\u{11241}\\u{1133b}\\u{11383}-\\u{1145e}" +
  "\\u{11660}-\\u{1166c}\\u{116b9}\\u{1171e}\\u{1182f}-\\u{11fff}\\u{12ff1}-\\u{12ff2}\\u{13430}-\\u{13455}" +
  "\\u{1611e}-\\u{1612f}\\u{16d68}-\\u{16f4f}\\u{16fe2}-\\u{16fe4}\\u{1cf00}-\\u{1cf46}\\u{1e000}-\\u{1e6f5}" +
  "\\u{1e944}-\\u{1e95f}";
// A tab, a line feed and a carriage return are white space, not control characters.
const REMOVED = new RegExp(`[\\0\\ufffd]|(?![\\t\\n\\r${LATER}])[\\p{Cc}\\p{Cf}\\p{Co}]`, "gu");
const SPACE = new RegExp(WHITE_SPACE, "gu");
const IDEOGRAPH =
  /[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\u{2f800}-\u{2fa1f}]/gu;
const PUNCTUATION = new RegExp(`[!-/:-@[-\`{-~\\u166d]|(?![${LATER}])\\p{P}`, "gu");
const ACCENT = new RegExp(`\\u1734|(?![${LATER}])\\p{Mn}`, "gu");

interface WordSettings {
  cleanText: boolean;
  isolateIdeographs: boolean;
  stripAccents: boolean;
  lowercase: boolean;
}

/** Return a text as the normaliser of BERT writes it. */
function bertNormalized(text: string, settings: WordSettings): string {
  let normal = text;
  if (settings.cleanText) normal = normal.replace(REMOVED, "").replace(SPACE, " ");
  if (settings.isolateIdeographs) normal = normal.replace(IDEOGRAPH, " $& ");
  if (settings.stripAccents) normal = normal.normalize("NFD").replace(ACCENT, "");
  // Character by character: a sigma at the end of a word is no special case.
  if (settings.lowercase) normal = Array.from(normal, (character) => character.toLowerCase()).join("");
  return normal;
}

/** Return the words of a text, as the normaliser and pre-tokenizer of BERT split it. */
function bertWords(text: string, settings: WordSettings): string[] {
  return bertNormalized(text, settings)
    .split(SPACE)
    .flatMap((word) => isolated(word, PUNCTUATION));
}

/** Return the words of a text with their places. */
function placedBertWords(text: string, settings: WordSettings, cut: (word: string) => number[]): Word[] {
  const sources = spansOf(text).flatMap((span) => {
    return Array<Span>(bertNormalized(text.slice(...span), settings).length).fill(span);
  });
  let end = 0;
  const words = bertNormalized(text, settings)
    .split(SPACE)
    .flatMap((run) => {
      const ofRun = isolated(run, PUNCTUATION).map((word) => ({ ids: cut(word), start: end, end: (end += word.length) }));
      end += 1; // the space
      return ofRun;
    });
  return atSources(words, sources);
}

/** Convert text to ids and back with BERT's WordPiece. */
export class WordPieceTokenizer extends VocabularyTokenizer {
  private readonly words: WordSettings;
  private readonly initial: readonly string[];
  private readonly following: readonly string[];
  private readonly added: ReadonlySet<string>;

  constructor(model: Uint8Array) {
    const { vocabulary, settings }: { vocabulary: string[]; settings: Settings } = JSON.parse(decodeUtf8(model));
    super(vocabulary, settings);
    this.words = {
      cleanText: settings.clean_text,
      isolateIdeographs: settings.isolate_ideographs,
      stripAccents: settings.strip_accents ?? settings.lowercase,
      lowercase: settings.lowercase,
    };
    [this.initial, this.following] = wordPieceTexts(this.pieces, settings);
    this.added = new Set(settings.added_tokens ?? []);
    if (settings.skip_special_tokens) {
      this.skippedIds = [...this.specialTokenIds.values()].filter((id) => id !== this.unknownId);
    }
  }

  protected override normalize(text: string): string {
    return this.settings.normalized_tokens ? bertNormalized(text, this.words) : text; // `cut` normalises it
  }

  protected cut(text: string): number[] {
    return bertWords(text, this.words).flatMap((word) => this.cutWord(word));
  }

  protected override cutWords(text: string): Word[] {
    return placedBertWords(text, this.words, (word) => this.cutWord(word));
  }

  /** Return the longest pieces of a word, from its beginning; the unknown id if there are none. */
  private cutWord(word: string): number[] {
    const characters = Array.from(word);
    if (characters.length > MAX_WORD_LENGTH) return [this.unknownId];
    const ids: number[] = [];
    for (let start = 0; start < characters.length; ) {
      let end = characters.length;
      let id: number | undefined;
      for (; end > start; end -= 1) {
        const piece = (start > 0 ? CONTINUES : "") + characters.slice(start, end).join("");
        id = this.added.has(piece) ? undefined : this.ids.get(piece);
        if (id !== undefined) break;
      }
      if (id === undefined) return [this.unknownId];
      ids.push(id);
      start = end;
    }
    return ids;
  }

  protected join(ids: readonly number[]): string {
    const text = ids.map((id, place) => (place === 0 ? this.initial : this.following)[id]).join("");
    return this.settings.clean_up_texts ? cleanedText(text) : text;
  }
}

/** Return the texts of pieces that are the first of their row, and of others. */
function wordPieceTexts(pieces: readonly string[], settings: Settings): [string[], string[]] {
  if (settings.separate_pieces) return decodedPieces(pieces, []);
  const cleaned = (text: string): string =>
    (settings.clean_up ? CLEANED : []).reduce((whole, [old, now]) => whole.replaceAll(old, now), text);
  const following = pieces.map((piece) =>
    piece.startsWith(CONTINUES) ? removePrefix(piece, CONTINUES) : ` ${piece}`,
  );
  return [pieces.map(cleaned), following.map(cleaned)];
}

/** Convert text to ids and back with GPT-1's BPE. */
export class OpenAIGPTTokenizer extends VocabularyTokenizer {
  private readonly words: WordSettings;
  private readonly merges: Merges;

  constructor(model: Uint8Array) {
    const file: PairFile = JSON.parse(decodeUtf8(model));
    super(file.vocabulary, file.settings);
    const lowercase: boolean = file.settings.lowercase;
    this.words = { cleanText: true, isolateIdeographs: true, stripAccents: lowercase, lowercase };
    this.merges = new Merges(this.ids, file.merges);
  }

  protected cut(text: string): number[] {
    return bertWords(text, this.words).flatMap((word) => this.cutWord(word));
  }

  protected override cutWords(text: string): Word[] {
    return placedBertWords(text, this.words, (word) => this.cutWord(word));
  }

  private cutWord(word: string): number[] {
    const characters = Array.from(word);
    characters[characters.length - 1] += END;
    return this.merges.apply(characters.map((character) => this.ids.get(character) ?? this.unknownId));
  }

  protected join(ids: readonly number[]): string {
    return ids
      .map((id) => this.pieces[id].replaceAll(END, " "))
      .join("")
      .replace(/ $/, "");
  }
}
