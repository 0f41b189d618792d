//! Tests that COMPARE AND WRITE is atomic for all sessions, even while other sessions write.

mod support;

use support::*;

const BLOCK: usize = 512;
const MOST_BLOCKS: u32 = 128;

/// Makes a COMPARE AND WRITE for `blocks` blocks at `lba`. Its block count is in byte 13.
fn cdb(lba: u64, blocks: u32) -> [u8; 16] {
    cdb16(0x89, 0, lba, blocks)
}

/// Compares the blocks at `lba` with `old` and writes `new`. Returns the target's answer.
fn swap(client: &mut Client, lba: u64, old: &[u8], new: &[u8]) -> Reply {
    let data = [old, new].concat();
    client.call(&cdb(lba, (old.len() / BLOCK) as u32), WRITE, data.len() as u32, &data)
}

fn block(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK]
}

#[test]
fn compare_and_write_writes_or_reports_the_first_difference() {
    for &engine in ENGINES {
        let server = serve(engine, disk("mem:1MiB", BLOCK as u32));
        let mut client = Client::new(&server, &Wishes::default());
        assert_eq!(swap(&mut client, 7, &block(0), &block(1)).status, 0);
        assert_eq!(client.read(7, 1, 512), block(1));
        let refused = swap(&mut client, 7, &block(0), &block(2));
        assert_eq!((refused.sense, refused.offset), (Some(MISCOMPARE), Some(0)));
        // As many blocks as the unit allows, with one byte that differs.
        let most = MOST_BLOCKS as usize * BLOCK;
        let mut there = vec![0; most];
        there[most - 3] = 9;
        assert_eq!(client.write(100, &there, 512).status, 0);
        let refused = swap(&mut client, 100, &vec![0; most], &vec![5; most]);
        let offset = Some(most as u32 - 3);
        assert_eq!((refused.sense, refused.offset), (Some(MISCOMPARE), offset));
        assert_eq!(client.read(100, MOST_BLOCKS, 512), there);
        assert_eq!(swap(&mut client, 100, &there, &vec![5; most]).status, 0);
        assert_eq!(client.read(100, MOST_BLOCKS, 512), vec![5; most]);
        assert_eq!(client.call(&cdb(0, 0), 0, 0, &[]).status, 0, "a comparison of no blocks fails");
    }
}

#[test]
fn an_invalid_compare_and_write_changes_nothing() {
    for &engine in ENGINES {
        let server = serve(engine, disk("mem:1MiB", BLOCK as u32));
        let mut client = Client::new(&server, &Wishes::default());
        let invalid = Some((5, 0x2400));
        let more = MOST_BLOCKS + 1;
        let data = vec![0; 2 * more as usize * BLOCK];
        let refused = client.call(&cdb(0, more), WRITE, data.len() as u32, &data);
        assert_eq!(refused.sense, invalid);
        let page = client.call(&[0x12, 1, 0xb0, 0, 64, 0], READ, 64, &[]).data;
        assert_eq!(u32::from(page[5]), MOST_BLOCKS);
        // The data is half as long as the command, or twice as long.
        for bytes in [BLOCK, 4 * BLOCK] {
            let data = [block(0), block(7), block(7), block(7)].concat();
            let refused = client.call(&cdb(0, 1), WRITE, bytes as u32, &data[..bytes]);
            assert_eq!(refused.sense, invalid, "{bytes}");
        }
        let beyond = swap(&mut client, 2047, &vec![0; 2 * BLOCK], &vec![7; 2 * BLOCK]);
        assert_eq!(beyond.sense, Some(OUT_OF_RANGE));
        assert_eq!(client.read(0, 1, 512), block(0));
        assert_eq!(client.read(2047, 1, 512), block(0));
    }
}

#[test]
fn no_other_write_executes_between_compare_and_write() {
    for &engine in ENGINES {
        let gate = Gate::new(disk("mem:1MiB", BLOCK as u32));
        let server = serve(engine, gate.clone());
        let [mut one, mut other] = [1, 2]
            .map(|number| Client::new(&server, &Wishes { isid: [number; 6], ..Wishes::default() }));
        // The command has compared its block, and the gate (a disk that holds back writes) holds
        // its write.
        gate.shut();
        let swapped = begin(&mut one, &block(0), &block(1));
        gate.holds(1);
        let written = begin_write(&mut other, &block(2));
        // The target answers requests of a session in order, so it has already received the write
        // before this read.
        assert_eq!(other.read(9, 1, 512), block(0));
        gate.holds(1);
        gate.open();
        assert_eq!(one.answer(swapped, &[]).status, 0);
        assert_eq!(other.answer(written, &[]).status, 0);
        assert_eq!(one.read(0, 1, 512), block(2));
        // Now the other order: the command waits for a write in flight.
        gate.shut();
        let written = begin_write(&mut other, &block(3));
        gate.holds(1);
        let swapped = begin(&mut one, &block(3), &block(4));
        assert_eq!(one.read(9, 1, 512), block(0));
        gate.open();
        assert_eq!(other.answer(written, &[]).status, 0);
        assert_eq!(one.answer(swapped, &[]).status, 0);
        assert_eq!(one.read(0, 1, 512), block(4));
    }
}

#[test]
fn an_aborted_or_disconnected_compare_and_write_does_not_block_others() {
    for &engine in ENGINES {
        let gate = Gate::new(disk("mem:1MiB", BLOCK as u32));
        let server = serve(engine, gate.clone());
        let [mut one, mut two, mut other] = [1, 2, 3]
            .map(|number| Client::new(&server, &Wishes { isid: [number; 6], ..Wishes::default() }));
        gate.shut();
        let written = begin_write(&mut other, &block(1));
        gate.holds(1);
        let aborted = begin(&mut one, &block(1), &block(2));
        let _gone = begin(&mut two, &block(9), &block(3));
        assert_eq!(two.read(9, 1, 512), block(0));
        drop(two);
        let request = one.manage(ABORT_TASK, aborted);
        // The target has received the command once it answers this later read.
        assert_eq!(one.read(9, 1, 512), block(0));
        gate.open();
        assert_eq!(other.answer(written, &[]).status, 0);
        let answer = one.take();
        assert_eq!((answer.opcode(), answer.word(16), answer.bhs[2]), (0x22, request, 0));
        assert_eq!(other.read(0, 1, 512), block(1));
        assert_eq!(swap(&mut other, 0, &block(1), &block(5)).status, 0);
        assert_eq!(one.read(0, 1, 512), block(5));
    }
}

#[test]
fn concurrent_compare_and_write_increments_lose_no_count() {
    const SESSIONS: u8 = 4;
    const STEPS: u64 = 50;
    let server = serve(ENGINES[0], disk("delay:100us+200us,mem:1MiB", BLOCK as u32));
    let counter = |count: u64| {
        let mut block = block(0);
        block[..8].copy_from_slice(&count.to_le_bytes());
        block
    };
    let count = |block: &[u8]| u64::from_le_bytes(block[..8].try_into().expect("8 bytes"));
    std::thread::scope(|scope| {
        for number in 0..SESSIONS {
            let server = &server;
            scope.spawn(move || {
                let isid = [number; 6];
                let mut client = Client::new(server, &Wishes { isid, ..Wishes::default() });
                let mut done = 0;
                while done < STEPS {
                    let found = count(&client.read(0, 1, 512));
                    // Also write a block that no session compares.
                    let beside = 1 + u64::from(number);
                    assert_eq!(client.write(beside, &counter(done), 512).status, 0);
                    let reply = swap(&mut client, 0, &counter(found), &counter(found + 1));
                    assert!(reply.status == 0 || reply.sense == Some(MISCOMPARE), "{reply:?}");
                    done += u64::from(reply.status == 0);
                }
            });
        }
    });
    let mut client = Client::new(&server, &Wishes::default());
    assert_eq!(count(&client.read(0, 1, 512)), u64::from(SESSIONS) * STEPS);
}

const ABORT_TASK: u8 = 1;

/// Sends a COMPARE AND WRITE without waiting for the answer. Returns its tag.
fn begin(client: &mut Client, old: &[u8], new: &[u8]) -> u32 {
    let data = [old, new].concat();
    client.command(&cdb(0, 1), WRITE | FINAL, data.len() as u32, &data)
}

fn begin_write(client: &mut Client, data: &[u8]) -> u32 {
    client.command(&cdb16(0x8a, 0, 0, 1), WRITE | FINAL, data.len() as u32, data)
}
