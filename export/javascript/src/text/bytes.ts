/** The tokenizer of bytes. */

import { range } from "../errors.js";
import {
  VocabularyTokenizer,
  byteName,
  concatenated,
  decodeUtf8,
  encodeUtf8,
  type Settings,
} from "./tokenizer.js";

/** Convert text to its UTF-8 bytes and back. */
export class ByteTokenizer extends VocabularyTokenizer {
  private readonly offset: number;
  private readonly contents: readonly Uint8Array[];

  constructor(model: Uint8Array) {
    const settings: Settings = JSON.parse(decodeUtf8(model)).settings;
    const first = [...new Set(Object.values(settings.special_tokens))];
    const extra: string[] = settings.extra_tokens;
    super([...first, ...range(256).map(byteName), ...extra], settings);
    this.specialTokenIds = new Map([...this.specialTokenIds, ...this.idsOf(extra)]);
    this.offset = first.length;
    const bytes = range(256).map((byte) => Uint8Array.of(byte));
    const unused = range(settings.unused ?? 0).map(() => new Uint8Array());
    this.contents = [...first.map(encodeUtf8), ...bytes, ...extra.map(encodeUtf8), ...unused];
  }

  protected cut(text: string): number[] {
    return Array.from(encodeUtf8(text), (byte) => this.offset + byte);
  }

  protected join(ids: readonly number[]): string {
    return decodeUtf8(concatenated(ids.map((id) => this.contents[id])));
  }
}
