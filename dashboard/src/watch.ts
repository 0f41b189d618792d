// The state of one target as the page knows it, from the event stream or from polls.

import { ask, Locked, recalled } from "./api";
import { clock, duration, tail } from "./format";
import { verified } from "./mirrors";
import { Model, read, TARGET } from "./model";
import { Clock, now as present } from "./clock";
import { Losses } from "./lost";
import { differences, type Happening, News, refusals } from "./story";
import { type Ear, listen, type Listener } from "./stream";
import type { StateDocument, Stats, Status, Told } from "./types";

/** The interval at which the page polls the document, if there is no event stream. */
const DOCUMENT_EVERY_MS = 10_000;
export const MOST_HAPPENINGS = 200;
/** The time for which a failure stays among the alarms. */
const FRESH_MS = 60_000;

export class Watch {
  readonly model = new Model();
  readonly happenings: Happening[] = [];
  /** The path of the target's interface on the server. */
  readonly base: string;
  status: Status | null = null;
  document: StateDocument | null = null;
  /** The time since which the target does not answer; `null` if it answers. */
  goneSince: number | null = null;
  /** The time of the last reconnection. Alarms from before it are over. */
  private backAt = 0;
  /** The reason for polling the target; `null` while the event stream works. */
  polled: string | null = null;
  stats: Stats | null = null;
  private documentAt = 0;
  private readonly clock = new Clock();
  private readonly news = new News();
  readonly losses = new Losses();
  /** A function that also receives the events. */
  heard: ((more: Happening[]) => void) | null = null;

  constructor(base = "/v1") {
    this.base = base;
  }

  start(listener: Listener): void {
    const ear: Ear = {
      hear: (name, data) => this.hear(name, data),
      look: () => this.look(),
      lost: () => this.lost(),
      polls: (why) => this.polls(why),
    };
    void listen(ear, listener);
    void recalled().then((kept) => kept && this.model.recall(TARGET, kept, present() / 1000));
  }

  /** Updates the page at once after a change by this user. */
  async refresh(): Promise<void> {
    this.documentAt = 0;
    // With an event stream, do not poll the status: the response could be older than the last
    // event. A node of a cluster has no polls of its own.
    const isTold = this.polled === null || this.base !== "/v1";
    await (isTold ? this.takeDocument(present()) : this.look());
  }

  get isLive(): boolean {
    return this.goneSince === null && this.status !== null && this.stats !== null;
  }

  get uptimeSeconds(): number {
    return Math.floor((this.stats?.uptime_ms ?? 0) / 1000);
  }

  polls(why: string | null): void {
    this.polled = why;
    this.clock.begin();
  }

  /** Takes an event of the target. */
  hear(name: string, data: unknown): void {
    const now = present();
    if (name === "stats") this.takeStats(data as Stats, now);
    else if (name === "status") this.takeStatus(data as Status, now);
    else if (name === "document") void this.takeDocument(now).catch(() => undefined);
    else this.news.hear(name, data as Told);
    // Report the events with the next status, which arrives soon and says more.
    if (name === "stats" || name === "status") this.tell(this.news.since(now, name === "status"));
  }

  /** Returns a sentence for each problem. */
  troubles(now: number): string[] {
    const said: string[] = [];
    if (this.goneSince !== null) {
      const since = duration(Math.max(0, (now - this.goneSince) / 1000));
      said.push(
        `The target has not answered for ${since} (since ${clock(this.goneSince)}). ` +
          "The page shows the last known state, and keeps trying to connect.",
      );
      return said;
    }
    for (const one of this.happenings) {
      const fresh = now - one.at < FRESH_MS && one.at > this.backAt;
      if (one.weight === "bad" && fresh && !one.lasts) said.push(`${clock(one.at)}: ${one.text}`);
    }
    for (const { nqn, namespaces } of this.status?.subsystems ?? []) {
      for (const namespace of namespaces) {
        const { nsid, legs } = namespace;
        said.push(...verified(nqn, namespace));
        for (const leg of (legs ?? []).filter((leg) => leg.state === "out" || leg.state === "away")) {
          const which = `Namespace ${nsid} of ${tail(nqn, 48)}`;
          const name = tail(leg.name, 48);
          said.push(leg.state === "out" ? `${which} continues without its leg ${name}, which is out.` : `${which} waits for its part ${name}.`);
        }
      }
    }
    const waiting = this.status?.controllers.filter((one) => one.subsystem && !one.ready) ?? [];
    if (waiting.length > 0 && this.uptimeSeconds > 5) {
      const hosts = [...new Set(waiting.map((one) => one.host_nqn))].slice(0, 3).join(", ");
      said.push(`${waiting.length} controllers are connected, but their hosts have not enabled them (${hosts}).`);
    }
    return said;
  }

  private async look(): Promise<void> {
    const [status, stats] = await Promise.all([ask<Status>("/v1/status"), ask<Stats>("/v1/stats")]);
    const now = present();
    this.takeStatus(status, now);
    this.takeStats(stats, now);
    if (now - this.documentAt > DOCUMENT_EVERY_MS) await this.takeDocument(now);
  }

  private async takeDocument(now: number): Promise<void> {
    this.documentAt = now;
    try {
      this.document = await ask<StateDocument>(`${this.base}/state`);
    } catch (error) {
      if (error instanceof Locked) throw error;
      // The document may be locked by a change that waits for a slow disk. The target still works.
      this.documentAt = 0;
    }
  }

  private answers(now: number): void {
    if (this.goneSince === null) return;
    const seconds = duration((now - this.goneSince) / 1000);
    this.tell([{ at: now, weight: "good", text: `The target answers again, after ${seconds}.` }]);
    this.goneSince = null;
    this.backAt = now;
  }

  takeStats(stats: Stats, now: number): void {
    this.answers(now);
    if (this.stats) this.tell(refusals(this.stats, stats, now, this.news));
    this.stats = stats;
    this.model.take(read(stats), this.clock.time(stats.uptime_ms, now));
  }

  /** Takes a status. Only counters prove that the target answers: see `takeStats`. */
  takeStatus(status: Status, now: number): void {
    if (this.status) this.losses.take(this.status, status, now, this.news);
    if (this.status) this.tell(differences(this.status, status, now, this.news));
    else this.tell([{ at: now, weight: "plain", text: "The page opened." }]);
    this.status = status;
  }

  /** Records that the target does not answer. */
  lost(): void {
    if (this.goneSince !== null) return;
    this.goneSince = present();
    this.model.lose();
    this.news.forget();
    this.documentAt = 0;
    this.tell([{ at: this.goneSince, weight: "bad", text: `The target ${this.status ? "no longer answers" : "does not answer"}.` }]);
  }

  private tell(more: Happening[]): void {
    if (more.length === 0) return;
    this.heard?.([...more].reverse());
    this.happenings.unshift(...more.reverse());
    this.happenings.splice(MOST_HAPPENINGS);
  }
}
