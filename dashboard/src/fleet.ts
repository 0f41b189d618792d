// Running fleets: the phase, and each host's figures.

import { el, say } from "./dom";
import * as format from "./format";
import { Table } from "./table";

export interface FleetHost {
  name: string;
  iops: number;
  latency_us?: number;
  is_done: boolean;
  failed: number;
  lost: number;
  /** The number of connected paths, and the number of wanted paths. */
  paths?: [number, number];
}

export interface FleetStatus {
  plan: string;
  phase: string;
  /** The progress within the phase. */
  part?: string;
  hosts: FleetHost[];
  failed?: string;
}

interface Row {
  key: string;
  host: FleetHost;
}

function state(host: FleetHost): string {
  if (host.lost > 0) return "has lost data";
  if (host.is_done) return "done";
  return host.iops > 0 ? "runs" : "waits";
}

class Panel {
  readonly node: HTMLElement;
  /** Screen readers read this element aloud, so it has the phase without the changing rates. */
  private readonly phase = el("span", { role: "status" });
  private readonly pace = el("span");
  private readonly table: Table<Row>;

  constructor(plan: string) {
    this.table = new Table<Row>({
      title: `Fleet ${format.tail(plan, 60)}`,
      key: (row) => row.key,
      nothing: "No host runs a load at the moment.",
      columns: [
        { title: "Hosts", text: ({ host }) => format.tail(host.name, 48) },
        { title: "State", text: ({ host }) => state(host) },
        { title: "IOPS", text: ({ host }) => format.short(host.iops), number: ({ host }) => host.iops },
        {
          title: "Latency",
          text: ({ host }) => format.latency(host.latency_us ?? NaN),
          number: ({ host }) => host.latency_us ?? NaN,
        },
        { title: "Failed", text: ({ host }) => format.short(host.failed), number: ({ host }) => host.failed },
        { title: "Lost", text: ({ host }) => format.short(host.lost), number: ({ host }) => host.lost },
        { title: "Paths", text: ({ host: { paths } }) => (paths ? `${paths[0]} of ${paths[1]}` : "–") },
      ],
    });
    this.table.node.querySelector("header")!.after(el("p", { class: "phase" }, this.phase, this.pace));
    this.node = this.table.node;
  }

  show(status: FleetStatus): void {
    const iops = status.hosts.reduce((sum, host) => sum + host.iops, 0);
    const { phase, part, failed } = status;
    say(this.phase, `${phase}${failed ? ` · failed: ${failed}` : ""}`);
    say(this.pace, `${part ? ` · ${part}` : ""} · ${format.short(iops)} IOPS`);
    this.table.show(status.hosts.map((host) => ({ key: host.name, host })), null);
  }
}

export class Fleets {
  readonly node = el("div", { class: "fleets" });
  private readonly panels = new Map<string, Panel>();

  show(fleets: Map<string, FleetStatus>): void {
    for (const [name, panel] of this.panels) {
      if (fleets.has(name)) continue;
      panel.node.remove();
      this.panels.delete(name);
    }
    for (const [name, status] of fleets) {
      let panel = this.panels.get(name);
      if (!panel) {
        panel = new Panel(status.plan);
        this.panels.set(name, panel);
        this.node.append(panel.node);
      }
      panel.show(status);
    }
  }
}
