/** The format of an export: a folder of files and its manifest, which has the SHA-256 digest of each. */

import { shown } from "./errors.js";

/** Where the files of an export are: `read` returns the content of one, and reports the bytes read so far. */
export interface Source {
  read(name: string, onBytes?: (loaded: number) => void): Promise<Uint8Array<ArrayBuffer>>;
}

/** The bytes of an export that were read, and those that `load` reads in all. */
export interface Progress {
  loaded: number;
  total: number;
}

/** The settings of an exported pipeline, `config.json`. */
export interface Config {
  pipeline: string;
  tokenizer_class?: string;
  tokenizer_file?: string;
  vocabulary_size: number;
  pad_id: number | null;
  start_id?: number | null;
  end_id: number;
  generation?: { sampler: string; seed?: number | null; temperature?: number; num_return?: number };
  [name: string]: any;
}

interface Entry {
  size: number;
  sha256: string;
}

interface Manifest {
  format: number;
  files: Record<string, Entry>;
  left_out?: Record<string, string>;
  digest: string;
  signature?: string;
}

const MANIFEST = "manifest.json";
const FORMAT = 1;

/** An export, whose files are verified as they are read. */
export class Bundle {
  private loaded = 0;
  private total = 0;

  private constructor(
    private readonly source: Source,
    private readonly manifest: Manifest,
    private readonly onProgress: (progress: Progress) => void,
  ) {}

  /**
   * Open an export.
   *
   * @param source where its files are.
   * @param signatureKey the key that its manifest must be signed with; by default any signature is ignored.
   * @throws if the manifest is damaged, was edited, is of another format or not signed with the key.
   */
  static async open(
    source: Source,
    signatureKey?: Uint8Array<ArrayBuffer>,
    onProgress: (progress: Progress) => void = () => {},
  ): Promise<Bundle> {
    const content: unknown = parse(MANIFEST, await source.read(MANIFEST));
    const { digest, signature, ...signed } = content as Manifest;
    const canonical = new TextEncoder().encode(canonicalJson(signed));
    if (signed.format !== FORMAT) {
      throw new Error(`\`${MANIFEST}\` must be of format ${FORMAT}. Received: format ${shown(signed.format)}`);
    }
    if (digest !== (await sha256(canonical))) {
      throw new Error(
        `\`${MANIFEST}\` must be as it was exported: it was edited or damaged. Restore it from a copy, or export again. ` +
          `Received: the digest ${shown(digest)}`,
      );
    }
    if (signatureKey) await checkSignature(canonical, signature, signatureKey);
    return new Bundle(source, content as Manifest, onProgress);
  }

  /** Return why a precision is missing that was not close enough to the model, undefined for others. */
  whyLeftOut(precision: string): string | undefined {
    const reasons = this.manifest.left_out ?? {};
    return Object.hasOwn(reasons, precision) ? reasons[precision] : undefined;
  }

  /** Return whether the export has a file. */
  has(name: string): boolean {
    return Object.hasOwn(this.manifest.files, name);
  }

  /** Report progress from now on, until files of these names are read. */
  expect(names: Iterable<string>): void {
    this.total = this.loaded;
    for (const name of names) this.total += this.entry(name).size;
  }

  /**
   * Return the content of a file, after verifying its size and SHA-256 digest.
   *
   * @throws if it is not part of the export or has changed.
   */
  async read(name: string): Promise<Uint8Array<ArrayBuffer>> {
    const expected = this.entry(name);
    const before = this.loaded;
    const report = (loaded: number): void => {
      this.loaded = before + loaded;
      if (this.total > 0) this.onProgress({ loaded: this.loaded, total: Math.max(this.total, this.loaded) });
    };
    const content = await this.source.read(name, report);
    report(content.length);
    if (content.length !== expected.size) {
      throw damaged(name, `it must have ${expected.size} bytes. Received: ${content.length}`);
    }
    const digest = await sha256(content);
    if (digest !== expected.sha256) {
      throw damaged(name, `its sha256 must be ${expected.sha256}. Received: ${digest}`);
    }
    return content;
  }

  /** Return the content of a JSON file. */
  async readJson<T>(name: string): Promise<T> {
    return parse(name, await this.read(name)) as T;
  }

  private entry(name: string): Entry {
    if (!this.has(name)) {
      throw new Error(`\`${name}\` is not part of this export: ${MANIFEST} does not list it. Export again`);
    }
    return this.manifest.files[name];
  }
}

function damaged(name: string, reason: string): Error {
  return new Error(`\`${name}\` is damaged: ${reason}. Restore it from a copy, or export again`);
}

function parse(name: string, content: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder().decode(content));
  } catch {
    throw new Error(`\`${name}\` must be JSON. Received: ${shown(new TextDecoder().decode(content.subarray(0, 60)))}`);
  }
}

/** Return JSON with sorted keys, without spaces, in ASCII: what the manifest's digest is of. */
function canonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(",")}]`;
  if (value === null || typeof value !== "object") return ascii(value);
  const entries = Object.entries(value).sort(([key], [other]) => compareCodePoints(key, other));
  return `{${entries.map(([key, item]) => `${ascii(key)}:${canonicalJson(item)}`).join(",")}}`;
}

function ascii(value: unknown): string {
  const escape = (unit: string): string => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(value).replace(/[\u007f-\uffff]/g, escape);
}

function compareCodePoints(one: string, other: string): number {
  const [first, second] = [[...one], [...other]];
  const place = first.findIndex((character, index) => character !== second[index]);
  if (place < 0) return first.length - second.length;
  return first[place].codePointAt(0)! - (second[place]?.codePointAt(0) ?? -1);
}

function subtle(): SubtleCrypto {
  if (!globalThis.crypto?.subtle) {
    throw new Error("an export is verified by WebCrypto, which browsers have on https: pages and on localhost only");
  }
  return globalThis.crypto.subtle;
}

async function sha256(content: Uint8Array<ArrayBuffer>): Promise<string> {
  return hexadecimal(await subtle().digest("SHA-256", content));
}

function hexadecimal(bytes: ArrayBuffer): string {
  return [...new Uint8Array(bytes)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function checkSignature(
  content: Uint8Array<ArrayBuffer>,
  signature: string | undefined,
  key: Uint8Array<ArrayBuffer>,
): Promise<void> {
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const imported = await subtle().importKey("raw", key, algorithm, false, ["verify"]);
  const bytes = Uint8Array.from(signature?.match(/../g) ?? [], (pair) => parseInt(pair, 16));
  if (!(await subtle().verify("HMAC", imported, bytes, content))) {
    throw new Error(
      `\`${MANIFEST}\` must be signed with the key that was passed. Pass the key of its export, or export again. ` +
        `Received: ${signature === undefined ? "a manifest without a signature" : "another signature"}`,
    );
  }
}
