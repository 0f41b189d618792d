//! Tests of a mirror's verify with read errors on legs, or with a single leg.

mod support;

use std::sync::Arc;

use farblock_backends::fault::{Fault, Rule};
use farblock_backends::mem::Mem;
use farblock_block::blocking::Blocking;
use farblock_block::{BlockError, Command};
use farblock_volumes::{LegSource, LegState, Mirror, MirrorOptions, MirrorStatus, Taking};
use support::Fixed;
use support::legs::{DATA_BYTES, LEG_BYTES, memory};
use support::wire::{Power, Wired};

/// The blocks whose reads fail, in the third region.
const BAD: std::ops::Range<u64> = 260..264;
const REGION: u64 = farblock_volumes::limits::MIN_REGION_BYTES;

fn open(legs: Vec<Arc<dyn LegSource>>) -> Mirror {
    let options = MirrorOptions { taking: Taking::Empty, ..MirrorOptions::default() };
    let mirror = Mirror::open(legs, options).unwrap();
    support::wait_until(|| support::is_whole(&mirror));
    mirror
}

fn verified(mirror: &Mirror) -> MirrorStatus {
    let before = mirror.status().verifies;
    mirror.verify();
    support::wait_until(|| mirror.status().verifies > before);
    mirror.status()
}

/// Legs on which reads of some blocks fail once the faults are enabled.
fn faulty(legs: &[Arc<Mem>], bad: &[usize]) -> (Vec<Arc<Fault>>, Mirror) {
    let rule = || vec![Rule::new(BlockError::ReadFailed).command(Command::Read).blocks(BAD)];
    let fault = |(at, leg): (usize, &Arc<Mem>)| {
        let rules = if bad.contains(&at) { rule() } else { Vec::new() };
        let fault = Arc::new(Fault::new(Arc::clone(leg) as _, rules, 1));
        fault.set_enabled(false);
        fault
    };
    let faults: Vec<Arc<Fault>> = legs.iter().enumerate().map(fault).collect();
    let source = |(at, fault): (usize, &Arc<Fault>)| {
        Arc::new(Fixed::new(&format!("leg{at}"), Arc::clone(fault) as _)) as Arc<dyn LegSource>
    };
    let mirror = open(faults.iter().enumerate().map(source).collect());
    faults.iter().for_each(|fault| fault.set_enabled(true));
    (faults, mirror)
}

#[test]
fn a_region_that_one_leg_cannot_read_is_uncompared() {
    let legs = [(); 2].map(|()| memory(LEG_BYTES));
    let (faults, mirror) = faulty(&legs, &[1]);
    let status = verified(&mirror);
    assert!(faults[1].injected() > 0);
    assert_eq!((status.uncompared_bytes, status.differing_bytes), (REGION, 0));
    assert_eq!(status.verified_bytes, DATA_BYTES - REGION);
    assert_eq!(status.unread_legs, ["leg1"]);
    assert!(support::is_whole(&mirror), "a failed read removes a leg");
    // The next verify starts at the first block.
    faults[1].set_enabled(false);
    let status = verified(&mirror);
    assert_eq!((status.uncompared_bytes, status.verified_bytes), (0, DATA_BYTES));
    assert!(status.unread_legs.is_empty());
}

#[test]
fn a_region_that_no_leg_can_read_is_uncompared() {
    let legs = [(); 2].map(|()| memory(LEG_BYTES));
    let (_faults, mirror) = faulty(&legs, &[0, 1]);
    let status = verified(&mirror);
    assert_eq!((status.uncompared_bytes, status.verified_bytes), (REGION, DATA_BYTES - REGION));
    assert_eq!(status.unread_legs, ["leg0", "leg1"]);
}

/// The mirror must still compare the two readable legs.
#[test]
fn an_unreadable_leg_does_not_hide_differences_of_others() {
    let legs = [(); 3].map(|()| memory(LEG_BYTES));
    let (_faults, mirror) = faulty(&legs, &[1]);
    Blocking::new(&*legs[2]).unwrap().write(BAD.start, &[0xee; 512]).unwrap();
    let status = verified(&mirror);
    assert_eq!((status.uncompared_bytes, status.differing_bytes), (REGION, REGION));
    assert_eq!(status.unread_legs, ["leg1"]);
    assert_eq!(status.differences.len(), 1);
}

#[test]
fn a_mirror_with_one_leg_in_sync_is_uncompared() {
    let legs = [(); 2].map(|()| memory(LEG_BYTES));
    let powers = [(); 2].map(|()| Power::lasting(i64::MAX));
    let wired = |at: usize| Arc::new(Wired::new(&format!("leg{at}"), &legs[at], &powers[at])) as _;
    let mirror = open(vec![wired(0), wired(1)]);
    powers[1].lasts(0);
    support::wait_until(|| mirror.status().legs[1].state == LegState::Out);
    let status = verified(&mirror);
    assert_eq!((status.verified_bytes, status.uncompared_bytes), (0, DATA_BYTES));
    assert!(status.unread_legs.is_empty());
}
