//! Simulated disks: their current data, the data that a power cut would leave, and the operations
//! in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::time::Duration;

use super::{Happening, WorldState};
use crate::file_op::FileOp;
use crate::ids::TaskId;
use farblock_random::Random;

/// The maximum number of unsynced versions that a disk keeps of each atomic unit. If there are
/// more, the oldest becomes durable.
const VERSIONS_MOST: usize = 8;

/// The delays and faults of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskFaults {
    /// The longest duration of a normal operation.
    pub delay: Duration,
    /// One operation in `late_one_in` is late; 0: no operation.
    pub late_one_in: u64,
    /// The longest delay of a late operation.
    pub late: Duration,
    /// One operation in `fail_one_in` fails; 0: no operation. A failed write writes some of its
    /// units.
    pub fail_one_in: u64,
    /// Size in bytes of the units that the disk writes atomically: a power of two.
    pub atomic_bytes: usize,
}

impl Default for DiskFaults {
    fn default() -> DiskFaults {
        DiskFaults {
            delay: Duration::from_micros(100),
            late_one_in: 0,
            late: Duration::ZERO,
            fail_one_in: 0,
            atomic_bytes: 512,
        }
    }
}

/// A handle of a simulated disk, which a reactor uses like a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Medium {
    index: usize,
    generation: u32,
}

/// A file operation in flight, and the engine that started it.
pub(crate) struct Flying {
    generation: u32,
    engine: u64,
    pub(crate) task: TaskId,
    pub(crate) user_data: u64,
    pub(crate) op: FileOp,
    fails: bool,
}

/// A finished file operation.
pub(crate) struct Finished {
    pub(crate) flying: Flying,
    pub(crate) result: io::Result<()>,
}

/// A write that a disk has executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Landed {
    /// The time since the start of the simulation.
    pub at: Duration,
    /// The offset on the disk, in bytes.
    pub offset: usize,
    /// The written data.
    pub bytes: Vec<u8>,
}

pub(super) struct Disk {
    pub(super) faults: DiskFaults,
    /// The writes since the last [`World::take_landed`](super::World::take_landed); `None` if the
    /// disk does not record them.
    pub(super) landed: Option<Vec<Landed>>,
    /// The current time in nanoseconds.
    now: u64,
    generation: u32,
    current: Vec<u8>,
    durable: Vec<u8>,
    /// The versions of each unit since its last sync, oldest first. After a power cut, the unit has
    /// one of these versions or the durable content.
    unsynced: BTreeMap<usize, Vec<Vec<u8>>>,
    flying: BTreeMap<u64, Flying>,
}

#[derive(Default)]
pub(super) struct Media {
    disks: Vec<Disk>,
    next_op: u64,
    pub(super) power_cuts: u64,
    /// The finished operations by engine number.
    finished: BTreeMap<u64, Vec<Finished>>,
    /// The engines that have been dropped, and no longer collect results.
    gone: BTreeSet<u64>,
}

impl Media {
    pub(super) fn add(&mut self, bytes: usize) -> Medium {
        self.disks.push(Disk {
            faults: DiskFaults::default(),
            landed: None,
            now: 0,
            generation: 0,
            current: vec![0; bytes],
            durable: vec![0; bytes],
            unsynced: BTreeMap::new(),
            flying: BTreeMap::new(),
        });
        Medium { index: self.disks.len() - 1, generation: 0 }
    }

    pub(super) fn at(&mut self, medium: Medium) -> &mut Disk {
        &mut self.disks[medium.index]
    }

    /// Drops the results of an engine that was dropped.
    pub(super) fn forget(&mut self, engine: u64) {
        self.finished.remove(&engine);
        self.gone.insert(engine);
    }
}

impl Disk {
    pub(super) fn current(&self) -> &[u8] {
        &self.current
    }

    /// Truncates the file or extends it with zeroes, as another program would.
    pub(super) fn set_size(&mut self, bytes: usize) {
        let unit = self.faults.atomic_bytes;
        self.current.resize(bytes, 0);
        self.durable.resize(bytes, 0);
        self.unsynced.split_off(&(bytes / unit));
    }

    /// Overwrites the contents in place and durably, as another program would.
    pub(super) fn replace(&mut self, contents: &[u8]) {
        self.current = contents.to_vec();
        self.durable = contents.to_vec();
        self.unsynced.clear();
    }

    /// Writes data that becomes durable at the next sync.
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(landed) = &mut self.landed {
            let (at, bytes) = (Duration::from_nanos(self.now), bytes.to_vec());
            landed.push(Landed { at, offset, bytes });
        }
        let end = offset + bytes.len();
        if self.current.len() < end {
            self.current.resize(end, 0);
        }
        self.current[offset..end].copy_from_slice(bytes);
        for unit in self.units_of(offset, bytes.len()) {
            let version = self.unit(unit).to_vec();
            let versions = self.unsynced.entry(unit).or_default();
            versions.push(version);
            if versions.len() > VERSIONS_MOST {
                let oldest = versions.remove(0);
                self.persist(unit, &oldest);
            }
        }
    }

    /// Returns the content of a unit.
    fn unit(&self, unit: usize) -> &[u8] {
        let start = unit * self.faults.atomic_bytes;
        &self.current[start..self.current.len().min(start + self.faults.atomic_bytes)]
    }

    fn persist(&mut self, unit: usize, bytes: &[u8]) {
        let start = unit * self.faults.atomic_bytes;
        if self.durable.len() < start + bytes.len() {
            self.durable.resize(start + bytes.len(), 0);
        }
        self.durable[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Makes the current content of units durable.
    fn sync(&mut self, units: impl Iterator<Item = usize>) {
        for unit in units {
            if self.unsynced.remove(&unit).is_some() {
                let bytes = self.unit(unit).to_vec();
                self.persist(unit, &bytes);
            }
        }
    }

    fn units_of(&self, offset: usize, length: usize) -> Range<usize> {
        let unit = self.faults.atomic_bytes;
        if length == 0 { 0..0 } else { offset / unit..(offset + length).div_ceil(unit) }
    }

    /// Returns the atomic units of a range, as ranges relative to its start.
    fn units(&self, offset: usize, length: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let unit = self.faults.atomic_bytes;
        let end = offset + length;
        self.units_of(offset, length).map(move |index| {
            (index * unit).max(offset) - offset..((index + 1) * unit).min(end) - offset
        })
    }

    /// Writes about half of the units of `bytes`, chosen at random, as a failed or interrupted
    /// write may.
    fn tear(&mut self, offset: usize, bytes: &[u8], random: &mut Random) {
        for range in self.units(offset, bytes.len()) {
            if random.one_in(2) {
                self.write(offset + range.start, &bytes[range]);
            }
        }
    }

    fn carry_out(&mut self, op: &mut FileOp) -> io::Result<()> {
        let size = self.current.len();
        match op {
            FileOp::Read { buffer, offset } => {
                let start = *offset as usize;
                let found = self.current.get(start..start.saturating_add(buffer.len()));
                buffer.copy_from_slice(found.ok_or(ErrorKind::UnexpectedEof)?);
            }
            FileOp::Write { buffer, offset, durable } => {
                self.write(*offset as usize, buffer);
                if *durable {
                    self.sync(self.units_of(*offset as usize, buffer.len()));
                }
            }
            FileOp::Sync => {
                let units: Vec<usize> = self.unsynced.keys().copied().collect();
                self.sync(units.into_iter());
            }
            FileOp::PunchHole { offset, len } | FileOp::ZeroRange { offset, len } => {
                let start = (*offset as usize).min(size);
                let end = start.saturating_add(*len as usize).min(size);
                self.write(start, &vec![0; end - start]);
            }
        }
        Ok(())
    }
}

impl WorldState {
    /// Returns the finished operations of an engine.
    pub(crate) fn take_finished(&mut self, engine: u64) -> Vec<Finished> {
        self.media.finished.remove(&engine).unwrap_or_default()
    }

    /// Starts an operation of an engine. The engine later collects the result.
    pub(crate) fn start_file_op(
        &mut self,
        engine: u64,
        medium: Medium,
        task: TaskId,
        op: FileOp,
        user_data: u64,
    ) {
        let faults = self.media.at(medium).faults;
        let mut delay = self.random.time(faults.delay);
        if self.random.one_in(faults.late_one_in) {
            delay += self.random.time(faults.late);
        }
        let fails = self.random.one_in(faults.fail_one_in);
        if let FileOp::Write { buffer, offset, .. } = &op {
            self.note(*offset);
            self.note_bytes(buffer);
        }
        let generation = medium.generation;
        let flying = Flying { generation, engine, task, user_data, op, fails };
        let number = self.media.next_op;
        self.media.next_op += 1;
        self.media.at(medium).flying.insert(number, flying);
        self.schedule(delay, Happening::Done { medium: medium.index, op: number });
    }

    pub(super) fn finish(&mut self, medium: usize, op: u64) {
        let disk = &mut self.media.disks[medium];
        disk.now = self.now;
        let Some(mut flying) = disk.flying.remove(&op) else { return };
        let result = if flying.generation != disk.generation {
            Err(ErrorKind::NotFound.into())
        } else if flying.fails {
            if let FileOp::Write { buffer, offset, .. } = &flying.op {
                disk.tear(*offset as usize, buffer, &mut self.random);
            }
            Err(io::Error::other("the simulated disk failed"))
        } else {
            disk.carry_out(&mut flying.op)
        };
        let engine = flying.engine;
        if self.media.gone.contains(&engine) {
            return;
        }
        self.media.finished.entry(engine).or_default().push(Finished { flying, result });
        self.wake_engine(engine);
    }

    /// Simulates the death of the process that uses the disk. Executes each operation in flight
    /// fully, partly or not at all. Returns a handle for the next process. Operations through the
    /// old handle have no more effect.
    pub(super) fn orphan(&mut self, medium: Medium) -> Medium {
        let disk =
            self.media.disks.get_mut(medium.index).expect("the medium belongs to this simulation");
        disk.now = self.now;
        disk.generation += 1;
        let mut flying = std::mem::take(&mut disk.flying);
        let generation = disk.generation;
        for flying in flying.values_mut().filter(|flying| flying.generation + 1 == generation) {
            if let FileOp::Write { buffer, offset, .. } = &flying.op {
                disk_tear(&mut self.media, medium, *offset, buffer, &mut self.random);
            }
        }
        self.media.at(medium).flying = flying;
        Medium { generation, ..medium }
    }

    /// Like [`WorldState::orphan`], but a power cut: some of the unsynced data is lost, too.
    pub(super) fn cut_power(&mut self, medium: Medium) -> Medium {
        let next = self.orphan(medium);
        self.media.power_cuts += 1;
        let disk = &mut self.media.disks[medium.index];
        for (unit, mut versions) in std::mem::take(&mut disk.unsynced) {
            let survivor = self.random.below(versions.len() as u64 + 1) as usize;
            if survivor < versions.len() {
                disk.persist(unit, &versions.swap_remove(survivor));
            }
        }
        disk.durable.resize(disk.current.len(), 0);
        disk.current.clone_from(&disk.durable);
        next
    }
}

fn disk_tear(media: &mut Media, medium: Medium, offset: u64, bytes: &[u8], random: &mut Random) {
    media.at(medium).tear(offset as usize, bytes, random);
}
