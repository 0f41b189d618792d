//! Returns the allocator's free memory to the system.

/// Returns the allocator's free pages to the system. By itself the C library keeps all free memory
/// below a block in use, and memory that other threads allocated. The call walks through the whole
/// heap and blocks other threads' allocations meanwhile. Call it after large frees, from a thread
/// that may wait.
pub fn trim_heap() {
    // SAFETY: it may be called at any time, by any thread.
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    unsafe {
        libc::malloc_trim(0);
    }
}
