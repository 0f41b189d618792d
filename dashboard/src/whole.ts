// The picture of a cluster: hosts, the nodes that they use, subsystems, namespaces, and the legs of
// mirrors with the nodes that serve the legs.

import type { Node } from "./cluster";
import * as format from "./format";
import { partKey } from "./model";
import { type Box, type Flow, flowOf, LEG_STATES, rate, type Scene, type Way } from "./topology";
import type { LegStatus, NamespaceStatus, Status } from "./types";

/** The key of a part of one node. */
const at = (node: string, part: string): string => `${node}\n${part}`;

/** Returns the rates of the nodes' parts. */
export function clusterFlow(nodes: Node[]): Flow {
  const flows = new Map(nodes.map((node) => [node.name, node.watch.isLive ? flowOf(node.watch.model) : () => NaN]));
  return (part) => {
    const end = part.indexOf("\n");
    return flows.get(part.slice(0, end))?.(part.slice(end + 1)) ?? NaN;
  };
}

/** The inputs of the picture. If they stay the same, the picture does too. */
export function clusterParts(nodes: Node[]): unknown[] {
  return nodes.flatMap((node) => [node.watch.status, node.watch.isLive]);
}

/** The boxes of one kind. Objects of several nodes have one box. */
class Column {
  private readonly boxes = new Map<string, Box>();

  add(box: Box): void {
    const known = this.boxes.get(box.key);
    if (known) {
      known.parts.push(...box.parts);
      if (box.bad) known.bad = true;
    } else this.boxes.set(box.key, box);
  }

  get all(): Box[] {
    return [...this.boxes.values()];
  }
}

/** Returns the address of a remote leg, `nvme+tcp://ADDRESS:PORT/…`; `null` for a local leg. */
function place(leg: LegStatus): string | null {
  return /^nvme\+tcp:\/\/([^/]+)/.exec(leg.name)?.[1] ?? null;
}

class Drawing {
  private readonly hosts = new Column();
  private readonly subsystems = new Column();
  private readonly namespaces = new Column();
  private readonly legs = new Column();
  private readonly ways: Way[][] = [[], [], [], []];
  private readonly nodes: Node[];
  /** The node that listens on each address. */
  private readonly listening = new Map<string, string>();

  constructor(nodes: Node[]) {
    this.nodes = nodes;
    for (const { name, watch } of nodes) {
      for (const address of watch.status?.listening ?? []) this.listening.set(address, name);
    }
    for (const node of nodes) if (node.watch.status) this.add(node, node.watch.status);
  }

  private add({ name, watch }: Node, status: Status): void {
    const active = watch.isLive;
    const known = new Set<string>();
    for (const { subsystem, host_nqn: nqn, ready } of status.controllers) {
      if (subsystem === null || known.has(nqn)) continue;
      known.add(nqn);
      const parts = [at(name, partKey("host", nqn))];
      this.hosts.add({ key: `host ${nqn}`, title: format.tail(nqn, 24), note: rate, full: nqn, parts });
      this.ways[0]!.push({ from: `host ${nqn}`, to: `node ${name}`, parts, active: active && ready });
    }
    for (const { nqn, namespaces } of status.subsystems) {
      const parts = [at(name, partKey("subsystem", nqn))];
      this.subsystems.add({ key: `subsystem ${nqn}`, title: format.tail(nqn, 24), note: rate, full: nqn, parts });
      this.ways[1]!.push({ from: `node ${name}`, to: `subsystem ${nqn}`, parts, active });
      for (const namespace of namespaces) this.namespace(name, nqn, namespace, active);
    }
  }

  private namespace(node: string, nqn: string, { nsid, bytes, legs }: NamespaceStatus, active: boolean): void {
    const parts = [at(node, partKey("namespace", nqn, nsid))];
    const key = `namespace ${nqn} ${nsid}`;
    const note = (flow: number): string => [format.bytes(bytes), rate(flow)].filter((text) => text !== "").join(" · ");
    this.namespaces.add({ key, title: `namespace ${nsid}`, note, full: `Namespace ${nsid} of ${nqn}`, parts: [...parts] });
    this.ways[2]!.push({ from: `subsystem ${nqn}`, to: key, parts, active });
    for (const leg of legs ?? []) {
      const there = place(leg);
      const server = there === null ? null : (this.listening.get(there) ?? null);
      const isOut = leg.state === "out" || leg.state === "away";
      const title = server === null ? format.tail(leg.name.replace(/\?ns=1$/, ""), 22) : `on ${format.tail(server, 18)}`;
      const words = LEG_STATES[leg.state];
      const full = `${leg.name}, a leg of namespace ${nsid} of ${nqn}${server === null ? "" : `, served by ${server}`}, ${words}${leg.reason ? `: ${leg.reason}` : ""}`;
      // The name of a local leg is unique only within its node.
      const legKey = there === null ? `leg ${node} ${leg.name}` : `leg ${leg.name}`;
      this.legs.add({ key: legKey, title, note: () => words, full, parts: [], bad: isOut });
      this.ways[3]!.push({ from: key, to: legKey, parts, active: active && !isOut });
    }
  }

  scene(): Scene {
    const nodes = this.nodes.map(({ name, watch }): Box => {
      const parts = [at(name, "target")];
      const note = (flow: number): string => (watch.isLive ? rate(flow) : "not answering");
      const full = `${name}, ${(watch.status?.listening ?? []).join(", ") || "not known yet"}`;
      return { key: `node ${name}`, title: format.tail(name, 24), note, full, parts, bad: !watch.isLive };
    });
    const columns = [this.hosts.all, nodes, this.subsystems.all, this.namespaces.all];
    const titles = ["Hosts", "Nodes", "Subsystems", "Namespaces"];
    const legs = this.legs.all;
    const words =
      `${format.plural(columns[0]!.length, "host")} on ${format.plural(nodes.length, "node")} with ` +
      `${format.plural(columns[2]!.length, "subsystem")} and ${format.plural(columns[3]!.length, "namespace")}`;
    if (legs.length === 0) return { titles, columns, ways: this.ways.slice(0, 3), words };
    return { titles: [...titles, "Legs"], columns: [...columns, legs], ways: this.ways, words };
  }
}

export function clusterScene(nodes: Node[]): Scene {
  return new Drawing(nodes).scene();
}
