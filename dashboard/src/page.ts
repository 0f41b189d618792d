// The page of one target: its layout, and its tables.

import { el, say } from "./dom";
import { now as present } from "./clock";
import * as format from "./format";
import { Group } from "./group";
import { limited } from "./limits";
import { type MirrorRow, mirrorRows, mirrorTable } from "./mirrors";
import { Model, type Part, partKey, type Rates, TARGET } from "./model";
import { addSubsystem, desk, type Desk, steerHost, steerNamespace, steerSubsystem } from "./steer";
import { Stretch } from "./stretch";
import { type Column, Table } from "./table";
import { type Facts, Tiles } from "./tiles";
import { Alarms, Log } from "./told";
import { flowOf, targetScene, Topology } from "./topology";
import type { About, NamespaceStatus, Status, SubsystemStatus } from "./types";
import type { Watch } from "./watch";

interface NamespaceRow {
  key: string;
  nqn: string;
  namespace: NamespaceStatus;
  stored: string;
  /** The current bottleneck of the namespace, or its limit. */
  readonly limit: string;
  readonly rates: Rates | undefined;
}

interface HostRow {
  key: string;
  nqn: string;
  address: string;
  subsystems: number;
  controllers: number;
  queues: number;
  errors: number;
  readonly rates: Rates | undefined;
}

interface SubsystemRow {
  key: string;
  subsystem: SubsystemStatus;
  readonly rates: Rates | undefined;
}

/**
 * The rows of all tables, valid until the status changes. The rows look up their current figures.
 */
interface Rows {
  of: Status;
  with: Watch["document"];
  namespaces: NamespaceRow[];
  hosts: HostRow[];
  subsystems: SubsystemRow[];
  mirrors: MirrorRow[];
}

interface CoreRow {
  key: string;
  part: Part;
}

/** The maximum number of characters of a name in a wide table, and in a narrow one. */
const NAME = 52;
const SHORT_NAME = 34;

export const iops = (rates: Rates | undefined): number => (rates ? rates.reads + rates.writes : NaN);
export const through = (rates: Rates | undefined): number =>
  rates ? rates.readBytes + rates.writtenBytes : NaN;

/** The columns of all tables whose rows have rates. */
export function rated<Row extends { rates: Rates | undefined }>(): Column<Row>[] {
  return [
    { title: "IOPS", text: (row) => format.short(iops(row.rates)), number: (row) => iops(row.rates) },
    {
      title: "Throughput",
      text: (row) => format.perSecond(through(row.rates)),
      number: (row) => through(row.rates),
    },
  ];
}

/** The target's place in a cluster. */
export interface Place {
  name: string;
  back: () => void;
}

export class Page {
  readonly node: HTMLElement;
  private readonly watch: Watch;
  private readonly stretch: Stretch;
  private readonly topology = new Topology();
  private readonly state = el("span", { class: "state" });
  private readonly facts = el("span", { class: "quiet facts" });
  private readonly alarms = new Alarms();
  private readonly tiles = new Tiles();
  private readonly log = new Log();
  private readonly namespaces: Table<NamespaceRow>;
  private readonly hosts: Table<HostRow>;
  private readonly subsystems: Table<SubsystemRow>;
  private readonly cores: Table<CoreRow>;
  private readonly group: Group | null;
  private readonly mirrors = mirrorTable(false);
  private rows: Rows | null = null;
  private chosen: string | null = null;

  constructor(about: About, watch: Watch, place?: Place) {
    this.watch = watch;
    this.stretch = new Stretch({
      back: "Show the whole target",
      whole: "Whole target",
      part: () => this.part(),
      title: (part) => (part && part.kind !== "target" ? `${part.kind} ${format.tail(part.label, 60)}` : null),
      chooseWhole: () => this.choose(null),
      heldChanged: () => this.show(),
    });
    const changed = (): void => void watch.refresh().then(() => this.show(), () => undefined);
    const steered = about.may_steer ? desk(watch.base, changed) : null;
    this.namespaces = namespaceTable((key) => this.choose(key), steered);
    this.hosts = hostTable((key) => this.choose(key), steered, () => watch.status);
    this.subsystems = subsystemTable((key) => this.choose(key), steered, () => watch.status);
    this.cores = coreTable((key) => this.choose(key));
    this.group = about.in_group === true && !place ? new Group(watch.base) : null;
    this.node = this.layout(about, place);
    this.group?.start();
    document.addEventListener("visibilitychange", () => this.show());
  }

  private layout(about: About, place?: Place): HTMLElement {
    const may = about.may_steer ? "changes allowed" : "read-only";
    const top = el(
      "header",
      { class: "top" },
      el("h1", { tabindex: -1 }, place ? format.tail(place.name, 40) : "farblock"),
      ...(place ? [el("button", { type: "button", click: place.back }, "Back to the cluster")] : []),
      this.state,
      this.facts,
      el("span", { class: "quiet badge" }, may),
    );
    return el(
      "div",
      { class: "page" },
      top,
      el(
        "main",
        {},
        this.alarms.node,
        this.tiles.node,
        this.stretch.node,
        this.topology.node,
        ...(this.group ? [this.group.node] : []),
        this.namespaces.node,
        this.mirrors.node,
        this.subsystems.node,
        this.hosts.node,
        el("div", { class: "pair" }, this.cores.node, this.log.node),
      ),
    );
  }

  /** Moves the keyboard focus to this page. */
  focus(): void {
    this.node.querySelector("h1")?.focus();
  }

  show(): void {
    if (!this.node.isConnected) return;
    const { status, model, goneSince } = this.watch;
    const gone = goneSince !== null;
    document.body.classList.toggle("gone", gone);
    this.alarms.show(this.watch.troubles(present()));
    const live = this.watch.polled === null ? "live" : "polling each second";
    say(this.state, gone ? "not answering" : this.stretch.held ? "paused" : live);
    this.state.title = this.watch.polled === null ? "" : `The page has no event stream: ${this.watch.polled}`;
    this.state.className = `state ${gone ? "bad" : this.stretch.held ? "held" : "good"}`;
    document.title = gone ? "farblock: not answering" : `farblock: ${format.short(iops(model.target?.rates))} IOPS`;
    if (!status || document.hidden) return;
    this.log.show(this.watch.happenings);
    if (this.stretch.held) return;
    const up = format.duration(this.watch.uptimeSeconds);
    say(this.facts, `${status.listening.join(", ")} · process ${status.pid} · up ${up}`);
    this.tiles.show(this.part()?.rates, facts(status, this.watch));
    this.stretch.show();
    const { document: stored, losses } = this.watch;
    const lost = losses.fade(present());
    this.topology.show([status, stored, lost], () => targetScene(status, stored, lost), flowOf(model));
    this.tables(status);
  }

  private tables(status: Status): void {
    const { model, document: stored } = this.watch;
    if (this.rows?.of !== status || this.rows.with !== stored) {
      const namespaces = namespaceRows(status, model, stored);
      const [hosts, subsystems] = [hostRows(status, model), subsystemRows(status, model)];
      this.rows = { of: status, with: stored, namespaces, hosts, subsystems, mirrors: mirrorRows("", status) };
    }
    this.namespaces.show(this.rows.namespaces, this.chosen);
    this.hosts.show(this.rows.hosts, this.chosen);
    this.subsystems.show(this.rows.subsystems, this.chosen);
    this.mirrors.node.hidden = this.rows.mirrors.length === 0;
    this.mirrors.show(this.rows.mirrors, null);
    const cores = [...model.parts.values()].filter((part) => part.kind === "core");
    this.cores.node.hidden = cores.length === 0;
    this.cores.show(cores.map((part) => ({ key: part.key, part })), this.chosen);
  }

  /** The part that the charts show. */
  private part(): Part | undefined {
    const { model } = this.watch;
    return (this.chosen !== null && model.parts.get(this.chosen)) || model.parts.get(TARGET);
  }

  private choose(key: string | null): void {
    const known = key !== null && this.watch.model.parts.has(key);
    this.chosen = known && key !== this.chosen ? key : null;
    const { status } = this.watch;
    if (status) this.tables(status);
    if (status) this.tiles.show(this.part()?.rates, facts(status, this.watch));
    this.stretch.show();
  }
}

const hostsOf = new WeakMap<Status, number>();

/** Returns the number of hosts with a controller. Counts once per status. */
export function hostCount(status: Status): number {
  let count = hostsOf.get(status);
  if (count === undefined) {
    count = new Set(status.controllers.filter((one) => one.subsystem).map((one) => one.host_nqn)).size;
    hostsOf.set(status, count);
  }
  return count;
}

function facts(status: Status, watch: Watch): Facts {
  const count = (number: number): string => (watch.goneSince === null ? String(number) : "–");
  const connections = watch.stats?.connections.open ?? status.connections;
  return { Hosts: count(hostCount(status)), Connections: count(connections) };
}

function namespaceTable(choose: (key: string) => void, steered: Desk | null): Table<NamespaceRow> {
  return new Table<NamespaceRow>({
    title: "Namespaces",
    key: (row) => row.key,
    nothing: "No namespaces are shared.",
    choose: (row) => choose(row.key),
    sorted: 2,
    columns: [
      { title: "NS", text: (row) => String(row.namespace.nsid), chooses: true },
      { title: "Subsystem", text: (row) => format.tail(row.nqn, NAME) },
      ...rated<NamespaceRow>(),
      {
        title: "Size",
        text: (row) => format.bytes(row.namespace.bytes),
        number: (row) => row.namespace.bytes,
      },
      { title: "Block", text: (row) => String(row.namespace.block_size), number: (row) => row.namespace.block_size },
      { title: "Access", text: (row) => (row.namespace.read_only ? "read only" : "read, write") },
      { title: "Limited by", text: (row) => row.limit },
      { title: "Stored in", text: (row) => format.tail(row.stored, 40) },
    ],
    action: steered
      ? { title: "Change…", does: (row) => void steerNamespace(steered, row.nqn, row.namespace) }
      : undefined,
  });
}

function hostTable(
  choose: (key: string) => void,
  steered: Desk | null,
  status: () => Status | null,
): Table<HostRow> {
  return new Table<HostRow>({
    title: "Hosts",
    key: (row) => row.key,
    nothing: "No host is connected.",
    choose: (row) => choose(row.key),
    columns: [
      { title: "Host", text: (row) => format.tail(row.nqn, SHORT_NAME), chooses: true },
      ...rated<HostRow>(),
      { title: "Address", text: (row) => row.address },
      { title: "Controllers", text: (row) => String(row.controllers), number: (row) => row.controllers },
      { title: "Queues", text: (row) => String(row.queues), number: (row) => row.queues },
      { title: "Refused", text: (row) => format.short(row.errors), number: (row) => row.errors },
    ],
    action: steered ? { title: "Change…", does: (row) => void steerHost(steered, row.nqn, status()) } : undefined,
  });
}

function subsystemTable(
  choose: (key: string) => void,
  steered: Desk | null,
  status: () => Status | null,
): Table<SubsystemRow> {
  return new Table<SubsystemRow>({
    title: "Subsystems",
    key: (row) => row.key,
    nothing: "No subsystems are shared.",
    choose: (row) => choose(row.key),
    columns: [
      { title: "Subsystem", text: (row) => format.tail(row.subsystem.nqn, SHORT_NAME), chooses: true },
      ...rated<SubsystemRow>(),
      {
        title: "Namespaces",
        text: (row) => String(row.subsystem.namespaces.length),
        number: (row) => row.subsystem.namespaces.length,
      },
      {
        title: "May connect",
        text: (row) => (row.subsystem.allow_any_host ? "any host" : format.plural(row.subsystem.hosts.length, "host")),
      },
      {
        title: "Media errors",
        text: (row) => format.short(row.subsystem.media_errors),
        number: (row) => row.subsystem.media_errors,
      },
    ],
    action: steered
      ? { title: "Change…", does: (row) => void steerSubsystem(steered, row.subsystem.nqn, status()) }
      : undefined,
    more: steered ? { title: "Add…", does: () => void addSubsystem(steered) } : undefined,
  });
}

function coreTable(choose: (key: string) => void): Table<CoreRow> {
  const of = (row: CoreRow): Rates => row.part.rates;
  return new Table<CoreRow>({
    title: "Cores",
    key: (row) => row.key,
    nothing: "",
    choose: (row) => choose(row.key),
    columns: [
      { title: "Core", text: (row) => `core ${row.part.label}`, chooses: true },
      { title: "Busy", text: (row) => format.percent(of(row).busy), number: (row) => of(row).busy },
      { title: "IOPS", text: (row) => format.short(iops(of(row))), number: (row) => iops(of(row)) },
      { title: "Throughput", text: (row) => format.perSecond(through(of(row))), number: (row) => through(of(row)) },
    ],
  });
}

function namespaceRows(status: Status, model: Model, stored: Watch["document"]): NamespaceRow[] {
  const hosts = new Map<string, Set<string>>();
  for (const { subsystem, host_nqn } of status.controllers) {
    if (subsystem === null) continue;
    const known = hosts.get(subsystem) ?? new Set();
    hosts.set(subsystem, known.add(partKey("host", host_nqn)));
  }
  return status.subsystems.flatMap(({ nqn, namespaces }) =>
    namespaces.map((namespace): NamespaceRow => {
      const key = partKey("namespace", nqn, namespace.nsid);
      const document = stored?.subsystems[nqn]?.namespaces?.[namespace.nsid];
      return {
        key,
        nqn,
        namespace,
        stored: document?.path ?? "",
        get limit() {
          const part = model.parts.get(key);
          return limited({ document, part, hosts: hosts.get(nqn) ?? [] }, model);
        },
        get rates() {
          return model.parts.get(key)?.rates;
        },
      };
    }),
  );
}

function hostRows(status: Status, model: Model): HostRow[] {
  const rows = new Map<string, HostRow & { of: Set<string> }>();
  for (const one of status.controllers) {
    if (one.subsystem === null) continue;
    let row = rows.get(one.host_nqn);
    if (!row) {
      const key = partKey("host", one.host_nqn);
      row = {
        key,
        nqn: one.host_nqn,
        address: (one.address ?? "").replace(/:\d+$/, ""),
        get rates() {
          return model.parts.get(key)?.rates;
        },
        of: new Set(),
        subsystems: 0,
        controllers: 0,
        queues: 0,
        errors: 0,
      };
      rows.set(one.host_nqn, row);
    }
    row.of.add(one.subsystem);
    row.subsystems = row.of.size;
    row.controllers += 1;
    row.queues += one.io_queues;
    row.errors += one.errors;
  }
  return [...rows.values()];
}

function subsystemRows(status: Status, model: Model): SubsystemRow[] {
  return status.subsystems.map((subsystem) => {
    const key = partKey("subsystem", subsystem.nqn);
    return {
      key,
      subsystem,
      get rates() {
        return model.parts.get(key)?.rates;
      },
    };
  });
}
