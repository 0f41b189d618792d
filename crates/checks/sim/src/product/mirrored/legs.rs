//! The legs (copies) of a simulated mirror: files of the mirror's machine, and remote disks.

use super::super::model::{BLOCK_BYTES, BLOCKS};
use super::super::server::TARGET;
use farblock_backends::file::FileDisk;
use farblock_block::Namespace;
use farblock_host::disk::DiskOptions;
use farblock_host::{Disk, HostId, Options, Url};
use farblock_proto::controller::PortAccess;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::sim::{DiskFaults, Medium, World, on_machine};
use farblock_reactor::{EngineKind, os};
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use farblock_volumes::{LegSource, limits};
use farblock_wire::log::AnaState;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The size of a leg in bytes: the data blocks, and the part that the mirror reserves for records.
pub(super) const LEG_BYTES: usize = BLOCKS as usize * BLOCK_BYTES + limits::RESERVED_BYTES as usize;
/// The offsets of the mirror's two record slots, from the end of the data.
const RECORDS: [usize; 2] = [0, 65_536];
const RECORD_BYTES: usize = 4096;
const HOST_NQN: &str = "nqn.2014-08.org.example:mirror";
const NSID: NamespaceId = NamespaceId(1);

/// The file that the leg's source opens next. Tests replace it.
#[derive(Clone)]
struct Slot(Arc<Mutex<Medium>>);

impl Slot {
    fn medium(&self) -> Medium {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, medium: Medium) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = medium;
    }
}

fn file(medium: Medium, bytes: usize) -> FileDisk {
    FileDisk::simulated_and_watched(medium, BLOCK_BYTES as u32, (bytes / BLOCK_BYTES) as u64)
}

/// The source of a leg that is a file of the mirror's machine.
struct Near {
    name: String,
    slot: Slot,
}

impl LegSource for Near {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn open(&self) -> Result<Arc<dyn Namespace>, String> {
        Ok(Arc::new(file(self.slot.medium(), LEG_BYTES)))
    }
}

/// The source of a leg on the target of another machine.
struct Far {
    name: String,
    url: Url,
}

impl LegSource for Far {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_local(&self) -> bool {
        false
    }

    fn open(&self) -> Result<Arc<dyn Namespace>, String> {
        let disk = Disk::connect(std::slice::from_ref(&self.url), &options());
        disk.map(|disk| Arc::new(disk) as _).map_err(|error| error.to_string())
    }
}

/// The options of remote legs, as in the program: a leg reconnects without a time limit.
fn options() -> DiskOptions {
    let connection = Options {
        hostnqn: Some(HOST_NQN.to_owned()),
        hostid: Some(HostId(*b"farblock-mirrors")),
        queues: 2,
        queue_depth: 16,
        engine: EngineKind::Sim,
        ..Options::default()
    };
    let reconnect_delay = Duration::from_secs(2);
    DiskOptions { connection, reconnect_delay, ctrl_loss_timeout: None, ..DiskOptions::default() }
}

struct Machine {
    number: u32,
    address: SocketAddr,
    nqn: String,
    /// The target; `None` while its process is dead.
    target: Option<Target>,
}

/// A leg that the simulation controls.
pub(super) struct Leg {
    name: String,
    slot: Slot,
    bytes: usize,
    faults: DiskFaults,
    /// The machine of the leg's target; `None` for a file of the mirror's machine.
    machine: Option<Machine>,
    /// Copies of earlier contents of the leg, the oldest first.
    copies: Vec<Vec<u8>>,
}

impl Leg {
    pub(super) fn new(world: &World, at: usize, is_near: bool, faults: DiskFaults) -> Leg {
        Leg::sized(world, (at, LEG_BYTES), is_near, faults)
    }

    /// A disk on the target of another machine, without a mirror and its records.
    pub(super) fn plain(world: &World, faults: DiskFaults) -> Leg {
        Leg::sized(world, (0, BLOCKS as usize * BLOCK_BYTES), false, faults)
    }

    fn sized(world: &World, (at, bytes): (usize, usize), is_near: bool, faults: DiskFaults) -> Leg {
        let medium = world.disk(bytes);
        world.set_disk_faults(medium, faults);
        let machine = (!is_near).then(|| Machine {
            number: TARGET + 1 + at as u32,
            address: SocketAddr::from(([10, 0, 1, at as u8 + 1], 4420)),
            nqn: format!("nqn.2026-11.org.farblock:leg{at}"),
            target: None,
        });
        let slot = Slot(Arc::new(Mutex::new(medium)));
        let name = format!("leg {at}");
        let mut leg = Leg { name, slot, bytes, faults, machine, copies: Vec::new() };
        leg.serve();
        leg
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn source(&self) -> Arc<dyn LegSource> {
        let name = self.name.clone();
        match &self.machine {
            None => Arc::new(Near { name, slot: self.slot.clone() }),
            Some(machine) => {
                let Machine { address, nqn, .. } = machine;
                let url = format!("nvme+tcp://{address}/{nqn}?ns=1").parse().expect("a URL");
                Arc::new(Far { name, url })
            }
        }
    }

    pub(super) fn is_near(&self) -> bool {
        self.machine.is_none()
    }

    pub(super) fn is_served(&self) -> bool {
        self.machine.as_ref().is_none_or(|machine| machine.target.is_some())
    }

    /// Starts the process of the leg's target, unless it is running.
    pub(super) fn serve(&mut self) {
        let medium = self.slot.medium();
        self.serve_as(medium, "file");
    }

    /// Starts the process with `medium` in the place of the leg's file.
    pub(super) fn serve_as(&mut self, medium: Medium, identity: &str) {
        let Some(machine) = &mut self.machine else { return };
        if machine.target.is_some() {
            return;
        }
        let mut subsystem = Subsystem::new(&machine.nqn);
        subsystem.config.allow_any_host = true;
        let identity = format!("{identity} of {}", self.name);
        let (listeners, number, bytes) = (vec![machine.address], machine.number, self.bytes);
        let target = on_machine(number, || {
            let export = Export { namespace: Arc::new(file(medium, bytes)), identity };
            subsystem.exports.insert(NSID, export);
            Target::start(&TargetConfig {
                subsystems: vec![subsystem],
                listeners,
                cores: vec![0],
                engine: EngineKind::Sim,
                ..TargetConfig::default()
            })
        });
        machine.target = Some(target.expect("a free address"));
    }

    /// Kills the process of the leg's target, or cuts the power of its machine.
    pub(super) fn die(&mut self, world: &World, is_power: bool) {
        let Some(machine) = &mut self.machine else { return };
        let Some(target) = machine.target.take() else { return };
        world.kill(machine.address);
        let medium = self.slot.medium();
        let next = if is_power { world.cut_power(medium) } else { world.orphan_disk(medium) };
        self.slot.set(next);
        if is_power {
            world.reboot(machine.number);
        }
        // Drop the target on another thread. Its connections are broken already, so the drop sends
        // nothing.
        let end = || os::spawn("dying".to_owned(), move || drop(target)).expect("a thread");
        drop(on_machine(machine.number, end));
    }

    /// Makes the target report this ANA state to all hosts.
    pub(super) fn set_access(&self, state: AnaState) {
        let Some((target, address)) = self.target() else { return };
        target.control().set_access(address, &PortAccess::all(state)).expect("a listener");
    }

    /// Makes the target hide the namespace from the mirror's host, or show it again.
    pub(super) fn set_masked(&self, is_masked: bool) {
        let Some((target, _)) = self.target() else { return };
        let nqn = &self.machine.as_ref().expect("the machine has a target").nqn;
        let other = BTreeSet::from(["nqn.2014-08.org.example:other".to_owned()]);
        let hosts = is_masked.then_some(&other);
        target.control().set_visible_to(nqn, NSID, hosts).expect("the namespace exists");
    }

    fn target(&self) -> Option<(&Target, SocketAddr)> {
        let machine = self.machine.as_ref()?;
        Some((machine.target.as_ref()?, machine.address))
    }

    pub(super) fn contents(&self, world: &World) -> Vec<u8> {
        world.contents(self.slot.medium())
    }

    /// The data of the leg, without the part that the mirror reserves for records.
    pub(super) fn data(&self, world: &World) -> Vec<u8> {
        let mut data = self.contents(world);
        data.truncate(BLOCKS as usize * BLOCK_BYTES);
        data
    }

    /// Stores a copy of the leg's contents, like a backup or snapshot.
    pub(super) fn copy(&mut self, world: &World) {
        const MOST: usize = 8;
        if self.copies.len() == MOST {
            self.copies.remove(0);
        }
        self.copies.push(self.contents(world));
    }

    /// The latest copy whose mirror record differs from the leg's current record: the mirror cannot
    /// detect a copy with the same record.
    pub(super) fn older_copy(&self, world: &World) -> Option<Vec<u8>> {
        let now = self.contents(world);
        let records = |bytes: &[u8]| {
            let data = BLOCKS as usize * BLOCK_BYTES;
            RECORDS.map(|at| bytes.get(data + at..data + at + RECORD_BYTES).map(<[u8]>::to_vec))
        };
        let is_older = |copy: &&Vec<u8>| records(copy) != records(&now);
        self.copies.iter().rev().find(is_older).cloned()
    }

    /// The latest copy, whether or not the mirror could detect it.
    pub(super) fn latest_copy(&self) -> Option<&Vec<u8>> {
        self.copies.last()
    }

    pub(super) fn set_size(&self, world: &World, bytes: usize) {
        world.set_disk_size(self.slot.medium(), bytes);
    }

    pub(super) fn replace(&self, world: &World, contents: &[u8]) {
        world.replace_contents(self.slot.medium(), contents);
    }

    /// Acts like an operator on a leg that the mirror no longer uses: stops the target of the leg,
    /// and empties the leg. If the leg is a file, replaces it by a new file.
    pub(super) fn make_empty(&mut self, world: &World) {
        self.die(world, false);
        self.copies.clear();
        self.replace(world, &vec![0; LEG_BYTES]);
        self.serve();
    }

    pub(super) fn other_file(&self, world: &World, contents: &[u8]) -> Medium {
        let medium = world.disk(LEG_BYTES);
        world.set_disk_faults(medium, self.faults);
        world.replace_contents(medium, contents);
        medium
    }

    /// Stops the process of the target in an orderly way.
    pub(super) fn stop(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        let Some(target) = machine.target.take() else { return };
        on_machine(machine.number, || target.stop()).expect("the target stops");
    }

    /// The number of the machine whose memory holds the buffers of the leg.
    pub(super) fn machine(&self) -> Option<u32> {
        self.machine.as_ref().map(|machine| machine.number)
    }
}
