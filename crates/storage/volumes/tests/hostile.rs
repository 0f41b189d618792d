//! Tests with legs that have changed when they return. One test lets the power fail at each step of
//! copying to one leg, while another leg is lost.

mod support;

use std::sync::Arc;

use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_block::blocking::Blocking;
use farblock_block::size::ExactSize;
use farblock_volumes::{LegState, Mirror, MirrorOptions, Taking, limits};
use support::legs::{DATA_BYTES, LEG_BYTES, copy, lasting, memory, read, try_open};
use support::wire::{Power, Wired};

fn open(legs: &[Option<&Arc<Mem>>]) -> Mirror {
    let mirror = try_open(legs, &lasting(), |_| {}).unwrap();
    support::wait_until(|| support::is_whole(&mirror));
    mirror
}

fn create(legs: &[Option<&Arc<Mem>>]) -> Mirror {
    let mirror = try_open(legs, &lasting(), |options| options.taking = Taking::Empty).unwrap();
    support::wait_until(|| support::is_whole(&mirror));
    mirror
}

fn write(mirror: &Mirror, byte: u8) {
    Blocking::new(mirror).unwrap().write(0, &vec![byte; DATA_BYTES as usize]).unwrap();
}

fn refused(legs: &[Option<&Arc<Mem>>]) -> String {
    try_open(legs, &lasting(), |_| {}).map(|_| ()).unwrap_err()
}

#[test]
fn an_older_copy_of_a_leg_is_refused_when_the_mirror_starts() {
    for at in 0..2 {
        let legs = [memory(LEG_BYTES), memory(LEG_BYTES)];
        let all = legs.each_ref().map(Some);
        write(&create(&all), 1);
        let older = memory(LEG_BYTES);
        copy(&legs[at], &older);
        // The mirror accepts an unchanged leg.
        write(&open(&all), 2);
        let mut with_copy = all;
        with_copy[at] = Some(&older);
        let error = refused(&with_copy);
        assert!(error.contains(&format!("leg{at} is an older copy of itself")), "{error}");
        drop(open(&all));
        // The mirror copies all data to an emptied leg.
        let empty = memory(LEG_BYTES);
        with_copy[at] = Some(&empty);
        drop(create(&with_copy));
        assert!(read(&empty, DATA_BYTES).iter().all(|&byte| byte == 2));
    }
}

#[test]
fn an_older_copy_of_a_leg_is_refused_while_the_mirror_is_in_use() {
    let legs = [memory(LEG_BYTES), memory(LEG_BYTES)];
    let all = legs.each_ref().map(Some);
    write(&create(&all), 1);
    let [older, newer] = [memory(LEG_BYTES), memory(LEG_BYTES)];
    copy(&legs[1], &older);
    let powers = [lasting(), lasting()];
    let wired = |at: usize| Arc::new(Wired::new(&format!("leg{at}"), &legs[at], &powers[at])) as _;
    let mirror = Mirror::open(vec![wired(0), wired(1)], MirrorOptions::default()).unwrap();
    support::wait_until(|| support::is_whole(&mirror));
    write(&mirror, 2);
    powers[1].lasts(0);
    let second = || mirror.status().legs[1].clone();
    support::wait_until(|| second().state == LegState::Out);
    copy(&legs[1], &newer);
    copy(&older, &legs[1]);
    powers[1].lasts(i64::MAX);
    support::wait_until(|| {
        second().reason.is_some_and(|reason| reason.contains("the leg is an older copy of itself"))
    });
    assert_eq!(second().state, LegState::Out);
    copy(&newer, &legs[1]);
    support::wait_until(|| support::is_whole(&mirror));
    drop(mirror);
    assert!(read(&legs[1], DATA_BYTES).iter().all(|&byte| byte == 2));
}

fn generation(leg: &Mem) -> u64 {
    let end = read(leg, LEG_BYTES).split_off(DATA_BYTES as usize);
    let of_slot = |at: usize| u64::from_le_bytes(end[at + 48..at + 56].try_into().unwrap());
    of_slot(0).max(of_slot(64 << 10))
}

/// Starts the mirror with only leg `at`, again and again. At the end, the leg's record is newer
/// than the other leg's record by more generations than a record remembers. Each start writes
/// `byte`.
fn restart_alone(legs: &[Arc<Mem>; 2], at: usize, byte: u8) {
    let until = generation(&legs[at]) + limits::HISTORY as u64 + 20;
    let mut alone = [None; 2];
    alone[at] = Some(&legs[at]);
    let mut starts = 0;
    while generation(&legs[at]) < until {
        let mirror = try_open(&alone, &lasting(), |options| options.degraded = true).unwrap();
        let lba = starts % 8 * limits::MIN_REGION_BYTES / 512;
        Blocking::new(&mirror).unwrap().write(lba, &[byte; 512]).unwrap();
        starts += 1;
    }
    assert!(starts > 30, "the target did not restart often enough");
}

#[test]
fn a_leg_that_was_out_longer_than_the_history_is_filled() {
    for at in 0..2 {
        let legs = [memory(LEG_BYTES), memory(LEG_BYTES)];
        write(&create(&legs.each_ref().map(Some)), 1);
        restart_alone(&legs, at, 2);
        let mirror = open(&legs.each_ref().map(Some));
        assert_eq!(read_all(&mirror)[..513], [[2; 512].as_slice(), &[1]].concat());
        drop(mirror);
        let [one, other] = legs.each_ref().map(|leg| read(leg, DATA_BYTES));
        assert!(one == other && one[..512] == [2; 512]);
    }
}

#[test]
fn legs_that_were_written_alone_are_refused_after_any_number_of_restarts() {
    for more in [None, Some(0), Some(1)] {
        let legs = [memory(LEG_BYTES), memory(LEG_BYTES)];
        write(&create(&legs.each_ref().map(Some)), 1);
        restart_alone(&legs, 0, 2);
        restart_alone(&legs, 1, 3);
        // Now the record of one leg is older than the history in the record of the other leg.
        more.into_iter().for_each(|at| restart_alone(&legs, at, 4));
        let before = legs.each_ref().map(|leg| read(leg, LEG_BYTES));
        for order in [[0, 1], [1, 0]] {
            let named = order.map(|at| Some(&legs[at]));
            for degraded in [false, true] {
                let opened = try_open(&named, &lasting(), |options| options.degraded = degraded);
                let error = opened.map(drop).unwrap_err();
                assert!(error.contains("were each written without the other"), "{more:?}: {error}");
            }
        }
        assert!(before == legs.each_ref().map(|leg| read(leg, LEG_BYTES)), "a leg was written");
    }
}

#[test]
fn legs_in_another_order_are_the_same_mirror() {
    let legs = [memory(LEG_BYTES), memory(LEG_BYTES), memory(LEG_BYTES)];
    let [one, two, three] = legs.each_ref().map(Some);
    write(&create(&[one, two, three]), 1);
    write(&open(&[three, one, two]), 2);
    drop(open(&[one, two, three]));
    let twice = refused(&[one, two, two]);
    assert!(twice.contains("copies of the same leg"), "{twice}");
    let fewer = refused(&[one, two]);
    assert!(fewer.contains("name all legs"), "{fewer}");
    assert!(legs.iter().all(|leg| read(leg, DATA_BYTES).iter().all(|&byte| byte == 2)));
}

/// The leg has no record at the expected place. The mirror does not overwrite the leg, and the data
/// are intact when the leg has its former size again.
#[test]
fn a_leg_that_grew_or_shrank_is_refused() {
    for change in [-512_i64, 512, -(limits::RESERVED_BYTES as i64), limits::RESERVED_BYTES as i64] {
        let legs = [memory(LEG_BYTES), memory(LEG_BYTES)];
        let all = legs.each_ref().map(Some);
        write(&create(&all), 1);
        let odd = memory(LEG_BYTES.checked_add_signed(change).unwrap());
        copy(&legs[1], &odd);
        let before = read(&odd, odd.geometry().capacity_bytes());
        let error = refused(&[Some(&legs[0]), Some(&odd)]);
        // If a whole MiB is cut off, the record is lost. Otherwise the mirror finds it.
        let is_lost = change == -(limits::RESERVED_BYTES as i64);
        let former = format!("leg1 was a leg of a mirror when it had {}", ExactSize(LEG_BYTES));
        let reason = if is_lost { "leg1 has no mirror record" } else { &former };
        assert!(error.contains(reason), "{change}: {error}");
        let taken = try_open(&[Some(&legs[0]), Some(&odd)], &lasting(), |options| {
            options.taking = Taking::Empty;
        });
        let error = taken.map(|_| ()).unwrap_err();
        let reason = if is_lost { "use a larger leg" } else { &former };
        assert!(error.contains(reason), "{change}: {error}");
        assert!(read(&odd, before.len() as u64) == before, "{change}: the leg was written");
        drop(open(&all));
    }
}

/// The power fails while the mirror fills one of three legs, and another leg is lost, too.
#[test]
fn power_loss_with_a_lost_leg_at_each_step_of_filling_loses_no_data() {
    for lost in 0..2 {
        // Begin with five writes: with fewer, the mirror does not even start, because it first
        // writes the bitmap and the record of the two legs in sync.
        for cut in 5.. {
            let legs = [memory(LEG_BYTES), memory(LEG_BYTES), memory(LEG_BYTES)];
            let all = legs.each_ref().map(Some);
            write(&create(&all), 1);
            let degraded = |options: &mut MirrorOptions| options.degraded = true;
            let two = try_open(&[all[0], all[1], None], &lasting(), degraded).unwrap();
            write(&two, 2);
            drop(two);
            let power = Power::lasting(cut);
            let filling = try_open(&all, &power, |_| {}).unwrap();
            support::wait_until(|| power.is_off() || support::is_whole(&filling));
            let is_whole = !power.is_off();
            drop(filling);

            let mut left = all;
            left[lost] = None;
            let mirror = try_open(&left, &lasting(), degraded).unwrap();
            let data = read_all(&mirror);
            assert!(data.iter().all(|&byte| byte == 2), "cut after {cut} writes, without {lost}");
            support::wait_until(|| mirror.status().legs[2].state == LegState::InSync);
            write(&mirror, 3);
            drop(mirror);
            let back = bring_back(&all, lost);
            let is_new = |leg: &Arc<Mem>| read(leg, DATA_BYTES).iter().all(|&byte| byte == 3);
            assert!(
                is_new(&back) && is_new(&legs[1 - lost]) && is_new(&legs[2]),
                "cut after {cut} writes, without {lost}"
            );
            if is_whole {
                assert!(cut > 16, "no power failure hit the middle of the writes");
                break;
            }
        }
    }
}

/// Adds a lost leg again, and returns it. Before the power failure, the mirror may have written a
/// record only to the lost leg, and then continued with the other legs. The mirror then refuses the
/// lost leg, and the test replaces it with an empty one.
fn bring_back(all: &[Option<&Arc<Mem>>; 3], lost: usize) -> Arc<Mem> {
    match try_open(all, &lasting(), |_| {}) {
        Ok(mirror) => {
            support::wait_until(|| support::is_whole(&mirror));
            Arc::clone(all[lost].expect("the leg is back"))
        }
        Err(error) => {
            assert!(error.contains("were each written without the other"), "{error}");
            let empty = memory(LEG_BYTES);
            let mut with_empty = *all;
            with_empty[lost] = Some(&empty);
            drop(create(&with_empty));
            empty
        }
    }
}

fn read_all(mirror: &Mirror) -> Vec<u8> {
    let mut data = vec![0; DATA_BYTES as usize];
    Blocking::new(mirror).unwrap().read(0, &mut data).unwrap();
    data
}
