// The dialogs for changes. Before each change, a second dialog describes the effect and asks.

import { type Names, Shared, walk } from "./alter";
import { type Back, confirm, dialog, reason, type Step } from "./confirm";
import { clean, el } from "./dom";
import { bytes, tail } from "./format";
import { limitFields } from "./limit-fields";
import type { HostDocument, NamespaceDocument, NamespaceStatus, StateDocument, Status, SubsystemDocument } from "./types";

const GIB = 1 << 30;
/** The largest number of a new namespace. */
const MOST_NSID = 1024;

/** The document to change, and a function to call after each change. */
export interface Desk {
  shared: Shared;
  done: () => void;
}

export function desk(base: string, done: () => void): Desk {
  return { shared: new Shared(base), done };
}

type Ask = (step: Step) => void;

/**
 * Opens a dialog with the current document. `fill` returns `null` if the object no longer exists.
 */
async function open(
  { shared, done }: Desk,
  title: string,
  of: string,
  fill: (document: StateDocument, ask: Ask) => (Node | null)[] | null,
): Promise<void> {
  let content: (Node | null)[] | null;
  // The question replaces this dialog.
  const ask = (step: Step): void => {
    box.close();
    confirm(shared, step, done);
  };
  try {
    content = fill(await shared.document(), ask) ?? [el("p", {}, "The target no longer has this object.")];
  } catch (error) {
    content = [el("p", { role: "alert" }, reason(error))];
  }
  const box = dialog(title, el("p", { class: "quiet" }, of), ...content);
}

const button = (text: string, click: () => void, label = text): HTMLButtonElement =>
  el("button", { type: "button", "aria-label": label, click }, text);

/** Makes a section that is collapsed until the user opens it. */
const folded = (title: string, ...content: (Node | null)[]): HTMLElement =>
  el("details", {}, el("summary", {}, title), ...content);

/** Returns the distinct names in a text with one name per line. */
function lines(text: string): string[] {
  return [...new Set(text.split("\n").map((line) => line.trim()))].filter((line) => line !== "");
}

/** Whether the data are in memory, and so are lost with the namespace. */
function isFleeting(path: string): boolean {
  return /(^|,|:)mem:/.test(path);
}

/** Opens the dialog for changes of a namespace. */
export function steerNamespace(desk: Desk, nqn: string, shown: NamespaceStatus): Promise<void> {
  const { nsid } = shown;
  const names = ["subsystems", nqn, "namespaces", nsid];
  const which = `namespace ${nsid} of ${tail(nqn, 60)}`;
  return open(desk, `Namespace ${nsid}`, nqn, (document, ask) => {
    const was = walk(document, names) as NamespaceDocument | undefined;
    if (!was) return null;
    const part = { names, was };
    const patch = (question: string, verb: string, body: unknown): void =>
      ask({ ...part, question, verb, change: { method: "PATCH", body } });
    const protect = (): void => {
      const question = was.read_only
        ? `Accept writes to ${which} again?`
        : `Refuse writes to ${which}? Programs that write to it get errors.`;
      patch(question, was.read_only ? "Make it writable" : "Make it read-only", { read_only: !was.read_only });
    };
    const limits = limitFields(was.limits ?? {}, false);
    const limit = (): void => {
      if (!limits.valid()) return;
      patch(`Limit ${which} to ${limits.words()}? I/O over a limit waits.`, "Limit", { limits: limits.patch() });
    };
    const remove = (): void => {
      const question = `Stop sharing ${which}? Hosts lose the disk at once; the target completes operations that have started.`;
      const step: Step = { ...part, question, verb: "Remove", change: { method: "DELETE" } };
      if (!isFleeting(was.path)) return ask(step);
      const none = "Undo is not possible: the data were in memory.";
      ask({ ...step, question: `${question} Its data are in memory and will be lost: undo is not possible.`, back: { none } });
    };
    return [
      resize(shown, part, which, ask),
      el("p", {}, button(was.read_only ? "Make it writable…" : "Make it read-only…", protect), " ", button("Remove…", remove)),
      folded("Limits", limits.node, el("p", {}, button("Limit…", limit))),
      folded("Visibility", ...visibility(was, which, patch)),
    ];
  });
}

type Part = Pick<Step, "names" | "was">;

function resize(shown: NamespaceStatus, part: Part, which: string, ask: Ask): HTMLElement {
  const was = part.was as NamespaceDocument;
  const has = was.size ?? shown.bytes;
  const size = el("input", { type: "number", min: shown.block_size / GIB, step: "any", value: has / GIB });
  const act = (): void => {
    const wanted = Math.round((size.valueAsNumber * GIB) / shown.block_size) * shown.block_size;
    if (!(wanted > 0) || wanted === has) return size.focus();
    const from = `from ${bytes(has)} to ${bytes(wanted)}`;
    const loses = wanted < has ? " Hosts get errors beyond the new end. The storage keeps the data there, and Undo makes them available again." : "";
    const question = `Resize ${which} ${from}?${loses} The target notifies hosts at once.`;
    // Without `size`, the namespace would have the new size of its storage.
    const back: Back = {
      question: `Resize it to ${bytes(has)} again? Hosts get errors beyond the former end, also for data that they have written there since. The storage itself does not shrink.`,
      change: { method: "PUT", body: { ...was, size: has } },
    };
    const step: Step = { ...part, question, verb: "Resize", change: { method: "PATCH", body: { size: wanted } } };
    ask(wanted > has ? { ...step, back } : step);
  };
  return el("p", {}, el("label", {}, "Size in GiB ", size), " ", button("Resize…", act));
}

function visibility(
  was: NamespaceDocument,
  which: string,
  patch: (question: string, verb: string, body: unknown) => void,
): Node[] {
  const all = el("input", { type: "checkbox" });
  all.checked = was.visible_to === undefined;
  const only = el("textarea", { rows: 3, cols: 52, spellcheck: "false" });
  only.value = (was.visible_to ?? []).map(clean).join("\n");
  only.addEventListener("input", () => (all.checked = false));
  const act = (): void => {
    const hosts = all.checked ? null : lines(only.value);
    const who = hosts === null ? "all hosts that may connect" : hosts.length === 0 ? "no host" : hosts.join(", ");
    const question = `Make ${which} visible to ${who}? Other hosts lose the disk at once.`;
    patch(question, "Change visibility", { visible_to: hosts });
  };
  return [
    el("p", {}, el("label", {}, all, " All hosts that may connect")),
    el("p", {}, el("label", {}, "Or only these hosts, one NQN per line (empty: no host) ", only)),
    el("p", {}, button("Change visibility…", act)),
  ];
}

/** Opens the dialog for changes of a subsystem: its namespaces, its allowed hosts, its removal. */
export function steerSubsystem(desk: Desk, nqn: string, status: Status | null): Promise<void> {
  const names = ["subsystems", nqn];
  const which = `subsystem ${tail(nqn, 60)}`;
  return open(desk, "Subsystem", nqn, (document, ask) => {
    const was = walk(document, names) as SubsystemDocument | undefined;
    if (!was) return null;
    const remove = (): void => {
      const lost = Object.values(was.namespaces).some(({ path }) => isFleeting(path));
      const none = "Undo is not possible: some of the data were in memory.";
      const more = lost ? " Data in memory will be lost: undo is not possible." : "";
      const question = `Remove ${which}? The target removes its namespaces and disconnects all hosts that use it.${more}`;
      const step: Step = { names, was, question, verb: "Remove", change: { method: "DELETE" } };
      ask(lost ? { ...step, back: { none } } : step);
    };
    return [
      folded("Add a namespace", ...addition(nqn, was, ask)),
      ...(was.allow_any_host ? anyHost(nqn, was, connected(status, nqn), ask) : hosts(nqn, was, ask)),
      el("p", {}, button("Remove the subsystem…", remove)),
    ];
  });
}

function addition(nqn: string, was: SubsystemDocument, ask: Ask): Node[] {
  let free = 1;
  while (Object.hasOwn(was.namespaces, free) && free < MOST_NSID) free += 1;
  const path = el("input", { type: "text", size: 40, placeholder: "/srv/disk.img, /dev/sdb, mem:1GiB" });
  const number = el("input", { type: "number", min: 1, max: MOST_NSID, value: free });
  const only = el("input", { type: "checkbox" });
  const act = (): void => {
    const wanted = path.value.trim();
    const nsid = number.valueAsNumber;
    if (wanted === "") return path.focus();
    if (!Number.isInteger(nsid) || Object.hasOwn(was.namespaces, nsid)) return number.focus();
    const how = only.checked ? ", read-only" : "";
    ask({
      question: `Share ${wanted} as namespace ${nsid} of ${tail(nqn, 60)}${how}? Hosts that use the subsystem get the disk at once.`,
      verb: "Add",
      names: ["subsystems", nqn, "namespaces", nsid],
      was: undefined,
      change: { method: "PUT", body: { path: wanted, read_only: only.checked } },
    });
  };
  return [
    el("p", {}, el("label", {}, "Stored in ", path)),
    el("p", {}, el("label", {}, "Number ", number), " ", el("label", {}, only, " read-only"), " ", button("Add…", act)),
  ];
}

/** The list of the hosts that may use a subsystem. */
function hosts(nqn: string, was: SubsystemDocument, ask: Ask): Node[] {
  const which = `subsystem ${tail(nqn, 60)}`;
  const list = el("ul", { class: "hosts" });
  for (const [host, entry] of Object.entries(was.hosts)) {
    list.append(el("li", {}, host, " ", ...hostActions(nqn, host, entry, which, ask)));
  }
  const name = el("input", { type: "text", size: 40, placeholder: "nqn.2014-08.org.nvmexpress:uuid:…" });
  const allow = (): void => {
    const host = name.value.trim();
    if (host === "" || Object.hasOwn(was.hosts, host)) return name.focus();
    const names = ["subsystems", nqn, "hosts", host];
    ask({ names, was: undefined, question: `Let ${host} use ${which}?`, verb: "Allow", change: { method: "PUT", body: {} } });
  };
  const any = (): void => {
    const question = `Let any host use ${which}? The target removes the list of hosts, with their keys and limits.`;
    const body = { allow_any_host: true, hosts: null };
    const names: Names = ["subsystems", nqn];
    ask({ names, was, question, verb: "Let any host connect", change: { method: "PATCH", body } });
  };
  return [
    el("p", {}, "These hosts may connect:"),
    list,
    el("p", {}, el("label", {}, "Host’s NQN ", name), " ", button("Allow…", allow)),
    el("p", {}, button("Let any host connect…", any)),
  ];
}

/** Returns the hosts that are connected to a subsystem. */
function connected(status: Status | null, nqn: string): string[] {
  const those = (status?.controllers ?? []).filter((one) => one.subsystem === nqn);
  return [...new Set(those.map((one) => one.host_nqn))];
}

/** The change from any host to listed hosts. The list starts with the connected hosts. */
function anyHost(nqn: string, was: SubsystemDocument, there: string[], ask: Ask): Node[] {
  const close = (): void => {
    const who = there.length === 0 ? "no host (none is connected)" : `only ${there.join(", ")}`;
    const question = `Let ${who} use subsystem ${tail(nqn, 60)}? You can limit and disallow listed hosts.`;
    const body = { allow_any_host: false, hosts: Object.fromEntries(there.map((host) => [host, {}])) };
    ask({ names: ["subsystems", nqn], was, question, verb: "Allow only these hosts", change: { method: "PATCH", body } });
  };
  return [
    el("p", {}, "Any host may connect: a disconnected host would reconnect, and hosts cannot be limited."),
    el("p", {}, button("Allow only the connected hosts…", close)),
  ];
}

function hostActions(nqn: string, host: string, was: HostDocument, which: string, ask: Ask): (Node | string)[] {
  const part = { names: ["subsystems", nqn, "hosts", host], was };
  const disallow = (): void => {
    const question = `Stop ${host} from using ${which}? Its connections close at once.`;
    ask({ ...part, question, verb: "Disallow", change: { method: "DELETE" } });
  };
  const fields = limitFields(was.limits ?? {}, true);
  const limit = (): void => {
    if (!fields.valid()) return;
    const question = `Limit ${host} on ${which} to ${fields.words()}? I/O over a limit waits.`;
    ask({ ...part, question, verb: "Limit", change: { method: "PATCH", body: { limits: fields.patch() } } });
  };
  const limits = folded(`Limits of ${tail(host, 40)}`, fields.node, el("p", {}, button("Limit…", limit, `Limit ${host}`)));
  return [button("Disallow…", disallow, `Disallow ${host}`), limits];
}

/** Opens the dialog for changes of a connected host, with a section for each of its subsystems. */
export function steerHost(desk: Desk, host: string, status: Status | null): Promise<void> {
  const nqns = [...new Set((status?.controllers ?? []).filter((one) => one.host_nqn === host).map((one) => one.subsystem))];
  return open(desk, "Host", host, (document, ask) =>
    nqns.flatMap((nqn): Node[] => {
      const subsystem = nqn === null ? undefined : (walk(document, ["subsystems", nqn]) as SubsystemDocument | undefined);
      if (nqn === null || !subsystem) return [];
      const title = el("h3", {}, nqn);
      if (subsystem.allow_any_host) return [title, ...anyHost(nqn, subsystem, connected(status, nqn), ask)];
      const listed = walk(subsystem.hosts, [host]) as HostDocument | undefined;
      if (!listed) return [];
      return [title, el("div", {}, ...hostActions(nqn, host, listed, `subsystem ${tail(nqn, 60)}`, ask))];
    }),
  );
}

/** Opens the dialog for a new subsystem. */
export function addSubsystem(desk: Desk): Promise<void> {
  return open(desk, "Add a subsystem", "The target shares it at every address that it listens on.", (document, ask) => {
    const name = el("input", { type: "text", size: 40, placeholder: "nqn.2026-11.org.example:disks" });
    const any = el("input", { type: "checkbox" });
    const act = (): void => {
      const nqn = name.value.trim();
      if (nqn === "" || walk(document, ["subsystems", nqn]) !== undefined) return name.focus();
      const who = any.checked ? "any host may use" : "no host may use yet";
      const body = { allow_any_host: any.checked };
      ask({ names: ["subsystems", nqn], was: undefined, question: `Add the subsystem ${nqn}, which ${who}?`, verb: "Add", change: { method: "PUT", body } });
    };
    return [
      el("p", {}, el("label", {}, "Its NQN ", name)),
      el("p", {}, el("label", {}, any, " Any host may connect"), " ", button("Add…", act)),
    ];
  });
}
