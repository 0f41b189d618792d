//! An NBD server: a namespace as a disk for NBD clients.
//!
//! **Overview.** [`Server::start`] opens a namespace, listens on a Unix socket or a port of
//! 127.0.0.1, and serves it with a few threads, each with its own reactor and queue. QEMU, libnbd
//! (nbdcopy, nbdinfo, nbdfuse), fio's nbd engine and the kernel's client speak the protocol.
//! [`kernel`] makes a `/dev/nbdN` from a server's disk.
//!
//! **Contract.** Clients see the namespace's own size and block size, and whether it can be written
//! and deallocated. The server speaks the fixed newstyle negotiation, simple replies, structured
//! replies for clients that ask, FUA, flush, trim and write zeroes. Any number of connections share
//! one disk: all of them see an answered write, and a flush on one covers the answered writes of
//! all (`NBD_FLAG_CAN_MULTI_CONN`), as the namespace contract says.
//!
//! No request of a disconnected client is executed after a request of a later client. The later
//! client's requests wait until the earlier client's have ended; requests that had not started are
//! dropped. (The server notices a disconnection when the end of the connection arrives; on systems
//! other than Linux, when it has read all the client sent.)
//!
//! A client that requests the block sizes must obey them, and gets an error if it does not. Other
//! clients, such as the kernel, may read and write any range of bytes: the server reads, changes
//! and writes back a partial block while its other writes wait.
//!
//! On invalid input the server answers as the protocol says or closes the connection, and no other
//! client notices. [`limits`] bound the resources that one client can hold. The server never times
//! out a client that stops reading or writing: it may be a paused virtual machine.
//!
//! **Not implemented.** TLS, the old (unfixed) negotiation, extended headers, holes in
//! `base:allocation` (the namespace contract does not say what is allocated, so all ranges count as
//! data), other metadata contexts, `NBD_CMD_CACHE` and more than one export. The protocol cannot
//! notify a client of a new size.

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
