// Tables of the namespaces, subsystems and hosts of several nodes. An object that several nodes
// have is one row, with the sum of their figures.

import type { Cluster, Node } from "./cluster";
import * as format from "./format";
import { limited } from "./limits";
import { type MirrorRow, mirrorRows, mirrorTable } from "./mirrors";
import { partKey, type Rates } from "./model";
import { rated } from "./page";
import { isSame } from "./same";
import { type Column, type Options, Table } from "./table";
import type { ControllerStatus, NamespaceStatus, Status, SubsystemStatus } from "./types";

/** A row of a table. An object that several nodes have is one row. */
interface Row {
  key: string;
  nodes: Node[];
  readonly rates: Rates | undefined;
}

interface NamespaceRow extends Row {
  nqn: string;
  namespace: NamespaceStatus;
  /** The current bottleneck of the namespace, and the node where it is. */
  readonly limit: string;
}

interface SubsystemRow extends Row {
  subsystem: SubsystemStatus;
  errors: number;
}

interface HostRow extends Row {
  nqn: string;
  controllers: number;
  queues: number;
  errors: number;
}

const SHORT_NAME = 34;

function names({ nodes }: Row): string {
  return nodes.length > 2 ? format.plural(nodes.length, "node") : nodes.map(({ name }) => format.tail(name, 18)).join(", ");
}

const on: Column<Row> = { title: "On", text: names };
const words = ({ nodes }: Row): string => nodes.map(({ name }) => name).join(" ");

/** The rows of one kind of objects, by key. */
class Rows<R extends Row> {
  readonly all = new Map<string, R>();

  /** Returns the row with this key, and adds `node` to it. Makes the row on the first call. */
  at(key: string, node: Node, make: () => R): R {
    let row = this.all.get(key);
    if (!row) this.all.set(key, (row = make()));
    if (!row.nodes.includes(node)) row.nodes.push(node);
    return row;
  }
}

/** The rows of all tables. They stay valid until a node's status changes. */
class Gathered {
  readonly namespaces = new Rows<NamespaceRow>();
  readonly subsystems = new Rows<SubsystemRow>();
  readonly hosts = new Rows<HostRow>();
  readonly mirrors: MirrorRow[] = [];
  private readonly cluster: Cluster;
  /** The keys of the connected hosts, by node and subsystem. */
  private readonly users = new Map<string, Set<string>>();

  constructor(cluster: Cluster) {
    this.cluster = cluster;
    for (const node of cluster.nodes) if (node.watch.status) this.add(node, node.watch.status);
  }

  private row(key: string): Row {
    const { cluster } = this;
    return {
      key,
      nodes: [],
      get rates() {
        return cluster.part(key, this.nodes)?.rates;
      },
    };
  }

  private add(node: Node, status: Status): void {
    for (const one of status.controllers) if (one.subsystem !== null) this.host(node, one.subsystem, one);
    for (const subsystem of status.subsystems) {
      const { nqn } = subsystem;
      const key = partKey("subsystem", nqn);
      const row = this.subsystems.at(key, node, () => Object.assign(this.row(key), { subsystem, errors: 0 }));
      row.errors += subsystem.media_errors;
      for (const namespace of subsystem.namespaces) this.namespace(node, nqn, namespace);
    }
    this.mirrors.push(...mirrorRows(node.name, status));
  }

  private host(node: Node, subsystem: string, { host_nqn: nqn, io_queues, errors }: ControllerStatus): void {
    const key = partKey("host", nqn);
    const row = this.hosts.at(key, node, () => Object.assign(this.row(key), { nqn, controllers: 0, queues: 0, errors: 0 }));
    row.controllers += 1;
    row.queues += io_queues;
    row.errors += errors;
    const there = `${node.name}\n${subsystem}`;
    const known = this.users.get(there);
    if (known) known.add(key);
    else this.users.set(there, new Set([key]));
  }

  private namespace(node: Node, nqn: string, namespace: NamespaceStatus): void {
    const key = partKey("namespace", nqn, namespace.nsid);
    this.namespaces.at(key, node, () => {
      const row = Object.assign(this.row(key), { nqn, namespace, limit: "" });
      const get = (): string => this.limit(row);
      return Object.defineProperty(row, "limit", { get });
    });
  }

  /** Describes the bottleneck on the first node that has one. */
  private limit({ key, nqn, namespace, nodes }: NamespaceRow): string {
    let limit = "–";
    for (const { name, watch } of nodes) {
      const part = watch.model.parts.get(key);
      const document = watch.document?.subsystems[nqn]?.namespaces?.[namespace.nsid];
      const hosts = this.users.get(`${name}\n${nqn}`) ?? [];
      const here = limited({ document, part, hosts }, watch.model);
      if (!here.startsWith("–")) return nodes.length > 1 ? `${here} (${format.tail(name, 18)})` : here;
      if (limit === "–") limit = here;
    }
    return limit;
  }
}

/** The tables of all nodes' namespaces, mirrors, subsystems and hosts. */
export class Across {
  readonly nodes: HTMLElement[];
  private readonly namespaces: Table<NamespaceRow>;
  private readonly subsystems: Table<SubsystemRow>;
  private readonly hosts: Table<HostRow>;
  private readonly mirrors = mirrorTable(true);
  private of: unknown[] = [];
  private gathered: Gathered | null = null;
  private rows: { namespaces: NamespaceRow[]; subsystems: SubsystemRow[]; hosts: HostRow[] } | null = null;

  constructor(choose: (key: string) => void) {
    this.namespaces = namespaceTable(choose);
    this.subsystems = subsystemTable(choose);
    this.hosts = hostTable(choose);
    this.nodes = [this.namespaces.node, this.mirrors.node, this.subsystems.node, this.hosts.node];
  }

  show(cluster: Cluster, chosen: string | null): void {
    const of = cluster.nodes.map(({ watch }) => watch.status);
    if (!this.gathered || !this.rows || !isSame(of, this.of)) {
      this.of = of;
      this.gathered = new Gathered(cluster);
      const { namespaces, subsystems, hosts } = this.gathered;
      this.rows = { namespaces: [...namespaces.all.values()], subsystems: [...subsystems.all.values()], hosts: [...hosts.all.values()] };
    }
    for (const node of this.nodes) node.hidden = cluster.nodes.length === 0;
    this.mirrors.node.hidden = this.gathered.mirrors.length === 0;
    this.namespaces.show(this.rows.namespaces, chosen);
    this.subsystems.show(this.rows.subsystems, chosen);
    this.hosts.show(this.rows.hosts, chosen);
    this.mirrors.show(this.gathered.mirrors, null);
  }

  /** Returns the nodes that have the object with this key. */
  owners(key: string): Node[] {
    const rows = this.gathered;
    const of = [rows?.namespaces, rows?.subsystems, rows?.hosts].map((kind) => kind?.all.get(key));
    return of.find((row) => row !== undefined)?.nodes ?? [];
  }
}

/** Makes a table in which a click on a row's name chooses the row by its key. */
function table<R extends Row>(choose: (key: string) => void, of: Omit<Options<R>, "key" | "words" | "choose">): Table<R> {
  return new Table<R>({ ...of, key: (row) => row.key, words, choose: (row) => choose(row.key) });
}

function namespaceTable(choose: (key: string) => void): Table<NamespaceRow> {
  return table(choose, {
    title: "Namespaces",
    nothing: "No namespaces are shared.",
    sorted: 2,
    columns: [
      { title: "NS", text: (row) => String(row.namespace.nsid), chooses: true },
      { title: "Subsystem", text: (row) => format.tail(row.nqn, 44) },
      ...rated<NamespaceRow>(),
      on,
      { title: "Size", text: (row) => format.bytes(row.namespace.bytes), number: (row) => row.namespace.bytes },
      { title: "Access", text: (row) => (row.namespace.read_only ? "read only" : "read, write") },
      { title: "Limited by", text: (row) => row.limit },
    ],
  });
}

function subsystemTable(choose: (key: string) => void): Table<SubsystemRow> {
  return table(choose, {
    title: "Subsystems",
    nothing: "No subsystems are shared.",
    columns: [
      { title: "Subsystem", text: (row) => format.tail(row.subsystem.nqn, SHORT_NAME), chooses: true },
      ...rated<SubsystemRow>(),
      on,
      {
        title: "Namespaces",
        text: (row) => String(row.subsystem.namespaces.length),
        number: (row) => row.subsystem.namespaces.length,
      },
      {
        title: "May connect",
        text: ({ subsystem }) => (subsystem.allow_any_host ? "any host" : format.plural(subsystem.hosts.length, "host")),
      },
      { title: "Media errors", text: (row) => format.short(row.errors), number: (row) => row.errors },
    ],
  });
}

function hostTable(choose: (key: string) => void): Table<HostRow> {
  return table(choose, {
    title: "Hosts",
    nothing: "No host is connected.",
    columns: [
      { title: "Host", text: (row) => format.tail(row.nqn, SHORT_NAME), chooses: true },
      ...rated<HostRow>(),
      on,
      { title: "Controllers", text: (row) => String(row.controllers), number: (row) => row.controllers },
      { title: "Queues", text: (row) => String(row.queues), number: (row) => row.queues },
      { title: "Refused", text: (row) => format.short(row.errors), number: (row) => row.errors },
    ],
  });
}
