//! Measures the cost of an operation on one core, in nanoseconds. 32 operations of 4 KiB are in
//! flight.
//!
//! Run `cargo run --release -p farblock-backends --example cost -- null:1GiB mem:1GiB disk.img`.

use std::error::Error;
use std::time::Instant;

use farblock_backends::Spec;
use farblock_block::{Completion, Namespace, Op};
use farblock_reactor::{Config, EngineKind, Reactor};

const DEPTH: u64 = 32;
const BLOCKS: u32 = 8;
const OPERATIONS: u64 = 1 << 18;

fn main() -> Result<(), Box<dyn Error>> {
    for name in std::env::args().skip(1) {
        let namespace = name.parse::<Spec>()?.open(512, false)?;
        println!("{}", namespace.describe());
        for engine in [EngineKind::Uring, EngineKind::Portable] {
            for (what, write) in [("write", true), ("read", false)] {
                let cost = measure(&*namespace, engine, write)?;
                println!("  {engine:8} {what:5} {cost:6.0} ns");
            }
        }
    }
    Ok(())
}

fn measure(
    namespace: &dyn Namespace,
    engine: EngineKind,
    write: bool,
) -> Result<f64, Box<dyn Error>> {
    let reactor = Reactor::new(&Config { engine, ..Config::default() })?;
    let task = reactor.add_task();
    let mut queue = namespace.open(&reactor, task)?;
    let geometry = namespace.geometry();
    let places = geometry.blocks / u64::from(BLOCKS);
    let mut buffers: Vec<_> =
        (0..DEPTH).map(|_| reactor.buffers().take(geometry.bytes(BLOCKS))).collect();
    let (mut ready, mut done) = (Vec::new(), Vec::<Completion>::new());
    let begin = Instant::now();
    let (mut submitted, mut place) = (0, 0);
    while submitted < OPERATIONS || queue.in_flight() > 0 {
        while submitted < OPERATIONS
            && let Some(buffer) = buffers.pop()
        {
            place = (place + 0x9e37_79b9_7f4a_7c15_u64 % places) % places;
            let lba = place * u64::from(BLOCKS);
            queue.submit(match write {
                true => Op::write(lba, BLOCKS, buffer, 0),
                false => Op::read(lba, BLOCKS, buffer, 0),
            });
            submitted += 1;
        }
        queue.poll(&mut done);
        if done.is_empty() && queue.in_flight() > 0 {
            reactor.poll(None, &mut ready)?;
            ready.clear();
            continue;
        }
        for done in done.drain(..) {
            done.result?;
            buffers.extend(done.buffer);
        }
    }
    Ok(begin.elapsed().as_nanos() as f64 / OPERATIONS as f64)
}
