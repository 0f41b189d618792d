//! NVMe over Fabrics as sans-I/O state machines: no sockets, clock, threads or randomness.
//!
//! * [`tcp`]: the TCP transport, both ends: bytes in, capsules and data out, and the reverse.
//! * [`controller`]: subsystems, controllers, discovery: what a command means.
//! * [`host`]: bringing a controller up from the host's side, and naming what it answered.
//!
//! The *capsule seam* lies between the first and the other two: a controller sees submission queue
//! entries and says "pull these bytes from the host", "push these bytes to the host", "respond";
//! nothing in it names a PDU, and nothing in `tcp` knows an opcode.
//!
//! Not implemented: RDMA, PCIe, metadata and protection information,
//! authentication and TLS.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod capsule;
pub mod controller;
pub mod host;
pub mod ids;
pub mod limits;
pub mod tcp;
pub mod time;
