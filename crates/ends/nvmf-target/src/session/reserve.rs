//! Reservations on a queue: passes reservation commands to the registry, sends the registry's
//! answers to hosts, and applies reservation changes.

use super::{Queue, Session, Work};
use crate::context::Context;
use crate::reservations::UnderWay;
use crate::transport::Transport;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{AccessChange, AccessKind, KeyedCommand, ReservationCommand};
use farblock_proto::ids::{NamespaceId, QueueId};
use farblock_reactor::os;
use farblock_wire::Status;

impl<T: Transport> Session<T> {
    /// Submits a reservation command of an I/O queue to the registry, with the reservation keys
    /// from the command's data.
    pub(super) fn reserve(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        namespace: NamespaceId,
        command: ReservationCommand,
    ) -> Result<(), Status> {
        let keys = self.request(slot).buffer.take();
        let request = command.with_keys(keys.as_deref().unwrap_or(&[]));
        keys.into_iter().for_each(|keys| cx.reactor.buffers().give(keys));
        let Queue::Io(queue) = &self.queue else { return Err(Status::ABORTED_SQ_DELETION) };
        let from = (queue.controller, queue.id);
        let bytes = match command {
            ReservationCommand::Report { bytes } => bytes,
            _ => 0,
        };
        cx.shared.reserve((self.route, slot), from, namespace, request?)?;
        self.request(slot).work = Work::Reserving { report_bytes: bytes as usize };
        Ok(())
    }

    /// Submits the reservation change of an admin command to the registry.
    pub(super) fn reserve_by_admin(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        namespace: NamespaceId,
        request: KeyedCommand,
    ) {
        let Queue::Admin { controller } = self.queue else {
            unreachable!("this is an admin queue")
        };
        self.release(cx, slot);
        let from = (controller, QueueId(0));
        match cx.shared.reserve((self.route, slot), from, namespace, request) {
            Ok(()) => self.request(slot).work = Work::Reserving { report_bytes: 0 },
            Err(status) => self.respond(slot, status, 0),
        }
    }

    pub(crate) fn reserved(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        status: Status,
        report: Option<Vec<u8>>,
    ) {
        let Work::Reserving { report_bytes } = self.request(slot).work else { return };
        if !self.is_serving() {
            return;
        }
        match report {
            Some(page) => {
                let mut buffer = cx.reactor.buffers().take(page.len());
                buffer.copy_from_slice(&page);
                let zeroes = cx.zeroes(report_bytes - page.len());
                let parts = std::iter::once(buffer).chain(zeroes);
                self.push(slot, report_bytes as u32, parts, status, 0);
            }
            None => self.respond_and_release(cx, slot, status, 0),
        }
        self.list(cx);
    }

    /// Applies a reservation change to the host's rights. Commands that the change forbids or
    /// aborts no longer start. Appends to `under_way` those that have already started.
    pub(crate) fn apply_access(
        &mut self,
        cx: &mut Context,
        change: &AccessChange,
        under_way: &mut Vec<UnderWay>,
    ) {
        let Some(owner) = &self.owner else { return };
        if owner.subsystem != change.subsystem {
            return;
        }
        if !self.is_serving() && os::has_mistake("target: a fence forgets closed queues") {
            return;
        }
        let rights = change.rights(&owner.host);
        let aborted = change.aborted.contains(&owner.host);
        if rights == Default::default() && !aborted && self.limits.is_none() {
            return;
        }
        self.limits.get_or_insert_default().set(change.namespace, rights);
        for (request, index) in self.requests.iter_mut().zip(0..) {
            let Work::Io(command) = &request.work else { continue };
            let Some(kind) = command.access() else { continue };
            let meant = command.namespace();
            let is_meant = meant == Some(change.namespace) || meant == Some(NamespaceId::ALL);
            let sources = request.progress.copying.iter().flat_map(|copying| copying.sources());
            let is_read = sources.into_iter().any(|source| source == change.namespace);
            let may =
                (!is_meant || rights.allow(kind)) && (!is_read || rights.allow(AccessKind::Read));
            if !(is_meant || is_read) || (may && !aborted) {
                continue;
            }
            if request.operations > 0 {
                under_way.push((self.route.key, SlotId(index)));
            }
            // Operations that have started run to their end. A command in steps starts no further
            // step.
            let has_more = request.operations == 0 || request.has_steps_left();
            if aborted && has_more && request.status.is_success() {
                // Set Do Not Retry: the host is no longer registered, so a retry would only get
                // Reservation Conflict.
                request.status = Status::ABORTED_PREEMPT.with_dnr();
            }
        }
        self.end_forbidden(cx);
    }

    pub(crate) fn is_under_way(&mut self, slot: SlotId) -> bool {
        self.request(slot).operations > 0
    }
}
