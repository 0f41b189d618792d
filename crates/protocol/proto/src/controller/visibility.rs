//! Which hosts see which namespaces of a subsystem.
//!
//! A namespace of which nothing is said is seen by every host that may connect. To a host that does
//! not see one it is inactive: it is on no list, commands for it get Invalid Namespace or Format,
//! and no event is about it. An I/O queue needs none of this: its [`NamespaceTable`] has what its
//! host sees, and is everybody's where all see everything.
//!
//! What a host has registered or reserved stays while it does not see the namespace, as it does
//! while the host is away.

use super::ana;
use super::config::{ConfigError, PortId, SubsystemConfig, SubsystemId, check_nqn};
use super::limits;
use super::logs::NamespaceChange;
use super::namespace::{NamespaceInfo, NamespaceTable};
use super::registry::Registry;
use super::reservations::Reservations;
use super::state::Controller;
use crate::ids::NamespaceId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use farblock_wire::status::Status;

/// What hosts see of a subsystem where they do not all see the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ByHost {
    /// Of the hosts that are named somewhere.
    named: BTreeMap<String, Arc<NamespaceTable>>,
    /// Of all others.
    others: Arc<NamespaceTable>,
}

impl ByHost {
    pub(super) fn seen_by(&self, host_nqn: &str) -> &Arc<NamespaceTable> {
        self.named.get(host_nqn).unwrap_or(&self.others)
    }
}

impl SubsystemConfig {
    /// Whether a host that may connect sees a namespace.
    #[must_use]
    pub fn sees(&self, host_nqn: &str, namespace: NamespaceId) -> bool {
        self.visible_to.get(&namespace).is_none_or(|hosts| hosts.contains(host_nqn))
    }

    pub(super) fn check_visibility(&self) -> Result<(), ConfigError> {
        let named: BTreeSet<_> = self.visible_to.values().flatten().collect();
        if named.len() > limits::MAX_VISIBLE_TO {
            return Err(ConfigError::TooMany("hosts that namespaces are visible to"));
        }
        named.into_iter().try_for_each(|host| check_nqn(host))
    }
}

/// A subsystem's namespaces as I/O queues use them.
pub(super) fn table_of(
    config: &SubsystemConfig,
    access: &BTreeMap<PortId, ana::PortAccess>,
    generation: u64,
) -> Arc<NamespaceTable> {
    let seen = |is_seen: &dyn Fn(NamespaceId) -> bool| {
        let namespaces = config.namespaces.iter().filter(|(id, _)| is_seen(**id));
        let namespaces = namespaces.map(|(&id, &info)| (id, info));
        let table = NamespaceTable::new(generation, config.max_transfer_bytes, namespaces);
        let views = ana::views(&table, access);
        table.with_views(views)
    };
    let all = seen(&|_| true);
    if config.visible_to.is_empty() {
        return Arc::new(all);
    }
    let named = config.visible_to.values().flatten();
    let named = named.map(|host| (host.clone(), Arc::new(seen(&|id| config.sees(host, id)))));
    let others = Arc::new(seen(&|id| !config.visible_to.contains_key(&id)));
    Arc::new(all.with_hosts(ByHost { named: named.collect(), others }))
}

impl Registry {
    /// Adds a namespace for these hosts only; `None`: for all. The others never hear of it. With
    /// what was `kept` of its reservations, they go on, and are kept from now on.
    ///
    /// # Errors
    /// Those of [`Registry::add_namespace`], and when these cannot be the hosts.
    pub fn add_namespace_for(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        info: NamespaceInfo,
        hosts: Option<BTreeSet<String>>,
        kept: Option<Reservations>,
    ) -> Result<(), ConfigError> {
        info.check(namespace)?;
        let config = &mut self.subsystem_mut(subsystem)?.config;
        if config.namespaces.contains_key(&namespace) {
            return Err(ConfigError::Exists("namespace"));
        }
        replace_visibility(config, namespace, hosts)?;
        config.namespaces.insert(namespace, info);
        if let Some(state) = kept {
            self.take_up(subsystem, namespace, state);
        }
        self.namespace_changed(subsystem, namespace, NamespaceChange::Came);
        Ok(())
    }

    /// Says which hosts see a namespace from now on, `None` for all, and tells those for whom that
    /// makes a difference. What is under way ends as it ends.
    ///
    /// # Errors
    /// When there is no such namespace, or these cannot be the hosts.
    pub fn set_visible_to(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        hosts: Option<BTreeSet<String>>,
    ) -> Result<(), ConfigError> {
        let config = &mut self.subsystem_mut(subsystem)?.config;
        if !config.namespaces.contains_key(&namespace) {
            return Err(ConfigError::NotFound("namespace"));
        }
        let before = replace_visibility(config, namespace, hosts)?;
        let now = config.visible_to.get(&namespace).cloned();
        if before == now {
            return Ok(());
        }
        self.publish(subsystem);
        self.tell_those_who_see(subsystem, namespace, (&before, &now), None);
        Ok(())
    }

    /// Changes what is said about a namespace, and tells the hosts.
    ///
    /// # Errors
    /// When there is no such namespace, or it cannot be like that.
    pub fn replace_namespace(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        info: NamespaceInfo,
    ) -> Result<(), ConfigError> {
        let hosts = self.visible_to(subsystem, namespace);
        self.replace_namespace_for(subsystem, namespace, info, hosts)
    }

    /// The same, and at the same time says which hosts see it from now on: none of them sees the
    /// one without the other.
    ///
    /// # Errors
    /// Those of [`Registry::replace_namespace`], and when these cannot be the hosts.
    pub fn replace_namespace_for(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        info: NamespaceInfo,
        hosts: Option<BTreeSet<String>>,
    ) -> Result<(), ConfigError> {
        info.check(namespace)?;
        let config = &mut self.subsystem_mut(subsystem)?.config;
        if !config.namespaces.contains_key(&namespace) {
            return Err(ConfigError::NotFound("namespace"));
        }
        let saw = replace_visibility(config, namespace, hosts)?;
        let sees = config.visible_to.get(&namespace).cloned();
        let before = config.namespaces.insert(namespace, info).expect("it was found");
        let regrouped = before.ana_group != info.ana_group;
        let change = if before.uuid != info.uuid {
            // It is another one, which nobody has reserved.
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
            self.access_changed(|controller, table| {
                controller.subsystem == Some(subsystem) && table.find(namespace).is_some()
            });
        }
        Ok(())
    }

    /// The hosts that see a namespace, if not all do.
    #[must_use]
    pub fn visible_to(
        &self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
    ) -> Option<BTreeSet<String>> {
        self.subsystem(subsystem)?.visible_to.get(&namespace).cloned()
    }

    /// Tells each host what has become of a namespace that it saw, or sees now.
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

    /// The namespaces of a controller, as its host sees them.
    pub(super) fn table_seen_by(&self, controller: &Controller) -> Arc<NamespaceTable> {
        self.table_of(controller.subsystem).seen_by(&controller.host_nqn)
    }

    /// Whether a controller's host sees a namespace; or may speak of all that it sees.
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

/// Changes who sees a namespace, or nothing if that cannot be; gives who saw it.
pub(super) fn replace_visibility(
    config: &mut SubsystemConfig,
    namespace: NamespaceId,
    hosts: Option<BTreeSet<String>>,
) -> Result<Option<BTreeSet<String>>, ConfigError> {
    let put = |config: &mut SubsystemConfig, hosts: Option<BTreeSet<String>>| match hosts {
        Some(hosts) => config.visible_to.insert(namespace, hosts),
        None => config.visible_to.remove(&namespace),
    };
    let before = put(config, hosts);
    if let Err(error) = config.check_visibility() {
        put(config, before);
        return Err(error);
    }
    Ok(before)
}
