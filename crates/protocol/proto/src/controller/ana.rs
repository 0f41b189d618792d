//! Asymmetric namespace access (ANA): the state of each group of namespaces on each port (NVMe Base
//! Specification 2.0, "Asymmetric Namespace Access Reporting").
//!
//! A namespace belongs to one ANA group. A port has a state for each group. A host sees the states
//! of the port through which the admin queue of its controller connected. An I/O queue does not
//! look up ANA states: its [`NamespaceTable`] marks the namespaces that are inaccessible to it.

use super::config::{ConfigError, PortId};
use super::events::Notice;
use super::limits;
use super::namespace::NamespaceTable;
use super::properties::Lifecycle;
use super::registry::Registry;
use super::state::Controller;
use crate::ids::NamespaceId;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use farblock_wire::IntoBytes;
use farblock_wire::identify::IdentifyNamespace;
use farblock_wire::log::{AnaGroupDescriptor, AnaLogHeader, AnaState};
use farblock_wire::status::Status;

/// The ANA group of a namespace for which the operator sets none.
pub const USUAL_ANA_GROUP: u32 = 1;

/// The ANA states of namespaces on a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortAccess {
    /// The state of all groups that are not in `groups`.
    pub usual: AnaState,
    /// The states of individual ANA groups.
    pub groups: BTreeMap<u32, AnaState>,
}

impl Default for PortAccess {
    /// Every namespace is in the optimized state.
    fn default() -> Self {
        Self::all(AnaState::OPTIMIZED)
    }
}

impl PortAccess {
    /// Every namespace is in the state `usual`.
    #[must_use]
    pub fn all(usual: AnaState) -> Self {
        Self { usual, groups: BTreeMap::new() }
    }

    /// The state of a group.
    #[must_use]
    pub fn state(&self, group: u32) -> AnaState {
        self.groups.get(&group).copied().unwrap_or(self.usual)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let known = |state: &AnaState| {
            *state == AnaState::OPTIMIZED
                || *state == AnaState::NON_OPTIMIZED
                || refusal(*state).is_some()
        };
        if !known(&self.usual) || !self.groups.values().all(known) {
            return Err(ConfigError::OutOfRange("ANA state"));
        }
        self.groups.keys().try_for_each(|&group| check_group(group))
    }
}

/// Checks that the group number is within its limits.
pub(crate) fn check_group(group: u32) -> Result<(), ConfigError> {
    match (1..=limits::MAX_ANA_GROUPS).contains(&group) {
        true => Ok(()),
        false => Err(ConfigError::OutOfRange("ANA group")),
    }
}

/// Returns the status with which the target fails a command for a namespace in this state. The host
/// then tries another path. `None`: the target executes the command ("ANA Effects on Command
/// Processing").
fn refusal(state: AnaState) -> Option<Status> {
    match state {
        AnaState::INACCESSIBLE => Some(Status::ANA_INACCESSIBLE),
        AnaState::PERSISTENT_LOSS => Some(Status::ANA_PERSISTENT_LOSS),
        AnaState::CHANGE => Some(Status::ANA_TRANSITION),
        _ => None,
    }
}

/// Returns a table for each port through which at least one namespace is inaccessible.
pub(super) fn views(
    table: &NamespaceTable,
    access: &BTreeMap<PortId, PortAccess>,
) -> Vec<(PortId, Arc<NamespaceTable>)> {
    let view = |(port, access): (&PortId, &PortAccess)| {
        let barred = table.iter().filter_map(|(id, info)| {
            refusal(access.state(info.ana_group)).map(|status| (id, status))
        });
        let barred: Vec<_> = barred.collect();
        (!barred.is_empty()).then(|| (*port, Arc::new(table.without(barred))))
    };
    access.iter().filter_map(view).collect()
}

impl Registry {
    /// Sets the ANA states of the namespaces on a port, and notifies the hosts that connected to
    /// the port. Commands in progress complete normally.
    ///
    /// # Errors
    /// Fails if the listener does not exist, or a state or a group is invalid.
    pub fn set_port_access(&mut self, port: PortId, access: PortAccess) -> Result<(), ConfigError> {
        access.check()?;
        if self.listeners.iter().all(|listener| listener.port != port) {
            return Err(ConfigError::NotFound("listener"));
        }
        let before = self.port_access(Some(port));
        if before == access {
            return Ok(());
        }
        self.access.insert(port, access.clone());
        self.publish_all();
        let differs = |table: &NamespaceTable| {
            table
                .iter()
                .any(|(_, info)| before.state(info.ana_group) != access.state(info.ana_group))
        };
        self.access_changed(|registry, controller| {
            controller.port == Some(port) && differs(&registry.table_seen_by(controller))
        });
        Ok(())
    }

    /// The ANA states of namespaces on a port.
    #[must_use]
    pub fn port_access(&self, port: Option<PortId>) -> PortAccess {
        port.and_then(|port| self.access.get(&port)).cloned().unwrap_or_default()
    }

    /// Notifies the hosts of the controllers for which `concerns` is true that their access to
    /// namespaces has changed.
    pub(super) fn access_changed(&mut self, concerns: impl Fn(&Self, &Controller) -> bool) {
        let is_meant = |controller: &&Controller| {
            controller.lifecycle == Lifecycle::Ready && concerns(self, controller)
        };
        let meant: Vec<_> =
            self.controllers.values().filter(is_meant).map(|controller| controller.id).collect();
        for id in meant {
            let controller =
                self.controllers.get_mut(&id).expect("the lookup above found the controller");
            controller.access_changes += 1;
            controller.events.raise(Notice::AccessChange);
            self.with_pending_events.insert(id);
        }
    }

    /// Checks that the ANA state of a namespace allows commands.
    pub(super) fn check_reach(
        &self,
        controller: &Controller,
        namespace: NamespaceId,
    ) -> Result<(), Status> {
        self.table_seen_by(controller).seen_from(controller.port).check_reach(namespace)
    }

    /// Returns the ANA log page: all groups that contain namespaces, in ascending order
    /// ("Asymmetric Namespace Access").
    pub(super) fn ana_page(&self, controller: &Controller, groups_only: bool) -> Vec<u8> {
        let access = self.port_access(controller.port);
        let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (id, info) in self.table_seen_by(controller).iter() {
            groups.entry(info.ana_group).or_default().push(id.0);
        }
        let header = AnaLogHeader {
            chgcnt: controller.access_changes.into(),
            ngrps: (groups.len() as u16).into(),
            ..AnaLogHeader::zeroed()
        };
        let mut page = header.as_bytes().to_vec();
        for (group, namespaces) in groups {
            let namespaces = if groups_only { &[][..] } else { &namespaces };
            let descriptor = AnaGroupDescriptor {
                grpid: group.into(),
                nnsids: (namespaces.len() as u32).into(),
                state: access.state(group).0,
                ..AnaGroupDescriptor::zeroed()
            };
            page.extend_from_slice(descriptor.as_bytes());
            namespaces.iter().for_each(|nsid| page.extend_from_slice(&nsid.to_le_bytes()));
        }
        page
    }

    /// Returns the Identify Namespace data for a controller's host. Sets the usage (NUSE) to zero
    /// if the namespace is inaccessible through the controller.
    pub(super) fn as_reached(
        &self,
        controller: &Controller,
        identify: IdentifyNamespace,
    ) -> IdentifyNamespace {
        let state = self.port_access(controller.port).state(identify.anagrpid.get());
        match state {
            AnaState::INACCESSIBLE | AnaState::PERSISTENT_LOSS => {
                IdentifyNamespace { nuse: 0.into(), ..identify }
            }
            _ => identify,
        }
    }
}
