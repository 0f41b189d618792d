// Mirrors: how their legs are, what they lack, and what a verify has compared and found.

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

/** The mirrors of a target; `node` is what it is called among others. */
export function mirrorRows(node: string, status: Status): MirrorRow[] {
  return status.subsystems.flatMap(({ nqn, namespaces }) =>
    namespaces.flatMap((namespace): MirrorRow[] => {
      const { mirror, nsid } = namespace;
      return mirror ? [{ key: `mirror ${node} ${nqn} ${nsid}`, node, nqn, namespace, mirror }] : [];
    }),
  );
}

/** How many legs there are of each state. */
function legs({ legs = [] }: NamespaceStatus): string {
  const count = (state: string, words: string): string[] => {
    const those = legs.filter((leg) => leg.state === state).length;
    return those > 0 ? [`${those} ${words}`] : [];
  };
  return [...count("in_sync", "in sync"), ...count("catching_up", "catching up"), ...count("out", "out")].join(", ");
}

/** Whether the legs were compared, and how far that is. */
function progress({ verifying, verified_bytes, uncompared_bytes = 0, verifies }: MirrorStatus, bytes: number): string {
  if (verifying) return `verifies, ${format.percent((100 * (verified_bytes + uncompared_bytes)) / bytes)}`;
  return verifies > 0 ? "verified" : verified_bytes + uncompared_bytes > 0 ? "ended early" : "not yet";
}

/** Figures of a verify that there was. */
function figure({ mirror }: MirrorRow, bytes: number | undefined): string {
  const none = !mirror.verifying && mirror.verifies === 0 && mirror.verified_bytes === 0;
  return none || bytes === undefined ? "–" : format.bytes(bytes);
}

/** All of these mirrors, and on which node if that is to be said. */
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
      { title: "May lack", text: ({ mirror }) => format.bytes(mirror.dirty_bytes), number: ({ mirror }) => mirror.dirty_bytes },
      { title: "Verify", text: ({ mirror, namespace }) => progress(mirror, namespace.bytes) },
      sized("Compared", ({ mirror }) => mirror.verified_bytes),
      sized("Differing", ({ mirror }) => mirror.differing_bytes),
      sized("Unread", ({ mirror }) => mirror.uncompared_bytes),
      { title: "Unread on", text: ({ mirror }) => (mirror.unread_legs ?? []).map((name) => format.tail(name, 24)).join(", ") || "–" },
    ],
  });
}

/** What a verify found that is wrong, a sentence each. */
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
