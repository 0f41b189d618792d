//! The target's machine: its process, its disk and its addresses.

use super::fenced::Kept;
use super::keys::Terms;
use super::model::{BLOCK_BYTES, BLOCKS};
use super::{HOST_NQN, Plan};
use farblock_backends::file::FileDisk;
use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_host::Url;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::sim::{DiskFaults, Medium, World};
use farblock_reactor::{EngineKind, os};
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub(super) const NQN: &str = "nqn.2026-11.org.farblock:simulated";

enum Store {
    Disk(Medium),
    Memory(Arc<Mem>),
}

/// See the module's text.
pub(super) struct Server {
    addresses: Vec<SocketAddr>,
    cores: usize,
    store: Store,
    /// What the host has to prove, and nobody else gets in; anybody does without it.
    terms: Option<Terms>,
    /// Where reservations persist.
    kept: Option<Kept>,
    /// None while its process is dead.
    target: Option<Target>,
    /// When the process is started again.
    restart: Option<Duration>,
    /// When addresses answer again.
    hidden: Vec<Option<Duration>>,
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
            store,
            terms,
            kept,
            target: None,
            restart: None,
            hidden: vec![None; plan.paths],
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

    /// The disk, of a server that has one.
    pub(super) fn medium(&self) -> Medium {
        match self.store {
            Store::Disk(medium) => medium,
            Store::Memory(_) => panic!("it keeps its blocks in memory"),
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
            ..TargetConfig::default()
        };
        self.target = Some(Target::start(&config).expect("the addresses are free"));
    }

    /// The host has to prove itself like this from now on.
    pub(super) fn take(&mut self, terms: Terms) {
        if let Some(target) = &self.target {
            let told = target.control().set_host_keys(NQN, HOST_NQN, Some(&terms.keys));
            told.expect("the subsystem is there");
        }
        self.terms = Some(terms);
    }

    /// The process dies, or the machine loses its power, and is back after a while.
    pub(super) fn die(&mut self, world: &World, time: Duration, is_power: bool) {
        if let Store::Disk(medium) = &mut self.store {
            *medium = if is_power { world.cut_power(*medium) } else { world.orphan_disk(*medium) };
        }
        // It may be dead already.
        let Some(target) = self.target.take() else { return };
        for &address in &self.addresses {
            world.kill(address);
        }
        self.kept.iter().for_each(Kept::orphan);
        // Nothing that it still does reaches anybody.
        os::spawn("dying".to_owned(), move || drop(target)).expect("a thread");
        self.restart = Some(world.elapsed() + time);
    }

    /// An address does not answer for a while.
    pub(super) fn hide(&mut self, world: &World, at: usize, time: Duration) {
        world.set_reachable(self.addresses[at], false);
        self.hidden[at] = Some(world.elapsed() + time);
    }

    /// What comes back by itself does so when it is time.
    pub(super) fn tend(&mut self, world: &World) {
        let is_due = |at: Option<Duration>| at.is_some_and(|at| at <= world.elapsed());
        if is_due(self.restart) {
            self.restart = None;
            self.serve();
        }
        for (hidden, &address) in self.hidden.iter_mut().zip(&self.addresses) {
            if is_due(*hidden) {
                *hidden = None;
                world.set_reachable(address, true);
            }
        }
    }

    /// Nothing goes wrong from now on.
    pub(super) fn mend(&mut self, world: &World) {
        self.set_faults(world, DiskFaults::default());
        for at in self.hidden.iter_mut().chain([&mut self.restart]) {
            *at = at.map(|_| Duration::ZERO);
        }
        self.tend(world);
    }

    /// Connections that the target has.
    pub(super) fn connections(&self) -> usize {
        self.target.as_ref().expect("it was mended").connections()
    }

    /// Queues whose hosts have authenticated.
    pub(super) fn authenticated(&self) -> u64 {
        let target = self.target.as_ref().expect("it was mended");
        target.control().stats().admissions.authenticated
    }

    /// Stops the target as a user would.
    pub(super) fn stop(self) {
        let target = self.target.expect("it was mended");
        target.stop().expect("its loops work");
    }
}
