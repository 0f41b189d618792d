//! Passes reservation commands to the registry, and the registry's answers and changes to the
//! cores.

use super::TargetShared;
use crate::change_error::ChangeError;
use crate::mailbox::Message;
use crate::reservations::{Desk, SharedReservations};
use crate::route::Route;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{
    AccessChange, KeyedCommand, ReservationRequest, SharedAnswer, SharedChange, SubsystemId, Ticket,
};
use farblock_proto::ids::{ControllerId, NamespaceId, QueueId};
use farblock_wire::Status;
use std::io;
use std::sync::Arc;

impl TargetShared {
    pub(crate) fn start_keeper(self: &Arc<Self>) -> io::Result<()> {
        let shared = Arc::clone(self);
        self.keeper.start(move |key, serial, is_saved| shared.saved(key, serial, is_saved))
    }
}

impl TargetShared {
    /// Submits a reservation command. The answer arrives as [`Message::Reserved`], unless the
    /// command fails at once.
    pub(crate) fn reserve(
        &self,
        (route, slot): (Route, SlotId),
        (controller, queue): (ControllerId, QueueId),
        namespace: NamespaceId,
        request: KeyedCommand,
    ) -> Result<(), Status> {
        let mut management = self.lock();
        let desk = &mut management.desk;
        let ticket = Ticket(desk.next_ticket);
        desk.next_ticket += 1;
        desk.tickets.insert(ticket, (route, slot));
        let asked = ReservationRequest { ticket, controller, queue, namespace, request };
        let done = management.registry.reserve(&asked);
        if done.is_err() {
            management.desk.tickets.remove(&ticket);
        }
        self.act(&mut management);
        done
    }

    pub(crate) fn forget_tickets(desk: &mut Desk, route: Route) {
        desk.tickets.retain(|_, (waiting, _)| *waiting != route);
    }

    pub(crate) fn answer(
        &self,
        desk: &mut Desk,
        ticket: Ticket,
        status: Status,
        report: Option<Vec<u8>>,
    ) {
        if let Some((route, slot)) = desk.tickets.remove(&ticket) {
            let message = Message::Reserved { route, slot, status, report };
            self.mailboxes()[route.core].post(message);
        }
    }

    pub(crate) fn spread(&self, desk: &mut Desk, change: &Arc<AccessChange>) {
        let cores = self.mailboxes().len();
        desk.spreading.insert(change.serial, (cores, change.subsystem, change.namespace));
        for mailbox in self.mailboxes() {
            mailbox.post(Message::Access(Arc::clone(change)));
        }
    }

    /// Notes that a core has applied a change: all commands that the change forbids have ended
    /// there.
    pub(crate) fn applied(&self, serial: u64) {
        let mut management = self.lock();
        let Some((left, subsystem, namespace)) = management.desk.spreading.get_mut(&serial) else {
            return;
        };
        *left -= 1;
        let key = (*subsystem, *namespace);
        if *left == 0 {
            management.desk.spreading.remove(&serial);
            management.registry.access_spread(key.0, key.1, serial);
            self.act(&mut management);
        }
    }

    /// Queues a save of a namespace's reservations. Returns false if the namespace has no store.
    pub(crate) fn save(&self, key: (SubsystemId, NamespaceId), serial: u64, text: String) -> bool {
        self.keeper.post(key, serial, text)
    }

    /// Calls `call` with the group of targets that shares a namespace's reservations, if any.
    pub(super) fn with_group(
        &self,
        key: (SubsystemId, NamespaceId),
        call: impl FnOnce(&dyn SharedReservations),
    ) {
        if let Some(group) = self.keeper.group(key) {
            call(&*group);
        }
    }

    /// Passes a group's change of shared reservations to the registry.
    pub(crate) fn apply_shared(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        change: SharedChange,
    ) -> Result<(), ChangeError> {
        let mut management = self.lock();
        let subsystem = management.registry.find_subsystem(nqn);
        let subsystem = subsystem.ok_or_else(|| ChangeError::NoSubsystem(nqn.to_owned()))?;
        management.registry.apply_shared(subsystem, nsid, change);
        self.act(&mut management);
        Ok(())
    }

    /// Passes the group's answer to the registry.
    pub(crate) fn answer_shared(&self, serial: u64, answer: SharedAnswer) {
        let mut management = self.lock();
        management.registry.answer_shared(serial, answer);
        self.act(&mut management);
    }

    fn saved(&self, (subsystem, namespace): (SubsystemId, NamespaceId), serial: u64, done: bool) {
        let mut management = self.lock();
        management.registry.reservations_saved(subsystem, namespace, serial, done);
        self.act(&mut management);
    }
}
