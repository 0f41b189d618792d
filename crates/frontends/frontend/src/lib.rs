//! What every server of a disk shares, whatever its protocol.
//!
//! **What it is.** [`Cores`] starts a server's threads, each with a reactor and a queue into the
//! namespace, all or none. [`Mailboxes`] is how they are told something. [`Connections`] is the
//! table of a thread's connections, and [`Turns`] says which of them has something to do when a
//! tick ends. [`Complaints`] keeps a server's warnings about strangers in bounds. [`Line`] tells
//! whether a client has hung up. [`Disk`] is the namespace as it is served, and [`GeometryWatch`]
//! how a server hears that it has changed. [`pieces`] makes operations on whole blocks of a request
//! for any range of bytes, and [`writes`] keeps other writes away while a part of a block is
//! changed.
//!
//! **Not implemented.** Any protocol, and any connection's life: those are the frontends' own.

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
/// What threads share, for [`mailboxes`].
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
