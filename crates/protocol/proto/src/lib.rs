//! NVMe over Fabrics as sans-I/O state machines: no sockets, clock, threads or randomness.
//!
//! * [`tcp`]: both ends of the TCP transport: bytes in, capsules and data out, and the reverse.
//! * [`controller`]: subsystems, controllers, discovery: the meaning of each command.
//! * [`host`]: brings a controller up from the host's side, and explains its errors.
//!
//! The *capsule seam* separates the first from the other two. A controller sees submission queue
//! entries and answers "pull these bytes from the host", "push these bytes to the host" or
//! "respond". It names no PDU, and `tcp` knows no opcode.
//!
//! Not implemented: RDMA, PCIe, metadata and protection information, authentication and TLS.
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
