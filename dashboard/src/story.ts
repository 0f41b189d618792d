// Describes events in words, from the differences between two statuses.

import { bytes, plural, tail } from "./format";
import type { ControllerStatus, LegStatus, NamespaceStatus, Stats, Status, SubsystemStatus, Told } from "./types";

/** The importance of an event for the user. */
export type Weight = "plain" | "good" | "bad";

export interface Happening {
  at: number;
  weight: Weight;
  text: string;
  /** Whether the page shows its own alarm while the condition lasts. */
  lasts?: boolean;
}

type Tell = (text: string, weight?: Weight, lasts?: boolean) => void;

const NAME = 48;

function byName<T>(all: readonly T[], name: (one: T) => string): Map<string, T> {
  return new Map(all.map((one) => [name(one), one]));
}

/** Calls a function for each new, each removed and each remaining object. */
function compare<T>(
  before: Map<string, T>,
  after: Map<string, T>,
  came: (one: T) => unknown,
  went: (one: T) => unknown,
  stayed: (was: T, is: T) => unknown,
): void {
  for (const [name, was] of before) if (!after.has(name)) went(was);
  for (const [name, is] of after) {
    const was = before.get(name);
    if (was === undefined) came(is);
    else stayed(was, is);
  }
}

/** The maximum number of short connections between two statuses that get a line each. */
const MOST_VISITS = 3;
/** The maximum number of kept reasons. A target reports fewer between two statuses. */
const MOST_REASONS = 20_000;

/**
 * Facts that only events report: why a host disconnected, which host was refused, and connections
 * shorter than the interval of statuses. All other facts come from the difference of two statuses,
 * which does not depend on lost events.
 */
export class News {
  /** The reasons of closed controllers. */
  private readonly reasons = new Map<string, string>();
  private readonly came = new Set<string>();
  private readonly visits: Told[] = [];
  private visited = 0;
  private lost = 0;
  private refused: Told | null = null;
  private failed: Told | null = null;

  hear(name: string, told: Told): void {
    const key = `${told.subsystem} ${told.controller}`;
    if (name === "host_connected" && this.came.size < MOST_REASONS) this.came.add(key);
    else if (name === "host_ended") this.ended(key, told);
    else if (name === "host_refused") this.refused = told;
    else if (name === "storage_failed") this.failed = told;
    else if (name === "lost") this.lost += told.count ?? 0;
  }

  private ended(key: string, told: Told): void {
    if (this.reasons.size < MOST_REASONS) this.reasons.set(key, told.reason ?? "");
    if (!this.came.delete(key)) return;
    this.visited += 1;
    if (this.visits.length < MOST_VISITS) this.visits.push(told);
  }

  /** Returns the reason why a controller was closed, after a colon; empty if unknown. */
  why(one: ControllerStatus): string {
    const reason = this.reasons.get(`${one.subsystem} ${one.id}`);
    return reason ? `: ${reason}` : "";
  }

  /** Returns the host that was refused last, in brackets. */
  who(): string {
    const { host, address } = this.refused ?? {};
    this.refused = null;
    return host ? ` (${[tail(host, NAME), address].filter(Boolean).join(", ")})` : "";
  }

  /** Returns the last storage failure, after a colon. */
  failure(): string {
    const { reason, host } = this.failed ?? {};
    this.failed = null;
    return reason ? `: ${reason}, for ${tail(host ?? "", NAME)}` : "";
  }

  /** Returns the events that no status shows. `isStatus`: a status has just arrived. */
  since(at: number, isStatus: boolean): Happening[] {
    const told: Happening[] = [];
    if (this.lost > 0) {
      const text = `Too many events at once: ${plural(this.lost, "event")} left out.`;
      told.push({ at, weight: "plain", text });
    }
    this.lost = 0;
    for (const { host, subsystem, reason } of this.visits) {
      const text = `Host ${tail(host ?? "", NAME)} connected to ${tail(subsystem ?? "", NAME)} and left: ${reason}.`;
      told.push({ at, weight: "plain", text });
    }
    const more = this.visited - this.visits.length;
    if (more > 0) told.push({ at, weight: "plain", text: `${plural(more, "more short connection")} of hosts.` });
    this.visits.length = 0;
    this.visited = 0;
    if (isStatus) this.forget();
    return told;
  }

  forget(): void {
    this.reasons.clear();
    this.came.clear();
  }
}

/** Returns the new refusals, by reason. */
export function refusals(was: Stats, is: Stats, at: number, news: News): Happening[] {
  if (is.uptime_ms < was.uptime_ms) return [];
  const told: Happening[] = [];
  const compare = (before: Record<string, number>, after: Record<string, number>, what: string): void => {
    for (const [reason, count] of Object.entries(after)) {
      const more = count - (before[reason] ?? 0);
      if (more <= 0) continue;
      const why = REFUSALS[reason] ?? reason.replaceAll("_", " ");
      told.push({ at, weight: "bad", text: `${plural(more, "connection")} refused: ${what}${why}${news.who()}.` });
    }
  };
  compare(was.connections.refused, is.connections.refused, "");
  const proofs = [was, is].map(({ connections }) => connections.not_authenticated ?? {});
  compare(proofs[0]!, proofs[1]!, "authentication, ");
  return told;
}

const REFUSALS: Record<string, string> = {
  host_not_allowed: "the host may not connect",
  no_subsystem: "the target has no such subsystem",
  full: "the target is at its limit of connections",
};

export function differences(was: Status, is: Status, at: number, news: News): Happening[] {
  const told: Happening[] = [];
  const tell: Tell = (text, weight = "plain", lasts = false) => told.push({ at, weight, text, lasts });
  if (was.pid !== is.pid || is.uptime_seconds < was.uptime_seconds) {
    tell(`The target restarted (process ${is.pid}).`);
  }
  hosts(was, is, tell, news);
  compare(
    byName(was.subsystems, (one) => one.nqn),
    byName(is.subsystems, (one) => one.nqn),
    (one) => tell(`Subsystem ${tail(one.nqn, NAME)} was added.`),
    (one) => tell(`Subsystem ${tail(one.nqn, NAME)} was removed.`),
    (before, after) => subsystem(before, after, tell, news),
  );
  compare(
    byName(was.listening, String),
    byName(is.listening, String),
    (address) => tell(`The target started to listen on ${address}.`),
    (address) => tell(`The target stopped listening on ${address}.`),
    () => undefined,
  );
  return told;
}

/**
 * Reports hosts that connected to a subsystem with their first controller, or closed their last.
 */
function hosts(was: Status, is: Status, tell: Tell, news: News): void {
  const key = (one: ControllerStatus): string => `${one.host_nqn} ${one.subsystem ?? ""}`;
  const of = (status: Status): Map<string, ControllerStatus> =>
    byName(status.controllers.filter((one) => one.subsystem !== null), key);
  const where = (one: ControllerStatus): string => `subsystem ${tail(one.subsystem ?? "", NAME)}`;
  const who = (one: ControllerStatus): string =>
    `Host ${tail(one.host_nqn, NAME)}${one.address ? ` (${one.address})` : ""}`;
  compare(
    of(was),
    of(is),
    (one) => tell(`${who(one)} connected to ${where(one)}.`, "good"),
    (one) => tell(`${who(one)} left ${where(one)}${news.why(one)}.`),
    () => undefined,
  );
  paths(was, is, tell, news);
}

/** Reports gained and lost paths of hosts that stay connected to a subsystem. */
function paths(was: Status, is: Status, tell: Tell, news: News): void {
  const host = (one: ControllerStatus): string => `${one.host_nqn} ${one.subsystem ?? ""}`;
  const used = (status: Status): ControllerStatus[] =>
    status.controllers.filter((one) => one.subsystem !== null);
  const of = (status: Status): Map<string, ControllerStatus> =>
    byName(used(status), (one) => `${host(one)} ${one.id}`);
  const wasThere = new Set(used(was).map(host));
  const isThere = new Set(used(is).map(host));
  const who = (one: ControllerStatus): string => `Host ${tail(one.host_nqn, NAME)}`;
  const where = (one: ControllerStatus): string =>
    `${tail(one.subsystem ?? "", NAME)} (controller ${one.id})`;
  compare(
    of(was),
    of(is),
    (one) => wasThere.has(host(one)) && tell(`${who(one)} has one more path to ${where(one)}.`, "good"),
    (one) => isThere.has(host(one)) && tell(`${who(one)} lost a path to ${where(one)} and continues${news.why(one)}.`, "bad"),
    () => undefined,
  );
}

function subsystem(was: SubsystemStatus, is: SubsystemStatus, tell: Tell, news: News): void {
  const where = tail(is.nqn, NAME);
  const failed = is.media_errors - was.media_errors;
  if (failed > 0) {
    tell(`${plural(failed, "operation")} failed in the storage of ${where}${news.failure()}.`, "bad");
  }
  if (was.allow_any_host !== is.allow_any_host) {
    const who = is.allow_any_host ? "Any host" : "Only listed hosts";
    tell(`${who} may now connect to ${where}.`);
  }
  compare(
    byName(was.hosts, String),
    byName(is.hosts, String),
    (host) => tell(`Host ${tail(host, NAME)} may now connect to ${where}.`),
    (host) => tell(`Host ${tail(host, NAME)} may no longer connect to ${where}.`),
    () => undefined,
  );
  compare(
    byName(was.namespaces, (one) => String(one.nsid)),
    byName(is.namespaces, (one) => String(one.nsid)),
    (one) => tell(`Namespace ${one.nsid} (${bytes(one.bytes)}) of ${where} was added.`),
    (one) => tell(`Namespace ${one.nsid} of ${where} was removed.`),
    (before, after) => namespace(before, after, where, tell),
  );
}

function namespace(was: NamespaceStatus, is: NamespaceStatus, where: string, tell: Tell): void {
  const which = `Namespace ${is.nsid} of ${where}`;
  if (was.bytes !== is.bytes) tell(`${which} now has ${bytes(is.bytes)}, formerly ${bytes(was.bytes)}.`);
  if (was.read_only !== is.read_only) {
    tell(`${which} is now ${is.read_only ? "read-only" : "writable"}.`);
  }
  compare(
    byName(was.legs ?? [], (one) => one.name),
    byName(is.legs ?? [], (one) => one.name),
    () => undefined,
    () => undefined,
    (before, after) => leg(before, after, which, tell),
  );
}

function leg(was: LegStatus, is: LegStatus, which: string, tell: Tell): void {
  if (was.state === is.state) return;
  const name = `The leg ${tail(is.name, NAME)}`;
  const why = is.reason ? ` (${is.reason})` : "";
  if (is.state === "out") tell(`${which} continues without one of its legs. ${name} is out${why}.`, "bad", true);
  else if (is.state === "catching_up") tell(`${name} is back; the mirror copies the data that it missed.`);
  else if (is.state === "away") tell(`${which} waits for its part ${tail(is.name, NAME)}, which is away${why}.`, "bad", true);
  else if (is.state === "ready") tell(`${which} has all of its parts again: ${tail(is.name, NAME)} is back.`, "good");
  else tell(`${name} is in sync again.`, "good");
}
