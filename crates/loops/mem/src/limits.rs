//! Limits, each with its unit.

/// The largest buffer that a pool keeps, in bytes. Larger buffers are allocated and freed each
/// time.
pub const POOLED_BUFFER_BYTES: usize = 2 << 20;

/// The maximum number of bytes that one pool keeps. A process with little memory has a smaller
/// limit ([`POOL_SHARE`]).
pub const POOL_BYTES: usize = 64 << 20;

/// All pools together keep at most `1 / POOL_SHARE` of the memory that the process may use.
pub const POOL_SHARE: u64 = 16;

/// All buffers for peers and clients together take at most `1 / BUDGET_SHARE` of the memory that
/// the process may use. The remaining memory is for pools, sockets, the program and the page cache
/// of its files.
pub const BUDGET_SHARE: u64 = 4;

/// At most `1 / THREAD_SHARE` of the threads that a control group allows are event loops. The
/// others are for opening disks, management, and the kernel's io_uring workers.
pub(crate) const THREAD_SHARE: u64 = 4;

/// On Linux, allocations of at least this size, in bytes, get their own mappings. The C library
/// often cannot return such a block from its heap to the system, because smaller blocks near it are
/// in use. Nor can it reuse the block for aligned memory. Pools reuse buffers of this size, so
/// there are few mappings.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) const MAPPED_BYTES: usize = 64 << 10;

/// A pool allocates smaller buffers as parts of mappings of this size, in bytes, so that freed
/// memory returns to the system. In glibc's heap, buffers of 4 KiB took twice their size, and none
/// of it was returned to the system.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) const CARVED_BYTES: usize = 256 << 10;
