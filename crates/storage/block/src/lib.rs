//! The namespace contract: what a block device is to every part of farblock that reads or writes
//! one.
//!
//! A [`Namespace`] is a numbered row of blocks, shared by threads. A [`Queue`] is one thread's way
//! into it: it belongs to one [`Reactor`], takes operations and hands back completions, without
//! futures, locks or allocation per operation. Frontends (the NVMe controller, the attach drivers,
//! the benchmark) submit; backends (memory, files, stripes, a remote namespace) implement.
//! [`Blocking`](blocking::Blocking) puts a synchronous face on a queue,
//! [`AsyncNamespace`](nonblocking::AsyncNamespace) one of futures.
//!
//! # Contract
//!
//! **Ownership.** An [`Op`] owns its buffer and its [`Token`] until its one terminal
//! [`Completion`], which gives both back: the same buffer, whole, whether the operation succeeded
//! or failed. Until then nobody else can reach the buffer. It may begin at any address. A write
//! leaves its contents alone; after a failed read they are unspecified. A token dropped unfinished
//! panics.
//!
//! **Progress.** [`Queue::submit`] never blocks and never fails: whatever is wrong with an
//! operation is reported by its completion. The operation is started at the latest by the reactor's
//! next `poll`. Completions are collected with [`Queue::poll`], which is to be called after
//! submitting (an operation may be complete at once) and whenever the parent task is ready. An
//! operation counts as in flight until `poll` has handed its completion out.
//!
//! **Ranges.** The frontend checks ranges with [`Geometry::check`] before it submits. A backend
//! checks again, only because a namespace may have changed, with checked arithmetic, and answers
//! [`BlockError::OutOfRange`] or [`BlockError::ReadOnly`]. That a read or write carries a buffer of
//! exactly [`Geometry::bytes`] is the submitter's duty; a backend asserts it, since a wrong length
//! there is a bug of ours and not something that a peer can cause. An operation of zero blocks
//! succeeds and does nothing if `lba` is at most the capacity; its buffer is then empty or absent.
//! Other commands carry no buffer.
//!
//! **Order.** Operations complete in any order. Overlapping operations in flight at the same time
//! have no order among them, and a read that overlaps a write in flight may see any mixture of old
//! and new blocks.
//!
//! **At once.** A namespace that need not wait may lend a read's data ([`Queue::lend`]) and store a
//! write's ([`Queue::store`]) in the call itself. Both have the ranges, the order and the
//! durability that operations have, and are complete when the call returns: they are not in flight,
//! and nobody is woken. What is lent stays as it was at the call, whatever is written or
//! deallocated afterwards, even when queue and namespace are gone; it is to be read and dropped
//! soon. With an error nothing is lent, or stored. A decorator that does not know better says that
//! it cannot.
//!
//! **Durability.** Everything that completed before a [`Command::Flush`] was submitted is durable
//! once the flush completes. A write (or write zeroes) with `fua` is durable once it completes.
//! Without a volatile cache ([`Geometry::volatile_cache`]) that is true of every write, or the
//! namespace promises no durability at all (memory). A failed flush or write is reported to exactly
//! its caller and never retried behind its back.
//!
//! **Zeroes.** After [`Command::WriteZeroes`] reads give zeroes, whether it was allowed to
//! deallocate or not. After [`Command::Deallocate`] reads give zeroes or the old data, but the same
//! on every read until the block is written. `Deallocate` is a hint: where [`Geometry::deallocate`]
//! is false it succeeds and does nothing.
//!
//! **Resizing.** A namespace may grow, shrink, or become read-only or writable while it is in use:
//! `blocks` and `read_only` of [`Namespace::geometry`] then change, and nothing else ever does.
//! What was in flight beyond a new end ends with [`BlockError::OutOfRange`] or as if nothing had
//! happened. Blocks that a namespace gains hold anything until they are written.
//!
//! **Changes are told.** A namespace that changes by itself tells of it at [`Namespace::changes`],
//! once, after the change; queues that are open have it then, too. Frontends and targets watch
//! that, and tell their own clients. A namespace without such a place does not change. A decorator
//! passes on what it decorates.
//!
//! **Opening never blocks.** [`Namespace::open`] may be called on an event loop: what takes time
//! (connecting a remote namespace) is done elsewhere, and operations wait for it.
//!
//! **Read-only.** A read-only namespace answers [`BlockError::ReadOnly`] to whatever would change
//! it. A flush succeeds.
//!
//! **Giving up.** [`Queue::abandon`] ends what a queue has not begun yet, for a submitter whose own
//! client is gone; what was begun has to be waited for by whoever must not be overtaken by it.
//!
//! **Teardown.** A queue dropped with operations in flight *abandons* them: their completions are
//! never handed out. It does not wait. Their buffers stay with the reactor until the kernel is done
//! with them, and are recycled then. What an abandoned write did to its range is unspecified, as
//! after a power cut; other ranges are untouched. Other queues of the namespace go on.
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

use farblock_reactor::{Buffer, Reactor, TaskId};

/// A row of equally sized blocks, shared by any number of threads, each with [`Queue`]s of its own.
pub trait Namespace: Send + Sync {
    /// Sizes and abilities. Constant for the life of a namespace, except for `blocks` and
    /// `read_only`.
    fn geometry(&self) -> Geometry;

    /// One line for logs and people: `file disk.img (1 GiB, 512-byte blocks)`.
    fn describe(&self) -> String;

    /// Where it tells of its changes; `None` if it never changes.
    fn changes(&self) -> Option<&Changes> {
        None
    }

    /// Whether operations can be carried out at the moment.
    fn availability(&self) -> Availability {
        Availability::Ready
    }

    /// Why they cannot at the moment, for people, if that is known.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Opens a queue on `reactor`, without waiting for anything. When operations of the queue
    /// complete, `parent`'s root task becomes ready.
    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError>;
}

/// One thread's way into a [`Namespace`]: submit operations, collect completions. See the crate's
/// contract.
pub trait Queue {
    /// Takes an operation. Never blocks; the operation is started at the latest by the reactor's
    /// next `poll`.
    fn submit(&mut self, op: Op);

    /// The block at `lba`, if there is one, will be read soon: what it takes to find it may be
    /// brought near meanwhile. A hint, to be given some reads ahead.
    fn expect_read(&mut self, _lba: u64) {}

    /// Reads at once and without a copy, where the namespace can: appends buffers that together
    /// hold the blocks, to be read and then dropped. What is written afterwards does not change
    /// them. `None`, and nothing appended, if it cannot, now or ever: then submit a read.
    fn lend(
        &mut self,
        _lba: u64,
        _blocks: u32,
        _into: &mut Vec<Buffer>,
    ) -> Option<Result<(), BlockError>> {
        None
    }

    /// Writes at once, from where the data are, where the namespace can: durably, with `fua`.
    /// `data` are exactly [`Geometry::bytes`] of `blocks`. `None`, and nothing done, if it cannot,
    /// now or ever: then submit a write.
    fn store(
        &mut self,
        _lba: u64,
        _blocks: u32,
        _fua: bool,
        _data: &[u8],
    ) -> Option<Result<(), BlockError>> {
        None
    }

    /// Gives operations up that nobody wants any more: of those for whose token `unwanted` says so,
    /// the ones that were not begun end with [`BlockError::Aborted`], and nothing of them is done
    /// later. The others go on. A queue that begins what it is given at once has nothing to do.
    fn abandon(&mut self, _unwanted: &mut dyn FnMut(u64) -> bool) {}

    /// Appends what has completed to `done`. Call it after submitting and whenever the parent task
    /// is ready.
    fn poll(&mut self, done: &mut Vec<Completion>);

    /// Operations submitted whose completions [`poll`](Queue::poll) has not handed out yet.
    fn in_flight(&self) -> usize;
}
