//! Commands of an unconnected queue and of the admin queue.

use super::{Connection, IoSession, Session, State, Work};
use crate::core::Context;
use crate::limits;
use farblock_proto::capsule::DataPointer;
use farblock_proto::controller::{
    AdminOutcome, ConnectRequest, Connected, QueueKind, data_pointer,
};
use farblock_proto::ids::CommandId;
use farblock_proto::limits::IN_CAPSULE_BYTES;
use farblock_proto::tcp::SlotId;
use farblock_wire::fabrics::{ConnectCommand, ConnectData, FabricsCommandType};
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::reset::CrossControllerReset;
use farblock_wire::{Sqe, Status};

impl Connection {
    /// A command arrived.
    pub(super) fn command(&mut self, cx: &mut Context, slot: SlotId, sqe: Sqe) {
        self.head = (self.head + 1) % self.depth;
        // Slots are taken from the lowest, so that a queue costs as much as it is really used.
        let index = usize::from(slot.0);
        if index >= self.requests.len() {
            self.requests.resize_with(index + 1, super::Request::new);
        }
        self.requests[index] = super::Request { sqe, ..super::Request::new() };
        if self.state == State::Draining {
            self.respond(slot, Status::ABORTED_SQ_DELETION, 0);
            return;
        }
        match &self.session {
            Session::None => self.first_command(cx, slot, &sqe),
            Session::Admin { .. } => self.admin_command(cx, slot, &sqe),
            Session::Io(_) => self.io_command(cx, slot, &sqe),
        }
    }

    /// The first command of a queue has to be Connect.
    fn first_command(&mut self, cx: &mut Context, slot: SlotId, sqe: &Sqe) {
        if sqe.opcode != AdminOpcode::FABRICS.0 || sqe.fctype() != FabricsCommandType::CONNECT.0 {
            self.respond(slot, Status::COMMAND_SEQUENCE_ERROR.with_dnr(), 0);
            return;
        }
        self.request(slot).work = Work::Connect;
        let pulled = data_pointer(sqe, ConnectData::LEN as u32)
            .and_then(|pointer| self.pull_now(cx, slot, pointer));
        if let Err(status) = pulled {
            self.respond_and_release(cx, slot, status, 0);
        }
    }

    /// Pulls data that does not wait for other commands' buffers: there is little of it.
    pub(super) fn pull_now(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        pointer: DataPointer,
    ) -> Result<(), Status> {
        self.hold(cx, slot, pointer.length() as usize);
        self.pull(cx, slot, pointer)
    }

    /// The Connect command's data is here.
    pub(super) fn connect(&mut self, cx: &mut Context, slot: SlotId) {
        let request = self.request(slot);
        let command = ConnectCommand::from_sqe(&request.sqe);
        let buffer = request.buffer.as_ref().expect("pulled into a buffer");
        let data = ConnectData::parse(buffer).expect("as long as was asked for");
        let local_address = self.local.ip().to_canonical().to_string();
        let request =
            ConnectRequest { command: &command, data: &data, local_address: &local_address };
        match cx.shared.connect(&request, self.route) {
            Ok(connected) => {
                self.connected(cx, &connected);
                self.respond_and_release(cx, slot, Status::SUCCESS, connected.result);
            }
            Err(refusal) => {
                let host = data.host_nqn().unwrap_or("(malformed)");
                let wanted = data.subsystem_nqn().unwrap_or("(malformed)");
                let status = refusal.status;
                tracing::warn!(peer = %self.peer, "refused host {host} at {wanted}: {status}");
                self.respond_and_release(cx, slot, refusal.status, refusal.result);
            }
        }
    }

    fn connected(&mut self, cx: &mut Context, connected: &Connected) {
        self.state = State::Open;
        cx.reactor.set_timer(self.task, None);
        self.depth = connected.depth;
        self.head = 1 % self.depth;
        self.flow_control = connected.flow_control;
        self.end.set_depth(connected.depth);
        self.end.set_success_flag(!connected.flow_control);
        let controller = connected.controller;
        self.instance = Some(connected.instance);
        if connected.kind == QueueKind::Io {
            self.end.set_in_capsule_bytes(IN_CAPSULE_BYTES);
        }
        self.session = match (connected.kind, connected.subsystem) {
            (QueueKind::Io, Some(subsystem)) => Session::Io(Box::new(IoSession {
                controller,
                queue: connected.queue,
                subsystem,
                table: connected.namespaces.clone(),
                volumes: Vec::new(),
                counters: cx.shared.counters(subsystem),
                traffic: connected.traffic.clone(),
            })),
            _ => Session::Admin { controller },
        };
        tracing::info!(
            peer = %self.peer, controller = controller.0, queue = connected.queue.0,
            depth = connected.depth, "connected"
        );
    }

    fn admin_command(&mut self, cx: &mut Context, slot: SlotId, sqe: &Sqe) {
        let Session::Admin { controller } = self.session else { unreachable!("checked") };
        let bytes = cx.shared.admin_data_bytes(controller, sqe);
        if bytes == 0 {
            self.admin(cx, slot);
            return;
        }
        self.request(slot).work = Work::Admin;
        let pulled = data_pointer(sqe, bytes).and_then(|pointer| self.pull_now(cx, slot, pointer));
        if let Err(status) = pulled {
            self.respond_and_release(cx, slot, status, 0);
        }
    }

    /// All of an admin command is here.
    pub(super) fn admin(&mut self, cx: &mut Context, slot: SlotId) {
        let Session::Admin { controller } = self.session else { unreachable!("checked") };
        let request = self.request(slot);
        let sqe = request.sqe;
        let data = request.buffer.as_deref().unwrap_or(&[]);
        match cx.shared.admin(controller, &sqe, data) {
            AdminOutcome::Respond { status, result } => {
                self.respond_and_release(cx, slot, status, result);
            }
            AdminOutcome::Push { bytes, result } => {
                self.release(cx, slot);
                self.hold(cx, slot, bytes.len());
                let mut buffer = cx.reactor.buffers().take(bytes.len());
                buffer.copy_from_slice(&bytes);
                self.push(slot, bytes.len() as u32, Some(buffer), Status::SUCCESS, result);
            }
            AdminOutcome::Pending => {
                self.release(cx, slot);
                self.request(slot).work = Work::Held;
                self.held_commands += 1;
            }
            // Every command runs to its end here; saying "not aborted" is always allowed.
            AdminOutcome::Abort { .. } => {
                self.respond_and_release(cx, slot, Status::SUCCESS, 1);
            }
            AdminOutcome::Reset { instance } => {
                let gone = cx.shared.is_gone(instance);
                let result = if gone { CrossControllerReset::IMMEDIATE } else { 0 };
                self.respond_and_release(cx, slot, Status::SUCCESS, result);
            }
            AdminOutcome::Disconnect => {
                self.respond_and_release(cx, slot, Status::SUCCESS, 0);
                self.close_after_sending(cx);
            }
        }
    }

    /// Completes a held asynchronous event request.
    pub(crate) fn complete_held(
        &mut self,
        cx: &mut Context,
        command: CommandId,
        status: Status,
        result: u64,
    ) {
        let Some(slot) = self.end.find(command) else { return };
        if !matches!(self.request(slot).work, Work::Held) || self.state != State::Open {
            return;
        }
        self.held_commands -= 1;
        self.respond(slot, status, result);
        cx.list(self.route.key, &mut self.listed);
    }

    /// A fabrics command on an I/O queue: Disconnect ends it in good order. Nothing else is for an
    /// I/O queue, and saying so needs no lock.
    pub(super) fn io_fabrics_command(&mut self, cx: &mut Context, slot: SlotId, sqe: &Sqe) {
        if sqe.fctype() != FabricsCommandType::DISCONNECT.0 {
            self.respond(slot, Status::INVALID_OPCODE.with_dnr(), 0);
            return;
        }
        let Session::Io(session) = &self.session else { unreachable!("checked by the caller") };
        match cx.shared.fabrics_on_io_queue(session.controller, session.queue, sqe) {
            AdminOutcome::Disconnect => {
                self.disconnect = Some(slot);
                self.state = State::Draining;
                cx.reactor.set_timer(self.task, Some(cx.now() + limits::DRAIN_TIMEOUT));
            }
            AdminOutcome::Respond { status, result } => self.respond(slot, status, result),
            other => unreachable!("no answer to a fabrics command of an I/O queue: {other:?}"),
        }
    }

    /// Answers a Disconnect command when it is the last: its answer is the queue's last.
    pub(super) fn answer_disconnect(&mut self) {
        if let Some(slot) = self.disconnect
            && self.end.in_flight() == 1
        {
            self.disconnect = None;
            self.respond(slot, Status::SUCCESS, 0);
        }
    }
}
