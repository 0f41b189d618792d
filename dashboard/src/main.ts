// The page: asks the target each second, and shows what it says.

import "./style.css";
import { ask, keepToken, Locked, takeToken } from "./api";
import { Cluster } from "./cluster";
import { el } from "./dom";
import { Overview } from "./overview";
import { Page } from "./page";
import { Watch } from "./watch";
import type { About } from "./types";

const root = document.getElementById("page")!;

/** Asks for the token, and says what was wrong with the last one. */
function login(wrong: boolean): void {
  document.title = "farblock";
  const token = el("input", { type: "password", autocomplete: "off", size: 36, required: true });
  const said = wrong ? "This is not the token of this target. Without --ui-token it has a new one after each start." : "";
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
    el("p", {}, "farblock printed an address with a token when it started. Open that, or enter the token:"),
    el("label", {}, "Token ", token),
    el("button", { class: "main" }, "Open"),
    el("p", { role: "alert" }, said),
  );
  root.replaceChildren(el("main", {}, form));
  token.focus();
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
    changed: () => page.show(),
    locked: () => {
      keepToken(null);
      login(true);
    },
  });
}

addEventListener("hashchange", () => location.hash.includes("token=") && location.reload());
void begin();
