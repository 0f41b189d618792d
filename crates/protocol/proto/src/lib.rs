//! NVMe over Fabrics as sans-I/O state machines: no sockets, clock, threads or randomness.
//!
//! * [`tcp`]: both ends of the TCP transport, which turn bytes into capsules and data, and the
//!   reverse.
//! * [`controller`]: subsystems, controllers and discovery; executes commands.
//! * [`rdma`]: which RDMA connections a controller admits, and what both ends grant.
//! * [`host`]: brings a controller up from the host's side, and explains its errors.
//!
//! The *capsule seam* separates `tcp` from the other two. A controller receives submission queue
//! entries and answers "pull these bytes from the host", "push these bytes to the host" or
//! "respond". It does not know PDUs, and `tcp` does not know opcodes.
//!
//! Not implemented: capsules over RDMA, PCIe, metadata and protection information,
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
pub mod rdma;
pub mod tcp;
pub mod time;
