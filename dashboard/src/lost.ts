// Ways of hosts that are lost: they stand in the picture for a while, where somebody may see which
// they were.

import type { News } from "./story";
import type { ControllerStatus, Status } from "./types";

/** How long. */
const SHOWN_MS = 60_000;
/** How many, at most. */
const MOST = 64;
/** What the target says of a host that it has not heard of. */
const SILENT = /keep-alive|lost connection/;

export interface Lost {
  one: ControllerStatus;
  at: number;
  why: string;
}

const whose = (one: ControllerStatus): string => `${one.host_nqn} ${one.subsystem}`;

export class Losses {
  /** Another array when they are others. */
  all: readonly Lost[] = [];

  /** One who leaves by all its ways has left; one who goes on by another has lost one. */
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
    // One that is new is one of those that were lost.
    for (const one of is.controllers) {
      if (one.subsystem === null || before.has(`${whose(one)} ${one.id}`)) continue;
      const oldest = all.findLastIndex((lost) => whose(lost.one) === whose(one));
      if (oldest >= 0) all = all.toSpliced(oldest, 1);
    }
    // It may be seen between the ends of its ways as it leaves: that was no loss.
    const left = new Set<string>();
    for (const one of was.controllers) {
      if (!staying.has(whose(one)) && !SILENT.test(news.why(one))) left.add(whose(one));
    }
    if (left.size > 0) all = all.filter((lost) => !left.has(whose(lost.one)) || SILENT.test(lost.why));
    all = all.slice(0, MOST);
    if (all.length > 0 || this.all.length > 0) this.all = all;
  }

  /** What was lost long ago is not shown any more. */
  fade(now: number): readonly Lost[] {
    if (this.all.some(({ at }) => now - at >= SHOWN_MS)) this.all = this.all.filter(({ at }) => now - at < SHOWN_MS);
    return this.all;
  }
}
