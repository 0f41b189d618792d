//! The code that all disk servers share, whatever their protocol.
//!
//! **Overview.** [`Cores`] starts a server's threads, each with an event loop and a queue into the
//! namespace. [`Mailboxes`] carry messages to these threads. [`Connections`] is a thread's table of
//! connections.
//!
//! [`Turns`] lists the connections that have work at the end of a round of the event loop. [`Line`]
//! detects that a client has disconnected. [`Complaints`] limits a server's warnings about its
//! peers.
//!
//! [`Disk`] is the served namespace, and [`GeometryWatch`] reports its changes to the server.
//! [`pieces`] divides a request for any range of bytes into operations on whole blocks. [`writes`]
//! delays all other writes while the server changes a part of a block (read-modify-write).
//!
//! **Not implemented.** Protocols and connection states: each frontend has its own.

mod complaints;
mod connections;
mod cores;
mod disk;
pub mod limits;
mod line;
mod mailboxes;
#[cfg(target_os = "linux")]
pub mod modules;
pub mod pieces;
#[cfg(target_os = "linux")]
mod resident;
/// The synchronization types of [`mailboxes`]; `tests/mailboxes.rs` replaces them with loom's.
mod sync {
    pub(crate) use farblock_reactor::Waker;
    pub(crate) use std::sync::{Mutex, MutexGuard};
}
mod turns;
#[cfg(target_os = "linux")]
pub mod users;
mod watch;
pub mod writes;

pub use complaints::Complaints;
pub use connections::{ConnectionKey, Connections};
pub use cores::{Core, Cores, Plan, Seat, StartError};
pub use disk::Disk;
pub use line::Line;
pub use mailboxes::Mailboxes;
#[cfg(target_os = "linux")]
pub use resident::stay_resident;
pub use turns::{TickConnection, TickContext, Turns};
pub use watch::GeometryWatch;
