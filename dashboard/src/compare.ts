// Compares two periods, in figures, in a chart and in words.

import uPlot from "uplot";
import { now as present } from "./clock";
import { el, say } from "./dom";
import * as format from "./format";
import type { Past } from "./history";
import { SERIES } from "./model";

export interface Period {
  from: number;
  to: number;
}

type Name = "A" | "B";
type Series = (typeof SERIES)[number];

interface Measure {
  series: Series;
  title: string;
  say: (value: number) => string;
  /** The words for an increase and a decrease. */
  more: string;
  less: string;
  /** The noun after a multiple, as in "2.5 times the reads". */
  whole: string;
}

const MEASURES: Measure[] = [
  { series: "reads", title: "Reads per second", say: format.short, more: "more reads", less: "fewer reads", whole: "reads" },
  { series: "writes", title: "Writes per second", say: format.short, more: "more writes", less: "fewer writes", whole: "writes" },
  { series: "readBytes", title: "Read", say: format.perSecond, more: "more read", less: "less read", whole: "bytes read" },
  { series: "writtenBytes", title: "Written", say: format.perSecond, more: "more written", less: "less written", whole: "bytes written" },
  { series: "p50", title: "Median latency", say: format.latency, more: "longer median latency", less: "shorter median latency", whole: "median latency" },
  { series: "p99", title: "99th percentile", say: format.latency, more: "longer 99th percentile", less: "shorter 99th percentile", whole: "99th percentile" },
  { series: "busy", title: "Processors at work", say: format.percent, more: "busier processors", less: "less busy processors", whole: "processor time" },
];

/** The fewest points of a period for a comparison. */
const FEWEST = 5;
/** The smallest relative change that the page reports. */
const LEAST_CHANGE = 0.02;
const HEIGHT = 190;
/** The shortest length and the initial length of a period, in seconds. */
const SHORTEST = 3;
const FIRST = 60;

/** The median of some values, and its uncertainty. */
export interface Middle {
  count: number;
  median: number;
  /** Half the width of a box plot's notch: 1.57 × IQR ÷ √n. */
  error: number;
}

export function middle(values: readonly number[]): Middle {
  const sorted = values.filter((value) => !Number.isNaN(value)).sort((a, b) => a - b);
  const at = (share: number): number => {
    const place = (sorted.length - 1) * share;
    const [low, high] = [sorted[Math.floor(place)] ?? NaN, sorted[Math.ceil(place)] ?? NaN];
    return low + (high - low) * (place - Math.floor(place));
  };
  const spread = at(0.75) - at(0.25);
  return { count: sorted.length, median: at(0.5), error: (1.57 * spread) / Math.sqrt(sorted.length) };
}

/** Describes the change from A to B. `is` says whether the change exceeds the usual variation. */
export function change(a: Middle, b: Middle, { more, less, whole }: Measure): { figure: string; words: string; is: boolean } {
  if (a.count === 0 && b.count === 0) return { figure: "–", words: "nothing was measured", is: false };
  if (a.count < FEWEST || b.count < FEWEST) {
    const which = a.count < FEWEST ? (b.count < FEWEST ? "both are" : "A is") : "B is";
    return { figure: "–", words: `${which} too short to compare`, is: false };
  }
  if (a.median === 0) {
    const words = b.median === 0 ? "none in either" : "only in B";
    return { figure: "–", words, is: b.median !== 0 };
  }
  const share = b.median / a.median - 1;
  const sign = share < 0 ? "−" : "+";
  const figure = `${sign}${(Math.abs(share) * 100).toFixed(Math.abs(share) < 0.0995 ? 1 : 0)} %`;
  const byChance = Math.abs(b.median - a.median) <= a.error + b.error;
  if (byChance || Math.abs(share) < LEAST_CHANGE) return { figure, words: "no difference beyond the usual variation", is: false };
  if (share >= 1) return { figure, words: `${(share + 1).toFixed(1)} times the ${whole}`, is: true };
  return { figure, words: `${(Math.abs(share) * 100).toFixed(0)} % ${share > 0 ? more : less}`, is: true };
}

/** The controls of one period. */
class Picker {
  readonly node: HTMLElement;
  readonly period: Period = { from: 0, to: 0 };
  private readonly from = el("input", { type: "range", step: 1 });
  private readonly seconds = el("input", { type: "number", min: SHORTEST, step: 1 });
  private readonly words = el("output");

  constructor(name: Name, shown: () => Period, changed: () => void) {
    const read = (): void => {
      const length = Math.max(SHORTEST, Math.floor(this.seconds.valueAsNumber) || SHORTEST);
      this.set({ from: this.from.valueAsNumber, to: this.from.valueAsNumber + length });
      changed();
    };
    this.from.addEventListener("input", read);
    this.seconds.addEventListener("change", read);
    const take = (): void => {
      this.set(shown());
      changed();
    };
    this.node = el(
      "fieldset",
      { class: `period ${name.toLowerCase()}` },
      el("legend", {}, name, " ", this.words),
      el("label", {}, "starts ", this.from),
      el("label", {}, "seconds ", this.seconds),
      el("button", { type: "button", click: take }, `Use the charts' period as ${name}`),
    );
  }

  set({ from, to }: Period): void {
    [this.period.from, this.period.to] = [from, Math.max(from + SHORTEST, to)];
    this.reach(Math.min(from, Number(this.from.min) || from), Math.max(to, Number(this.from.max)));
    this.from.value = String(from);
    this.seconds.value = String(this.period.to - from);
    const words = `${format.clock(from * 1000)} to ${format.clock(this.period.to * 1000)}`;
    say(this.words, words);
    this.from.setAttribute("aria-valuetext", words);
  }

  /** Sets the range of the slider for the period's start. */
  reach(first: number, last: number): void {
    this.from.min = String(first);
    this.from.max = String(last);
  }
}

interface Options {
  past: () => Past | null;
  /** Returns the period that the charts show. */
  shown: () => Period;
  changed: () => void;
}

export class Comparison {
  readonly node: HTMLElement;
  isOpen = false;
  /** The period that the next drag over a chart sets. */
  private next: Name = "A";
  private readonly pickers: Record<Name, Picker>;
  private readonly verdict = el("p", { role: "status" });
  private readonly hint = el("p", { class: "quiet" });
  private readonly body = el("tbody");
  private readonly measure = el("select");
  private readonly box = el("div", { class: "plot overlay", role: "img", "aria-label": "Chart of both periods" });
  private plot: uPlot | null = null;
  private readonly options: Options;

  constructor(options: Options) {
    this.options = options;
    const picked = (): void => {
      this.show();
      options.changed();
    };
    this.pickers = { A: new Picker("A", options.shown, picked), B: new Picker("B", options.shown, picked) };
    this.measure.append(...MEASURES.map(({ series, title }) => el("option", { value: series }, title)));
    this.measure.addEventListener("change", () => this.show());
    const heads = ["", "Median of A", "Median of B", "Change", "In words"].map((title, at) =>
      el("th", { scope: "col", class: at > 0 && at < 4 ? "number" : "" }, title || el("span", { class: "unseen" }, "Figure")),
    );
    const table = el("table", { class: "plain" }, el("thead", {}, el("tr", {}, ...heads)), this.body);
    const scroll = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Medians of both periods" }, table);
    const keys = el("div", { class: "keys" }, el("span", { class: "key a" }, "A"), el("span", { class: "key b" }, "B, dashed"));
    this.node = el(
      "section",
      { class: "panel compare", hidden: true, "aria-label": "Two periods compared" },
      el("div", { class: "pickers" }, this.pickers.A.node, this.pickers.B.node),
      this.hint,
      this.verdict,
      scroll,
      el("div", { class: "bar" }, el("label", {}, "Both periods as lines, from their starts: ", this.measure), keys),
      this.box,
    );
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.plot?.destroy();
      this.plot = null;
      this.show();
    });
  }

  /** The periods that the charts mark. */
  get periods(): [Name, Period][] {
    return this.isOpen ? [["A", this.pickers.A.period], ["B", this.pickers.B.period]] : [];
  }

  toggle(): void {
    this.isOpen = !this.isOpen;
    this.node.hidden = !this.isOpen;
    if (this.isOpen && this.pickers.B.period.to === 0) this.begin();
    this.show();
    this.options.changed();
  }

  /** Sets a period after a drag over a chart, or after the key a or b. */
  pick(period: Period, name = this.next): void {
    if (!this.isOpen) this.toggle();
    this.pickers[name].set(period);
    this.next = name === "A" ? "B" : "A";
    this.show();
    this.options.changed();
  }

  /** Sets B to the last minute, and A to the minute before. */
  private begin(): void {
    const past = this.options.past();
    const now = Math.floor(present() / 1000);
    const known = past && past.start > 0 ? now - past.start : 0;
    const length = Math.max(SHORTEST, Math.min(FIRST, Math.floor(known / 2)));
    this.pickers.A.set({ from: now - 2 * length, to: now - length });
    this.pickers.B.set({ from: now - length, to: now });
  }

  show(): void {
    const past = this.options.past();
    if (!this.isOpen || !past) return;
    const now = Math.floor(present() / 1000);
    for (const { period, reach } of [this.pickers.A, this.pickers.B].map((picker) => ({ period: picker.period, reach: picker.reach.bind(picker) }))) {
      reach(Math.min(past.start, period.from), Math.max(now - SHORTEST, period.from));
    }
    say(this.hint, `Drag over a chart to pick ${this.next}; the keys a and b pick the period that the charts show.`);
    const slices = { A: within(past, this.pickers.A.period), B: within(past, this.pickers.B.period) };
    this.table(past, slices.A, slices.B);
    this.overlay(slices.A, slices.B);
  }

  private table(past: Past, a: number[][], b: number[][]): void {
    const said: string[] = [];
    const rows = MEASURES.filter(({ series }) => past.has(SERIES.indexOf(series))).map((measure) => {
      const at = SERIES.indexOf(measure.series) + 1;
      const [was, is] = [middle(a[at]!), middle(b[at]!)];
      const became = change(was, is, measure);
      if (became.is) said.push(became.words);
      return [measure.title, measure.say(was.median), measure.say(is.median), became.figure, became.words];
    });
    while (this.body.children.length > rows.length) this.body.lastChild!.remove();
    rows.forEach((row, at) => {
      const line = this.body.children[at] ?? this.body.appendChild(this.line());
      row.forEach((text, column) => say(line.children[column]!, text));
    });
    const [first, second] = [stepOf(a), stepOf(b)];
    const coarse = first === second ? "" : ` A has one value per ${format.duration(first)}, B one per ${format.duration(second)}.`;
    const words = said.length > 0 ? `In B: ${said.join("; ")}.` : "B does not differ from A beyond the usual variation.";
    say(this.verdict, words + coarse);
  }

  private line(): HTMLTableRowElement {
    const cells = ["", "number", "number", "number", ""].map((name, at) =>
      at === 0 ? el("th", { scope: "row" }) : el("td", { class: name }),
    );
    return el("tr", {}, ...cells);
  }

  private overlay(a: number[][], b: number[][]): void {
    const measure = MEASURES.find(({ series }) => series === this.measure.value) ?? MEASURES[0]!;
    const at = SERIES.indexOf(measure.series) + 1;
    const moved = (slice: number[][], { from }: Period): uPlot.AlignedData => [
      slice[0]!.map((time) => time - from),
      slice[at]!.map((value) => (Number.isNaN(value) ? null : value)),
    ];
    const data = uPlot.join([moved(a, this.pickers.A.period), moved(b, this.pickers.B.period)]);
    const width = Math.max(200, this.box.clientWidth);
    if (this.plot && this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
    this.plot ??= new uPlot(this.lines(width), data, this.box);
    this.plot.setData(data);
    const ends = (slice: number[][]): string => measure.say(middle(slice[at]!).median);
    this.box.setAttribute("aria-label", `${measure.title}: median ${ends(a)} in A, ${ends(b)} in B`);
  }

  private lines(width: number): uPlot.Options {
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string): string => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--quiet"), font: "11px system-ui, sans-serif" };
    const saying = (value: number): string =>
      (MEASURES.find(({ series }) => series === this.measure.value) ?? MEASURES[0]!).say(value);
    return {
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: false }, y: { range: (_, __, most) => [0, Math.max(1, (most || 0) * 1.08)] } },
      axes: [
        { ...axis, grid: { show: false }, size: 26, values: (_, ticks) => ticks.map((tick) => `${tick} s`) },
        { ...axis, grid: { stroke: colour("--grid"), width: 1 }, size: 68, values: (_, ticks) => ticks.map(saying) },
      ],
      series: [
        {},
        { stroke: colour("--a"), width: 2, points: { show: false }, spanGaps: true },
        { stroke: colour("--b"), width: 2, dash: [7, 4], points: { show: false }, spanGaps: true },
      ],
    };
  }
}

/** Returns the points of a period. The end itself does not belong to the period. */
function within(past: Past, { from, to }: Period): number[][] {
  return past.slice(from, to - 1);
}

function stepOf(slice: number[][]): number {
  const [first, second] = slice[0]!;
  return first === undefined || second === undefined ? 1 : second - first;
}
