//! The namespace contract: the block device interface for all code of farblock that provides or
//! uses block devices.
//!
//! A [`Namespace`] is a numbered sequence of blocks that threads share. A [`Queue`] is one thread's
//! access to a namespace. It belongs to one [`Reactor`], accepts operations and returns
//! completions, without futures, locks or allocation per operation. Frontends (the NVMe controller,
//! the attach drivers, the benchmark) submit operations. Backends (memory, files, stripes, a remote
//! namespace) implement the interface. [`Blocking`](blocking::Blocking) is a synchronous interface,
//! and [`AsyncNamespace`](nonblocking::AsyncNamespace) is an interface with futures.
//!
//! # Contract
//!
//! **Ownership.** An [`Op`] owns its buffer and its [`Token`] until its one terminal
//! [`Completion`]. The completion returns both: the same whole buffer, after a success and after a
//! failure. Until then no other code can access the buffer. The buffer may start at any address. A
//! write leaves the contents of the buffer unchanged. A failed read leaves them unspecified.
//! Dropping an unfinished token panics.
//!
//! **Progress.** [`Queue::submit`] never blocks and never fails: the completion reports any error
//! of an operation. The operation starts at the latest in the reactor's next `poll`.
//! [`Queue::poll`] collects completions. Call it after submitting, because an operation may
//! complete immediately, and whenever the parent task is ready. An operation is in flight until
//! `poll` has returned its completion.
//!
//! **Ranges.** The frontend checks ranges with [`Geometry::check`] before it submits. A backend
//! checks them again, with checked arithmetic, because the namespace may have changed since. It
//! fails an operation that is no longer valid with [`BlockError::OutOfRange`] or
//! [`BlockError::ReadOnly`].
//!
//! The submitter ensures that a read or write has a buffer of exactly [`Geometry::bytes`]. A
//! backend asserts this: peers cannot cause a wrong length, so a wrong length is a bug in farblock.
//! An operation of zero blocks succeeds and does nothing if `lba` is at most the capacity. Its
//! buffer is empty or absent. Commands other than read and write have no buffer.
//!
//! **Order.** Operations complete in any order. Overlapping operations that are in flight at the
//! same time have no order. A read that overlaps a write in flight may return any mixture of old
//! and new blocks.
//!
//! **Immediate operations.** A namespace that need not wait may lend a read's data
//! ([`Queue::read_borrowed`]) and store a write's data ([`Queue::write_inline`]) in the call
//! itself. Both follow the rules of operations for ranges, order and durability. They are complete
//! when the call returns: they are never in flight, and wake no task.
//!
//! Borrowed data never changes, whatever later operations write or deallocate, even after the queue
//! and the namespace are dropped. Callers must read and drop it soon. After an error, the namespace
//! has lent or stored nothing. A namespace without support for immediate operations returns `None`.
//!
//! **Durability.** All operations that completed before the submission of a [`Command::Flush`] are
//! durable when the flush completes. A write (or write zeroes) with `fua` is durable when it
//! completes. Without a volatile cache ([`Geometry::volatile_cache`]), every completed write is
//! durable, except in a namespace that promises no durability (memory). Only the submitter learns
//! of a failed flush or write. The namespace never silently retries it.
//!
//! **Zeroes.** After [`Command::WriteZeroes`], reads return zeroes, whether or not the command
//! allowed deallocation. After [`Command::Deallocate`], reads return zeroes or the old data: the
//! same contents on every read until the next write. `Deallocate` is a hint: if
//! [`Geometry::deallocate`] is false, it succeeds and does nothing.
//!
//! **Resizing.** A namespace may grow, shrink, or become read-only or writable during its use. Then
//! `blocks` and `read_only` of [`Namespace::geometry`] change. A remote namespace may also change
//! `volatile_cache`. The other fields never change. Operations in flight beyond a new end fail with
//! [`BlockError::OutOfRange`] or complete normally. New blocks have unspecified contents before the
//! first write.
//!
//! **Notification.** A namespace reports each change once through [`Namespace::changes`], after the
//! change has taken effect in all queues. Frontends and targets watch for changes, and
//! notify their own clients. A namespace without [`Changes`] does not change. A decorator (a
//! namespace around another one) passes on the changes of its inner namespace.
//!
//! **Opening never blocks.** An event loop may call [`Namespace::open`]. Slow steps, such as
//! connecting a remote namespace, run on another thread, and operations wait for them.
//!
//! **Read-only.** A read-only namespace fails every operation that would change it with
//! [`BlockError::ReadOnly`]. A flush succeeds.
//!
//! **Abandoning.** [`Queue::abandon`] ends operations that a queue has not started yet. A submitter
//! uses it when its own client has disconnected. If later operations must not overtake started
//! operations, the submitter must wait for the started operations.
//!
//! **Teardown.** If a queue is dropped with operations in flight, it *abandons* them: it never
//! returns their completions, and does not wait. Their buffers stay with the reactor until the
//! kernel no longer uses them. The reactor then recycles them. The effect of an abandoned write on
//! its range is unspecified, as after a power cut. Other ranges are unchanged. Other queues of the
//! namespace continue.
//!
//! # Not in the contract
//!
//! Compare and Verify (the frontend reads and compares, so there is only one implementation),
//! reservations, metadata and protection information, atomic writes larger than a block, and
//! cancelling a single operation.

mod backed;
pub mod blocking;
mod change;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod geometry;
mod latency;
pub mod nonblocking;
mod op;
mod part;
pub mod size;
pub mod slab;
#[cfg(feature = "testing")]
pub mod testing;

pub use backed::Backed;
pub use change::{Availability, Change, Changes, Watch};
pub use error::BlockError;
pub use geometry::{Geometry, MAX_BLOCK_SIZE_BYTES, MIN_BLOCK_SIZE_BYTES};
pub use latency::{LATENCY_STEPS, Latency, LatencyCounts, latency_bound_us};
pub use op::{Command, Completion, Op, Token, abandon_waiting};
pub use part::Part;

use farblock_reactor::{Buffer, Reactor, TaskId};
use std::sync::Arc;

/// A sequence of blocks of equal size. Any number of threads share it, and each thread has its own
/// [`Queue`]s.
pub trait Namespace: Send + Sync {
    /// Returns the sizes and capabilities. Only `blocks`, `read_only` and `volatile_cache` ever
    /// change.
    fn geometry(&self) -> Geometry;

    /// Returns one line for logs and the operator: `file disk.img (1 GiB, 512-byte blocks)`.
    fn describe(&self) -> String;

    /// Returns the [`Changes`] with which callers watch this namespace; `None` if the namespace
    /// never changes.
    fn changes(&self) -> Option<&Changes> {
        None
    }

    /// Returns whether the namespace can currently execute operations.
    fn availability(&self) -> Availability {
        Availability::Ready
    }

    /// Returns the reason why the namespace currently cannot execute operations, or will lose its
    /// contents, as text for the operator. `None`: there is no such reason, or it is unknown.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Returns the remote namespaces that this namespace consists of; empty if its data is on this
    /// machine.
    fn parts(&self) -> Vec<Arc<dyn Part>> {
        Vec::new()
    }

    /// Opens a queue on `reactor` without waiting. When operations of the queue complete, `parent`
    /// (or the root task above it) becomes ready.
    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError>;
}

/// One thread's access to a [`Namespace`]: submits operations and collects completions. See the
/// [contract](crate#contract).
pub trait Queue {
    /// Submits an operation. Never blocks. The operation starts at the latest in the reactor's next
    /// `poll`.
    fn submit(&mut self, op: Op);

    /// Hints that the caller will soon read the block at `lba`, which may be beyond the end. The
    /// namespace can then prefetch the data with which it finds the block. Call this function
    /// several reads ahead.
    fn expect_read(&mut self, _lba: u64) {}

    /// Reads immediately and without a copy, if the namespace supports this. Appends buffers that
    /// together hold the blocks. The caller reads and then drops them. Later writes do not change
    /// them. `None`: the namespace does not support this and appended nothing. The caller must then
    /// submit a read.
    fn read_borrowed(
        &mut self,
        _lba: u64,
        _blocks: u32,
        _into: &mut Vec<Buffer>,
    ) -> Option<Result<(), BlockError>> {
        None
    }

    /// Writes immediately from `data`, without a copy to a buffer, if the namespace supports this.
    /// With `fua` the write is durable on return. The length of `data` must be exactly
    /// [`Geometry::bytes`] of `blocks`. `None`: the namespace does not support this and wrote
    /// nothing. The caller must then submit a write.
    fn write_inline(
        &mut self,
        _lba: u64,
        _blocks: u32,
        _fua: bool,
        _data: &[u8],
    ) -> Option<Result<(), BlockError>> {
        None
    }

    /// Cancels operations that have not started and for whose token `unwanted` returns true. The
    /// cancelled operations complete with [`BlockError::Aborted`] and have no effect; all others
    /// continue. A queue that starts every operation immediately need not implement this function.
    fn abandon(&mut self, _unwanted: &mut dyn FnMut(u64) -> bool) {}

    /// Appends completed operations to `done`. Call this function after submitting and whenever the
    /// parent task is ready.
    fn poll(&mut self, done: &mut Vec<Completion>);

    /// Returns the number of submitted operations whose completions [`poll`](Queue::poll) has not
    /// returned yet.
    fn in_flight(&self) -> usize;
}
