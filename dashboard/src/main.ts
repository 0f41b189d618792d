// Starts the page: gets the token, connects to the target, and shows its state.

import "./style.css";
import { ask, keepToken, Locked, takeToken } from "./api";
import { Cluster } from "./cluster";
import { el } from "./dom";
import { Overview } from "./overview";
import { Page } from "./page";
import { Watch } from "./watch";
import type { About } from "./types";

const root = document.getElementById("page")!;

/** Shows the form for the token. `wrong`: the target refused the last token. */
function login(wrong: boolean): void {
  document.title = "farblock";
  // An open dialog would cover the form.
  for (const box of document.querySelectorAll("dialog")) box.close();
  const token = el("input", { type: "password", autocomplete: "off", size: 36, required: true });
  const said = wrong ? "The target refused this token. Without --ui-token, the target creates a new token at each start." : "";
  const form = el(
    "form",
    {
      class: "login panel",
      submit: (event) => {
        event.preventDefault();
        keepToken(token.value.trim());
        void begin();
      },
    },
    el("h1", {}, "farblock"),
    el("p", {}, "farblock printed an address with a token when it started. Open that address, or enter the token:"),
    el("label", {}, "Token ", token),
    el("button", { class: "main" }, "Open"),
    el("p", { role: "alert" }, said),
  );
  root.replaceChildren(el("main", {}, form));
  token.focus();
}

/** The shortest time between two updates of the page. */
const SHOWN_EVERY_MS = 200;

function seldom(show: () => void): () => void {
  let waits = false;
  let last = -SHOWN_EVERY_MS;
  const now = (): void => {
    waits = false;
    last = performance.now();
    show();
  };
  return () => {
    if (waits) return;
    waits = true;
    setTimeout(now, Math.max(0, last + SHOWN_EVERY_MS - performance.now()));
  };
}

async function begin(): Promise<void> {
  const given = takeToken();
  if (given === null) return login(false);
  let about: About;
  try {
    about = await ask<About>("/ui.json");
  } catch (error) {
    if (error instanceof Locked) {
      keepToken(null);
      return login(true);
    }
    root.replaceChildren(el("main", {}, el("p", { role: "alert" }, "The target does not answer; trying again.")));
    setTimeout(() => void begin(), 1000);
    return;
  }
  const cluster = about.nodes ? new Cluster(about.nodes) : null;
  const watch = cluster ?? new Watch();
  const page = cluster ? new Overview(about, cluster) : new Page(about, watch as Watch);
  root.replaceChildren(page.node);
  watch.start({
    changed: seldom(() => page.show()),
    locked: () => {
      keepToken(null);
      login(true);
    },
  });
}

addEventListener("hashchange", () => location.hash.includes("token=") && location.reload());
void begin();
