// page.mjs BINARY SCREENSHOTS: the page in a real browser, on a real target under a real load.
//
// Everything is waited for; what takes too long fails with what was there instead.
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [binary, screenshots] = process.argv.slice(2);
if (!screenshots) {
  console.error("usage: page.mjs BINARY SCREENSHOTS");
  process.exit(2);
}
const PATIENCE_MS = 60_000;
const TOKEN = "a-token-for-tests-of-the-page";
const NQN = "nqn.2026-11.org.farblock:dashboard";
const OTHER = "nqn.2026-11.org.farblock:archive";
const HOST = "nqn.2014-08.org.nvmexpress:uuid:01234567-89ab-cdef-0123-456789abcdef";
const KEYED = HOST.replace("cdef", "cdea");
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const work = mkdtempSync(join(tmpdir(), "farblock-dashboard."));
const children = new Set();
mkdirSync(screenshots, { recursive: true });
process.on("exit", () => {
  for (const child of children) child.kill("SIGKILL");
  rmSync(work, { recursive: true, force: true });
});
for (const [signal, code] of [["SIGINT", 130], ["SIGTERM", 143]]) process.on(signal, () => process.exit(code));

function hold(condition, label, found) {
  if (!condition) throw new Error(`${label}${found === undefined ? "" : `: ${JSON.stringify(found)}`}`);
  console.log(`ok   ${label}`);
}

function start(args) {
  const child = spawn(binary, args, { cwd: work, stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, XDG_RUNTIME_DIR: work } });
  children.add(child);
  child.words = "";
  child.stderr.on("data", (text) => (child.words += text));
  child.on("exit", () => children.delete(child));
  return child;
}

/** A target; what it says when it listens is `said`. */
function serve(...args) {
  return begin("serve", "--json", "--no-control", ...args);
}

/** Something that says one line of JSON when it is there. */
async function begin(...args) {
  const child = start(args);
  const lines = createInterface({ input: child.stdout });
  const ended = once(child, "exit").then(() => Promise.reject(new Error(`${args[0]} ended: ${child.words}`)));
  ended.catch(() => undefined);
  const [line] = await Promise.race([once(lines, "line"), ended]);
  child.said = JSON.parse(line);
  return child;
}

async function stop(child, signal = "SIGTERM") {
  if (!children.has(child)) return;
  const gone = once(child, "exit");
  child.kill(signal);
  await gone;
}

/** Mixed reads and writes until it is killed. */
function load(address, nqn, nsid) {
  const url = `nvme+tcp://${address}/${nqn}?ns=${nsid}`;
  const how = "--rw randrw --bs 4k --iodepth 4 --runtime 600 --ramp-time 0 --rate-iops 400 --allow-writes";
  return start(["bench", url, ...how.split(" "), "--quiet"]);
}

/** Without a browser, as anybody may ask. */
function ask(base, method, path, headers, body) {
  return new Promise((done, failed) => {
    const { hostname, port } = new URL(base);
    const asked = request({ hostname, port, method, path, headers }, (answer) => {
      let body = "";
      answer.on("data", (data) => (body += data));
      answer.on("end", () => done({ status: answer.statusCode, headers: answer.headers, body }));
    });
    asked.on("error", failed);
    asked.end(body && JSON.stringify(body));
  });
}

const bearer = { Authorization: `Bearer ${TOKEN}` };

async function strangers(base) {
  const page = await ask(base, "GET", "/", {});
  hold(page.status === 200, "the page is there for everybody", page.status);
  const policy = page.headers["content-security-policy"];
  hold(policy?.startsWith("default-src 'none'") && !policy.includes("unsafe"), "its policy is strict", policy);
  hold(page.headers["access-control-allow-origin"] === undefined, "other pages get nothing");
  for (const path of ["/v1/status", "/v1/state", "/metrics", "/ui.json", "/nothing"]) {
    for (const wrong of [{}, { Authorization: `Bearer ${TOKEN}x` }, { Authorization: TOKEN }]) {
      const { status } = await ask(base, "GET", path, wrong);
      if (status !== 401) throw new Error(`${path} answers ${status} to ${JSON.stringify(wrong)}`);
    }
  }
  hold(true, "nothing else is, without the token");
  const named = await ask(base, "GET", "/v1/status", { ...bearer, Host: "evil.example" });
  hold(named.status === 421, "a name that leads here is not answered", named.status);
  const seen = await ask(base, "GET", "/v1/status", bearer);
  hold(seen.status === 200, "whoever has it sees the target", seen.status);
  const changed = await ask(base, "DELETE", `/v1/subsystems/${NQN}`, bearer);
  hold(changed.status === 403 && changed.body.includes("--ui-steer"), "and changes nothing", changed);
}

/** What a person could not read, with which keys or devices. */
async function accessible(page, label) {
  await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return violations.map((one) => [one.id, one.nodes.slice(0, 3).map((node) => node.target.join(" "))]);
  });
  hold(found.length === 0, `axe finds nothing: ${label}`, found);
  // The charts follow the window with the next second.
  await page.waitForFunction(() => document.documentElement.scrollWidth <= innerWidth);
  console.log(`ok   nothing is cut off: ${label}`);
}

const tile = (page, title) => page.locator(".tile").filter({ has: page.getByText(title, { exact: true }) }).locator("dd");

/** A tile's figure is more than nothing. */
async function rises(page, title) {
  const see = (wanted) => {
    const all = [...document.querySelectorAll(".tile")];
    const value = all.find((one) => one.querySelector("dt").textContent === wanted)?.querySelector("dd");
    return Number.parseFloat(value?.textContent ?? "") > 0;
  };
  await page.waitForFunction(see, title);
  hold(true, `${title.toLowerCase()} rise (${await tile(page, title).textContent()})`);
}

async function looks(page) {
  const sizes = { light: [1440, 1500], dark: [1440, 1500], phone: [390, 844] };
  for (const [name, [width, height]] of Object.entries(sizes)) {
    await page.setViewportSize({ width, height });
    await page.emulateMedia({ colorScheme: name === "dark" ? "dark" : "light" });
    await page.waitForFunction((wanted) => innerWidth === wanted, width);
    await accessible(page, name);
    await page.screenshot({ path: join(screenshots, `${name}.png`), fullPage: true });
  }
  await page.setViewportSize({ width: 1440, height: 1500 });
}

async function keys(page) {
  const pressed = (name) => page.getByRole("button", { name, exact: true }).getAttribute("aria-pressed");
  await page.locator("h1").click();
  await page.keyboard.press("2");
  hold((await pressed("15 min")) === "true", "a key chooses how far back");
  await page.keyboard.press("Space");
  hold((await pressed("Pause")) === "true", "the space bar pauses");
  await page.keyboard.press("Space");
  await page.keyboard.press("1");
  const plot = await page.locator(".plot").first().boundingBox();
  await page.mouse.move(plot.x + plot.width * 0.6, plot.y + 60);
  await page.mouse.down();
  await page.mouse.move(plot.x + plot.width * 0.9, plot.y + 60, { steps: 4 });
  await page.mouse.up();
  hold((await pressed("5 min")) === "false", "dragging over a chart looks closer");
  await page.mouse.dblclick(plot.x + plot.width / 2, plot.y + 60);
  hold((await pressed("5 min")) === "true", "a double click comes back");
  await page.getByRole("button", { name: NQN, exact: true }).click();
  hold((await page.locator(".scope").textContent()).includes(NQN), "one subsystem can be looked at");
  await page.getByRole("button", { name: "Show the whole target" }).click();
}

/** What the target is told to hold back, and how hosts are to reach it. */
async function limits(page, base, address) {
  const json = { ...bearer, "Content-Type": "application/merge-patch+json" };
  const changes = [
    [`/v1/subsystems/${NQN}/namespaces/2`, { limits: { iops: 100 } }],
    [`/v1/listeners/${address}`, { ana: "non-optimized" }],
  ];
  for (const [path, change] of changes) {
    const { status, body } = await ask(base, "PATCH", path, json, change);
    if (status !== 200) throw new Error(`${path}: ${status} ${body}`);
  }
  await page.locator("tr", { hasText: "second.img" }).getByText("its limit, 100 IOPS").waitFor();
  hold(true, "a namespace that its limit holds back says so");
  await page.locator(".box").getByText("non-optimized").first().waitFor();
  hold(true, "how hosts are told to reach it (ANA) is drawn");
  await ask(base, "PATCH", changes[1][0], json, { ana: "optimized" });
  await ask(base, "PATCH", changes[0][0], json, { limits: null });
}

async function steers(page, base) {
  const row = page.locator("tr", { hasText: OTHER }).filter({ hasText: "Change…" });
  await row.getByRole("button", { name: "Change…" }).click();
  await page.getByRole("button", { name: "Make it read-only…" }).click();
  await accessible(page, "a question before a change");
  await page.getByRole("button", { name: "Make it read-only", exact: true }).click();
  await page.getByText("Done: ").waitFor();
  await row.getByText("read only").waitFor();
  await page.getByRole("button", { name: "Undo" }).click();
  await row.getByText("read, write").waitFor();
  hold((await page.getByRole("button", { name: "Undo" }).count()) === 0, "a change is undone, once");
  await page.getByRole("button", { name: "Close" }).click();
  await row.getByRole("button", { name: "Change…" }).click();
  await page.getByRole("button", { name: "Make it read-only…" }).click();
  await page.getByRole("button", { name: "Make it read-only", exact: true }).click();
  await row.getByText("read only").waitFor();
  await page.getByRole("button", { name: "Close" }).click();
  const state = JSON.parse((await ask(base, "GET", "/v1/state", bearer)).body);
  hold(state.subsystems[OTHER].namespaces[1].read_only, "a namespace is made read-only");
  await row.getByRole("button", { name: "Change…" }).click();
  await page.getByLabel("Size in GiB").fill("0.0625");
  await page.getByRole("button", { name: "Resize…" }).click();
  await page.getByRole("button", { name: "Resize", exact: true }).click();
  await page.getByText(/^(Done|Nothing was changed)/).waitFor();
  await page.getByRole("button", { name: "Close" }).click();
  const hosts = page.locator("tr", { hasText: OTHER }).getByRole("button", { name: "Hosts…" });
  await hosts.click();
  await page.getByRole("button", { name: `Disallow ${HOST}` }).click();
  await page.getByRole("button", { name: "Disallow", exact: true }).click();
  await page.getByText("Done: ").waitFor();
  await page.getByRole("button", { name: "Close" }).click();
  await page.locator(".log").getByText(/may not connect to/).waitFor();
  hold(true, "a host is disallowed, and the page tells of it");
  await hosts.click();
  await page.getByRole("button", { name: `Disallow ${KEYED}` }).click();
  await page.getByRole("button", { name: "Disallow", exact: true }).click();
  await page.getByText("Done: ").waitFor();
  await page.getByRole("button", { name: "Undo" }).click();
  await page.getByRole("button", { name: "Undo" }).waitFor({ state: "hidden" });
  await page.getByRole("button", { name: "Close" }).click();
  const { hosts: listed } = JSON.parse((await ask(base, "GET", "/v1/state", bearer)).body).subsystems[OTHER];
  hold(listed[KEYED]?.dhchap_key?.endsWith("host.key"), "who is allowed again has to prove who it is still", listed);
}

async function killed(page, target, again) {
  await page.evaluate(() => {
    const ask = globalThis.fetch;
    let failures = 0;
    const counted = (error) => {
      failures += 1;
      throw error;
    };
    globalThis.fetch = (...how) => ask(...how).catch(counted);
    const told = () => (globalThis.failuresWhenTold ??= failures);
    new MutationObserver(told).observe(document.querySelector(".troubles"), { childList: true });
  });
  await stop(target, "SIGKILL");
  const began = performance.now();
  await page.getByRole("alert").getByText("The target does not answer").waitFor();
  const took = Math.round(performance.now() - began);
  const failures = await page.evaluate(() => globalThis.failuresWhenTold);
  hold(failures >= 1 && failures <= 4, "when nobody answers two questions, each asked twice, it says so", failures);
  console.log(`     that was ${took} ms after the target was killed`);
  await page.screenshot({ path: join(screenshots, "gone.png") });
  await accessible(page, "a target that is gone");
  await page.route("**/v1/state", (route) => route.abort("connectionrefused"));
  const back = await again();
  await page.locator(".state", { hasText: "live" }).waitFor();
  await page.locator(".log").getByText("The target answers again").waitFor();
  await page.locator(".log").getByText("The target was started anew").waitFor();
  hold((await page.getByRole("alert").getByText("does not answer").count()) === 0, "it goes on when the target is back, with what answers");
  await page.unroute("**/v1/state");
  return back;
}

/** A page that watches `base`; what it complains of itself fails the test. */
async function open(browser, base, wrongs) {
  const page = await browser.newPage({ viewport: { width: 1440, height: 1500 }, reducedMotion: "reduce" });
  page.setDefaultTimeout(PATIENCE_MS);
  page.on("pageerror", (error) => wrongs.push(String(error)));
  page.on("console", (line) => {
    const expected = /ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|ERR_SOCKET_NOT_CONNECTED|40[139]|ERR_INCOMPLETE/;
    if (line.type() === "error" && !expected.test(line.text())) wrongs.push(line.text());
  });
  page.on("request", (asked) => {
    if (!asked.url().startsWith(base) && !asked.url().startsWith("data:")) wrongs.push(`asked ${asked.url()}`);
  });
  return page;
}

async function login(page, base) {
  await page.goto(base);
  await page.getByLabel("Token").fill("a-wrong-token-of-somebody");
  await page.getByRole("button", { name: "Open" }).click();
  await page.getByText("This is not the token of this target").waitFor();
  await accessible(page, "the door");
  hold(true, "a wrong token is refused, in words");
  await page.goto("about:blank");
  await page.goto(`${base}#token=${TOKEN}`);
  await page.locator(".state", { hasText: "live" }).waitFor();
  hold(!page.url().includes(TOKEN), "the right one opens, and is in no address any more", page.url());
}

async function one(browser, wrongs) {
  writeFileSync(join(work, "token"), `${TOKEN}\n`, { mode: 0o600 });
  for (const [name, size] of [["first.img", 64 << 20], ["second.img", 32 << 20]]) {
    writeFileSync(join(work, name), "");
    truncateSync(join(work, name), size);
  }
  writeFileSync(
    join(work, "two.toml"),
    `[[subsystems]]\nnqn = "${NQN}"\nallow_any_host = true\n` +
      '[[subsystems.namespaces]]\npath = "first.img"\n[[subsystems.namespaces]]\npath = "second.img"\n' +
      `[[subsystems]]\nnqn = "${OTHER}"\nallowed_hosts = ["${HOST}"]\n` +
      `[[subsystems.hosts]]\nnqn = "${KEYED}"\ndhchap_key = "host.key"\n` +
      '[[subsystems.namespaces]]\npath = "null:1GiB"\n',
  );
  await once(start(["keys", "new", "--output", "host.key"]), "exit");
  const common = ["--config", "two.toml", "--ui-token", "token"];
  const looked = await serve(...common, "--listen", "127.0.0.1:0", "--ui", "127.0.0.1:0");
  hold(!JSON.stringify(looked.said).includes(TOKEN), "a token from a file is not printed");
  await strangers(looked.said.dashboard);
  const watched = await open(browser, looked.said.dashboard, wrongs);
  await login(watched, looked.said.dashboard);
  hold((await watched.getByRole("button", { name: "Change…" }).count()) === 0, "without --ui-steer nothing is offered");
  await watched.close();
  await stop(looked);

  let target = await serve(...common, "--listen", "127.0.0.1:0", "--ui", "127.0.0.1:0", "--ui-steer");
  const base = target.said.dashboard;
  const [address] = target.said.listening;
  const page = await open(browser, base, wrongs);
  await login(page, base);
  const loads = [load(address, NQN, 1), load(address, NQN, 2)];
  for (const title of ["Reads per second", "Writes per second", "Read", "Written", "Hosts", "Median latency", "99th percentile", "Processors busy"]) {
    await rises(page, title);
  }
  hold((await page.locator(".chart:visible").count()) === 4, "four charts are drawn");
  const row = page.locator("tr", { hasText: "first.img" });
  await row.locator("td").nth(2).getByText(/^[1-9]/).waitFor();
  hold(true, "the load is told of its namespace");
  await page.getByRole("button", { name: "core 0" }).waitFor();
  await page.locator(".wire.flows").first().waitFor();
  hold((await page.locator(".box").count()) >= 6, "hosts, controllers, subsystems and namespaces are drawn");
  await page.locator(".log").getByText(/connected to/).first().waitFor();
  const stranger = start(["id", `nvme+tcp://${address}/${OTHER}`]);
  await once(stranger, "exit");
  await page.getByRole("alert").getByText(/refused: the host may not connect/).waitFor();
  hold(true, "a host that may not connect is told of");
  await page.waitForTimeout(Number(process.env["WATCH_MS"] ?? 4000));
  await looks(page);
  await keys(page);
  await limits(page, base, address);
  await steers(page, base);
  hold(/PATCH .*the dashboard, from 127|the dashboard, from 127.*PATCH/.test(target.words), "the log says who changed what", target.words);
  const door = new URL(base);
  target = await killed(page, target, () =>
    serve(...common, "--listen", address, "--ui", door.host, "--ui-steer"),
  );
  for (const one of loads) await stop(one, "SIGKILL");
  const more = load(address, NQN, 1);
  await rises(page, "Reads per second");
  await stop(more, "SIGKILL");
  await page.close();
  await stop(target);
}

/** What the page does each second with a thousand namespaces is bounded by what it shows. */
async function many(browser, wrongs) {
  const count = 1000;
  const namespaces = '[[subsystems.namespaces]]\npath = "null:1GiB"\n'.repeat(count);
  writeFileSync(join(work, "many.toml"), `[[subsystems]]\nnqn = "${NQN}"\nallow_any_host = true\n${namespaces}`);
  const target = await serve("--config", "many.toml", "--listen", "127.0.0.1:0", "--ui", "127.0.0.1:0");
  hold(/#token=[0-9a-f]{32}$/.test(target.said.dashboard), "an address with a new token is printed");
  const base = target.said.dashboard.split("#")[0];
  const page = await open(browser, base, wrongs);
  await page.goto(target.said.dashboard);
  await page.getByText(`page 1 of ${count / 25}`).waitFor();
  const loading = load(target.said.listening[0], NQN, 7);
  await rises(page, "Reads per second");
  const seen = await page.evaluate(async () => {
    let changes = 0;
    let long = 0;
    new PerformanceObserver((list) => (long += list.getEntries().length)).observe({ type: "longtask" });
    new MutationObserver((all) => (changes += all.length)).observe(document.body, {
      subtree: true,
      childList: true,
      characterData: true,
      attributes: true,
    });
    await new Promise((done) => setTimeout(done, 5000));
    const heap = performance.memory?.usedJSHeapSize ?? 0;
    return { nodes: document.querySelectorAll("*").length, changes, long, heap };
  });
  hold(seen.nodes < 1500, `${count} namespaces are ${seen.nodes} elements`, seen);
  hold(seen.changes < 5 * 400, `${seen.changes} of them changed in five seconds`, seen);
  console.log(`     ${seen.long} tasks over 50 ms meanwhile, ${(seen.heap / 2 ** 20).toFixed(0)} MiB of heap`);
  await page.getByLabel("Filter namespaces").fill("zzz");
  await page.getByText(`0 of ${count}`).waitFor();
  hold(true, "they are filtered");
  await stop(loading, "SIGKILL");
  await page.close();
  await stop(target);
}

/** A mirror and two paths that come and go: what the README shows. */
async function demonstration(browser, wrongs) {
  const shown = start(["demo", "--every", "4"]);
  const lines = [];
  createInterface({ input: shown.stdout }).on("line", (line) => lines.push(line));
  const said = async (words) => {
    const until = Date.now() + PATIENCE_MS;
    while (!lines.some((line) => line.includes(words))) {
      if (Date.now() > until || !children.has(shown)) throw new Error(`demo: no ${words}: ${lines.join("\n")} ${shown.words}`);
      await new Promise((done) => setTimeout(done, 50));
    }
  };
  await said("dashboard at ");
  const url = lines.find((line) => line.startsWith("dashboard at ")).split(" ")[2];
  const page = await open(browser, url.split("#")[0], wrongs);
  await page.setViewportSize({ width: 1280, height: 1180 });
  await page.goto(url);
  await page.locator(".box", { hasText: "in sync" }).nth(1).waitFor();
  hold(true, "the legs of a mirror are drawn");
  await page.locator(".log").getByText(/lost its path to .* and goes on/).waitFor();
  hold(true, "a path that is lost is told of");
  await page.getByRole("alert").getByText(/goes on without its leg/).waitFor();
  await page.locator(".box.bad", { hasText: "out" }).waitFor();
  hold(true, "a leg that is out is an alarm, and drawn as one");
  await page.screenshot({ path: join(screenshots, "demo.png") });
  await accessible(page, "a mirror without a leg");
  await page.locator(".log").getByText(/is in sync again/).waitFor();
  // A frame later than the log, perhaps; and the next leg may be out by now.
  await page.getByRole("alert").getByText(/goes on without its leg/).first().waitFor({ state: "hidden" });
  hold(true, "and none when it is back");
  await page.close();
  await stop(shown, "SIGINT");
  hold(lines.some((line) => line.includes("nothing is lost")), "the demonstration lost nothing", lines);
}

/** Two targets on one page; one of them is killed and comes back. */
async function cluster(browser, wrongs) {
  const left = await begin("serve", "--json", "--control", "left.sock", "--listen", "127.0.0.1:0", "--nqn", NQN, "mem:64MiB");
  const right = (address, door) =>
    serve("--listen", address, "--ui", door, "--ui-token", "token", "--nqn", OTHER, "mem:64MiB");
  let other = await right("127.0.0.1:0", "127.0.0.1:0");
  const [address] = other.said.listening;
  const door = new URL(other.said.dashboard).host;
  const shown = await begin("ui", "--json", "--node", "left=./left.sock", "--node", `right=${door}`, "--node-token", "token");
  const base = shown.said.dashboard.split("#")[0];
  for (const path of ["/ui.json", "/v1/nodes", "/v1/status"]) {
    const { status } = await ask(base, "GET", path, bearer);
    if (status !== 401) throw new Error(`${path} answers ${status} to another token`);
  }
  hold(true, "the cluster is nobody's without the token");
  const page = await open(browser, base, wrongs);
  await page.setViewportSize({ width: 1280, height: 1100 });
  await page.goto(shown.said.dashboard);
  await page.locator(".state", { hasText: /^live$/ }).waitFor();
  const loads = [load(left.said.listening[0], NQN, 1), load(address, OTHER, 1)];
  const row = (name) => page.locator("tr").filter({ has: page.getByRole("button", { name, exact: true }) });
  for (const name of ["left", "right"]) await row(name).locator("td").nth(2).getByText(/^[1-9]/).waitFor();
  await rises(page, "Reads per second");
  hold((await tile(page, "Nodes").textContent()) === "2 of 2", "both nodes are on one page, under load");
  await page.waitForTimeout(Number(process.env["WATCH_MS"] ?? 4000));
  await accessible(page, "a cluster");
  await page.screenshot({ path: join(screenshots, "cluster.png") });
  await page.setViewportSize({ width: 390, height: 844 });
  await accessible(page, "a cluster on a phone");
  await page.setViewportSize({ width: 1280, height: 1100 });
  let answers = 0;
  page.on("response", (answer) => (answers += answer.url().includes("/v1/nodes") ? 1 : 0));
  await stop(other, "SIGKILL");
  const killed = performance.now();
  answers = 0;
  await page.getByRole("alert").getByText(/^right does not answer/).waitFor();
  hold(answers <= 2, "a node that is killed is told of with the next answer or the one after", answers);
  console.log(`     that was ${Math.round(performance.now() - killed)} ms after it was killed`);
  await row("right").getByText(/not answering/).waitFor();
  await page.locator(".state", { hasText: "1 of 2 live" }).waitFor();
  await row("left").locator("td").nth(2).getByText(/^[1-9]/).waitFor();
  await accessible(page, "a cluster without one of its nodes");
  await page.screenshot({ path: join(screenshots, "cluster-lost.png") });
  other = await right(address, door);
  await page.locator(".state", { hasText: /^live$/ }).waitFor();
  hold((await page.getByRole("alert").getByText(/right does not answer/).count()) === 0, "and when it is back, that, too");
  await page.locator(".log").getByText(/^.*right: The target answers again/).waitFor();
  await row("left").getByRole("button", { name: "Open" }).click();
  // A straight line has no height, which a browser does not call visible.
  await page.locator(".wire.flows").first().waitFor({ state: "attached" });
  await page.getByRole("heading", { name: "left" }).waitFor();
  await accessible(page, "one node of a cluster");
  await page.getByRole("button", { name: "Back to the cluster" }).click();
  await row("right").getByText("live").waitFor();
  hold(true, "a node has a page of its own, and a way back");
  await page.close();
  for (const one of loads) await stop(one, "SIGKILL");
  for (const one of [shown, left, other]) await stop(one);
}

function refused(label, status, sentence, ...options) {
  const args = ["serve", "mem:1MiB", "--no-control", "--listen", "127.0.0.1:0", ...options];
  const ended = spawnSync(binary, args, { encoding: "utf8", cwd: work, timeout: PATIENCE_MS });
  hold(ended.status === status && sentence.test(ended.stderr), label, [ended.status, ended.stderr]);
}
refused("other machines only with a token in a file", 2, /--ui-token/, "--ui", "0.0.0.0:0");
writeFileSync(join(work, "open"), `${TOKEN}\n`, { mode: 0o644 });
refused("a token that others can read is refused", 1, /chmod 600/, "--ui", "127.0.0.1:0", "--ui-token", "open");
writeFileSync(join(work, "short"), "secret\n", { mode: 0o600 });
refused("a token that can be guessed is refused", 1, /20 to 256/, "--ui", "127.0.0.1:0", "--ui-token", "short");
const executablePath = process.env["CHROMIUM"] ?? "/usr/bin/chromium";
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
try {
  const wrongs = [];
  await one(browser, wrongs);
  await many(browser, wrongs);
  await demonstration(browser, wrongs);
  await cluster(browser, wrongs);
  hold(wrongs.length === 0, "the page breaks no rule of its own", wrongs);
} finally {
  await browser.close();
}
process.exit(0);
