// The table of mirrors: the states of their legs, the missing data, and the results of verifies.

import * as format from "./format";
import { type Column, Table } from "./table";
import type { MirrorStatus, NamespaceStatus, Status } from "./types";

export interface MirrorRow {
  key: string;
  node: string;
  nqn: string;
  namespace: NamespaceStatus;
  mirror: MirrorStatus;
}

/** Returns the rows of a target's mirrors. `node` is the target's name in the cluster. */
export function mirrorRows(node: string, status: Status): MirrorRow[] {
  return status.subsystems.flatMap(({ nqn, namespaces }) =>
    namespaces.flatMap((namespace): MirrorRow[] => {
      const { mirror, nsid } = namespace;
      return mirror ? [{ key: `mirror ${node} ${nqn} ${nsid}`, node, nqn, namespace, mirror }] : [];
    }),
  );
}

/** Returns the number of legs in each state, in words. */
function legs({ legs = [] }: NamespaceStatus): string {
  const count = (state: string, words: string): string[] => {
    const those = legs.filter((leg) => leg.state === state).length;
    return those > 0 ? [`${those} ${words}`] : [];
  };
  return [...count("in_sync", "in sync"), ...count("catching_up", "catching up"), ...count("out", "out")].join(", ");
}

/** Describes whether a verify has compared the legs, or its progress. */
function progress({ verifying, verified_bytes, uncompared_bytes = 0, verifies }: MirrorStatus, bytes: number): string {
  if (verifying) return `verifies, ${format.percent((100 * (verified_bytes + uncompared_bytes)) / bytes)}`;
  return verifies > 0 ? "verified" : verified_bytes + uncompared_bytes > 0 ? "ended early" : "not yet";
}

/** Formats a figure of the last verify; a dash if there was none. */
function figure({ mirror }: MirrorRow, bytes: number | undefined): string {
  const none = !mirror.verifying && mirror.verifies === 0 && mirror.verified_bytes === 0;
  return none || bytes === undefined ? "–" : format.bytes(bytes);
}

/** Makes the table of mirrors. In a cluster, it has a column for the node. */
export function mirrorTable(isCluster: boolean): Table<MirrorRow> {
  const named: Column<MirrorRow>[] = isCluster ? [{ title: "Node", text: (row) => format.tail(row.node, 20) }] : [];
  const sized = (title: string, of: (row: MirrorRow) => number | undefined): Column<MirrorRow> => {
    return { title, text: (row) => figure(row, of(row)), number: (row) => of(row) ?? NaN };
  };
  return new Table<MirrorRow>({
    title: "Mirrors",
    key: (row) => row.key,
    nothing: "There are no mirrors.",
    words: ({ namespace, mirror }) => [...(namespace.legs ?? []).map(({ name }) => name), ...(mirror.unread_legs ?? [])].join(" "),
    columns: [
      ...named,
      { title: "NS", text: (row) => String(row.namespace.nsid) },
      { title: "Subsystem", text: (row) => format.tail(row.nqn, isCluster ? 26 : 34) },
      { title: "Legs", text: (row) => legs(row.namespace) },
      { title: "May be missing", text: ({ mirror }) => format.bytes(mirror.dirty_bytes), number: ({ mirror }) => mirror.dirty_bytes },
      { title: "Verify", text: ({ mirror, namespace }) => progress(mirror, namespace.bytes) },
      sized("Compared", ({ mirror }) => mirror.verified_bytes),
      sized("Differing", ({ mirror }) => mirror.differing_bytes),
      sized("Not compared", ({ mirror }) => mirror.uncompared_bytes),
      { title: "Read errors on", text: ({ mirror }) => (mirror.unread_legs ?? []).map((name) => format.tail(name, 24)).join(", ") || "–" },
    ],
  });
}

/** Returns a sentence for each problem that a verify found. */
export function verified(nqn: string, { nsid, mirror, block_size }: NamespaceStatus): string[] {
  if (!mirror) return [];
  const which = `Namespace ${nsid} of ${format.tail(nqn, 48)}`;
  const said: string[] = [];
  if (mirror.differing_bytes > 0) {
    const first = mirror.differences[0];
    const where = first ? `, first in ${format.plural(first.blocks, "block")} of ${format.bytes(block_size)} from ${first.lba} on` : "";
    said.push(`${which}: its legs differ within ${format.bytes(mirror.differing_bytes)}${where}.`);
  }
  const unread = mirror.unread_legs ?? [];
  if (unread.length > 0) {
    const legs = unread.map((name) => format.tail(name, 48)).join(" and ");
    said.push(`${which}: ${format.bytes(mirror.uncompared_bytes ?? 0)} were not compared, because reads failed on ${legs}.`);
  }
  return said;
}
