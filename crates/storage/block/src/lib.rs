//! The namespace contract: the block device interface for all code of farblock that provides or
//! uses block devices.
//!
//! A [`Namespace`] is a numbered row of blocks, shared by threads. A [`Queue`] is one thread's
//! access to it: it belongs to one [`Reactor`], takes operations and returns completions, without
//! futures, locks or allocation per operation. Frontends (the NVMe controller, the attach drivers,
//! the benchmark) submit; backends (memory, files, stripes, a remote namespace) implement.
//! [`Blocking`](blocking::Blocking) is a synchronous interface to a queue,
//! [`AsyncNamespace`](nonblocking::AsyncNamespace) one with futures.
//!
//! # Contract
//!
//! **Ownership.** An [`Op`] owns its buffer and its [`Token`] until its one terminal
//! [`Completion`], which returns both: the same buffer, whole, whether the operation succeeded or
//! failed. Until then nothing else can access the buffer. The buffer may start at any address. A
//! write leaves its contents unchanged; a failed read leaves them unspecified. Dropping an
//! unfinished token panics.
//!
//! **Progress.** [`Queue::submit`] never blocks and never fails: the completion reports any error
//! of an operation. The operation starts at the latest in the reactor's next `poll`.
//! [`Queue::poll`] collects completions. Call it after submitting (an operation may complete at
//! once) and whenever the parent task is ready. An operation counts as in flight until `poll` has
//! returned its completion.
//!
//! **Ranges.** The frontend checks ranges with [`Geometry::check`] before it submits. A backend
//! checks again, with checked arithmetic, because the namespace may have changed since. It answers
//! [`BlockError::OutOfRange`] or [`BlockError::ReadOnly`]. The submitter ensures that a read or
//! write has a buffer of exactly [`Geometry::bytes`]. A backend asserts this: peers cannot cause a
//! wrong length, so it is a bug in farblock. An operation of zero blocks succeeds and does nothing
//! if `lba` is at most the capacity; its buffer is then empty or absent. Commands other than read
//! and write have no buffer.
//!
//! **Order.** Operations complete in any order. Overlapping operations in flight at the same time
//! have no order among them, and a read that overlaps a write in flight may see any mixture of old
//! and new blocks.
//!
//! **At once.** A namespace that need not wait may lend a read's data ([`Queue::read_borrowed`])
//! and store a write's data ([`Queue::write_inline`]) in the call itself. Both follow the same
//! rules of range, order and durability as operations, and are complete when the call returns: they
//! are never in flight, and wake no task. Lent data stays as it was at the call, whatever is
//! written or deallocated afterwards, even after queue and namespace are dropped. Read it and drop
//! it soon. After an error nothing is lent or stored. A decorator without support for this returns
//! `None`.
//!
//! **Durability.** Everything that completed before a [`Command::Flush`] was submitted is durable
//! once the flush completes. A write (or write zeroes) with `fua` is durable once it completes.
//! Without a volatile cache ([`Geometry::volatile_cache`]) every completed write is durable, except
//! in a namespace that promises no durability at all (memory). A failed flush or write is reported
//! to its submitter only and never silently retried.
//!
//! **Zeroes.** After [`Command::WriteZeroes`] reads return zeroes, whether it was allowed to
//! deallocate or not. After [`Command::Deallocate`] reads return zeroes or the old data: the same
//! contents on every read until the block is written. `Deallocate` is a hint: where
//! [`Geometry::deallocate`] is false it succeeds and does nothing.
//!
//! **Resizing.** A namespace may grow, shrink, or become read-only or writable while it is in use:
//! `blocks` and `read_only` of [`Namespace::geometry`] then change. A remote namespace may also
//! change `volatile_cache`. The other fields never change. Operations in flight beyond a new end
//! fail with [`BlockError::OutOfRange`], or complete as if nothing had happened. New blocks have
//! any contents until they are written.
//!
//! **Notification.** A namespace that changes reports it once through [`Namespace::changes`], after
//! the change has taken effect in open queues as well. Frontends and targets watch it, and notify
//! their own clients. A namespace without [`Changes`] does not change. A decorator passes on the
//! changes of its inner namespace.
//!
//! **Opening never blocks.** An event loop may call [`Namespace::open`]: slow steps (connecting a
//! remote namespace) run elsewhere, and operations wait for them.
//!
//! **Read-only.** A read-only namespace answers [`BlockError::ReadOnly`] to every operation that
//! would change it. A flush succeeds.
//!
//! **Giving up.** [`Queue::abandon`] ends operations that a queue has not started yet, for a
//! submitter whose own client has disconnected. The submitter must wait for started operations that
//! must not overtake later ones.
//!
//! **Teardown.** A queue dropped with operations in flight *abandons* them: it never returns their
//! completions. It does not wait. Their buffers stay with the reactor until the kernel has finished
//! with them, and are then recycled. The effect of an abandoned write on its range is unspecified,
//! as after a power cut; other ranges are unchanged. Other queues of the namespace continue.
//!
//! # Not in the contract
//!
//! Compare and Verify (the frontend reads and compares, so there is one implementation),
//! reservations, metadata and protection information, atomic writes larger than a block, and
//! cancelling one operation.

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

/// A row of equally sized blocks, shared by any number of threads, each with its own [`Queue`]s.
pub trait Namespace: Send + Sync {
    /// Sizes and abilities. Only `blocks`, `read_only` and `volatile_cache` ever change.
    fn geometry(&self) -> Geometry;

    /// One line for logs and the operator: `file disk.img (1 GiB, 512-byte blocks)`.
    fn describe(&self) -> String;

    /// Where to watch this namespace for changes; `None` if it never changes.
    fn changes(&self) -> Option<&Changes> {
        None
    }

    /// Whether the namespace can carry out operations at the moment.
    fn availability(&self) -> Availability {
        Availability::Ready
    }

    /// Why the namespace cannot carry out operations now, or will lose its contents, for the
    /// operator. `None`: neither is known.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// The remote namespaces that this one consists of; empty if its data is on this machine.
    fn parts(&self) -> Vec<Arc<dyn Part>> {
        Vec::new()
    }

    /// Opens a queue on `reactor`, without waiting. When operations of the queue complete,
    /// `parent`'s root task becomes ready.
    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError>;
}

/// One thread's access to a [`Namespace`]: submits operations, collects completions. See the
/// crate's contract.
pub trait Queue {
    /// Takes an operation. Never blocks; the operation starts at the latest in the reactor's next
    /// `poll`.
    fn submit(&mut self, op: Op);

    /// A hint that the block at `lba`, if there is one, will be read soon, so that the namespace
    /// can prefetch its lookup data. Call this several reads ahead.
    fn expect_read(&mut self, _lba: u64) {}

    /// Reads at once and without a copy, where the namespace can: appends buffers that together
    /// hold the blocks, for the caller to read and then drop. Later writes do not change them.
    /// `None`, and nothing appended, if the namespace cannot: then submit a read.
    fn read_borrowed(
        &mut self,
        _lba: u64,
        _blocks: u32,
        _into: &mut Vec<Buffer>,
    ) -> Option<Result<(), BlockError>> {
        None
    }

    /// Writes at once, straight from `data`, where the namespace can. With `fua` the write is
    /// durable on return. `data` has exactly [`Geometry::bytes`] of `blocks`. `None`, and nothing
    /// written, if the namespace cannot: then submit a write.
    fn write_inline(
        &mut self,
        _lba: u64,
        _blocks: u32,
        _fua: bool,
        _data: &[u8],
    ) -> Option<Result<(), BlockError>> {
        None
    }

    /// Cancels operations that have not started and whose token `unwanted` selects: they complete
    /// with [`BlockError::Aborted`] and have no effect. The others continue. A queue that starts
    /// every operation at once need not do anything.
    fn abandon(&mut self, _unwanted: &mut dyn FnMut(u64) -> bool) {}

    /// Appends completed operations to `done`. Call it after submitting and whenever the parent
    /// task is ready.
    fn poll(&mut self, done: &mut Vec<Completion>);

    /// Submitted operations whose completions [`poll`](Queue::poll) has not returned yet.
    fn in_flight(&self) -> usize;
}
