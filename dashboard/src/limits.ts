// What holds a namespace back at the moment, as far as a target can know it.

import { perSecond, short } from "./format";
import { type Model, type Rates } from "./model";
import type { Limit, NamespaceDocument } from "./types";

/** A share of a limit from which on that is what holds it back. */
const AT_LIMIT = 0.9;
/** Percent of a processor's time from which on it has none left. */
const ALL_BUSY = 95;

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

/** How busy the busiest processor is, in percent. */
export function busiest(model: Model): number {
  let most = 0;
  for (const part of model.parts.values()) {
    if (part.kind === "core" && part.rates.busy > most) most = part.rates.busy;
  }
  return most;
}

/** In a few words; a dash where nothing is known that holds it back. */
export function limited(
  document: NamespaceDocument | undefined,
  rates: Rates | undefined,
  busy: number,
): string {
  const set = (Object.keys(MEASURED) as Limit[]).filter((name) => document?.limits?.[name]);
  const shares = set.map((name) => {
    const most = document?.limits?.[name] ?? NaN;
    return { share: rates ? MEASURED[name](rates) / most : NaN, words: NAMES[name](most) };
  });
  shares.sort((a, b) => (b.share || 0) - (a.share || 0));
  const nearest = shares[0];
  if (nearest && nearest.share >= AT_LIMIT) return `its limit, ${nearest.words}`;
  const isUsed = rates !== undefined && rates.reads + rates.writes > 0;
  if (isUsed && busy >= ALL_BUSY) return "a busy processor";
  return nearest ? `– (limit ${nearest.words})` : "–";
}
