// Several targets (nodes). Each has its own state, and the cluster has their sums.

import { ask, recalled } from "./api";
import { now as present } from "./clock";
import { clock, duration } from "./format";
import type { FleetStatus } from "./fleet";
import { type Attached, attachedTroubles } from "./attached";
import { type Counters, Model, NO_HOLDS, type Part, partKey, type Sample, TARGET } from "./model";
import type { Happening } from "./story";
import { type Ear, listen, type Listener } from "./stream";
import type { AttachedStatus, StateDocument, Stats, Status } from "./types";
import { MOST_HAPPENINGS, Watch } from "./watch";

/** The interval at which the page adds up the nodes' rates. */
const SUM_EVERY_MS = 1000;
const DOCUMENTS_EVERY_MS = 10_000;

/** A node's response to a poll, or the reason why it has none. */
interface Said {
  name: string;
  status?: Status;
  stats?: Stats;
  document?: StateDocument;
  error?: string;
}

/** An event of a node. */
interface Told {
  node: string;
  data: unknown;
}

export interface Node {
  name: string;
  watch: Watch;
  /** The reason why the node does not answer. */
  error: string;
}

export class Cluster {
  readonly model = new Model();
  readonly nodes: Node[];
  readonly happenings: Happening[] = [];
  /** The running fleets, by the names of their sockets. */
  readonly fleets = new Map<string, FleetStatus>();
  /** The disks attached on the page's machine; `null` if the server does not report them. */
  attached: Attached | null = null;
  /** The time since which the page's server does not answer; `null` if it answers. */
  goneSince: number | null = null;
  /** The reason for polling the server; `null` while the event stream works. */
  polled: string | null = null;
  private readonly byName: Map<string, Node>;
  private readonly sums = new Sums();
  private readonly began = performance.now();
  private documentsAt = 0;

  constructor(names: string[]) {
    this.nodes = names.map((name) => {
      const watch = new Watch(`/v1/nodes/${encodeURIComponent(name)}`);
      watch.heard = (more) => this.tell(name, more);
      return { name, watch, error: "the node has not answered yet" };
    });
    this.byName = new Map(this.nodes.map((node) => [node.name, node]));
  }

  start(listener: Listener): void {
    const ear: Ear = {
      hear: (name, told) => this.hear(name, told as Told),
      look: () => this.look(),
      lost: () => this.lost(),
      polls: (why) => this.polls(why),
    };
    void listen(ear, listener);
    void this.recall();
    setInterval(() => {
      this.sum();
      listener.changed();
    }, SUM_EVERY_MS);
  }

  /** Loads the histories one after the other: after a month, each has some hundred kilobytes. */
  private async recall(): Promise<void> {
    const all = await recalled();
    if (all) this.model.recall(TARGET, all, present() / 1000);
    for (const { name, watch } of this.nodes) {
      const key = partKey("node", name);
      const kept = await recalled(key);
      if (!kept) continue;
      this.model.recall(key, kept, present() / 1000);
      watch.model.recall(TARGET, kept, present() / 1000);
    }
  }

  private polls(why: string | null): void {
    this.polled = why;
    this.goneSince = null;
    // Only the event stream reports fleets and attached disks.
    this.fleets.clear();
    if (why !== null) this.attached = null;
    for (const { watch } of this.nodes) watch.polls(why);
  }

  private hear(name: string, { node: named, data }: Told): void {
    if (name.startsWith("fleet")) return this.hearFleet(named, data as FleetStatus | null);
    if (name === "attached") return this.hearAttached(data as AttachedStatus[]);
    const node = this.byName.get(named);
    if (!node) return;
    if (name === "gone") this.gone(node, String(data));
    else if (name === "document") node.watch.document = data as StateDocument;
    else node.watch.hear(name, data);
  }

  /** Takes the status of the attached disks, and reports the changes. */
  private hearAttached(disks: AttachedStatus[]): void {
    const before = new Map((this.attached?.disks ?? []).map((disk) => [disk.name, disk]));
    for (const disk of this.attached ? disks : []) {
      const was = before.get(disk.name);
      const isWell = disk.state === "live";
      if (!was) this.say(`Disk ${disk.name} was attached.`, "good");
      else if (was.state !== disk.state) {
        const why = !isWell && disk.trouble ? `: ${disk.trouble}` : "";
        this.say(`Attached disk ${disk.name} is ${disk.state}${why}.`, isWell ? "good" : "bad");
      }
      before.delete(disk.name);
    }
    if (this.attached) for (const name of before.keys()) this.say(`Disk ${name} is no longer attached.`);
    this.attached = { disks, at: present() };
  }

  private say(text: string, weight: Happening["weight"] = "plain"): void {
    this.happenings.unshift({ at: present(), weight, text });
    this.happenings.splice(MOST_HAPPENINGS);
  }

  /** Takes the status of a fleet; `null` when the fleet has ended. */
  private hearFleet(name: string, now: FleetStatus | null): void {
    const was = this.fleets.get(name);
    const tell = (text: string, weight?: Happening["weight"]): void => this.say(text, weight);
    if (now === null) {
      this.fleets.delete(name);
      if (was && !was.failed) tell(`Fleet ${was.plan} has ended.`, "good");
      return;
    }
    this.fleets.set(name, now);
    if (!was) tell(`Fleet ${now.plan} started.`, "good");
    if (now.failed && !was?.failed) tell(`Fleet ${now.plan} has failed: ${now.failed}`, "bad");
    else if (now.phase && now.phase !== was?.phase) tell(`Fleet ${now.plan}: ${now.phase}.`);
  }

  private gone(node: Node, why: string): void {
    node.error = why;
    node.watch.lost();
  }

  /** Returns a sentence for each problem. */
  troubles(now: number): string[] {
    if (this.goneSince !== null) {
      const since = duration(Math.max(0, (now - this.goneSince) / 1000));
      return [`farblock ui has not answered for ${since}. The page shows the last known state.`];
    }
    const attached = this.attached ? attachedTroubles(this.attached, now) : [];
    const said = this.nodes.flatMap(({ name, watch, error }) => {
      if (watch.goneSince === null) return watch.troubles(now).map((text) => `${name}: ${text}`);
      const since = duration(Math.max(0, (now - watch.goneSince) / 1000));
      return [`${name} has not answered for ${since} (since ${clock(watch.goneSince)}): ${error}.`];
    });
    return [...said, ...attached];
  }

  private lost(): void {
    this.goneSince ??= present();
  }

  /** Returns the part with this key: the sum if several nodes have it, else the node's own part. */
  part(key: string, nodes: Node[]): Part | undefined {
    const all = this.model.parts.get(key);
    if (all) return all;
    for (const { watch } of nodes) {
      const part = watch.model.parts.get(key);
      if (part) return part;
    }
    return undefined;
  }

  private async look(): Promise<void> {
    const wants = present() - this.documentsAt > DOCUMENTS_EVERY_MS;
    const said = await ask<Said[]>(`/v1/nodes?documents=${wants}`);
    const now = present();
    if (wants) this.documentsAt = now;
    this.goneSince = null;
    for (const node of this.nodes) {
      const one = said.find((one) => one.name === node.name);
      if (!one?.status || !one.stats) {
        this.gone(node, one?.error ?? "farblock ui has no status of this node");
        continue;
      }
      if (node.watch.goneSince !== null) this.documentsAt = 0;
      if (one.document) node.watch.document = one.document;
      node.watch.takeStatus(one.status, now);
      node.watch.takeStats(one.stats, now);
    }
  }

  /** Adds up the nodes' rates, although the nodes measured them at slightly different times. */
  private sum(): void {
    const live = this.nodes.filter(({ watch }) => watch.goneSince === null && watch.model.pace);
    if (this.goneSince !== null || live.length === 0) {
      this.model.lose();
      this.sums.pause();
      return;
    }
    const shared = this.shared();
    this.sums.add(live, this.nodes.length, shared);
    const nodes = live.map(({ name }): Sample => {
      const key = partKey("node", name);
      return { kind: "node", key, label: name, counters: this.sums.of(key) };
    });
    const parts = shared.map(({ key, kind, label }): Sample => ({ kind, key, label, counters: this.sums.of(key) }));
    const total: Sample = { kind: "target", key: TARGET, label: "cluster", counters: this.sums.of(TARGET) };
    const bounds = live[0]!.watch.stats!.latency_bounds_us;
    const reading = { at: performance.now() - this.began, began: 0, bounds, samples: [total, ...nodes, ...parts] };
    this.model.take(reading, present());
  }

  /** Returns the parts that several nodes have or had. */
  private shared(): Shared[] {
    const all = new Map<string, Shared>();
    for (const { watch } of this.nodes) {
      for (const part of watch.model.parts.values()) {
        if (!ACROSS.has(part.kind)) continue;
        const known = all.get(part.key);
        if (known) known.parts.push(part);
        else all.set(part.key, { key: part.key, kind: part.kind, label: part.label, parts: [part] });
      }
    }
    return [...all.values()].filter(({ key, parts }) => parts.length > 1 || this.sums.has(key));
  }

  private tell(name: string, more: Happening[]): void {
    this.happenings.unshift(...more.map((one) => ({ ...one, text: `${name}: ${one.text}` })));
    this.happenings.splice(MOST_HAPPENINGS);
  }
}

/** The kinds of parts that several nodes may share. */
const ACROSS = new Set(["subsystem", "namespace", "host"]);

interface Shared {
  key: string;
  kind: Part["kind"];
  label: string;
  /** The part on each node. */
  parts: Part[];
}

const NONE: Counters = { reads: 0, writes: 0, readBytes: 0, writtenBytes: 0, busy: 0, latency: [], holds: NO_HOLDS };

/** Sums of counters. They never decrease, even if targets disappear or restart. */
class Sums {
  private readonly sums = new Map<string, Counters>();
  private at = NaN;

  of(key: string): Counters {
    return this.sums.get(key) ?? NONE;
  }

  has(key: string): boolean {
    return this.sums.has(key);
  }

  /**
   * Adds the work of the live nodes since the last call. The cluster's processor use is the mean
   * over `all` nodes. Forgets parts that no node has any more.
   */
  add(live: Node[], all: number, shared: Shared[]): void {
    const now = performance.now();
    const seconds = Number.isNaN(this.at) ? 0 : (now - this.at) / 1000;
    this.at = now;
    for (const { name, watch } of live) {
      const pace = watch.model.pace!;
      const key = partKey("node", name);
      this.sums.set(key, plus(this.of(key), pace, seconds, 1));
      this.sums.set(TARGET, plus(this.of(TARGET), pace, seconds, all));
    }
    const there = new Set(shared.map(({ key }) => key));
    for (const key of this.sums.keys()) {
      if (key !== TARGET && !key.startsWith("node ") && !there.has(key)) this.sums.delete(key);
    }
    for (const { key, parts } of shared) {
      let sum = this.of(key);
      for (const { pace } of parts) if (pace) sum = plus(sum, pace, seconds, 1);
      this.sums.set(key, sum);
    }
  }

  pause(): void {
    this.at = NaN;
  }
}

/** Returns `sum` plus the work of `seconds` at this pace. Divides the processor time by `nodes`. */
function plus(sum: Counters, pace: Counters, seconds: number, nodes: number): Counters {
  const steps = Math.max(sum.latency.length, pace.latency.length);
  return {
    reads: sum.reads + pace.reads * seconds,
    writes: sum.writes + pace.writes * seconds,
    readBytes: sum.readBytes + pace.readBytes * seconds,
    writtenBytes: sum.writtenBytes + pace.writtenBytes * seconds,
    busy: sum.busy + (pace.busy * seconds) / nodes,
    holds: NO_HOLDS,
    latency: Array.from(
      { length: steps },
      (_, step) => (sum.latency[step] ?? 0) + (pace.latency[step] ?? 0) * seconds,
    ),
  };
}
