//! Publishes the namespaces of a subsystem: as a table to the I/O queues, and as events to the
//! hosts.
//!
//! A change only marks the table as outdated. The registry builds the new table when a caller first
//! needs it. So ten thousand changes in a row do not build ten thousand tables.

use super::config::SubsystemId;
use super::events::Notice;
use super::logs::NamespaceChange;
use super::namespace::NamespaceTable;
use super::properties::Lifecycle;
use super::registry::{Action, Registry};
use super::reservations::shared_namespaces;
use super::state::Controller;
use super::visibility::table_of;
use crate::ids::{ControllerId, NamespaceId};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::OnceCell;

/// The table of a subsystem's namespaces for I/O queues.
#[derive(Debug)]
pub(super) struct Published {
    /// The table; empty after a change until its next use.
    table: OnceCell<Arc<NamespaceTable>>,
    /// The version of the table.
    generation: u64,
}

impl Default for Published {
    fn default() -> Self {
        Self { table: OnceCell::new(), generation: 1 }
    }
}

/// An action in the queue of [`Registry::poll_action`].
#[derive(Debug)]
pub(super) enum Queued {
    /// The action to return.
    Action(Action),
    /// [`Action::Namespaces`] of a subsystem, with the table of this version. If the table has a
    /// later version by now, the registry skips this entry. The queue then contains another entry,
    /// behind the actions that set the access rights in added namespaces.
    Table(SubsystemId, u64),
}

impl Queued {
    /// Whether the action stays in the queue when the registry removes this controller. Actions
    /// that complete commands on the controller's connections are dropped, because the connections
    /// are closed.
    pub(super) fn outlives(&self, id: ControllerId) -> bool {
        match self {
            Self::Action(
                Action::Complete { controller, .. }
                | Action::Forget { controller, .. }
                | Action::Flush { controller, .. },
            ) => *controller != id,
            Self::Action(Action::Close(teardown)) => teardown.controller != id,
            Self::Action(
                Action::Namespaces { .. }
                | Action::SaveReservations { .. }
                | Action::ConsultReservations { .. }
                | Action::ProposeReservations { .. }
                | Action::SharedApplied { .. }
                | Action::Access(_)
                | Action::Reserved { .. },
            )
            | Self::Table(..) => true,
        }
    }
}

impl Registry {
    /// Returns the namespace table of a subsystem, for I/O queues.
    #[must_use]
    pub fn namespaces(&self, id: SubsystemId) -> Option<Arc<NamespaceTable>> {
        let subsystem = self.subsystem_of(id)?;
        let Published { table, generation } = &subsystem.published;
        let build = || {
            let shared = shared_namespaces(&subsystem.reserved);
            table_of(&subsystem.config, &self.access, *generation, &shared)
        };
        Some(Arc::clone(table.get_or_init(build)))
    }

    /// Returns the namespace table of a controller's subsystem; empty on a discovery controller.
    pub(super) fn table_of(&self, subsystem: Option<SubsystemId>) -> Arc<NamespaceTable> {
        let table = subsystem.and_then(|id| self.namespaces(id));
        table.unwrap_or_else(|| self.no_namespaces.clone())
    }

    /// Queues an action that passes the current namespaces to every I/O queue of a subsystem. Does
    /// not notify hosts. Does nothing if the subsystem does not exist.
    pub fn publish(&mut self, id: SubsystemId) {
        let Ok(subsystem) = self.subsystem_mut(id) else { return };
        let published = &mut subsystem.published;
        published.generation += 1;
        published.table.take();
        let queued = Queued::Table(id, published.generation);
        self.queue(queued);
    }

    /// Publishes the namespaces of all subsystems.
    pub(super) fn publish_all(&mut self) {
        let subsystems: Vec<_> = self.subsystems().map(|(id, _)| id).collect();
        subsystems.into_iter().for_each(|id| self.publish(id));
    }

    /// Returns the action that publishes a subsystem's namespaces, if `generation` is the newest
    /// version.
    pub(super) fn newest_table(&self, subsystem: SubsystemId, generation: u64) -> Option<Action> {
        let is_newest = self.subsystem_of(subsystem)?.published.generation == generation;
        let table = self.namespaces(subsystem).filter(|_| is_newest)?;
        Some(Action::Namespaces { subsystem, table })
    }

    /// Publishes a subsystem's new namespaces and notifies its controllers of the change.
    pub(super) fn namespace_changed(
        &mut self,
        id: SubsystemId,
        namespace: NamespaceId,
        change: NamespaceChange,
    ) {
        self.publish(id);
        let Some(seen_by) = self.subsystem(id).map(|config| config.visible_to.get(&namespace))
        else {
            return;
        };
        let seen_by = seen_by.cloned();
        self.tell(id, namespace, |controller| {
            let hosts = seen_by.as_ref();
            hosts.is_none_or(|hosts| hosts.contains(&controller.host_nqn)).then_some(change)
        });
    }

    /// Notifies a subsystem's controllers of the `change` of a namespace, if their hosts see the
    /// namespace.
    pub(super) fn tell(
        &mut self,
        id: SubsystemId,
        namespace: NamespaceId,
        change: impl Fn(&Controller) -> Option<NamespaceChange>,
    ) {
        for controller in self.controllers.values_mut() {
            if controller.subsystem != Some(id) || controller.lifecycle != Lifecycle::Ready {
                continue;
            }
            let Some(change) = change(controller) else { continue };
            controller.changed.push(namespace, change);
            if matches!(change, NamespaceChange::Came | NamespaceChange::Went) {
                // The ANA log page has changed, too. It needs no event of its own, since a host
                // that gets the namespace event also reads this page.
                controller.access_changes += 1;
            }
            controller.events.raise(Notice::NamespaceAttribute);
            self.with_pending_events.insert(controller.id);
        }
    }
}
