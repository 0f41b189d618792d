// Requests to the target. Each request has the token and a timeout.

import type { Kept } from "./types";

const PATIENCE_MS = 1500;
/** A change may wait for disks. `farblock ui` waits up to 35 s for a node's response. */
const CHANGE_PATIENCE_MS = 40_000;
const KEY = "farblock-token";

/** The error if the target refuses the token. */
export class Locked extends Error {}

/** The error if the target refuses the request. Its message is the target's sentence. */
export class Refused extends Error {
  readonly status: number;

  constructor(sentence: string, status = 0) {
    super(sentence);
    this.status = status;
  }
}

/** Removes the token from the page's URL, where other people and the history could see it. */
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
    // The target closes each connection after some time, perhaps in the middle of a response.
    if (error instanceof TypeError) return once();
    throw error;
  }
}

/** Returns the kept history of the target, or of one part. `null` if the server keeps none. */
export async function recalled(part?: string): Promise<Kept | null> {
  const path = part === undefined ? "/history.json" : `/history.json?part=${encodeURIComponent(part)}`;
  try {
    const answer = await send("GET", path, undefined, AbortSignal.timeout(CHANGE_PATIENCE_MS));
    return await answer.json();
  } catch {
    // An older server has no history, and a new server has none yet.
    return null;
  }
}

/** Opens the event stream. The stream ends when `signal` aborts, or when the target closes it. */
export async function openStream(
  path: string,
  signal: AbortSignal,
): Promise<ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>>> {
  const { body } = await send("GET", path, undefined, signal);
  if (!body) throw new Refused("the answer has no body");
  return body.getReader();
}

/** Returns an object and its version (ETag). */
export async function look<T>(path: string): Promise<{ value: T; version: string }> {
  const response = await send("GET", path, undefined, AbortSignal.timeout(CHANGE_PATIENCE_MS));
  return { value: await response.json(), version: response.headers.get("ETag") ?? "" };
}

export interface Change {
  method: "PUT" | "PATCH" | "DELETE";
  body?: unknown;
}

/** The result of a change: a sentence for each step, and the new version of the document. */
export interface Changed {
  steps: string[];
  version: string;
}

/** Makes a change if the document still has this version. */
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
  // A text that a header cannot contain is no token.
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
