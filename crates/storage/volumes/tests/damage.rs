//! Tests with corrupt reserved parts (the record and bitmap at the end of each leg) and with old
//! copies of a leg. In some tests the power fails while a starting mirror writes its first records.

mod support;

use std::sync::Arc;

use farblock_backends::mem::Mem;
use farblock_block::blocking::Blocking;
use farblock_volumes::{LegState, Mirror, MirrorOptions, Taking, limits};
use support::legs::{DATA_BYTES, LEG_BYTES, copy, lasting, memory, read, try_open};
use support::wire::{Power, Wired};

/// The offset of the bitmap's first page on the leg.
const PAGE_AT: u64 = DATA_BYTES + (192 << 10);
const REGION: usize = limits::MIN_REGION_BYTES as usize;

type Legs = [Arc<Mem>; 2];

fn create() -> Legs {
    let legs = [memory(LEG_BYTES), memory(LEG_BYTES)];
    let taking = |options: &mut MirrorOptions| options.taking = Taking::Empty;
    let mirror = try_open(&legs.each_ref().map(Some), &lasting(), taking).unwrap();
    support::wait_until(|| support::is_whole(&mirror));
    drop(mirror);
    legs
}

fn open(legs: &Legs) -> Mirror {
    try_open(&legs.each_ref().map(Some), &lasting(), |_| {}).unwrap()
}

fn open_without_second(legs: &Legs) -> Mirror {
    let degraded = |options: &mut MirrorOptions| options.degraded = true;
    try_open(&[Some(&legs[0]), None], &lasting(), degraded).unwrap()
}

fn fill(mirror: &Mirror, region: usize, byte: u8) {
    let lba = (region * REGION / 512) as u64;
    Blocking::new(mirror).unwrap().write(lba, &vec![byte; REGION]).unwrap();
}

fn region(mirror: &Mirror, region: usize) -> u8 {
    let mut data = [0; 512];
    Blocking::new(mirror).unwrap().read((region * REGION / 512) as u64, &mut data).unwrap();
    data[0]
}

/// Returns a copy of the present contents of a leg.
fn image(leg: &Arc<Mem>) -> Arc<Mem> {
    let image = memory(LEG_BYTES);
    copy(leg, &image);
    image
}

fn put(leg: &Mem, at: u64, bytes: &[u8]) {
    Blocking::new(leg).unwrap().write(at / 512, bytes).unwrap();
}

fn become_the_same(legs: &Legs, byte: u8, what: &str) {
    let mirror = open(legs);
    // Legs in sync may differ after a crash. The mirror makes them equal while it serves I/O.
    let is_alike = || support::is_whole(&mirror) && mirror.status().suspect_bytes == 0;
    support::wait_until(is_alike);
    assert_eq!(region(&mirror, 0), byte, "{what}");
    drop(mirror);
    let [one, other] = legs.each_ref().map(|leg| read(leg, DATA_BYTES));
    assert!(one == other, "{what}: the legs differ");
}

/// A leg that loses power right after write number `writes`. [`tear`] damages that write.
fn torn(leg: &Arc<Mem>, writes: i64) -> Arc<Wired> {
    Arc::new(Wired::new("torn", leg, &Power::lasting(writes)))
}

/// Leaves a record or bitmap page as a power failure during its write would leave it.
fn tear(leg: &Mem, sector: u64) {
    put(leg, DATA_BYTES + sector * 512, &[0x5a; 512]);
}

fn empty() -> MirrorOptions {
    MirrorOptions { taking: Taking::Empty, ..MirrorOptions::default() }
}

/// The leg was empty and the mirror copied nothing to it. So the mirror accepts the leg when the
/// power is back.
#[test]
fn an_empty_leg_with_a_torn_first_record_is_accepted() {
    for sector in [0, 7] {
        let legs = [memory(LEG_BYTES), memory(LEG_BYTES)];
        put(&legs[0], 0, &[7; 512]);
        let mirror =
            Mirror::open(vec![torn(&legs[0], i64::MAX), torn(&legs[1], 1)], empty()).unwrap();
        support::wait_until(|| mirror.status().legs[1].reason.is_some());
        drop(mirror);
        tear(&legs[1], sector);
        let mirror =
            Mirror::open(vec![torn(&legs[0], i64::MAX), torn(&legs[1], i64::MAX)], empty());
        let mirror = mirror.unwrap();
        support::wait_until(|| support::is_whole(&mirror));
        assert_eq!(region(&mirror, 0), 7);
        drop(mirror);
        become_the_same(&legs, 7, "afterwards");
    }
}

/// The mirror does not mistake other data for its own unfinished record.
#[test]
fn a_leg_with_other_data_at_its_end_is_refused() {
    let legs = [memory(LEG_BYTES), memory(LEG_BYTES)];
    tear(&legs[1], 0);
    let taking = |options: &mut MirrorOptions| options.taking = Taking::Empty;
    let error = try_open(&legs.each_ref().map(Some), &lasting(), taking).map(drop).unwrap_err();
    assert!(error.contains("does not look empty"), "{error}");
}

#[test]
fn a_new_mirror_with_a_torn_first_record_can_be_created_again() {
    for sector in [0, 7, 384] {
        let legs = [memory(LEG_BYTES), memory(LEG_BYTES)];
        put(&legs[0], 0, &[7; 512]);
        let lost = Mirror::open(vec![torn(&legs[0], 1), torn(&legs[1], i64::MAX)], empty());
        let error = lost.map(drop).unwrap_err().to_string();
        assert!(error.contains("became unavailable while the mirror started"), "{error}");
        tear(&legs[0], sector);
        let taking = |options: &mut MirrorOptions| options.taking = Taking::Empty;
        let mirror = try_open(&legs.each_ref().map(Some), &lasting(), taking).unwrap();
        support::wait_until(|| support::is_whole(&mirror));
        drop(mirror);
        become_the_same(&legs, 7, "afterwards");
    }
}

#[test]
fn a_start_fails_when_all_legs_are_lost_during_its_first_records() {
    let mut started = 0;
    for cut in 0..6 {
        let legs = create();
        let (power, copies) = (Power::lasting(cut), legs.clone());
        let starting = std::thread::spawn(move || {
            try_open(&copies.each_ref().map(Some), &power, |_| {}).map(drop)
        });
        support::wait_until(|| starting.is_finished());
        match starting.join().unwrap() {
            Ok(()) => started += 1,
            Err(error) => assert!(cut < 4 && !error.is_empty(), "cut after {cut} writes: {error}"),
        }
        if (1..4).contains(&cut) {
            assert_eq!(started, 0, "cut after {cut} writes");
        }
        become_the_same(&legs, 0, "afterwards");
    }
    assert_eq!(started, 2, "not every start without a power failure succeeded");
}

#[test]
fn a_flipped_bitmap_bit_does_not_hide_outdated_regions() {
    for bit in 0..8 {
        let legs = create();
        let mirror = open_without_second(&legs);
        (0..8).for_each(|region| fill(&mirror, region, 7));
        drop(mirror);
        // Format version 1, without checksums, had the page elsewhere. So clear the bit in both
        // places.
        for page_at in [PAGE_AT, PAGE_AT - (64 << 10)] {
            let mut end = read(&legs[0], LEG_BYTES).split_off(page_at as usize);
            end.truncate(4096);
            end[16] &= !(1 << bit);
            end[0] &= if page_at == PAGE_AT { 0xff } else { !(1 << bit) };
            put(&legs[0], page_at, &end);
        }
        become_the_same(&legs, 7, &format!("bit {bit}"));
    }
}

#[test]
fn a_torn_bitmap_does_not_hide_outdated_regions() {
    for torn in 0..8_u64 {
        let legs = create();
        let mirror = open_without_second(&legs);
        (0..8).for_each(|region| fill(&mirror, region, 7));
        drop(mirror);
        put(&legs[0], PAGE_AT + torn * 512, &[0xa5; 512]);
        // Format version 1, without checksums, had the page elsewhere, so damage both places.
        put(&legs[0], PAGE_AT - (64 << 10) + torn * 512, &[0; 512]);
        become_the_same(&legs, 7, &format!("part {torn}"));
    }
}

/// While one leg in sync has an undamaged bitmap page, a damaged copy of the page has no effect.
#[test]
fn an_undamaged_bitmap_is_preferred_to_a_damaged_one() {
    let legs = create();
    let mirror = open(&legs);
    fill(&mirror, 3, 7);
    let crashed = legs.each_ref().map(image);
    drop(mirror);
    let [one, both] = [1, 2].map(|damaged| {
        let legs = crashed.each_ref().map(image);
        legs[..damaged].iter().for_each(|leg| put(leg, PAGE_AT, &[0x5a; 512]));
        let mirror = open(&legs);
        mirror.status().dirty_bytes
    });
    assert_eq!((one, both), (REGION as u64, DATA_BYTES));
}

/// The regions that the copy lacks were in the bitmap, but the mirror has cleared them.
#[test]
fn an_older_copy_of_a_leg_is_detected_after_the_mirror_was_closed() {
    for leg in 0..2 {
        let legs = create();
        let mirror = open(&legs);
        fill(&mirror, 0, 1);
        let older = image(&legs[leg]);
        fill(&mirror, 0, 2);
        drop(mirror);
        let kept = image(&legs[leg]);
        copy(&older, &legs[leg]);
        let error = try_open(&legs.each_ref().map(Some), &lasting(), |_| {}).map(drop).unwrap_err();
        assert!(error.contains("is an older copy of itself"), "{error}");
        copy(&kept, &legs[leg]);
        become_the_same(&legs, 2, "as it was left");
    }
}

#[test]
fn an_older_copy_of_a_leg_is_detected_after_the_bitmap_was_cleared() {
    let legs = create();
    let powers = [lasting(), lasting()];
    let wired = |at: usize| Arc::new(Wired::new(&format!("leg{at}"), &legs[at], &powers[at])) as _;
    let mirror = Mirror::open(vec![wired(0), wired(1)], MirrorOptions::default()).unwrap();
    support::wait_until(|| support::is_whole(&mirror));
    fill(&mirror, 0, 1);
    let older = image(&legs[1]);
    fill(&mirror, 0, 2);
    support::wait_until(|| mirror.status().dirty_bytes == 0);
    powers[1].lasts(0);
    let second = || mirror.status().legs[1].clone();
    support::wait_until(|| second().state == LegState::Out);
    copy(&older, &legs[1]);
    powers[1].lasts(i64::MAX);
    support::wait_until(|| {
        let reason = second().reason.unwrap_or_default();
        reason.contains("older copy of itself") || support::is_whole(&mirror)
    });
    assert_eq!(second().state, LegState::Out, "the mirror uses a leg that lacks writes");
}

/// The mirror was not closed, and no record shows that one leg was replaced by an older copy. The
/// mirror nevertheless uses the data of the other leg.
#[test]
fn an_older_copy_of_a_leg_is_not_used_as_the_source() {
    let legs = create();
    let mirror = open(&legs);
    fill(&mirror, 0, 1);
    let older = image(&legs[0]);
    fill(&mirror, 0, 2);
    fill(&mirror, 5, 2);
    let crashed = [older, image(&legs[1])];
    drop(mirror);
    become_the_same(&crashed, 2, "what was acknowledged");
}

/// A starting mirror wrote its record to only one leg before the power failed. The mirror then
/// continues on the other leg. The first leg lacks only the data written meanwhile.
#[test]
fn a_leg_with_a_record_that_no_other_leg_has_is_not_refilled() {
    for starts in 1..3 {
        let legs = create();
        for _ in 0..starts {
            // Both legs have the bitmap, and the second leg also has a record.
            let wired = |at: usize, writes| {
                Arc::new(Wired::new(&format!("leg{at}"), &legs[at], &Power::lasting(writes))) as _
            };
            let lost = Mirror::open(vec![wired(0, 1), wired(1, 2)], MirrorOptions::default());
            let error = lost.map(drop).unwrap_err().to_string();
            assert!(error.contains("became unavailable while the mirror started"), "{error}");
        }
        let mirror = open_without_second(&legs);
        fill(&mirror, 0, 7);
        drop(mirror);
        let mirror = open(&legs);
        support::wait_until(|| support::is_whole(&mirror));
        assert!(mirror.status().copied_bytes <= 2 * REGION as u64, "after {starts} starts");
        drop(mirror);
        become_the_same(&legs, 7, "what was written without it");
    }
}
