// The alarms at the top of the page, and the list of events.

import { el, say } from "./dom";
import * as format from "./format";
import type { Happening } from "./story";

export class Alarms {
  readonly node = el("div", { class: "troubles", role: "alert" });

  show(said: string[]): void {
    const shown = [...this.node.children];
    said.forEach((text, index) => {
      const line = shown[index];
      // Keep the element if only numbers changed, so that screen readers do not read it each
      // second.
      if (line && words(line.textContent ?? "") === words(text)) say(line, text);
      else if (line) line.replaceWith(el("p", {}, text));
      else this.node.append(el("p", {}, text));
    });
    for (const line of shown.slice(said.length)) line.remove();
  }
}

function words(text: string): string {
  return text.replace(/[\d:]+/g, "");
}

export class Log {
  readonly node: HTMLElement;
  private readonly list = el("ol");
  private newest = "";

  constructor(title = "Events") {
    const log = el("div", { class: "log", role: "log", "aria-label": title, tabindex: 0 }, this.list);
    this.node = el("section", { class: "panel" }, el("header", {}, el("h2", {}, title)), log);
  }

  show(happenings: Happening[]): void {
    const first = happenings[0];
    const newest = first ? `${first.at} ${happenings.length} ${first.text}` : "";
    if (newest === this.newest) return;
    this.newest = newest;
    this.list.replaceChildren(
      ...happenings.map((one) =>
        el("li", { class: one.weight }, el("time", {}, format.clock(one.at)), " ", one.text),
      ),
    );
  }
}
