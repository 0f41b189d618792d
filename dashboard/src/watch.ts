// What is known of the target: asked for each second, and kept.

import { ask, Locked } from "./api";
import { clock, duration, tail } from "./format";
import { Model, read } from "./model";
import { differences, type Happening, refusals } from "./story";
import type { StateDocument, Stats, Status } from "./types";

const EVERY_MS = 1000;
/** While nothing answers. */
const RETRY_MS = 400;
/** What the document has changes seldom. */
export const DOCUMENT_EVERY_MS = 10_000;
export const MOST_HAPPENINGS = 200;
/** How long a failure in what stores a subsystem is worth a line at the top. */
const FRESH_MS = 60_000;

export interface Listener {
  changed: () => void;
  locked: () => void;
}

/** Looks each second, and sooner while nothing answers, until the token is no good any more. */
export function keepLooking(
  watched: { readonly goneSince: number | null },
  listener: Listener,
  look: () => Promise<void>,
  lost: () => void,
): void {
  const again = async (): Promise<void> => {
    const began = performance.now();
    try {
      await look();
    } catch (error) {
      if (error instanceof Locked) return listener.locked();
      lost();
    }
    listener.changed();
    const every = watched.goneSince === null ? EVERY_MS : RETRY_MS;
    setTimeout(() => void again(), Math.max(50, every - (performance.now() - began)));
  };
  void again();
}

export class Watch {
  readonly model = new Model();
  readonly happenings: Happening[] = [];
  status: Status | null = null;
  document: StateDocument | null = null;
  /** Since when nothing answers. */
  goneSince: number | null = null;
  /** When it answered again: what was before is over. */
  private backAt = 0;
  private documentAt = 0;
  private stats: Stats | null = null;
  /** Who else is told what happened. */
  heard: ((more: Happening[]) => void) | null = null;

  start(listener: Listener): void {
    keepLooking(this, listener, () => this.look(), () => this.lost());
  }

  /** Something was changed here: it is to be seen at once. */
  async refresh(): Promise<void> {
    this.documentAt = 0;
    await this.look();
  }

  /** What is wrong, a sentence each. */
  troubles(now: number): string[] {
    const said: string[] = [];
    if (this.goneSince !== null) {
      const since = duration(Math.max(0, (now - this.goneSince) / 1000));
      said.push(
        `The target does not answer, for ${since} (since ${clock(this.goneSince)}). ` +
          "What is shown is how it was then. This page goes on asking.",
      );
      return said;
    }
    for (const one of this.happenings) {
      const fresh = now - one.at < FRESH_MS && one.at > this.backAt;
      if (one.weight === "bad" && fresh && !one.lasts) said.push(`${clock(one.at)}: ${one.text}`);
    }
    for (const { nqn, namespaces } of this.status?.subsystems ?? []) {
      for (const { nsid, legs } of namespaces) {
        for (const leg of (legs ?? []).filter((leg) => leg.state === "out")) {
          const which = `Namespace ${nsid} of ${tail(nqn, 48)}`;
          said.push(`${which} goes on without its leg ${tail(leg.name, 48)}, which is out.`);
        }
      }
    }
    const waiting = this.status?.controllers.filter((one) => one.subsystem && !one.ready) ?? [];
    if (waiting.length > 0 && (this.status?.uptime_seconds ?? 0) > 5) {
      const hosts = [...new Set(waiting.map((one) => one.host_nqn))].slice(0, 3).join(", ");
      said.push(`Connected, and not enabled by their hosts: ${waiting.length} controllers (${hosts}).`);
    }
    return said;
  }

  private async look(): Promise<void> {
    const [status, stats] = await Promise.all([ask<Status>("/v1/status"), ask<Stats>("/v1/stats")]);
    const now = Date.now();
    let document: StateDocument | null = null;
    if (now - this.documentAt > DOCUMENT_EVERY_MS) {
      try {
        document = await ask<StateDocument>("/v1/state");
      } catch (error) {
        if (error instanceof Locked) throw error;
        // A change that waits for a slow disk keeps it until then: the target is there all the same.
      }
      this.documentAt = now;
    }
    this.take(status, stats, document, now);
  }

  /** What the target said. */
  take(status: Status, stats: Stats, document: StateDocument | null, now: number): void {
    if (document) this.document = document;
    if (this.goneSince !== null) {
      const seconds = duration((now - this.goneSince) / 1000);
      this.tell([{ at: now, weight: "good", text: `The target answers again, after ${seconds}.` }]);
      this.goneSince = null;
      this.backAt = now;
    }
    if (this.stats) this.tell(refusals(this.stats, stats, now));
    this.stats = stats;
    if (this.status) this.tell(differences(this.status, status, now));
    else this.tell([{ at: now, weight: "plain", text: "This page began to watch." }]);
    this.status = status;
    this.model.take(read(stats), now);
  }

  /** It said nothing. */
  lost(): void {
    if (this.goneSince !== null) return;
    this.goneSince = Date.now();
    this.model.lose();
    this.documentAt = 0;
    this.tell([{ at: this.goneSince, weight: "bad", text: "The target does not answer any more." }]);
  }

  private tell(more: Happening[]): void {
    this.heard?.([...more].reverse());
    this.happenings.unshift(...more.reverse());
    this.happenings.splice(MOST_HAPPENINGS);
  }
}
