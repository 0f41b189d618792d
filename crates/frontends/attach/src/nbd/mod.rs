//! An NBD server: a namespace as the disk of whatever speaks NBD.
//!
//! **What it is.** [`Server::start`] opens a namespace, listens on a Unix socket or a port of
//! 127.0.0.1, and serves it with a few threads, each with a reactor and a queue of its own. QEMU,
//! libnbd (nbdcopy, nbdinfo, nbdfuse), fio's nbd engine and the kernel's client know the protocol;
//! [`kernel`] makes `/dev/nbdN` of it.
//!
//! **Contract.** Clients see the namespace as it is: its size, its block size, whether it can be
//! written and given back. The fixed newstyle negotiation; simple replies, and structured ones for
//! who asks; FUA, flush, trim, write zeroes. Any number of connections is one disk: a write that
//! was answered is seen by all of them, and a flush on one covers the answered writes of all
//! (`NBD_FLAG_CAN_MULTI_CONN`), as the namespace's contract has it.
//!
//! Nothing of a client that is gone is carried out after something of a client that came later:
//! the later one's requests wait until the earlier one's have ended, and what was not begun is
//! dropped. (That a client is gone is known when its end of the connection has arrived; on other
//! systems than Linux, when all that it sent has been read.)
//!
//! A client that asks for the block sizes has to keep to them, and is told if it does not. One that
//! does not ask, such as the kernel's, may read and write any range of bytes: less than a block is
//! read, changed and written back, while other writes of this server wait.
//!
//! Whatever a client sends, it gets the protocol's answer or is closed, and no other client
//! notices. What one can make the server hold is bounded ([`limits`]). A client that stops to read
//! or write is left alone: it may be a virtual machine that pauses.
//!
//! **Not implemented.** TLS, the old (unfixed) negotiation, extended headers, holes in
//! `base:allocation` (what is allocated is not in the namespace's contract, so all of it is said to
//! be data), other metadata contexts, `NBD_CMD_CACHE`, more than one export, and telling a client
//! that the size has changed, which the protocol cannot.

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
