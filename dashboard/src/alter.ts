// Changes of a part of what a target shares: made to what was seen, or not at all.

import { change, type Change, type Changed, look, Refused } from "./api";
import type { StateDocument } from "./types";

/** The way through the document. */
export type Names = (string | number)[];

/** Somebody else has changed it since it was seen. */
export class Meanwhile extends Error {}

/** Other parts of a document change as well: so often it is tried with its version of now. */
const MOST_TRIES = 5;
/** What a document has one version of. */
const STALE = 412;

interface Seen {
  /** Nothing if it is not there. */
  part: unknown;
  version: string;
}

/** The document of a target. */
export class Shared {
  private readonly base: string;

  constructor(base: string) {
    this.base = base;
  }

  async document(): Promise<StateDocument> {
    return (await look<StateDocument>(`${this.base}/state`)).value;
  }

  async see(names: Names): Promise<Seen> {
    const { value, version } = await look<StateDocument>(`${this.base}/state`);
    return { part: walk(value, names), version };
  }

  /** Makes a change of a part that is as it `was`. */
  async make(names: Names, wanted: Change, was: unknown): Promise<Changed> {
    const path = [this.base, ...names.map((name) => encodeURIComponent(name))].join("/");
    for (let tries = 0; tries < MOST_TRIES; tries += 1) {
      const { part, version } = await this.see(names);
      if (!same(part, was)) throw new Meanwhile();
      try {
        return await change(wanted, path, version);
      } catch (error) {
        // Another part, perhaps.
        if (!(error instanceof Refused) || error.status !== STALE) throw error;
      }
    }
    throw new Meanwhile();
  }
}

export function walk(value: unknown, names: Names): unknown {
  let part = value;
  for (const name of names) {
    if (typeof part !== "object" || part === null || !Object.hasOwn(part, name)) return undefined;
    part = (part as Record<string, unknown>)[name];
  }
  return part;
}

/** A target says the same thing with the same words in the same order. */
export function same(one: unknown, other: unknown): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** What makes it as it was. */
export function backTo(was: unknown): Change {
  return was === undefined ? { method: "DELETE" } : { method: "PUT", body: was };
}
