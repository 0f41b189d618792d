// The group of the target: its members, its ANA groups with their leaders, and the last changes.

import { ask } from "./api";
import { el, say } from "./dom";
import * as format from "./format";
import { Table } from "./table";
import { Log } from "./told";
import type { GroupAnaGroup, GroupMember, GroupStatus } from "./types";

const LOOK_EVERY_MS = 1000;

/** The reasons of the last change of a leader, in words. */
const REASONS: Record<string, string> = {
  new: "new",
  order: "an operator's order",
  balance: "the better member has settled",
  lost: "the leader was lost",
  restart: "the leader restarted",
  "fence-failed": "a fence or a disk failed",
  leave: "the leader left",
};

const numbers = (all: number[]): string => (all.length > 0 ? all.join(", ") : "–");

/** Describes the last fence of any ANA group. */
function lastFence(groups: GroupAnaGroup[]): string {
  const all = groups.flatMap(({ number, fenced }) => (fenced ? [{ number, fenced }] : []));
  const [last] = all.sort((a, b) => b.fenced.at_unix_ms - a.fenced.at_unix_ms);
  if (!last) return "No member has been fenced.";
  const { members, by, at_unix_ms } = last.fenced;
  const at = new Date(at_unix_ms).toLocaleString("en-GB");
  return `Last fence: ${by} fenced ${members.join(" and ")} for ANA group ${last.number}, ${at}.`;
}

/** Returns a sentence for each problem of the group. */
function troubles({ store, members, upgrade }: GroupStatus): string[] {
  const said = members.filter(({ alive }) => !alive).map(({ name }) => `Member ${name} is lost.`);
  if (!store.reachable) said.push(`etcd does not answer, so changes wait (${store.trouble ?? "no answer yet"}).`);
  if (upgrade) said.push("A rolling upgrade has not ended.");
  return said;
}

export class Group {
  readonly node = el("div", { class: "in-group", hidden: true });
  private readonly base: string;
  private readonly facts = el("p", { class: "quiet" });
  private readonly fence = el("p", { class: "quiet" });
  private readonly troubles = el("p", { class: "bad" });
  private readonly log = new Log("Changes in the group");
  private readonly members = new Table<GroupMember>({
    title: "Members of the group",
    key: ({ name }) => `member ${name}`,
    nothing: "The group has no members.",
    columns: [
      { title: "Member", text: ({ name }) => format.tail(name, 34) },
      { title: "State", text: ({ alive, hosts }) => (alive ? (hosts ? "ready" : "starting") : "lost") },
      { title: "Order", text: ({ duty }) => duty },
      { title: "Leads ANA groups", text: ({ leads }) => numbers(leads), number: ({ leads }) => leads.length },
      { title: "Hosts", text: ({ hosts }) => (hosts ? String(hosts.length) : "–"), number: ({ hosts }) => hosts?.length ?? NaN },
      { title: "Addresses", text: ({ addresses }) => format.tail(addresses.join(", "), 44) },
      { title: "Version", text: ({ program }) => program },
    ],
  });
  private readonly groups = new Table<GroupAnaGroup>({
    title: "ANA groups",
    key: ({ number }) => `ana ${number}`,
    nothing: "The group has no ANA groups.",
    columns: [
      { title: "ANA group", text: ({ number }) => String(number) },
      { title: "Leader", text: ({ leader }) => leader ?? "–" },
      { title: "State", text: ({ phase }) => phase },
      { title: "Last change", text: ({ reason }) => REASONS[reason ?? ""] ?? reason ?? "–" },
      { title: "Since", text: ({ since_unix_ms }) => (since_unix_ms > 0 ? format.clock(since_unix_ms) : "–") },
      { title: "Chosen", text: ({ pinned }) => pinned ?? "–" },
      { title: "Epoch", text: ({ epoch }) => String(epoch), number: ({ epoch }) => epoch },
    ],
  });

  constructor(base: string) {
    this.base = base;
    const about = el("section", { class: "panel" }, el("header", {}, el("h2", {}, "Group"), this.facts), this.troubles, this.fence);
    this.node.append(about, this.members.node, this.groups.node, this.log.node);
  }

  /** Reads the group now and then, as long as the page exists. */
  start(): void {
    const look = async (): Promise<void> => {
      if (!document.hidden && this.node.isConnected) {
        try {
          this.show(await ask<GroupStatus>(`${this.base}/group`));
        } catch {
          // The page reports a target that does not answer.
        }
      }
      setTimeout(() => void look(), LOOK_EVERY_MS);
    };
    void look();
  }

  private show(group: GroupStatus): void {
    this.node.hidden = false;
    say(this.facts, `${group.group} · this target is member ${group.member}`);
    say(this.fence, lastFence(group.ana_groups));
    say(this.troubles, troubles(group).join(" "));
    this.members.show(group.members, null);
    this.groups.show(group.ana_groups, null);
    const newest = [...group.history].reverse();
    this.log.show(newest.map(({ at_unix_ms, text }) => ({ at: at_unix_ms, text, weight: "plain" as const })));
  }
}
