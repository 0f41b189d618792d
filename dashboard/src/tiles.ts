// The large figures at the top of the page.

import { el, say } from "./dom";
import * as format from "./format";
import type { Rates } from "./model";

export interface Facts {
  /** The figure of a further tile, by title. */
  [title: string]: string;
}

export class Tiles {
  readonly node = el("dl", { class: "tiles" });
  private readonly values = new Map<string, HTMLElement>();
  /** The tiles by place. A tile that appears later goes to its place between the others. */
  private readonly places: (HTMLElement | undefined)[] = [];
  private place = 0;

  show(rates: Rates | undefined, facts: Facts): void {
    if (!rates) return;
    this.place = 0;
    this.set("Reads per second", format.short(rates.reads), "read");
    this.set("Writes per second", format.short(rates.writes), "write");
    this.set("Read", format.perSecond(rates.readBytes), "read");
    this.set("Written", format.perSecond(rates.writtenBytes), "write");
    for (const [title, text] of Object.entries(facts)) this.set(title, text, "");
    this.some("Median latency", rates.p50, format.latency);
    this.some("99th percentile", rates.p99, format.latency);
    this.some("Processors busy", rates.busy, format.percent);
  }

  /** Shows a figure. Makes no tile for a figure that the target has never reported. */
  private some(title: string, value: number, text: (value: number) => string): void {
    if (!Number.isNaN(value) || this.values.has(title)) this.set(title, text(value), "");
    else this.place += 1;
  }

  private set(title: string, text: string, colour: string): void {
    const place = this.place++;
    let value = this.values.get(title);
    if (!value) {
      value = el("dd");
      this.values.set(title, value);
      const tile = el("div", { class: `tile ${colour}` }, el("dt", {}, title), value);
      this.node.insertBefore(tile, this.places.slice(place).find((one) => one) ?? null);
      this.places[place] = tile;
    }
    say(value, text);
  }
}
