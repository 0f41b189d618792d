// browser.mjs: shared code of the page's tests, which starts the browser and checks a page's speed
// and accessibility.
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

export const PATIENCE_MS = 60_000;
/**
 * A page is smooth with at least this many of 60 frames, and at most this much work, per second.
 */
const LEAST_FRAMES = 58;
const MOST_SCRIPT_MS = 200;
export const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export function launch() {
  const executablePath = process.env["CHROMIUM"] ?? "/usr/bin/chromium";
  return chromium.launch({ executablePath, args: ["--no-sandbox"] });
}

export function hold(condition, label, found) {
  if (!condition) throw new Error(`${label}${found === undefined ? "" : `: ${JSON.stringify(found)}`}`);
  console.log(`ok   ${label}`);
}

/** Checks that `is_so` is true in one of five attempts, since a busy machine may delay the page. */
export async function once(label, is_so) {
  for (let left = 5; left > 0; left -= 1) if (await is_so()) return hold(true, label);
  hold(false, label);
}

/** Checks that one of five attempts takes less than `limit`. `attempt` returns its milliseconds. */
export async function takesLess(limit, label, attempt) {
  const took = [];
  await once(label, async () => {
    took.push(Math.round(await attempt()));
    console.log(`     ${took.at(-1)} ms of at most ${limit}`);
    return took.at(-1) < limit;
  });
}

/** Opens a page at `base`. Errors of the page fail the test. */
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

/** Checks that the page is accessible, also for keyboards, screen readers and small screens. */
export async function accessible(page, label) {
  await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return violations.map((one) => [one.id, one.nodes.slice(0, 3).map((node) => node.target.join(" "))]);
  });
  hold(found.length === 0, `axe finds no violations: ${label}`, found);
  // The charts adapt to the window within a second.
  await page.waitForFunction(() => document.documentElement.scrollWidth <= innerWidth);
  // Tables may scroll on a phone. On a wide screen they must show all columns.
  const wide = await page.evaluate(() => [...document.querySelectorAll(".scroll")]
    .filter((one) => innerWidth >= 1280 && one.scrollWidth > one.clientWidth)
    .map((one) => [one.closest("section").querySelector("h2").textContent, one.scrollWidth, one.clientWidth]));
  const tight = await page.evaluate(() => [...document.querySelectorAll(".tile dd")].filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent));
  wide.push(...tight);
  hold(wide.length === 0, `nothing is cut off: ${label}`, wide);
}

export const tile = (page, title) => page.locator(".tile").filter({ has: page.getByText(title, { exact: true }) }).locator("dd");

/** Waits until a tile's figure is above zero. */
export async function rises(page, title) {
  const see = (wanted) => {
    const all = [...document.querySelectorAll(".tile")];
    const value = all.find((one) => one.querySelector("dt").textContent === wanted)?.querySelector("dd");
    return Number.parseFloat(value?.textContent ?? "") > 0;
  };
  await page.waitForFunction(see, title);
  hold(true, `${title.toLowerCase()} rise (${await tile(page, title).textContent()})`);
}

/**
 * Returns the private memory of the page's process in MiB: the largest of all renderer processes.
 */
export function memory() {
  let most = 0;
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      if (!readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("--type=renderer")) continue;
      const own = readFileSync(`/proc/${pid}/smaps_rollup`, "utf8").match(/Private_Dirty: +(\d+)/);
      most = Math.max(most, Number(own?.[1] ?? 0) / 1024);
    } catch {
      // The process has exited meanwhile.
    }
  }
  return Math.round(most);
}

/** Returns the total milliseconds of scripts, styles and layout. */
async function scripted(session) {
  const { metrics } = await session.send("Performance.getMetrics");
  const of = (name) => metrics.find((one) => one.name === name).value;
  return 1000 * (of("ScriptDuration") + of("LayoutDuration") + of("RecalcStyleDuration"));
}

/** Measures the page for `ms` milliseconds: its frames, changes, work and memory. */
export async function watching(page, ms) {
  const seen = await page.evaluate(async (ms) => {
    let [frames, long, longest, changes] = [0, 0, 0, 0];
    const watcher = new MutationObserver((all) => (changes += all.length));
    watcher.observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
    new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) [long, longest] = [long + 1, Math.max(longest, duration)];
    }).observe({ type: "longtask" });
    const until = performance.now() + ms;
    const frame = () => {
      frames += 1;
      if (performance.now() < until) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    await new Promise((done) => setTimeout(done, ms));
    watcher.disconnect();
    return { changes, frames: Math.round(frames / (ms / 1000)), long, longest: Math.round(longest), nodes: document.querySelectorAll("*").length };
  }, ms);
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable");
  const before = await scripted(session);
  await pause(3000);
  const script = Math.round(((await scripted(session)) - before) / 3);
  await session.send("HeapProfiler.enable");
  await session.send("HeapProfiler.collectGarbage");
  const { usedSize } = await session.send("Runtime.getHeapUsage");
  await session.detach();
  return { ...seen, script, heap: Math.round(usedSize / 2 ** 20), process: memory() };
}

/** Checks that the page is smooth in one of five attempts. Returns that measurement. */
export function smooth(page, what, frames = LEAST_FRAMES) {
  return works(page, `${what}: at least ${frames} frames per second, and`, frames);
}

/**
 * Checks that in one of five attempts the page uses little processor time, and draws at least
 * `frames` per second.
 */
export async function works(page, what, frames = 0) {
  let seen;
  await once(`${what}${frames > 0 ? "" : ":"} less than ${MOST_SCRIPT_MS} ms of work per second`, async () => {
    seen = await watching(page, 5000);
    console.log(`     ${JSON.stringify(seen)}`);
    return seen.frames >= frames && seen.script < MOST_SCRIPT_MS;
  });
  return seen;
}
