// From counters to what happens each second, for everything that has counters.

import { PARTS, Past, TOTALS } from "./history";
import type { IoStats, Kept, Stats } from "./types";

/** Counters that only grow while the target runs; NaN where it does not count. */
export interface Counters {
  reads: number;
  writes: number;
  readBytes: number;
  writtenBytes: number;
  /** Nanoseconds that processors worked. */
  busy: number;
  /** How many took up to each of the reading's bounds, and longer than the one before. */
  latency: readonly number[];
  holds: Holds;
}

/** What holds something back. As counters the waits are in nanoseconds. */
export interface Holds {
  /** Commands that wait, on average: for a limit of their namespace, for one of their host. */
  namespaceLimit: number;
  hostLimit: number;
  /** Connections that wait for their host's turn on a core. */
  turn: number;
  /** Operations that fail in what stores it, each second. */
  failures: number;
  /** Reads that are under way, on average. */
  reading: number;
}

export const NO_HOLDS: Holds = { namespaceLimit: 0, hostLimit: 0, turn: 0, failures: 0, reading: 0 };

/** What is drawn: each a second, latencies in microseconds, busy in percent. */
export const SERIES = ["reads", "writes", "readBytes", "writtenBytes", "p50", "p99", "busy"] as const;
export type Rates = Record<(typeof SERIES)[number], number>;

export type Kind = "target" | "subsystem" | "namespace" | "host" | "core" | "node";

/** Something with counters. */
export interface Part {
  kind: Kind;
  key: string;
  label: string;
  rates: Rates;
  past: Past;
  holds: Holds;
  /** What its counters grow by in a second. */
  pace: Counters | null;
  /** Which cores serve it; null where nobody says. */
  cores: number[] | null;
}

export interface Sample {
  kind: Kind;
  key: string;
  label: string;
  counters: Counters;
  cores?: number[];
}

export interface Reading {
  /** Milliseconds since the target started. */
  at: number;
  /** When that was, by its own clock. */
  began: number;
  /** Microseconds. */
  bounds: number[];
  samples: Sample[];
}

const NOTHING: Rates = {
  reads: NaN,
  writes: NaN,
  readBytes: NaN,
  writtenBytes: NaN,
  p50: NaN,
  p99: NaN,
  busy: NaN,
};

/** Histories besides the target's own: what has more parts has no charts for the rest. */
const MOST_PARTS = 4_096;

/** Seconds between two readings that are drawn as if each had been read. */
const MOST_MISSED = 120;

/** A clock that is set moves the moment when a target began; another target began at another one. */
const ANOTHER_MS = 2_000;

export const TARGET = "target";

export function partKey(kind: Kind, ...names: (string | number)[]): string {
  return [kind, ...names].join(" ");
}

export class Model {
  readonly parts = new Map<string, Part>();
  /** What others kept of parts that are not there yet, and when that was heard, in seconds. */
  private readonly kept = new Map<string, { kept: Kept; now: number }>();
  private before: { at: number; began: number; second: number; counters: Map<string, Counters> } | null = null;

  get target(): Part | undefined {
    return this.parts.get(TARGET);
  }

  /** What the target's own counters grow by in a second. */
  get pace(): Counters | null {
    return this.target?.pace ?? null;
  }

  take(reading: Reading, now: number): void {
    const second = Math.floor(now / 1000);
    const counters = new Map(reading.samples.map((sample) => [sample.key, sample.counters]));
    // A target that was started anew counts anew, and so does another one in its place.
    const { before } = this;
    const isIt = before && before.at < reading.at && Math.abs(before.began - reading.began) < ANOTHER_MS;
    const known = isIt ? before : null;
    const seconds = known ? (reading.at - known.at) / 1000 : 0;
    for (const [key, part] of this.parts) {
      part.pace = null;
      // What a node did is known while it is away, too: nodes are few.
      if (part.kind === "node") part.rates = { ...NOTHING };
      else if (!counters.has(key)) this.parts.delete(key);
    }
    for (const sample of reading.samples) {
      const part = this.part(sample);
      if (!part) continue;
      const was = known?.counters.get(sample.key);
      part.rates = { ...NOTHING };
      part.holds = NO_HOLDS;
      part.cores = sample.cores ?? null;
      if (!was || !known) continue;
      const pace = paceOf(was, sample.counters, seconds);
      part.pace = pace;
      part.rates = rates(pace, reading.bounds);
      part.holds = pace.holds;
      const values = SERIES.map((series) => part.rates[series]);
      // A page in the background asks seldom: what it reads then is of all that time.
      const first = Math.max(known.second + 1, second - MOST_MISSED);
      for (let at = Math.min(first, second); at <= second; at += 1) part.past.push(at, values);
    }
    this.before = { at: reading.at, began: reading.began, second, counters };
  }

  /** What was before this page, by whoever kept it. */
  recall(key: string, kept: Kept, now: number): void {
    const part = this.parts.get(key);
    if (part) part.past.recall(kept, now);
    else this.kept.set(key, { kept, now });
  }

  /** Nothing is known of now. */
  lose(): void {
    this.before = null;
    for (const part of this.parts.values()) [part.rates, part.holds, part.pace] = [{ ...NOTHING }, NO_HOLDS, null];
  }

  private part(sample: Sample): Part | null {
    let part = this.parts.get(sample.key);
    if (!part) {
      if (this.parts.size > MOST_PARTS) return null;
      const past = new Past(sample.kind === "target" ? TOTALS : PARTS, SERIES.length);
      const { kind, key, label } = sample;
      part = { kind, key, label, rates: { ...NOTHING }, past, holds: NO_HOLDS, pace: null, cores: null };
      this.parts.set(sample.key, part);
      const before = this.kept.get(key);
      if (before) past.recall(before.kept, before.now);
      this.kept.delete(key);
    }
    return part;
  }
}

/** What counters grow by in a second. */
function paceOf(was: Counters, is: Counters, seconds: number): Counters {
  const rate = (a: number, b: number): number => Math.max(0, b - a) / seconds;
  return {
    reads: rate(was.reads, is.reads),
    writes: rate(was.writes, is.writes),
    readBytes: rate(was.readBytes, is.readBytes),
    writtenBytes: rate(was.writtenBytes, is.writtenBytes),
    busy: rate(was.busy, is.busy),
    latency: is.latency.map((count, step) => rate(was.latency[step] ?? 0, count)),
    holds: {
      namespaceLimit: rate(was.holds.namespaceLimit, is.holds.namespaceLimit) / 1e9,
      hostLimit: rate(was.holds.hostLimit, is.holds.hostLimit) / 1e9,
      turn: rate(was.holds.turn, is.holds.turn) / 1e9,
      failures: rate(was.holds.failures, is.holds.failures),
      reading: rate(was.holds.reading, is.holds.reading) / 1e9,
    },
  };
}

function rates({ latency, busy, holds: _, ...pace }: Counters, bounds: number[]): Rates {
  const [p50, p99] = [quantile(latency, bounds, 0.5), quantile(latency, bounds, 0.99)];
  return { ...pace, p50, p99, busy: Math.min(100, busy / 1e7) };
}

/** Microseconds that a share of them took at most: within a step, evenly. */
export function quantile(counts: readonly number[], bounds: readonly number[], share: number): number {
  let left = counts.reduce((sum, count) => sum + count, 0) * share;
  if (left === 0) return NaN;
  for (const [step, count] of counts.entries()) {
    if (left > count) {
      left -= count;
      continue;
    }
    const low = bounds[step - 1] ?? 0;
    return low + ((bounds[step] ?? low) - low) * (left / count);
  }
  return NaN;
}

function counters(io: IoStats, busy: number): Counters {
  const [reads, writes] = [io.read_latency.counts, io.write_latency.counts];
  const steps = Math.max(reads.length, writes.length);
  return {
    reads: io.reads,
    writes: io.writes,
    readBytes: io.read_bytes,
    writtenBytes: io.written_bytes,
    busy,
    latency: Array.from({ length: steps }, (_, step) => (reads[step] ?? 0) + (writes[step] ?? 0)),
    holds: {
      namespaceLimit: io.waited?.namespace_limit_ns ?? 0,
      hostLimit: io.waited?.host_limit_ns ?? 0,
      turn: io.waited?.turn_ns ?? 0,
      failures: io.storage_errors,
      reading: io.read_latency.sum_ns,
    },
  };
}

/** What a target has counted, of everything that is there. */
export function read(stats: Stats): Reading {
  const samples: Sample[] = [];
  const add = (kind: Kind, key: string, label: string, io: IoStats, busy = NaN): void => {
    samples.push({ kind, key, label, counters: counters(io, busy) });
  };
  const busy = stats.cores.reduce((sum, core) => sum + (core.busy_ns ?? NaN), 0);
  add("target", TARGET, "target", stats.total, busy / stats.cores.length);
  for (const { core, busy_ns, io } of stats.cores) {
    add("core", partKey("core", core), String(core), io, busy_ns ?? NaN);
  }
  for (const { nqn, io, namespaces } of stats.subsystems) {
    add("subsystem", partKey("subsystem", nqn), nqn, io);
    for (const { nsid, io, cores } of namespaces) {
      add("namespace", partKey("namespace", nqn, nsid), `${nsid} of ${nqn}`, io);
      if (cores) samples[samples.length - 1]!.cores = cores;
    }
  }
  for (const { nqn, controllers, io } of stats.hosts) {
    if (controllers > 0) add("host", partKey("host", nqn), nqn, io);
  }
  const began = stats.time_ms - stats.uptime_ms;
  return { at: stats.uptime_ms, began, bounds: stats.latency_bounds_us, samples };
}
