// Asks before a change, reports the result, and offers Undo.

import { backTo, Meanwhile, type Names, type Shared } from "./alter";
import { type Change, Locked, Refused } from "./api";
import { el } from "./dom";

export interface Step {
  /** The question, which describes the effect. */
  question: string;
  /** The text of the button. */
  verb: string;
  /**
   * The path of the changed part. `was` is the part as the user saw it; `undefined`: no such part.
   */
  names: Names;
  was: unknown;
  change: Change;
  /** The undo, if it does not simply restore `was`. */
  back?: Back;
}

/** An undo with its own question, or the reason why undo is not possible. */
export type Back = { question: string; change: Change } | { none: string };

/** From this HTTP status on, a proxy answered instead of the target. */
const BAD_GATEWAY = 502;

/** Shows a dialog. Closing the dialog removes it from the page. */
export function dialog(title: string, ...content: (Node | null)[]): HTMLDialogElement {
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

/** Returns a sentence: the reason of the failure, and what the user can do. */
export function reason(error: unknown): string {
  if (error instanceof Meanwhile) {
    return "Nothing was changed: another user has changed this object meanwhile. Close this dialog and open it again.";
  }
  if (error instanceof Locked) return "Nothing was changed: the token is no longer valid.";
  if (error instanceof Refused && error.status < BAD_GATEWAY) {
    return `Nothing was changed: ${error.message.replace(/\.$/, "")}.`;
  }
  const why = error instanceof Refused ? ` (${error.message})` : "";
  return `The target did not answer${why}: close this dialog, and check for the change when the target answers again.`;
}

/** Asks the user, makes the change, and reports the result. */
export function confirm(shared: Shared, step: Step, done: () => void): void {
  new Question(shared, step, done).open();
}

class Question {
  private readonly question: HTMLElement;
  private readonly act: HTMLButtonElement;
  private readonly said = el("p", { role: "status" });
  /** The action of the button; `null` when there is none left. */
  private next: (() => Promise<void>) | null;

  constructor(
    private readonly shared: Shared,
    private readonly step: Step,
    private readonly done: () => void,
  ) {
    this.question = el("p", { tabindex: -1 }, step.question);
    this.act = el("button", { type: "button", class: "main", click: () => void this.press() }, step.verb);
    this.next = () => this.make();
  }

  open(): void {
    dialog("Are you sure?", this.question, el("p", {}, this.act), this.said);
    this.act.focus();
  }

  private async press(): Promise<void> {
    if (!this.next) return;
    const hadFocus = document.activeElement === this.act;
    this.act.disabled = true;
    try {
      await this.next();
    } catch (error) {
      this.tell(reason(error));
      // Only after a refusal the user may try again. Otherwise the part changed, or its state is
      // unknown.
      if (error instanceof Refused && error.status < BAD_GATEWAY) this.act.disabled = false;
      else this.offer(null);
      this.done();
    }
    // Move the focus from the button, so that a key held down does not press the new button.
    if (hadFocus) this.question.focus();
  }

  private tell(text: string): void {
    this.said.replaceChildren(el("span", {}, text));
  }

  private offer(next: (() => Promise<void>) | null, verb = ""): void {
    this.next = next;
    this.act.hidden = next === null;
    this.act.disabled = false;
    if (next) this.act.textContent = verb;
  }

  private async make(): Promise<void> {
    const { names, change, was, back } = this.step;
    const { steps, version } = await this.shared.make(names, change, was);
    this.done();
    this.offer(null);
    if (steps.length === 0) return this.tell("Nothing to change: the target has this setting already.");
    const told = `Done: ${steps.join("; ")}.`;
    if (back && "none" in back) return this.tell(`${told} ${back.none}`);
    this.tell(told);
    const now = await this.shared.see(names).catch(() => null);
    if (now?.version !== version) {
      return this.tell(`${told} Undo is not possible: another user made a change at the same moment.`);
    }
    const undo = (): Promise<void> => this.undo(back?.change ?? backTo(was), now.part);
    if (!back) return this.offer(undo, "Undo");
    this.offer(async () => {
      this.question.replaceChildren(back.question);
      this.tell("");
      this.offer(undo, "Undo now");
    }, "Undo…");
  }

  /** Undoes the change, if the part is still as the change left it. */
  private async undo(back: Change, left: unknown): Promise<void> {
    const { steps } = await this.shared.make(this.step.names, back, left);
    this.offer(null);
    this.tell(`Undone: ${steps.join("; ")}.`);
    this.done();
  }
}
