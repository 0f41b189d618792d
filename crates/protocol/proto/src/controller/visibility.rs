//! The visibility of a subsystem's namespaces for each host.
//!
//! By default, every allowed host sees a namespace. A visibility list restricts a namespace to some
//! hosts. For all other hosts the namespace is inactive: no namespace list contains it, and no
//! event reports it. Commands for it fail with Invalid Namespace or Format.
//!
//! An I/O queue does not look up visibility: its [`NamespaceTable`] contains only the namespaces
//! that its host sees. If every host sees every namespace, all queues share one table.
//!
//! A host keeps its registrations and reservations while it is disconnected or does not see the
//! namespace.

use super::ana;
use super::config::{ConfigError, PortId, SubsystemConfig, SubsystemId, check_nqn};
use super::limits;
use super::logs::NamespaceChange;
use super::namespace::{NamespaceInfo, NamespaceTable};
use super::registry::{Registry, Subsystem};
use super::reservations::Reservations;
use super::state::Controller;
use crate::ids::NamespaceId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use farblock_wire::status::Status;

/// The tables of a subsystem whose hosts see different namespaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ByHost {
    /// The table of each host that is on a visibility list.
    named: BTreeMap<String, Arc<NamespaceTable>>,
    /// The table of all other hosts.
    others: Arc<NamespaceTable>,
}

impl ByHost {
    pub(super) fn seen_by(&self, host_nqn: &str) -> &Arc<NamespaceTable> {
        self.named.get(host_nqn).unwrap_or(&self.others)
    }
}

impl SubsystemConfig {
    /// Whether an allowed host sees a namespace.
    #[must_use]
    pub fn sees(&self, host_nqn: &str, namespace: NamespaceId) -> bool {
        self.visible_to.get(&namespace).is_none_or(|hosts| hosts.contains(host_nqn))
    }

    pub(super) fn check_visibility(&self) -> Result<(), ConfigError> {
        let named: BTreeSet<_> = self.visible_to.values().flatten().collect();
        if named.len() > limits::MAX_VISIBLE_TO {
            return Err(ConfigError::TooMany("hosts in visibility lists"));
        }
        named.into_iter().try_for_each(|host| check_nqn(host))
    }
}

/// Builds the tables of a subsystem's namespaces for I/O queues.
pub(super) fn table_of(
    config: &SubsystemConfig,
    access: &BTreeMap<PortId, ana::PortAccess>,
    generation: u64,
    shared: &[NamespaceId],
) -> Arc<NamespaceTable> {
    let seen = |is_seen: &dyn Fn(NamespaceId) -> bool| {
        let namespaces = config.namespaces.iter().filter(|(id, _)| is_seen(**id));
        let namespaces = namespaces.map(|(&id, &info)| (id, info));
        let table = NamespaceTable::new(generation, config.max_transfer_bytes, namespaces)
            .with_shared_reservations(shared.to_vec());
        let views = ana::views(&table, access);
        table.with_views(views)
    };
    let all = seen(&|_| true);
    if config.visible_to.is_empty() {
        return Arc::new(all);
    }
    let named: BTreeSet<_> = config.visible_to.values().flatten().collect();
    let named = named.into_iter();
    let named = named.map(|host| (host.clone(), Arc::new(seen(&|id| config.sees(host, id)))));
    let others = Arc::new(seen(&|id| !config.visible_to.contains_key(&id)));
    Arc::new(all.with_hosts(ByHost { named: named.collect(), others }))
}

impl Registry {
    /// Adds a namespace that only `hosts` see; `None`: all hosts see it. Only these hosts get a
    /// notice. If `kept` contains the namespace's stored reservations, they apply again, and the
    /// registry requests the storage of later changes.
    ///
    /// # Errors
    /// Returns the errors of [`Registry::add_namespace`], and an invalid list of hosts.
    pub fn add_namespace_for(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        info: NamespaceInfo,
        hosts: Option<BTreeSet<String>>,
        kept: Option<Reservations>,
    ) -> Result<(), ConfigError> {
        info.check(namespace)?;
        let found = self.subsystem_mut(subsystem)?;
        if found.config.namespaces.contains_key(&namespace) {
            return Err(ConfigError::Exists("namespace"));
        }
        found.replace_visibility(namespace, hosts)?;
        found.config.namespaces.insert(namespace, info);
        if let Some(state) = kept {
            self.take_up(subsystem, namespace, state);
        }
        self.namespace_changed(subsystem, namespace, NamespaceChange::Came);
        Ok(())
    }

    /// Sets the hosts that see a namespace (`None` for all hosts) and notifies the affected hosts.
    /// Commands in progress complete normally.
    ///
    /// # Errors
    /// Fails if the namespace does not exist, or the list of hosts is invalid.
    pub fn set_visible_to(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        hosts: Option<BTreeSet<String>>,
    ) -> Result<(), ConfigError> {
        let found = self.subsystem_mut(subsystem)?;
        if !found.config.namespaces.contains_key(&namespace) {
            return Err(ConfigError::NotFound("namespace"));
        }
        let before = found.replace_visibility(namespace, hosts)?;
        let now = found.config.visible_to.get(&namespace).cloned();
        if before == now {
            return Ok(());
        }
        self.publish(subsystem);
        self.tell_those_who_see(subsystem, namespace, (&before, &now), None);
        Ok(())
    }

    /// Replaces the description of a namespace, and notifies the hosts.
    ///
    /// # Errors
    /// Fails if the namespace does not exist, or the new description is invalid.
    pub fn replace_namespace(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        info: NamespaceInfo,
    ) -> Result<(), ConfigError> {
        let hosts = self.visible_to(subsystem, namespace);
        self.replace_namespace_for(subsystem, namespace, info, hosts)
    }

    /// Replaces, in one step, the description of a namespace and the list of hosts that see it. No
    /// host sees only one of the two changes.
    ///
    /// # Errors
    /// Returns the errors of [`Registry::replace_namespace`], and an invalid list of hosts.
    pub fn replace_namespace_for(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        info: NamespaceInfo,
        hosts: Option<BTreeSet<String>>,
    ) -> Result<(), ConfigError> {
        info.check(namespace)?;
        let found = self.subsystem_mut(subsystem)?;
        if !found.config.namespaces.contains_key(&namespace) {
            return Err(ConfigError::NotFound("namespace"));
        }
        let saw = found.replace_visibility(namespace, hosts)?;
        let sees = found.config.visible_to.get(&namespace).cloned();
        let before = found
            .config
            .namespaces
            .insert(namespace, info)
            .expect("the lookup above found the namespace");
        let regrouped = before.ana_group != info.ana_group;
        let change = if before.uuid != info.uuid {
            // The identifier now belongs to a different namespace, which has no reservations.
            self.end_reservations(subsystem, namespace);
            Some(NamespaceChange::Replaced)
        } else if regrouped && before == (NamespaceInfo { ana_group: before.ana_group, ..info }) {
            None
        } else {
            Some(NamespaceChange::Altered)
        };
        self.publish(subsystem);
        self.tell_those_who_see(subsystem, namespace, (&saw, &sees), change);
        if regrouped {
            // Look up visibility in the configuration, not in a table: after each of many changes,
            // the table would have to be built again.
            self.access_changed(|registry, controller| {
                let config = registry.subsystem(subsystem);
                controller.subsystem == Some(subsystem)
                    && config.is_some_and(|config| config.sees(&controller.host_nqn, namespace))
            });
        }
        Ok(())
    }

    /// Returns the hosts that see a namespace; `None`: all hosts.
    #[must_use]
    pub fn visible_to(
        &self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
    ) -> Option<BTreeSet<String>> {
        self.subsystem(subsystem)?.visible_to.get(&namespace).cloned()
    }

    /// Notifies each host that sees the namespace before or after the change.
    fn tell_those_who_see(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        (before, now): (&Option<BTreeSet<String>>, &Option<BTreeSet<String>>),
        change: Option<NamespaceChange>,
    ) {
        let sees = |hosts: &Option<BTreeSet<String>>, host: &String| {
            hosts.as_ref().is_none_or(|hosts| hosts.contains(host))
        };
        self.tell(subsystem, namespace, |controller| {
            match (sees(before, &controller.host_nqn), sees(now, &controller.host_nqn)) {
                (true, true) => change,
                (true, false) => Some(NamespaceChange::Went),
                (false, true) => Some(NamespaceChange::Came),
                (false, false) => None,
            }
        });
    }

    /// Returns the namespaces that a controller's host sees.
    pub(super) fn table_seen_by(&self, controller: &Controller) -> Arc<NamespaceTable> {
        self.table_of(controller.subsystem).seen_by(&controller.host_nqn)
    }

    /// Checks that a controller's host sees a namespace. [`NamespaceId::ALL`] always passes the
    /// check.
    pub(super) fn check_sight(
        &self,
        controller: &Controller,
        namespace: NamespaceId,
    ) -> Result<(), Status> {
        let is_seen = namespace == NamespaceId::ALL
            || self.table_seen_by(controller).find(namespace).is_some();
        is_seen.then_some(()).ok_or(Status::INVALID_NAMESPACE.with_dnr())
    }
}

/// The hosts on the visibility lists of a subsystem, each with the number of lists that contain it.
/// With these numbers, a change need not read the lists of other namespaces.
#[derive(Debug, Default)]
pub(super) struct NamedHosts(BTreeMap<String, usize>);

impl NamedHosts {
    /// Counts the hosts in a valid configuration.
    pub(super) fn of(config: &SubsystemConfig) -> Self {
        let mut named = Self::default();
        config.visible_to.values().for_each(|hosts| named.add(hosts));
        named
    }

    fn add(&mut self, hosts: &BTreeSet<String>) {
        for host in hosts {
            *self.0.entry(host.clone()).or_default() += 1;
        }
    }

    fn remove(&mut self, hosts: &BTreeSet<String>) {
        for host in hosts {
            if let Some(lists) = self.0.get_mut(host) {
                *lists -= 1;
                if *lists == 0 {
                    self.0.remove(host);
                }
            }
        }
    }
}

impl Subsystem {
    /// Sets the hosts that see a namespace and returns the previous hosts. Changes nothing if it
    /// fails.
    pub(super) fn replace_visibility(
        &mut self,
        namespace: NamespaceId,
        hosts: Option<BTreeSet<String>>,
    ) -> Result<Option<BTreeSet<String>>, ConfigError> {
        let before = self.config.visible_to.remove(&namespace);
        before.iter().for_each(|hosts| self.named.remove(hosts));
        let Some(hosts) = hosts else { return Ok(before) };
        if let Err(error) = self.check_named(&hosts) {
            if let Some(hosts) = before {
                self.named.add(&hosts);
                self.config.visible_to.insert(namespace, hosts);
            }
            return Err(error);
        }
        self.named.add(&hosts);
        self.config.visible_to.insert(namespace, hosts);
        Ok(before)
    }

    /// Checks that the subsystem stays within its limit if one more visibility list contains these
    /// hosts.
    fn check_named(&self, hosts: &BTreeSet<String>) -> Result<(), ConfigError> {
        let new = hosts.iter().filter(|host| !self.named.0.contains_key(*host));
        if self.named.0.len() + new.clone().count() > limits::MAX_VISIBLE_TO {
            return Err(ConfigError::TooMany("hosts that namespaces are visible to"));
        }
        new.into_iter().try_for_each(|host| check_nqn(host))
    }
}
