// The page of a cluster: its sums, its nodes, and a link to the page of each node.

import { el, say } from "./dom";
import { now as present } from "./clock";
import * as format from "./format";
import { Across } from "./across";
import { AttachedDisks } from "./attached";
import type { Cluster, Node } from "./cluster";
import { type Part, partKey, type Rates } from "./model";
import { Fleets } from "./fleet";
import { hostCount, iops, Page, through } from "./page";
import { isSame } from "./same";
import { Stretch } from "./stretch";
import { Table } from "./table";
import { Tiles } from "./tiles";
import { Alarms, Log } from "./told";
import { Topology } from "./topology";
import { clusterFlow, clusterParts, clusterScene } from "./whole";
import type { About } from "./types";

interface Row {
  key: string;
  node: Node;
  rates: Rates | undefined;
}

export class Overview {
  readonly node = el("div");
  private readonly cluster: Cluster;
  private readonly about: About;
  private readonly all: HTMLElement;
  private readonly state = el("span", { class: "state" });
  private readonly facts = el("span", { class: "quiet facts" });
  private readonly alarms = new Alarms();
  private readonly tiles = new Tiles();
  private readonly fleets = new Fleets();
  private readonly topology = new Topology();
  private readonly attached = new AttachedDisks();
  private readonly across = new Across((key) => this.choose(key));
  private readonly log = new Log();
  private readonly table: Table<Row>;
  private readonly stretch: Stretch;
  private readonly pages = new Map<string, Page>();
  private opened: Page | null = null;
  /** The element that had the focus when the user opened a node's page. */
  private opener: HTMLElement | null = null;
  private chosen: string | null = null;
  private counted: { of: unknown[]; hosts: number } = { of: [], hosts: 0 };

  constructor(about: About, cluster: Cluster) {
    this.about = about;
    this.cluster = cluster;
    this.stretch = new Stretch({
      back: "Show the whole cluster",
      whole: "Whole cluster",
      part: () => this.part(),
      title: (part) => (part && part.kind !== "target" ? `${part.kind} ${format.tail(part.label, 60)}` : null),
      chooseWhole: () => this.choose(null),
      heldChanged: () => this.show(),
    });
    this.table = this.nodes();
    const badge = el("span", { class: "quiet badge" }, about.may_steer ? "changes allowed" : "read-only");
    const top = el("header", { class: "top" }, el("h1", {}, "farblock"), this.state, this.facts, badge);
    const main = el("main", {}, this.alarms.node, this.tiles.node, this.fleets.node, this.stretch.node, this.topology.node, this.attached.node, this.table.node, ...this.across.nodes, this.log.node);
    this.all = el("div", { class: "page" }, top, main);
    this.node.append(this.all);
    document.addEventListener("visibilitychange", () => this.show());
  }

  show(): void {
    if (this.opened) return this.opened.show();
    const { nodes, goneSince, model, polled } = this.cluster;
    const fresh = polled === null ? "live" : "polling each second";
    const live = nodes.filter((node) => node.watch.isLive);
    const gone = goneSince !== null || (live.length === 0 && nodes.length > 0);
    document.body.classList.toggle("gone", gone);
    this.alarms.show(this.cluster.troubles(present()));
    const good = live.length === nodes.length;
    say(this.state, gone ? "not answering" : this.stretch.held ? "paused" : good ? fresh : `${live.length} of ${nodes.length} live`);
    this.state.title = polled === null ? "" : `The page has no event stream: ${polled}`;
    this.state.className = `state ${gone || !good ? "bad" : this.stretch.held ? "held" : "good"}`;
    const rates = model.target?.rates;
    document.title = gone ? "farblock: not answering" : `farblock: ${format.short(iops(rates))} IOPS`;
    if (document.hidden) return;
    this.log.show(this.cluster.happenings);
    if (this.stretch.held) return;
    const connections = live.reduce((sum, { watch }) => sum + (watch.stats?.connections.open ?? 0), 0);
    say(this.facts, `${format.plural(nodes.length, "node")} · ${format.plural(connections, "connection")}`);
    this.tiles.show(this.part()?.rates, this.counts());
    this.stretch.show();
    this.fleets.show(this.cluster.fleets);
    this.topology.show(clusterParts(nodes), () => clusterScene(nodes), clusterFlow(nodes));
    this.attached.show(this.cluster.attached, nodes);
    this.topology.node.hidden = this.table.node.hidden = nodes.length === 0;
    this.rows();
  }

  private counts(): Record<string, string> {
    const live = this.cluster.nodes.filter(({ watch }) => watch.isLive);
    // There may be thousands of hosts, so count them only when a status changes.
    const of = live.map(({ watch }) => watch.status);
    if (!isSame(of, this.counted.of)) {
      const controllers = of.flatMap((status) => status?.controllers ?? []);
      const hosts = new Set(controllers.filter((one) => one.subsystem).map((one) => one.host_nqn)).size;
      this.counted = { of, hosts };
    }
    return { Nodes: `${live.length} of ${this.cluster.nodes.length}`, Hosts: String(this.counted.hosts) };
  }

  private part(): Part | undefined {
    const { chosen, cluster } = this;
    const part = chosen === null ? undefined : cluster.part(chosen, this.across.owners(chosen));
    return part ?? cluster.model.target;
  }

  private choose(key: string | null): void {
    this.chosen = key === this.chosen ? null : key;
    this.show();
    if (!this.stretch.held) return;
    this.rows();
    this.tiles.show(this.part()?.rates, this.counts());
    this.stretch.show();
  }

  private rows(): void {
    const rows = this.cluster.nodes.map((node): Row => {
      const key = partKey("node", node.name);
      return { key, node, rates: node.watch.isLive ? node.watch.model.target?.rates : undefined };
    });
    this.table.show(rows, this.chosen);
    this.across.show(this.cluster, this.chosen);
  }

  private open(node: Node): void {
    const { activeElement } = document;
    let page = this.pages.get(node.name);
    if (!page) {
      const back = (): void => {
        this.opened = null;
        this.node.replaceChildren(this.all);
        this.show();
        this.opener?.focus();
      };
      page = new Page({ version: this.about.version, may_steer: this.about.may_steer }, node.watch, { name: node.name, back });
      this.pages.set(node.name, page);
    }
    this.opened = page;
    this.node.replaceChildren(page.node);
    this.opener = activeElement instanceof HTMLElement ? activeElement : null;
    scrollTo(0, 0);
    page.focus();
    page.show();
  }

  private nodes(): Table<Row> {
    const status = (row: Row) => (row.rates ? row.node.watch.status : null);
    const count = (value: number | undefined): string => (value === undefined ? "–" : String(value));
    const hosts = (row: Row): number | undefined => {
      const now = status(row);
      return now ? hostCount(now) : undefined;
    };
    const namespaces = (row: Row): number | undefined =>
      status(row)?.subsystems.reduce((sum, one) => sum + one.namespaces.length, 0);
    const up = (row: Row): number => (status(row) ? row.node.watch.uptimeSeconds : NaN);
    return new Table<Row>({
      title: "Nodes",
      key: (row) => row.key,
      nothing: "There are no nodes.",
      choose: (row) => this.choose(row.key),
      columns: [
        { title: "Node", text: (row) => format.tail(row.node.name, 40), chooses: true },
        { title: "State", text: (row) => (row.rates ? "live" : `not answering${row.node.error ? `: ${row.node.error}` : ""}`) },
        { title: "IOPS", text: (row) => format.short(iops(row.rates)), number: (row) => iops(row.rates) },
        { title: "Throughput", text: (row) => format.perSecond(through(row.rates)), number: (row) => through(row.rates) },
        { title: "Median", text: (row) => format.latency(row.rates?.p50 ?? NaN), number: (row) => row.rates?.p50 ?? NaN },
        { title: "99th", text: (row) => format.latency(row.rates?.p99 ?? NaN), number: (row) => row.rates?.p99 ?? NaN },
        { title: "Busy", text: (row) => format.percent(row.rates?.busy ?? NaN), number: (row) => row.rates?.busy ?? NaN },
        { title: "Hosts", text: (row) => count(hosts(row)), number: (row) => hosts(row) ?? NaN },
        { title: "Namespaces", text: (row) => count(namespaces(row)), number: (row) => namespaces(row) ?? NaN },
        { title: "Up", text: (row) => (Number.isNaN(up(row)) ? "–" : format.duration(up(row))), number: up },
      ],
      action: { title: "Open", does: (row) => this.open(row.node) },
    });
  }
}
