// The disks attached on the machine that serves the page: their paths, as the disks' daemons report
// them, and the nodes at the ends of the paths.

import type { Node } from "./cluster";
import { now as present } from "./clock";
import { el } from "./dom";
import * as format from "./format";
import { Table } from "./table";
import { type Box, type Scene, Topology, type Way } from "./topology";
import type { AttachedPath, AttachedStatus } from "./types";

/** The last report, and its time in milliseconds. */
export interface Attached {
  disks: AttachedStatus[];
  at: number;
}

interface Row {
  key: string;
  disk: AttachedStatus;
  path: AttachedPath | null;
  /** The time of the path's last state change, in milliseconds. */
  since: number;
}

/** Returns the address and port in a target's URL. */
function place(url: string): string | null {
  const found = /^nvme\+tcp:\/\/([^/]+)/.exec(url)?.[1] ?? null;
  return found === null || /:\d+$/.test(found) ? found : `${found}:4420`;
}

/** Returns the name of the node at the end of a path; `null` if no node listens there. */
function server(path: AttachedPath, nodes: Node[]): string | null {
  const there = path.address ?? place(path.url);
  const listens = (node: Node): boolean => node.watch.status?.listening.includes(there ?? "") === true;
  return nodes.find(listens)?.name ?? null;
}

const how = (path: AttachedPath): string =>
  [path.state, ...(path.access && path.access !== "optimized" ? [path.access] : [])].join(" · ");

const isBad = (path: AttachedPath): boolean =>
  path.state !== "live" || path.access === "inaccessible" || path.access === "persistent-loss";

/** Makes the picture of the disks, their paths, and the nodes at the ends of the paths. */
function scene(disks: AttachedStatus[], nodes: Node[]): Scene {
  const [boxes, paths]: [Box[], Box[]] = [[], []];
  const ends = new Map<string, Box>();
  const ways: Way[][] = [[], []];
  for (const disk of disks) {
    const key = `disk ${disk.name}`;
    const full = `${disk.name}${disk.use ? `, ${disk.use}` : ""}, ${disk.state}${disk.trouble ? `: ${disk.trouble}` : ""}`;
    boxes.push({ key, title: format.tail(disk.name, 24), note: () => disk.state, full, parts: [], bad: disk.state !== "live" });
    disk.paths.forEach((path, index) => {
      const pathKey = `path ${disk.name} ${index}`;
      const words = how(path);
      const where = path.address ?? place(path.url) ?? path.url;
      const full = `${path.url}, ${words}${path.error && path.state !== "live" ? `: ${path.error}` : ""}`;
      paths.push({ key: pathKey, title: format.tail(where, 24), note: () => words, full, parts: [], bad: isBad(path) });
      ways[0]!.push({ from: key, to: pathKey, parts: [], active: !isBad(path) });
      const node = server(path, nodes);
      if (node === null) return;
      const isLive = nodes.some(({ name, watch }) => name === node && watch.isLive);
      const note = (): string => (isLive ? "live" : "not answering");
      ends.set(node, { key: `node ${node}`, title: format.tail(node, 24), note, full: node, parts: [], bad: !isLive });
      ways[1]!.push({ from: pathKey, to: `node ${node}`, parts: [], active: !isBad(path) });
    });
  }
  const live = disks.reduce((sum, disk) => sum + disk.paths.filter((path) => path.state === "live").length, 0);
  const words = `${format.plural(disks.length, "attached disk")} with ${format.plural(paths.length, "path")}, ${live} of them live`;
  return { titles: ["Attached disks", "Paths", "Nodes"], columns: [boxes, paths, [...ends.values()]], ways, words };
}

/** Returns a sentence for each disk that is not live. */
export function attachedTroubles({ disks, at }: Attached, now: number): string[] {
  return disks.filter((disk) => disk.state !== "live").map((disk) => {
    const since = Math.min(...disk.paths.filter((path) => path.state !== "live").map((path) => path.since_seconds));
    const seconds = Number.isFinite(since) ? since + (now - at) / 1000 : NaN;
    const long = Number.isNaN(seconds) ? "" : `, for ${format.duration(Math.max(0, seconds))}`;
    return `Attached disk ${disk.name} is ${disk.state}${long}${disk.trouble ? `: ${disk.trouble}` : ""}.`;
  });
}

export class AttachedDisks {
  readonly node = el("div", { class: "fleets" });
  private readonly picture = new Topology("Attached disks of this machine");
  private readonly table = new Table<Row>({
    title: "Paths of attached disks",
    key: (row) => row.key,
    nothing: "No disk is attached on this machine.",
    words: ({ disk, path }) => `${disk.use ?? ""} ${path?.url ?? ""}`,
    columns: [
      { title: "Disk", text: ({ disk }) => disk.name },
      { title: "Disk state", text: ({ disk }) => disk.state },
      { title: "Path", text: ({ path }) => (path ? format.tail(path.address ?? place(path.url) ?? path.url, 30) : "–") },
      { title: "Path state", text: ({ path }) => path?.state ?? "–" },
      { title: "For", text: ({ path, since }) => (path ? format.duration(Math.max(0, (present() - since) / 1000)) : "–"), number: ({ since }) => -since },
      { title: "Access", text: ({ path }) => path?.access ?? "–" },
      { title: "Reconnects", text: ({ path }) => (path ? String(path.reconnects) : "–"), number: ({ path }) => path?.reconnects ?? NaN },
      { title: "Error", text: ({ disk, path }) => format.tail((path?.state === "live" ? "" : (path?.error ?? disk.trouble)) || "–", 60) },
    ],
  });
  private of: Attached | null = null;
  private rows: Row[] = [];

  show(attached: Attached | null, nodes: Node[]): void {
    this.node.hidden = attached === null;
    if (!attached) return;
    if (this.node.childElementCount === 0) this.node.append(this.picture.node, this.table.node);
    if (this.of !== attached) {
      this.of = attached;
      this.rows = attached.disks.flatMap((disk): Row[] => {
        const all: (AttachedPath | null)[] = disk.paths.length > 0 ? disk.paths : [null];
        return all.map((path, index) => {
          const since = attached.at - 1000 * (path?.since_seconds ?? 0);
          return { key: `${disk.name} path ${index + 1}`, disk, path, since };
        });
      });
    }
    this.picture.node.hidden = attached.disks.length === 0;
    const of = [attached, ...nodes.flatMap(({ watch }) => [watch.status, watch.isLive])];
    this.picture.show(of, () => scene(attached.disks, nodes), () => NaN);
    this.table.show(this.rows, null);
  }
}
