//! Host identifiers and their owners.
//!
//! Reservations know a host only by its identifier (HOSTID), which any host can claim. So within a
//! subsystem an identifier belongs to the host that has used it with a proved name. The host owns
//! the identifier while one of its controllers uses it, and while it is registered with a
//! namespace: also while the host is disconnected, and over a restart if the registration persists.
//! Then the identifier is free again.

use super::config::SubsystemId;
use super::limits;
use super::registry::{Registry, Teardown, TeardownReason};
use super::reservations::HostId;
use super::state::Controller;
use crate::ids::ControllerId;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// A hash of a proved host name. Reservations store it instead of the name. Finding another name
/// with the same mark is hard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostMark(pub u64);

/// A host, and the identifier that it uses.
#[derive(Clone, Copy, Debug)]
pub struct Identified<'a> {
    /// Its name (HOSTNQN).
    pub nqn: &'a str,
    /// The mark of that name.
    pub mark: HostMark,
    /// Its identifier (HOSTID).
    pub id: HostId,
}

/// Reasons to refuse a host its identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotIts {
    /// The identifier belongs to another host, which has proved its name.
    Anothers,
    /// The host already owns [`limits::MAX_IDENTIFIERS`] identifiers.
    OneTooMany,
}

/// The HOSTID of hosts without an identifier. No host owns it, and reservation commands with it
/// fail.
const NONE: HostId = [0; 16];

impl Registry {
    /// Checks that a host may use its identifier in a subsystem: no other host with a proved name
    /// owns it.
    ///
    /// # Errors
    /// The reason to refuse the identifier.
    pub fn check_identifier(
        &self,
        subsystem: SubsystemId,
        host: &Identified<'_>,
    ) -> Result<(), NotIts> {
        let mut proved = self.proved(subsystem).filter(|one| one.host_id == host.id);
        let is_anothers = proved.any(|one| one.host_nqn != host.nqn)
            || self.marks(subsystem).any(|(id, mark)| id == host.id && mark != host.mark);
        if host.id != NONE && is_anothers {
            return Err(NotIts::Anothers);
        }
        let of_controllers = self.proved(subsystem).filter(|one| one.host_nqn == host.nqn);
        let of_registrants = self.marks(subsystem).filter(|(_, mark)| *mark == host.mark);
        let mut its: BTreeSet<HostId> = of_controllers.map(|one| one.host_id).collect();
        its.extend(of_registrants.map(|(id, _)| id));
        its.insert(host.id);
        match its.len() > limits::MAX_IDENTIFIERS {
            true => Err(NotIts::OneTooMany),
            false => Ok(()),
        }
    }

    /// Reports that the host of a controller has proved its name. The host now owns its identifier
    /// and the registrations made with it. This ends the controllers of other hosts that claimed
    /// the identifier without proof; close the returned queues. Call this only if
    /// [`Registry::check_identifier`] allows the identifier, or if the operator has assigned it.
    pub fn host_proved(&mut self, controller: ControllerId, mark: HostMark) -> Vec<Teardown> {
        let Some(found) = self.controllers.get_mut(&controller) else { return Vec::new() };
        found.proved = Some(mark);
        let (nqn, id) = (found.host_nqn.clone(), found.host_id);
        let Some(subsystem) = found.subsystem.filter(|_| id != NONE) else { return Vec::new() };
        if let Ok(subsystem) = self.subsystem_mut(subsystem) {
            subsystem.reserved.values_mut().for_each(|reserved| reserved.mark(&id, mark));
        }
        self.remove_where(TeardownReason::IdentifierProved, |one| {
            let is_other = one.proved.is_none() && one.host_nqn != nqn;
            one.subsystem == Some(subsystem) && one.host_id == id && is_other
        })
    }

    /// Controllers whose hosts have proved their names.
    fn proved(&self, subsystem: SubsystemId) -> impl Iterator<Item = &Controller> {
        let its = self.controllers.values().filter(move |one| one.subsystem == Some(subsystem));
        its.filter(|one| one.proved.is_some())
    }

    /// Registrants that have proved their names.
    fn marks(&self, subsystem: SubsystemId) -> impl Iterator<Item = (HostId, HostMark)> {
        let reserved = self.reserved_of(subsystem).into_iter().flatten();
        reserved.flat_map(|(_, reserved)| reserved.marks())
    }
}
