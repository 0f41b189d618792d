// The way to the target: every question carries the token, and ends.

import type { Kept } from "./types";

const PATIENCE_MS = 1500;
/** A change waits for disks; a page of several targets waits for 35 s. */
const CHANGE_PATIENCE_MS = 40_000;
const KEY = "farblock-token";

/** The token is none, or not this target's. */
export class Locked extends Error {}

/** The target answered that it will not: its own sentence. */
export class Refused extends Error {
  readonly status: number;

  constructor(sentence: string, status = 0) {
    super(sentence);
    this.status = status;
  }
}

/** Takes the token out of the address, where it would be seen and kept. */
export function takeToken(): string | null {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    sessionStorage.setItem(KEY, found);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(KEY);
}

export function keepToken(token: string | null): void {
  if (token === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, token);
}

export async function ask<T>(path: string): Promise<T> {
  const signal = AbortSignal.timeout(PATIENCE_MS);
  const once = async (): Promise<T> => (await send("GET", path, undefined, signal)).json();
  try {
    return await once();
  } catch (error) {
    // The target ends each connection after a while, and may do so in the middle of an answer.
    if (error instanceof TypeError) return once();
    throw error;
  }
}

/** What was kept of before this page, of all of it or of a part; none where nobody keeps anything. */
export async function recalled(part?: string): Promise<Kept | null> {
  const path = part === undefined ? "/history.json" : `/history.json?part=${encodeURIComponent(part)}`;
  try {
    const answer = await send("GET", path, undefined, AbortSignal.timeout(CHANGE_PATIENCE_MS));
    return await answer.json();
  } catch {
    // An older program has none, and one that has just begun has nothing yet.
    return null;
  }
}

/** What is told from now on, for as long as both want. */
export async function openStream(
  path: string,
  signal: AbortSignal,
): Promise<ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>>> {
  const { body } = await send("GET", path, undefined, signal);
  if (!body) throw new Refused("the answer has no body");
  return body.getReader();
}

/** What is there, and which version of it that is. */
export async function look<T>(path: string): Promise<{ value: T; version: string }> {
  const response = await send("GET", path, undefined, AbortSignal.timeout(CHANGE_PATIENCE_MS));
  return { value: await response.json(), version: response.headers.get("ETag") ?? "" };
}

export interface Change {
  method: "PUT" | "PATCH" | "DELETE";
  body?: unknown;
}

/** What was done, a sentence for each step, and which version came of it. */
export interface Changed {
  steps: string[];
  version: string;
}

/** Makes a change if this is the version still. */
export async function change({ method, body }: Change, path: string, version: string): Promise<Changed> {
  const response = await send(method, path, body, AbortSignal.timeout(CHANGE_PATIENCE_MS), version);
  const { changed } = (await response.json()) as { changed: string[] };
  return { steps: changed, version: response.headers.get("ETag") ?? "" };
}

async function send(
  method: string,
  path: string,
  body: unknown,
  signal: AbortSignal,
  version?: string,
): Promise<Response> {
  const headers = new Headers();
  // What no header can hold is no token either.
  const token = sessionStorage.getItem(KEY) ?? "";
  headers.set("Authorization", `Bearer ${/^[!-~]*$/.test(token) ? token : ""}`);
  if (version !== undefined) headers.set("If-Match", version);
  const init: RequestInit = { method, headers, signal, cache: "no-store", credentials: "omit" };
  if (body !== undefined) init.body = JSON.stringify(body);
  const response = await fetch(path, init);
  if (response.status === 401) throw new Locked();
  if (!response.ok) throw new Refused(await sentence(response), response.status);
  return response;
}

async function sentence(response: Response): Promise<string> {
  try {
    return ((await response.json()) as { detail: string }).detail;
  } catch {
    return `the target answered ${response.status}`;
  }
}
