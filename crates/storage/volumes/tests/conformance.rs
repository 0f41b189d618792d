//! Runs the conformance suite for whole and degraded mirrors, on both engines.

mod support;

use std::sync::Arc;

use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_block::conformance::{MIN_BYTES, Suite};
use farblock_reactor::EngineKind;
use farblock_volumes::{LegSource, Mirror, MirrorOptions, Taking, limits};
use support::{FailsToOpen, Fixed};

fn mem(block_size: u32) -> Arc<dyn LegSource> {
    let bytes = MIN_BYTES + limits::RESERVED_BYTES;
    Arc::new(Fixed::new("memory", Arc::new(Mem::new(block_size, bytes).unwrap())))
}

fn options(engine: EngineKind) -> MirrorOptions {
    MirrorOptions { taking: Taking::Empty, engine, ..MirrorOptions::default() }
}

fn of_legs(count: usize, engine: EngineKind) {
    let make = |block_size| {
        let legs = (0..count).map(|_| mem(block_size)).collect();
        let mirror = Mirror::open(legs, options(engine)).unwrap();
        support::wait_until(|| support::is_whole(&mirror));
        Arc::new(mirror) as Arc<dyn Namespace>
    };
    let sizes: &[u32] = if count == 2 { &[512, 4096] } else { &[4096] };
    Suite::new(engine).block_sizes(sizes).run(&make);
}

fn degraded(engine: EngineKind) {
    let make = |block_size| {
        let (one, other) = (mem(block_size), mem(block_size));
        let mirror = Mirror::open(vec![Arc::clone(&one), other], options(engine)).unwrap();
        support::wait_until(|| support::is_whole(&mirror));
        drop(mirror);
        let gone = Arc::new(FailsToOpen);
        let degraded = MirrorOptions { degraded: true, engine, ..MirrorOptions::default() };
        Arc::new(Mirror::open(vec![one, gone], degraded).unwrap()) as Arc<dyn Namespace>
    };
    Suite::new(engine).block_sizes(&[512]).run(&make);
}

#[test]
fn a_mirror_of_two_legs_conforms_on_the_portable_engine() {
    of_legs(2, EngineKind::Portable);
}

#[test]
fn a_mirror_of_three_legs_conforms_on_the_portable_engine() {
    of_legs(3, EngineKind::Portable);
}

#[test]
fn a_degraded_mirror_conforms_on_the_portable_engine() {
    degraded(EngineKind::Portable);
}

#[test]
#[cfg(target_os = "linux")]
fn a_mirror_of_two_legs_conforms_on_io_uring() {
    of_legs(2, EngineKind::Uring);
}

#[test]
#[cfg(target_os = "linux")]
fn a_degraded_mirror_conforms_on_io_uring() {
    degraded(EngineKind::Uring);
}
