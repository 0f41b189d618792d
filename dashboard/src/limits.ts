// Finds the current bottleneck of a namespace, as far as the target can measure it.

import { latency, perSecond, short } from "./format";
import { type Model, NO_HOLDS, type Part, type Rates } from "./model";
import type { Limit, NamespaceDocument } from "./types";

/** From this fraction of a limit on, the limit is the bottleneck. */
const AT_LIMIT = 0.9;
/** From this percentage of processor time on, a core is the bottleneck. */
const ALL_BUSY = 95;
/** From this mean number of waiting commands on, the cause of their wait is the bottleneck. */
const WAITING = 0.05;
/** From this mean read latency on (in ms), the storage is slow: rotating disks take this long. */
const SLOW_MS = 5;

const MEASURED: Record<Limit, (rates: Rates) => number> = {
  iops: (rates) => rates.reads + rates.writes,
  read_iops: (rates) => rates.reads,
  write_iops: (rates) => rates.writes,
  bytes: (rates) => rates.readBytes + rates.writtenBytes,
  read_bytes: (rates) => rates.readBytes,
  write_bytes: (rates) => rates.writtenBytes,
};

export const NAMES: Record<Limit, (value: number) => string> = {
  iops: (value) => `${short(value)} IOPS`,
  read_iops: (value) => `${short(value)} reads/s`,
  write_iops: (value) => `${short(value)} writes/s`,
  bytes: perSecond,
  read_bytes: (value) => `${perSecond(value)} read`,
  write_bytes: (value) => `${perSecond(value)} written`,
};

/** Returns the busiest of these cores, in percent; with `null`, the busiest of all cores. */
function busiest(model: Model, cores: number[] | null): { name: string; busy: number } {
  let most = { name: "a core", busy: 0 };
  for (const part of model.parts.values()) {
    if (part.kind !== "core" || (cores && !cores.includes(Number(part.label)))) continue;
    if (part.rates.busy > most.busy) most = { name: `core ${part.label}`, busy: part.rates.busy };
  }
  return most;
}

/** A namespace and its users. */
export interface Limited {
  document: NamespaceDocument | undefined;
  part: Part | undefined;
  /** The keys of the hosts that are connected to the namespace's subsystem. */
  hosts: Iterable<string>;
}

/** Describes the bottleneck in a few words; a dash if none is known. */
export function limited({ document, part, hosts }: Limited, model: Model): string {
  const rates = part?.rates;
  const holds = part?.holds ?? NO_HOLDS;
  if (holds.failures > 0) return `failing storage, ${short(holds.failures)} errors/s`;
  const set = (Object.keys(MEASURED) as Limit[]).filter((name) => document?.limits?.[name]);
  const shares = set.map((name) => {
    const most = document?.limits?.[name] ?? NaN;
    return { share: rates ? MEASURED[name](rates) / most : NaN, words: NAMES[name](most) };
  });
  shares.sort((a, b) => (b.share || 0) - (a.share || 0));
  const nearest = shares[0];
  const waits = holds.namespaceLimit >= WAITING && holds.namespaceLimit >= holds.hostLimit;
  if (nearest && (waits || nearest.share >= AT_LIMIT)) return `its limit, ${nearest.words}`;
  if (holds.hostLimit >= WAITING) return "a limit of its host";
  const isUsed = rates !== undefined && rates.reads + rates.writes > 0;
  if (isUsed && part) {
    for (const host of hosts) {
      if ((model.parts.get(host)?.holds.turn ?? 0) >= WAITING) return "weights on a full core";
    }
    const core = busiest(model, part.cores);
    if (core.busy >= ALL_BUSY) return `${core.name}, which is full`;
    const ms = (1000 * holds.reading) / rates.reads;
    if (ms >= SLOW_MS) return `slow storage, ${latency(1000 * ms)} a read`;
  }
  return nearest ? `– (limit ${nearest.words})` : "–";
}
