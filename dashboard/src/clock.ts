// Converts the target's times to this machine's clock, also for readings that arrive late.

let last = 0;
let ahead = 0;

/**
 * Returns this machine's time in milliseconds. The result never decreases. If the machine's clock
 * is set back, this clock continues from its last value, so that new events stay behind old ones.
 */
export function now(): number {
  const at = Date.now();
  if (at + ahead < last) ahead = last - at;
  last = at + ahead;
  return last;
}

/**
 * The longest delay of a reading. A page that the browser had suspended reads all waiting events at
 * once. A longer delay means that the machine was asleep.
 */
const MOST_LATE_MS = 120_000;
/** The allowance per reading for clocks of two machines that run at different speeds. */
const DRIFT_MS = 5;

export class Clock {
  private offset = NaN;
  private uptime = 0;

  /** Forgets the offset, because the next readings arrive over another connection. */
  begin(): void {
    this.offset = NaN;
  }

  /** Returns the time of a reading that the target made `uptime` milliseconds after its start. */
  time(uptime: number, now: number): number {
    // The target has restarted.
    if (uptime < this.uptime) this.offset = NaN;
    this.uptime = uptime;
    const offset = now - uptime;
    const late = offset - this.offset;
    // The smallest offset belongs to the reading with the shortest delay.
    this.offset = late >= 0 && late < MOST_LATE_MS ? this.offset + Math.min(late, DRIFT_MS) : offset;
    return uptime + this.offset;
  }
}
