// Who uses what, drawn: hosts, their controllers, subsystems and namespaces, and what flows.

import { el, say, svg } from "./dom";
import * as format from "./format";
import { type Model, partKey } from "./model";
import type { LegStatus, StateDocument, Status } from "./types";

interface Box {
  key: string;
  title: string;
  /** A second line, which changes with operations a second. */
  note: (flow: number) => string;
  full: string;
  /** What its operations are counted by; those of nothing are none. */
  part: string;
  bad?: boolean;
}

/** A way that I/O takes, one of many between two boxes perhaps. */
interface Way {
  from: string;
  to: string;
  /** What flows there is counted by the first of these that is counted at all. */
  parts: string[];
  active: boolean;
}

/** What is drawn of a status: names are made once, and only what flows is looked up again. */
interface Scene {
  of: Status;
  with: StateDocument | null;
  columns: Box[][];
  ways: Way[][];
}

interface Link {
  from: string;
  to: string;
  flow: number;
}

const COLUMNS = ["Hosts", "Controllers", "Subsystems", "Namespaces", "Legs"];
const LEG_STATES: Record<LegStatus["state"], string> = {
  in_sync: "in sync",
  catching_up: "catching up",
  out: "out",
  ready: "ready",
  away: "away",
};
/** Boxes in a column; the rest is one that says how many. */
const MOST = 8;
const WIDTH = 1000;
const BOX = { width: 196, height: 40, gap: 10, top: 26, apart: 24 };
const REST = "rest";

export class Topology {
  readonly node: HTMLElement;
  private readonly picture = svg("svg", { role: "img", "aria-label": "Who uses what" });
  private readonly summary = el("p", { class: "unseen" });
  private drawn = "";
  private scene: Scene | null = null;
  private notes = new Map<string, Element>();
  private wires: { link: Link; path: SVGPathElement }[] = [];

  constructor() {
    const scroll = el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Picture of who uses what" },
      this.picture,
    );
    this.node = el(
      "section",
      { class: "panel topology" },
      el("header", {}, el("h2", {}, "Who uses what")),
      this.summary,
      scroll,
    );
  }

  show(status: Status, model: Model, document: StateDocument | null): void {
    if (this.scene?.of !== status || this.scene.with !== document) {
      this.scene = { of: status, with: document, columns: boxes(status, document), ways: ways(status) };
      this.describe(status);
    }
    const columns = this.scene.columns.map((column, index) => shortened(column, index, model));
    const shown = new Set(columns.flat().map((box) => box.key));
    const links = wires(this.scene.ways, model, shown);
    const shape = JSON.stringify([
      columns.map((column) => column.map((box) => [box.key, box.title, box.bad])),
      links.map((link) => [link.from, link.to]),
    ]);
    if (shape !== this.drawn) {
      this.draw(columns, links);
      this.drawn = shape;
    }
    for (const box of columns.flat()) {
      const note = this.notes.get(box.key);
      if (note) say(note, box.note(operations(model, box.part)));
    }
    links.forEach((link, index) => flow(this.wires[index]!.path, link.flow));
  }

  private describe(status: Status): void {
    const hosts = new Set(status.controllers.map((one) => one.host_nqn)).size;
    const namespaces = status.subsystems.reduce((sum, one) => sum + one.namespaces.length, 0);
    const words =
      `${format.plural(hosts, "host")} with ${format.plural(status.controllers.length, "controller")} ` +
      `on ${format.plural(status.subsystems.length, "subsystem")} with ` +
      `${format.plural(namespaces, "namespace")}; the tables below have all of them`;
    say(this.summary, words);
    if (this.picture.getAttribute("aria-label") !== words) this.picture.setAttribute("aria-label", words);
  }

  private draw(columns: Box[][], links: Link[]): void {
    const tallest = Math.max(1, ...columns.map((column) => column.length));
    const height = BOX.top + tallest * (BOX.height + BOX.gap);
    const places = new Map<string, { x: number; y: number }>();
    const nodes: SVGElement[] = [];
    this.notes.clear();
    const width = Math.min(BOX.width, WIDTH / columns.length - BOX.apart);
    columns.forEach((column, index) => {
      const x = (index * (WIDTH - width)) / (columns.length - 1);
      const space = height - BOX.top - column.length * (BOX.height + BOX.gap);
      nodes.push(svg("text", { x, y: 14, class: "column" }, COLUMNS[index]!));
      column.forEach((box, row) => {
        const y = BOX.top + space / 2 + row * (BOX.height + BOX.gap);
        places.set(box.key, { x, y: y + BOX.height / 2 });
        nodes.push(this.box(box, { x, y, width }));
      });
    });
    this.wires = links.map((link) => {
      const [a, b] = [places.get(link.from)!, places.get(link.to)!];
      const [x1, x2] = [a.x + width, b.x];
      const middle = (x1 + x2) / 2;
      const d = `M${x1},${a.y}C${middle},${a.y} ${middle},${b.y} ${x2},${b.y}`;
      return { link, path: svg("path", { class: "wire", d }) };
    });
    this.picture.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
    this.picture.replaceChildren(...this.wires.map((wire) => wire.path), ...nodes);
  }

  private box(box: Box, place: { x: number; y: number; width: number }): SVGElement {
    const { x, y, width } = place;
    const note = svg("text", { x: x + 10, y: y + 32, class: "note" });
    this.notes.set(box.key, note);
    const rest = box.key.startsWith(REST) ? " rest" : "";
    return svg(
      "g",
      { class: `box${rest}${box.bad ? " bad" : ""}` },
      svg("title", {}, box.full),
      svg("rect", { x, y, width, height: BOX.height, rx: 6 }),
      svg("text", { x: x + 10, y: y + 17 }, box.title),
      note,
    );
  }
}

function flow(path: SVGPathElement, rate: number): void {
  // Steps of ten, so that a steady flow is left alone.
  const strength = rate > 0 ? Math.min(5, 1 + Math.floor(Math.log10(1 + rate / 10))) : 0;
  const name = strength > 0 ? `wire flows f${strength}` : "wire";
  if (path.getAttribute("class") !== name) path.setAttribute("class", name);
}

function operations(model: Model, key: string): number {
  const rates = model.parts.get(key)?.rates;
  return rates ? rates.reads + rates.writes : NaN;
}

function rate(flow: number): string {
  return Number.isFinite(flow) ? `${format.short(flow)} IOPS` : "";
}

/**
 * How hosts are told to use what they reach by an address (ANA). A controller's address has no port:
 * where listeners there differ, it is not known.
 */
function access(document: StateDocument | null, address: string): string {
  const all = Object.entries(document?.listeners ?? {});
  const here = all.filter(([listener]) =>
    [address, `[${address}]`, "0.0.0.0", "[::]"].includes(listener.slice(0, listener.lastIndexOf(":"))),
  );
  const states = new Set(here.map(([, listener]) => listener.ana ?? "optimized"));
  return states.size === 1 ? [...states].join("") : "optimized";
}

function boxes(status: Status, document: StateDocument | null): Box[][] {
  const hosts = new Map<string, Box>();
  const controllers: Box[] = [];
  for (const one of status.controllers) {
    if (one.subsystem === null) continue;
    const nqn = one.host_nqn;
    const address = (one.address ?? "").replace(/:\d+$/, "");
    const ana = access(document, one.local_address);
    if (!hosts.has(nqn)) {
      const note = (flow: number): string => rate(flow) || address;
      hosts.set(nqn, { key: `host ${nqn}`, title: format.tail(nqn, 24), note, full: nqn, part: partKey("host", nqn) });
    }
    const words = [
      one.ready ? format.plural(one.io_queues, "I/O queue") : "not enabled",
      ...(ana === "optimized" ? [] : [ana]),
    ].join(" · ");
    controllers.push({
      key: `controller ${one.subsystem} ${one.id}`,
      title: `controller ${one.id}`,
      note: () => words,
      full: `Controller ${one.id} of ${nqn}, on ${one.local_address}, ${ana}`,
      part: partKey("host", nqn),
      bad: !one.ready || ana === "inaccessible" || ana === "persistent-loss",
    });
  }
  const subsystems = status.subsystems.map((one): Box => {
    const [title, part] = [format.tail(one.nqn, 24), partKey("subsystem", one.nqn)];
    return { key: `subsystem ${one.nqn}`, title, note: rate, full: one.nqn, part };
  });
  const namespaces = status.subsystems.flatMap((one) =>
    one.namespaces.map((namespace): Box => {
      const size = format.bytes(namespace.bytes) + (namespace.read_only ? ", read only" : "");
      return {
        key: `namespace ${one.nqn} ${namespace.nsid}`,
        title: `namespace ${namespace.nsid}`,
        note: (flow) => [size, rate(flow)].filter((text) => text !== "").join(" · "),
        full: `Namespace ${namespace.nsid} of ${one.nqn}`,
        part: partKey("namespace", one.nqn, namespace.nsid),
      };
    }),
  );
  const legs = status.subsystems.flatMap((one) =>
    one.namespaces.flatMap((namespace) => (namespace.legs ?? []).map((leg) => legBox(one.nqn, namespace.nsid, leg))),
  );
  const columns = [[...hosts.values()], controllers, subsystems, namespaces];
  return legs.length > 0 ? [...columns, legs] : columns;
}

function legBox(nqn: string, nsid: number, leg: LegStatus): Box {
  const why = leg.reason ? `: ${leg.reason}` : "";
  return {
    key: `leg ${nqn} ${nsid} ${leg.name}`,
    title: format.tail(leg.name.replace(/\?ns=1$/, ""), 22),
    note: () => LEG_STATES[leg.state],
    full: `${leg.name}, a leg of namespace ${nsid} of ${nqn}, ${LEG_STATES[leg.state]}${why}`,
    part: "",
    bad: leg.state === "out" || leg.state === "away",
  };
}

/** The busiest, in the order in which they are, and how many more. */
function shortened(column: Box[], index: number, model: Model): Box[] {
  if (column.length <= MOST) return column;
  const flowing = column.map((box, at) => ({ at, flow: operations(model, box.part) || 0 }));
  flowing.sort((a, b) => b.flow - a.flow || a.at - b.at);
  const kept = flowing.slice(0, MOST - 1).map(({ at }) => at).sort((a, b) => a - b);
  const more = column.length - kept.length;
  const rest: Box = {
    key: `${REST} ${index}`,
    title: `${more} more`,
    note: () => "in the tables below",
    full: `${more} more ${COLUMNS[index]!.toLowerCase()}`,
    part: "",
  };
  return [...kept.map((at) => column[at]!), rest];
}

/** By the column that they begin in. */
function ways(status: Status): Way[][] {
  const all: Way[][] = [[], [], [], []];
  for (const one of status.controllers) {
    if (one.subsystem === null) continue;
    const controller = `controller ${one.subsystem} ${one.id}`;
    const active = one.ready && one.io_queues > 0;
    const parts = [partKey("host", one.host_nqn), partKey("subsystem", one.subsystem)];
    all[0]!.push({ from: `host ${one.host_nqn}`, to: controller, parts, active });
    all[1]!.push({ from: controller, to: `subsystem ${one.subsystem}`, parts, active });
  }
  for (const { nqn, namespaces } of status.subsystems) {
    for (const { nsid, legs } of namespaces) {
      const to = `namespace ${nqn} ${nsid}`;
      const parts = [partKey("namespace", nqn, nsid), partKey("subsystem", nqn)];
      all[2]!.push({ from: `subsystem ${nqn}`, to, parts, active: true });
      for (const leg of legs ?? []) {
        all[3]!.push({ from: to, to: `leg ${nqn} ${nsid} ${leg.name}`, parts, active: leg.state !== "out" && leg.state !== "away" });
      }
    }
  }
  return all;
}

function wires(ways: Way[][], model: Model, shown: Set<string>): Link[] {
  const all: Link[] = [];
  ways.forEach((column, index) => {
    const links = new Map<string, Map<string, Link>>();
    const [rest, next] = [`${REST} ${index}`, `${REST} ${index + 1}`];
    for (const way of column) {
      const from = shown.has(way.from) ? way.from : rest;
      const to = shown.has(way.to) ? way.to : next;
      let flow = NaN;
      for (const part of way.active ? way.parts : []) {
        if (Number.isNaN(flow)) flow = operations(model, part);
      }
      let those = links.get(from);
      if (!those) links.set(from, (those = new Map()));
      const there = those.get(to);
      if (there) there.flow += flow || 0;
      else those.set(to, { from, to, flow: flow || 0 });
    }
    for (const those of links.values()) all.push(...those.values());
  });
  return all;
}
