//! Limits, each with its unit.

/// The largest buffer that a pool keeps, in bytes. Larger buffers are allocated and freed each
/// time.
pub const POOLED_BUFFER_BYTES: usize = 2 << 20;

/// One pool keeps at most this many bytes, or fewer if the process may use little memory; see
/// [`POOL_SHARE`].
pub const POOL_BYTES: usize = 64 << 20;

/// All pools together keep at most `1 / POOL_SHARE` of the memory that the process may use.
pub const POOL_SHARE: u64 = 16;

/// The buffers of peers and clients take at most `1 / BUDGET_SHARE` of the memory that the process
/// may use. The remaining memory is for pools, sockets, the program and the page cache of its
/// files.
pub const BUDGET_SHARE: u64 = 4;

/// Event loops take at most `1 / THREAD_SHARE` of the threads that a control group admits. The
/// other threads open disks, serve management, and work for io_uring in the kernel.
pub(crate) const THREAD_SHARE: u64 = 4;

/// On Linux, allocations of at least this size, in bytes, get their own mappings. Without this, the
/// C library would often keep such a block after it was freed, because smaller blocks next to it
/// are in use, and could not always reuse it for aligned memory. Pools keep buffers of this size,
/// so there are few mappings.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) const MAPPED_BYTES: usize = 64 << 10;

/// A pool allocates smaller buffers as parts of mappings of this size, in bytes, so that the system
/// gets freed memory back. Buffers of 4 KiB took twice as much of glibc's heap, and glibc returned
/// none of it to the system.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) const CARVED_BYTES: usize = 256 << 10;
