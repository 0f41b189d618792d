//! A counting allocator. A test installs it as the global allocator of the program:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: farblock_testkit::Counting = farblock_testkit::Counting;
//! ```
//!
//! An allocation of zeroed memory and a reallocation that moves count once each, because both call
//! `alloc`.
#![allow(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The allocator of the system, with counters.
#[derive(Debug)]
pub struct Counting;

static ALL: AtomicU64 = AtomicU64::new(0);
static MARKED: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
    static IS_MARKED: Cell<bool> = const { Cell::new(false) };
}

/// The number of allocations of all threads since the program started.
pub fn allocations() -> u64 {
    ALL.load(Relaxed)
}

/// The number of allocations of this thread.
pub fn allocations_here() -> u64 {
    HERE.get()
}

/// The number of allocations of threads that called [`mark`], each since its call.
pub fn allocations_marked() -> u64 {
    MARKED.load(Relaxed)
}

/// Counts the allocations of this thread as marked from now on.
pub fn mark() {
    IS_MARKED.set(true);
}

/// The number of bytes that are currently allocated.
pub fn live_bytes() -> usize {
    LIVE_BYTES.load(Relaxed)
}

fn count(bytes: usize) {
    ALL.fetch_add(1, Relaxed);
    LIVE_BYTES.fetch_add(bytes, Relaxed);
    // A thread that is exiting no longer has these variables: do not count its allocations.
    let _ = HERE.try_with(|count| count.set(count.get() + 1));
    if IS_MARKED.try_with(Cell::get).unwrap_or(false) {
        MARKED.fetch_add(1, Relaxed);
    }
}

// SAFETY: all calls go to the system's allocator unchanged, and counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of this function, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of this function, which is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    #[test]
    fn allocations_are_counted() {
        let (all, here, live) = (allocations(), allocations_here(), live_bytes());
        let memory = std::hint::black_box(vec![0u8; 1 << 20]);
        assert!(allocations() > all && live_bytes() >= live + (1 << 20));
        assert_eq!(allocations_here(), here + 1);
        drop(memory);
        let marked = allocations_marked();
        drop(std::hint::black_box(Box::new(1)));
        assert_eq!(allocations_marked(), marked, "a thread without a mark is counted");
        mark();
        drop(std::hint::black_box(Box::new(1)));
        assert_eq!(allocations_marked(), marked + 1);
    }
}
