//! A disk in memory that all members reach. Each leader writes as often as its permit allows. The
//! test fails if a leader writes after a later leader has begun to write.

use farblock_group_service::{
    Disks, Events, Holder, MemberEvent, Outcome, Permit, Report, ReservationRecord, now,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Disk {
    /// Whether the disk refuses writes of fenced epochs.
    pub(crate) is_hard: bool,
    fenced: BTreeSet<u64>,
    /// The epoch of the last executed write.
    pub(crate) epoch: u64,
    /// The number of executed writes of each member.
    pub(crate) writes: BTreeMap<String, u64>,
    pub(crate) wrong: Option<String>,
}

#[derive(Clone, Default)]
pub(crate) struct SharedDisk(Arc<Mutex<Disk>>);

impl SharedDisk {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("no thread panics with the lock")
    }

    pub(crate) fn writes(&self, member: &str) -> u64 {
        self.lock().writes.get(member).copied().unwrap_or(0)
    }

    /// Returns whether the disk executed the write.
    fn write(&self, member: &str, epoch: u64) -> bool {
        let mut disk = self.lock();
        if disk.is_hard && disk.fenced.contains(&epoch) {
            return false;
        }
        if epoch < disk.epoch {
            disk.wrong = Some(format!("{member} writes in epoch {epoch} after {}", disk.epoch));
        }
        disk.epoch = disk.epoch.max(epoch);
        *disk.writes.entry(member.to_owned()).or_default() += 1;
        true
    }
}

type Core = Arc<Mutex<(Option<u64>, Option<Permit>)>>;

/// The disk as one member uses it, for one ANA group.
pub(crate) struct TestDisks {
    name: String,
    disk: SharedDisk,
    events: Events,
    core: Core,
}

impl TestDisks {
    pub(crate) fn new(name: &str, disk: &SharedDisk, events: Events) -> Self {
        let core = Core::default();
        let (its, name, disk) = (Arc::downgrade(&core), name.to_owned(), disk.clone());
        let (writer, shared) = (name.clone(), disk.clone());
        thread::spawn(move || {
            while let Some(core) = its.upgrade() {
                let state = core.lock().expect("no thread panics with the lock");
                if let (Some(epoch), Some(permit)) = *state
                    && permit.epoch == epoch
                    && now() < permit.until
                {
                    shared.write(&writer, epoch);
                }
                drop(state);
                drop(core);
                thread::sleep(Duration::from_millis(2));
            }
        });
        Self { name, disk, events, core }
    }
}

impl Disks for TestDisks {
    fn fence(&mut self, group: u32, epoch: u64, victims: Vec<Holder>) {
        self.disk.lock().fenced.extend(victims.iter().map(|victim| victim.epoch));
        self.events.send(MemberEvent::FencePlaced { group, epoch, barrier: None });
    }

    fn enter(&mut self, group: u32, epoch: u64, _: Option<u64>) {
        let identity = self.name.clone();
        self.events.send(MemberEvent::Entered { group, epoch, identity });
    }

    fn begin(&mut self, _: u32, epoch: u64) {
        self.core.lock().expect("no thread panics with the lock").0 = Some(epoch);
    }

    fn publish(&mut self, _: u32, permit: Option<Permit>) {
        self.core.lock().expect("no thread panics with the lock").1 = permit;
    }

    fn park(&mut self, group: u32, epoch: u64) {
        self.publish(group, None);
        self.events.parked(group, epoch);
    }

    fn stop(&mut self, group: u32, epoch: u64) {
        *self.core.lock().expect("no thread panics with the lock") = (None, None);
        self.events.send(MemberEvent::Stopped { group, epoch });
    }

    fn apply(&mut self, namespace: &str, record: ReservationRecord) {
        let index = record.index;
        self.events.send(MemberEvent::Applied { namespace: namespace.to_owned(), index });
    }

    fn answer(&mut self, _: u64, _: Outcome) {}

    fn report(&mut self, report: &Report) {
        eprintln!("{}: {report:?}", self.name);
    }
}
