// The types of the management interface, which docs/openapi.json describes.

export interface LegStatus {
  name: string;
  /** Sets that are not mirrors have only `ready` and `away`. */
  state: "in_sync" | "catching_up" | "out" | "ready" | "away";
  reason?: string;
}

/** The background work of a mirror. */
export interface MirrorStatus {
  dirty_bytes: number;
  copied_bytes: number;
  verifying: boolean;
  verified_bytes: number;
  /** Older targets do not report this field and the next one. */
  uncompared_bytes?: number;
  unread_legs?: string[];
  differing_bytes: number;
  /** The first differences. */
  differences: { lba: number; blocks: number }[];
  verifies: number;
}

export interface NamespaceStatus {
  nsid: number;
  bytes: number;
  block_size: number;
  read_only: boolean;
  uuid: string;
  /** The legs of a mirror, or the parts of another set. */
  legs?: LegStatus[];
  mirror?: MirrorStatus;
}

export interface SubsystemStatus {
  nqn: string;
  allow_any_host: boolean;
  hosts: string[];
  reads: number;
  writes: number;
  read_bytes: number;
  written_bytes: number;
  media_errors: number;
  namespaces: NamespaceStatus[];
}

export interface ControllerStatus {
  id: number;
  subsystem: string | null;
  host_nqn: string;
  address: string | null;
  local_address: string;
  /** Missing from older versions, which have only TCP. */
  transport?: "tcp" | "rdma";
  ready: boolean;
  io_queues: number;
  errors: number;
}

export interface Status {
  listening: string[];
  pid: number;
  uptime_seconds: number;
  connections: number;
  subsystems: SubsystemStatus[];
  controllers: ControllerStatus[];
}

/** A disk that is attached on the machine that serves the page. */
export interface AttachedStatus {
  name: string;
  use?: string;
  state: string;
  trouble?: string;
  paths: AttachedPath[];
}

export interface AttachedPath {
  url: string;
  state: string;
  since_seconds: number;
  access?: string;
  address?: string;
  reconnects: number;
  error?: string;
}

export interface NamespaceDocument {
  path: string;
  read_only?: boolean;
  size?: number;
  ana_group?: number;
  /** The hosts that see the namespace; without this field, all hosts. */
  visible_to?: string[];
  limits?: Limits;
}

export type Limits = Partial<Record<Limit | "weight", number>>;

export interface HostDocument {
  limits?: Limits;
}

export interface SubsystemDocument {
  allow_any_host: boolean;
  hosts: Record<string, HostDocument>;
  namespaces: Record<string, NamespaceDocument>;
}

/** The limits per second. */
export type Limit = "iops" | "read_iops" | "write_iops" | "bytes" | "read_bytes" | "write_bytes";

export interface ListenerDocument {
  ana?: string;
}

export interface StateDocument {
  listeners: Record<string, ListenerDocument>;
  subsystems: Record<string, SubsystemDocument>;
}

export interface About {
  version: string;
  may_steer: boolean;
  /** Whether the target is a member of a group. */
  in_group?: boolean;
  /** The names of the nodes, if the page shows a cluster. */
  nodes?: string[];
}

/** A member of the target's group. */
export interface GroupMember {
  name: string;
  alive: boolean;
  addresses: string[];
  duty: string;
  program: string;
  leads: number[];
  /** The hosts connected to the member; `null`: it is not ready for hosts. */
  hosts: string[] | null;
}

/** An ANA group of the target's group. */
export interface GroupAnaGroup {
  number: number;
  leader: string | null;
  phase: string;
  epoch: number;
  reason: string | null;
  since_unix_ms: number;
  pinned: string | null;
  /** The last completed fence of earlier leaders. */
  fenced: { members: string[]; by: string; at_unix_ms: number } | null;
}

/** The group as a member sees it. */
export interface GroupStatus {
  group: string;
  member: string;
  store: { reachable: boolean; trouble: string | null };
  members: GroupMember[];
  ana_groups: GroupAnaGroup[];
  upgrade: Record<string, unknown> | null;
  history: { at_unix_ms: number; text: string }[];
}

/** The history that a server kept. `now` is the server's time in seconds. */
export interface Kept {
  now: number;
  levels: { step: number; newest: number; series: (number | null)[][] }[];
}

/** The data of an event. */
export interface Told {
  sentence?: string;
  subsystem?: string;
  host?: string;
  address?: string;
  controller?: number;
  reason?: string;
  /** In the event `lost`: the number of events that the stream left out. */
  count?: number;
}

/** Counters since the target started. */
export interface IoStats {
  reads: number;
  writes: number;
  read_bytes: number;
  written_bytes: number;
  storage_errors: number;
  /** Older targets do not report this field. */
  waited?: { namespace_limit_ns: number; host_limit_ns: number; turn_ns: number };
  read_latency: { sum_ns: number; counts: number[] };
  write_latency: { counts: number[] };
}

export interface Stats {
  uptime_ms: number;
  /** Milliseconds since 1970, by the target's clock. */
  time_ms: number;
  latency_bounds_us: number[];
  connections: {
    open: number;
    refused: Record<string, number>;
    not_authenticated: Record<string, number>;
  };
  total: IoStats;
  cores: { core: number; busy_ns: number | null; io: IoStats }[];
  subsystems: { nqn: string; io: IoStats; namespaces: { nsid: number; io: IoStats; cores?: number[] }[] }[];
  hosts: { nqn: string; controllers: number; io: IoStats }[];
}
