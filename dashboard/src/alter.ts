// Changes a part of a target's document, but only if the part is still as the user saw it.

import { change, type Change, type Changed, look, Refused } from "./api";
import type { StateDocument } from "./types";

/** The path of a part in the document. */
export type Names = (string | number)[];

/** Another user has changed the part since this user saw it. */
export class Meanwhile extends Error {}

/** The maximum number of attempts. An attempt fails if another part changes meanwhile. */
const MOST_TRIES = 5;
/** The HTTP status if the document has a newer version (Precondition Failed). */
const STALE = 412;

interface Seen {
  /** `undefined` if the document lacks the part. */
  part: unknown;
  version: string;
}

/** A target's document. */
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

  /** Changes a part that is still equal to `was`. Otherwise throws `Meanwhile`. */
  async make(names: Names, wanted: Change, was: unknown): Promise<Changed> {
    const path = [this.base, ...names.map((name) => encodeURIComponent(name))].join("/");
    for (let tries = 0; tries < MOST_TRIES; tries += 1) {
      const { part, version } = await this.see(names);
      if (!same(part, was)) throw new Meanwhile();
      try {
        return await change(wanted, path, version);
      } catch (error) {
        // The document changed, but perhaps in another part: try again.
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

/** Whether two parts are equal. A target always writes the fields in the same order. */
export function same(one: unknown, other: unknown): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** Returns the change that restores a part to `was`. */
export function backTo(was: unknown): Change {
  return was === undefined ? { method: "DELETE" } : { method: "PUT", body: was };
}
