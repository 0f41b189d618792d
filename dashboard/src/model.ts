// Computes rates per second from the counters of all parts: targets, namespaces, hosts and others.

import { PARTS, Past, TOTALS } from "./history";
import type { IoStats, Kept, Stats } from "./types";

/**
 * Counters. They never decrease while the target runs. NaN: the target lacks the counter.
 */
export interface Counters {
  reads: number;
  writes: number;
  readBytes: number;
  writtenBytes: number;
  /** Nanoseconds of processor time. */
  busy: number;
  /** The latency histogram: the number of operations in each bucket of `Reading.bounds`. */
  latency: readonly number[];
  holds: Holds;
}

/** The causes of waits. In `Counters`, they are sums of wait times in nanoseconds. */
export interface Holds {
  /** The mean number of commands that wait for a limit of the namespace, and of the host. */
  namespaceLimit: number;
  hostLimit: number;
  /** The mean number of connections that wait for their host's turn on a core. */
  turn: number;
  /** The number of operations per second that fail in the storage. */
  failures: number;
  /** The mean number of reads in flight. */
  reading: number;
}

export const NO_HOLDS: Holds = { namespaceLimit: 0, hostLimit: 0, turn: 0, failures: 0, reading: 0 };

/**
 * The series of the charts: rates per second, latencies in microseconds, processor use in percent.
 */
export const SERIES = ["reads", "writes", "readBytes", "writtenBytes", "p50", "p99", "busy"] as const;
export type Rates = Record<(typeof SERIES)[number], number>;

export type Kind = "target" | "subsystem" | "namespace" | "host" | "core" | "node";

/** An object with counters. */
export interface Part {
  kind: Kind;
  key: string;
  label: string;
  rates: Rates;
  past: Past;
  holds: Holds;
  /** The growth of the counters per second; `null` if unknown. */
  pace: Counters | null;
  /** The cores that serve the part; `null` if the target does not report them. */
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
  /** The time of the target's start by the target's clock, in milliseconds. */
  began: number;
  /** The upper bounds of the latency buckets, in microseconds. */
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

/** The maximum number of parts with a history. Further parts have no charts. */
const MOST_PARTS = 4_096;

/** The longest gap between two readings, in seconds, that the charts fill with the mean rate. */
const MOST_MISSED = 120;

/** If the start time differs by less than this, it is the same target with an adjusted clock. */
const ANOTHER_MS = 2_000;

export const TARGET = "target";

export function partKey(kind: Kind, ...names: (string | number)[]): string {
  return [kind, ...names].join(" ");
}

export class Model {
  readonly parts = new Map<string, Part>();
  /** Histories of parts that do not exist yet, with the time of their arrival in seconds. */
  private readonly kept = new Map<string, { kept: Kept; now: number }>();
  private before: { at: number; began: number; second: number; counters: Map<string, Counters> } | null = null;

  get target(): Part | undefined {
    return this.parts.get(TARGET);
  }

  /** The growth of the target's counters per second. */
  get pace(): Counters | null {
    return this.target?.pace ?? null;
  }

  take(reading: Reading, now: number): void {
    const second = Math.floor(now / 1000);
    const counters = new Map(reading.samples.map((sample) => [sample.key, sample.counters]));
    // The counters of a restarted target, or of another target in its place, start at zero.
    const { before } = this;
    const isIt = before && before.at < reading.at && Math.abs(before.began - reading.began) < ANOTHER_MS;
    const known = isIt ? before : null;
    const seconds = known ? (reading.at - known.at) / 1000 : 0;
    for (const [key, part] of this.parts) {
      part.pace = null;
      // Keep the history of a node that does not answer: there are only few nodes.
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
      // A page in the background reads rarely. Such a reading covers all seconds since the last
      // one.
      const first = Math.max(known.second + 1, second - MOST_MISSED);
      for (let at = Math.min(first, second); at <= second; at += 1) part.past.push(at, values);
    }
    this.before = { at: reading.at, began: reading.began, second, counters };
  }

  /** Adds the history of a part that the server kept before the page opened. */
  recall(key: string, kept: Kept, now: number): void {
    const part = this.parts.get(key);
    if (part) part.past.recall(kept, now);
    else this.kept.set(key, { kept, now });
  }

  /** Forgets the current rates, because the target does not answer. */
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

/** Returns the growth of the counters per second. */
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

/** Returns a quantile in microseconds. Assumes an even distribution within each bucket. */
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

/** Converts a target's counters to a reading with a sample for each part. */
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
