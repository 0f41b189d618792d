//! Authentication on a queue. Until the host has authenticated, the queue executes only
//! authentication commands (Base 2.0c, "Authentication Send Command", "Authentication Receive
//! Command").
//!
//! ```text
//!   Connect (AUTHREQ: ATR)          good
//!  Waiting ---------------> Locked -------> Admin or Io --+
//!                              |                 ^        | reauthentication: I/O continues
//!                              | failed, late,   +--------+
//!                              v too often       | failed
//!                            closed <------------+
//! ```

use super::{IoQueue, Queue, Session, SessionState, Work};
use crate::authentication::Job;
use crate::context::Context;
use crate::events::Event;
use crate::limits;
use crate::notices::NoticeKind;
use crate::transport::Transport;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::data_pointer;
use farblock_reactor::os;
use farblock_secure::{Concatenation, Controller, ControllerTerms, Failure, Progress};
use farblock_wire::auth::MessageHead;
use farblock_wire::fabrics::{AuthenticationCommand, FabricsCommandType};
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::{Sqe, Status};
use std::sync::Arc;

pub(super) struct Authentication {
    host: String,
    subsystem: String,
    /// The controller's protocol state; `None` while the authentication thread has the state.
    machine: Option<Box<Controller>>,
    /// The number of messages received while the queue was locked.
    messages: u32,
    /// The session drops this when it closes. The authentication thread then skips the messages of
    /// this session.
    waits: Arc<()>,
}

impl Queue {
    pub(super) fn io_mut(&mut self) -> Option<&mut IoQueue> {
        match self {
            Queue::Io(queue) => Some(queue),
            Queue::Locked(queue) => queue.io_mut(),
            Queue::None | Queue::Admin { .. } => None,
        }
    }
}

fn concerns(sqe: &Sqe) -> bool {
    let kinds =
        [FabricsCommandType::AUTHENTICATION_SEND, FabricsCommandType::AUTHENTICATION_RECEIVE];
    sqe.opcode == AdminOpcode::FABRICS.0 && kinds.contains(&FabricsCommandType(sqe.fctype()))
}

impl<T: Transport> Session<T> {
    /// Prepares the authentication of a connected queue. `offer` describes the secure channel that
    /// the authentication may establish.
    pub(super) fn prepare(&mut self, terms: Arc<ControllerTerms>, offer: Concatenation) {
        let (host, subsystem) = (terms.host_nqn.clone(), terms.subsystem_nqn.clone());
        let machine = Some(Box::new(Controller::new(terms).offering(offer)));
        let authentication =
            Authentication { host, subsystem, machine, messages: 0, waits: Arc::default() };
        self.authentication = Some(Box::new(authentication));
    }

    pub(super) fn lock(&mut self, cx: &mut Context) {
        let queue = std::mem::replace(&mut self.queue, Queue::None);
        self.queue = Queue::Locked(Box::new(queue));
        // A single timeout covers the whole exchange, including the transfer of its messages.
        self.arrivals.watched = true;
        cx.reactor.set_timer(self.task, Some(cx.now() + limits::AUTHENTICATION_TIMEOUT));
    }

    /// Handles a successful authentication. If the exchange generated a TLS key, the host must
    /// continue on a new connection with TLS. The host may do nothing else on this connection (TP
    /// 8018).
    fn proved(&mut self, cx: &mut Context) {
        let Some(authentication) = &mut self.authentication else { return };
        let Some(machine) = &mut authentication.machine else { return };
        let is_elsewhere = machine.has_concatenated() && self.transport.peer().is_none();
        let psks = machine.take_psks();
        if let Some(psk) = psks.first() {
            tracing::info!(
                peer = %self.peer, identity = %psk.identity,
                "the host authenticated; it must now reconnect with TLS"
            );
            cx.shared.tls.generate(psks, &authentication.host, &authentication.subsystem);
        }
        if self.is_locked() && !is_elsewhere {
            self.unlock(cx);
        }
    }

    fn unlock(&mut self, cx: &mut Context) {
        let Queue::Locked(queue) = std::mem::replace(&mut self.queue, Queue::None) else {
            unreachable!("the caller has checked that the queue is locked")
        };
        if let Queue::Admin { controller } = *queue
            && let Err(reason) = cx.shared.host_proved(controller)
        {
            self.queue = Queue::Locked(queue);
            return self.is_not_its(cx, reason);
        }
        self.queue = *queue;
        if let Some(authentication) = &mut self.authentication {
            // This queue has no TLS. A later authentication must not generate a TLS key: the queue
            // would stay open although the key requires a secure channel.
            let machine = authentication.machine.take();
            let without = |machine: Box<Controller>| machine.offering(Concatenation::NONE);
            authentication.machine = machine.map(without).map(Box::new);
        }
        self.arrivals.watched = false;
        if self.state == SessionState::Open {
            cx.reactor.set_timer(self.task, None);
        }
        let host = self.authentication.as_ref().expect("the session authenticates").host.clone();
        self.hold_as(cx, &host);
        cx.shared.slots().connected(self.route.serial);
        cx.shared.authenticator.proved(self.peer.ip());
        cx.shared.admissions.authenticated();
        if let Queue::Admin { controller } = self.queue {
            cx.shared.host_is_in(controller);
        }
        tracing::info!(peer = %self.peer, %host, "authenticated");
    }

    /// Closes the queue, because the host may no longer use its host identifier. Logs the reason.
    fn is_not_its(&mut self, cx: &mut Context, reason: &str) {
        cx.notice(NoticeKind::Refused, self.peer.ip(), || {
            let host = self.host_to_authenticate();
            tracing::warn!(peer = %self.peer, %host, "closing the connection: {reason}");
        });
        self.close_after_sending(cx);
    }

    pub(super) fn is_locked(&self) -> bool {
        matches!(self.queue, Queue::Locked(_))
    }

    fn not_authenticated(&self, failure: &Failure) -> Event {
        let authentication = self.authentication.as_ref();
        Event::Refused {
            host: self.host_to_authenticate().to_owned(),
            address: self.peer.ip(),
            subsystem: authentication.map_or_else(String::new, |it| it.subsystem.clone()),
            reason: format!("authentication failed: {failure}"),
        }
    }

    /// Closes the queue after the authentication timeout.
    pub(super) fn authentication_late(&mut self, cx: &mut Context) {
        cx.shared.admissions.not_authenticated(None);
        cx.notice(NoticeKind::Late, self.peer.ip(), || {
            let host = self.host_to_authenticate();
            tracing::warn!(
                peer = %self.peer, %host,
                "closing the connection: the host did not authenticate in time"
            );
        });
        self.authentication = None;
        self.close(cx);
    }

    /// Logs that a connection closes before its host has authenticated. A host without a secret
    /// just disconnects, so this is the only log line about it.
    pub(super) fn ends_unproved(&mut self, cx: &mut Context) {
        let Some(authentication) = &self.authentication else { return };
        let machine = authentication.machine.as_ref().filter(|_| self.is_locked());
        let is_open = |machine: &Controller| {
            machine.progress() == Progress::Open && machine.failure().is_none()
        };
        if self.state != SessionState::Open || !machine.is_some_and(|it| is_open(it)) {
            return;
        }
        let how = match authentication.messages {
            0 => "the host disconnected when this target requested authentication",
            _ => "the host disconnected during authentication",
        };
        cx.notice(NoticeKind::Refused, self.peer.ip(), || {
            let host = self.host_to_authenticate();
            tracing::warn!(peer = %self.peer, %host, "{how}");
        });
    }

    fn host_to_authenticate(&self) -> &str {
        self.authentication.as_ref().map_or("", |authentication| &authentication.host)
    }

    pub(super) fn locked_command(&mut self, cx: &mut Context, slot: SlotId, sqe: &Sqe) {
        if !self.authentication_command(cx, slot, sqe) {
            self.respond(slot, Status::AUTHENTICATION_REQUIRED.with_dnr(), 0);
        }
    }

    /// Executes an authentication command, if the host must authenticate. On an unlocked queue,
    /// this is a reauthentication. Returns false for all other commands, and if the host need not
    /// authenticate.
    pub(super) fn authentication_command(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        sqe: &Sqe,
    ) -> bool {
        if self.authentication.is_none() || !concerns(sqe) {
            return false;
        }
        let command = AuthenticationCommand::from_sqe(sqe);
        let sends = command.fctype == FabricsCommandType::AUTHENTICATION_SEND.0;
        let done = match sends {
            _ if !command.is_nvme() => Err(Status::INVALID_FIELD.with_dnr()),
            true => self.begin_send(cx, slot, &command, sqe),
            false => self.receive(cx, slot, &command, sqe),
        };
        if let Err(status) = done {
            self.respond_and_release(cx, slot, status, 0);
        }
        true
    }

    /// Returns the protocol state; `None` while the authentication thread handles a message.
    fn machine(&mut self) -> Option<&mut Box<Controller>> {
        self.authentication.as_mut()?.machine.as_mut()
    }

    fn begin_send(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        command: &AuthenticationCommand,
        sqe: &Sqe,
    ) -> Result<(), Status> {
        let length = command.length.get();
        if !(MessageHead::LEN as u32..=limits::AUTHENTICATION_BYTES).contains(&length) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let pointer = data_pointer(sqe, length, T::REMOTE)?;
        if self.machine().is_none_or(|machine| machine.progress() == Progress::Failed) {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        if !cx.memory.has_room(limits::BUFFER_BYTES_MIN) {
            return Err(Status::COMMAND_INTERRUPTED);
        }
        self.request(slot).work = Work::Authentication;
        self.pull_now(cx, slot, pointer)
    }

    /// Passes a received authentication message to the authentication thread.
    pub(super) fn authenticate(&mut self, cx: &mut Context, slot: SlotId) {
        let message = self.request(slot).buffer.as_deref().unwrap_or(&[]).to_vec();
        let is_locked = self.is_locked();
        let Some(authentication) = &mut self.authentication else {
            unreachable!("the host must authenticate")
        };
        authentication.messages += u32::from(is_locked);
        let too_many = authentication.messages > limits::AUTHENTICATION_MESSAGES;
        let Some(mut machine) = authentication.machine.take().filter(|_| !too_many) else {
            // The host has sent another message before this command's data, or too many messages.
            let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
            self.respond_and_release(cx, slot, status, 0);
            self.close_after_sending(cx);
            return;
        };
        // Use the current terms. They may have changed since Connect.
        if let Some(terms) = cx.shared.authenticator.changed(&machine) {
            machine.set_terms(terms);
        }
        let job = Job::new((self.route, slot), machine, message, &authentication.waits);
        self.release(cx, slot);
        if let Err(error) = cx.shared.authenticate(self.peer.ip(), job) {
            tracing::error!("cannot start the authentication thread: {error}");
            self.respond(slot, Status::INTERNAL_ERROR, 0);
            self.close_after_sending(cx);
        }
    }

    /// Stores the protocol state that the authentication thread returns after it has handled a
    /// message.
    pub(crate) fn authenticated(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        machine: Box<Controller>,
    ) {
        if !self.is_serving() {
            return;
        }
        if cx.shared.authenticator.changed(&machine).is_some() {
            tracing::info!(
                peer = %self.peer,
                "closing the connection: the host's key changed during authentication"
            );
            self.close(cx);
            return;
        }
        let failure = machine.failure().cloned();
        let ends = machine.message_bytes().is_none() && machine.progress() == Progress::Failed;
        let is_blind = failure.is_some() && os::has_mistake("target: a wrong proof is accepted");
        let is_done = machine.progress() == Progress::Done || is_blind;
        if let Some(authentication) = &mut self.authentication {
            authentication.machine = Some(machine);
        }
        self.respond(slot, Status::SUCCESS, 0);
        if let Some(failure) = failure {
            cx.shared.admissions.not_authenticated(Some(failure.reason));
            cx.notice(NoticeKind::Refused, self.peer.ip(), || {
                let host = self.host_to_authenticate();
                tracing::warn!(peer = %self.peer, %host, "authentication failed: {failure}");
                cx.shared.observed.tell(&self.not_authenticated(&failure));
            });
        }
        if is_done {
            self.proved(cx);
        }
        if ends {
            self.close_after_sending(cx);
        }
        self.list(cx);
    }

    /// Executes an Authentication Receive command: sends the pending reply to the host.
    fn receive(
        &mut self,
        cx: &mut Context,
        slot: SlotId,
        command: &AuthenticationCommand,
        sqe: &Sqe,
    ) -> Result<(), Status> {
        let room = command.length.get();
        data_pointer(sqe, room, T::REMOTE)?;
        let sequence = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
        let machine = self.machine().ok_or(sequence)?;
        let bytes = machine.message_bytes().ok_or(sequence)?;
        if room > limits::AUTHENTICATION_BYTES || bytes > room as usize {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let mut message = machine.take_message().ok_or(sequence)?;
        let progress = machine.progress();
        message.resize(room as usize, 0);
        self.push_page(cx, slot, &message, 0);
        match progress {
            Progress::Done => self.proved(cx),
            Progress::Failed => self.close_after_sending(cx),
            _ => {}
        }
        Ok(())
    }
}
