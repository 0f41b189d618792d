// What happened, in words: the difference between what was and what is.

import { bytes, plural, tail } from "./format";
import type { ControllerStatus, LegStatus, NamespaceStatus, Stats, Status, SubsystemStatus, Told } from "./types";

/** How much somebody should care. */
export type Weight = "plain" | "good" | "bad";

export interface Happening {
  at: number;
  weight: Weight;
  text: string;
  /** It is an alarm of its own as long as it lasts. */
  lasts?: boolean;
}

type Tell = (text: string, weight?: Weight, lasts?: boolean) => void;

const NAME = 48;

function byName<T>(all: readonly T[], name: (one: T) => string): Map<string, T> {
  return new Map(all.map((one) => [name(one), one]));
}

/** Each that came, that went, and that stayed. */
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

/** So many controllers that came and went are told of one by one. */
const MOST_VISITS = 3;
/** Reasons that wait for a status; more than any target tells in a moment. */
const MOST_REASONS = 20_000;

/**
 * What only events tell: why a host has left, who was refused, who came and went in between. The rest
 * is the difference of two statuses, which is the same however many events were lost.
 */
export class News {
  /** Of controllers that have ended. */
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

  /** Why a controller is not there any more, in brackets. */
  why(one: ControllerStatus): string {
    const reason = this.reasons.get(`${one.subsystem} ${one.id}`);
    return reason ? `: ${reason}` : "";
  }

  /** Who was refused last, in brackets. */
  who(): string {
    const { host, address } = this.refused ?? {};
    this.refused = null;
    return host ? ` (${[tail(host, NAME), address].filter(Boolean).join(", ")})` : "";
  }

  /** What has failed last. */
  failure(): string {
    const { reason, host } = this.failed ?? {};
    this.failed = null;
    return reason ? `: ${reason}, for ${tail(host ?? "", NAME)}` : "";
  }

  /** What no status shows. Who came before a status and is in it has stayed. */
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

/** Who was not let in, by reason. */
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

/** A host has many controllers: what counts is whether it has any on a subsystem. */
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

/** A host that has several paths to a subsystem may lose one and go on. */
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
