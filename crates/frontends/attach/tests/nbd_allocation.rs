//! After a warm-up, NBD requests allocate no memory. The test counts the allocations on the
//! server's threads.
#![cfg(target_os = "linux")]

mod nbd_support;

use farblock_testkit::{Counting, allocations, allocations_marked, mark};
use nbd_support::{Client, ENGINES, FLUSH, READ, WRITE, ZEROES, disk, request, serve};
use std::io::{Read, Write};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of allocations of all threads except the test's own.
fn counted() -> u64 {
    allocations() - allocations_marked()
}

/// Sends a batch of requests, and reads their answers.
fn round(client: &mut Client, batch: &[u8], answers: &mut [u8]) {
    client.stream.write_all(batch).expect("the server reads");
    client.stream.read_exact(answers).expect("the server answers");
}

#[test]
fn nbd_requests_allocate_nothing() {
    mark();
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
        // Some vectors grow when a batch of events is larger than all earlier ones. So a single
        // round may allocate, and the test fails only if every round allocates.
        let counts = [(); 8].map(|()| {
            let before = counted();
            (0..100).for_each(|_| round(&mut client, &batch, &mut answers));
            counted() - before
        });
        assert!(counts.contains(&0), "{engine}: allocations in each 3200 requests: {counts:?}");
    }
}
