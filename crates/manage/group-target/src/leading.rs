//! The orders of the member, for all ANA groups.

use crate::absent::Absent;
use crate::worker::{Order, Worker};
use farblock_block::Namespace;
use farblock_group::{Holder, MemberEvent, Permit};
use farblock_proto::controller::PortAccess;
use farblock_proto::ids::NamespaceId;
use farblock_proto::time::Instant;
use farblock_target::{Control, Export, Permit as Cell, Sharing, boot_time};
use farblock_wire::log::AnaState;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An answer to the member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// An event for the member.
    Event(MemberEvent),
    /// No core submits an operation of this epoch before the next permit, and none is in flight.
    Parked {
        /// The ANA group.
        group: u32,
        /// The epoch.
        epoch: u64,
    },
}

/// Receives the answers for the member. Any thread calls it.
pub type Sink = Arc<dyn Fn(Answer) + Send + Sync>;

/// A namespace that the group leads.
pub struct Shared {
    /// The subsystem.
    pub nqn: String,
    /// The number in the subsystem.
    pub nsid: NamespaceId,
    /// The namespace's settings, with its ANA group.
    pub sharing: Sharing,
    /// The text from which the namespace's identifiers are derived, the same at every member.
    pub identity: String,
    /// The namespace that the target shares until the disk has been open. Afterwards the target
    /// shares one with the disk's last geometry.
    pub absent: Absent,
    /// Opens the disk. May take long. The error is one sentence.
    pub open: Box<dyn Fn() -> Result<Arc<dyn Namespace>, String> + Send + Sync>,
}

impl Shared {
    pub(crate) fn export(&self, namespace: &Arc<dyn Namespace>) -> Export {
        Export { namespace: Arc::clone(namespace), identity: self.identity.clone() }
    }
}

/// The state that the workers and the member's thread share.
pub(crate) struct Desk {
    /// The permits of all ANA groups, which the target's cores read.
    permits: BTreeMap<u32, Arc<Cell>>,
    until: Mutex<BTreeMap<u32, Instant>>,
    target: Mutex<Option<(Control, Vec<SocketAddr>)>>,
    access: Mutex<BTreeMap<u32, AnaState>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    fn new(groups: impl Iterator<Item = u32>) -> Self {
        Self {
            permits: groups.map(|group| (group, Arc::default())).collect(),
            until: Mutex::default(),
            target: Mutex::default(),
            access: Mutex::default(),
        }
    }

    /// The end of the group's permit, if it has not ended.
    pub(crate) fn until(&self, group: u32) -> Option<Instant> {
        let until = locked(&self.until).get(&group).copied();
        until.filter(|until| boot_time() < *until)
    }

    /// Gives a permit to all cores. Returns the end of the previous one.
    fn publish(&self, group: u32, until: Option<Instant>) -> Option<Instant> {
        let mut all = locked(&self.until);
        if let Some(cell) = self.permits.get(&group) {
            cell.publish(until);
        }
        match until {
            Some(until) => all.insert(group, until),
            None => all.remove(&group),
        }
    }

    pub(crate) fn control(&self) -> Option<Control> {
        locked(&self.target).as_ref().map(|(control, _)| control.clone())
    }

    /// Reports the ANA state of a group on all listeners.
    pub(crate) fn report(&self, group: u32, state: AnaState) {
        let Some((control, addresses)) = locked(&self.target).clone() else { return };
        let mut access = locked(&self.access);
        access.insert(group, state);
        let access = PortAccess { usual: AnaState::INACCESSIBLE, groups: access.clone() };
        for address in addresses {
            if let Err(error) = control.set_access(address, &access) {
                tracing::warn!("cannot report the state of ANA group {group}: {error}");
            }
        }
    }
}

/// The disks of a member. The member's thread calls it; no function blocks.
pub struct Leading {
    desk: Arc<Desk>,
    sink: Sink,
    workers: BTreeMap<u32, Sender<Order>>,
}

impl Leading {
    /// Starts the workers. They execute no order before [`Handle::attach`].
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(shared: Vec<Shared>, sink: Sink) -> io::Result<(Self, Handle)> {
        let mut groups: BTreeMap<u32, Vec<Shared>> = BTreeMap::new();
        for one in shared {
            groups.entry(one.sharing.ana_group).or_default().push(one);
        }
        let desk = Arc::new(Desk::new(groups.keys().copied()));
        let mut workers = BTreeMap::new();
        for (group, disks) in groups {
            let (sender, orders) = channel();
            let worker = Worker::new(group, disks, Arc::clone(&desk), Arc::clone(&sink), orders);
            std::thread::Builder::new()
                .name(format!("group-{group}"))
                .spawn(move || worker.run())?;
            workers.insert(group, sender);
        }
        let handle = Handle { desk: Arc::clone(&desk), workers: workers.clone() };
        Ok((Self { desk, sink, workers }, handle))
    }

    fn order(&self, group: u32, order: Order) {
        if let Some(worker) = self.workers.get(&group) {
            // A worker ends only together with the member.
            let _ = worker.send(order);
        }
    }

    /// Executes [`Action::Fence`](farblock_group::Action::Fence).
    pub fn fence(&mut self, group: u32, epoch: u64, victims: &[Holder]) {
        let is_hard = |victim: &Holder| victim.fences.iter().any(|fence| fence.is_complete());
        let cannot = victims.iter().any(is_hard) || !self.workers.contains_key(&group);
        (self.sink)(Answer::Event(match cannot {
            true => MemberEvent::FenceFailed { group, epoch },
            false => MemberEvent::FencePlaced { group, epoch, barrier: None },
        }));
    }

    /// Executes [`Action::Enter`](farblock_group::Action::Enter).
    pub fn enter(&mut self, group: u32, epoch: u64) {
        self.order(group, Order::Enter(epoch));
    }

    /// Executes [`Action::Begin`](farblock_group::Action::Begin).
    pub fn begin(&mut self, group: u32, epoch: u64) {
        self.order(group, Order::Begin(epoch));
    }

    /// Executes [`Action::Publish`](farblock_group::Action::Publish).
    pub fn publish(&mut self, group: u32, permit: Option<Permit>) {
        let until = permit.map(|permit| permit.until);
        let before = self.desk.publish(group, until);
        // A worker sees a permit that is renewed in time when it looks at the end of the old one.
        let is_gap = before.is_none_or(|before| boot_time() >= before);
        if until.is_some() && is_gap {
            self.order(group, Order::Permitted);
        }
    }

    /// Withdraws the permit, which ends soon. Answer: [`Answer::Parked`].
    pub fn park(&mut self, group: u32, epoch: u64) {
        self.desk.publish(group, None);
        self.order(group, Order::Park(epoch));
    }

    /// Executes [`Action::Stop`](farblock_group::Action::Stop).
    pub fn stop(&mut self, group: u32, epoch: u64) {
        self.order(group, Order::Stop(epoch));
    }
}

/// Connects the workers to the target.
pub struct Handle {
    desk: Arc<Desk>,
    workers: BTreeMap<u32, Sender<Order>>,
}

impl Handle {
    /// The permits for [`TargetConfig::permits`](farblock_target::TargetConfig::permits).
    #[must_use]
    pub fn permits(&self) -> BTreeMap<u32, Arc<Cell>> {
        self.desk.permits.clone()
    }

    /// Lets the workers execute their orders at this target, which listens on these addresses.
    pub fn attach(&self, control: Control, addresses: Vec<SocketAddr>) {
        *locked(&self.desk.target) = Some((control, addresses));
        for worker in self.workers.values() {
            let _ = worker.send(Order::Attached);
        }
    }
}
