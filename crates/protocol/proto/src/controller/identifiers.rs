//! Host identifiers, and whose they are.
//!
//! Reservations know a host by its identifier (HOSTID) alone, which it says itself. So the one with
//! which a host comes that has proved its name is that host's, in the subsystem: while one of its
//! controllers has it, and as long as it is registered with a namespace, also while the host is
//! away and over a restart if the registration persists. Then it is anybody's again.

use super::config::SubsystemId;
use super::limits;
use super::registry::{Registry, Teardown, TeardownReason};
use super::reservations::HostId;
use super::state::Controller;
use crate::ids::ControllerId;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// The name of a host that has proved it, in as much as reservations keep of it. The same for the
/// same name, and hard to find for another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostMark(pub u64);

/// A host, and the identifier that it gives.
#[derive(Clone, Copy, Debug)]
pub struct Identified<'a> {
    /// Its name (HOSTNQN).
    pub nqn: &'a str,
    /// The same.
    pub mark: HostMark,
    /// Its identifier (HOSTID).
    pub id: HostId,
}

/// Why a host may not have an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotIts {
    /// It is that of another host, which has proved who it is.
    Anothers,
    /// It has as many as a host may.
    OneTooMany,
}

/// What cannot be told from others is nobody's, and cannot reserve anything.
const NONE: HostId = [0; 16];

impl Registry {
    /// Whether a host may give its identifier to a subsystem, as far as others have proved theirs.
    ///
    /// # Errors
    /// Why it may not.
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

    /// The host of a controller has proved who it is: its identifier is its own from now on, and so
    /// is what was registered by it. The controllers of others that only said that it is theirs
    /// have ended; their queues are to be closed. To be called if [`Registry::check_identifier`]
    /// has nothing against it, or somebody has said whose the identifier is.
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

    /// Controllers whose hosts have proved who they are.
    fn proved(&self, subsystem: SubsystemId) -> impl Iterator<Item = &Controller> {
        let its = self.controllers.values().filter(move |one| one.subsystem == Some(subsystem));
        its.filter(|one| one.proved.is_some())
    }

    /// Registrants that have proved who they are.
    fn marks(&self, subsystem: SubsystemId) -> impl Iterator<Item = (HostId, HostMark)> {
        let reserved = self.reserved_of(subsystem).into_iter().flatten();
        reserved.flat_map(|(_, reserved)| reserved.marks())
    }
}
