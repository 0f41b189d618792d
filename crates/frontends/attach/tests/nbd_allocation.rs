//! Requests allocate nothing once everything has warmed up. Counted on the server's threads.
#![cfg(target_os = "linux")]

mod nbd_support;

use nbd_support::{Client, ENGINES, FLUSH, READ, WRITE, ZEROES, disk, request, serve};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The test's own threads do not count.
    static IS_CLIENT: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    // Not to be had while a thread ends.
    if !IS_CLIENT.try_with(Cell::get).unwrap_or(true) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// So many requests of each kind at once, and their answers.
fn round(client: &mut Client, batch: &[u8], answers: &mut [u8]) {
    client.stream.write_all(batch).expect("the server takes it");
    client.stream.read_exact(answers).expect("the server answers");
}

#[test]
fn requests_allocate_nothing() {
    IS_CLIENT.set(true);
    for engine in ENGINES {
        let server = serve(engine, disk("mem:16MiB", 512));
        let mut client = Client::simple(&server);
        let (mut batch, mut answer_bytes) = (Vec::new(), 0);
        for index in 0..32 {
            let (code, length) =
                [(READ, 4096), (WRITE, 4096), (ZEROES, 512), (FLUSH, 0)][index as usize % 4];
            batch.extend(request(0, code, index, index * 65_536, length));
            let data = if code == WRITE { length } else { 0 };
            batch.extend((0..data).map(|byte| byte as u8));
            answer_bytes += 16 + if code == READ { length as usize } else { 0 };
        }
        let mut answers = vec![0; answer_bytes];
        // How events bunch up is up to the system: a bunch larger than any before makes vectors
        // grow once more. An allocation per request, or per anything regular, shows every time.
        let counts = [(); 8].map(|()| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            (0..100).for_each(|_| round(&mut client, &batch, &mut answers));
            ALLOCATIONS.load(Ordering::Relaxed) - before
        });
        assert!(counts.contains(&0), "{engine}: allocations in each 3200 requests: {counts:?}");
    }
}
