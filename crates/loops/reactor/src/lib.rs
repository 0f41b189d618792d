//! Event loops: io_uring on Linux, a portable readiness loop everywhere.
//!
//! A [`Reactor`] belongs to one thread and handles its sockets, files and timers. It is completion
//! based: an operation owns its buffer until one [`Event`] returns it. There are no futures and no
//! callbacks. A *task* is a mailbox of events with a "ready" mark; a thread's loop is
//!
//! ```
//! # use farblock_reactor::*;
//! # fn main() -> std::io::Result<()> {
//! let reactor = Reactor::new(&Config::default())?;
//! let task = reactor.add_task();
//! # reactor.set_timer(task, Some(std::time::Instant::now()));
//! let (mut ready, mut events) = (Vec::new(), Vec::new());
//! loop {
//!     // Submits what was queued since the last time, and waits for a task to be ready.
//!     reactor.poll(None, &mut ready)?;
//!     for &task in &ready {
//!         reactor.take_events(task, &mut events);
//!         for event in events.drain(..) {
//!             // Work, which queues operations: recv, recv_into, send, file, ...
//! #           assert!(matches!(event, Event::Timer));
//!         }
//!     }
//! #   break;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The contract
//!
//! - Nothing happens inside a submission: every result, even an immediate one, is an event that a
//!   later [`poll`](Reactor::poll) announces.
//! - Every operation completes exactly once, with an event. Removing a task drops its events.
//! - A stream has at most one receive and one send outstanding (a second one is a bug of the caller
//!   and panics). [`close`](Reactor::close) completes both, and [`Event::Closed`] is the last event
//!   of a stream.
//! - Identifiers carry a generation. A call with a removed object's identifier does nothing, except
//!   that a file operation fails with "not found".
//! - [`poll`](Reactor::poll) does a bounded amount of work. So one busy connection does not starve
//!   the others, and a task that is always ready does not starve the sockets.
//! - An idle reactor sleeps. A busy one may look for work for a few microseconds first
//!   ([`Config::polling`]), if measurements show a gain.
//! - In steady state an operation allocates nothing and takes no lock. (The portable engine's file
//!   threads share a locked queue; [`Waker::wake`] locks if its task is not marked yet.)
//! - Dropping the reactor ends all outstanding operations: streams are closed; file operations may
//!   or may not be carried out. The drop returns only when the system uses no buffer any more.
//!
//! # Engines
//!
//! | | `uring` | `portable` |
//! |---|---|---|
//! | where | Linux 6.1 and later, unless forbidden | wherever `mio` works |
//! | sockets | completions, one system call per poll; calls while it looks | readiness, calls |
//! | files | completions | a few threads; overlapped calls on Windows |
//! | durable writes | `RWF_DSYNC` | `RWF_DSYNC` on Linux, else write and sync |
//! | holes, zeroing | `fallocate` | `fallocate` on Linux, `FSCTL_SET_ZERO_DATA` on Windows |
//! | wakers | an event descriptor | `mio::Waker` |
//! | watches | multishot polls | readiness (Unix only) |
//!
//! The same tests run on both engines. With the feature `sim` there is a third engine for tests,
//! which lives in a simulated world.
//!
//! # Not implemented
//!
//! Datagrams, Unix sockets, TLS, name resolution, socket options beyond `TCP_NODELAY` and
//! the congestion control, half-closing
//! a stream, cancelling a single operation, deadlines of single operations, zero-copy sends,
//! registered buffers and descriptors.

mod batch;
mod config;
mod context;
mod engine;
mod event;
mod file_op;
mod ids;
#[cfg(target_os = "linux")]
pub mod loop_device;
pub mod notices;
pub mod os;
mod portable;
#[cfg(windows)]
pub mod raw_disk;
mod reactor;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "sim")]
mod sim_engine;
mod slab;
mod socket;
mod spin;
/// The types that threads share, for [`waker`].
mod sync {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
    pub(crate) use std::sync::{Arc, Mutex};
}
mod task;
mod task_map;
mod timers;
#[cfg(target_os = "linux")]
mod uring;
mod waker;

pub use batch::{Cursor, SendBatch};
#[doc(hidden)]
pub use config::CallBytes;
pub use config::{Config, EngineKind, ParseEngineError, ParsePollingError, Polling};
pub use event::Event;
pub use file_op::FileOp;
pub use ids::{FileId, ListenerId, StreamId, TaskId, WatchId};
pub use reactor::Reactor;
pub use socket::Congestion;
pub use task_map::TaskMap;
pub use waker::Waker;

// Re-exported, because users of a reactor need its buffers.
pub use farblock_mem::allowance;
pub use farblock_mem::{
    ALIGNMENT_BYTES, Buffer, BufferPool, HUGE_PAGE_BYTES, Lender, SharedBuffer, copy_anywhere,
    trim_heap,
};
