// Several targets: asked together each second, each kept as if it were alone, and all of them summed.

import { ask } from "./api";
import { clock, duration } from "./format";
import { type Counters, Model, partKey, read, type Reading, type Sample, TARGET } from "./model";
import type { Happening } from "./story";
import type { StateDocument, Stats, Status } from "./types";
import { DOCUMENT_EVERY_MS, keepLooking, type Listener, MOST_HAPPENINGS, Watch } from "./watch";

/** What one of them said, or why nothing. */
interface Said {
  name: string;
  status?: Status;
  stats?: Stats;
  document?: StateDocument;
  error?: string;
}

export interface Node {
  name: string;
  watch: Watch;
  /** Why it does not answer. */
  error: string;
}

export class Cluster {
  readonly model = new Model();
  readonly nodes: Node[];
  readonly happenings: Happening[] = [];
  /** Since when the page's own server does not answer. */
  goneSince: number | null = null;
  private readonly sums = new Sums();
  private readonly began = performance.now();
  private documentsAt = 0;

  constructor(names: string[]) {
    this.nodes = names.map((name) => {
      const watch = new Watch();
      watch.heard = (more) => this.tell(name, more);
      return { name, watch, error: "" };
    });
  }

  start(listener: Listener): void {
    keepLooking(this, listener, () => this.look(), () => this.lost());
  }

  /** What is wrong, a sentence each. */
  troubles(now: number): string[] {
    if (this.goneSince !== null) {
      const since = duration(Math.max(0, (now - this.goneSince) / 1000));
      return [`farblock ui does not answer, for ${since}. What is shown is how it was then.`];
    }
    return this.nodes.flatMap(({ name, watch, error }) => {
      if (watch.goneSince === null) return watch.troubles(now).map((text) => `${name}: ${text}`);
      const since = duration(Math.max(0, (now - watch.goneSince) / 1000));
      return [`${name} does not answer, for ${since} (since ${clock(watch.goneSince)}): ${error}.`];
    });
  }

  private lost(): void {
    this.goneSince ??= Date.now();
    this.model.lose();
    for (const { name } of this.nodes) this.sums.lose(name);
  }

  private async look(): Promise<void> {
    const wants = Date.now() - this.documentsAt > DOCUMENT_EVERY_MS;
    const said = await ask<Said[]>(`/v1/nodes?documents=${wants}`);
    const now = Date.now();
    if (wants) this.documentsAt = now;
    this.goneSince = null;
    let bounds: number[] = [];
    for (const node of this.nodes) {
      const one = said.find((one) => one.name === node.name);
      if (!one?.status || !one.stats) {
        node.error = one?.error ?? "nothing is known of it";
        node.watch.lost();
        this.sums.lose(node.name);
        continue;
      }
      const back = node.watch.goneSince !== null;
      node.watch.take(one.status, one.stats, one.document ?? null, now);
      if (back) this.documentsAt = 0;
      const reading = read(one.stats);
      bounds = reading.bounds;
      this.sums.add(node.name, reading, this.nodes.length);
    }
    if (bounds.length > 0) this.model.take(this.reading(bounds), now);
    else this.model.lose();
  }

  private reading(bounds: number[]): Reading {
    const nodes = this.nodes.map(({ name }): Sample => {
      const counters = this.sums.of(name);
      return { kind: "node", key: partKey("node", name), label: name, counters };
    });
    const total: Sample = { kind: "target", key: TARGET, label: "cluster", counters: this.sums.of(TARGET) };
    return { at: performance.now() - this.began, bounds, samples: [total, ...nodes] };
  }

  private tell(name: string, more: Happening[]): void {
    this.happenings.unshift(...more.map((one) => ({ ...one, text: `${name}: ${one.text}` })));
    this.happenings.splice(MOST_HAPPENINGS);
  }
}

const NONE: Counters = { reads: 0, writes: 0, readBytes: 0, writtenBytes: 0, busy: 0, latency: [] };

/** Counters that only grow, whichever targets come, go and begin anew. */
class Sums {
  private readonly before = new Map<string, { at: number; counters: Counters }>();
  private readonly sums = new Map<string, Counters>();

  of(name: string): Counters {
    return this.sums.get(name) ?? NONE;
  }

  add(name: string, reading: Reading, nodes: number): void {
    const counters = reading.samples.find((one) => one.key === TARGET)!.counters;
    const was = this.before.get(name);
    this.before.set(name, { at: reading.at, counters });
    if (!was || reading.at < was.at) return;
    this.sums.set(name, plus(this.of(name), was.counters, counters, 1));
    this.sums.set(TARGET, plus(this.of(TARGET), was.counters, counters, nodes));
  }

  lose(name: string): void {
    this.before.delete(name);
  }
}

/** `sum` and what came since; how busy they are is shared by `nodes`. */
function plus(sum: Counters, was: Counters, is: Counters, nodes: number): Counters {
  const more = (a: number, b: number): number => (b > a ? b - a : 0);
  const steps = Math.max(sum.latency.length, is.latency.length);
  return {
    reads: sum.reads + more(was.reads, is.reads),
    writes: sum.writes + more(was.writes, is.writes),
    readBytes: sum.readBytes + more(was.readBytes, is.readBytes),
    writtenBytes: sum.writtenBytes + more(was.writtenBytes, is.writtenBytes),
    busy: sum.busy + more(was.busy, is.busy) / nodes,
    latency: Array.from(
      { length: steps },
      (_, step) => (sum.latency[step] ?? 0) + more(was.latency[step] ?? 0, is.latency[step] ?? 0),
    ),
  };
}
