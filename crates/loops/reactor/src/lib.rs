//! Event loops: io_uring on Linux, and a portable readiness loop on every system.
//!
//! A [`Reactor`] belongs to one thread and handles its sockets, files and timers. It reports
//! completions: an operation owns its buffer until an [`Event`] returns the buffer. There are no
//! futures and no callbacks. A *task* is a mailbox of events with a "ready" flag. The loop of a
//! thread is
//!
//! ```
//! # use farblock_reactor::*;
//! # fn main() -> std::io::Result<()> {
//! let reactor = Reactor::new(&Config::default())?;
//! let task = reactor.add_task();
//! # reactor.set_timer(task, Some(std::time::Instant::now()));
//! let (mut ready, mut events) = (Vec::new(), Vec::new());
//! loop {
//!     // Submit the queued operations, and wait until a task is ready.
//!     reactor.poll(None, &mut ready)?;
//!     for &task in &ready {
//!         reactor.take_events(task, &mut events);
//!         for event in events.drain(..) {
//!             // Handle the event and queue operations: recv, recv_into, send, file, ...
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
//! - Starting an operation reports no result. Every result, even an immediate one, is an event
//!   that a later [`poll`](Reactor::poll) reports.
//! - Every operation completes exactly once, with an event. If the task was removed, the reactor
//!   drops the event.
//! - A stream has at most one outstanding receive and one outstanding send. Starting a second one
//!   is a bug in the caller, and panics. [`close`](Reactor::close) ends both of them, and
//!   [`Event::Closed`] is the last event of a stream.
//! - Identifiers contain a generation number, so a later object does not get the identifier of a
//!   removed one. A call with a removed object's identifier does nothing. The exception is a file
//!   operation on a removed file, which fails with "not found".
//! - [`poll`](Reactor::poll) does a bounded amount of work. A busy connection does not starve other
//!   connections, and a task that is always ready does not starve the sockets.
//! - By default, an idle reactor sleeps. A busy reactor first checks for work in a loop for a short
//!   time ([`Config::polling`]), if its measurements show a gain.
//! - Once its tables have grown, a reactor allocates nothing and takes no lock for an operation.
//!   There are two exceptions: the file threads of the portable engine share a locked queue, and
//!   [`Waker::wake`] takes a lock unless its task is already marked as ready.
//! - Dropping the reactor ends all outstanding operations. It closes the streams. File operations
//!   may or may not take effect. The drop returns when the system no longer uses any buffer.
//!
//! # Engines
//!
//! | | `uring` | `portable` |
//! |---|---|---|
//! | systems | Linux 6.1 and later, unless forbidden | all systems of `mio` |
//! | sockets | completions, one system call per poll; direct calls when busy | readiness, calls |
//! | files | completions | a few threads; overlapped calls on Windows |
//! | durable writes | `RWF_DSYNC` | `RWF_DSYNC` on Linux, else write and sync |
//! | holes, zeroing | `fallocate` | `fallocate` on Linux, `FSCTL_SET_ZERO_DATA` on Windows |
//! | wakers | an event descriptor | `mio::Waker` |
//! | watches | multishot polls | readiness (Unix only) |
//!
//! The same tests run on both engines. With the feature `sim`, the crate has a third engine, for
//! tests in a simulation.
//!
//! # Not implemented
//!
//! Datagrams, Unix sockets, TLS, name resolution, socket options other than `TCP_NODELAY` and the
//! congestion control, half-closing a stream, cancelling a single operation, deadlines of single
//! operations, zero-copy sends, registered buffers and descriptors.

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
/// The synchronization types of [`waker`]; tests replace them with loom's.
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

// Callers of a reactor need these types.
pub use farblock_mem::allowance;
pub use farblock_mem::{
    ALIGNMENT_BYTES, Buffer, BufferPool, HUGE_PAGE_BYTES, Lender, SharedBuffer, copy_anywhere,
    trim_heap,
};
