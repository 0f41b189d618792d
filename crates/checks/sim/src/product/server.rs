//! The machine of the target: its process, disk and addresses.

use super::fenced::Kept;
use super::keys::Terms;
use super::model::{BLOCK_BYTES, BLOCKS};
use super::{HOST_NQN, Plan};
use farblock_backends::file::FileDisk;
use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_host::Url;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::sim::{DiskFaults, Medium, Side, World, on_machine};
use farblock_reactor::{EngineKind, os};
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The number of the target's machine. Hosts have lower numbers.
pub(super) const TARGET: u32 = 1 << 16;
/// The minimum time between two losses of data at one address. Otherwise, data could stay in
/// transit forever.
const LUCID: Duration = Duration::from_secs(20);

pub(super) const NQN: &str = "nqn.2026-11.org.farblock:simulated";

enum Store {
    Disk(Medium),
    Memory(Arc<Mem>),
}

/// The machine of the target; see the [module](self).
pub(super) struct Server {
    addresses: Vec<SocketAddr>,
    cores: usize,
    core_buffer_bytes: Option<usize>,
    store: Store,
    /// The authentication that the target requires of the host. `None` if it admits any host.
    terms: Option<Terms>,
    /// The storage of persistent reservations.
    kept: Option<Kept>,
    /// The target; `None` while its process is dead.
    target: Option<Target>,
    /// The time at which the process restarts.
    restart: Option<Duration>,
    /// For each address, when it becomes reachable again; `None` if it is reachable.
    hidden: Vec<Option<Duration>>,
    /// For each address, the time until which data that was lost there may still be retransmitted
    /// and arrive.
    dark: Vec<Duration>,
}

impl Server {
    pub(super) fn start(
        world: &World,
        plan: &Plan,
        terms: Option<Terms>,
        kept: Option<Kept>,
    ) -> Server {
        let addresses =
            (1..=plan.paths).map(|path| SocketAddr::from(([10, 0, 0, path as u8], 4420)));
        let bytes = BLOCKS as usize * BLOCK_BYTES;
        let store = match plan.is_memory {
            false => Store::Disk(world.disk(bytes)),
            true => {
                Store::Memory(Arc::new(Mem::new(BLOCK_BYTES as u32, bytes as u64).expect("memory")))
            }
        };
        let mut server = Server {
            addresses: addresses.collect(),
            cores: plan.cores,
            core_buffer_bytes: plan.core_buffer_bytes,
            store,
            terms,
            kept,
            target: None,
            restart: None,
            hidden: vec![None; plan.paths],
            dark: vec![Duration::ZERO; plan.paths],
        };
        server.serve();
        server
    }

    pub(super) fn urls(&self) -> Vec<Url> {
        let url = |address| format!("nvme+tcp://{address}/{NQN}?ns=1").parse().expect("a URL");
        self.addresses.iter().map(url).collect()
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    /// The disk, if this server has one. Other servers keep their blocks in memory.
    pub(super) fn medium(&self) -> Option<Medium> {
        match self.store {
            Store::Disk(medium) => Some(medium),
            Store::Memory(_) => None,
        }
    }

    pub(super) fn set_faults(&self, world: &World, faults: DiskFaults) {
        if let Store::Disk(medium) = &self.store {
            world.set_disk_faults(*medium, faults);
        }
    }

    fn serve(&mut self) {
        let namespace: Arc<dyn Namespace> = match &self.store {
            Store::Disk(medium) => {
                Arc::new(FileDisk::simulated(*medium, BLOCK_BYTES as u32, BLOCKS))
            }
            Store::Memory(memory) => Arc::clone(memory) as _,
        };
        let mut subsystem = Subsystem::new(NQN);
        subsystem.config.allow_any_host = self.terms.is_none();
        let keys = self.terms.as_ref().map(|terms| (HOST_NQN.to_owned(), terms.keys.clone()));
        subsystem.keys.extend(keys);
        let export = Export { namespace, identity: "simulated".to_owned() };
        subsystem.exports.insert(NamespaceId(1), export);
        if let Some(kept) = &self.kept {
            subsystem.reservations.insert(NamespaceId(1), kept.store());
        }
        let config = TargetConfig {
            subsystems: vec![subsystem],
            listeners: self.addresses.clone(),
            cores: (0..self.cores).collect(),
            tls: self.terms.as_ref().and_then(|terms| terms.tls),
            engine: EngineKind::Sim,
            core_buffer_bytes: self.core_buffer_bytes,
            ..TargetConfig::default()
        };
        let target = on_machine(TARGET, || Target::start(&config));
        self.target = Some(target.expect("free addresses"));
    }

    /// Changes the authentication that the target requires of the host.
    pub(super) fn take(&mut self, terms: Terms) {
        if let Some(target) = &self.target {
            let told = target.control().set_host_keys(NQN, HOST_NQN, Some(&terms.keys));
            told.expect("the subsystem exists");
        }
        self.terms = Some(terms);
    }

    /// Kills the process, or cuts the power of the machine. The process restarts after `time`.
    pub(super) fn die(&mut self, world: &World, time: Duration, is_power: bool) {
        if let Store::Disk(medium) = &mut self.store {
            *medium = if is_power { world.cut_power(*medium) } else { world.orphan_disk(*medium) };
        }
        // The process may be dead already.
        let Some(target) = self.target.take() else { return };
        for &address in &self.addresses {
            world.kill(address);
        }
        self.kept.iter().for_each(Kept::orphan);
        // Drop the target on another thread. Its connections are broken already, so the drop sends
        // nothing.
        let end = || os::spawn("dying".to_owned(), move || drop(target)).expect("a thread");
        drop(on_machine(TARGET, end));
        self.restart = Some(world.elapsed() + time);
    }

    /// Makes an address unreachable for a while.
    pub(super) fn hide(&mut self, world: &World, at: usize, time: Duration) {
        world.set_reachable(self.addresses[at], false);
        self.hidden[at] = Some(world.elapsed() + time);
    }

    /// For a while, drops the data that one side of an address's connections sends. If [`LUCID`]
    /// has not passed since the last loss, does nothing and returns false.
    pub(super) fn darken(&mut self, world: &World, at: usize, side: Side, time: Duration) -> bool {
        let now = world.elapsed();
        let may = self.dark[at].is_zero() || now > self.dark[at] + LUCID;
        if may {
            // TCP retransmits lost data within twice the time for which data was lost.
            self.dark[at] = now + time * 2;
            world.blackhole(self.addresses[at], side, time);
        }
        may
    }

    /// The time by which TCP has retransmitted all data lost so far.
    pub(super) fn lucid_at(&self) -> Duration {
        self.dark.iter().copied().max().unwrap_or_default()
    }

    /// Whether the target's process is running.
    pub(super) fn is_running(&self) -> bool {
        self.target.is_some()
    }

    /// Whether a host can use the target over some path.
    pub(super) fn is_usable(&self) -> bool {
        self.target.is_some() && self.hidden.iter().any(Option::is_none)
    }

    /// Ends the faults whose time has passed. Returns true if any fault ended.
    pub(super) fn tend(&mut self, world: &World) -> bool {
        let mut is_changed = false;
        let is_due = |at: Option<Duration>| at.is_some_and(|at| at <= world.elapsed());
        if is_due(self.restart) {
            self.restart = None;
            self.serve();
            is_changed = true;
        }
        for (hidden, &address) in self.hidden.iter_mut().zip(&self.addresses) {
            if is_due(*hidden) {
                *hidden = None;
                world.set_reachable(address, true);
                is_changed = true;
            }
        }
        is_changed
    }

    /// Ends all faults.
    pub(super) fn mend(&mut self, world: &World) {
        self.set_faults(world, DiskFaults::default());
        for at in self.hidden.iter_mut().chain([&mut self.restart]) {
            *at = at.map(|_| Duration::ZERO);
        }
        self.tend(world);
    }

    pub(super) fn connections(&self) -> usize {
        self.target.as_ref().expect("the target runs again").connections()
    }

    /// The number of queues whose hosts have authenticated.
    pub(super) fn authenticated(&self) -> u64 {
        let target = self.target.as_ref().expect("the target runs again");
        target.control().stats().admissions.authenticated
    }

    /// Stops the target like an operator.
    pub(super) fn stop(self) {
        let target = self.target.expect("the target runs again");
        on_machine(TARGET, || target.stop()).expect("the target stops");
    }
}
