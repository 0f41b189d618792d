//! Tests of the reserved parts (the record and bitmap at the end of each leg) after a power failure
//! or a failed write at a critical step.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farblock_backends::file::{FileDisk, FileOptions};
use farblock_backends::mem::Mem;
use farblock_block::blocking::Blocking;
use farblock_block::{BlockError, Completion, Namespace, Op, Queue};
use farblock_reactor::{Buffer, Config, Reactor};
use farblock_volumes::{LegSource, LegState, Mirror, MirrorError, MirrorOptions, Taking, limits};
use support::Fixed;
use support::wire::{Power, Wired};

const DATA_BYTES: u64 = 8 * limits::MIN_REGION_BYTES;
const LEG_BYTES: u64 = DATA_BYTES + limits::RESERVED_BYTES;
const BITMAP_AT: u64 = 192 << 10;
/// The number of bytes before the bits in a page of the bitmap.
const HEADER_BYTES: usize = 16;

fn memory() -> Arc<Mem> {
    Arc::new(Mem::new(512, LEG_BYTES).unwrap())
}

fn read(leg: &Arc<Mem>, offset: u64, bytes: usize) -> Vec<u8> {
    let mut disk = Blocking::new(&**leg).unwrap();
    let mut data = vec![0; bytes];
    disk.read(offset / u64::from(leg.geometry().block_size), &mut data).unwrap();
    data
}

fn try_open(legs: [Wired; 2]) -> Result<Mirror, MirrorError> {
    let options = MirrorOptions { taking: Taking::Empty, ..MirrorOptions::default() };
    let legs = legs.into_iter().map(|leg| Arc::new(leg) as Arc<dyn LegSource>);
    Mirror::open(legs.collect(), options)
}

fn open(legs: [Wired; 2]) -> Mirror {
    try_open(legs).unwrap()
}

fn wired(legs: &[Arc<Mem>; 2], power: &Arc<Power>) -> [Wired; 2] {
    [Wired::new("one", &legs[0], power), Wired::new("two", &legs[1], power)]
}

/// A mirror of legs in sync, each with its own power supply, and with an unflushed write.
fn written() -> (Mirror, [Arc<Power>; 2], [Arc<Mem>; 2]) {
    let powers = [(); 2].map(|()| Power::lasting(i64::MAX));
    let legs = [memory(), memory()];
    let wired = |name: &str, leg: usize| Wired::new(name, &legs[leg], &powers[leg]);
    let mirror = open([wired("one", 0), wired("two", 1)]);
    support::wait_until(|| support::is_whole(&mirror));
    Blocking::new(&mirror).unwrap().write(0, &[0x5a; 512]).unwrap();
    (mirror, powers, legs)
}

#[test]
fn a_new_leg_is_filled_after_a_power_loss_at_any_write() {
    for cut in 1.. {
        let legs = [memory(), memory()];
        Blocking::new(&*legs[0]).unwrap().write(0, &vec![0x5a; DATA_BYTES as usize]).unwrap();
        let power = Power::lasting(cut);
        // Before the third write the mirror does not exist yet.
        if let Ok(mirror) = try_open(wired(&legs, &power)) {
            support::wait_until(|| power.is_off() || support::is_whole(&mirror));
        }
        let mirror = open(wired(&legs, &Power::lasting(i64::MAX)));
        support::wait_until(|| support::is_whole(&mirror));
        drop(mirror);
        let [one, other] = legs.each_ref().map(|leg| read(leg, 0, DATA_BYTES as usize));
        assert!(one.iter().all(|&byte| byte == 0x5a), "cut after {cut} writes");
        assert!(one == other, "the second leg differs, cut after {cut} writes");
        if !power.is_off() {
            assert!(cut > 8, "no power failure hit the middle of the writes");
            return;
        }
    }
}

#[test]
fn a_leg_with_data_in_its_first_mib_is_not_overwritten() {
    let bytes = limits::RESERVED_BYTES * 3;
    let legs = [(); 2].map(|()| Arc::new(Mem::new(512, bytes).unwrap()));
    let last = limits::RESERVED_BYTES / 512 - 1;
    Blocking::new(&*legs[1]).unwrap().write(last, &[1; 512]).unwrap();
    let wired = wired(&legs, &Power::lasting(i64::MAX));
    let options = MirrorOptions { taking: Taking::Empty, ..MirrorOptions::default() };
    let refused = Mirror::open(wired.map(|leg| Arc::new(leg) as _).into(), options).err().unwrap();
    assert!(refused.to_string().contains("does not look empty"), "{refused}");
}

#[test]
fn a_growing_leg_keeps_its_record_in_place() {
    let folder = std::env::temp_dir().join(format!("farblock-grows-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let legs = ["one", "two"].map(|name| {
        let path = folder.join(name);
        std::fs::File::create(&path).unwrap().set_len(LEG_BYTES).unwrap();
        Arc::new(FileDisk::open(path, &FileOptions::new(512)).unwrap())
    });
    let options = MirrorOptions { taking: Taking::Empty, ..MirrorOptions::default() };
    let sources = legs
        .iter()
        .map(|leg| Arc::new(Fixed::new(&leg.path().to_string_lossy(), Arc::clone(leg) as _)) as _);
    let mirror = Mirror::open(sources.collect(), options).unwrap();
    support::wait_until(|| support::is_whole(&mirror) && mirror.status().dirty_bytes == 0);
    legs[0].lengthen(LEG_BYTES + limits::RESERVED_BYTES).unwrap();
    // On a busy machine, the mirror may put a slow leg out, and the keeper clears a region that has
    // been idle for a while. So write until a write has marked the region on this leg.
    let mut bytes = Vec::new();
    support::wait_until(|| {
        Blocking::new(&mirror).unwrap().write(0, &[1; 512]).unwrap();
        bytes = std::fs::read(legs[0].path()).unwrap();
        let is_marked = bytes[(DATA_BYTES + BITMAP_AT) as usize + HEADER_BYTES] == 1;
        is_marked && support::is_whole(&mirror)
    });
    assert!(bytes[LEG_BYTES as usize..].iter().all(|&byte| byte == 0));
    let reasons: Vec<_> = mirror.status().legs.into_iter().map(|leg| leg.reason).collect();
    let advice = format!("give it its former size (a file: truncate -s {LEG_BYTES})");
    assert!(reasons[0].as_ref().is_some_and(|reason| reason.contains(&advice)), "{reasons:?}");
    assert_eq!(reasons[1], None);
    drop((mirror, legs));
    std::fs::remove_dir_all(folder).unwrap();
}

fn has_first_region(leg: &Arc<Mem>) -> bool {
    let at = leg.geometry().capacity_bytes() - limits::RESERVED_BYTES + BITMAP_AT;
    read(leg, at, 512)[HEADER_BYTES] & 1 != 0
}

fn write_until_it_works(mirror: &Arc<Mirror>) {
    let mirror = Arc::clone(mirror);
    let writer = std::thread::spawn(move || {
        let mut disk = Blocking::new(&*mirror).unwrap();
        while disk.write(0, &[0xa5; 512]).is_err() {}
    });
    support::wait_until(|| writer.is_finished());
    writer.join().unwrap();
}

fn clean(legs: &[Arc<Mem>; 2]) -> (Arc<Mirror>, [Arc<std::sync::atomic::AtomicU64>; 2]) {
    let power = Power::lasting(i64::MAX);
    let filled = open(wired(legs, &power));
    support::wait_until(|| support::is_whole(&filled));
    drop(filled);
    assert!(!has_first_region(&legs[0]) && !has_first_region(&legs[1]));
    let wired = wired(legs, &power);
    let failing = wired.each_ref().map(Wired::failing);
    (Arc::new(open(wired)), failing)
}

#[test]
fn a_failed_bitmap_write_is_repeated_before_the_data() {
    let legs = [memory(), memory()];
    let (mirror, failing) = clean(&legs);
    failing.iter().for_each(|failing| failing.store(1, Ordering::SeqCst));
    write_until_it_works(&mirror);
    for (leg, status) in mirror.status().legs.iter().enumerate() {
        let counts = status.state == LegState::InSync;
        assert!(!counts || has_first_region(&legs[leg]), "leg {leg} has no record of the region");
    }
}

#[test]
fn a_leg_that_is_out_for_a_moment_blocks_no_write() {
    for _ in 0..3 {
        let legs = [memory(), memory()];
        let (mirror, failing) = clean(&legs);
        failing[1].store(1, Ordering::SeqCst);
        write_until_it_works(&mirror);
        support::wait_until(|| support::is_whole(&mirror));
        drop(mirror);
        assert_eq!(read(&legs[0], 0, 512), read(&legs[1], 0, 512));
    }
}

#[test]
fn a_leg_lost_with_writes_in_flight_does_not_block_the_others() {
    let legs = [memory(), memory(), memory()];
    let power = [(); 3].map(|()| Power::lasting(i64::MAX));
    let sources = (0..3).map(|leg| {
        Arc::new(Wired::new(&format!("leg {leg}"), &legs[leg], &power[leg])) as Arc<dyn LegSource>
    });
    let options = MirrorOptions { taking: Taking::Empty, ..MirrorOptions::default() };
    let mirror = Mirror::open(sources.collect(), options).unwrap();
    support::wait_until(|| support::is_whole(&mirror));
    let mut disk = Blocking::new(&mirror).unwrap();
    disk.write(0, &[1; 512]).unwrap();
    power[1..].iter().for_each(|power| power.lasts(0));
    disk.write(0, &[2; 512]).unwrap();
    disk.write(0, &[3; 512]).unwrap();
    let mut back = |leg: usize| {
        power[leg].lasts(i64::MAX);
        let mut data = [0; 512];
        while mirror.status().legs[leg].state != LegState::InSync {
            disk.read(0, &mut data).unwrap();
            assert_eq!(data, [3; 512]);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert_eq!(read(&legs[leg], 0, 512), [3; 512], "a late write changed the block");
    };
    back(1);
    back(2);
}

#[test]
fn a_leg_that_joins_during_the_copy_of_a_region_gets_the_whole_region() {
    let region = limits::MIN_REGION_BYTES;
    let legs = [(); 3].map(|()| Mem::new(512, region + limits::RESERVED_BYTES).unwrap());
    let legs = legs.map(Arc::new);
    Blocking::new(&*legs[0]).unwrap().write(0, &vec![0x5a; region as usize]).unwrap();
    let power = Power::lasting(i64::MAX);
    let wired = legs.each_ref().map(|leg| {
        let name = format!("leg {:p}", Arc::as_ptr(leg));
        Wired::new(&name, leg, &power).with_max_blocks(8)
    });
    // The third leg returns at the second attempt, when the region is partly copied.
    wired[2].failing().store(1, Ordering::SeqCst);
    let options = MirrorOptions {
        taking: Taking::Empty,
        copy_bytes_per_second: Some(32 << 10),
        ..MirrorOptions::default()
    };
    let mirror = Mirror::open(wired.map(|leg| Arc::new(leg) as _).into(), options).unwrap();
    support::wait_until(|| support::is_whole(&mirror));
    drop(mirror);
    for leg in &legs {
        assert!(read(leg, 0, region as usize).iter().all(|&byte| byte == 0x5a));
    }
}

#[test]
fn large_blocks_keep_bitmap_pages_in_separate_blocks() {
    // Slightly more regions than fit into one page.
    let regions = 4096 * 8 + 100;
    let bytes = regions * limits::MIN_REGION_BYTES + limits::RESERVED_BYTES;
    let leg = || Arc::new(Mem::new(16384, bytes).unwrap());
    let legs = [leg(), leg()];
    let mirror = open(wired(&legs, &Power::lasting(i64::MAX)));
    support::wait_until(|| mirror.status().legs[1].state == LegState::CatchingUp);
    drop(mirror);
    let bitmap =
        read(&legs[0], bytes - limits::RESERVED_BYTES + BITMAP_AT, 16384).split_off(HEADER_BYTES);
    let marked: u32 = bitmap.iter().map(|byte| byte.count_ones()).sum();
    assert_eq!(u64::from(marked), regions, "some regions are not marked");
}

/// The machine of a leg restarts before the mirror puts the leg out, and loses acknowledged data.
/// Reads avoid the leg.
#[test]
fn a_leg_that_lost_its_cache_is_not_read() {
    let legs = [memory(), memory()];
    let (steady, blinking) = (Power::lasting(i64::MAX), Power::lasting(i64::MAX));
    let mirror =
        open([Wired::new("one", &legs[0], &steady), Wired::new("two", &legs[1], &blinking)]);
    support::wait_until(|| support::is_whole(&mirror));
    Blocking::new(&mirror).unwrap().write(0, &[0x5a; 512]).unwrap();

    let reactor = Reactor::new(&Config::default()).unwrap();
    let mut queue = mirror.open(&reactor, reactor.add_task()).unwrap();
    blinking.lasts(0);
    // The mirror sends one read to each leg. The second read waits for the unavailable leg.
    for token in 0..2 {
        queue.submit(Op::read(0, 1, Buffer::new(512), token));
    }
    Blocking::new(&*legs[1]).unwrap().write(0, &[0; 512]).unwrap();
    blinking.blinks();
    let mut done = Vec::new();
    while done.len() < 2 {
        reactor.poll(Some(Duration::from_millis(2)), &mut Vec::new()).unwrap();
        queue.poll(&mut done);
    }
    for done in &done {
        assert_eq!(done.result, Ok(()));
        assert_eq!(done.buffer.as_deref().unwrap()[0], 0x5a, "read {} is old", done.token);
    }
    drop(queue);
    // The leg lacks only that region, and returns.
    support::wait_until(|| support::is_whole(&mirror));
    assert_eq!(read(&legs[1], 0, 512)[0], 0x5a);
}

/// All legs have lost data, and report this to the keeper's own flush. The mirror must still report
/// the loss to its user, once.
#[test]
fn a_flush_failure_seen_by_the_keeper_is_reported_to_the_user_once() {
    let (mirror, powers, _) = written();
    let mut disk = Blocking::new(&mirror).unwrap();
    powers.iter().for_each(|power| power.fail_flush());
    support::wait_until(|| powers.iter().all(|power| !power.owes_flush()));
    support::wait_until(|| support::is_whole(&mirror));
    assert_eq!(disk.flush(), Err(BlockError::WriteFailed));
    assert_eq!(disk.flush(), Ok(()));
}

/// Polls a queue until it has completed an operation, at most `rounds` times.
fn completes(reactor: &Reactor, queue: &mut dyn Queue, rounds: usize) -> Option<Completion> {
    let mut done = Vec::new();
    for _ in 0..rounds {
        queue.poll(&mut done);
        if !done.is_empty() {
            break;
        }
        reactor.poll(Some(Duration::from_millis(2)), &mut Vec::new()).unwrap();
    }
    done.pop()
}

/// A user flushes while the keeper does not know the result of its own flush yet. Every leg has
/// answered the keeper's flush, so each leg executes the user's flush. The user's flush must not
/// succeed before the keeper knows the result. If the caller has abandoned that flush, the next
/// flush fails.
#[test]
fn a_user_flush_fails_together_with_a_failing_keeper_flush() {
    for unwanted in [false, true] {
        let (mirror, powers, _) = written();
        let mut disk = Blocking::new(&mirror).unwrap();
        powers.iter().for_each(|power| power.keeps_failure(true));
        powers.iter().for_each(|power| power.fail_flush());
        support::wait_until(|| powers.iter().all(|power| !power.owes_flush()));

        let reactor = Reactor::new(&Config::default()).unwrap();
        let mut queue = mirror.open(&reactor, reactor.add_task()).unwrap();
        queue.submit(Op::flush(7));
        let early = completes(&reactor, &mut *queue, 20);
        queue.abandon(&mut |token| unwanted && token == 7);
        powers.iter().for_each(|power| power.keeps_failure(false));
        assert_eq!(early.map(|done| done.result), None, "the write ended too early");
        let done = completes(&reactor, &mut *queue, 30_000).expect("the keeper's flush ends");
        assert_eq!(done.result, Err(BlockError::WriteFailed));
        if unwanted {
            assert_eq!(
                disk.flush(),
                Err(BlockError::WriteFailed),
                "the error of the keeper's flush was lost"
            );
        }
        assert_eq!(disk.flush(), Ok(()));
    }
}

/// One leg reports a loss while another leg is slow. From then on the mirror does not read from the
/// first leg, no matter who flushed.
#[test]
fn a_leg_that_fails_a_flush_is_put_out_at_once() {
    for is_users in [false, true] {
        let (mirror, powers, legs) = written();
        let mut disk = Blocking::new(&mirror).unwrap();
        let reactor = Reactor::new(&Config::default()).unwrap();
        let mut queue = mirror.open(&reactor, reactor.add_task()).unwrap();
        powers[1].keeps_failure(true);
        powers.iter().for_each(|power| power.fail_flush());
        if is_users {
            queue.submit(Op::flush(7));
        }
        support::wait_until(|| {
            let is_out = mirror.status().legs[0].state == LegState::Out;
            is_out || completes(&reactor, &mut *queue, 1).is_some()
        });
        assert_eq!(mirror.status().legs[0].state, LegState::Out, "the leg stays in use");
        Blocking::new(&*legs[0]).unwrap().write(0, &[0; 512]).unwrap();
        for _ in 0..4 {
            let mut data = [0; 512];
            disk.read(0, &mut data).unwrap();
            assert_eq!(data[0], 0x5a, "the block was read from the leg that lost it");
        }
        powers[1].keeps_failure(false);
        if is_users {
            let done = completes(&reactor, &mut *queue, 30_000).expect("both legs answer");
            assert_eq!(done.result, Err(BlockError::WriteFailed));
        }
        support::wait_until(|| support::is_whole(&mirror));
        assert_eq!(read(&legs[0], 0, 512)[0], 0x5a);
    }
}
