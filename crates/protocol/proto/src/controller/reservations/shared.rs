//! Reservations that the targets of a group share.
//!
//! ```text
//!                 current                in force
//!   Consulting ------------> Proposing ------------> completed
//!     ^  |                     |
//!     |  +-- rejected, or nothing changes: completed
//!     +------ conflict: another change was first ------+
//! ```
//!
//! A change has the same number at every target, and builds on the change before it. The group
//! passes each change to every target ([`Registry::apply_shared`]). A change is *in force* when no
//! target can execute a command that the change forbids. A target executes a reservation command on
//! the state after the last change in force, for which it first consults the group. It then
//! proposes the new state, and completes the command when the new state is in force, too.

use super::state::Effects;
use super::{AccessChange, ReservationRequest};
use super::{Asker, Current, HostId, Judged, Reservations, Reserved, Step};
use crate::controller::config::{ConfigError, SubsystemId};
use crate::controller::registry::{Action, Registry};
use crate::ids::{ControllerId, NamespaceId, QueueId};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use farblock_wire::Status;
use farblock_wire::reservation::NotificationType;

/// A change of shared reservations that a command requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedProposal {
    /// The number to pass to [`Registry::answer_shared`].
    pub serial: u64,
    /// The number of the change on which this one builds; 0: there is no earlier change.
    pub base: u64,
    /// The new state, from [`Reservations::to_shared_text`].
    pub text: String,
    /// The hosts to notify.
    pub notices: Vec<(HostId, NotificationType)>,
    /// The hosts whose commands to the namespace every target must abort.
    pub aborted: Vec<HostId>,
}

/// A change of shared reservations by any target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedChange {
    /// The number of the change.
    pub index: u64,
    /// The state after the change, from [`Reservations::to_shared_text`].
    pub text: String,
    /// The hosts to notify.
    pub notices: Vec<(HostId, NotificationType)>,
    /// The hosts whose commands to the namespace every target must abort.
    pub aborted: Vec<HostId>,
}

/// The group's answer to [`Action::ConsultReservations`] or [`Action::ProposeReservations`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedAnswer {
    /// Answer to [`Action::ConsultReservations`]: the number of the last change, which is in force.
    /// 0: there is no change yet. The group read this number after it received the question.
    Current(u64),
    /// The proposed change is in force.
    InForce,
    /// The group made another change before the proposed one.
    Conflict,
    /// This version of farblock cannot read the group's reservations.
    Unreadable,
}

/// A command that waits for the group.
#[derive(Debug)]
pub(super) struct Asking {
    asker: Asker,
    request: ReservationRequest,
    proposes: bool,
    /// Whether the command's queue has closed. The command must then not start.
    is_forgotten: bool,
}

impl Asking {
    pub(super) fn forget(&mut self, gone: impl Fn(ControllerId, QueueId) -> bool) {
        self.is_forgotten |= gone(self.request.controller, self.request.queue);
    }
}

/// The changes that this target knows.
#[derive(Debug, Default)]
pub(super) struct SharedState {
    /// The number of the last change.
    index: u64,
    is_unreadable: bool,
    /// The changes that this target has not reported as applied, in order: the serial number, the
    /// number of the change, and whether all cores enforce it.
    spreading: VecDeque<(u64, u64, bool)>,
}

impl SharedState {
    /// Whether the target cannot read the state. No host may then read or write.
    pub(super) fn is_unreadable(&self) -> bool {
        self.is_unreadable
    }

    /// Records that all cores enforce a change. If they now enforce more changes without a gap,
    /// returns the number of the last such change.
    fn spread(&mut self, serial: u64) -> Option<u64> {
        let change = self.spreading.iter_mut().find(|change| change.0 == serial)?;
        change.2 = true;
        let mut last = None;
        while let Some((_, index, _)) = self.spreading.pop_front_if(|change| change.2) {
            last = Some(index);
        }
        last
    }
}

/// Returns the namespaces whose reservations are shared.
pub(in crate::controller) fn shared_namespaces(
    all: &BTreeMap<NamespaceId, Reserved>,
) -> Vec<NamespaceId> {
    let shared = all.iter().filter(|(_, reserved)| reserved.shared.is_some());
    shared.map(|(namespace, _)| *namespace).collect()
}

/// Methods for reservations that several targets share.
impl Registry {
    /// Shares the reservations of a namespace with other targets. Call this function before hosts
    /// connect.
    ///
    /// # Errors
    /// Fails if the namespace does not exist.
    pub fn share_reservations(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
    ) -> Result<(), ConfigError> {
        self.keep_reservations(subsystem, namespace, Reservations::default())?;
        if let Some(reserved) = self.reserved(subsystem, namespace) {
            reserved.shared = Some(SharedState::default());
        }
        self.publish(subsystem);
        Ok(())
    }

    /// Applies a change that any target made. [`Action::SharedApplied`] follows when every core
    /// enforces the change.
    pub fn apply_shared(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        change: SharedChange,
    ) {
        let Some(reserved) = self.reserved(subsystem, namespace) else { return };
        let before = reserved.access();
        let Some(shared) = reserved.shared.as_mut().filter(|it| it.index < change.index) else {
            return;
        };
        let SharedChange { index, text, notices, aborted } = change;
        let state = Reservations::from_shared_text(&text);
        (shared.index, shared.is_unreadable) = (index, state.is_none());
        if let Some(mut state) = state {
            state.add_marks(&reserved.state);
            reserved.state = state;
        }
        let (access, mask) = (reserved.access(), reserved.mask);
        let serial = self.next_reservation_serial();
        let reserved = self.reserved(subsystem, namespace);
        if let Some(shared) = reserved.and_then(|reserved| reserved.shared.as_mut()) {
            shared.spreading.push_back((serial, index, false));
        }
        if before != access || !aborted.is_empty() {
            let change = AccessChange { serial, subsystem, namespace, access, aborted };
            self.act(Action::Access(Arc::new(change)));
        } else {
            self.shared_change_spread(subsystem, namespace, serial);
        }
        for (to, what) in notices.into_iter().filter(|(_, what)| mask & what.mask_bit() == 0) {
            self.notify(subsystem, namespace, &to, what);
        }
    }

    pub(super) fn shared_change_spread(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        serial: u64,
    ) {
        let reserved = self.reserved(subsystem, namespace);
        let shared = reserved.and_then(|reserved| reserved.shared.as_mut());
        if let Some(index) = shared.and_then(|shared| shared.spread(serial)) {
            self.act(Action::SharedApplied { subsystem, namespace, index });
        }
    }

    pub(super) fn consult(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        asker: Asker,
        request: ReservationRequest,
    ) {
        let asking = Asking { asker, request, proposes: false, is_forgotten: false };
        let serial = self.ask(subsystem, namespace, asking);
        self.act(Action::ConsultReservations { subsystem, namespace, serial });
    }

    fn ask(&mut self, subsystem: SubsystemId, namespace: NamespaceId, asking: Asking) -> u64 {
        let serial = self.next_reservation_serial();
        let ticket = asking.request.ticket;
        let step = Step::Asking(asking);
        self.wait_for(subsystem, namespace, Current { ticket, serial, step });
        serial
    }

    /// Handles the group's answer to the question or proposal with this number.
    pub fn answer_shared(&mut self, serial: u64, answer: SharedAnswer) {
        let its = |reserved: &Reserved| {
            reserved.current.as_ref().is_some_and(|current| current.serial == serial)
        };
        let found = self.subsystems().map(|(id, _)| id).find_map(|id| {
            let all = self.reserved_of(id)?;
            Some((id, *all.iter().find(|(_, reserved)| its(reserved))?.0))
        });
        let Some((id, namespace)) = found else { return };
        if let Some(Current { step: Step::Asking(asking), .. }) =
            self.take_current(id, namespace, serial)
        {
            self.answered(id, namespace, asking, answer);
        }
        self.go_on(id, namespace);
    }

    fn answered(
        &mut self,
        id: SubsystemId,
        namespace: NamespaceId,
        asking: Asking,
        answer: SharedAnswer,
    ) {
        let Asking { asker, request, proposes, is_forgotten } = asking;
        let Some(reserved) = self.reserved(id, namespace) else { return };
        let known = reserved.shared.as_ref().map_or(0, |shared| shared.index);
        match answer {
            SharedAnswer::InForce if proposes => {
                self.answer(request.ticket, Status::SUCCESS, None);
            }
            SharedAnswer::Unreadable => self.answer(request.ticket, Status::INTERNAL_ERROR, None),
            _ if is_forgotten => {}
            SharedAnswer::Current(index) if !proposes && index == known => {
                match reserved.judge(asker, &request.request) {
                    Judged::Done(status, report) => self.answer(request.ticket, status, report),
                    Judged::Changes(state, effects) => {
                        let Effects { notices, aborted } = effects;
                        let text = state.to_shared_text();
                        let asking = Asking { asker, request, proposes: true, is_forgotten };
                        let (base, serial) = (index, self.ask(id, namespace, asking));
                        let proposal = SharedProposal { serial, base, text, notices, aborted };
                        let subsystem = id;
                        self.act(Action::ProposeReservations { subsystem, namespace, proposal });
                    }
                }
            }
            _ => self.consult(id, namespace, asker, request),
        }
    }
}
