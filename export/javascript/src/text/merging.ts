/** Byte-pair encoding: merges of adjacent symbols in order of priority. */

import type { Settings } from "./tokenizer.js";

/** The result of a merge, and its priority: lower ranks are merged first. */
export interface Merge<T> {
  rank: number;
  merged: T;
}

interface Candidate<T> extends Merge<T> {
  place: number;
  left: T;
  right: T;
}

/**
 * Merge adjacent symbols, those of the lowest rank first, of several the leftmost.
 *
 * @param symbols the symbols; equal values are the same symbol.
 * @param merge a function that returns the merge of two symbols, undefined if they are not merged.
 *
 * @see Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016, section 3.2.
 */
export function mergePairs<T>(
  symbols: readonly T[],
  merge: (left: T, right: T) => Merge<T> | undefined,
): T[] {
  const values: (T | undefined)[] = [...symbols];
  const next = symbols.map((_, place) => place + 1);
  const previous = symbols.map((_, place) => place - 1);
  const heap: Candidate<T>[] = [];

  function add(place: number): void {
    if (place < 0 || next[place] >= values.length) return;
    const [left, right] = [values[place]!, values[next[place]]!];
    const found = merge(left, right);
    if (found) push(heap, { ...found, place, left, right });
  }

  symbols.forEach((_, place) => add(place));
  for (let best = pop(heap); best; best = pop(heap)) {
    const { place, left, right, merged } = best;
    const other = next[place];
    if (values[place] !== left || other >= values.length || values[other] !== right) continue;
    values[place] = merged;
    values[other] = undefined;
    next[place] = next[other];
    if (next[place] < values.length) previous[next[place]] = place;
    add(previous[place]);
    add(place);
  }
  return values.filter((value): value is T => value !== undefined);
}

function before<T>(one: Candidate<T>, other: Candidate<T>): boolean {
  return one.rank < other.rank || (one.rank === other.rank && one.place < other.place);
}

function push<T>(heap: Candidate<T>[], candidate: Candidate<T>): void {
  let place = heap.push(candidate) - 1;
  while (place > 0) {
    const parent = (place - 1) >> 1;
    if (!before(candidate, heap[parent])) break;
    heap[place] = heap[parent];
    place = parent;
  }
  heap[place] = candidate;
}

function pop<T>(heap: Candidate<T>[]): Candidate<T> | undefined {
  const first = heap[0];
  const last = heap.pop();
  if (last === undefined || heap.length === 0) return first;
  let place = 0;
  for (;;) {
    let child = 2 * place + 1;
    if (child >= heap.length) break;
    if (child + 1 < heap.length && before(heap[child + 1], heap[child])) child += 1;
    if (!before(heap[child], last)) break;
    heap[place] = heap[child];
    place = child;
  }
  heap[place] = last;
  return first;
}

/** The content of a tokenizer's file. */
export interface PairFile {
  vocabulary: string[];
  merges: [string, string][];
  settings: Settings;
}

/** The merges of a vocabulary: of the ids of two pieces, to the id of their concatenation. */
export class Merges {
  private readonly merges = new Map<number, Merge<number>>();
  private size = 0;

  constructor(ids: ReadonlyMap<string, number>, merges: readonly [string, string][]) {
    for (const id of ids.values()) this.size = Math.max(this.size, id + 1);
    merges.forEach(([left, right], rank) => {
      const key = this.key(ids.get(left)!, ids.get(right)!);
      this.merges.set(key, { rank, merged: ids.get(left + right)! });
    });
  }

  /** Merge ids of pieces. */
  apply(ids: readonly number[]): number[] {
    return mergePairs(ids, (left, right) => this.merges.get(this.key(left, right)));
  }

  private key(left: number, right: number): number {
    return left * this.size + right;
  }
}
