//! Reservations: the access rights of hosts that share a namespace (NVMe Base Specification 2.0,
//! "Reservations").
//!
//! The registry completes a command that changes access rights only when every core applies the new
//! rights. The commands for a namespace pass through these states one after the other:
//!
//! ```text
//!            rights stay the same, nothing to store
//!   waiting ---------------------------------------------------------> completed
//!    |   |                                                              ^  ^  ^
//!    |   | state to store          stored, rights stay the same         |  |  |
//!    |   +---------------> Saving --------------------------------------+  |  |
//!    |                      |  | storing fails: Internal Error            |  |
//!    |                      |  +------------------------------------------+  |
//!    |                      | stored, rights change                          |
//!    |                      v                                                |
//!    +----------------> Spreading -------------------------------------------+
//!     rights change,               all cores apply the rights, and all
//!     nothing to store             forbidden commands have ended
//! ```
//!
//! So after a Preempt, commands of the preempted host can no longer reach the disk. Reservation
//! Report commands wait in the same queue as the commands that change something. So if a report
//! shows that another host has lost its rights, every core already enforces this.

mod access;
mod command;
mod shared;
mod state;
mod stored;
#[cfg(test)]
mod tests;

pub use access::{Access, AccessKind, Rights};
pub use command::{KeyedCommand, ReservationCommand};
pub(super) use shared::shared_namespaces;
pub use shared::{SharedAnswer, SharedChange, SharedProposal};
pub use state::{HostId, Reservations};

use super::config::{ConfigError, SubsystemId};
use super::events::Notice;
use super::identifiers::HostMark;
use super::limits;
use super::registry::{Action, Registry};
use crate::ids::{ControllerId, NamespaceId, QueueId};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use farblock_wire::reservation::{NotificationType, ReservationNotificationLog};
use farblock_wire::{IntoBytes, Status};
use state::Effects;

/// The number of a request. The caller of [`Registry::reserve`] chooses the number, and
/// [`Action::Reserved`] returns it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// A reservation command, with the controller and queue that received it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReservationRequest {
    /// The number that [`Action::Reserved`] returns.
    pub ticket: Ticket,
    /// The controller that received the command.
    pub controller: ControllerId,
    /// The queue that received the command.
    pub queue: QueueId,
    /// The namespace.
    pub namespace: NamespaceId,
    /// The command, with its keys.
    pub request: KeyedCommand,
}

/// The access rights that the data path must apply from now on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessChange {
    /// The number of this change, which distinguishes it from other changes.
    pub serial: u64,
    /// The subsystem.
    pub subsystem: SubsystemId,
    /// The namespace.
    pub namespace: NamespaceId,
    /// The namespace's reservation; `None`: there is no reservation.
    pub access: Option<Access>,
    /// The hosts whose commands to the namespace the data path must abort.
    pub aborted: Vec<HostId>,
}

impl AccessChange {
    /// Returns the rights of a host.
    #[must_use]
    pub fn rights(&self, host: &HostId) -> Rights {
        self.access.as_ref().map_or(Rights::All, |access| access.rights(host))
    }
}

/// The state of the request in progress, in the diagram above.
#[derive(Debug)]
enum Step {
    Saving {
        state: Reservations,
        effects: Effects,
    },
    Spreading,
    /// The namespace's reservations are shared: see [`shared`].
    Asking(shared::Asking),
}

/// The result of a request, before any change applies.
enum Judged {
    Done(Status, Option<Vec<u8>>),
    Changes(Reservations, Effects),
}

/// The request in progress. The registry ignores confirmations with another serial number, because
/// they belong to older requests.
#[derive(Debug)]
struct Current {
    ticket: Ticket,
    serial: u64,
    step: Step,
}

/// The reservations of one namespace, and the requests that change them.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    state: Reservations,
    can_persist: bool,
    /// The state of reservations that other targets share; `None`: only this target has them.
    shared: Option<shared::SharedState>,
    /// The kinds of notifications that hosts have masked (feature 82h).
    mask: u32,
    /// The request in progress.
    current: Option<Current>,
    waiting: VecDeque<(Asker, ReservationRequest)>,
}

/// The host that sent a request.
#[derive(Clone, Copy, Debug)]
struct Asker {
    host: HostId,
    /// The hash of the host's name, if the host has proved the name.
    mark: Option<HostMark>,
}

impl Reserved {
    /// Returns the registrants that have proved their names.
    pub(super) fn marks(&self) -> impl Iterator<Item = (HostId, HostMark)> {
        let all = self.state.registrants.iter();
        all.filter_map(|registrant| Some((registrant.host, registrant.mark?)))
    }

    /// Records that the host with this identifier has proved its name. The name's hash becomes
    /// durable with the next stored change.
    pub(super) fn mark(&mut self, host: &HostId, mark: HostMark) {
        self.state.mark(host, mark);
        if let Some(Current { step: Step::Saving { state, .. }, .. }) = &mut self.current {
            state.mark(host, mark);
        }
    }

    /// Returns the access rights that the data path must enforce.
    fn access(&self) -> Option<Access> {
        match &self.shared {
            Some(shared) if shared.is_unreadable() => Some(Access::none()),
            _ => self.state.access(),
        }
    }

    /// Executes a request on a copy of the state.
    fn judge(&self, asker: Asker, request: &KeyedCommand) -> Judged {
        if let KeyedCommand::Report { bytes } = *request {
            let mut page = self.state.report();
            page.truncate(bytes as usize);
            return Judged::Done(Status::SUCCESS, Some(page));
        }
        let mut state = self.state.clone();
        let changed = state.change(asker.host, request, self.can_persist);
        if let (Ok(_), Some(mark)) = (&changed, asker.mark) {
            state.mark(&asker.host, mark);
        }
        match changed {
            Err(status) => Judged::Done(status, None),
            Ok(_) if state == self.state => Judged::Done(Status::SUCCESS, None),
            Ok(effects) => Judged::Changes(state, effects),
        }
    }

    /// Whether there is nothing to remember: the value equals the initial state.
    fn is_blank(&self) -> bool {
        !self.can_persist
            && self.shared.is_none()
            && self.mask == 0
            && self.current.is_none()
            && self.waiting.is_empty()
            && self.state == Reservations::default()
    }
}

/// The notifications that the host of a controller has not yet read ("Reservation Notification log
/// page").
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    entries: VecDeque<(u64, NotificationType, NamespaceId)>,
    count: u64,
}

impl Notifications {
    /// Adds a notification. At the limit, drops the oldest notification; the host sees the gap in
    /// the numbers.
    fn push(&mut self, what: NotificationType, namespace: NamespaceId) {
        // The page of an empty log has the number zero, so skip zero when the number wraps around.
        self.count = self.count.wrapping_add(1).max(1);
        if self.entries.len() >= limits::RESERVATION_NOTIFICATIONS {
            self.entries.pop_front();
        }
        self.entries.push_back((self.count, what, namespace));
    }

    /// Returns the log page with the oldest notification.
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut page = ReservationNotificationLog::zeroed();
        if let Some((number, what, namespace)) = self.entries.front() {
            page.log_page_count.set(*number);
            page.notification_type = what.0;
            page.available_log_pages = (self.entries.len() - 1).min(255) as u8;
            page.nsid.set(namespace.0);
        }
        page.as_bytes().to_vec()
    }

    /// Removes the oldest notification, which the host has read. Returns `true` if more
    /// notifications remain.
    pub(super) fn pop(&mut self) -> bool {
        self.entries.pop_front();
        !self.entries.is_empty()
    }
}

/// Methods for reservations.
impl Registry {
    /// Restores the stored reservations of a namespace after a restart. From now on the registry
    /// requests [`Action::SaveReservations`] for each change to store. Call this function before
    /// hosts connect.
    ///
    /// # Errors
    /// Fails if the namespace does not exist.
    pub fn keep_reservations(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        state: Reservations,
    ) -> Result<(), ConfigError> {
        let config = self.subsystem_mut(subsystem)?;
        if !config.config.namespaces.contains_key(&namespace) {
            return Err(ConfigError::NotFound("namespace"));
        }
        let reserved = Reserved { state, can_persist: true, ..Reserved::default() };
        config.reserved.insert(namespace, reserved);
        Ok(())
    }

    /// Restores the stored reservations of a namespace that the operator adds while hosts are
    /// connected. Cores receive the hosts' rights before they receive the namespace.
    pub(super) fn take_up(&mut self, id: SubsystemId, namespace: NamespaceId, state: Reservations) {
        let access = state.access();
        let Ok(subsystem) = self.subsystem_mut(id) else { return };
        let reserved = Reserved { state, can_persist: true, ..Reserved::default() };
        subsystem.reserved.insert(namespace, reserved);
        if access.is_some() {
            // No request waits for the cores to apply this change.
            let serial = self.next_reservation_serial();
            let aborted = Vec::new();
            let change = AccessChange { serial, subsystem: id, namespace, access, aborted };
            self.act(Action::Access(Arc::new(change)));
        }
    }

    /// Queues a reservation command. [`Action::Reserved`] later completes it.
    ///
    /// # Errors
    /// Returns the status with which to complete the command. No [`Action::Reserved`] follows.
    pub fn reserve(&mut self, request: &ReservationRequest) -> Result<(), Status> {
        let controller = self.controllers.get(&request.controller);
        // The association may have ended before this call.
        let controller = controller.ok_or(Status::ABORTED_SQ_DELETION)?;
        let subsystem = controller.subsystem;
        let asker = Asker { host: controller.host_id, mark: controller.proved };
        // The registry cannot distinguish hosts that have no identifier.
        if asker.host == [0; 16] {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        let id = subsystem.ok_or(Status::INVALID_OPCODE.with_dnr())?;
        let found = self.subsystem_mut(id).map_err(|_| Status::ABORTED_SQ_DELETION)?;
        if !found.config.namespaces.contains_key(&request.namespace) {
            return Err(Status::INVALID_NAMESPACE.with_dnr());
        }
        let reserved = found.reserved.entry(request.namespace).or_default();
        reserved.waiting.push_back((asker, *request));
        self.go_on(id, request.namespace);
        Ok(())
    }

    /// Reports the success or failure of [`Action::SaveReservations`].
    pub fn reservations_saved(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        serial: u64,
        saved: bool,
    ) {
        match self.take_current(subsystem, namespace, serial) {
            Some(Current { ticket, step: Step::Saving { state, effects }, .. }) if saved => {
                self.hold(subsystem, namespace, ticket, state, effects);
            }
            Some(Current { ticket, .. }) => self.answer(ticket, Status::INTERNAL_ERROR, None),
            None => {}
        }
        self.go_on(subsystem, namespace);
    }

    /// Reports that every core has applied the change of [`Action::Access`].
    pub fn access_spread(&mut self, subsystem: SubsystemId, namespace: NamespaceId, serial: u64) {
        if let Some(current) = self.take_current(subsystem, namespace, serial) {
            self.answer(current.ticket, Status::SUCCESS, None);
        }
        self.shared_change_spread(subsystem, namespace, serial);
        self.go_on(subsystem, namespace);
    }

    fn take_current(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        serial: u64,
    ) -> Option<Current> {
        let reserved = self.reserved(subsystem, namespace)?;
        reserved.current.take_if(|current| current.serial == serial)
    }

    fn next_reservation_serial(&mut self) -> u64 {
        self.reservation_serial += 1;
        self.reservation_serial
    }

    /// Drops the reservations of a removed namespace.
    pub(super) fn end_reservations(&mut self, id: SubsystemId, namespace: NamespaceId) {
        let found = self.subsystem_mut(id).ok();
        let Some(reserved) = found.and_then(|found| found.reserved.remove(&namespace)) else {
            return;
        };
        let current = reserved.current.map(|current| current.ticket);
        let waiting = reserved.waiting.into_iter().map(|(_, asked)| asked.ticket);
        for ticket in current.into_iter().chain(waiting) {
            self.answer(ticket, Status::INVALID_NAMESPACE.with_dnr(), None);
        }
        // Lift the restrictions, since the identifier may later belong to a different namespace. No
        // request waits until the cores have applied this change.
        let serial = self.next_reservation_serial();
        let change =
            AccessChange { serial, subsystem: id, namespace, access: None, aborted: Vec::new() };
        self.act(Action::Access(Arc::new(change)));
    }

    fn reserved(&mut self, id: SubsystemId, namespace: NamespaceId) -> Option<&mut Reserved> {
        self.subsystem_mut(id).ok()?.reserved.get_mut(&namespace)
    }

    fn answer(&mut self, ticket: Ticket, status: Status, report: Option<Vec<u8>>) {
        self.act(Action::Reserved { ticket, status, report });
    }

    /// Executes waiting requests until a request must wait for the store or the cores.
    fn go_on(&mut self, id: SubsystemId, namespace: NamespaceId) {
        while let Some(reserved) = self.reserved(id, namespace)
            && reserved.current.is_none()
        {
            let Some((asker, request)) = reserved.waiting.pop_front() else {
                if reserved.is_blank()
                    && let Ok(subsystem) = self.subsystem_mut(id)
                {
                    subsystem.reserved.remove(&namespace);
                }
                return;
            };
            self.begin(id, namespace, asker, &request);
        }
    }

    fn begin(
        &mut self,
        id: SubsystemId,
        namespace: NamespaceId,
        asker: Asker,
        asked: &ReservationRequest,
    ) {
        let Some(reserved) = self.reserved(id, namespace) else { return };
        if reserved.shared.is_some() {
            return self.consult(id, namespace, asker, *asked);
        }
        match reserved.judge(asker, &asked.request) {
            Judged::Done(status, report) => self.answer(asked.ticket, status, report),
            Judged::Changes(state, effects) if reserved.state.persist || state.persist => {
                let text = state.to_text();
                let serial = self.next_reservation_serial();
                let step = Step::Saving { state, effects };
                self.wait_for(id, namespace, Current { ticket: asked.ticket, serial, step });
                self.act(Action::SaveReservations { subsystem: id, namespace, serial, text });
            }
            Judged::Changes(state, effects) => {
                self.hold(id, namespace, asked.ticket, state, effects);
            }
        }
    }

    /// Applies a new state. If the state must persist, the target has already stored it.
    fn hold(
        &mut self,
        id: SubsystemId,
        namespace: NamespaceId,
        ticket: Ticket,
        state: Reservations,
        effects: Effects,
    ) {
        let Some(reserved) = self.reserved(id, namespace) else { return };
        let (before, access) = (reserved.state.access(), state.access());
        reserved.state = state;
        let mask = reserved.mask;
        let Effects { notices, aborted } = effects;
        let is_news = before != access || !aborted.is_empty();
        if is_news {
            let serial = self.next_reservation_serial();
            self.wait_for(id, namespace, Current { ticket, serial, step: Step::Spreading });
            let change = AccessChange { serial, subsystem: id, namespace, access, aborted };
            self.act(Action::Access(Arc::new(change)));
        }
        for (to, what) in notices.into_iter().filter(|(_, what)| mask & what.mask_bit() == 0) {
            self.notify(id, namespace, &to, what);
        }
        if !is_news {
            self.answer(ticket, Status::SUCCESS, None);
        }
    }

    fn wait_for(&mut self, id: SubsystemId, namespace: NamespaceId, current: Current) {
        if let Some(reserved) = self.reserved(id, namespace) {
            reserved.current = Some(current);
        }
    }

    fn notify(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        host: &HostId,
        what: NotificationType,
    ) {
        let config = self.subsystem(subsystem);
        let seen_by = config.and_then(|config| config.visible_to.get(&namespace)).cloned();
        let sees = |name: &str| seen_by.as_ref().is_none_or(|hosts| hosts.contains(name));
        for controller in self.controllers.values_mut() {
            let is_its = controller.subsystem == Some(subsystem) && controller.host_id == *host;
            if is_its && sees(&controller.host_nqn) {
                controller.notifications.push(what, namespace);
                controller.events.raise(Notice::Reservation);
                self.with_pending_events.insert(controller.id);
            }
        }
    }

    /// Removes the notification that the host has read with Retain Asynchronous Event cleared.
    pub(super) fn notification_was_read(&mut self, id: ControllerId) {
        let Some(controller) = self.controllers.get_mut(&id) else { return };
        controller.events.log_was_read(Notice::Reservation);
        if controller.notifications.pop() {
            controller.events.raise(Notice::Reservation);
            self.with_pending_events.insert(id);
        }
    }

    /// Returns a host's rights in each namespace of a subsystem whose reservation restricts the
    /// host.
    pub(super) fn restrictions(
        &self,
        subsystem: Option<SubsystemId>,
        host: &HostId,
    ) -> Vec<(NamespaceId, Rights)> {
        let Some(found) = subsystem.and_then(|id| self.subsystem_of(id)) else {
            return Vec::new();
        };
        let rights = |reserved: &Reserved| Some(reserved.access()?.rights(host));
        let all = found.reserved.iter();
        all.filter_map(|(&namespace, reserved)| Some((namespace, rights(reserved)?)))
            .filter(|(_, rights)| *rights != Rights::All)
            .collect()
    }

    /// Returns the reservation state of a subsystem's namespaces.
    pub(super) fn reserved_of(&self, id: SubsystemId) -> Option<&BTreeMap<NamespaceId, Reserved>> {
        Some(&self.subsystem_of(id)?.reserved)
    }

    /// Drops the waiting requests of closed queues. Their hosts can no longer receive a response.
    pub(super) fn forget_requests(&mut self, gone: impl Fn(ControllerId, QueueId) -> bool) {
        for reserved in self.every_reserved() {
            reserved.waiting.retain(|(_, asked)| !gone(asked.controller, asked.queue));
            if let Some(Current { step: Step::Asking(asking), .. }) = &mut reserved.current {
                asking.forget(&gone);
            }
        }
    }

    /// Whether the target can store a namespace's reservations through a power loss.
    pub(super) fn can_persist(&self, id: SubsystemId, namespace: NamespaceId) -> bool {
        let found = self.subsystem_of(id).and_then(|found| found.reserved.get(&namespace));
        found.is_some_and(|reserved| reserved.can_persist)
    }

    /// Returns the values of Reservation Notification Mask and Reservation Persistence.
    pub(super) fn reservation_features(
        &self,
        id: SubsystemId,
        namespace: NamespaceId,
    ) -> (u32, u32) {
        let found = self.subsystem_of(id).and_then(|found| found.reserved.get(&namespace));
        found.map_or((0, 0), |reserved| (reserved.mask, reserved.state.persist.into()))
    }

    /// Sets the Reservation Notification Mask of a namespace.
    pub(super) fn mask_notifications(
        &mut self,
        id: SubsystemId,
        namespace: NamespaceId,
        mask: u32,
    ) -> Result<(), Status> {
        const UNKNOWN: Status = Status::INVALID_NAMESPACE.with_dnr();
        let found = self.subsystem_mut(id).map_err(|_| UNKNOWN)?;
        if !found.config.namespaces.contains_key(&namespace) {
            return Err(UNKNOWN);
        }
        found.reserved.entry(namespace).or_default().mask = mask;
        Ok(())
    }
}
