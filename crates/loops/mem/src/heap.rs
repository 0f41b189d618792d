//! Returns the allocator's free memory to the system.

/// Returns the allocator's free pages to the system. Without this call, the C library keeps free
/// memory below a block that is in use, and free memory that other threads allocated. The call
/// scans the whole heap, and blocks the allocations of other threads meanwhile. Call it after large
/// frees, from a thread that may wait.
pub fn trim_heap() {
    // SAFETY: any thread may call this function at any time.
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    unsafe {
        libc::malloc_trim(0);
    }
}
