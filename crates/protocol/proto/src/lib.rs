//! NVMe over Fabrics as sans-I/O state machines: no sockets, clock, threads or randomness.
//!
//! * [`tcp`]: both ends of the TCP transport. They convert bytes to capsules and data, and the
//!   reverse.
//! * [`controller`]: subsystems, controllers and discovery. Executes commands.
//! * [`rdma`]: the admission of RDMA connections, and the limits on which both ends agree.
//! * [`host`]: brings a controller up from the host's side, and explains the host's errors.
//!
//! The code that uses this crate, the *driver*, does the I/O and passes the time. The *capsule
//! seam* separates `tcp` from `controller` and `host`. A controller receives submission queue
//! entries. Its answer is "pull these bytes from the host", "push these bytes to the host" or
//! "respond". The controller does not use PDUs, and `tcp` does not interpret opcodes.
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
