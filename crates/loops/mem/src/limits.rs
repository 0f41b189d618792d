//! Limits, with their units.

/// The largest buffer that a pool keeps, in bytes; larger ones are allocated and freed each time.
pub const POOLED_BUFFER_BYTES: usize = 2 << 20;

/// What one pool keeps at most, in bytes.
pub const POOL_BYTES: usize = 64 << 20;

/// Allocations of at least so many bytes are mappings of their own, on Linux: what an allocator is
/// given back between others' small pieces it keeps, and cannot always use again for what is
/// aligned. They are pooled, so that few are made.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) const MAPPED_BYTES: usize = 64 << 10;

/// Smaller buffers of a pool are parts of mappings of so many bytes, for the same reason: those of
/// 4 KiB took twice as much of glibc's heap, and none of it came back.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) const CARVED_BYTES: usize = 256 << 10;
