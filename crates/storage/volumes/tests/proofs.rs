//! Tests with legs whose contents change below the mirror. The mirror then uses a leg only after it
//! has read the expected record from the leg.

mod support;

use std::sync::Arc;

use farblock_backends::mem::Mem;
use farblock_block::BlockError;
use farblock_block::blocking::Blocking;
use farblock_volumes::{LegState, Mirror, MirrorOptions, Taking};
use support::legs::{DATA_BYTES, LEG_BYTES, copy, lasting, memory, read};
use support::wire::{Power, Wired};

/// A mirror of two legs, each with its own power supply.
struct Pair {
    legs: [Arc<Mem>; 2],
    powers: [Arc<Power>; 2],
    mirror: Mirror,
}

impl Pair {
    fn new() -> Pair {
        let (legs, powers) = ([memory(LEG_BYTES), memory(LEG_BYTES)], [lasting(), lasting()]);
        let wired = |at: usize| Arc::new(Wired::new(&format!("leg{at}"), &legs[at], &powers[at]));
        let options = MirrorOptions { taking: Taking::Empty, ..MirrorOptions::default() };
        let mirror = Mirror::open(vec![wired(0), wired(1)], options).unwrap();
        support::wait_until(|| support::is_whole(&mirror));
        Pair { legs, powers, mirror }
    }

    fn write(&self, byte: u8) {
        let data = vec![byte; DATA_BYTES as usize];
        Blocking::new(&self.mirror).unwrap().write(0, &data).unwrap();
    }

    /// Waits until the records say that both legs have all writes.
    fn settle(&self) {
        support::wait_until(|| self.mirror.status().dirty_bytes == 0);
    }

    fn copy_of(&self, leg: usize) -> Arc<Mem> {
        let kept = memory(LEG_BYTES);
        copy(&self.legs[leg], &kept);
        kept
    }

    fn state(&self, leg: usize) -> (LegState, String) {
        let status = self.mirror.status().legs[leg].clone();
        (status.state, status.reason.unwrap_or_default())
    }
}

/// Another process replaces the target of a leg. The leg then has older data, but still its last
/// record. The mirror copies only the regions in the bitmap, and the leg is in sync again.
#[test]
fn a_leg_of_a_replaced_target_process_is_compared_only_in_dirty_regions() {
    let pair = Pair::new();
    let older = pair.copy_of(1);
    pair.write(1);
    // Copy only the data, without the bitmap in the reserved part.
    let data = read(&older, DATA_BYTES);
    Blocking::new(&*pair.legs[1]).unwrap().write(0, &data).unwrap();
    pair.powers[1].swaps();
    assert_eq!(pair.state(1).0, LegState::Out, "the leg is used before its record is read");
    support::wait_until(|| support::is_whole(&pair.mirror));
    assert!(read(&pair.legs[1], DATA_BYTES).iter().all(|&byte| byte == 1));
}

#[test]
fn an_older_copy_of_a_leg_stays_out_after_its_target_process_was_replaced() {
    let pair = Pair::new();
    pair.write(1);
    pair.settle();
    let older = pair.copy_of(1);
    pair.write(2);
    pair.settle();
    copy(&older, &pair.legs[1]);
    pair.powers[1].swaps();
    support::wait_until(|| pair.state(1).1.contains("an older copy of itself"));
    let mut data = vec![0; DATA_BYTES as usize];
    Blocking::new(&pair.mirror).unwrap().read(0, &mut data).unwrap();
    assert!(data.iter().all(|&byte| byte == 2));
}

/// No event reports the change. The record of the leg reveals it, before the leg gets the next
/// record.
#[test]
fn a_leg_rolled_back_under_a_running_mirror_is_put_out() {
    let pair = Pair::new();
    pair.write(1);
    pair.settle();
    let older = pair.copy_of(1);
    pair.write(2);
    pair.settle();
    copy(&older, &pair.legs[1]);
    support::wait_until(|| pair.state(1).0 == LegState::Out);
    assert_eq!(pair.state(0).0, LegState::InSync);
}

/// The first write after an idle time is acknowledged only when the leg has another record. A copy
/// from the idle time lacks that record.
#[test]
fn a_copy_from_before_the_first_write_is_detected() {
    let pair = Pair::new();
    pair.write(1);
    pair.settle();
    let older = pair.copy_of(1);
    pair.write(2);
    copy(&older, &pair.legs[1]);
    support::wait_until(|| pair.state(1).0 == LegState::Out);
    assert_eq!(pair.state(0).0, LegState::InSync);
}

/// Another disk has replaced the last leg in sync. Reads fail instead of returning older data.
#[test]
fn the_last_leg_is_not_read_before_its_record_is_checked() {
    let pair = Pair::new();
    pair.write(1);
    pair.settle();
    let older = pair.copy_of(0);
    pair.write(2);
    pair.settle();
    pair.powers[1].lasts(0);
    support::wait_until(|| pair.state(1).0 == LegState::Out);
    pair.powers[0].swaps();
    let mut data = vec![0; DATA_BYTES as usize];
    let mut blocks = Blocking::new(&pair.mirror).unwrap();
    blocks.read(0, &mut data).unwrap();
    assert!(data.iter().all(|&byte| byte == 2), "a restarted leg lost data");
    let newer = pair.copy_of(0);
    copy(&older, &pair.legs[0]);
    pair.powers[0].swaps();
    assert_eq!(blocks.read(0, &mut data), Err(BlockError::Disconnected));
    assert_eq!(blocks.write(0, &data), Err(BlockError::Disconnected));
    assert!(pair.state(0).1.contains("another copy of this leg"), "{:?}", pair.state(0));
    copy(&newer, &pair.legs[0]);
    support::wait_until(|| blocks.read(0, &mut data).is_ok());
    assert!(data.iter().all(|&byte| byte == 2));
}

/// The operations fail after a time limit instead of waiting forever.
#[test]
fn operations_fail_when_every_leg_is_unavailable_for_long() {
    let pair = Pair::new();
    pair.write(1);
    pair.powers.iter().for_each(|power| power.lasts(0));
    let mut blocks = Blocking::new(&pair.mirror).unwrap();
    assert_eq!(blocks.write(0, &[2; 512]), Err(BlockError::Disconnected));
    assert_eq!(blocks.read(0, &mut [0; 512]), Err(BlockError::Disconnected));
    let last = pair.mirror.status().legs.into_iter().find(|leg| leg.state == LegState::InSync);
    assert_eq!(last.expect("the last leg stays").reason.as_deref(), Some("the leg is unavailable"));
    pair.powers.iter().for_each(|power| power.lasts(i64::MAX));
    support::wait_until(|| blocks.write(0, &[3; 512]).is_ok());
    support::wait_until(|| support::is_whole(&pair.mirror));
    assert_eq!(read(&pair.legs[0], DATA_BYTES), read(&pair.legs[1], DATA_BYTES));
}
