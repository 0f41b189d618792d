//! Tests that freed memory returns to the system. The test runs in its own process, because it
//! measures the memory of the whole process. It does not run with sanitizers, which use other
//! allocators.
#![cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]

use farblock_mem::trim_heap;

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = text.split(' ').nth(1).expect("the resident pages in the second field");
    pages.parse::<usize>().expect("a number") * 4096
}

#[test]
fn trimming_releases_free_memory_between_allocations() {
    const PIECES: usize = 64 << 10;
    const MUCH_BYTES: usize = PIECES * 1024;
    let mut pieces: Vec<Option<Vec<u8>>> = (0..PIECES).map(|_| Some(vec![1; 1024])).collect();
    let full = resident_bytes();
    for (at, piece) in pieces.iter_mut().enumerate() {
        if at % 1000 != 0 {
            *piece = None;
        }
    }
    trim_heap();
    let freed = full.saturating_sub(resident_bytes());
    assert!(freed > MUCH_BYTES / 4, "{freed} of {MUCH_BYTES} bytes were freed");
    assert!(pieces.iter().flatten().all(|piece| piece[..] == [1; 1024]));
}
