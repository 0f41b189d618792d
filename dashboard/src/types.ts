// What the management interface says: docs/openapi.json has the words.

export interface LegStatus {
  name: string;
  /** The last two are those of disks that are no mirrors. */
  state: "in_sync" | "catching_up" | "out" | "ready" | "away";
  reason?: string;
}

/** What a mirror does besides its users' work. */
export interface MirrorStatus {
  dirty_bytes: number;
  copied_bytes: number;
  verifying: boolean;
  verified_bytes: number;
  /** Older targets do not say the next two. */
  uncompared_bytes?: number;
  unread_legs?: string[];
  differing_bytes: number;
  /** The first places. */
  differences: { lba: number; blocks: number }[];
  verifies: number;
}

export interface NamespaceStatus {
  nsid: number;
  bytes: number;
  block_size: number;
  read_only: boolean;
  uuid: string;
  /** What it is a mirror of. */
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

/** A disk that is attached to the page's own machine. */
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
  /** The hosts that see it; all of them where nothing is said. */
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

/** What may be done in a second. */
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
  /** The targets, where there are several. */
  nodes?: string[];
}

/** What was before the page: `now` is by the clock of whoever kept it, in seconds. */
export interface Kept {
  now: number;
  levels: { step: number; newest: number; series: (number | null)[][] }[];
}

/** Something that happened, as it is told. */
export interface Told {
  sentence?: string;
  subsystem?: string;
  host?: string;
  address?: string;
  controller?: number;
  reason?: string;
  /** Of `lost`: how many were not told. */
  count?: number;
}

/** Counters since the target started. */
export interface IoStats {
  reads: number;
  writes: number;
  read_bytes: number;
  written_bytes: number;
  storage_errors: number;
  /** Older targets do not count it. */
  waited?: { namespace_limit_ns: number; host_limit_ns: number; turn_ns: number };
  read_latency: { sum_ns: number; counts: number[] };
  write_latency: { counts: number[] };
}

export interface Stats {
  uptime_ms: number;
  /** Since 1970, by its clock. */
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
