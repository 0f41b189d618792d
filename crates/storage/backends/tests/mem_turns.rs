//! Tests that a RAM disk executes other operations while it zeroes a large range.

use farblock_backends::mem::Mem;
use farblock_block::{Namespace, Op};
use farblock_reactor::{Config, Reactor};

#[test]
fn zeroing_a_small_range_does_not_wait_for_a_large_one() {
    const BLOCKS: u32 = (64 << 20) / 512;
    let mem = Mem::new(512, 64 << 20).unwrap();
    let reactor = Reactor::new(&Config::default()).unwrap();
    let mut queue = mem.open(&reactor, reactor.add_task()).unwrap();
    for lba in (0..u64::from(BLOCKS)).step_by(2048) {
        queue.write_inline(lba, 2048, false, &[1; 2048 * 512]).unwrap().unwrap();
    }
    queue.submit(Op::write_zeroes(0, BLOCKS, false, 1));
    queue.submit(Op::write_zeroes(7, 1, false, 2));
    let mut done = Vec::new();
    let mut polls = 0;
    while queue.in_flight() > 0 {
        queue.poll(&mut done);
        polls += 1;
        assert!(polls > 1 || done.len() == 1, "the small operation waits for the large one");
    }
    let order: Vec<_> = done.iter().map(|done| (done.token, done.result)).collect();
    assert_eq!(order, [(2, Ok(())), (1, Ok(()))]);
}
