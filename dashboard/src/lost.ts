// Lost paths of hosts. The picture shows them for some time, so that users can see which were lost.

import type { News } from "./story";
import type { ControllerStatus, Status } from "./types";

/** The time for which the picture shows a lost path. */
const SHOWN_MS = 60_000;
/** The largest number of lost paths. */
const MOST = 64;
/** Matches the reasons that a target gives for hosts that went silent. */
const SILENT = /keep-alive|lost connection/;

export interface Lost {
  one: ControllerStatus;
  at: number;
  why: string;
}

const whose = (one: ControllerStatus): string => `${one.host_nqn} ${one.subsystem}`;

export class Losses {
  /** The lost paths. Each change makes a new array. */
  all: readonly Lost[] = [];

  /** Compares two statuses. A host that closes all its paths has left, and has lost none. */
  take(was: Status, is: Status, at: number, news: News): void {
    if (was.pid !== is.pid) {
      this.all = [];
      return;
    }
    const there = new Set(is.controllers.map((one) => `${whose(one)} ${one.id}`));
    const before = new Set(was.controllers.map((one) => `${whose(one)} ${one.id}`));
    const staying = new Set(is.controllers.map(whose));
    let all = [...this.all];
    for (const one of was.controllers) {
      if (one.subsystem === null || there.has(`${whose(one)} ${one.id}`)) continue;
      const why = news.why(one);
      if (staying.has(whose(one)) || SILENT.test(why)) all.unshift({ one, at, why });
    }
    // A new path replaces the oldest lost path of the same host.
    for (const one of is.controllers) {
      if (one.subsystem === null || before.has(`${whose(one)} ${one.id}`)) continue;
      const oldest = all.findLastIndex((lost) => whose(lost.one) === whose(one));
      if (oldest >= 0) all = all.toSpliced(oldest, 1);
    }
    // A status may show a leaving host with some paths closed. When the host has left, these paths
    // do not count as lost.
    const left = new Set<string>();
    for (const one of was.controllers) {
      if (!staying.has(whose(one)) && !SILENT.test(news.why(one))) left.add(whose(one));
    }
    if (left.size > 0) all = all.filter((lost) => !left.has(whose(lost.one)) || SILENT.test(lost.why));
    all = all.slice(0, MOST);
    if (all.length > 0 || this.all.length > 0) this.all = all;
  }

  /** Removes paths that were lost long ago. */
  fade(now: number): readonly Lost[] {
    if (this.all.some(({ at }) => now - at >= SHOWN_MS)) this.all = this.all.filter(({ at }) => now - at < SHOWN_MS);
    return this.all;
  }
}
