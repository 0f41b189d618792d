// The event stream of the target: server-sent events. `fetch` reads them, since an EventSource
// cannot send the token. Without a stream, the page polls the target each second.

import { Locked, openStream, Refused } from "./api";

/** The time without an event after which the target counts as dead. Counters arrive each second. */
const SILENCE_MS = 1600;
/** The interval of the checks for silence. */
const CHECK_MS = 100;
/** If a check is this late, the page was suspended, so silence does not count. */
const LATE_MS = 1500;
/** The time after a refused stream until the next attempt. */
const TRY_AGAIN_MS = 30_000;
/** The pause between two attempts to reach a dead target. */
const RETRY_MS = 400;
/** The interval of polls without a stream. */
const EVERY_MS = 1000;
/** The maximum number of characters of one event. A longer text is not an event stream. */
const MAX_CHARACTERS = 32 << 20;

/** A receiver of a target's events. */
export interface Ear {
  /** Takes an event. */
  hear: (name: string, data: unknown) => void;
  /** Polls the target. */
  look: () => Promise<void>;
  /** Records that the target does not answer. */
  lost: () => void;
  /** Takes the reason for polling; `null` when the event stream works. */
  polls: (why: string | null) => void;
}

export interface Listener {
  changed: () => void;
  locked: () => void;
}

/** Parses events from pieces of text. */
export class Parser {
  private rest = "";

  *take(text: string): Generator<[string, string]> {
    // The end of an event can only be in the new text and the character before it.
    let from = Math.max(0, this.rest.length - 1);
    this.rest += text;
    let begin = 0;
    for (;;) {
      const end = this.rest.indexOf("\n\n", from);
      if (end < 0) break;
      const found = /^event: (.*)\ndata: (.*)$/.exec(this.rest.slice(begin, end));
      begin = from = end + 2;
      if (found) yield [found[1]!, found[2]!];
    }
    this.rest = this.rest.slice(begin);
    if (this.rest.length > MAX_CHARACTERS) throw new Refused("the answer is not an event stream");
  }
}

/** The result of a stream: whether it opened, had events, and went silent. */
interface Course {
  began: boolean;
  heard: boolean;
  silent: boolean;
}

const pause = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/** Aborts a request after a period without data. */
class Watchdog {
  readonly controller = new AbortController();
  private last = performance.now();
  private looked = this.last;
  private readonly timer = setInterval(() => this.look(), CHECK_MS);

  heard(): void {
    this.last = performance.now();
  }

  stop(): void {
    clearInterval(this.timer);
    this.controller.abort();
  }

  private look(): void {
    const now = performance.now();
    if (now - this.looked > LATE_MS) this.last = now;
    this.looked = now;
    if (now - this.last > SILENCE_MS) this.controller.abort();
  }
}

/** Reads one stream until its end. */
async function follow(ear: Ear, changed: () => void): Promise<Course> {
  const course: Course = { began: false, heard: false, silent: false };
  const watchdog = new Watchdog();
  const { signal } = watchdog.controller;
  try {
    const reader = await openStream("/v1/events?status=true", signal);
    course.began = true;
    const [decoder, parser] = [new TextDecoder(), new Parser()];
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      watchdog.heard();
      for (const [name, data] of parser.take(decoder.decode(value, { stream: true }))) {
        if (!course.heard) ear.polls(null);
        course.heard = true;
        ear.hear(name, JSON.parse(data));
      }
      if (course.heard) changed();
    }
  } catch (error) {
    if (error instanceof Locked || error instanceof Refused) throw error;
    if (error instanceof SyntaxError) throw new Refused("the answer is not an event stream");
    course.silent = signal.aborted;
  } finally {
    watchdog.stop();
  }
  return course;
}

/** Polls each second, until it is time to try the stream again. */
async function poll(ear: Ear, changed: () => void, why: string): Promise<void> {
  ear.polls(why);
  const until = performance.now() + TRY_AGAIN_MS;
  while (performance.now() < until) {
    const began = performance.now();
    await ear.look();
    changed();
    await pause(Math.max(50, EVERY_MS - (performance.now() - began)));
  }
}

/** Reads the stream, or polls if there is none. Returns false if the target does not answer. */
async function once(ear: Ear, changed: () => void): Promise<boolean> {
  let why: string;
  try {
    const course = await follow(ear, changed);
    // After the end of a working stream, reconnect at once. After silence, the target is dead.
    if (course.heard) return !course.silent;
    if (!course.began) return false;
    why = "a proxy or the network delays the event stream";
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    why = error.message;
  }
  await poll(ear, changed, why);
  return true;
}

/** Follows a target until it refuses the token. */
export async function listen(ear: Ear, listener: Listener): Promise<void> {
  for (;;) {
    const began = performance.now();
    let answers = false;
    try {
      answers = await once(ear, listener.changed);
    } catch (error) {
      if (error instanceof Locked) return listener.locked();
    }
    if (!answers) {
      ear.lost();
      listener.changed();
    }
    if (!answers || performance.now() - began < RETRY_MS) await pause(RETRY_MS);
  }
}
