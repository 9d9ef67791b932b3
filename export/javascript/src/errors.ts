/** Errors, and how rows of a call collect them. */

/** Whether the error of a row is thrown, or returned in place of its answer. */
export type Errors = "raise" | "return";

/** A text of a call is invalid. */
export class InvalidInputError extends Error {
  override readonly name = "InvalidInputError";

  /** `argument` is the name of the argument that the text was given as. */
  constructor(
    readonly argument: string,
    message: string,
  ) {
    super(message);
  }
}

/** An export's output differs from the model's. */
export class ParityError extends Error {
  override readonly name = "ParityError";
}

/** The errors of the rows of a call, at most one for each. */
export class RowErrors {
  private readonly errors = new Map<number, Error>();

  constructor(private readonly mode: Errors = "raise") {
    if (mode !== "raise" && mode !== "return") {
      throw new Error(`\`errors\` must be "raise" or "return". Received: errors=${shown(mode)}`);
    }
  }

  /** Return the value of a function that checks a row; undefined if it throws and errors are returned. */
  of<T>(row: number, check: () => T): T | undefined {
    if (this.errors.has(row)) return undefined;
    try {
      return check();
    } catch (error) {
      if (!(error instanceof Error)) throw error;
      const placed = error instanceof InvalidInputError;
      const complete = placed ? new Error(`${error.message} in ${error.argument}[${row}]`) : error;
      if (this.mode === "raise") throw complete;
      this.errors.set(row, complete);
      return undefined;
    }
  }

  /** Return the indices of those of `count` rows that have no error. */
  accepted(count: number): number[] {
    return range(count).filter((row) => !this.errors.has(row));
  }

  /** Return the answers to accepted rows, by index, and the errors of the others, in order. */
  merge<T>(answers: ReadonlyMap<number, T>): (T | Error)[] {
    const merged = new Map<number, T | Error>([...answers, ...this.errors]);
    return [...merged].sort(([row], [other]) => row - other).map(([, answer]) => answer);
  }
}

const LONE_SURROGATE = /\p{Surrogate}/u;

/** Throw an error unless a text, the argument `name` at index `row`, is a string of valid Unicode. */
export function checkString(name: string, row: number, text: unknown): asserts text is string {
  if (typeof text !== "string") {
    throw new Error(`\`${name}\` must be strings. Received: ${name}[${row}]=${shown(text)}`);
  }
  const lone = LONE_SURROGATE.exec(text);
  if (lone) {
    throw new Error(
      `\`${name}\` must be text without lone surrogates. Received: ${name}[${row}]=${shown(text)}, ` +
        `with ${shown(lone[0])} at character ${lone.index}`,
    );
  }
}

/** Throw an error unless the value of the argument `name` is a positive integer. */
export function checkPositiveInteger(name: string, value: number): void {
  if (!Number.isInteger(value) || value < 1) {
    throw new Error(`\`${name}\` must be a positive integer. Received: ${name}=${shown(value)}`);
  }
}

/** Return a value for an error, shortened. */
export function shown(value: unknown, limit = 80): string {
  const text = JSON.stringify(value, (_, item: unknown) => (typeof item === "bigint" ? `${item}` : item)) ?? `${value}`;
  return text.length <= limit ? text : `${text.slice(0, limit)}…`;
}

/** Return 0, 1, …, count − 1. */
export function range(count: number): number[] {
  return Array.from({ length: count }, (_, index) => index);
}
