//! Tests of the speed of copies to a leg, in virtual time.

mod support;

use std::sync::Arc;
use std::time::Duration;

use farblock_backends::mem::Mem;
use farblock_block::conformance::Driver;
use farblock_block::{Namespace, Op};
use farblock_reactor::EngineKind;
use farblock_reactor::sim::World;
use farblock_volumes::{LegSource, Mirror, MirrorOptions, Taking, limits};
use support::Fixed;

const REGIONS: u64 = 8;

/// The time to fill the second leg at `speed` bytes per second. `change` may set another speed
/// after the first second.
fn filled(speed: Option<u64>, change: impl FnOnce(&Mirror)) -> Duration {
    let world = World::enter(3);
    let leg = |name| {
        let bytes = REGIONS * limits::MIN_REGION_BYTES + limits::RESERVED_BYTES;
        Arc::new(Fixed::new(name, Arc::new(Mem::new(512, bytes).unwrap()))) as Arc<dyn LegSource>
    };
    let options = MirrorOptions {
        taking: Taking::Empty,
        copy_bytes_per_second: speed,
        engine: EngineKind::Sim,
        ..MirrorOptions::default()
    };
    let mirror = Arc::new(Mirror::open(vec![leg("one"), leg("two")], options).unwrap());
    let namespace: Arc<dyn Namespace> = Arc::clone(&mirror) as _;
    let mut driver = Driver::with(&namespace, EngineKind::Sim);
    driver.must(0, Op::flush(1));
    let mut change = Some(change);
    while !support::is_whole(&mirror) {
        driver.turn(Duration::from_millis(10));
        if world.elapsed() > Duration::from_secs(1)
            && let Some(change) = change.take()
        {
            change(&mirror);
        }
        assert!(world.elapsed() < Duration::from_secs(600), "the leg is never filled");
    }
    world.elapsed()
}

#[test]
fn a_leg_is_filled_at_most_at_the_copy_speed() {
    // The last region waits for the 7 other regions: 7 times 64 KiB at 32 KiB/s take 14 s.
    let slow = filled(Some(32 << 10), |_| ());
    assert!((14.0..16.0).contains(&slow.as_secs_f64()), "filled in {slow:?}");
    let any = filled(None, |_| ());
    assert!(any.as_secs_f64() < 1.0, "filled in {any:?}");
}

#[test]
fn a_changed_copy_speed_takes_effect_at_once() {
    let hurried = filled(Some(1), |mirror| mirror.set_copy_speed(None));
    assert!(hurried.as_secs_f64() < 2.0, "filled in {hurried:?}");
    let slowed = filled(Some(64 << 10), |mirror| mirror.set_copy_speed(Some(8 << 10)));
    assert!(slowed.as_secs_f64() > 40.0, "filled in {slowed:?}");
}
