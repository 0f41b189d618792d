//! The commands of a queue that is not connected yet, and the commands of the admin queue.

use super::{IoQueue, Queue, Session, SessionState, Submission, Work};
use crate::backings::Backings;
use crate::by_namespace::ByNamespace;
use crate::context::Context;
use crate::events::Event;
use crate::limits;
use crate::meters::QueueMeters;
use crate::notices::NoticeKind;
use crate::reservations::{Limits, Owner};
use crate::shared::{Admitted, Denied, Why};
use crate::transport::Transport;
use farblock_proto::capsule::{DataPointer, SlotId};
use farblock_proto::controller::{
    AdminOutcome, ConnectRequest, Connected, QueueKind, data_pointer,
};
use farblock_proto::host::refused;
use farblock_proto::ids::CommandId;
use farblock_reactor::os;
use farblock_wire::fabrics::{ConnectCommand, ConnectData, FabricsCommandType};
use farblock_wire::opcode::{AdminOpcode, DataDirection};
use farblock_wire::reset::CrossControllerReset;
use farblock_wire::{Sqe, Status};
use std::sync::Arc;

impl<T: Transport> Session<T> {
    pub(crate) fn command(&mut self, cx: &mut Context, slot: SlotId, sqe: Sqe) {
        self.arrive(cx, slot, sqe);
        if self.state == SessionState::Draining {
            self.respond(slot, Status::ABORTED_SQ_DELETION, 0);
            return;
        }
        match &self.queue {
            Queue::None => self.first_command(cx, slot, &sqe),
            Queue::Locked(_) => self.locked_command(cx, slot, &sqe),
            Queue::Admin { .. } => self.admin_command(cx, slot, &sqe),
            Queue::Io(_) => self.io_command(cx, slot, &sqe),
        }
    }

    /// Responds with `status` to a command that the transport cannot accept.
    pub(crate) fn refuse(&mut self, cx: &mut Context, slot: SlotId, sqe: Sqe, status: Status) {
        self.arrive(cx, slot, sqe);
        self.respond(slot, status, 0);
    }

    fn arrive(&mut self, cx: &mut Context, slot: SlotId, sqe: Sqe) {
        self.submission.head = (self.submission.head + 1) % self.submission.depth;
        self.pending.commands += 1;
        // The transport uses the lowest free slot, so the memory of a queue grows only with the
        // depth that the host uses.
        self.keep_slot(cx, slot);
        let began = cx.measures_latency.then(|| cx.now());
        *self.request(slot) = super::SessionRequest { sqe, began, ..super::SessionRequest::new() };
    }

    /// Executes the first command of a queue, which must be Connect.
    fn first_command(&mut self, cx: &mut Context, slot: SlotId, sqe: &Sqe) {
        if sqe.opcode != AdminOpcode::FABRICS.0 || sqe.fctype() != FabricsCommandType::CONNECT.0 {
            self.respond(slot, Status::COMMAND_SEQUENCE_ERROR.with_dnr(), 0);
            return;
        }
        self.request(slot).work = Work::Connect;
        let pulled = data_pointer(sqe, ConnectData::LEN as u32, T::REMOTE)
            .and_then(|pointer| self.pull_now(cx, slot, pointer));
        if let Err(status) = pulled {
            self.respond_and_release(cx, slot, status, 0);
        }
    }

    /// Starts a transfer of data from the host at once, even if memory is short, since these data
    /// are small.
    pub(super) fn pull_now(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        pointer: DataPointer,
    ) -> Result<(), Status> {
        self.hold(cx, slot, pointer.length() as usize);
        self.pull(cx, slot, pointer)
    }

    pub(super) fn connect(&mut self, cx: &mut Context, slot: SlotId) {
        let request = self.request(slot);
        let command = ConnectCommand::from_sqe(&request.sqe);
        let buffer = request.buffer.as_ref().expect("pulled into a buffer");
        let data = ConnectData::parse(buffer).expect("the buffer has the length of Connect data");
        let request = ConnectRequest {
            command: &command,
            data: &data,
            local_address: &self.entrance.ip().to_canonical().to_string(),
            port: cx.shared.listening.port_of(T::REMOTE, self.entrance),
            remote: T::REMOTE,
        };
        let shown = self.transport.peer();
        let announced = self.transport.announced();
        let checked = announced.map_or(Ok(()), |queue| queue.check(&command, &data));
        let admit = |()| cx.shared.connect(&request, shown, self.route, self.peer.ip());
        match checked.map_err(Denied::from).and_then(admit) {
            Ok(Admitted { connected, fence, backings, terms, has_proved, offer }) => {
                let host = data.host_nqn().unwrap_or_default().to_owned();
                self.fence = fence;
                if terms.is_none() || has_proved {
                    self.hold_as(cx, &host);
                }
                self.connected(cx, &connected, backings, host);
                if let Some(terms) = terms {
                    self.prepare(terms, offer);
                    if !has_proved {
                        self.lock(cx);
                    }
                }
                self.respond_and_release(cx, slot, Status::SUCCESS, connected.result);
            }
            Err(Denied { refusal, why }) => {
                match &why {
                    Why::Tls(reason, _) => cx.shared.admissions.refused(*reason),
                    Why::Told | Why::Identifier(_) => cx.shared.admissions.queue_refused(&refusal),
                }
                let host = data.host_nqn().unwrap_or("(malformed)");
                let wanted = data.subsystem_nqn().unwrap_or("(malformed)");
                cx.notice(NoticeKind::Refused, self.peer.ip(), || {
                    let reason = match why {
                        Why::Told => refused(refusal.status, refusal.result).to_string(),
                        Why::Tls(_, sentence) | Why::Identifier(sentence) => sentence,
                    };
                    tracing::warn!(peer = %self.peer, "refused host {host} at {wanted}: {reason}");
                    cx.shared.observed.tell(&Event::Refused {
                        host: host.to_owned(),
                        address: self.peer.ip(),
                        subsystem: wanted.to_owned(),
                        reason,
                    });
                });
                self.respond_and_release(cx, slot, refusal.status, refusal.result);
            }
        }
    }

    fn connected(
        &mut self,
        cx: &mut Context,
        connected: &Connected,
        backings: Arc<Backings>,
        host: String,
    ) {
        self.state = SessionState::Open;
        cx.reactor.set_timer(self.task, None);
        let Connected { depth, flow_control, controller, .. } = *connected;
        self.submission = Submission { depth, head: 1 % depth, flow_control };
        self.transport.connected(connected);
        self.instance = Some(connected.instance);
        self.owner =
            connected.subsystem.map(|subsystem| Owner { subsystem, host: connected.host_id });
        if !os::has_mistake("target: a new queue is not fenced") {
            self.limits = Limits::new(connected.restrictions.clone());
        }
        tracing::debug!(
            peer = %self.peer, %host, controller = controller.0, queue = connected.queue.0,
            depth, "connected"
        );
        self.share = match (connected.kind, connected.subsystem) {
            (QueueKind::Io, Some(subsystem)) => {
                Some(cx.shares.join(subsystem, &host, backings.weight_of(&host)))
            }
            _ => None,
        };
        self.queue = match (connected.kind, connected.subsystem) {
            (QueueKind::Io, Some(subsystem)) => Queue::Io(Box::new(IoQueue {
                controller,
                id: connected.queue,
                subsystem,
                meters: QueueMeters::new(&cx.shared.meters, cx.index, subsystem, &host),
                port: connected.port,
                pace: backings.pace_of(&host).cloned(),
                host,
                table: connected.namespaces.clone(),
                backings,
                volumes: ByNamespace::default(),
                traffic: connected.traffic.clone(),
                is_traced: super::trace::is_wanted(),
            })),
            _ => Queue::Admin { controller },
        };
    }

    fn admin_command(&mut self, cx: &mut Context, slot: SlotId, sqe: &Sqe) {
        let Queue::Admin { controller } = self.queue else {
            unreachable!("this is an admin queue")
        };
        if self.authentication_command(cx, slot, sqe) {
            return;
        }
        let has_data = DataDirection::of_command(sqe) != DataDirection::None;
        if has_data && !cx.memory.has_room(limits::BUFFER_BYTES_MIN) {
            return self.respond(slot, Status::COMMAND_INTERRUPTED, 0);
        }
        let bytes = cx.shared.admin_data_bytes(controller, sqe);
        if bytes == 0 {
            self.admin(cx, slot);
            return;
        }
        self.request(slot).work = Work::Admin;
        let pulled = data_pointer(sqe, bytes, T::REMOTE)
            .and_then(|pointer| self.pull_now(cx, slot, pointer));
        if let Err(status) = pulled {
            self.respond_and_release(cx, slot, status, 0);
        }
    }

    pub(super) fn admin(&mut self, cx: &mut Context, slot: SlotId) {
        let Queue::Admin { controller } = self.queue else {
            unreachable!("this is an admin queue")
        };
        let request = self.request(slot);
        let sqe = request.sqe;
        let data = request.buffer.as_deref().unwrap_or(&[]);
        match cx.shared.admin(controller, &sqe, data) {
            AdminOutcome::Respond { status, result } => {
                self.respond_and_release(cx, slot, status, result);
            }
            AdminOutcome::Push { bytes, result } => {
                self.release(cx, slot);
                self.push_page(cx, slot, &bytes, result);
            }
            AdminOutcome::Pending => {
                self.release(cx, slot);
                self.request(slot).work = Work::Held;
                self.pending.held_commands += 1;
            }
            AdminOutcome::Abort { queue, command } => {
                self.ask_for_abort(cx, slot, (controller, queue), command);
            }
            AdminOutcome::Reset { instance } => {
                let gone = cx.shared.is_gone(instance);
                let result = if gone { CrossControllerReset::IMMEDIATE } else { 0 };
                self.respond_and_release(cx, slot, Status::SUCCESS, result);
            }
            AdminOutcome::Reserve { namespace, request } => {
                self.reserve_by_admin(cx, slot, namespace, request);
            }
            AdminOutcome::Disconnect => {
                self.respond_and_release(cx, slot, Status::SUCCESS, 0);
                self.close_after_sending(cx);
            }
        }
    }

    /// Sends a log page. Most of a page consists of trailing zeroes, which the target sends from
    /// the shared zero buffer.
    pub(super) fn push_page(&mut self, cx: &mut Context, slot: SlotId, page: &[u8], result: u64) {
        // Compare the page with zeroes in large pieces instead of byte by byte, since a page may
        // have 1 MiB.
        const PIECE: usize = limits::BUFFER_BYTES_MIN;
        let is_used = |piece: &[u8]| piece != &[0; PIECE][..piece.len()];
        let used = page.chunks(PIECE).rposition(is_used).map_or(1, |last| last + 1);
        let used = (used * PIECE).min(page.len());
        self.hold(cx, slot, used);
        let mut buffer = cx.reactor.buffers().take(used);
        buffer.copy_from_slice(&page[..used]);
        let zeroes = cx.zeroes(page.len() - used);
        let parts = std::iter::once(buffer).chain(zeroes);
        self.push(slot, page.len() as u32, parts, Status::SUCCESS, result);
    }

    pub(crate) fn complete_held(
        &mut self,
        cx: &mut Context,
        command: CommandId,
        status: Status,
        result: u64,
    ) {
        let Some(slot) = self.held_command(command) else { return };
        self.pending.held_commands -= 1;
        self.respond(slot, status, result);
        self.list(cx);
    }

    /// Drops a held asynchronous event request without a response.
    pub(crate) fn forget_held(&mut self, command: CommandId) {
        let Some(slot) = self.held_command(command) else { return };
        self.pending.held_commands -= 1;
        self.pending.commands -= 1;
        self.request(slot).work = Work::None;
        self.transport.forget(slot);
    }

    fn held_command(&self, command: CommandId) -> Option<SlotId> {
        let is_it = |request: &super::SessionRequest| {
            matches!(request.work, Work::Held) && request.sqe.cid.get() == command.0
        };
        let index =
            self.requests.iter().position(is_it).filter(|_| self.state == SessionState::Open)?;
        Some(SlotId(index as u16))
    }

    /// Handles a fabrics command on an I/O queue. Disconnect closes the queue gracefully. The queue
    /// refuses all other fabrics commands without taking a lock.
    pub(super) fn io_fabrics_command(&mut self, cx: &mut Context, slot: SlotId, sqe: &Sqe) {
        if self.authentication_command(cx, slot, sqe) {
            return;
        }
        if sqe.fctype() != FabricsCommandType::DISCONNECT.0 {
            self.respond(slot, Status::INVALID_OPCODE.with_dnr(), 0);
            return;
        }
        let Queue::Io(queue) = &self.queue else { unreachable!("this is an I/O queue") };
        match cx.shared.fabrics_on_io_queue(queue.controller, queue.id, sqe) {
            AdminOutcome::Disconnect => {
                self.pending.disconnect = Some(slot);
                self.state = SessionState::Draining;
                cx.reactor.set_timer(self.task, Some(cx.now() + limits::DRAIN_TIMEOUT));
                self.list(cx);
            }
            AdminOutcome::Respond { status, result } => self.respond(slot, status, result),
            other => unreachable!("no answer to a fabrics command of an I/O queue: {other:?}"),
        }
    }

    /// Sends the response of a Disconnect command once all other commands have their responses.
    pub(super) fn answer_disconnect(&mut self) {
        if let Some(slot) = self.pending.disconnect
            && self.pending.commands == 1
        {
            self.pending.disconnect = None;
            self.respond(slot, Status::SUCCESS, 0);
        }
    }
}
