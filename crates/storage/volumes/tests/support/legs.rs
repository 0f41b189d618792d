//! Creates mirrors whose legs are in memory.

use std::sync::Arc;

use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_block::blocking::Blocking;
use farblock_volumes::{LegSource, Mirror, MirrorOptions, limits};

use super::FailsToOpen;
use super::wire::{Power, Wired};

pub(crate) const DATA_BYTES: u64 = 8 * limits::MIN_REGION_BYTES;
pub(crate) const LEG_BYTES: u64 = DATA_BYTES + limits::RESERVED_BYTES;

pub(crate) fn memory(bytes: u64) -> Arc<Mem> {
    Arc::new(Mem::new(512, bytes).unwrap())
}

pub(crate) fn read(leg: &Mem, bytes: u64) -> Vec<u8> {
    let mut data = vec![0; bytes as usize];
    Blocking::new(leg).unwrap().read(0, &mut data).unwrap();
    data
}

/// Copies as much of the leg `from` as fits into the leg `into`.
pub(crate) fn copy(from: &Mem, into: &Mem) {
    let [one, other] = [from, into].map(|leg| leg.geometry().capacity_bytes());
    Blocking::new(into).unwrap().write(0, &read(from, one.min(other))).unwrap();
}

pub(crate) fn lasting() -> Arc<Power> {
    Power::lasting(i64::MAX)
}

/// Opens a mirror. A leg is lost if it is `None`.
pub(crate) fn try_open(
    legs: &[Option<&Arc<Mem>>],
    power: &Arc<Power>,
    change: impl FnOnce(&mut MirrorOptions),
) -> Result<Mirror, String> {
    let source = |(number, leg): (usize, &Option<&Arc<Mem>>)| match leg {
        Some(leg) => Arc::new(Wired::new(&format!("leg{number}"), leg, power)) as _,
        None => Arc::new(FailsToOpen) as Arc<dyn LegSource>,
    };
    let sources = legs.iter().enumerate().map(source).collect();
    let mut options = MirrorOptions::default();
    change(&mut options);
    Mirror::open(sources, options).map_err(|error| error.to_string())
}
