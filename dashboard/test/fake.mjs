// fake.mjs: a fake target, whose status, counters and events a test chooses. It serves the
// committed page, with the same Content-Security-Policy as the real target.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";

const ui = join(import.meta.dirname, "../../crates/manage/admin/ui");
const FILES = { "/": ["index.html", "text/html"], "/app.js": ["app.js", "text/javascript"], "/app.css": ["app.css", "text/css"], "/icon.svg": ["icon.svg", "image/svg+xml"] };
const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const io = (count) => ({
  reads: count, writes: count / 2, others: 0, read_bytes: count * 4096, written_bytes: count * 2048, storage_errors: 0,
  errors: {}, read_latency: { sum_ns: 0, counts: [count / 2, count / 2] }, write_latency: { sum_ns: 0, counts: [count / 2] },
});

/** Makes the counters of a fake target after `ms` milliseconds of uptime, and an amount of work. */
export function stats(subsystems, hosts, ms, work = ms) {
  const each = (list, make) => list.map((one, index) => make(one, io(work * (1 + (index % 7)))));
  return {
    uptime_ms: ms, time_ms: Date.now(), latency_bounds_us: [50, 100], total: io(work * 10), other_hosts: io(0),
    connections: { open: hosts.length, accepted: hosts.length, refused: {}, faults: {}, authenticated: 0, not_authenticated: {} },
    cores: [{ core: 0, connections: hosts.length, busy_ns: ms * 4e5, io: io(ms * 10) }],
    subsystems: subsystems.map(({ nqn, namespaces }) => ({
      nqn, io: io(work * 10), namespaces: each(namespaces, ({ nsid }, io) => ({ nsid, io })),
    })),
    // A real target has separate counters for at most 256 hosts.
    hosts: each(hosts.slice(0, 256), (nqn, io) => ({ nqn, controllers: 1, io })),
  };
}

/** Makes a status with these hosts, each with one connection. */
export function status(nqn, namespaces, hosts) {
  const named = (nsid) => ({ nsid, bytes: 1 << 30, block_size: 512, read_only: false, uuid: "" });
  const counts = { reads: 0, writes: 0, read_bytes: 0, written_bytes: 0, media_errors: 0 };
  return {
    listening: ["127.0.0.1:4420"], tls: {}, pid: 1, uptime_seconds: 60, connections: hosts.length, warnings: [],
    subsystems: [{ nqn, allow_any_host: true, hosts: [], ...counts, namespaces: Array.from({ length: namespaces }, (_, at) => named(at + 1)) }],
    controllers: hosts.map((host_nqn, id) => ({
      id, subsystem: nqn, host_nqn, host_id: "", address: `127.0.0.1:${id}`, local_address: "127.0.0.1", ready: true, io_queues: 1, errors: 0,
    })),
  };
}

/**
 * Starts a fake target. It sends its counters each second while `beats` is true. Its `tell` sends
 * an event.
 */
export async function fake(now) {
  const readers = new Set();
  const target = { ...now, stream: "told", beats: true, token: "token", began: Date.now(), asked: 0, speed: 1, work: 0, at: Date.now() };
  const data = (name, what) => `event: ${name}\ndata: ${JSON.stringify(what)}\n\n`;
  target.tell = (name, what) => readers.forEach((reader) => reader.write(data(name, what)));
  target.counted = () => {
    const now = Date.now();
    target.work += (now - target.at) * target.speed;
    target.at = now;
    return stats(target.status.subsystems, target.hosts, now - target.began + 60_000, target.work);
  };
  const json = (answer, code, what) => answer.writeHead(code, { "Content-Type": "application/json" }).end(JSON.stringify(what));
  const events = (answer) => {
    if (target.stream === "none") return json(answer, 404, { detail: "there is nothing here" });
    answer.writeHead(200, { "Content-Type": "text/event-stream" });
    answer.flushHeaders();
    if (target.stream === "held") return;
    readers.add(answer);
    answer.on("close", () => readers.delete(answer));
    if (target.nodes) return;
    answer.write(data("status", target.status) + data("document", { version: "1" }) + data("stats", target.counted()));
  };
  const server = createServer((asked, answer) => {
    const { pathname } = new URL(asked.url, "http://a");
    const file = FILES[pathname];
    if (file) {
      const head = { "Content-Type": file[1], "Content-Security-Policy": POLICY, "Cache-Control": "no-store" };
      return answer.writeHead(200, head).end(readFileSync(join(ui, file[0])));
    }
    if (asked.headers.authorization !== `Bearer ${target.token}`) return json(answer, 401, { detail: "no" });
    target.asked += pathname === "/v1/status" || pathname === "/v1/nodes" ? 1 : 0;
    if (pathname === "/v1/events") return events(answer);
    if (pathname === "/v1/nodes") return json(answer, 200, target.said?.() ?? []);
    const about = { version: "0", may_steer: false, ...(target.nodes && { nodes: target.nodes }) };
    const says = { "/ui.json": about, "/v1/status": target.status, "/v1/state": { listeners: {}, subsystems: {} } };
    if (pathname === "/v1/stats") return json(answer, 200, target.counted());
    return says[pathname] ? json(answer, 200, says[pathname]) : json(answer, 404, { detail: "nothing" });
  });
  const beat = setInterval(() => target.beats && target.status && target.tell("stats", target.counted()), 1000);
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  target.base = `http://127.0.0.1:${server.address().port}/`;
  target.cut = () => readers.forEach((reader) => reader.destroy());
  target.stop = () => {
    clearInterval(beat);
    server.closeAllConnections();
    server.close();
  };
  return target;
}
