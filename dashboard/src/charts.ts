// The charts. They show the same period, and each shows other figures.

import uPlot from "uplot";
import { now as present } from "./clock";
import "uplot/dist/uPlot.min.css";
import { el, say } from "./dom";
import * as format from "./format";
import type { Past } from "./history";
import { SERIES } from "./model";

type Series = (typeof SERIES)[number];

interface Line {
  series: Series;
  name: string;
  /** The name of the colour in the style sheet. */
  colour: string;
}

interface Shown {
  title: string;
  lines: Line[];
  say: (value: number) => string;
  /** The smallest upper end of the y axis. */
  least: number;
  /** Whether the axis has ticks at powers of two, for bytes. */
  binary: boolean;
}

const CHARTS: Shown[] = [
  {
    title: "Operations per second",
    lines: [
      { series: "reads", name: "reads", colour: "--read" },
      { series: "writes", name: "writes", colour: "--write" },
    ],
    say: format.short,
    least: 10,
    binary: false,
  },
  {
    title: "Throughput",
    lines: [
      { series: "readBytes", name: "read", colour: "--read" },
      { series: "writtenBytes", name: "written", colour: "--write" },
    ],
    say: format.perSecond,
    least: 1 << 20,
    binary: true,
  },
  {
    title: "Latency",
    lines: [
      { series: "p50", name: "median", colour: "--middle" },
      { series: "p99", name: "99th percentile", colour: "--high" },
    ],
    say: format.latency,
    least: 10,
    binary: false,
  },
  {
    title: "Processors at work",
    lines: [{ series: "busy", name: "busy", colour: "--busy" }],
    say: format.percent,
    least: 100,
    binary: false,
  },
];

const HEIGHT = 168;

/** A marked period, in a colour of the style sheet. Times in seconds. */
export interface Mark {
  name: string;
  colour: string;
  from: number;
  to: number;
}

/** The period in the charts: the last seconds until now, or a fixed period. */
export type View = { last: number } | { from: number; to: number };

class Chart {
  readonly figure: HTMLElement;
  private readonly shown: Shown;
  private readonly box: HTMLElement;
  private readonly values: HTMLElement[];
  private plot: uPlot | null = null;
  private data: (number | null)[][] = [];
  private readonly onZoom: (from: number, to: number) => void;
  private readonly marks: () => Mark[];

  constructor(shown: Shown, onZoom: (from: number, to: number) => void, marks: () => Mark[]) {
    this.shown = shown;
    this.onZoom = onZoom;
    this.marks = marks;
    // Screen readers need a label before the first figures arrive.
    this.box = el("div", { class: "plot", role: "img", "aria-label": shown.title });
    this.values = shown.lines.map(() => el("b", {}, "–"));
    const keys = shown.lines.map((line, index) =>
      el("span", { class: `key ${line.colour.slice(2)}` }, `${line.name} `, this.values[index]!),
    );
    const caption = el("figcaption", {}, el("h3", {}, shown.title), ...keys);
    this.figure = el("figure", { class: "chart" }, caption, this.box);
  }

  /** Draws the chart again with the page's current colours. */
  draw(): void {
    this.plot?.destroy();
    const width = Math.max(200, this.box.clientWidth);
    this.plot = new uPlot(this.options(width), this.data as uPlot.AlignedData, this.box);
  }

  show(past: Past, from: number, to: number): void {
    const all = past.slice(from, to);
    // uPlot cannot scale an axis with NaN. It draws `null` as a gap.
    const pick = this.shown.lines.map((line) =>
      all[SERIES.indexOf(line.series) + 1]!.map((value) => (Number.isNaN(value) ? null : value)),
    );
    this.data = [all[0]!, ...pick];
    // Hide the chart if the part has no such figures. If it has none in this period, show it empty.
    this.figure.hidden = !this.shown.lines.some((line) => past.has(SERIES.indexOf(line.series)));
    if (this.figure.hidden) return;
    if (!this.plot) this.draw();
    const plot = this.plot!;
    if (this.box.clientWidth > 0 && plot.width !== this.box.clientWidth) {
      plot.setSize({ width: this.box.clientWidth, height: HEIGHT });
    }
    plot.batch(() => {
      plot.setData(this.data as uPlot.AlignedData, false);
      plot.setScale("x", { min: from, max: to });
    });
    this.tell(null);
  }

  /** Shows the figures of a point; with `null`, the last figures. */
  private tell(index: number | null): void {
    const words = this.shown.lines.map((line, number) => {
      const values = this.data[number + 1] ?? [];
      const text = this.shown.say(values[index ?? values.length - 1] ?? NaN);
      say(this.values[number]!, text);
      return `${line.name} ${text}`;
    });
    if (index === null) this.box.setAttribute("aria-label", `${this.shown.title}: ${words.join(", ")}`);
  }

  private options(width: number): uPlot.Options {
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string): string => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--quiet"), font: "11px system-ui, sans-serif" };
    const lines = { stroke: colour("--grid"), width: 1 };
    const powers = [1, 2, 4, 8].flatMap((factor) =>
      Array.from({ length: 60 }, (_, power) => factor * 2 ** power),
    );
    const incrs = { incrs: [...new Set(powers)].sort((a, b) => a - b) };
    return {
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: "time" }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      scales: {
        x: { time: true, auto: false },
        y: { range: (_, __, max) => [0, Math.max(this.shown.least, (max || 0) * 1.08)] },
      },
      axes: [
        {
          ...axis,
          grid: { show: false },
          ticks: lines,
          size: 26,
          values: (_, ticks) => ticks.map((at) => axisTime(at, ticks)),
        },
        {
          ...axis,
          grid: lines,
          ticks: { show: false },
          size: 68,
          values: (_, ticks) => ticks.map(this.shown.say),
          ...(this.shown.binary ? incrs : {}),
        },
      ],
      series: [
        {},
        ...this.shown.lines.map((line, index) => ({
          stroke: colour(line.colour),
          width: 1.75,
          ...(index === 0 ? { fill: `${colour(line.colour)}22` } : {}),
          points: { show: false, filter: (_: uPlot, line: number) => alone(this.data[line]!), size: 4, fill: colour(line.colour) },
          spanGaps: false,
        })),
      ],
      hooks: {
        drawClear: [(plot: uPlot) => mark(plot, this.marks())],
        setCursor: [(plot: uPlot) => this.tell(plot.cursor.idx ?? null)],
        setSelect: [(plot: uPlot) => this.select(plot)],
      },
    };
  }

  private select(plot: uPlot): void {
    if (plot.select.width < 4) return;
    const from = Math.floor(plot.posToVal(plot.select.left, "x"));
    const to = Math.ceil(plot.posToVal(plot.select.left + plot.select.width, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (to - from >= 3) this.onZoom(from, to);
  }
}

/** Returns the places of values with gaps on both sides. No line shows them, so they get points. */
function alone(values: (number | null)[]): number[] {
  const has = (at: number): boolean => (values[at] ?? null) !== null;
  return [...values.keys()].filter((at) => has(at) && !has(at - 1) && !has(at + 1));
}

/** Draws the marked periods behind the lines, with their names. */
function mark(plot: uPlot, marks: Mark[]): void {
  const { ctx, bbox } = plot;
  const style = getComputedStyle(document.documentElement);
  const inside = (x: number): number => Math.min(Math.max(x, bbox.left), bbox.left + bbox.width);
  ctx.save();
  ctx.font = `bold ${12 * devicePixelRatio}px system-ui, sans-serif`;
  for (const { name, colour, from, to } of marks) {
    const [left, right] = [from, to].map((at) => inside(plot.valToPos(at, "x", true)));
    if (right! - left! < 1) continue;
    ctx.fillStyle = style.getPropertyValue(colour).trim();
    ctx.globalAlpha = 0.14;
    ctx.fillRect(left!, bbox.top, right! - left!, bbox.height);
    ctx.globalAlpha = 1;
    ctx.fillText(name, left! + 4 * devicePixelRatio, bbox.top + 13 * devicePixelRatio);
  }
  ctx.restore();
}

function axisTime(at: number, ticks: number[]): string {
  const date = new Date(at * 1000);
  const step = (ticks[1] ?? 0) - (ticks[0] ?? 0);
  if (step >= 86_400) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  const time = date.toLocaleTimeString("en-GB");
  return step >= 60 ? time.slice(0, 5) : time;
}

export class Charts {
  readonly node: HTMLElement;
  view: View = { last: 300 };
  private readonly charts: Chart[];
  private past: Past | null = null;

  /** `onPick` gets the dragged period. If it returns false, the charts zoom to the period. */
  constructor(onZoom: () => void, onPick: (from: number, to: number) => boolean, marks: () => Mark[]) {
    let isDone = false;
    const zoom = (from: number, to: number): void => {
      // uPlot selects the period in all charts, and each chart calls this function: act once.
      if (isDone) return;
      isDone = true;
      queueMicrotask(() => (isDone = false));
      if (onPick(from, to)) return;
      this.view = { from, to };
      onZoom();
    };
    this.charts = CHARTS.map((shown) => new Chart(shown, zoom, marks));
    this.node = el("div", { class: "charts" }, ...this.charts.map((chart) => chart.figure));
    this.node.addEventListener("dblclick", () => {
      this.view = { last: 300 };
      onZoom();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const chart of this.charts) if (!chart.figure.hidden) chart.draw();
      this.show(this.past);
    });
  }

  /** Returns the start and end of the shown period, in seconds. */
  range(past: Past): [number, number] {
    if ("from" in this.view) return [this.view.from, this.view.to];
    const now = Math.floor(present() / 1000);
    return [Math.max(now - this.view.last, Math.min(past.start, now - 60)), now];
  }

  show(past: Past | null): void {
    this.past = past;
    if (!past || past.start < 0) return;
    const [from, to] = this.range(past);
    for (const chart of this.charts) chart.show(past, from, to);
  }
}
