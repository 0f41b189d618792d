// page.mjs BINARY SCREENSHOTS: tests the page in a real browser, with a real target under load.
//
// Each check waits for its condition. After a timeout it fails, and prints the actual state.
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { closeSync, mkdirSync, mkdtempSync, openSync, rmSync, truncateSync, writeFileSync, writeSync } from "node:fs";
import { request } from "node:http";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { accessible, hold, launch, open, PATIENCE_MS, pause, rises, takesLess, tile, works } from "./browser.mjs";
import { swarm } from "./hosts.mjs";

const [binary, screenshots] = process.argv.slice(2);
if (!screenshots) {
  console.error("usage: page.mjs BINARY SCREENSHOTS");
  process.exit(2);
}
const TOKEN = "a-token-for-tests-of-the-page";
const NQN = "nqn.2026-11.org.farblock:dashboard";
const OTHER = "nqn.2026-11.org.farblock:archive";
const HOST = "nqn.2014-08.org.nvmexpress:uuid:01234567-89ab-cdef-0123-456789abcdef";
const KEYED = HOST.replace("cdef", "cdea");
/** The number of hosts, with two connections each. The limit of open files also limits it. */
const FILES = Number(spawnSync("sh", ["-c", "ulimit -Hn"], { encoding: "utf8" }).stdout) || Infinity;
const SWARM = Math.min(5000, Math.floor((FILES - 1000) / 2));
/** The time within which the page must report a dead target. */
const WITHIN_MS = 2000;
/** The limit of the page's heap. */
const MOST_HEAP_BYTES = 150 * 2 ** 20;
const work = mkdtempSync(join(tmpdir(), "farblock-dashboard."));
const children = new Set();
mkdirSync(screenshots, { recursive: true });
writeFileSync(join(work, "token"), `${TOKEN}\n`, { mode: 0o600 });
process.on("exit", () => {
  for (const child of children) child.kill("SIGKILL");
  rmSync(work, { recursive: true, force: true });
});
for (const [signal, code] of [["SIGINT", 130], ["SIGTERM", 143]]) process.on(signal, () => process.exit(code));

function start(args) {
  // As root, the sockets would be in /run, beside other programs' sockets.
  const env = { ...process.env, FARBLOCK_RUNTIME_DIR: join(work, "farblock") };
  const child = spawn(binary, args, { cwd: work, stdio: ["ignore", "pipe", "pipe"], env });
  children.add(child);
  child.words = "";
  child.stderr.on("data", (text) => (child.words += text));
  child.on("exit", () => children.delete(child));
  return child;
}

/** Starts a target. `said` is the JSON that it prints when it listens. */
function serve(...args) {
  return begin("serve", "--json", "--no-control", ...args);
}

/** Starts a program that prints a line of JSON when it is ready. */
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

/** Starts mixed reads and writes, until the test kills the process. */
function load(address, nqn, nsid) {
  const url = `nvme+tcp://${address}/${nqn}?ns=${nsid}`;
  const how = "--rw randrw --bs 4k --iodepth 4 --runtime 600 --ramp-time 0 --rate-iops 400 --allow-writes";
  return start(["bench", url, ...how.split(" "), "--quiet"]);
}

/** Returns an address on which no program listens. */
async function free() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  return `127.0.0.1:${port}`;
}

/** Sends an HTTP request without the browser. */
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
  hold(page.status === 200, "the page needs no token", page.status);
  const policy = page.headers["content-security-policy"];
  hold(policy?.startsWith("default-src 'none'") && !policy.includes("unsafe"), "the page's Content-Security-Policy is strict", policy);
  hold(page.headers["access-control-allow-origin"] === undefined, "the page has no CORS headers");
  for (const path of ["/v1/status", "/v1/state", "/metrics", "/ui.json", "/history.json", "/nothing"]) {
    for (const wrong of [{}, { Authorization: `Bearer ${TOKEN}x` }, { Authorization: TOKEN }]) {
      const { status } = await ask(base, "GET", path, wrong);
      if (status !== 401) throw new Error(`${path} answers ${status} to ${JSON.stringify(wrong)}`);
    }
  }
  hold(true, "every other path needs the token");
  const named = await ask(base, "GET", "/v1/status", { ...bearer, Host: "evil.example" });
  hold(named.status === 421, "a request with a foreign Host header is refused", named.status);
  const seen = await ask(base, "GET", "/v1/status", bearer);
  hold(seen.status === 200, "the token gives access to the status", seen.status);
  const changed = await ask(base, "DELETE", `/v1/subsystems/${NQN}`, bearer);
  hold(changed.status === 403 && changed.body.includes("--ui-steer"), "without --ui-steer, the token allows no changes", changed);
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
  hold((await pressed("15 min")) === "true", "the key 2 chooses the range of 15 minutes");
  await page.keyboard.press("Space");
  hold((await pressed("Pause")) === "true", "the space bar pauses");
  await page.keyboard.press("Space");
  await page.keyboard.press("1");
  const plot = await page.locator(".plot").first().boundingBox();
  await page.mouse.move(plot.x + plot.width * 0.6, plot.y + 60);
  await page.mouse.down();
  await page.mouse.move(plot.x + plot.width * 0.9, plot.y + 60, { steps: 4 });
  await page.mouse.up();
  hold((await pressed("5 min")) === "false", "dragging over a chart zooms in");
  await page.mouse.dblclick(plot.x + plot.width / 2, plot.y + 60);
  hold((await pressed("5 min")) === "true", "a double click zooms out");
  await parts(page);
}

/** Returns the figure of a tile as a number: 1.2k is 1200. */
const figure = async (page, title) => {
  const text = await tile(page, title).textContent();
  return Number.parseFloat(text) * (text.includes("k") ? 1000 : 1);
};

/** Chooses an object of each kind, and checks that tiles and charts show its figures. */
async function parts(page) {
  const row = (name) => page.locator("tr").filter({ has: page.getByRole("button", { name, exact: true }) });
  const chosen = async (button, words) => {
    await button.click();
    await page.locator(".scope", { hasText: words }).waitFor();
    // The chart's label must state the latest figures: "–" means that there is none yet.
    await page.locator('.plot[aria-label^="Operations per second: reads "]:not([aria-label*="–"])').waitFor({ state: "attached" });
    const all = await page.locator("tr.chosen").count();
    hold(all === 1, `the charts show a ${words}, and its row is marked`, all);
  };
  const idle = page.getByRole("button", { name: OTHER, exact: true });
  await idle.click();
  await page.locator(".scope", { hasText: OTHER }).waitFor();
  await page.waitForFunction(() => [...document.querySelectorAll(".tile")].find((one) => one.querySelector("dt").textContent === "Reads per second").querySelector("dd").textContent === "0");
  hold(true, "the tiles of an idle subsystem show zero while the target is busy");
  await chosen(page.getByRole("button", { name: NQN, exact: true }), "subsystem");
  await chosen(page.locator("tr", { hasText: "first.img" }).getByRole("button", { name: "1", exact: true }), "namespace");
  const [one, both] = [await figure(page, "Reads per second"), Number.parseFloat(await row(NQN).locator("td").nth(1).textContent())];
  hold(one > 0 && both > 0, "the namespace and its subsystem have figures", [one, both]);
  await chosen(panel(page, "Hosts").locator("tbody button.name").first(), "host");
  await chosen(page.getByRole("button", { name: "core 0" }), "core");
  await page.getByRole("button", { name: "Show the whole target" }).click();
  await page.locator(".scope", { hasText: "Whole target" }).waitFor();
}

/** Checks that the page shows limits and ANA states. */
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
  hold(true, "the row of a namespace names the limit that slows it");
  await page.locator(".box").getByText("non-optimized").first().waitFor();
  hold(true, "the picture shows the ANA state of a listener");
  await ask(base, "PATCH", changes[1][0], json, { ana: "optimized" });
  await ask(base, "PATCH", changes[0][0], json, { limits: null });
}

/** Makes and undoes a change with the keyboard only. The focus must never get lost. */
async function byKeys(page, row) {
  const at = (name) => page.waitForFunction((name) => document.activeElement?.textContent === name, name);
  const next = async (name, key = "Tab") => {
    await page.keyboard.press(key);
    await at(name);
  };
  await row.getByRole("button", { name: "Change…" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Make it read-only…" }).focus();
  await next("Make it read-only", "Enter");
  await page.keyboard.press("Enter");
  await page.getByRole("status").getByText(/^Done: /).waitFor();
  await page.getByRole("button", { name: "Undo", exact: true }).waitFor();
  await next("Undo");
  await page.keyboard.press("Enter");
  await page.getByRole("status").getByText(/^Undone: /).waitFor();
  await next("Close");
  await next("Change…", "Escape");
  hold(true, "a change and its undo need only the keyboard");
}

/** Confirms a change, and waits for its outcome. */
async function answer(page, verb, outcome = /^Done: /) {
  await page.getByRole("button", { name: verb, exact: true }).click();
  await page.getByRole("status").getByText(outcome).waitFor();
}

const panel = (page, title) => page.locator("section.panel").filter({ has: page.getByRole("heading", { name: title, exact: true }) });
const close = (page) => page.getByRole("button", { name: "Close" }).click();

async function steers(page, base) {
  const json = { ...bearer, "Content-Type": "application/merge-patch+json" };
  const other = `/v1/subsystems/${OTHER}/namespaces/1`;
  const second = `/v1/subsystems/${NQN}/namespaces/2`;
  const state = async () => JSON.parse((await ask(base, "GET", "/v1/state", bearer)).body).subsystems;
  const changed = async (path, body) => {
    const answer = await ask(base, "PATCH", path, json, body);
    if (answer.status !== 200) throw new Error(`${path}: ${answer.body}`);
  };
  const row = page.locator("tr", { hasText: OTHER }).filter({ hasText: "null:1GiB" });
  const change = async (row) => row.getByRole("button", { name: "Change…" }).click();
  const protect = async () => {
    await change(row);
    await page.getByRole("button", { name: "Make it read-only…" }).click();
  };
  await byKeys(page, row);
  await protect();
  await accessible(page, "the question before a change");
  await answer(page, "Make it read-only");
  await row.getByText("read only").waitFor();
  // A change of another object must not prevent the undo.
  await changed(second, { limits: { iops: 1000000 } });
  await answer(page, "Undo", /^Undone: /);
  await row.getByText("read, write").waitFor();
  hold((await page.getByRole("button", { name: "Undo" }).count()) === 0, "a change can be undone only once");
  await close(page);

  await protect();
  await changed(other, { limits: { iops: 77 } });
  await answer(page, "Make it read-only", /another user has changed this object meanwhile/);
  hold(!(await state())[OTHER].namespaces[1].read_only, "of two concurrent changes of an object, the second is refused");
  await close(page);
  await protect();
  await answer(page, "Make it read-only");
  await changed(other, { limits: { iops: 78 } });
  await answer(page, "Undo", /Nothing was changed: another user/);
  const left = (await state())[OTHER].namespaces[1];
  hold(left.read_only && left.limits.iops === 78, "the undo of an object that somebody changed since is refused", left);
  await close(page);
  await sizes(page, base, state);
  await comes(page, state);
  await masks(page, state);
  await hostsOf(page, state);
}

/** Extends and shrinks a namespace, and undoes both. */
async function sizes(page, base, state) {
  const row = page.locator("tr", { hasText: "second.img" });
  const bytes = async () => JSON.parse((await ask(base, "GET", "/v1/status", bearer)).body).subsystems.find((one) => one.nqn === NQN).namespaces[1].bytes;
  // The rows are sorted by load, which is the same for both. So the rows may swap under the
  // pointer.
  const opened = async () => {
    await row.getByRole("button", { name: "Change…" }).click();
    await page.getByLabel("Size in GiB").waitFor();
    return page.getByRole("heading", { name: "Namespace 2", exact: true }).isVisible();
  };
  const resize = async (gib) => {
    while (!(await opened())) await close(page);
    await page.getByLabel("Size in GiB").fill(gib);
    await page.getByRole("button", { name: "Resize…" }).click();
    await answer(page, "Resize");
  };
  await resize("0.0625");
  hold((await bytes()) === 64 << 20, "a namespace is extended");
  await page.getByRole("button", { name: "Undo…" }).click();
  await page.getByText("Resize it to 32 MiB again?").waitFor();
  await answer(page, "Undo now", /^Undone: /);
  hold((await bytes()) === 32 << 20, "undo asks before it shrinks a namespace, and restores its size", await bytes());
  await close(page);
  const { size: before } = (await state())[NQN].namespaces[2];
  await resize("0.015625");
  hold((await bytes()) === 16 << 20, "a namespace is shrunk", await bytes());
  await answer(page, "Undo", /^Undone: /);
  const { size } = (await state())[NQN].namespaces[2];
  hold((await bytes()) === 32 << 20 && size === before, "undo restores the size and the document", [await bytes(), size, before]);
  await close(page);
}

/** Adds, limits and removes namespaces and subsystems. */
async function comes(page, state) {
  const subsystems = panel(page, "Subsystems");
  const of = (nqn) => subsystems.locator("tr", { hasText: nqn.slice(-10) }).getByRole("button", { name: "Change…" });
  await of(OTHER).click();
  await page.getByText("Add a namespace").click();
  await accessible(page, "the dialog of a subsystem");
  await page.screenshot({ path: join(screenshots, "steer.png") });
  await page.getByLabel("Stored in").fill("mem:2MiB");
  await page.getByRole("button", { name: "Add…" }).last().click();
  await answer(page, "Add");
  hold((await state())[OTHER].namespaces[2].path === "mem:2MiB", "a namespace is added");
  await answer(page, "Undo", /^Undone: /);
  hold((await state())[OTHER].namespaces[2] === undefined, "undo removes the added namespace");
  await close(page);
  await of(OTHER).click();
  await page.getByText("Add a namespace").click();
  await page.getByLabel("Stored in").fill("/nonexistent/disk.img");
  await page.getByRole("button", { name: "Add…" }).last().click();
  await answer(page, "Add", /^Nothing was changed: .*nonexistent/);
  hold(true, "a failed addition reports the reason");
  await close(page);

  const row = page.locator("tr", { hasText: "null:1GiB" });
  const uuid = async () => (await state())[OTHER].namespaces[1];
  const was = await uuid();
  await row.getByRole("button", { name: "Change…" }).click();
  await page.getByText("Limits", { exact: true }).click();
  await page.getByLabel("I/Os per second").fill("50");
  await page.getByLabel("MiB read per second").fill("1.5");
  await page.getByRole("button", { name: "Limit…", exact: true }).click();
  await page.getByText(/to 50 IOPS, 1.5 MiB\/s read\?/).waitFor();
  await answer(page, "Limit");
  const { limits } = await uuid();
  hold(limits.iops === 50 && limits.read_bytes === 1.5 * 2 ** 20, "a namespace is limited", limits);
  await answer(page, "Undo", /^Undone: /);
  hold(JSON.stringify(await uuid()) === JSON.stringify(was), "undo restores the limits of the namespace", await uuid());
  await close(page);
  await row.getByRole("button", { name: "Change…" }).click();
  await page.getByRole("button", { name: "Remove…" }).click();
  await answer(page, "Remove");
  await row.waitFor({ state: "detached" });
  await answer(page, "Undo", /^Undone: /);
  await row.waitFor();
  hold(JSON.stringify(await uuid()) === JSON.stringify(was), "undo restores a namespace");
  await close(page);

  await subsystems.getByRole("button", { name: "Add…", exact: true }).click();
  await page.getByLabel("Its NQN").fill(`${NQN}-new`);
  await page.getByRole("button", { name: "Add…" }).last().click();
  await answer(page, "Add");
  hold((await state())[`${NQN}-new`].allow_any_host === false, "a subsystem is added");
  await close(page);
  await subsystems.locator("tr", { hasText: "dashboard-new" }).getByRole("button", { name: "Change…" }).click();
  await page.getByRole("button", { name: "Remove the subsystem…" }).click();
  await answer(page, "Remove");
  hold((await state())[`${NQN}-new`] === undefined, "a subsystem is removed");
  await close(page);
}

/** Changes the hosts that see a namespace. */
async function masks(page, state) {
  const row = page.locator("tr", { hasText: "null:1GiB" });
  await row.getByRole("button", { name: "Change…" }).click();
  await page.getByText("Visibility", { exact: true }).click();
  await page.getByLabel(/only these/).fill(HOST);
  await page.getByRole("button", { name: "Change visibility…" }).click();
  await answer(page, "Change visibility");
  hold((await state())[OTHER].namespaces[1].visible_to?.[0] === HOST, "a namespace is visible to one host");
  await answer(page, "Undo", /^Undone: /);
  hold((await state())[OTHER].namespaces[1].visible_to === undefined, "undo shows it to all hosts");
  await close(page);
}

async function hostsOf(page, state) {
  const hosts = panel(page, "Subsystems").locator("tr", { hasText: "archive" }).getByRole("button", { name: "Change…" });
  await hosts.click();
  await page.getByText(`Limits of …${HOST.slice(-39)}`).click();
  const fields = page.locator("li", { hasText: HOST });
  await fields.getByLabel("MiB written per second").fill("3");
  await fields.getByLabel("Weight on a full core").fill("300");
  await page.getByRole("button", { name: `Limit ${HOST}` }).click();
  await answer(page, "Limit");
  const { limits } = (await state())[OTHER].hosts[HOST];
  hold(limits.write_bytes === 3 << 20 && limits.weight === 300, "a host is limited", limits);
  await answer(page, "Undo", /^Undone: /);
  hold((await state())[OTHER].hosts[HOST].limits === undefined, "undo removes the limit");
  await close(page);
  await hosts.click();
  await page.getByRole("button", { name: `Disallow ${HOST}` }).click();
  await answer(page, "Disallow");
  await close(page);
  await page.locator(".log").getByText(/may no longer connect to/).waitFor();
  hold(true, "a host is disallowed, and the log reports it");
  await hosts.click();
  await page.getByRole("button", { name: `Disallow ${KEYED}` }).click();
  await answer(page, "Disallow");
  await answer(page, "Undo", /^Undone: /);
  await close(page);
  const { hosts: listed } = (await state())[OTHER];
  hold(listed[KEYED]?.dhchap_key?.endsWith("host.key"), "undo restores a disallowed host with its key", listed);
  const connected = panel(page, "Hosts").locator("tbody tr").first();
  await connected.getByRole("button", { name: "Change…" }).click();
  await page.getByText("Any host may connect: a disconnected host").waitFor();
  await accessible(page, "the dialog of a connected host");
  await page.getByRole("button", { name: "Allow only the connected hosts…" }).click();
  await answer(page, "Allow only these hosts");
  await close(page);
  const only = (await state())[NQN];
  const [host, ...more] = Object.keys(only.hosts);
  hold(!only.allow_any_host && host && more.length === 0, "a subsystem for any host can be limited to the connected hosts", only.hosts);
  await connected.getByRole("button", { name: "Change…" }).click();
  await page.getByText(/^Limits of/).click();
  await accessible(page, "the limits of a host");
  await page.getByLabel("I/Os per second").fill("30");
  await page.getByRole("button", { name: `Limit ${host}` }).click();
  await answer(page, "Limit");
  await close(page);
  await page.locator("tr", { hasText: "first.img" }).getByText("a limit of its host").waitFor();
  hold(true, "the row of a namespace names the limit of its host");
  await connected.getByRole("button", { name: "Change…" }).click();
  await page.getByRole("button", { name: `Disallow ${host}` }).click();
  await answer(page, "Disallow");
  await panel(page, "Hosts").getByText("No host is connected.").waitFor();
  await answer(page, "Undo", /^Undone: /);
  await close(page);
  hold((await state())[NQN].hosts[host].limits.iops === 30, "undo restores a disallowed host with its limits");
  await panel(page, "Subsystems").locator("tr", { hasText: "dashboard" }).getByRole("button", { name: "Change…" }).click();
  await page.getByRole("button", { name: "Let any host connect…" }).click();
  await answer(page, "Let any host connect");
  await close(page);
  hold((await state())[NQN].allow_any_host, "any host may connect again");
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
  await page.getByRole("alert").getByText("The target has not answered").waitFor();
  const failures = await page.evaluate(() => globalThis.failuresWhenTold);
  hold(failures >= 1 && failures <= 4, "an alarm appears after at most four failed requests", failures);
  await page.screenshot({ path: join(screenshots, "gone.png") });
  await accessible(page, "a dead target");
  await page.route("**/v1/state", (route) => route.abort("connectionrefused"));
  // On a busy machine, the log may have this line from an earlier delay. So count the lines.
  const answers = page.locator(".log").getByText("The target answers again");
  const before = await answers.count();
  const back = await again();
  await page.locator(".state", { hasText: "live" }).waitFor();
  await answers.nth(before).waitFor();
  await page.locator(".log").getByText("The target restarted").waitFor();
  hold((await page.getByRole("alert").getByText("has not answered").count()) === 0, "the alarm ends when the target is back, even if /v1/state fails");
  await page.unroute("**/v1/state");
  return back;
}

/** Kills and restarts a target repeatedly. Returns the last target. */
async function soon(page, target, again) {
  await takesLess(WITHIN_MS, "the page reports a killed target within two seconds", async () => {
    await stop(target, "SIGKILL");
    const killed = performance.now();
    await page.getByRole("alert").getByText("The target has not answered").waitFor();
    const took = performance.now() - killed;
    target = await again();
    await page.locator(".state", { hasText: "live" }).waitFor();
    return took;
  });
  return target;
}

async function login(page, base) {
  await page.goto(base);
  await page.getByLabel("Token").fill("a-wrong-token-of-somebody");
  await page.getByRole("button", { name: "Open" }).click();
  await page.getByText("The target refused this token").waitFor();
  await accessible(page, "the form for the token");
  hold(true, "the page reports a wrong token");
  await page.goto("about:blank");
  await page.goto(`${base}#token=${TOKEN}`);
  await page.locator(".state", { hasText: /^live$/ }).waitFor();
  hold(!page.url().includes(TOKEN), "the page removes the token from its URL", page.url());
}

/** Checks that a page that opens later shows the earlier history. */
async function before(browser, base, wrongs, url) {
  const token = { Authorization: `Bearer ${url.split("token=")[1]}` };
  const history = async () => JSON.parse((await ask(base, "GET", "/history.json", token)).body);
  const until = Date.now() + PATIENCE_MS;
  while (((await history()).levels[0]?.series[0].length ?? 0) < 5) {
    if (Date.now() > until) throw new Error("the server has kept no history");
    await new Promise((done) => setTimeout(done, 200));
  }
  const opened = Date.now();
  const page = await open(browser, base, wrongs);
  await page.goto(url);
  await page.locator(".state", { hasText: /^live$/ }).waitFor();
  const [{ newest, series }] = (await history()).levels;
  const since = 1000 * (newest - series[0].length + 1);
  // Times have whole seconds, and come from two clocks that are read one after the other.
  await page.waitForFunction((since) => Math.abs(Date.parse(document.querySelector(".hint time").dateTime) - since) <= 2000, since);
  hold(since < opened - 2000, "a new page shows the history from before it was opened", [since, opened]);
  // The earlier history is in the middle of the chart by now, the present at its end.
  await page.waitForFunction(() => {
    const canvas = document.querySelector(".chart canvas");
    const { data } = canvas.getContext("2d").getImageData(canvas.width / 2, 0, canvas.width / 2, canvas.height * 0.8);
    // The line for reads is blue.
    let blue = 0;
    for (let at = 0; at < data.length; at += 4) blue += data[at + 3] > 200 && data[at + 2] > data[at] + 60 ? 1 : 0;
    return blue > 50;
  });
  hold(true, "the charts of this page draw the earlier history");
  await page.close();
}

async function one(browser, wrongs) {
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
  hold((await watched.getByRole("button", { name: "Change…" }).count()) === 0, "without --ui-steer, the page offers no changes");
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
  // A chart without a scale has no line. Missing figures must not remove the scale.
  const drawn = () => [...document.querySelectorAll(".chart canvas")].every((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(canvas.width / 5, 0, canvas.width / 5, canvas.height * 0.7);
    return data.some((value) => value > 0);
  });
  await page.waitForFunction(drawn);
  hold(true, "all charts have a scale");
  const row = page.locator("tr", { hasText: "first.img" });
  await row.locator("td").nth(2).getByText(/^[1-9]/).waitFor();
  hold(true, "the row of the namespace shows the load");
  await page.getByRole("button", { name: "core 0" }).waitFor();
  await page.locator(".wire.flows").first().waitFor();
  hold((await page.locator(".box").count()) >= 6, "hosts, controllers, subsystems and namespaces are drawn");
  await page.locator(".log").getByText(/connected to/).first().waitFor();
  const stranger = start(["id", `nvme+tcp://${address}/${OTHER}`]);
  await once(stranger, "exit");
  await page.getByRole("alert").getByText(/refused: the host may not connect/).waitFor();
  hold(true, "an alarm reports a host that may not connect");
  await page.waitForTimeout(Number(process.env["WATCH_MS"] ?? 4000));
  await looks(page);
  await keys(page);
  await limits(page, base, address);
  await steers(page, base);
  hold(/PATCH .*the dashboard, from 127|the dashboard, from 127.*PATCH/.test(target.words), "the target's log says who changed what", target.words);
  const door = new URL(base);
  const again = () => serve(...common, "--listen", address, "--ui", door.host, "--ui-steer");
  target = await killed(page, target, again);
  target = await soon(page, target, again);
  for (const one of loads) await stop(one, "SIGKILL");
  const more = load(address, NQN, 1);
  await rises(page, "Reads per second");
  await before(browser, base, wrongs, `${base}#token=${TOKEN}`);
  await stop(more, "SIGKILL");
  await page.close();
  await stop(target);
}

/**
 * Checks that the page's work per second depends on the shown rows, not on the 1,000 namespaces.
 */
async function many(browser, wrongs) {
  const count = 1000;
  const namespaces = '[[subsystems.namespaces]]\npath = "null:1GiB"\n'.repeat(count);
  writeFileSync(join(work, "many.toml"), `[[subsystems]]\nnqn = "${NQN}"\nallow_any_host = true\n${namespaces}`);
  const target = await serve("--config", "many.toml", "--listen", "127.0.0.1:0", "--ui", "127.0.0.1:0");
  hold(/#token=[0-9a-f]{32}$/.test(target.said.dashboard), "the target prints a URL with a new token");
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
  hold(seen.nodes < 1500, `${count} namespaces need only ${seen.nodes} elements`, seen);
  hold(seen.changes < 5 * 400, `only ${seen.changes} elements changed in five seconds`, seen);
  console.log(`     ${seen.long} tasks over 50 ms meanwhile, ${(seen.heap / 2 ** 20).toFixed(0)} MiB of heap`);
  hold(seen.heap > 0 && seen.heap < MOST_HEAP_BYTES, "the heap is less than 150 MiB", seen);
  await page.getByLabel("Filter namespaces").fill("zzz");
  await page.getByText(`0 of ${count}`).waitFor();
  hold(true, "a filter that matches no namespace hides all");
  await page.getByLabel("Filter namespaces").fill("");
  const leave = await swarm(target.said.listening[0], NQN, SWARM);
  await tile(page, "Hosts").getByText(String(SWARM + 1)).waitFor();
  // The page lists a host from its first connection on, so count connections.
  let connections = 0;
  for (const until = Date.now() + PATIENCE_MS; connections < 2 * SWARM && Date.now() < until; await pause(200)) {
    connections = Number(await tile(page, "Connections").textContent());
  }
  hold(connections >= 2 * SWARM, `${connections} real connections of ${SWARM + 1} hosts are on the page`, connections);
  await rises(page, "Reads per second");
  // Target, hosts and browser share the processors, so the test reports the frames, without a
  // limit.
  const crowd = await works(page, `${connections} real connections and ${count} namespaces`);
  hold(crowd.heap < MOST_HEAP_BYTES / 2 ** 20 && crowd.nodes < 2000, "the connections need few elements, and less than 150 MiB of heap", crowd);
  leave();
  await stop(loading, "SIGKILL");
  await page.close();
  await stop(target);
}

/** Tests `farblock demo`, which the README shows: a mirror's leg and a path fail and return. */
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
  hold(true, "the picture shows the legs of a mirror");
  await page.locator(".log").getByText(/lost a path to .* and continues/).waitFor();
  await page.locator(".box.bad", { hasText: /lost at/ }).first().waitFor();
  hold(true, "the log reports a lost path, and the picture shows it for some time");
  await page.getByRole("alert").getByText(/continues without its leg/).waitFor();
  await page.locator(".box.bad", { hasText: "out" }).waitFor();
  hold(true, "an alarm reports a leg that is out, and the picture marks it");
  await page.screenshot({ path: join(screenshots, "demo.png") });
  await accessible(page, "a mirror without a leg");
  await page.locator(".log").getByText(/is in sync again/).waitFor();
  // The alarm may disappear one frame after the log's line. The next leg may be out by now.
  await page.getByRole("alert").getByText(/continues without its leg/).first().waitFor({ state: "hidden" });
  hold(true, "the alarm ends when the leg is in sync again");
  await page.close();
  await stop(shown, "SIGINT");
  hold(lines.some((line) => line.includes("no data is lost")), "the demonstration loses no data", lines);
}

/** Shows two targets on one page. Kills and restarts one of them. */
async function cluster(browser, wrongs) {
  const left = await begin("serve", "--json", "--control", "left.sock", "--listen", "127.0.0.1:0", "--nqn", NQN, "mem:64MiB");
  const right = (address, door) =>
    serve("--listen", address, "--ui", door, "--ui-token", "token", "--nqn", OTHER, "mem:64MiB");
  let other = await right("127.0.0.1:0", "127.0.0.1:0");
  const [address] = other.said.listening;
  const door = new URL(other.said.dashboard).host;
  const shown = await begin("ui", "--json", "--node", "left=./left.sock", "--node", `right=${door}`, "--node-token", "token");
  const base = shown.said.dashboard.split("#")[0];
  for (const path of ["/ui.json", "/history.json", "/v1/nodes", "/v1/status"]) {
    const { status } = await ask(base, "GET", path, bearer);
    if (status !== 401) throw new Error(`${path} answers ${status} to another token`);
  }
  hold(true, "every path of the cluster's page needs the token");
  const page = await open(browser, base, wrongs);
  await page.setViewportSize({ width: 1280, height: 1100 });
  await page.goto(shown.said.dashboard);
  await page.locator(".state", { hasText: /^live$/ }).waitFor();
  const loads = [load(left.said.listening[0], NQN, 1), load(address, OTHER, 1)];
  const row = (name) => page.locator("tr").filter({ has: page.getByRole("button", { name, exact: true }) });
  for (const name of ["left", "right"]) await row(name).locator("td").nth(2).getByText(/^[1-9]/).waitFor();
  await rises(page, "Reads per second");
  hold((await tile(page, "Nodes").textContent()) === "2 of 2", "one page shows both nodes under load");
  for (const words of [/dashboard$/, /archive$/, /^left$/, /^right$/, "namespace 1"]) await page.locator(".box text").getByText(words).first().waitFor();
  await page.locator(".box", { hasText: "right" }).getByText(/IOPS/).waitFor();
  await page.locator(".wire.flows").nth(5).waitFor({ state: "attached" });
  hold(true, "one picture shows the hosts, subsystems and namespaces of all nodes");
  await page.waitForTimeout(Number(process.env["WATCH_MS"] ?? 4000));
  await accessible(page, "a cluster");
  await page.screenshot({ path: join(screenshots, "cluster.png") });
  await page.setViewportSize({ width: 390, height: 844 });
  await accessible(page, "a cluster on a phone");
  await page.setViewportSize({ width: 1280, height: 1100 });
  await page.getByRole("button", { name: "right", exact: true }).click();
  await page.locator(".scope", { hasText: "node right" }).waitFor();
  await rises(page, "Reads per second");
  await page.getByRole("button", { name: "Show the whole cluster" }).click();
  hold(true, "the charts can show one node");
  let asked = 0;
  page.on("request", (asking) => (asked += asking.url().includes("/v1/nodes") ? 1 : 0));
  await stop(other, "SIGKILL");
  await page.getByRole("alert").getByText(/^right has not answered/).waitFor();
  hold(asked === 0, "the stream reports a killed node: the page sends no requests", asked);
  await row("right").getByText(/not answering/).waitFor();
  await page.locator(".state", { hasText: "1 of 2 live" }).waitFor();
  await row("left").locator("td").nth(2).getByText(/^[1-9]/).waitFor();
  await page.locator(".box.bad", { hasText: "right" }).getByText("not answering").waitFor();
  await accessible(page, "a cluster without one of its nodes");
  await page.screenshot({ path: join(screenshots, "cluster-lost.png"), fullPage: true });
  other = await right(address, door);
  await page.locator(".state", { hasText: /^live$/ }).waitFor();
  hold((await page.getByRole("alert").getByText(/right has not answered/).count()) === 0, "the alarm ends when the node is back");
  await page.locator(".log").getByText(/^.*right: The target answers again/).waitFor();
  await takesLess(WITHIN_MS, "the page reports a killed node within two seconds", async () => {
    await stop(other, "SIGKILL");
    const killed = performance.now();
    await page.getByRole("alert").getByText(/^right has not answered/).waitFor();
    const took = performance.now() - killed;
    other = await right(address, door);
    await page.locator(".state", { hasText: /^live$/ }).waitFor();
    return took;
  });
  await before(browser, base, wrongs, shown.said.dashboard);
  await row("left").getByRole("button", { name: "Open" }).click();
  // A straight line has no height, so the browser does not consider it visible.
  await page.locator(".wire.flows").first().waitFor({ state: "attached" });
  await page.getByRole("heading", { name: "left" }).waitFor();
  await accessible(page, "one node of a cluster");
  await page.getByRole("button", { name: "Back to the cluster" }).click();
  await row("right").getByText("live").waitFor();
  hold(true, "a node has its own page, with a button back to the cluster");
  await page.close();
  for (const one of loads) await stop(one, "SIGKILL");
  for (const one of [shown, left, other]) await stop(one);
}

/** Changes a leg of a mirror directly. The verify and the page must report the difference. */
async function mirrored(browser, wrongs) {
  const spec = `mirror:${join(work, "leg1.img")},${join(work, "leg2.img")}?create`;
  for (const leg of ["leg1.img", "leg2.img"]) writeFileSync(join(work, leg), Buffer.alloc(16 << 20));
  const target = await begin("serve", "--json", "--control", "mirror.sock", "--listen", "127.0.0.1:0", "--nqn", NQN, spec);
  const shown = await begin("ui", "--json", "--node", "mirror=./mirror.sock");
  const page = await open(browser, shown.said.dashboard.split("#")[0], wrongs);
  await page.goto(shown.said.dashboard);
  const row = panel(page, "Mirrors").locator("tbody tr");
  await row.getByText("2 in sync").waitFor();
  const verify = () => spawnSync(binary, ["ctl", "--control", "mirror.sock", "verify", NQN, "1"], { encoding: "utf8", cwd: work, timeout: PATIENCE_MS });
  const first = verify();
  await row.getByText("verified", { exact: true }).waitFor();
  hold(first.status === 0 && (await row.textContent()).includes("0 B"), "a verify of equal legs finds no difference", [first.stderr, await row.textContent()]);
  const leg = openSync(join(work, "leg2.img"), "r+");
  writeSync(leg, Buffer.alloc(4096, 7), 0, 4096, 4 << 20);
  closeSync(leg);
  const second = verify();
  await page.getByRole("alert").getByText(/^mirror: .*its legs differ within 64 KiB, first in 128 blocks of 512 B from 8192 on/).waitFor();
  await row.getByText("64 KiB", { exact: true }).waitFor();
  hold(second.status === 1, "different legs cause an alarm, and a figure in the table", second.stderr);
  await accessible(page, "a mirror whose legs differ");
  await page.getByRole("button", { name: "Open" }).click();
  await panel(page, "Mirrors").locator("tbody tr").getByText("64 KiB", { exact: true }).waitFor();
  hold(true, "the page of the node shows the difference too");
  await page.close();
  for (const one of [shown, target]) await stop(one);
}

/** Starts a proxy to an address, which the test can cut. */
async function ferry(address) {
  const [host, port] = address.split(":");
  const ends = new Set();
  const server = createServer((near) => {
    const far = connect(Number(port), host);
    for (const [one, other] of [[near, far], [far, near]]) {
      ends.add(one);
      one.on("error", () => other.destroy());
      one.on("close", () => (ends.delete(one), other.destroy()));
      one.pipe(other);
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port: here } = server.address();
  const cut = () => {
    server.close();
    ends.forEach((end) => end.destroy());
  };
  const mend = () => server.listen(here, "127.0.0.1");
  return { address: `127.0.0.1:${here}`, cut, mend };
}

/** Attaches a disk over two paths on the page's machine, and cuts one path. */
async function attachment(browser, wrongs) {
  const target = await begin("serve", "--json", "--control", "disk.sock", "--listen", "127.0.0.1:0", "--nqn", NQN, "mem:16MiB");
  const [direct] = target.said.listening;
  const way = await ferry(direct);
  const runtime = join(work, "attached");
  const urls = [direct, way.address].map((address) => `nvme+tcp://${address}/${NQN}?ns=1`);
  const how = ["--as", "vhost-user", "--name", "both", "--runtime-dir", runtime, "--reconnect-delay", "1s"];
  const attach = spawnSync(binary, ["attach", ...urls, ...how], { encoding: "utf8", cwd: work, timeout: PATIENCE_MS });
  hold(attach.status === 0, "a disk is attached", attach.stderr);
  try {
    const shown = await begin("ui", "--json", "--attached", "--runtime-dir", runtime, "--node", "disk=./disk.sock");
    const page = await open(browser, shown.said.dashboard.split("#")[0], wrongs);
    await page.goto(shown.said.dashboard);
    const rows = panel(page, "Paths of attached disks").locator("tbody tr");
    await rows.nth(1).locator("td").nth(3).getByText("live").waitFor();
    const picture = panel(page, "Attached disks of this machine");
    await picture.locator(".box text").getByText("disk", { exact: true }).waitFor();
    hold((await rows.count()) === 2, "the page shows both paths, and the node of one");
    way.cut();
    await page.getByRole("alert").getByText(/^Attached disk both is degraded/).waitFor();
    await picture.locator(".box.bad", { hasText: way.address }).getByText("reconnecting", { exact: true }).waitFor();
    hold(true, "the page reports a cut path, and the picture marks it");
    await accessible(page, "an attached disk without one of its paths");
    await page.screenshot({ path: join(screenshots, "attached.png"), fullPage: true });
    way.mend();
    await page.locator(".log").getByText("Attached disk both is live.").waitFor();
    await picture.locator(".box.bad").waitFor({ state: "detached" });
    hold(true, "the log reports that the disk is live again");
    spawnSync(binary, ["detach", "both", "--runtime-dir", runtime], { cwd: work, timeout: PATIENCE_MS });
    await page.locator(".log").getByText("Disk both is no longer attached.").waitFor();
    hold(true, "a detached disk disappears from the page");
    await page.close();
    await stop(shown);
  } finally {
    spawnSync(binary, ["detach", "both", "--force", "--runtime-dir", runtime], { cwd: work, timeout: PATIENCE_MS });
    way.cut();
  }
  await stop(target);
}

/** Checks that a node that accepts connections, but never answers, does not delay the others. */
async function mute(browser, wrongs) {
  const silent = createServer(() => undefined).listen(0, "127.0.0.1");
  await once(silent, "listening");
  const left = await begin("serve", "--json", "--control", "left.sock", "--listen", "127.0.0.1:0", "--nqn", NQN, "mem:64MiB");
  const nodes = ["--node", `mute=127.0.0.1:${silent.address().port}`, "--node", "left=./left.sock", "--node-token", "token"];
  const shown = await begin("ui", "--json", ...nodes);
  const page = await open(browser, shown.said.dashboard.split("#")[0], wrongs);
  // Record which node's text appears first.
  await page.addInitScript(() => {
    const look = () => {
      const has = (words) => document.body?.textContent.includes(words);
      // On a busy machine, both texts may appear in one frame: then prefer `left`.
      if (has("left: The page opened")) globalThis.first ??= "left";
      if (has("mute has not answered")) globalThis.first ??= "mute";
      if (!globalThis.first) requestAnimationFrame(look);
    };
    look();
  });
  await page.goto(shown.said.dashboard);
  await page.getByRole("alert").getByText(/^mute has not answered.*in time/).waitFor();
  await page.locator(".state", { hasText: "1 of 2 live" }).waitFor();
  const first = await page.evaluate(() => globalThis.first);
  hold(first === "left", "a node that never answers does not delay another node", first);
  await page.close();
  silent.close();
  for (const one of [shown, left]) await stop(one);
}

/** Checks that the cluster's page can change a node if the token for this node allows it. */
async function steered(browser, wrongs) {
  const secrets = { watch: "0123456789-watch-0123456789", ops: "0123456789-ops-0123456789" };
  writeFileSync(join(work, "tokens"), `watch read-only ${secrets.watch}\nops admin ${secrets.ops}\n`, { mode: 0o600 });
  for (const [name, secret] of Object.entries(secrets)) writeFileSync(join(work, `${name}.token`), secret, { mode: 0o600 });
  const left = await begin("serve", "--json", "--control", "left.sock", "--listen", "127.0.0.1:0", "--nqn", NQN, "mem:64MiB");
  const door = await free();
  const right = await serve("--listen", "127.0.0.1:0", "--api", door, "--api-tokens", "tokens", "--nqn", OTHER, "mem:64MiB");
  const nodes = ["--node", "left=./left.sock", "--node", `right=${door}`];
  const row = (page, name) => page.locator("tr").filter({ has: page.getByRole("button", { name, exact: true }) });
  const protect = async (page, name, outcome) => {
    await row(page, name).getByRole("button", { name: "Open" }).click();
    await panel(page, "Namespaces").getByRole("button", { name: "Change…" }).click();
    await page.getByRole("button", { name: /^Make it (read-only|writable)…/ }).click();
    await answer(page, "Make it read-only", outcome);
  };
  const started = async (...options) => {
    const shown = await begin("ui", "--json", ...nodes, ...options);
    const page = await open(browser, shown.said.dashboard.split("#")[0], wrongs);
    await page.goto(shown.said.dashboard);
    await page.locator(".state", { hasText: /^live$/ }).waitFor();
    return [shown, page];
  };
  const [looked, looking] = await started("--node-token", "watch.token");
  const token = { Authorization: `Bearer ${looked.said.dashboard.split("token=")[1]}` };
  const path = `v1/nodes/left/subsystems/${NQN}/namespaces/1`;
  const refusal = await ask(looked.said.dashboard, "DELETE", `/${path}`, token);
  hold(refusal.status === 403 && refusal.body.includes("--steer"), "without --steer, no change is forwarded to a node", refusal);
  await row(looking, "left").getByRole("button", { name: "Open" }).click();
  hold((await looking.getByRole("button", { name: "Change…" }).count()) === 0, "without --steer, the page offers no changes");
  await looking.close();
  await stop(looked);

  let [shown, page] = await started("--steer", "--node-token", "watch.token");
  const stranger = await ask(shown.said.dashboard, "DELETE", `/${path}`, bearer);
  hold(stranger.status === 401, "with --steer, a change needs the token of the page", stranger);
  await protect(page, "left", /^Done: /);
  const seen = panel(page, "Namespaces").locator("td", { hasText: /^read only$/ });
  await seen.waitFor();
  await answer(page, "Undo", /^Undone: /);
  await seen.waitFor({ state: "detached" });
  hold(/for 127\.0\.0\.1:\d+/.test(left.words) && /user \d+, process/.test(left.words), "the node's log names the user of a forwarded change", left.words);
  hold(shown.words.includes("forwarded") && shown.words.includes("left"), "farblock ui logs the forwarded change", shown.words);
  await close(page);
  await page.getByRole("button", { name: "Back to the cluster" }).click();
  await protect(page, "right", /^Nothing was changed: this token is read-only/);
  hold(true, "a node refuses a change with a read-only token");
  await close(page);
  await page.close();
  await stop(shown);

  [shown, page] = await started("--steer", "--node-token", "ops.token");
  await protect(page, "right", /^Done: /);
  await panel(page, "Namespaces").locator("td", { hasText: /^read only$/ }).waitFor();
  hold(right.words.includes("token ops, from"), "the node logs the token's name", right.words);
  await close(page);
  await stop(right, "SIGKILL");
  await panel(page, "Namespaces").getByRole("button", { name: "Change…" }).click();
  await page.getByText(/The target did not answer \(right: Connection refused\)/).waitFor();
  hold(true, "the dialog reports that the node does not answer");
  await close(page);
  await page.close();
  for (const one of [shown, left]) await stop(one);
}

/** Runs a fleet beside a target, with the fleet's own agents. */
async function fleet(browser, wrongs) {
  const target = await begin("serve", "--json", "--control", "fleet.sock", "--listen", "127.0.0.1:0", "mem:1MiB");
  const shown = await begin("ui", "--json", "--node", "beside=./fleet.sock");
  const page = await open(browser, shown.said.dashboard.split("#")[0], wrongs);
  await page.setViewportSize({ width: 1280, height: 1100 });
  await page.goto(shown.said.dashboard);
  await page.locator(".state", { hasText: /^live$/ }).waitFor();
  writeFileSync(
    join(work, "plan.toml"),
    'name = "watched"\nruntime_seconds = 15.0\nhost_nodes = 2\n[[actions]]\nload = "randread,bs=4k,iodepth=2,name=small reads"\n',
  );
  const running = start(["fleet", "run", "plan.toml", "--loopback"]);
  const ended = once(running, "exit");
  const tooEarly = ended.then(() => Promise.reject(new Error(`the fleet was never shown, and said:\n${running.words}`)));
  tooEarly.catch(() => {});
  await Promise.race([page.getByRole("heading", { name: "Fleet watched" }).waitFor(), tooEarly]);
  const rows = page.locator("tr").filter({ hasText: /hosts on node/ }).filter({ hasText: "runs" });
  await rows.nth(1).getByText(/[1-9].* µs|ms/).waitFor();
  // Do not check the state: a host may wait at this moment.
  hold((await page.locator("tr").filter({ hasText: /hosts on node/ }).count()) === 2, "the page shows a running fleet, with each of its hosts");
  await accessible(page, "a running fleet");
  await page.screenshot({ path: join(screenshots, "fleet.png") });
  const [code] = await ended;
  hold(code === 0, "the fleet succeeds", running.words);
  await page.locator(".log").getByText("Fleet watched has ended").waitFor();
  await page.getByRole("heading", { name: "Fleet watched" }).waitFor({ state: "detached" });
  hold(true, "a fleet that has ended disappears from the page");
  await page.close();
  for (const one of [shown, target]) await stop(one);
}

/** Starts etcd and three members of a group. Moves a leader, and kills it. */
async function grouped(browser, wrongs) {
  const [client, peer] = [`http://${await free()}`, `http://${await free()}`];
  const options = {
    name: "one", "data-dir": join(work, "etcd"), "initial-cluster": `one=${peer}`,
    "listen-client-urls": client, "advertise-client-urls": client,
    "listen-peer-urls": peer, "initial-advertise-peer-urls": peer,
  };
  const words = Object.entries(options).map(([name, value]) => `--${name}=${value}`);
  const etcd = spawn("etcd", [...words, "--unsafe-no-fsync"], { stdio: "ignore" });
  children.add(etcd);
  etcd.on("exit", () => children.delete(etcd));
  etcd.on("error", (error) => wrongs.push(`etcd: ${error.message}`));
  writeFileSync(join(work, "shared.img"), Buffer.alloc(1 << 20));
  const member = async (name) => {
    const place = [`--listen=${await free()}`, `--control=${name}.sock`, `--state-dir=${join(work, name)}`];
    const group = ["--group=gold", `--etcd=${client}`, `--member=${name}`, "--disk-flight=500ms"];
    const ui = "--ui=127.0.0.1:0";
    return begin("serve", "--json", "shared.img", ...group, ...place, ui);
  };
  const all = {};
  for (const name of ["m1", "m2", "m3"]) all[name] = await member(name);
  const page = await open(browser, all.m1.said.dashboard.split("#")[0], wrongs);
  await page.goto(all.m1.said.dashboard);
  const row = (title, words) => panel(page, title).locator("tbody tr").filter({ hasText: words });
  await row("Members of the group", "m3").getByText("ready").waitFor();
  await page.getByText("gold · this target is member m1").waitFor();
  const count = await panel(page, "Members of the group").locator("tbody tr").count();
  hold(count === 3, "the members of a group are shown", count);
  await page.getByText("No member has been fenced.").waitFor();
  const order = ["ctl", "--control", "m1.sock", "group", "move", "1", "m2"];
  const moved = spawnSync(binary, order, { encoding: "utf8", cwd: work, timeout: PATIENCE_MS });
  await row("ANA groups", "m2").getByText("an operator's order").waitFor();
  hold(moved.status === 0, "ctl moves the leader of an ANA group", moved.stderr);
  // Also kill the watchdog, as if the machine died: with its report, no fence would be needed.
  all.m2.kill("SIGSTOP");
  spawnSync("pkill", ["-KILL", "--parent", String(all.m2.pid)]);
  await stop(all.m2, "SIGKILL");
  await page.getByText("Member m2 is lost.").waitFor();
  await row("ANA groups", "the leader was lost").waitFor();
  await page.getByText(/^Last fence: m[13] fenced m2 for ANA group 1, /).waitFor();
  hold(true, "the page shows a lost member, and the fence that followed");
  await accessible(page, "a group that lost a member");
  await page.screenshot({ path: join(screenshots, "group.png"), fullPage: true });
  await page.close();
  for (const one of [all.m1, all.m3, etcd]) await stop(one);
}

function refused(label, status, sentence, ...options) {
  const args = ["serve", "mem:1MiB", "--no-control", "--listen", "127.0.0.1:0", ...options];
  const ended = spawnSync(binary, args, { encoding: "utf8", cwd: work, timeout: PATIENCE_MS });
  hold(ended.status === status && sentence.test(ended.stderr), label, [ended.status, ended.stderr]);
}
refused("a public address needs a token in a file", 2, /--ui-token/, "--ui", "0.0.0.0:0");
writeFileSync(join(work, "open"), `${TOKEN}\n`, { mode: 0o644 });
refused("a token that others can read is refused", 1, /chmod 600/, "--ui", "127.0.0.1:0", "--ui-token", "open");
writeFileSync(join(work, "short"), "secret\n", { mode: 0o600 });
refused("a short token is refused", 1, /20 to 256/, "--ui", "127.0.0.1:0", "--ui-token", "short");
const browser = await launch();
try {
  const wrongs = [];
  const only = process.env["ONLY"];
  for (const test of [one, many, demonstration, cluster, mirrored, attachment, mute, steered, fleet, grouped]) {
    if (!only || only.split(",").includes(test.name)) await test(browser, wrongs);
  }
  hold(wrongs.length === 0, "the page has no errors, and sends no requests to other servers", wrongs);
} finally {
  await browser.close();
}
process.exit(0);
