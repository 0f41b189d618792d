// What happened, in words: the difference between what was and what is.

import { bytes, plural, tail } from "./format";
import type { ControllerStatus, LegStatus, NamespaceStatus, Stats, Status, SubsystemStatus } from "./types";

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

/** Who was not let in, by reason. */
export function refusals(was: Stats, is: Stats, at: number): Happening[] {
  if (is.uptime_ms < was.uptime_ms) return [];
  return Object.entries(is.connections.refused).flatMap(([reason, count]): Happening[] => {
    const more = count - (was.connections.refused[reason] ?? 0);
    if (more <= 0) return [];
    const why = REFUSALS[reason] ?? reason.replaceAll("_", " ");
    return [{ at, weight: "bad", text: `${plural(more, "connection")} refused: ${why}.` }];
  });
}

const REFUSALS: Record<string, string> = {
  host_not_allowed: "the host may not connect",
  no_subsystem: "there is no such subsystem",
  full: "the target has as many as it can take",
};

export function differences(was: Status, is: Status, at: number): Happening[] {
  const told: Happening[] = [];
  const tell: Tell = (text, weight = "plain", lasts = false) => told.push({ at, weight, text, lasts });
  if (was.pid !== is.pid || is.uptime_seconds < was.uptime_seconds) {
    tell(`The target was started anew (process ${is.pid}).`);
  }
  hosts(was, is, tell);
  compare(
    byName(was.subsystems, (one) => one.nqn),
    byName(is.subsystems, (one) => one.nqn),
    (one) => tell(`Subsystem ${tail(one.nqn, NAME)} was added.`),
    (one) => tell(`Subsystem ${tail(one.nqn, NAME)} was removed.`),
    (before, after) => subsystem(before, after, tell),
  );
  compare(
    byName(was.listening, String),
    byName(is.listening, String),
    (address) => tell(`The target listens on ${address} now.`),
    (address) => tell(`The target does not listen on ${address} any more.`),
    () => undefined,
  );
  return told;
}

/** A host has many controllers: what counts is whether it has any on a subsystem. */
function hosts(was: Status, is: Status, tell: Tell): void {
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
    (one) => tell(`${who(one)} left ${where(one)}.`),
    () => undefined,
  );
  paths(was, is, tell);
}

/** A host that has several paths to a subsystem may lose one and go on. */
function paths(was: Status, is: Status, tell: Tell): void {
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
    (one) => isThere.has(host(one)) && tell(`${who(one)} lost its path to ${where(one)}, and goes on.`, "bad"),
    () => undefined,
  );
}

function subsystem(was: SubsystemStatus, is: SubsystemStatus, tell: Tell): void {
  const where = tail(is.nqn, NAME);
  const failed = is.media_errors - was.media_errors;
  if (failed > 0) {
    tell(`${plural(failed, "read or write")} failed in what stores ${where}.`, "bad");
  }
  if (was.allow_any_host !== is.allow_any_host) {
    const who = is.allow_any_host ? "Any host" : "No host but those listed";
    tell(`${who} may connect to ${where} now.`);
  }
  compare(
    byName(was.hosts, String),
    byName(is.hosts, String),
    (host) => tell(`Host ${tail(host, NAME)} may connect to ${where} now.`),
    (host) => tell(`Host ${tail(host, NAME)} may not connect to ${where} any more.`),
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
  if (was.bytes !== is.bytes) tell(`${which} has ${bytes(is.bytes)} now, not ${bytes(was.bytes)}.`);
  if (was.read_only !== is.read_only) {
    tell(`${which} ${is.read_only ? "refuses writes" : "takes writes again"} now.`);
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
  if (is.state === "out") tell(`${which} goes on without one of its legs. ${name} is out${why}.`, "bad", true);
  else if (is.state === "catching_up") tell(`${name} is back; what it missed is being copied.`);
  else tell(`${name} is in sync again.`, "good");
}
