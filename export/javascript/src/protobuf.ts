/** Reading of serialised protocol buffers. */

/** A field of a message: its number, its value, and the place of the whole field in the message. */
export interface Field {
  number: number;
  /** An integer or float, or the bytes of a message, a string, bytes or packed numbers. */
  value: number | Uint8Array;
  start: number;
  end: number;
}

const VARINT = 0;
const EIGHT_BYTES = 1;
const BYTES = 2;
const FOUR_BYTES = 5;

/** Yield the fields of a message; throw an error if `content` is not one. */
export function* fields(content: Uint8Array): Generator<Field> {
  const view = new DataView(content.buffer, content.byteOffset, content.byteLength);
  let position = 0;

  function varint(): number {
    let number = 0;
    for (let scale = 1; position < content.length; scale *= 128) {
      const byte = content[position++];
      number += (byte & 0x7f) * scale;
      if (byte < 0x80) return number;
    }
    throw invalid();
  }

  while (position < content.length) {
    const start = position;
    const tag = varint();
    const number = Math.floor(tag / 8);
    const type = tag % 8;
    if (type === VARINT) {
      const value = varint();
      yield { number, value, start, end: position };
      continue;
    }
    const sizes: Record<number, number> = { [EIGHT_BYTES]: 8, [FOUR_BYTES]: 4 };
    const size = type === BYTES ? varint() : sizes[type];
    if (size === undefined || position + size > content.length) throw invalid();
    const at = position;
    position += size;
    let value: number | Uint8Array = content.subarray(at, position);
    if (type === EIGHT_BYTES) value = view.getFloat64(at, true);
    if (type === FOUR_BYTES) value = view.getFloat32(at, true);
    yield { number, value, start, end: position };
  }
}

/** Return the last value of each field of a message. */
export function message(content: Uint8Array): Map<number, number | Uint8Array> {
  return new Map([...fields(content)].map(({ number, value }) => [number, value]));
}

/** Return a field's value as bytes, empty if it is absent or a number. */
export function asBytes(value: number | Uint8Array | undefined): Uint8Array {
  return value instanceof Uint8Array ? value : new Uint8Array();
}

/** Return a field's value as a string. */
export function asText(value: number | Uint8Array | undefined): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(asBytes(value));
}

/** Return a field's value as a number. */
export function asNumber(value: number | Uint8Array | undefined, missing: number): number {
  return typeof value === "number" ? value : missing;
}

/** Return the bytes of a field that has bytes as its value. */
export function bytesField(number: number, content: readonly Uint8Array[]): Uint8Array[] {
  const length = content.reduce((sum, part) => sum + part.length, 0);
  return [Uint8Array.from([...varintBytes(number * 8 + BYTES), ...varintBytes(length)]), ...content];
}

function varintBytes(value: number): number[] {
  const bytes: number[] = [];
  for (let rest = value; ; rest = Math.floor(rest / 128)) {
    if (rest < 128) return [...bytes, rest];
    bytes.push((rest % 128) + 128);
  }
}

function invalid(): Error {
  return new Error("a file must be a serialised protocol buffer; it is of another format, or truncated");
}
