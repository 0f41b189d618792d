// browser.mjs: what tests of the page share: the browser, and what holds of every page.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

export const PATIENCE_MS = 60_000;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export function launch() {
  const executablePath = process.env["CHROMIUM"] ?? "/usr/bin/chromium";
  return chromium.launch({ executablePath, args: ["--no-sandbox"] });
}

export function hold(condition, label, found) {
  if (!condition) throw new Error(`${label}${found === undefined ? "" : `: ${JSON.stringify(found)}`}`);
  console.log(`ok   ${label}`);
}

/** It is so in one of some tries: on a busy machine there may be a pause that is none of the page's. */
export async function once(label, is_so) {
  for (let left = 5; left > 0; left -= 1) if (await is_so()) return hold(true, label);
  hold(false, label);
}

/** It takes less than this in one of some tries; `attempt` says how many milliseconds it took. */
export async function takesLess(limit, label, attempt) {
  const took = [];
  await once(label, async () => {
    took.push(Math.round(await attempt()));
    console.log(`     ${took.at(-1)} ms of at most ${limit}`);
    return took.at(-1) < limit;
  });
}

/** A page that watches `base`; what it complains of itself fails the test. */
export async function open(browser, base, wrongs) {
  const page = await browser.newPage({ viewport: { width: 1440, height: 1500 }, reducedMotion: "reduce" });
  page.setDefaultTimeout(PATIENCE_MS);
  page.on("pageerror", (error) => wrongs.push(String(error)));
  page.on("console", (line) => {
    const expected = /ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|ERR_SOCKET_NOT_CONNECTED|40[1349]|412|422|50[23]|ERR_INCOMPLETE/;
    if (line.type() === "error" && !expected.test(line.text())) wrongs.push(line.text());
  });
  page.on("request", (asked) => {
    if (!asked.url().startsWith(base) && !asked.url().startsWith("data:")) wrongs.push(`asked ${asked.url()}`);
  });
  return page;
}

/** What a person could not read, with which keys or devices. */
export async function accessible(page, label) {
  await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return violations.map((one) => [one.id, one.nodes.slice(0, 3).map((node) => node.target.join(" "))]);
  });
  hold(found.length === 0, `axe finds nothing: ${label}`, found);
  // The charts follow the window with the next second.
  await page.waitForFunction(() => document.documentElement.scrollWidth <= innerWidth);
  // A phone scrolls tables; elsewhere each shows all of its columns.
  const wide = await page.evaluate(() => [...document.querySelectorAll(".scroll")]
    .filter((one) => innerWidth >= 1280 && one.scrollWidth > one.clientWidth)
    .map((one) => [one.closest("section").querySelector("h2").textContent, one.scrollWidth, one.clientWidth]));
  const tight = await page.evaluate(() => [...document.querySelectorAll(".tile dd")].filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent));
  wide.push(...tight);
  hold(wide.length === 0, `nothing is cut off: ${label}`, wide);
}

export const tile = (page, title) => page.locator(".tile").filter({ has: page.getByText(title, { exact: true }) }).locator("dd");

/** A tile's figure is more than nothing. */
export async function rises(page, title) {
  const see = (wanted) => {
    const all = [...document.querySelectorAll(".tile")];
    const value = all.find((one) => one.querySelector("dt").textContent === wanted)?.querySelector("dd");
    return Number.parseFloat(value?.textContent ?? "") > 0;
  };
  await page.waitForFunction(see, title);
  hold(true, `${title.toLowerCase()} rise (${await tile(page, title).textContent()})`);
}
