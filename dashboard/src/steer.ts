// Changes, each confirmed in a dialog that says what will happen.

import { ask, change, Refused } from "./api";
import { el } from "./dom";
import { bytes, tail } from "./format";
import type { NamespaceStatus, SubsystemStatus } from "./types";

interface Request {
  method: string;
  path: string;
  body?: unknown;
}

interface Step extends Request {
  /** What will happen, as a question. */
  question: string;
  /** What the button says. */
  verb: string;
  /** What makes it as it was, where that can be done. */
  undo?: Request;
}

const GIB = 1 << 30;

function path(nqn: string, ...rest: (string | number)[]): string {
  return ["/v1/subsystems", nqn, ...rest].map((part, at) => (at ? encodeURIComponent(part) : part)).join("/");
}

/** A dialog that goes when it is closed. */
function dialog(title: string, ...content: Node[]): HTMLDialogElement {
  const close = el("button", { type: "button", click: () => box.close() }, "Close");
  const box: HTMLDialogElement = el(
    "dialog",
    { "aria-labelledby": "dialog-title", close: () => box.remove() },
    el("h2", { id: "dialog-title" }, title),
    ...content,
    el("p", { class: "buttons" }, close),
  );
  document.body.append(box);
  box.showModal();
  return box;
}

/** Asks, does it, and says what came of it. */
function confirm(step: Step, done: () => void): void {
  const said = el("p", { role: "status" });
  const act = el("button", { type: "button", class: "main" }, step.verb);
  let next: Request | undefined = step;
  act.addEventListener("click", async () => {
    if (!next) return;
    act.disabled = true;
    try {
      const steps = await change(next.method, next.path, next.body);
      said.textContent = steps.length > 0 ? `Done: ${steps.join("; ")}.` : "It was so already.";
      next = next === step && steps.length > 0 ? step.undo : undefined;
      act.textContent = "Undo";
      act.hidden = !next;
      act.disabled = false;
      done();
    } catch (error) {
      const why = error instanceof Refused ? error.message : "the target did not answer";
      said.textContent = `Nothing was changed: ${why}.`;
      act.disabled = false;
    }
  });
  dialog("Are you sure?", el("p", {}, step.question), el("p", {}, act), said);
}

/** What can be done with a namespace. */
export function steerNamespace(nqn: string, namespace: NamespaceStatus, done: () => void): void {
  const which = `namespace ${namespace.nsid} of ${tail(nqn, 60)}`;
  const place = path(nqn, "namespaces", namespace.nsid);
  const size = el("input", {
    type: "number",
    min: namespace.bytes / GIB,
    step: "any",
    value: namespace.bytes / GIB,
  });
  const resize = (): void => {
    const wanted = Math.round((size.valueAsNumber * GIB) / namespace.block_size) * namespace.block_size;
    if (!(wanted > 0) || wanted === namespace.bytes) return size.focus();
    box.close();
    const from = `from ${bytes(namespace.bytes)} to ${bytes(wanted)}`;
    const loses = wanted < namespace.bytes ? " Hosts lose what is beyond the new end." : "";
    const question = `Resize ${which} ${from}?${loses} Hosts are told at once.`;
    confirm({ question, verb: "Resize", method: "PATCH", path: place, body: { size: wanted } }, done);
  };
  const protect = (): void => {
    box.close();
    const read_only = !namespace.read_only;
    const question = read_only
      ? `Refuse writes to ${which}? Programs that are writing to it will see errors.`
      : `Take writes to ${which} again?`;
    const verb = read_only ? "Make it read-only" : "Make it writable";
    const undo = { method: "PATCH", path: place, body: { read_only: !read_only } };
    confirm({ question, verb, method: "PATCH", path: place, body: { read_only }, undo }, done);
  };
  const box = dialog(
    `Namespace ${namespace.nsid}`,
    el("p", { class: "quiet" }, nqn),
    el("p", {}, el("label", {}, "Size in GiB ", size), " ", el("button", { type: "button", click: resize }, "Resize…")),
    el(
      "p",
      {},
      el("button", { type: "button", click: protect }, namespace.read_only ? "Make it writable…" : "Make it read-only…"),
    ),
  );
}

/** Who may use a subsystem. */
export function steerSubsystem(subsystem: SubsystemStatus, done: () => void): void {
  const { nqn } = subsystem;
  const which = `subsystem ${tail(nqn, 60)}`;
  const list = el("ul", { class: "hosts" });
  for (const host of subsystem.hosts) {
    const question = `Stop ${host} from using ${which}? Its connections end at once.`;
    const place = path(nqn, "hosts", host);
    const step = { question, verb: "Disallow", method: "DELETE", path: place };
    const disallow = async (): Promise<void> => {
      box.close();
      // As it is listed now: a host that has to prove who it is has to after an undo as well.
      const body = await ask<unknown>(place).catch(() => null);
      confirm(body === null ? step : { ...step, undo: { method: "PUT", path: place, body } }, done);
    };
    const label = `Disallow ${host}`;
    list.append(
      el("li", {}, host, " ", el("button", { type: "button", "aria-label": label, click: disallow }, "Disallow…")),
    );
  }
  const name = el("input", { type: "text", size: 40, placeholder: "nqn.2014-08.org.nvmexpress:uuid:…" });
  const allow = (): void => {
    const host = name.value.trim();
    if (host === "") return name.focus();
    box.close();
    const question = `Let ${host} use ${which}?`;
    const place = path(nqn, "hosts", host);
    const undo = { method: "DELETE", path: place };
    confirm({ question, verb: "Allow", method: "PUT", path: place, body: {}, undo }, done);
  };
  const who = subsystem.allow_any_host ? "Any host may connect." : "These hosts may connect:";
  const box = dialog(
    "Hosts that may connect",
    el("p", { class: "quiet" }, nqn),
    el("p", {}, who),
    list,
    el("p", {}, el("label", {}, "Host’s NQN ", name), " ", el("button", { type: "button", click: allow }, "Allow…")),
  );
}
