//! What the allocator keeps of what it was given back.

/// Gives the system back what is free on the allocator's pages. The C library's keeps all that lies
/// below something in use, and what other threads allocated. It walks through all there is, and
/// holds up whoever allocates meanwhile: for when much was given back, and from a thread that may
/// wait.
pub fn trim_heap() {
    // SAFETY: it may be called at any time, by any thread.
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    unsafe {
        libc::malloc_trim(0);
    }
}
