//! Limits, with their units.

/// The largest buffer that a pool keeps, in bytes; larger ones are allocated and freed each time.
pub const POOLED_BUFFER_BYTES: usize = 2 << 20;

/// The most memory that one pool keeps, in bytes, where memory is plentiful.
pub const POOL_BYTES: usize = 64 << 20;

/// All pools together keep at most this fraction of the memory that the process may use.
pub const POOL_SHARE: u64 = 16;

/// Buffers of peers and clients take at most this fraction of the memory that the process may use.
/// The rest is for pools, sockets, the program and the cache of its files.
pub const BUDGET_SHARE: u64 = 4;

/// Event loops take at most this fraction of the threads that a control group admits. The other
/// threads open disks, serve management, and work for io_uring in the kernel.
pub(crate) const THREAD_SHARE: u64 = 4;

/// On Linux, allocations from this size on get their own mappings. The C library would keep such a
/// freed block between smaller ones, and cannot always reuse it for aligned memory. Buffers of this
/// size are pooled, so there are few mappings.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) const MAPPED_BYTES: usize = 64 << 10;

/// A pool cuts smaller buffers out of mappings of this size, for the same reason. Buffers of 4 KiB
/// took twice as much of glibc's heap, which returned none of it to the system.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) const CARVED_BYTES: usize = 256 << 10;
