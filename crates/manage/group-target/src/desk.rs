//! The state that the member's thread and the workers, one thread for each ANA group, share.

use crate::absent::Absent;
use farblock_block::Namespace;
use farblock_group::MemberEvent;
use farblock_proto::controller::PortAccess;
use farblock_proto::ids::NamespaceId;
use farblock_proto::time::Instant;
use farblock_target::{Control, Export, Permit as Cell, Sharing, boot_time};
use farblock_wire::log::AnaState;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A worker's answer to the member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeadingAnswer {
    /// An event for the member.
    Event(MemberEvent),
    /// No core submits an operation of this epoch before the next permit, and none is in flight.
    Parked {
        /// The ANA group.
        group: u32,
        /// The epoch of the leadership.
        epoch: u64,
    },
}

/// Receives the answers for the member. Any thread calls it.
pub type Sink = Arc<dyn Fn(LeadingAnswer) + Send + Sync>;

/// A namespace that the members share.
pub struct LedNamespace {
    /// The NQN of the subsystem.
    pub nqn: String,
    /// The namespace identifier.
    pub nsid: NamespaceId,
    /// The namespace's settings, with its ANA group.
    pub sharing: Sharing,
    /// The text from which the namespace's identifiers are derived, the same at every member.
    pub identity: String,
    /// The stand-in that the target shares until it first opens the disk. After closing the disk,
    /// the target shares a stand-in with the disk's last geometry.
    pub absent: Absent,
    /// Opens the disk. May take long. The error is one sentence.
    pub open: Box<dyn Fn() -> Result<Arc<dyn Namespace>, String> + Send + Sync>,
}

impl LedNamespace {
    pub(crate) fn export(&self, namespace: &Arc<dyn Namespace>) -> Export {
        Export { namespace: Arc::clone(namespace), identity: self.identity.clone() }
    }
}

/// The state that the workers and the member's thread share.
pub(crate) struct Desk {
    /// The permits of all ANA groups: the target's cores do I/O only until a permit's end.
    permits: BTreeMap<u32, Arc<Cell>>,
    until: Mutex<BTreeMap<u32, Instant>>,
    target: Mutex<Option<(Control, Vec<SocketAddr>)>>,
    access: Mutex<BTreeMap<u32, AnaState>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    pub(crate) fn new(groups: impl Iterator<Item = u32>) -> Self {
        Self {
            permits: groups.map(|group| (group, Arc::default())).collect(),
            until: Mutex::default(),
            target: Mutex::default(),
            access: Mutex::default(),
        }
    }

    /// The end of the ANA group's permit; `None` if the permit has ended.
    pub(crate) fn until(&self, group: u32) -> Option<Instant> {
        let until = locked(&self.until).get(&group).copied();
        until.filter(|until| boot_time() < *until)
    }

    /// Gives a permit for an ANA group to all cores. Returns the end of the previous one.
    pub(crate) fn publish(&self, group: u32, until: Option<Instant>) -> Option<Instant> {
        let mut all = locked(&self.until);
        if let Some(cell) = self.permits.get(&group) {
            cell.publish(until);
        }
        match until {
            Some(until) => all.insert(group, until),
            None => all.remove(&group),
        }
    }

    /// The permits of all ANA groups.
    pub(crate) fn permits(&self) -> BTreeMap<u32, Arc<Cell>> {
        self.permits.clone()
    }

    /// Sets the running target, and the addresses on which it listens.
    pub(crate) fn attach(&self, control: Control, addresses: Vec<SocketAddr>) {
        *locked(&self.target) = Some((control, addresses));
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
