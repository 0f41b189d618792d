//! The process of the host: its disk, and the state that it leaves to a successor process.

use super::server::TARGET;
use farblock_block::{Namespace, Queue};
use farblock_host::disk::{ControllerLife, DiskOptions, KnownNamespace, Predecessor, Record};
use farblock_host::{Disk, Error, Url};
use farblock_reactor::sim::{Landed, World, on_machine};
use farblock_reactor::{Reactor, os};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::model::BLOCK_BYTES;

/// The numbers of the simulated machines of host processes. Each process has a separate machine;
/// these machines share one clock.
pub(super) const HOSTS: Range<u32> = 0..TARGET;
/// The pause after a failed attempt to start.
const PAUSE: Duration = Duration::from_millis(200);

/// The simulated folder in which a process stores state for its successor.
#[derive(Clone, Default)]
struct Folder(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    left: Predecessor,
    /// The number of processes that have died.
    gone: u32,
}

impl Folder {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state that the last process left, and the number of the process that reads this state.
    fn read(&self) -> (Predecessor, u32) {
        let kept = self.lock();
        (kept.left.clone(), kept.gone)
    }
}

/// Writes the state of one process into the folder, until that process dies.
struct Writer {
    folder: Folder,
    process: u32,
}

impl Writer {
    fn note(&self, note: impl FnOnce(&mut Predecessor)) -> Result<(), String> {
        let mut kept = self.folder.lock();
        if kept.gone != self.process {
            return Err("the process is gone".to_owned());
        }
        note(&mut kept.left);
        Ok(())
    }
}

impl Record for Writer {
    fn namespace(&self, known: &KnownNamespace) -> Result<(), String> {
        self.note(|left| left.namespace = Some(known.clone()))
    }

    fn controllers(&self, lives: &[ControllerLife]) -> Result<(), String> {
        self.note(|left| left.controllers = lives.to_vec())
    }
}

/// A host whose process may die. A new process (the successor) then takes over its disk.
pub(super) struct Host {
    urls: Vec<Url>,
    /// The folder with the state; `None` if the process of the host gets no successor.
    folder: Option<Folder>,
    running: Option<(Disk, Box<dyn Queue>)>,
    /// The start time of the next process.
    restart: Duration,
}

impl Host {
    pub(super) fn start(
        urls: Vec<Url>,
        options: &DiskOptions,
        reactor: &Reactor,
        is_succeeded: bool,
    ) -> Host {
        let folder = is_succeeded.then(Folder::default);
        let mut host = Host { urls, folder, running: None, restart: Duration::ZERO };
        host.run(options, reactor).expect("no fault occurs yet");
        host
    }

    fn run(&mut self, options: &DiskOptions, reactor: &Reactor) -> Result<(), Error> {
        let disk = match &self.folder {
            None => Disk::connect(&self.urls, options)?,
            Some(folder) => {
                let (left, process) = folder.read();
                let record = Writer { folder: folder.clone(), process };
                // Each process has its own simulated machine, because processes share no state.
                on_machine(1 + process, || Disk::succeed(&self.urls, options, left, record))?
            }
        };
        let queue = disk.open(reactor, reactor.add_task()).expect("a disk's queue");
        self.running = Some((disk, queue));
        Ok(())
    }

    /// The queue of the process; `None` if no process is running.
    pub(super) fn queue(&mut self) -> Option<&mut (dyn Queue + 'static)> {
        self.running.as_mut().map(|(_, queue)| &mut **queue)
    }

    /// Whether the process of the host may die and get a successor.
    pub(super) fn is_succeeded(&self) -> bool {
        self.folder.is_some()
    }

    /// Kills the process, and schedules its successor. All data that the dead process has sent
    /// arrives within `longest`.
    pub(super) fn die(&mut self, world: &World, pause: Duration, longest: Duration) {
        let Some((disk, queue)) = self.running.take() else { return };
        let folder = self.folder.as_ref().expect("a handover has a folder");
        let mut kept = folder.lock();
        let machine = 1 + kept.gone;
        kept.gone += 1;
        drop(kept);
        world.end_process(machine, longest);
        // Drop the disk on another thread. Its connections are broken already, so the drop sends
        // nothing.
        let end = || os::spawn("dying".to_owned(), move || drop(disk)).expect("a thread");
        on_machine(machine, || {
            drop(queue);
            drop(end());
        });
        self.restart = world.elapsed() + pause;
    }

    /// Starts the next process when it is due. Returns whether the process has started.
    pub(super) fn tend(&mut self, world: &World, options: &DiskOptions, reactor: &Reactor) -> bool {
        if self.running.is_some() || self.restart > world.elapsed() {
            return false;
        }
        let is_there = self.run(options, reactor).is_ok();
        self.restart = world.elapsed() + PAUSE;
        is_there
    }

    pub(super) fn machines(&self) -> Range<u32> {
        0..self.folder.as_ref().map_or(1, |folder| folder.lock().gone + 2)
    }

    /// Describes the paths of the disk.
    pub(super) fn describe(&self) -> String {
        self.running.as_ref().map_or("dead".to_owned(), |(disk, _)| format!("{:?}", disk.paths()))
    }
}

/// Observes which host process wrote the data that reaches the disk.
#[derive(Default)]
pub(super) struct Witness {
    /// For each dead process, the number of its last write.
    last: Vec<u64>,
    /// The number of the latest process whose data has reached the disk.
    latest: usize,
    /// The time at which each write was acknowledged.
    acknowledged: BTreeMap<u64, Duration>,
}

impl Witness {
    /// Registers that a process has died, and the number of its last write.
    pub(super) fn died(&mut self, last: u64) {
        self.last.push(last);
    }

    pub(super) fn acknowledge(&mut self, number: u64, now: Duration) {
        self.acknowledged.insert(number, now);
    }

    /// Checks that no data of a dead process reaches the disk after data of its successor. Also
    /// checks that no acknowledged write reaches the disk twice.
    pub(super) fn see(&mut self, landed: Vec<Landed>) {
        for Landed { at, offset, bytes } in landed {
            for (lba, block) in (offset / BLOCK_BYTES..).zip(bytes.chunks(BLOCK_BYTES)) {
                let content = u64::from_le_bytes(block[..8].try_into().expect("a block"));
                if content == 0 {
                    continue;
                }
                let done = self.acknowledged.get(&content);
                assert!(
                    done.is_none_or(|done| at <= *done),
                    "at {at:?}, block {lba} was written once more by operation {content}, which \
                     was acknowledged at {done:?}"
                );
                let process = self.last.partition_point(|last| *last < content);
                assert!(
                    process >= self.latest,
                    "at {at:?}, block {lba} was written by process {process}, which is dead, after \
                     process {} had written",
                    self.latest
                );
                self.latest = process;
            }
        }
    }
}
