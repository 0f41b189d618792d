//! Tests initiators that die while they write. The same or other initiators then log in. A dead
//! session's write must never undo a later acknowledged write.

mod support;

use farblock_backends::delay::Delay;
use farblock_block::Namespace;
use farblock_random::Random;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::*;

const BLOCK: usize = 512;
const BLOCKS: u64 = 16;
/// The longest delay of a write.
const JITTER: Duration = Duration::from_millis(12);
/// The duration of the test. `DROPS_SECONDS=n` makes it longer.
const RUN: Duration = Duration::from_secs(5);

/// Writes a value to a block without waiting for the answer.
fn begin(client: &mut Client, lba: u64, value: u8) {
    let cdb = cdb16(0x8a, 0, lba, 1);
    client.command(&cdb, WRITE | FINAL, BLOCK as u32, &[value; BLOCK]);
}

#[test]
fn writes_of_a_dead_session_do_not_execute_later() {
    let text = std::env::var("DROPS_SECONDS").ok();
    let run = text.map_or(RUN, |it| Duration::from_secs(it.parse().expect("a number")));
    for &engine in ENGINES {
        let seed = std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.subsec_nanos().into());
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let delay = Delay::new(disk("mem:1MiB", BLOCK as u32), Duration::ZERO);
        let namespace: Arc<dyn Namespace> = Arc::new(delay.jitter(JITTER, seed));
        let server = serve(engine, namespace);
        let wishes =
            |isid: u64| Wishes { isid: [0x80, 0, 0, 0, 0, isid as u8], ..Wishes::default() };
        let (start, mut rounds, mut writes) = (Instant::now(), 0_u64, 0);
        while start.elapsed() < run {
            rounds += 1;
            let value = (rounds % 120) as u8 * 2 + 1;
            let isid = random.below(3);
            let mut dead = Client::new(&server, &wishes(isid));
            for lba in 0..BLOCKS {
                begin(&mut dead, lba, value);
            }
            std::thread::sleep(Duration::from_micros(random.below(15_000)));
            drop(dead);
            // The same initiator or another one logs in.
            let back = if random.below(2) == 0 { isid } else { random.below(3) };
            let mut client = Client::new(&server, &wishes(back));
            for lba in 0..BLOCKS {
                assert_eq!(client.write(lba, &[value + 1; BLOCK], BLOCK as u32).status, 0);
            }
            std::thread::sleep(JITTER);
            let read = client.read(0, BLOCKS as u32, BLOCK as u32);
            let stale = read.iter().position(|byte| *byte != value + 1);
            assert_eq!(stale, None, "round {rounds}: a dead session's write was executed");
            client.log_out();
            writes += 2 * BLOCKS;
        }
        println!("{engine}: {rounds} dead sessions, {writes} writes");
        server.stop(true).expect("the server stops");
    }
}
