// Keeps past rates in bounded memory: one point per second for the last minutes, and fewer points
// for older times.

import type { Kept } from "./types";

/** A resolution of a history: the seconds per point, and the number of points. */
export interface Level {
  step: number;
  points: number;
}

/** The resolutions for the target: for a quarter of an hour, three hours, a day, a month. */
export const TOTALS: Level[] = [
  { step: 1, points: 900 },
  { step: 10, points: 1_080 },
  { step: 60, points: 1_440 },
  { step: 600, points: 4_320 },
];

/** The resolutions for each namespace, host and core: for five minutes and an hour. */
export const PARTS: Level[] = [
  { step: 1, points: 300 },
  { step: 10, points: 360 },
];

/** The points of one resolution. New points overwrite the oldest ones. */
class Ring {
  readonly step: number;
  private readonly level: Level;
  private readonly values: Float32Array[];
  private readonly sums: Float64Array;
  private readonly counts: Float64Array;
  /** The second at which the newest point starts; -1: there are no points. */
  private newest = -1;
  private length = 0;

  constructor(level: Level, series: number) {
    this.level = level;
    this.step = level.step;
    this.values = Array.from({ length: series }, () => new Float32Array(level.points).fill(NaN));
    this.sums = new Float64Array(series);
    this.counts = new Float64Array(series);
  }

  private get points(): number {
    return this.values[0]!.length;
  }

  /** Adds a sample that is valid for `seconds`. A point is the mean of its samples, by seconds. */
  push(second: number, sample: readonly number[], seconds = 1): void {
    const start = second - (second % this.step);
    if (start > this.newest) this.open(start);
    const place = (this.newest / this.step) % this.points;
    sample.forEach((value, series) => {
      if (Number.isNaN(value)) return;
      this.sums[series]! += value * seconds;
      this.counts[series]! += seconds;
      this.values[series]![place] = this.sums[series]! / this.counts[series]!;
    });
  }

  /** Starts a new point. Skipped points stay empty. */
  private open(start: number): void {
    const missed = this.newest < 0 ? 1 : Math.min((start - this.newest) / this.step, this.points);
    for (let back = 0; back < missed; back += 1) {
      const place = (start / this.step - back + this.points * 2) % this.points;
      for (const values of this.values) values[place] = NaN;
    }
    this.length = Math.min(this.length + missed, this.points);
    this.newest = start;
    this.sums.fill(0);
    this.counts.fill(0);
  }

  /**
   * Returns a ring with older points before these points. `before` has points of this step, oldest
   * first. Ignores points after the second `now`, which come from a clock that was set back: they
   * would hide all new samples.
   */
  after(before: [number, number[]][], now: number): Ring {
    const all = new Ring(this.level, this.values.length);
    const own = this.newest < 0 ? Infinity : this.oldest;
    const take = (isIt: (start: number) => boolean): void => {
      for (const [at, sample] of before) {
        const start = at - (at % this.step);
        // Allow one second more, because of rounding.
        if (start <= now + 1 && isIt(start)) all.push(start, sample, Math.min(this.step, Math.max(1, now - at)));
      }
    };
    take((start) => start < own);
    if (this.newest < 0) return all;
    const [times, ...series] = this.slice(this.oldest, this.newest);
    // Add the newest point as a sample, so that it can still take further samples.
    for (let place = 0; place < times!.length - 1; place += 1) {
      all.push(times![place]!, series.map((values) => values[place]!));
    }
    take((start) => start === this.newest);
    this.values.forEach((_, index) => {
      const sample = new Array<number>(this.values.length).fill(NaN);
      if (this.counts[index]! > 0) sample[index] = this.sums[index]! / this.counts[index]!;
      all.push(this.newest, sample, this.counts[index]!);
    });
    return all;
  }

  get oldest(): number {
    return this.newest - (this.length - 1) * this.step;
  }

  /** Returns the times and the series between two seconds. */
  slice(from: number, to: number): number[][] {
    const first = Math.max(this.oldest, from - (from % this.step));
    const last = Math.min(this.newest, to);
    const out: number[][] = [[], ...this.values.map(() => [])];
    if (this.newest < 0) return out;
    for (let at = first; at <= last; at += this.step) {
      const place = (at / this.step) % this.points;
      out[0]!.push(at);
      this.values.forEach((values, series) => out[series + 1]!.push(values[place]!));
    }
    return out;
  }
}

/** The history of some series, in several resolutions. */
export class Past {
  private readonly rings: Ring[];
  private readonly known: boolean[];
  private first = -1;

  constructor(levels: Level[], series: number) {
    this.rings = levels.map((level) => new Ring(level, series));
    this.known = new Array<boolean>(series).fill(false);
  }

  push(second: number, sample: readonly number[]): void {
    if (this.first < 0) this.first = second;
    for (const ring of this.rings) ring.push(second, sample);
    sample.forEach((value, series) => (this.known[series] ||= !Number.isNaN(value)));
  }

  /** Adds a server's history before this history. `now` is this machine's time in seconds. */
  recall(kept: Kept, now: number): void {
    const shift = Math.round(now - kept.now);
    let first = Infinity;
    for (const { step, newest, series } of kept.levels) {
      const index = this.rings.findIndex((ring) => ring.step === step);
      const points = series[0]?.length ?? 0;
      if (index < 0 || points === 0 || series.length !== this.known.length) continue;
      const before = Array.from({ length: points }, (_, place): [number, number[]] => {
        const sample = series.map((values) => values[place] ?? NaN);
        sample.forEach((value, which) => (this.known[which] ||= !Number.isNaN(value)));
        return [newest - (points - 1 - place) * step + shift, sample];
      });
      this.rings[index] = this.rings[index]!.after(before, now);
      // A coarse point may start before its first sample. So an older start counts only if the
      // whole point is older.
      const oldest = before[0]![0];
      if (oldest <= now + 1 && (first === Infinity || oldest + step <= first)) first = oldest;
    }
    if (first < Infinity) this.first = this.first < 0 ? first : Math.min(this.first, first);
  }

  /** Whether a series ever had a value. */
  has(series: number): boolean {
    return this.known[series] ?? false;
  }

  get start(): number {
    return this.first;
  }

  /** Returns points from the finest resolution that covers the period with at most 1,800 points. */
  slice(from: number, to: number): number[][] {
    const reaches = Math.max(from, this.first);
    const fits = (ring: Ring): boolean =>
      ring.oldest <= reaches && (to - reaches) / ring.step <= 1_800;
    const ring = this.rings.find(fits) ?? this.rings[this.rings.length - 1]!;
    return ring.slice(from, to);
  }
}
