// hosts.mjs: idle NVMe/TCP hosts: each connects, enables its controller and has one I/O queue. They
// need so little memory that thousands of them fit beside a browser.
import { once } from "node:events";
import { connect } from "node:net";

/** The number of loopback addresses from which the hosts connect. */
const ADDRESSES = 4;
const CAPSULE_BYTES = 72;
const CONNECT_BYTES = 1024;
/** The Property Set of CC enables the controller, with queue entries of 64 and 16 bytes. */
const CC = { offset: 0x14, value: 0x460001 };

function hello() {
  const pdu = Buffer.alloc(128);
  pdu[2] = 128;
  pdu.writeUInt32LE(128, 4);
  return pdu;
}

/** Makes a capsule with a Fabrics command and its data. */
function fabrics(type, fill, data = Buffer.alloc(0)) {
  const pdu = Buffer.alloc(CAPSULE_BYTES);
  [pdu[0], pdu[2], pdu[3]] = [4, CAPSULE_BYTES, data.length > 0 ? CAPSULE_BYTES : 0];
  pdu.writeUInt32LE(CAPSULE_BYTES + data.length, 4);
  const entry = pdu.subarray(8);
  [entry[0], entry[1], entry[4]] = [0x7f, 0x40, type];
  entry.writeUInt32LE(data.length, 32);
  if (data.length > 0) entry[39] = 1;
  fill(entry);
  return Buffer.concat([pdu, data]);
}

function joining(queue, controller, nqn, host) {
  const data = Buffer.alloc(CONNECT_BYTES);
  data.writeUInt32LE(host.number + 1, 0);
  data.writeUInt16LE(controller, 16);
  data.write(nqn, 256);
  data.write(host.name, 512);
  return fabrics(1, (entry) => {
    entry.writeUInt16LE(queue, 42);
    entry.writeUInt16LE(31, 44);
  }, data);
}

/** Reads `count` bytes of a response. */
async function read(socket, count) {
  for (;;) {
    const found = socket.read(count);
    if (found?.length === count) return found;
    if (socket.destroyed || socket.readableEnded) throw new Error("the target has closed the connection");
    await Promise.race([once(socket, "readable"), once(socket, "close")]);
  }
}

async function asked(socket, pdu) {
  socket.write(pdu);
  const answer = await read(socket, 24);
  const status = answer.readUInt16LE(22) >> 1;
  if (status !== 0) throw new Error(`the target refuses: status ${status.toString(16)}`);
  return answer.readUInt16LE(8);
}

/**
 * Connects a host. Uses several addresses, since one may have only half of a target's connections.
 */
async function opened(address, number, sockets) {
  const [host, port] = address.split(":");
  const socket = connect({ host, port: Number(port), localAddress: `127.0.0.${1 + (number % ADDRESSES)}` });
  sockets.push(socket);
  // `read` reports a closed connection.
  socket.on("error", () => undefined);
  await Promise.race([once(socket, "connect"), once(socket, "close")]);
  socket.write(hello());
  await read(socket, 128);
  return socket;
}

/** Connects `count` hosts, some at a time. Returns a function that closes all connections. */
export async function swarm(address, nqn, count) {
  const sockets = [];
  let next = 0;
  const one = async (host) => {
    const admin = await opened(address, host.number, sockets);
    const controller = await asked(admin, joining(0, 0xffff, nqn, host));
    await asked(admin, fabrics(0, (entry) => {
      entry.writeUInt32LE(CC.offset, 44);
      entry.writeUInt32LE(CC.value, 48);
    }));
    await asked(await opened(address, host.number, sockets), joining(1, controller, nqn, host));
  };
  const some = async () => {
    while (next < count) {
      const number = next++;
      await one({ number, name: `nqn.2014-08.org.example:swarm-${number}` });
    }
  };
  await Promise.all(Array.from({ length: 32 }, some));
  return () => sockets.forEach((socket) => socket.destroy());
}
