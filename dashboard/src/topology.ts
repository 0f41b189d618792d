// The picture of hosts, their controllers, subsystems and namespaces, and of the I/O between them.

import { el, say, svg } from "./dom";
import * as format from "./format";
import { type Model, partKey } from "./model";
import type { Lost } from "./lost";
import { isSame } from "./same";
import type { ControllerStatus, LegStatus, StateDocument, Status } from "./types";

export interface Box {
  key: string;
  title: string;
  /** Returns the second line of the box, for a number of operations per second. */
  note: (flow: number) => string;
  full: string;
  /** The keys of the parts whose operations the box sums. */
  parts: string[];
  bad?: boolean;
}

/** A connection over which I/O flows. Two boxes may have many connections. */
export interface Way {
  from: string;
  to: string;
  /** The keys of parts. The first part with counters gives the rate. */
  parts: string[];
  active: boolean;
}

/** The content of the picture. The rates are not part of it, because they change each second. */
export interface Scene {
  titles: string[];
  columns: Box[][];
  ways: Way[][];
  /** The description for screen readers. */
  words: string;
}

/** Returns the operations per second of a part, by key; NaN if the part has no counters. */
export type Flow = (part: string) => number;

interface Link {
  from: string;
  to: string;
  flow: number;
}

const TITLES = ["Hosts", "Controllers", "Subsystems", "Namespaces", "Legs"];
export const LEG_STATES: Record<LegStatus["state"], string> = {
  in_sync: "in sync",
  catching_up: "catching up",
  out: "out",
  ready: "ready",
  away: "away",
};
/** The maximum number of boxes in a column. One of them stands for all further objects. */
const MOST = 8;
const WIDTH = 1000;
const BOX = { width: 196, height: 40, gap: 10, top: 26, apart: 24 };
const REST = "rest";

export class Topology {
  readonly node: HTMLElement;
  private readonly picture: SVGSVGElement;
  private readonly summary = el("p", { class: "unseen" });
  private drawn = "";
  private scene: Scene | null = null;
  private of: readonly unknown[] = [];
  private notes = new Map<string, Element>();
  private wires: { link: Link; path: SVGPathElement }[] = [];

  constructor(title = "Connections") {
    this.picture = svg("svg", { role: "img", "aria-label": title });
    const label = `Picture of ${title.charAt(0).toLowerCase()}${title.slice(1)}`;
    const scroll = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, this.picture);
    this.node = el(
      "section",
      { class: "panel topology" },
      el("header", {}, el("h2", {}, title)),
      this.summary,
      scroll,
    );
  }

  /** Shows the picture. Calls `make` only if a value in `of` has changed. */
  show(of: readonly unknown[], make: () => Scene, flows: Flow): void {
    if (!this.scene || !isSame(of, this.of)) {
      [this.of, this.scene] = [of, make()];
      this.describe(this.scene.words);
    }
    const { titles } = this.scene;
    const columns = this.scene.columns.map((column, index) => shortened(column, index, titles, flows));
    const shown = new Set(columns.flat().map((box) => box.key));
    const links = wires(this.scene.ways, flows, shown);
    const shape = JSON.stringify([
      columns.map((column) => column.map((box) => [box.key, box.title, box.bad])),
      links.map((link) => [link.from, link.to]),
    ]);
    if (shape !== this.drawn) {
      this.draw(titles, columns, links);
      this.drawn = shape;
    }
    for (const box of columns.flat()) {
      const note = this.notes.get(box.key);
      if (note) say(note, box.note(sum(flows, box.parts)));
    }
    links.forEach((link, index) => flow(this.wires[index]!.path, link.flow));
  }

  private describe(words: string): void {
    say(this.summary, words);
    if (this.picture.getAttribute("aria-label") !== words) this.picture.setAttribute("aria-label", words);
  }

  private draw(titles: string[], columns: Box[][], links: Link[]): void {
    const tallest = Math.max(1, ...columns.map((column) => column.length));
    const height = BOX.top + tallest * (BOX.height + BOX.gap);
    const places = new Map<string, { x: number; y: number }>();
    const nodes: SVGElement[] = [];
    this.notes.clear();
    const width = Math.min(BOX.width, WIDTH / columns.length - BOX.apart);
    columns.forEach((column, index) => {
      const x = (index * (WIDTH - width)) / (columns.length - 1);
      const space = height - BOX.top - column.length * (BOX.height + BOX.gap);
      nodes.push(svg("text", { x, y: 14, class: "column" }, titles[index]!));
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
  // Use powers of ten, so that a steady rate does not change the line.
  const strength = rate > 0 ? Math.min(5, 1 + Math.floor(Math.log10(1 + rate / 10))) : 0;
  const name = strength > 0 ? `wire flows f${strength}` : "wire";
  if (path.getAttribute("class") !== name) path.setAttribute("class", name);
}

/** Returns the sum of the parts' rates; NaN if no part has counters. */
function sum(flows: Flow, parts: string[]): number {
  let all = NaN;
  for (const part of parts) {
    const flow = flows(part);
    if (!Number.isNaN(flow)) all = (all || 0) + flow;
  }
  return all;
}

/** Returns the rates of a model's parts, in operations per second. */
export function flowOf(model: Model): Flow {
  return (part) => {
    const rates = model.parts.get(part)?.rates;
    return rates ? rates.reads + rates.writes : NaN;
  };
}

export function rate(flow: number): string {
  return Number.isFinite(flow) ? `${format.short(flow)} IOPS` : "";
}

/**
 * Returns the ANA state of the listeners with the transport and address of a controller. A
 * controller's address has no port. So if the address has listeners with different states, the
 * state is unknown, and counts as optimized.
 */
function access(document: StateDocument | null, one: ControllerStatus): string {
  const address = one.local_address;
  const isRdma = one.transport === "rdma";
  const all = Object.entries(document?.listeners ?? {})
    .filter(([listener]) => listener.startsWith("rdma:") === isRdma)
    .map(([listener, its]) => [listener.replace("rdma:", ""), its] as const);
  const here = all.filter(([listener]) =>
    [address, `[${address}]`, "0.0.0.0", "[::]"].includes(listener.slice(0, listener.lastIndexOf(":"))),
  );
  const states = new Set(here.map(([, listener]) => listener.ana ?? "optimized"));
  return states.size === 1 ? [...states].join("") : "optimized";
}

/** Makes the picture of one target, with its recently lost paths. */
export function targetScene(status: Status, document: StateDocument | null, gone: readonly Lost[]): Scene {
  const there = new Set(status.subsystems.map((one) => one.nqn));
  const lost = gone.filter(({ one }) => there.has(one.subsystem ?? ""));
  const hosts = new Set(status.controllers.map((one) => one.host_nqn)).size;
  const namespaces = status.subsystems.reduce((sum, one) => sum + one.namespaces.length, 0);
  const words =
    `${format.plural(hosts, "host")} with ${format.plural(status.controllers.length, "controller")} ` +
    `on ${format.plural(status.subsystems.length, "subsystem")} with ` +
    `${format.plural(namespaces, "namespace")}; the tables below list all of them`;
  const columns = boxes(status, document, lost);
  return { titles: TITLES, columns, ways: ways(status, lost), words };
}

function lostBox({ one, at, why }: Lost): Box {
  return {
    key: lostKey(one),
    title: `controller ${one.id}`,
    note: () => `lost at ${format.clock(at)}`,
    full: `Controller ${one.id} of ${one.host_nqn}, on ${one.local_address}, was lost at ${format.clock(at)}${why}`,
    parts: [],
    bad: true,
  };
}

const lostKey = (one: ControllerStatus): string => `lost ${one.subsystem} ${one.host_nqn} ${one.id}`;

function boxes(status: Status, document: StateDocument | null, lost: readonly Lost[]): Box[][] {
  const hosts = new Map<string, Box>();
  const controllers: Box[] = [];
  for (const one of status.controllers) {
    if (one.subsystem === null) continue;
    const nqn = one.host_nqn;
    const address = (one.address ?? "").replace(/:\d+$/, "");
    const ana = access(document, one);
    const by = one.transport === "rdma" ? ["RDMA"] : [];
    if (!hosts.has(nqn)) {
      const note = (flow: number): string => rate(flow) || address;
      hosts.set(nqn, { key: `host ${nqn}`, title: format.tail(nqn, 24), note, full: nqn, parts: [partKey("host", nqn)] });
    }
    const words = [
      one.ready ? format.plural(one.io_queues, "I/O queue") : "not enabled",
      ...by,
      ...(ana === "optimized" ? [] : [ana]),
    ].join(" · ");
    controllers.push({
      key: `controller ${one.subsystem} ${one.id}`,
      title: `controller ${one.id}`,
      note: () => words,
      full: `Controller ${one.id} of ${nqn}, on ${one.local_address}${by.map((it) => ` (${it})`).join("")}, ${ana}`,
      parts: [partKey("host", nqn)],
      bad: !one.ready || ana === "inaccessible" || ana === "persistent-loss",
    });
  }
  controllers.push(...lost.map(lostBox));
  for (const { one } of lost) {
    const nqn = one.host_nqn;
    if (hosts.has(nqn)) continue;
    hosts.set(nqn, { key: `host ${nqn}`, title: format.tail(nqn, 24), note: () => "lost", full: nqn, parts: [], bad: true });
  }
  const subsystems = status.subsystems.map((one): Box => {
    const [title, parts] = [format.tail(one.nqn, 24), [partKey("subsystem", one.nqn)]];
    return { key: `subsystem ${one.nqn}`, title, note: rate, full: one.nqn, parts };
  });
  const namespaces = status.subsystems.flatMap((one) =>
    one.namespaces.map((namespace): Box => {
      const size = format.bytes(namespace.bytes) + (namespace.read_only ? ", read only" : "");
      return {
        key: `namespace ${one.nqn} ${namespace.nsid}`,
        title: `namespace ${namespace.nsid}`,
        note: (flow) => [size, rate(flow)].filter((text) => text !== "").join(" · "),
        full: `Namespace ${namespace.nsid} of ${one.nqn}`,
        parts: [partKey("namespace", one.nqn, namespace.nsid)],
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
    parts: [],
    bad: leg.state === "out" || leg.state === "away",
  };
}

/**
 * Shortens a column to the failed and the busiest boxes, in their order, and a box for the others.
 */
function shortened(column: Box[], index: number, titles: string[], flows: Flow): Box[] {
  if (column.length <= MOST) return column;
  const flowing = column.map((box, at) => ({ at, bad: Number(box.bad ?? false), flow: sum(flows, box.parts) || 0 }));
  flowing.sort((a, b) => b.bad - a.bad || b.flow - a.flow || a.at - b.at);
  const kept = flowing.slice(0, MOST - 1).map(({ at }) => at).sort((a, b) => a - b);
  const more = column.length - kept.length;
  const rest: Box = {
    key: `${REST} ${index}`,
    title: `${more} more`,
    note: () => "in the tables below",
    full: `${more} more ${titles[index]!.toLowerCase()}`,
    parts: [],
  };
  return [...kept.map((at) => column[at]!), rest];
}

/** Returns the connections, by the column of their start. */
function ways(status: Status, lost: readonly Lost[]): Way[][] {
  const all: Way[][] = [[], [], [], []];
  for (const one of status.controllers) {
    if (one.subsystem === null) continue;
    const controller = `controller ${one.subsystem} ${one.id}`;
    const active = one.ready && one.io_queues > 0;
    const parts = [partKey("host", one.host_nqn), partKey("subsystem", one.subsystem)];
    all[0]!.push({ from: `host ${one.host_nqn}`, to: controller, parts, active });
    all[1]!.push({ from: controller, to: `subsystem ${one.subsystem}`, parts, active });
  }
  for (const { one } of lost) {
    all[0]!.push({ from: `host ${one.host_nqn}`, to: lostKey(one), parts: [], active: false });
    all[1]!.push({ from: lostKey(one), to: `subsystem ${one.subsystem}`, parts: [], active: false });
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

function wires(ways: Way[][], flows: Flow, shown: Set<string>): Link[] {
  const all: Link[] = [];
  ways.forEach((column, index) => {
    const links = new Map<string, Map<string, Link>>();
    const [rest, next] = [`${REST} ${index}`, `${REST} ${index + 1}`];
    for (const way of column) {
      const from = shown.has(way.from) ? way.from : rest;
      const to = shown.has(way.to) ? way.to : next;
      let flow = NaN;
      for (const part of way.active ? way.parts : []) {
        if (Number.isNaN(flow)) flow = flows(part);
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
