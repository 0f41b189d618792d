// told.mjs SCREENSHOTS: tests the page with fake targets, which are silent, have hostile names,
// send thousands of events, or refuse the token. Also tests a page that was suspended.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { accessible, hold, launch, memory, once, open, PATIENCE_MS, pause, rises, smooth, takesLess, tile, watching } from "./browser.mjs";
import { fake, stats, status } from "./fake.mjs";

const [screenshots] = process.argv.slice(2);
if (!screenshots) {
  console.error("usage: told.mjs SCREENSHOTS");
  process.exit(2);
}
mkdirSync(screenshots, { recursive: true });
const NQN = "nqn.2026-11.org.farblock:told";
/** The time within which the page must report a dead target. */
const WITHIN_MS = 2000;
const hosts = (count) => Array.from({ length: count }, (_, at) => `nqn.2014-08.org.example:host-${at}`);
const small = () => ({ status: status(NQN, 2, hosts(3)), hosts: hosts(3) });

async function watched(browser, target, wrongs) {
  const page = await open(browser, target.base, wrongs);
  await page.goto(`${target.base}#token=${target.token}`);
  return page;
}

const says = (page, state) => page.locator(".state", { hasText: state }).waitFor();
const alarm = (page, words) => page.getByRole("alert").getByText(words);

async function streams(browser, wrongs) {
  const target = await fake(small());
  const page = await watched(browser, target, wrongs);
  await says(page, /^live$/);
  await rises(page, "Reads per second");
  await once("with an event stream, the page does not poll", async () => {
    const asked = target.asked;
    await pause(3000);
    return target.asked === asked;
  });

  await takesLess(WITHIN_MS, "the page reports a silent target within two seconds, and its return", async () => {
    target.beats = false;
    const began = performance.now();
    await alarm(page, "The target has not answered").waitFor();
    const took = performance.now() - began;
    target.beats = true;
    await says(page, /^live$/);
    await page.locator(".log").getByText("The target answers again").first().waitFor();
    return took;
  });

  await once("the page reopens a stream that ended, without an event in the log", async () => {
    const told = await page.locator(".log li").count();
    target.cut();
    await says(page, /^live$/);
    await rises(page, "Reads per second");
    return (await page.locator(".log li").count()) === told;
  });

  target.stream = "none";
  target.cut();
  await says(page, "polling each second");
  await rises(page, "Reads per second");
  await accessible(page, "without an event stream");
  hold(true, "without an event stream, the page polls, and says so");
  await page.reload();
  await says(page, "polling each second");
  target.stream = "held";
  await page.reload();
  await says(page, "polling each second");
  await rises(page, "Reads per second");
  hold(true, "the page polls if a proxy holds the stream back");
  target.stream = "told";
  await says(page, /^live$/);
  hold(true, "the page uses the stream again when it works");

  target.token = "another";
  target.cut();
  await page.getByText("The target refused this token").waitFor();
  hold(true, "if the token is no longer valid, the page asks for another one");
  await page.close();
  target.stop();
}

/** Checks that the page shows hostile names as plain text, and that names cannot look alike. */
async function hostile(browser, wrongs) {
  const names = [
    "nqn.2014-08.org.example:<img src=x onerror=alert(1)>",
    "nqn.2014-08.org.example:\u0000\u001b[31m\u0007",
    "nqn.2014-08.org.example:\u202egnorw",
    `nqn.2014-08.org.example:${"x".repeat(200)}`,
    "nqn.2014-08.org.example:\u05d0\u05d1\u05d2-123",
    `nqn.2014-08.org.example:heap${"\u0301".repeat(60)}`,
    "nqn.2014-08.org.example:tag\u{e0041}\u3164\u00a0",
    "__proto__",
    "<script>document.title = 'broken'</script>",
  ];
  const target = await fake({ status: status(`${NQN}</title><b>`, 2, names), hosts: names });
  const page = await watched(browser, target, wrongs);
  await rises(page, "Reads per second");
  for (const host of names) {
    target.tell("host_refused", { sentence: host, host, subsystem: host, address: host, reason: host });
    target.tell(host.replace(/\n/g, ""), { sentence: host });
  }
  target.tell("host_connected", { host: names[0], subsystem: NQN, controller: 9 });
  target.tell("host_ended", { host: names[0], subsystem: NQN, controller: 9, reason: names[1] });
  await page.locator(".log").getByText(/connected to .* and left/).waitFor();
  for (const name of names.filter((name) => !name.includes("heap"))) await page.getByRole("button", { name: name.slice(-8).replace(/[\u0000-\u001f\u202e\u00a0\u3164]|\u{e0041}/gu, "\ufffd") }).first().click();
  const found = await page.evaluate(() => ({
    elements: document.querySelectorAll("#page img, #page script, #page b[onerror], #page title[x]").length,
    heaped: /\p{M}{3}/u.test(document.body.textContent),
    unseen: /[\u0000-\u0008\u000b-\u001f\u202e\u3164]|\u{e0041}/u.test(document.body.textContent),
    title: document.title,
  }));
  const order = await page.evaluate(() => {
    const cell = [...document.querySelectorAll("button.name")].find((one) => one.textContent.includes("\u05d0")).firstChild;
    const left = (at) => {
      const range = document.createRange();
      range.setStart(cell, at);
      range.setEnd(cell, at + 1);
      return range.getBoundingClientRect().left;
    };
    const at = cell.data.indexOf("\u05d0");
    return [0, 1, 2, 3, 4].every((more) => left(at + more) < left(at + more + 1));
  });
  hold(order, "right-to-left letters keep their places");
  hold(found.elements === 0 && !found.unseen && !found.heaped && found.title.startsWith("farblock"), "hostile names appear as visible plain text", found);
  await accessible(page, "hostile names");
  await page.screenshot({ path: join(screenshots, "hostile.png") });
  await page.close();
  target.stop();
}

async function crowd(browser, wrongs) {
  const all = hosts(10_000);
  const target = await fake({ status: status(NQN, 1000, all), hosts: all });
  const page = await watched(browser, target, wrongs);
  await rises(page, "Reads per second");
  await page.getByText("1 of 400").waitFor();
  await pause(3000);
  const seen = await smooth(page, "10,000 connections and 1,000 namespaces");
  hold(seen.nodes < 2000, "10,000 connections and 1,000 namespaces need few elements", seen);
  hold(seen.changes < 5 * 600, "few elements change per second", seen);
  hold(seen.heap < 150, "the heap is less than 150 MiB", seen);
  // The browser returns freed memory to the system only when it is idle.
  const until = Date.now() + PATIENCE_MS;
  let held = seen.process;
  while (held >= 150 && Date.now() < until) {
    await pause(500);
    await heap(page);
    held = memory();
  }
  hold(held < 150, "the process holds less than 150 MiB", held);
  await page.close();
  target.stop();
}

/** Compares two periods, which the test picks in all possible ways. */
async function compares(browser, wrongs) {
  const target = await fake(small());
  const page = await watched(browser, target, wrongs);
  await rises(page, "Reads per second");
  await pause(9000);
  target.speed = 3;
  await pause(9000);
  const panel = page.getByRole("region", { name: "Two periods compared", exact: true });
  await page.locator("h1").click();
  await page.keyboard.press("c");
  await panel.getByText(/In B: .*(times the|more) reads/).waitFor();
  const row = panel.locator("tr", { hasText: "Reads per second" });
  hold(/times the reads|% more reads/.test(await row.locator("td").last().textContent()), "the page compares two periods in words");
  const [was, is] = await row.locator("td").allTextContents();
  hold(was === "10.0k" && is === "30.0k", "the table shows the medians of both periods", [was, is]);
  await accessible(page, "two periods");
  await page.screenshot({ path: join(screenshots, "compare.png"), fullPage: true });
  await panel.getByRole("slider").last().focus();
  for (let press = 0; press < 9; press += 1) await page.keyboard.press("ArrowLeft");
  await panel.getByText("B does not differ from A").waitFor();
  hold(true, "keys move a period, and equal periods do not differ");
  await page.locator(".chart .plot").first().scrollIntoViewIfNeeded();
  const plot = await page.locator(".chart .plot").first().boundingBox();
  const drag = async (from, to) => {
    await page.mouse.move(plot.x + plot.width * from, plot.y + 60);
    await page.mouse.down();
    await page.mouse.move(plot.x + plot.width * to, plot.y + 60, { steps: 4 });
    await page.mouse.up();
  };
  await drag(0.5, 0.75);
  await panel.getByText("to pick B").waitFor();
  await drag(0.8, 0.99);
  await panel.getByText("to pick A").waitFor();
  await page.locator("h1").click();
  await page.keyboard.press("b");
  await panel.getByText("to pick A").waitFor();
  hold(true, "dragging and the keys a and b pick periods");
  await page.setViewportSize({ width: 390, height: 844 });
  await accessible(page, "two periods on a phone");
  await page.setViewportSize({ width: 1440, height: 1500 });
  await page.emulateMedia({ colorScheme: "dark" });
  await accessible(page, "two periods with dark colours");
  await page.locator("h1").click();
  await page.keyboard.press("c");
  await panel.waitFor({ state: "hidden" });
  await page.close();
  target.stop();
}

/** Sends 3,000 events per second. */
async function storm(browser, wrongs) {
  const target = await fake(small());
  const page = await watched(browser, target, wrongs);
  await rises(page, "Reads per second");
  let controller = 10;
  const blow = setInterval(() => {
    for (let at = 0; at < 150; at += 1) {
      const event = { host: hosts(1)[0], subsystem: NQN, controller: (controller += 1), reason: "it left" };
      target.tell("host_connected", event);
      target.tell("host_ended", event);
    }
    target.tell("lost", { count: 7 });
    target.tell("status", { ...target.status, controllers: target.status.controllers.slice(0, controller % 3) });
  }, 100);
  const seen = await watching(page, 5000);
  console.log(`     ${JSON.stringify(seen)}`);
  // On a busy machine, the page may show another state for a moment.
  await says(page, /^live$/);
  hold(true, "the page stays live during a storm of events");
  hold((await page.locator(".log li").count()) <= 200 && seen.heap < 60, "the log keeps only the newest events", seen);
  await page.locator(".log").getByText(/more short connections of hosts/).first().waitFor();
  await page.locator(".log").getByText(/7 events left out/).first().waitFor();
  clearInterval(blow);
  await page.close();
  target.stop();
}

/** Returns the size of the page's heap after a garbage collection, in MiB. */
async function heap(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("HeapProfiler.enable");
  await session.send("HeapProfiler.collectGarbage");
  // The history is in typed arrays, whose memory is outside of the heap.
  const { usedSize, backingStorageSize } = await session.send("Runtime.getHeapUsage");
  await session.detach();
  return (usedSize + backingStorageSize) / 2 ** 20;
}

/** Sets the clock of the page's machine back by an hour. The charts must continue. */
async function setBack(browser, wrongs) {
  const target = await fake(small());
  const page = await open(browser, target.base, wrongs);
  await page.addInitScript(() => {
    const now = Date.now;
    globalThis.back = 0;
    Date.now = () => now() - globalThis.back;
  });
  await page.goto(`${target.base}#token=${target.token}`);
  await rises(page, "Reads per second");
  const since = await page.locator(".hint time").textContent();
  await pause(7000);
  await page.evaluate(() => (globalThis.back = 3_600_000));
  target.speed = 3;
  await pause(7000);
  hold((await page.locator(".hint time").textContent()) === since, "setting the clock back does not move older figures", since);
  const panel = page.getByRole("region", { name: "Two periods compared", exact: true });
  await page.locator("h1").click();
  await page.keyboard.press("c");
  await panel.getByText(/In B: .*(times the|more) reads/).waitFor();
  hold(true, "newer figures come after the older ones");
  await page.close();
  target.stop();
}

/** Restarts a target many times, each time with other namespaces and hosts. */
async function restarts(browser, wrongs) {
  const target = await fake(small());
  const page = await watched(browser, target, wrongs);
  await rises(page, "Reads per second");
  let run = 0;
  const again = async (times) => {
    for (let left = times; left > 0; left -= 1) {
      run += 1;
      target.hosts = hosts(50).map((host) => `${host}-of-${run}`);
      target.status = { ...status(`${NQN}-${run}`, 50, target.hosts), pid: 1 + run };
      [target.began, target.work] = [Date.now(), 0];
      target.cut();
      await page.locator(".facts", { hasText: `process ${1 + run} ` }).waitFor();
      // The page needs a second reading to compute rates.
      target.tell("stats", target.counted());
    }
    await rises(page, "Reads per second");
    return heap(page);
  };
  const times = Number(process.env["RESTARTS"] ?? 30);
  const few = await again(10);
  const many = await again(times - 10);
  const left = await page.evaluate(() => [document.querySelectorAll("*").length, document.querySelectorAll(".log li").length]);
  console.log(`     ${few.toFixed(1)} MiB after 10 times, ${many.toFixed(1)} MiB after ${times}; elements, entries: ${left}`);
  hold(many - few < 5, "the heap does not grow with the number of restarts", [few, many]);
  hold(left[0] < 2000 && left[1] <= 200, "the page still has few elements", left);
  await says(page, /^live$/);
  await page.close();
  target.stop();
}

/** Checks that a page continues after it was hidden, or after its machine was asleep. */
async function slept(browser, wrongs) {
  const target = await fake(small());
  const page = await watched(browser, target, wrongs);
  await rises(page, "Reads per second");
  const session = await page.context().newCDPSession(page);
  await session.send("Page.setWebLifecycleState", { state: "frozen" });
  await pause(6000);
  await session.send("Page.setWebLifecycleState", { state: "active" });
  await pause(2500);
  await says(page, /^live$/);
  await rises(page, "Reads per second");
  hold((await alarm(page, /./).count()) === 0, "a page that was suspended shows no alarm");
  await page.close();
  target.stop();
}

/** Waits until the label of the chart of operations starts with these words. */
const operations = (page, words) => page.locator(`[aria-label^="Operations per second: ${words}"]`).waitFor({ state: "attached" });

/** A host with two paths leaves: first one path, then the other. No path may count as lost. */
async function leaves(browser, wrongs) {
  const [stays, goes] = hosts(2);
  const target = await fake({ status: status(NQN, 1, [stays, goes, goes]), hosts: hosts(2) });
  const page = await watched(browser, target, wrongs);
  await rises(page, "Reads per second");
  const lost = page.locator(".box.bad", { hasText: /lost at/ });
  const there = (...ids) => {
    const { controllers } = target.status;
    target.tell("status", { ...target.status, controllers: controllers.filter(({ id }) => ids.includes(id)) });
  };
  there(0, 2);
  await lost.waitFor();
  there(0);
  // Lost paths disappear after 60 s. This path must disappear earlier.
  await lost.waitFor({ state: "detached", timeout: 30_000 });
  hold(true, "a host that closed its paths one by one has lost no path");
  await page.close();
  target.stop();
}

/** Sets the clock back, and then replaces the target by another one within a second. */
async function changes(browser, wrongs) {
  const target = await fake(small());
  const page = await watched(browser, target, wrongs);
  await operations(page, "reads 10.0k");
  await page.evaluate(() => {
    const { now } = Date;
    Date.now = () => now() - 3_600_000;
  });
  target.speed = 3;
  await operations(page, "reads 30.0k");
  hold(true, "the charts continue when the clock is set back");

  await page.evaluate(() => {
    const read = document.querySelector(".tile dd");
    globalThis.shown = [];
    new MutationObserver(() => globalThis.shown.push(read.textContent)).observe(read, { childList: true, characterData: true, subtree: true });
  });
  // The other target has a long uptime and large counters.
  target.began -= 1e9;
  target.work += 1e12;
  target.speed = 2;
  target.status = { ...status(`${NQN}-another`, 3, hosts(2)), pid: 2 };
  target.hosts = hosts(2);
  target.cut();
  await page.getByRole("button", { name: /told-another$/ }).waitFor();
  await operations(page, "reads 20.0k");
  const shown = await page.evaluate(() => globalThis.shown);
  hold(shown.every((text) => !text.endsWith("M")), "the counters of another target do not appear as a burst", shown);
  hold((await page.getByRole("button", { name: NQN, exact: true }).count()) === 0, "no object of the first target is left");
  await page.close();
  target.stop();
}

/** Tests a node that never answers, a node that answers late, and a node with invalid answers. */
async function nodes(browser, wrongs) {
  const one = small();
  const target = await fake({ nodes: ["left", "dead", "slow"], hosts: [] });
  const page = await watched(browser, target, wrongs);
  let [ms, left] = [1000, one.status];
  const beat = setInterval(() => {
    const counted = stats(one.status.subsystems, one.hosts, (ms += 250));
    // Send repeatedly, because the page may connect late.
    target.tell("status", { node: "left", data: left });
    target.tell("stats", { node: "left", data: counted });
    target.tell("gone", { node: "dead", data: "Connection refused" });
  }, 250);
  await alarm(page, /^dead has not answered.*Connection refused/).waitFor();
  await page.locator(".state", { hasText: "1 of 3 live" }).waitFor();
  await rises(page, "Reads per second");
  hold(true, "the page reports a node that never answered, and shows the others");
  await page.getByText("the node has not answered yet").waitFor();
  target.tell("status", { node: "nobody", data: one.status });
  target.tell("status", { node: "slow", data: one.status });
  target.tell("stats", { node: "slow", data: stats(one.status.subsystems, one.hosts, 5000) });
  await page.locator(".state", { hasText: "2 of 3 live" }).waitFor();
  hold(true, "a slow node appears when it answers");
  const mirrored = (state) => {
    const legs = [{ name: "a.img", state }, { name: "nvme+tcp://192.0.2.9:4420/n?ns=1", state }];
    const subsystems = one.status.subsystems.map((subsystem) => ({ ...subsystem, namespaces: [{ ...subsystem.namespaces[0], legs }] }));
    return { ...one.status, subsystems };
  };
  left = mirrored("in_sync");
  target.tell("status", { node: "slow", data: mirrored("out") });
  await page.locator(".box", { hasText: "192.0.2.9" }).waitFor();
  await page.locator(".box", { hasText: "a.img" }).nth(1).waitFor();
  const bad = (name) => page.locator(".box.bad", { hasText: name }).count();
  hold((await bad("a.img")) === 1 && (await bad("192.0.2.9")) === 1, "local legs of two nodes have two boxes, and a common remote leg has one");
  await accessible(page, "a cluster with a dead node");
  const host = (name, more) => ({ name, iops: 5000, latency_us: 900, is_done: false, failed: 0, lost: 0, ...more });
  const fleet = { plan: "hci-12", phase: "4k random read", part: "run 1 of 3", hosts: [host("hosts on node 1"), host("hosts on <b>", { failed: 3, paths: [1, 2] })] };
  target.tell("fleet", { node: "17", data: fleet });
  await page.getByText("4k random read · run 1 of 3 · 10.0k IOPS").waitFor();
  target.tell("fleet", { node: "17", data: { ...fleet, part: "run 2 of 3" } });
  await page.getByText("run 2 of 3").waitFor();
  hold((await page.locator(".log").getByText("4k random read").count()) === 1, "the log has a line for each phase of the fleet, not for each part");
  await page.locator("tr", { hasText: "hosts on <b>" }).getByText("1 of 2").waitFor();
  await accessible(page, "a running fleet");
  await page.screenshot({ path: join(screenshots, "fleet.png"), fullPage: true });
  target.tell("fleet", { node: "17", data: { ...fleet, failed: "hosts on node 1: it is gone" } });
  await page.locator(".log").getByText("Fleet hci-12 has failed: hosts on node 1: it is gone").waitFor();
  target.tell("fleet_gone", { node: "17", data: null });
  await page.getByText("4k random read ·").waitFor({ state: "detached" });
  hold(true, "a fleet disappears when it has ended");
  clearInterval(beat);
  await page.close();
  target.stop();
}

/** Starts a cluster whose nodes send their status once, and their counters each second. */
async function clustered(browser, wrongs, all) {
  const target = await fake({ nodes: Object.keys(all), hosts: [] });
  const page = await watched(browser, target, wrongs);
  await page.locator("h1").waitFor();
  const told = (name) => target.tell("status", { node: name, data: all[name].status });
  const began = Date.now() - 60_000;
  const count = () => {
    const ms = Date.now() - began;
    for (const [node, one] of Object.entries(all)) if (!one.gone) target.tell("stats", { node, data: stats(one.status.subsystems, one.hosts, ms) });
  };
  // Send repeatedly, because the page may connect late.
  const until = Date.now() + PATIENCE_MS;
  while (!/^live$/.test((await page.locator(".state").textContent()) ?? "") && Date.now() < until) {
    Object.keys(all).forEach(told);
    count();
    await pause(500);
  }
  await says(page, /^live$/);
  const beat = setInterval(count, 1000);
  const end = async () => {
    clearInterval(beat);
    await page.close();
    target.stop();
  };
  return { target, page, told, end };
}

const table = (page, title) => page.locator("section.panel").filter({ has: page.getByRole("heading", { name: title, exact: true }) });

/** Checks that an object of several nodes is one row, with the sum of the nodes' figures. */
async function across(browser, wrongs) {
  const own = (nqn) => ({ ...status(nqn, 1, []), pid: 1 });
  const both = status(NQN, 2, hosts(3));
  const right = { ...both, subsystems: [...both.subsystems, ...own(`${NQN}-right`).subsystems] };
  const all = { left: { status: both, hosts: hosts(3) }, right: { status: right, hosts: hosts(3) } };
  const { target, page, told, end } = await clustered(browser, wrongs, all);
  const namespaces = table(page, "Namespaces");
  const shared = namespaces.locator("tbody tr").filter({ hasText: /^1…?\S*told(?!-)/ });
  const thousands = async (cell) => {
    const text = (await cell.textContent()) ?? "";
    return Number.parseFloat(text.replace(",", "")) * (text.includes("k") ? 1000 : 1);
  };
  await shared.getByText("left, right").waitFor();
  hold((await namespaces.locator("tbody tr").count()) === 3, "an object of two nodes has one row");
  // Each node reports 1,500 I/Os per second for this namespace.
  await once("the row shows the sum of both nodes", async () => {
    await pause(1100);
    const iops = await thousands(shared.locator("td").nth(2));
    return iops > 2400 && iops < 3600;
  });
  await shared.getByRole("button").click();
  await page.locator(".scope", { hasText: `namespace 1 of ${NQN}` }).waitFor();
  await once("the tiles show the sum for the chosen row", async () => {
    await pause(1100);
    const reads = await thousands(tile(page, "Reads per second"));
    return reads > 1600 && reads < 2400;
  });
  hold((await shared.getByRole("button").getAttribute("aria-pressed")) === "true", "it is marked");
  await namespaces.locator("tbody tr").filter({ hasText: "told-right" }).getByRole("button").click();
  await page.locator(".scope", { hasText: `${NQN}-right` }).waitFor();
  await table(page, "Hosts").getByRole("button", { name: hosts(1)[0] }).click();
  await page.locator(".scope", { hasText: `host ${hosts(1)[0]}` }).waitFor();
  await rises(page, "Reads per second");
  await table(page, "Subsystems").getByRole("button", { name: /told$/ }).focus();
  await page.keyboard.press("Enter");
  await page.locator(".scope", { hasText: `subsystem ${NQN}` }).waitFor();
  hold(true, "a namespace of one node, a host and a subsystem can be chosen too");
  all.right.gone = true;
  target.tell("gone", { node: "right", data: "Connection refused" });
  await page.locator(".state", { hasText: "1 of 2 live" }).waitFor();
  await once("without one node, the row shows the figures of the other", async () => {
    await pause(1100);
    const iops = await thousands(shared.locator("td").nth(2));
    return iops > 1200 && iops < 1800;
  });
  all.right.gone = false;
  told("right");
  await says(page, /^live$/);
  for (const [name, width, colorScheme] of [["light", 1280, "light"], ["dark", 1280, "dark"], ["phone", 390, "light"]]) {
    await page.setViewportSize({ width, height: 1500 });
    await page.emulateMedia({ colorScheme });
    await page.waitForFunction((wanted) => innerWidth === wanted, width);
    await accessible(page, `tables of a cluster, ${name}`);
    await page.screenshot({ path: join(screenshots, `across-${name}.png`), fullPage: true });
  }
  await end();
}

/** Shows mirrors, and the results of a verify. */
async function verifies(browser, wrongs) {
  const one = status(NQN, 1, hosts(1));
  const [near, far] = ["a.img", "nvme+tcp://192.0.2.9:4420/n?ns=1"];
  const mirrored = (more, legs = [[near, "in_sync"], [far, "in_sync"]]) => {
    const mirror = { dirty_bytes: 0, copied_bytes: 0, copy_bytes_per_second: 0, verifying: false, verified_bytes: 0, uncompared_bytes: 0, unread_legs: [], differing_bytes: 0, differences: [], verifies: 0, ...more };
    const namespace = { ...one.subsystems[0].namespaces[0], mirror, legs: legs.map(([name, state]) => ({ name, state })) };
    return { ...one, subsystems: [{ ...one.subsystems[0], namespaces: [namespace] }] };
  };
  const target = await fake({ status: mirrored({}), hosts: hosts(1) });
  const page = await watched(browser, target, wrongs);
  const row = table(page, "Mirrors").locator("tbody tr");
  const tell = (...how) => {
    target.status = mirrored(...how);
    target.tell("status", target.status);
  };
  await row.getByText("2 in sync").waitFor();
  await row.getByText("not yet").waitFor();
  tell({ verifying: true, verified_bytes: 2 ** 29 });
  await row.getByText("verifies, 50 %").waitFor();
  await row.getByText("512 MiB").waitFor();
  hold(true, "the table shows the progress of a verify");
  tell({ verifies: 1, verified_bytes: 2 ** 30 - 2 ** 20, uncompared_bytes: 2 ** 20, unread_legs: [far], differing_bytes: 8192, differences: [{ lba: 77, blocks: 16 }] });
  await row.getByText("verified", { exact: true }).waitFor();
  await row.getByText("8 KiB").waitFor();
  await row.getByText("1 MiB", { exact: true }).waitFor();
  await alarm(page, /differ within 8 KiB, first in 16 blocks of 512 B from 77 on/).waitFor();
  await alarm(page, /1 MiB were not compared, because reads failed on .*192\.0\.2\.9/).waitFor();
  hold(true, "the table and the alarms show the results of a verify");
  await accessible(page, "the results of a verify");
  await page.screenshot({ path: join(screenshots, "verify.png"), fullPage: true });
  tell({ dirty_bytes: 2 ** 26 }, [[near, "in_sync"], [far, "out"]]);
  await row.getByText("1 in sync, 1 out").waitFor();
  await row.getByText("64 MiB").waitFor();
  hold((await page.getByRole("alert").getByText(/differ within/).count()) === 0, "the table shows a degraded mirror, and its missing data");
  await page.close();
  target.stop();
}

/** Shows disks that are attached on the page's machine. */
async function attached(browser, wrongs) {
  const { target, page, end } = await clustered(browser, wrongs, { left: small(), right: { ...small(), status: { ...small().status, listening: ["127.0.0.2:4420"] } } });
  const url = (address) => `nvme+tcp://${address}/${NQN}?ns=1`;
  const path = (address, more) => ({ url: url(address), state: "live", since_seconds: 70, address: `${address}:4420`, access: "optimized", reconnects: 0, ...more });
  const lost = { state: "reconnecting", since_seconds: 7, address: undefined, reconnects: 2, error: "Connection refused <b>" };
  const disk = (state, trouble, ...paths) => ({ name: "fb0", use: "/dev/loop3", state, trouble, paths });
  const tell = (...disks) => target.tell("attached", { node: "", data: disks });
  hold((await page.getByText("Paths of attached disks").count()) === 0, "without a report of attached disks, there is no table of them");
  tell(disk("live", undefined, path("127.0.0.1"), path("127.0.0.2", { access: "non-optimized" })));
  const rows = table(page, "Paths of attached disks").locator("tbody tr");
  await rows.nth(1).getByText("non-optimized").waitFor();
  const picture = table(page, "Attached disks of this machine");
  for (const words of ["fb0", "127.0.0.1:4420", "127.0.0.2:4420", "left", "right"]) await picture.locator(".box text").getByText(words, { exact: true }).waitFor();
  tell(disk("degraded", "Connection refused <b>", path("127.0.0.1"), path("127.0.0.2", lost)));
  await alarm(page, /^Attached disk fb0 is degraded, for \d+ s: Connection refused <b>/).waitFor();
  await picture.locator(".box.bad", { hasText: "127.0.0.2" }).getByText("reconnecting", { exact: true }).waitFor();
  await rows.nth(1).getByText("reconnecting", { exact: true }).waitFor();
  await rows.nth(1).getByText("Connection refused <b>").waitFor();
  await page.locator(".log").getByText("Attached disk fb0 is degraded: Connection refused <b>.").waitFor();
  hold((await picture.locator(".wire").count()) === 4, "a lost path is marked and reported, and still leads to its node");
  await accessible(page, "attached disks");
  await page.screenshot({ path: join(screenshots, "attached.png"), fullPage: true });
  await page.setViewportSize({ width: 390, height: 844 });
  await accessible(page, "attached disks on a phone");
  tell();
  await page.locator(".log").getByText("Disk fb0 is no longer attached.").waitFor();
  hold((await page.getByRole("alert").getByText(/fb0/).count()) === 0, "a detached disk has no alarm");
  await end();
}

/** Shows four nodes, each with 2,500 hosts and 250 namespaces. */
async function crowds(browser, wrongs) {
  const node = (at) => {
    const all = hosts(10_000).slice(2_500 * at, 2_500 * (at + 1));
    return { status: { ...status(`${NQN}-${at}`, 250, all), listening: [`127.0.0.${at + 1}:4420`] }, hosts: all };
  };
  const { page, end } = await clustered(browser, wrongs, { a: node(0), b: node(1), c: node(2), d: node(3) });
  await rises(page, "Reads per second");
  await table(page, "Namespaces").getByText("page 1 of 40").waitFor();
  await table(page, "Hosts").getByText("page 1 of 400").waitFor();
  await pause(3000);
  const seen = await smooth(page, "10,000 connections and 1,000 namespaces on four nodes", 50);
  hold(seen.nodes < 2500, "the four nodes need few elements", seen);
  hold(seen.heap < 150, "the heap is less than 150 MiB", seen);
  await table(page, "Hosts").getByRole("searchbox").fill("host-9999");
  await table(page, "Hosts").getByText("1 of 10000").waitFor();
  await table(page, "Namespaces").getByRole("searchbox").fill("zzz");
  await table(page, "Namespaces").getByText("0 of 1000").waitFor();
  hold(true, "the filters select hosts and namespaces");
  await end();
}

const browser = await launch();
const wrongs = [];
try {
  const only = process.env["ONLY"];
  for (const test of [streams, hostile, compares, storm, restarts, slept, setBack, leaves, changes, nodes, across, verifies, attached, crowd, crowds]) {
    if (!only || only.split(",").includes(test.name)) await test(browser, wrongs);
  }
  hold(wrongs.length === 0, "the page has no errors, and sends no requests to other servers", wrongs);
} catch (error) {
  console.error("errors of the page: ", wrongs);
  throw error;
} finally {
  await browser.close();
}
process.exit(0);
