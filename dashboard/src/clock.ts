// When something was counted, by this machine's clock: what comes late was counted before.

let last = 0;
let ahead = 0;

/**
 * Returns this machine's time in milliseconds, which never runs backwards. If the machine's clock
 * is set back, this clock continues from its last value, so that new events stay behind old ones.
 */
export function now(): number {
  const at = Date.now();
  if (at + ahead < last) ahead = last - at;
  last = at + ahead;
  return last;
}

/** A page that was frozen reads what waited for it at once; who waited longer has slept. */
const MOST_LATE_MS = 120_000;
/** Clocks of two machines run apart: so much, in each reading. */
const DRIFT_MS = 5;

export class Clock {
  private offset = NaN;
  private uptime = 0;

  /** What comes from now on comes by another way. */
  begin(): void {
    this.offset = NaN;
  }

  /** When that was, of a target that has been running for `uptime` milliseconds. */
  time(uptime: number, now: number): number {
    // It was started anew.
    if (uptime < this.uptime) this.offset = NaN;
    this.uptime = uptime;
    const offset = now - uptime;
    const late = offset - this.offset;
    // The least that was seen is how soon something can be here.
    this.offset = late >= 0 && late < MOST_LATE_MS ? this.offset + Math.min(late, DRIFT_MS) : offset;
    return uptime + this.offset;
  }
}
