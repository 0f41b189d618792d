//! The registry: the subsystems that a target offers, and its hosts' controllers.

use super::ana::PortAccess;
use super::channels::Channels;
use super::config::{
    ConfigError, Listener, PortId, Referral, SubsystemConfig, SubsystemId, check_nqn,
};
use super::events::Notice;
use super::limits;
use super::logs::{ErrorRecord, NamespaceChange, SmartCounters};
use super::namespace::{NamespaceInfo, NamespaceTable};
use super::properties::Lifecycle;
use super::published::{Published, Queued};
use super::reservations::{AccessChange, Reserved, SharedProposal, Ticket};
use super::reset::{Instance, Instances};
use super::state::{Controller, Soonest};
use super::visibility::NamedHosts;
use crate::capsule::RemoteForm;
use crate::ids::{CommandId, ControllerId, NamespaceId, QueueId};
use crate::time::Instant;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use farblock_wire::fabrics::CNTLID_MAX;
use farblock_wire::origin::{ControllerOrigin, ProcessName};
use farblock_wire::status::Status;

/// The subsystems, discovery service, listeners, referrals and live controllers of a target. See
/// the [module](super).
#[derive(Debug)]
pub struct Registry {
    subsystems: BTreeMap<SubsystemId, Subsystem>,
    next_subsystem: u32,
    pub(super) listeners: Vec<Listener>,
    pub(super) channels: Channels,
    pub(super) referrals: Vec<Referral>,
    /// The ANA states of the ports for which the target called [`Registry::set_port_access`].
    pub(super) access: BTreeMap<PortId, PortAccess>,
    pub(super) controllers: BTreeMap<ControllerId, Controller>,
    pub(super) controller_ids: RangeInclusive<u16>,
    next_controller_id: u16,
    pub(super) instances: Instances,
    /// The origin of this registry (boot and addresses), for Identify Controller.
    pub(super) origin: Option<ControllerOrigin>,
    /// The process name for Identify Controller, if configured.
    pub(super) process: Option<ProcessName>,
    /// GENCTR of the discovery log page.
    pub(super) discovery_generation: u64,
    /// An empty namespace table, for all discovery controllers.
    pub(super) no_namespaces: Arc<NamespaceTable>,
    actions: VecDeque<Queued>,
    /// Controllers that may have an event to report.
    pub(super) with_pending_events: BTreeSet<ControllerId>,
    /// The earliest time at which a controller's timer may expire.
    pub(super) soonest: Arc<Soonest>,
    pub(super) reservation_serial: u64,
}

#[derive(Debug)]
pub(super) struct Subsystem {
    pub(super) config: SubsystemConfig,
    /// Namespaces that have, or had, reservations or registrants.
    pub(super) reserved: BTreeMap<NamespaceId, Reserved>,
    pub(super) published: Published,
    pub(super) named: NamedHosts,
    counters: SmartCounters,
    /// For a subsystem with its own range of identifiers: the identifier at which the search for a
    /// free identifier starts.
    next_controller_id: u16,
}

/// An action for the target. It concerns connections other than the one for which the target called
/// the registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Complete an Asynchronous Event Request for which the registry returned
    /// [`AdminOutcome::Pending`](super::AdminOutcome::Pending).
    Complete {
        /// The controller on whose admin queue the request waits.
        controller: ControllerId,
        /// The request.
        command: CommandId,
        /// Success, or Command Abort Requested.
        status: Status,
        /// The completion's result: the event.
        result: u64,
    },
    /// Drop an Asynchronous Event Request for which the registry returned
    /// [`AdminOutcome::Pending`](super::AdminOutcome::Pending). The host reset or shut down the
    /// controller, which ends the request without a response.
    Forget {
        /// The controller on whose admin queue the request waits.
        controller: ControllerId,
        /// The request.
        command: CommandId,
    },
    /// Close the connections of these queues, and report each closed queue with
    /// [`Registry::queue_closed`].
    Close(Teardown),
    /// The I/O queues of this subsystem must use this table from now on.
    Namespaces {
        /// The subsystem.
        subsystem: SubsystemId,
        /// The subsystem's namespaces.
        table: Arc<NamespaceTable>,
    },
    /// Flush every namespace of the subsystem, then call [`Registry::shutdown_flushed`]. The
    /// registry requests this only with [`SubsystemConfig::flush_on_shutdown`].
    Flush {
        /// The controller that the host shuts down.
        controller: ControllerId,
        /// The controller's subsystem.
        subsystem: SubsystemId,
    },
    /// Durably replace the stored reservations of a namespace, then call
    /// [`Registry::reservations_saved`]. The registry requests this only after
    /// [`Registry::keep_reservations`].
    SaveReservations {
        /// The subsystem.
        subsystem: SubsystemId,
        /// The namespace.
        namespace: NamespaceId,
        /// The number to pass to [`Registry::reservations_saved`].
        serial: u64,
        /// The text to store. Empty: remove the stored text.
        text: String,
    },
    /// Ask the group of targets for the last change of the shared reservations, then call
    /// [`Registry::answer_shared`].
    ConsultReservations {
        /// The subsystem.
        subsystem: SubsystemId,
        /// The namespace.
        namespace: NamespaceId,
        /// The number to pass to [`Registry::answer_shared`].
        serial: u64,
    },
    /// Propose a change of the shared reservations to the group of targets, then call
    /// [`Registry::answer_shared`].
    ProposeReservations {
        /// The subsystem.
        subsystem: SubsystemId,
        /// The namespace.
        namespace: NamespaceId,
        /// The change.
        proposal: SharedProposal,
    },
    /// Report to the group of targets that every core of this target enforces all changes from
    /// [`Registry::apply_shared`] up to this one. All commands that these changes forbid have
    /// ended.
    SharedApplied {
        /// The subsystem.
        subsystem: SubsystemId,
        /// The namespace.
        namespace: NamespaceId,
        /// The number of the change.
        index: u64,
    },
    /// Apply this change on every queue of the subsystem. Call [`Registry::access_spread`] when all
    /// queues apply the change, and every command that the change forbids or aborts has ended.
    Access(Arc<AccessChange>),
    /// Complete a command that the target passed to [`Registry::reserve`].
    Reserved {
        /// The command's ticket.
        ticket: Ticket,
        /// The completion's status.
        status: Status,
        /// The data of a Reservation Report. Push the data to the host before the completion, and
        /// fill the rest of the host's buffer with zeroes.
        report: Option<Vec<u8>>,
    },
}

/// Queues whose connections the target must close.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Teardown {
    /// The controller. Unless the reason is [`TeardownReason::Disabled`], the registry has removed
    /// the controller. Its identifier is then invalid, and the target need not report the closed
    /// queues.
    pub controller: ControllerId,
    /// The queues that are still connected.
    pub queues: Vec<QueueId>,
    /// Why the target must close the queues.
    pub reason: TeardownReason,
}

/// Reasons to close queues (NVMe Base Specification 2.0, "Association termination").
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TeardownReason {
    /// The connection of the admin queue was closed.
    AdminQueueClosed,
    /// The host was silent for longer than the keep-alive timeout.
    KeepAliveExpired,
    /// The host shut down the controller, and the time for reading its properties has passed.
    AssociationExpired,
    /// The host reset or shut down the controller. The target closes the I/O queues and keeps the
    /// admin queue.
    Disabled,
    /// The target's operator removed the controller.
    Removed,
    /// The host ended the controller through another of its controllers.
    CrossControllerReset,
    /// The operator removed the subsystem.
    SubsystemRemoved,
    /// The operator withdrew the host's access to the subsystem.
    HostDisallowed,
    /// The host used the identifier (HOSTID) of another host, and the other host has proved its
    /// name.
    IdentifierProved,
    /// The target is stopping.
    TargetStopped,
}

/// A live controller, for operators and metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerSummary<'a> {
    /// The controller's identifier.
    pub controller: ControllerId,
    /// The controller's subsystem; `None` on a discovery controller.
    pub subsystem: Option<SubsystemId>,
    /// The host's name (HOSTNQN).
    pub host_nqn: &'a str,
    /// The host's identifier (HOSTID).
    pub host_id: [u8; 16],
    /// The address to which the host connected.
    pub local_address: &'a str,
    /// The type of SGL descriptor that the transport uses for data outside capsules.
    pub remote: RemoteForm,
    /// The controller's state.
    pub lifecycle: Lifecycle,
    /// Keep-alive timeout in milliseconds; 0: no timeout.
    pub keep_alive_ms: u32,
    /// The number of connected I/O queues.
    pub io_queues: usize,
    /// The number of failed commands (error count of the error information log).
    pub errors: u64,
}

impl ControllerSummary<'_> {
    fn of(controller: &Controller) -> ControllerSummary<'_> {
        ControllerSummary {
            controller: controller.id,
            subsystem: controller.subsystem,
            host_nqn: &controller.host_nqn,
            host_id: controller.host_id,
            local_address: &controller.local_address,
            remote: controller.remote,
            lifecycle: controller.lifecycle,
            keep_alive_ms: controller.keep_alive.timeout_ms(),
            io_queues: controller.io_queues().count(),
            errors: controller.errors.count(),
        }
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

/// Methods that change the configuration.
impl Registry {
    /// Creates a registry with only an empty discovery service.
    #[must_use]
    pub fn new() -> Self {
        Self {
            subsystems: BTreeMap::new(),
            next_subsystem: 1,
            listeners: Vec::new(),
            channels: Channels::default(),
            referrals: Vec::new(),
            access: BTreeMap::new(),
            controllers: BTreeMap::new(),
            controller_ids: 1..=CNTLID_MAX,
            next_controller_id: 1,
            instances: Instances::default(),
            origin: None,
            process: None,
            discovery_generation: 0,
            no_namespaces: Arc::new(NamespaceTable::new(0, crate::limits::MAX_TRANSFER_BYTES, [])),
            actions: VecDeque::new(),
            with_pending_events: BTreeSet::new(),
            soonest: Arc::default(),
            reservation_serial: 0,
        }
    }

    /// Sets the range from which the registry assigns controller identifiers from now on. With
    /// separate ranges, several targets can offer one subsystem. The registry reuses identifiers of
    /// a small range sooner.
    ///
    /// # Errors
    /// Fails if the range is empty or not within 1 to `0xffef`.
    pub fn set_controller_ids(&mut self, ids: RangeInclusive<u16>) -> Result<(), ConfigError> {
        if ids.is_empty() || *ids.start() == 0 || *ids.end() > CNTLID_MAX {
            return Err(ConfigError::OutOfRange("controller identifiers"));
        }
        self.next_controller_id = *ids.start();
        self.controller_ids = ids;
        Ok(())
    }

    /// Offers a subsystem on every listener.
    ///
    /// # Errors
    /// Fails if the configuration is invalid, or another subsystem has the same name.
    pub fn add_subsystem(&mut self, config: SubsystemConfig) -> Result<SubsystemId, ConfigError> {
        config.check()?;
        if self.find_subsystem(&config.nqn).is_some() {
            return Err(ConfigError::Exists("subsystem"));
        }
        if self.subsystems.len() >= limits::MAX_SUBSYSTEMS {
            return Err(ConfigError::TooMany("subsystems"));
        }
        let id = SubsystemId(self.next_subsystem);
        self.next_subsystem += 1;
        let (reserved, counters) = (BTreeMap::new(), SmartCounters::default());
        let (published, named) = (Published::default(), NamedHosts::of(&config));
        let next_controller_id = 0;
        let subsystem =
            Subsystem { config, reserved, published, named, counters, next_controller_id };
        self.subsystems.insert(id, subsystem);
        self.discovery_changed(|registry, host| registry.may_see(id, host));
        Ok(id)
    }

    /// Removes a subsystem and its controllers. The caller closes the returned queues.
    ///
    /// # Errors
    /// Fails if the subsystem does not exist.
    pub fn remove_subsystem(&mut self, id: SubsystemId) -> Result<Vec<Teardown>, ConfigError> {
        self.subsystem_mut(id)?;
        let ends = self.remove_where(TeardownReason::SubsystemRemoved, |controller| {
            controller.subsystem == Some(id)
        });
        // Notify the hosts that saw the subsystem. The check needs the subsystem's list of hosts,
        // so do it first.
        self.discovery_changed(|registry, host| registry.may_see(id, host));
        self.subsystems.remove(&id);
        self.channels.forget_subsystem(id);
        Ok(ends)
    }

    /// Allows a host to use a subsystem.
    ///
    /// # Errors
    /// Fails if the subsystem does not exist, or the host's name is invalid.
    pub fn allow_host(&mut self, id: SubsystemId, host_nqn: &str) -> Result<(), ConfigError> {
        check_nqn(host_nqn)?;
        let config = &mut self.subsystem_mut(id)?.config;
        if config.allowed_hosts.iter().any(|host| host == host_nqn) {
            return Ok(());
        }
        if config.allowed_hosts.len() >= limits::MAX_ALLOWED_HOSTS {
            return Err(ConfigError::TooMany("allowed hosts"));
        }
        config.allowed_hosts.push(host_nqn.to_string());
        self.discovery_changed(|_, host| host == host_nqn);
        Ok(())
    }

    /// Removes a host from the allowed hosts of a subsystem. Unless any host is allowed, also
    /// removes the host's controllers; the caller closes the returned queues.
    ///
    /// # Errors
    /// Fails if the subsystem does not exist.
    pub fn disallow_host(
        &mut self,
        id: SubsystemId,
        host_nqn: &str,
    ) -> Result<Vec<Teardown>, ConfigError> {
        self.subsystem_mut(id)?.config.allowed_hosts.retain(|host| host != host_nqn);
        self.discovery_changed(|_, host| host == host_nqn);
        Ok(self.remove_disallowed(id))
    }

    /// Allows all hosts, or only the hosts on the list, to use a subsystem. Removes the controllers
    /// of hosts that are no longer allowed; the caller closes the returned queues.
    ///
    /// # Errors
    /// Fails if the subsystem does not exist.
    pub fn set_allow_any_host(
        &mut self,
        id: SubsystemId,
        allow: bool,
    ) -> Result<Vec<Teardown>, ConfigError> {
        self.subsystem_mut(id)?.config.allow_any_host = allow;
        self.discovery_changed(|_, _| true);
        Ok(self.remove_disallowed(id))
    }

    /// Adds a listener to the discovery log page.
    ///
    /// # Errors
    /// Fails if a field does not fit in the page, or another listener has the same number.
    pub fn add_listener(&mut self, listener: Listener) -> Result<(), ConfigError> {
        listener.check()?;
        if self.listeners.iter().any(|other| other.port == listener.port) {
            return Err(ConfigError::Exists("listener"));
        }
        if self.listeners.len() >= limits::MAX_LISTENERS {
            return Err(ConfigError::TooMany("listeners"));
        }
        self.channels.forget_port(listener.port);
        let before = self.access.remove(&listener.port);
        self.listeners.push(listener);
        if before.is_some() {
            // The target may have set ANA states for this port number before, so the tables of this
            // port may change.
            self.publish_all();
        }
        self.discovery_changed(|_, _| true);
        Ok(())
    }

    /// Removes a listener from the discovery log page. The listener's connections remain open and
    /// keep their ANA states.
    ///
    /// # Errors
    /// Fails if the listener does not exist.
    pub fn remove_listener(&mut self, port: PortId) -> Result<Listener, ConfigError> {
        let index = self.listeners.iter().position(|listener| listener.port == port);
        let listener = self.listeners.remove(index.ok_or(ConfigError::NotFound("listener"))?);
        self.discovery_changed(|_, _| true);
        Ok(listener)
    }

    /// Adds a referral to another discovery service.
    ///
    /// # Errors
    /// Fails if a field does not fit in the discovery log page, or the page already contains the
    /// referral.
    pub fn add_referral(&mut self, referral: Referral) -> Result<(), ConfigError> {
        referral.check()?;
        if self.referrals.contains(&referral) {
            return Err(ConfigError::Exists("referral"));
        }
        if self.referrals.len() >= limits::MAX_REFERRALS {
            return Err(ConfigError::TooMany("referrals"));
        }
        self.referrals.push(referral);
        self.discovery_changed(|_, _| true);
        Ok(())
    }

    /// Removes a referral.
    ///
    /// # Errors
    /// Fails if the referral does not exist.
    pub fn remove_referral(&mut self, referral: &Referral) -> Result<(), ConfigError> {
        let index = self.referrals.iter().position(|other| other == referral);
        self.referrals.remove(index.ok_or(ConfigError::NotFound("referral"))?);
        self.discovery_changed(|_, _| true);
        Ok(())
    }
}

/// Methods for namespaces.
impl Registry {
    /// Adds a namespace and notifies the hosts.
    ///
    /// # Errors
    /// Fails if the namespace is invalid, its identifier is in use, or the subsystem does not
    /// exist.
    pub fn add_namespace(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        info: NamespaceInfo,
    ) -> Result<(), ConfigError> {
        self.add_namespace_for(subsystem, namespace, info, None, None)
    }

    /// Removes a namespace and notifies the hosts.
    ///
    /// # Errors
    /// Fails if the namespace does not exist.
    pub fn remove_namespace(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
    ) -> Result<NamespaceInfo, ConfigError> {
        let namespaces = &mut self.subsystem_mut(subsystem)?.config.namespaces;
        let info = namespaces.remove(&namespace).ok_or(ConfigError::NotFound("namespace"))?;
        self.end_reservations(subsystem, namespace);
        self.namespace_changed(subsystem, namespace, NamespaceChange::Went);
        self.subsystem_mut(subsystem)?.replace_visibility(namespace, None)?;
        Ok(info)
    }

    /// Changes a namespace's capacity and notifies the hosts.
    ///
    /// # Errors
    /// Fails if the namespace does not exist, or the capacity is invalid.
    pub fn resize_namespace(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        blocks: u64,
    ) -> Result<(), ConfigError> {
        let namespaces = &self.subsystem_mut(subsystem)?.config.namespaces;
        let info = *namespaces.get(&namespace).ok_or(ConfigError::NotFound("namespace"))?;
        self.replace_namespace(subsystem, namespace, NamespaceInfo { blocks, ..info })
    }
}

/// Methods for queries.
impl Registry {
    /// Returns a subsystem's configuration.
    #[must_use]
    pub fn subsystem(&self, id: SubsystemId) -> Option<&SubsystemConfig> {
        self.subsystems.get(&id).map(|subsystem| &subsystem.config)
    }

    /// Returns the subsystem with this name.
    #[must_use]
    pub fn find_subsystem(&self, nqn: &str) -> Option<SubsystemId> {
        self.subsystems().find(|(_, config)| config.nqn == nqn).map(|(id, _)| id)
    }

    /// Returns all subsystems.
    pub fn subsystems(&self) -> impl Iterator<Item = (SubsystemId, &SubsystemConfig)> {
        self.subsystems.iter().map(|(&id, subsystem)| (id, &subsystem.config))
    }

    /// Returns the listeners in the discovery log page.
    #[must_use]
    pub fn listeners(&self) -> &[Listener] {
        &self.listeners
    }

    /// Returns the referrals in the discovery log page.
    #[must_use]
    pub fn referrals(&self) -> &[Referral] {
        &self.referrals
    }

    /// Returns all live controllers.
    pub fn controllers(&self) -> impl Iterator<Item = ControllerSummary<'_>> {
        self.controllers.values().map(ControllerSummary::of)
    }

    /// Returns a live controller.
    #[must_use]
    pub fn controller(&self, id: ControllerId) -> Option<ControllerSummary<'_>> {
        self.controllers.get(&id).map(ControllerSummary::of)
    }

    /// Returns the counters from the last [`Registry::set_counters`] for a subsystem.
    #[must_use]
    pub fn smart_counters(&self, id: SubsystemId) -> SmartCounters {
        self.counters(id)
    }

    /// Returns the largest number of bytes that a command may transfer; `None` if the controller
    /// does not exist.
    #[must_use]
    pub fn max_transfer_bytes(&self, controller: ControllerId) -> Option<u32> {
        let controller = self.controllers.get(&controller)?;
        Some(self.table_of(controller.subsystem).max_transfer_bytes())
    }
}

/// Methods for events in the life of controllers.
impl Registry {
    /// Reports that the host or the target closed a queue's connection. If the queue was an admin
    /// queue, the registry removes the controller, and the caller closes the returned I/O queues.
    pub fn queue_closed(&mut self, controller: ControllerId, queue: QueueId) -> Option<Teardown> {
        let found = self.controllers.get_mut(&controller)?;
        found.queues.remove(&queue)?;
        self.forget_requests(|owner, by| (owner, by) == (controller, queue));
        if queue != QueueId(0) {
            return None;
        }
        self.remove(controller, TeardownReason::AdminQueueClosed)
    }

    /// Reports whether closed I/O queues of a controller still execute commands that change data.
    /// While they do, CSTS reports a reset or shutdown as in progress. `instance` is the controller
    /// instance.
    pub fn set_unfinished(&mut self, id: ControllerId, instance: Instance, unfinished: bool) {
        let found = self.controllers.get_mut(&id);
        if let Some(controller) = found.filter(|controller| controller.instance == instance) {
            controller.unfinished = unfinished;
        }
    }

    /// Removes a controller. The caller closes the returned queues.
    pub fn remove_controller(&mut self, controller: ControllerId) -> Option<Teardown> {
        self.remove(controller, TeardownReason::Removed)
    }

    /// Removes all controllers, because the target stops. The caller closes the returned queues.
    pub fn shutdown(&mut self) -> Vec<Teardown> {
        self.remove_where(TeardownReason::TargetStopped, |_| true)
    }

    /// Returns the time at which to call [`Registry::tick`]. The first deadline may be later than
    /// this time, but not earlier.
    #[must_use]
    pub fn next_look(&self) -> Option<Instant> {
        self.soonest.get()
    }

    /// Returns the time at which the first keep-alive timer expires if no more commands arrive.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.controllers.values().filter_map(|controller| controller.keep_alive.deadline()).min()
    }

    /// Removes the controllers whose timers have expired at `now`. The caller closes the returned
    /// queues.
    pub fn tick(&mut self, now: Instant) -> Vec<Teardown> {
        if self.soonest.get().is_none_or(|soonest| now < soonest) {
            return Vec::new();
        }
        self.soonest.forget();
        let mut expired = Vec::new();
        for controller in self.controllers.values_mut() {
            let is_expired = controller.keep_alive.is_expired(now);
            controller.keep_alive.deadline().into_iter().for_each(|at| self.soonest.note(at));
            if is_expired {
                let reason = match controller.lifecycle {
                    Lifecycle::ShutDown => TeardownReason::AssociationExpired,
                    _ => TeardownReason::KeepAliveExpired,
                };
                expired.push((controller.id, reason));
            }
        }
        expired.into_iter().filter_map(|(id, reason)| self.remove(id, reason)).collect()
    }

    /// Removes and returns the next action. After every change, call this function until it returns
    /// `None`.
    pub fn poll_action(&mut self) -> Option<Action> {
        while let Some(queued) = self.actions.pop_front() {
            let action = match queued {
                Queued::Action(action) => Some(action),
                Queued::Table(subsystem, generation) => self.newest_table(subsystem, generation),
            };
            if action.is_some() {
                return action;
            }
        }
        while let Some(&controller) = self.with_pending_events.first() {
            match self.poll_event(controller) {
                Some((command, result)) => {
                    let status = Status::SUCCESS;
                    return Some(Action::Complete { controller, command, status, result });
                }
                None => self.with_pending_events.pop_first(),
            };
        }
        None
    }

    /// Returns a controller's next Asynchronous Event Request that the caller must complete with
    /// success, and the completion's result (the event). The registry returns each event only once:
    /// here or as an [`Action::Complete`].
    pub fn poll_event(&mut self, controller: ControllerId) -> Option<(CommandId, u64)> {
        self.controllers.get_mut(&controller)?.events.poll()
    }

    /// Reports that the target has executed [`Action::Flush`].
    pub fn shutdown_flushed(&mut self, controller: ControllerId, now: Instant) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.flushed(now);
        }
    }

    /// Replaces a subsystem's counters. The SMART log page of the subsystem's controllers shows
    /// them.
    pub fn set_counters(&mut self, subsystem: SubsystemId, counters: SmartCounters) {
        if let Some(subsystem) = self.subsystems.get_mut(&subsystem) {
            subsystem.counters = counters;
        }
    }

    /// Adds a failed command of an I/O queue to the controller's error information log. For the
    /// admin queue, [`Registry::admin`] adds failed commands.
    pub fn record_error(&mut self, controller: ControllerId, record: &ErrorRecord) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.errors.push(record);
        }
    }
}

/// Methods for the other modules of the controller.
impl Registry {
    pub(super) fn counters(&self, id: SubsystemId) -> SmartCounters {
        self.subsystems.get(&id).map_or_else(SmartCounters::default, |found| found.counters)
    }

    /// Whether a host sees a subsystem in the discovery log page.
    pub(super) fn may_see(&self, id: SubsystemId, host_nqn: &str) -> bool {
        self.subsystem(id).is_some_and(|config| config.allows(host_nqn))
    }

    pub(super) fn act(&mut self, action: Action) {
        self.queue(Queued::Action(action));
    }

    pub(super) fn queue(&mut self, queued: Queued) {
        self.actions.push_back(queued);
    }

    /// Returns the next free controller identifier. The search goes upwards from the last assigned
    /// identifier and continues at the start of the range. `None` if all of the subsystem's
    /// identifiers are in use.
    pub(super) fn unused_controller_id(
        &mut self,
        subsystem: Option<SubsystemId>,
    ) -> Option<ControllerId> {
        let (mut first, mut last) = self.controller_ids.clone().into_inner();
        let mut next = &mut self.next_controller_id;
        if let Some(own) = subsystem.and_then(|id| self.subsystems.get_mut(&id))
            && let Some(ids) = &own.config.controller_ids
        {
            (first, last) = (first.max(*ids.start()), last.min(*ids.end()));
            next = &mut own.next_controller_id;
        }
        let is_unused = |id: &u16| !self.controllers.contains_key(&ControllerId(*id));
        let from = (*next).max(first);
        let id = (from..=last).chain(first..from.min(last)).find(is_unused)?;
        *next = if id == last { first } else { id + 1 };
        Some(ControllerId(id))
    }

    pub(super) fn subsystem_of(&self, id: SubsystemId) -> Option<&Subsystem> {
        self.subsystems.get(&id)
    }

    pub(super) fn every_reserved(&mut self) -> impl Iterator<Item = &mut Reserved> {
        self.subsystems.values_mut().flat_map(|subsystem| subsystem.reserved.values_mut())
    }

    pub(super) fn subsystem_mut(&mut self, id: SubsystemId) -> Result<&mut Subsystem, ConfigError> {
        self.subsystems.get_mut(&id).ok_or(ConfigError::NotFound("subsystem"))
    }

    /// Notifies the hosts for which `concerns` is true of a new discovery log page.
    pub(super) fn discovery_changed(&mut self, concerns: impl Fn(&Self, &str) -> bool) {
        self.discovery_generation += 1;
        let concerned: Vec<_> = self
            .controllers
            .values()
            .filter(|controller| controller.is_discovery() && concerns(self, &controller.host_nqn))
            .map(|controller| controller.id)
            .collect();
        for id in concerned {
            let controller =
                self.controllers.get_mut(&id).expect("the lookup above found the controller");
            controller.events.raise(Notice::DiscoveryLog);
            self.with_pending_events.insert(id);
        }
    }

    fn remove_disallowed(&mut self, id: SubsystemId) -> Vec<Teardown> {
        let Some(config) = self.subsystem(id) else { return Vec::new() };
        let gone: Vec<_> = self
            .controllers
            .values()
            .filter(|controller| {
                controller.subsystem == Some(id) && !config.allows(&controller.host_nqn)
            })
            .map(|controller| controller.id)
            .collect();
        gone.into_iter().filter_map(|id| self.remove(id, TeardownReason::HostDisallowed)).collect()
    }

    pub(super) fn remove_where(
        &mut self,
        reason: TeardownReason,
        predicate: impl Fn(&Controller) -> bool,
    ) -> Vec<Teardown> {
        let gone: Vec<_> = self
            .controllers
            .values()
            .filter(|controller| predicate(controller))
            .map(|controller| controller.id)
            .collect();
        gone.into_iter().filter_map(|id| self.remove(id, reason)).collect()
    }

    pub(super) fn remove(&mut self, id: ControllerId, reason: TeardownReason) -> Option<Teardown> {
        let controller = self.controllers.remove(&id)?;
        self.with_pending_events.remove(&id);
        self.forget_requests(|owner, _| owner == id);
        self.actions.retain(|queued| queued.outlives(id));
        let queues = controller.queues.into_keys().collect();
        Some(Teardown { controller: id, queues, reason })
    }
}
