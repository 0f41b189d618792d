//! An NBD server: a namespace as a disk for NBD clients.
//!
//! **Overview.** [`Server::start`] opens a namespace and listens on a Unix socket or a port of
//! 127.0.0.1. It serves the namespace with a few threads, each with its own event loop and its own
//! queue into the namespace. NBD clients are QEMU, libnbd (nbdcopy, nbdinfo, nbdfuse), fio's nbd
//! engine and the kernel. [`kernel`] makes a `/dev/nbdN` from a server's disk.
//!
//! **Contract.** Clients see the namespace's size and block size, and whether it is writable and
//! supports deallocation. The server supports the fixed newstyle negotiation, simple replies,
//! structured replies for clients that request them, FUA, flush, trim and write zeroes. Any number
//! of connections share one disk. Once the server has answered a write, every connection sees it,
//! and a flush on any connection covers it (`NBD_FLAG_CAN_MULTI_CONN`). Every namespace guarantees
//! this.
//!
//! The server executes no request of a disconnected client after a request of a later client. It
//! drops the earlier client's requests that have not started. The later client's requests wait
//! until the started requests have completed. (On Linux, the server notices a disconnection at
//! once. On other systems, it notices when it has read all data that the client sent.)
//!
//! A client that queries the block sizes must obey them, or it gets an error. Other clients, such
//! as the kernel, may read and write any range of bytes. For a partial block, the server reads the
//! block, changes it and writes it back, while all other writes wait.
//!
//! On invalid input the server answers as the protocol requires or closes the connection. Other
//! clients do not notice. [`limits`] bound the resources that one client can hold. The server never
//! times out a client that stops reading or writing: it may be a paused virtual machine.
//!
//! **Not implemented.** TLS, the old (unfixed) negotiation, extended headers, other metadata
//! contexts than `base:allocation`, `NBD_CMD_CACHE` and more than one export. Holes in
//! `base:allocation`: a namespace does not report which ranges are allocated, so all ranges count
//! as data. The protocol cannot notify a client of a new size.

pub(crate) mod address;
mod connection;
mod contexts;
mod core;
#[cfg(target_os = "linux")]
pub mod kernel;
pub mod limits;
mod negotiate;
mod request;
mod server;
mod shared;
mod succession;
mod wire;

pub use address::{Address, ListenError};
pub use server::{Config, Server, StartError, THREAD_NAME_PREFIX};
