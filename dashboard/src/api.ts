// The way to the target: every question carries the token, and ends.

const PATIENCE_MS = 1500;
const KEY = "farblock-token";

/** The token is none, or not this target's. */
export class Locked extends Error {}

/** The target answered that it will not: its own sentence. */
export class Refused extends Error {}

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

/** A change; says what was done, a sentence for each step. */
export async function change(method: string, path: string, body?: unknown): Promise<string[]> {
  const response = await send(method, path, body, AbortSignal.timeout(30_000));
  return ((await response.json()) as { changed: string[] }).changed;
}

async function send(
  method: string,
  path: string,
  body: unknown,
  signal: AbortSignal,
): Promise<Response> {
  const headers = new Headers();
  // What no header can hold is no token either.
  const token = sessionStorage.getItem(KEY) ?? "";
  headers.set("Authorization", `Bearer ${/^[!-~]*$/.test(token) ? token : ""}`);
  const init: RequestInit = { method, headers, signal, cache: "no-store", credentials: "omit" };
  if (body !== undefined) init.body = JSON.stringify(body);
  const response = await fetch(path, init);
  if (response.status === 401) throw new Locked();
  if (!response.ok) throw new Refused(await sentence(response));
  return response;
}

async function sentence(response: Response): Promise<string> {
  try {
    return ((await response.json()) as { detail: string }).detail;
  } catch {
    return `the target answered ${response.status}`;
  }
}
