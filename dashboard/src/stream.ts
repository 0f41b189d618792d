// What the target tells by itself: server-sent events, read by `fetch`, since an EventSource sends no
// token. Where there is no stream, the target is asked each second instead.

import { Locked, openStream, Refused } from "./api";

/** Counters come every second: who says nothing for so long is gone. */
const SILENCE_MS = 1600;
/** Between two looks at whether that is so. */
const CHECK_MS = 100;
/** A look that comes so late was kept from looking: the machine slept, or the page was out of sight. */
const LATE_MS = 1500;
/** Until a stream that was refused is tried again. */
const TRY_AGAIN_MS = 30_000;
/** Between two tries to reach who is gone. */
const RETRY_MS = 400;
/** Between two questions, where there is no stream. */
const EVERY_MS = 1000;
/** The most that waits to be a whole event: what never ends is no stream of events. */
const MAX_CHARACTERS = 32 << 20;

/** One who hears of a target. */
export interface Ear {
  /** Something was told. */
  hear: (name: string, data: unknown) => void;
  /** Asks, where nothing is told. */
  look: () => Promise<void>;
  /** Nothing answers. */
  lost: () => void;
  /** Why it is asked each second; null when it tells by itself. */
  polls: (why: string | null) => void;
}

export interface Listener {
  changed: () => void;
  locked: () => void;
}

/** Events out of pieces of text. */
export class Parser {
  private rest = "";

  *take(text: string): Generator<[string, string]> {
    // Only what is new, and the character before it, can hold an event's end.
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

/** Whether a stream began, and whether anything was heard of it. */
interface Course {
  began: boolean;
  heard: boolean;
  silent: boolean;
}

const pause = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/** Ends what it watches when nothing came for a while. */
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

/** One stream, from its beginning to its end. */
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

/** Asks each second for a while. */
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

/** Listens, or asks where that is of no use. False if nobody answers. */
async function once(ear: Ear, changed: () => void): Promise<boolean> {
  let why: string;
  try {
    const course = await follow(ear, changed);
    // One that was heard and ends is there again at once; one that was heard and is silent is gone.
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

/** Follows what a target does until the token is no good any more. */
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
