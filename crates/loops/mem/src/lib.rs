//! Memory: buffers with one owner, which the owner may lend to the kernel, and fast copies.
//!
//! **Contents.** A [`Buffer`] is a part of one allocation, aligned for direct I/O. Callers can
//! split and join buffers without copying. A [`BufferPool`] keeps unused buffers for reuse. A
//! [`SharedBuffer`] has read-only views, whose bytes never change. A [`Lender`] creates buffers
//! from memory that the caller allocated. [`copy_to_memory`] copies without filling the caches,
//! [`copy_anywhere`] copies equally fast to any address, and [`prefetch`] loads memory into the
//! cache.
//!
//! **Contract.** A buffer is exclusive: only its owner can access its bytes, on any thread.
//! Dropping the last buffer of an allocation frees the allocation. A pool belongs to one thread and
//! keeps at most [`limits::POOL_BYTES`]. The module [`allowance`] reports how much memory the
//! process may use.
//!
//! **Not implemented.** I/O and event loops: see `farblock-reactor`, which re-exports this crate's
//! types. All `unsafe` code of buffers is in this crate. `make sanitize` runs its tests under
//! AddressSanitizer.

pub mod allowance;
mod buffer;
mod copy;
mod heap;
#[cfg(target_os = "linux")]
mod huge;
pub mod limits;
mod pool;
mod prefetch;
#[cfg(feature = "sim")]
pub mod tally;

pub use buffer::{ALIGNMENT_BYTES, Buffer, HUGE_PAGE_BYTES, Lender, SharedBuffer};
pub use copy::{copy_anywhere, copy_to_memory};
pub use heap::trim_heap;
pub use pool::BufferPool;
pub use prefetch::prefetch;
