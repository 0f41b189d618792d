//! Ownership of host identifiers.
//!
//! Reservations distinguish hosts only by their identifiers (HOSTID), and any host can claim any
//! identifier. Therefore, within a subsystem, an identifier belongs to the first host that used it
//! and proved its name, by authentication or TLS. The host owns the identifier while one of its
//! controllers uses it or while it is registered with a namespace. A registration also counts while
//! the host is disconnected, and after a restart if it persists. Afterwards the identifier is free
//! again.

use super::config::SubsystemId;
use super::limits;
use super::registry::{Registry, Teardown, TeardownReason};
use super::reservations::HostId;
use super::state::Controller;
use crate::ids::ControllerId;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// A hash of a proved host name. Reservations store the hash instead of the name. An attacker
/// cannot easily find another name with the same hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostMark(pub u64);

/// A host, and the identifier that it uses.
#[derive(Clone, Copy, Debug)]
pub struct Identified<'a> {
    /// The host's name (HOSTNQN).
    pub nqn: &'a str,
    /// The hash of the name.
    pub mark: HostMark,
    /// The host's identifier (HOSTID).
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

/// The value of HOSTID for hosts without an identifier. No host owns it, and reservation commands
/// with this value fail.
const NONE: HostId = [0; 16];

impl Registry {
    /// Checks that a host may use its identifier in a subsystem. No other host with a proved name
    /// may own the identifier, and this host may own at most [`limits::MAX_IDENTIFIERS`]
    /// identifiers.
    ///
    /// # Errors
    /// Returns the reason for refusing the identifier.
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

    /// The target calls this when the host of a controller has proved its name. The host then owns
    /// its identifier and all registrations with this identifier. The registry removes the
    /// controllers of other hosts that claimed the identifier without proof; the caller closes the
    /// returned queues.
    ///
    /// Call this function only if [`Registry::check_identifier`] allows the identifier, or if the
    /// operator has assigned it.
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

    /// Returns the controllers whose hosts have proved their names.
    fn proved(&self, subsystem: SubsystemId) -> impl Iterator<Item = &Controller> {
        let its = self.controllers.values().filter(move |one| one.subsystem == Some(subsystem));
        its.filter(|one| one.proved.is_some())
    }

    /// Returns the registrants that have proved their names.
    fn marks(&self, subsystem: SubsystemId) -> impl Iterator<Item = (HostId, HostMark)> {
        let reserved = self.reserved_of(subsystem).into_iter().flatten();
        reserved.flat_map(|(_, reserved)| reserved.marks())
    }
}
