// The charts, with the controls above them: the shown part, the range, and pause.

import { Charts } from "./charts";
import { now as present } from "./clock";
import { Comparison } from "./compare";
import { el, say } from "./dom";
import { clock } from "./format";
import type { Part } from "./model";

const RANGES: [string, number][] = [
  ["5 min", 300],
  ["15 min", 900],
  ["3 h", 10_800],
  ["1 day", 86_400],
  ["all", 2_592_000],
];

interface Options {
  /** The text of the button that returns to the whole target or cluster. */
  back: string;
  part: () => Part | undefined;
  /** Returns the name of the shown part; `null` for the whole target or cluster. */
  title: (part: Part | undefined) => string | null;
  whole: string;
  chooseWhole: () => void;
  heldChanged: () => void;
}

export class Stretch {
  readonly node: HTMLElement;
  held = false;
  private readonly charts = new Charts(
    () => this.show(),
    (from, to) => this.picked(from, to),
    () => this.comparison.periods.map(([name, period]) => ({ name, colour: `--${name.toLowerCase()}`, ...period })),
  );
  private readonly comparison = new Comparison({
    past: () => this.options.part()?.past ?? null,
    shown: () => this.shown(),
    changed: () => this.show(),
  });
  private readonly compare = el(
    "button",
    { type: "button", "aria-expanded": "false", click: () => this.comparison.toggle() },
    "Compare",
  );
  private readonly scope = el("h2", { class: "scope" });
  private readonly whole: HTMLButtonElement;
  private readonly pause = el("button", { type: "button", "aria-pressed": "false", click: () => this.hold() }, "Pause");
  private readonly since = el("time");
  private readonly ranges: HTMLButtonElement[];
  private readonly options: Options;

  constructor(options: Options) {
    this.options = options;
    this.whole = el("button", { type: "button", click: options.chooseWhole }, options.back);
    this.ranges = RANGES.map(([title, last]) =>
      el("button", { type: "button", click: () => this.range(last) }, title),
    );
    const group = el("div", { class: "group", role: "group", "aria-label": "Range" }, ...this.ranges);
    const bar = el("div", { class: "bar" }, this.scope, this.whole, el("span", { class: "space" }), group, this.compare, this.pause);
    const hint = el(
      "p",
      { class: "quiet hint" },
      "Drag over a chart to zoom, double-click to return. Keys: space pauses, 1 to 5 choose the range, c compares two periods, which a and b pick. ",
      this.since,
    );
    this.node = el("section", { "aria-label": "Charts" }, bar, this.charts.node, hint, this.comparison.node);
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("resize", () => this.show());
    this.show();
  }

  show(): void {
    if (this.node.closest("[hidden]")) return;
    const part = this.options.part();
    const title = this.options.title(part);
    say(this.scope, title ?? this.options.whole);
    this.whole.hidden = title === null;
    const { view } = this.charts;
    this.ranges.forEach((button, index) => {
      const on = "last" in view && view.last === RANGES[index]![1];
      button.setAttribute("aria-pressed", String(on));
    });
    this.compare.setAttribute("aria-expanded", String(this.comparison.isOpen));
    this.charts.show(part?.past ?? null);
    this.begins(part?.past.start ?? -1);
    this.comparison.show();
  }

  /** Shows the start of the known history, which may be before the page opened. */
  private begins(second: number): void {
    const at = new Date(second * 1000);
    const isToday = at.toDateString() === new Date().toDateString();
    say(this.since, second < 0 ? "" : `Known since ${isToday ? "" : `${at.toLocaleDateString("en-GB")} `}${clock(at.getTime())}.`);
    this.since.dateTime = second < 0 ? "" : at.toISOString();
  }

  /** Returns the period of the charts, in seconds. */
  private shown(): { from: number; to: number } {
    const past = this.options.part()?.past;
    const now = Math.floor(present() / 1000);
    const [from, to] = past ? this.charts.range(past) : [now - 60, now];
    return { from, to };
  }

  private picked(from: number, to: number): boolean {
    if (!this.comparison.isOpen) return false;
    this.comparison.pick({ from, to });
    return true;
  }

  private range(last: number): void {
    this.charts.view = { last };
    this.show();
  }

  private hold(): void {
    this.held = !this.held;
    this.pause.setAttribute("aria-pressed", String(this.held));
    this.options.heldChanged();
  }

  private key(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (!this.node.isConnected || this.node.closest("[hidden]")) return;
    if (target.closest("input, button, dialog, select") || event.ctrlKey || event.altKey || event.metaKey) return;
    const range = RANGES[Number(event.key) - 1];
    if (event.key === "c") this.comparison.toggle();
    else if (event.key === "a" || event.key === "b") this.comparison.pick(this.shown(), event.key === "a" ? "A" : "B");
    else if (event.key === " ") this.hold();
    else if (range) this.range(range[1]);
    else return;
    event.preventDefault();
  }
}
