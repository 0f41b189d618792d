//! Handles iSCSI requests other than SCSI commands: logins, pings, text requests, task management
//! and logouts.

use super::receive::Destination;
use super::{Connection, Session, SessionState};
use crate::context::{Abort, Action, Context, Management};
use crate::limits;
use crate::login::{Answer, Login, Status};
use crate::scsi::Sense;
use crate::text;
use crate::unit::Lun;
use crate::wire::view;
use crate::wire::{AnyRequest, IMMEDIATE, LoginRequest, LoginResponse, LogoutRequest};
use crate::wire::{NO_TAG, OPCODE, Response, TaskRequest};
use crate::wire::{data_bytes, flag, function, length, outcome, reject, request, response};

/// Whether the target executes a numbered request.
enum Turn {
    Now,
    /// The request's number is outside of the window or a duplicate: drop the request.
    Ignored,
    /// The initiator skipped a number. With a single connection, the missing command cannot arrive
    /// later.
    Broken,
}

/// The logout response code for recovery, which the target does not support (RFC 7143, 11.15.1).
const NO_RECOVERY: u8 = 2;
/// The logout response code for a connection that does not exist.
const NO_CONNECTION: u8 = 1;

impl Connection {
    /// Handles a complete header. Returns the destination of the PDU's data.
    pub(super) fn begin_pdu(&mut self, cx: &mut Context) -> Destination {
        let opcode = self.input.bhs[0] & OPCODE;
        if !matches!(self.session, Session::FullFeature) {
            if opcode == request::LOGIN {
                return Destination::Request;
            }
            let peer = self.peer;
            cx.complain("iSCSI protocol errors", peer, || {
                tracing::warn!(
                    %peer,
                    "closing the connection: it does not start with an iSCSI login"
                );
            });
            self.close(cx);
            return Destination::Nowhere;
        }
        if opcode == request::DATA_OUT {
            return self.begin_data_out(cx);
        }
        match self.take_turn(opcode) {
            Turn::Now => {}
            Turn::Ignored => {
                self.input.bhs[0] = IGNORED;
                return Destination::Nowhere;
            }
            Turn::Broken => {
                self.protocol_error(cx, "a command is missing before this one");
                return Destination::Nowhere;
            }
        }
        match opcode {
            request::SCSI_COMMAND if !self.parameters.discovery => self.begin_command(cx),
            request::NOP_OUT | request::TEXT => Destination::Request,
            _ => Destination::Nowhere,
        }
    }

    /// Checks the request's command number, and decides whether to execute the request.
    fn take_turn(&mut self, opcode: u8) -> Turn {
        let header: AnyRequest = view(&self.input.bhs);
        let numbered = matches!(
            opcode,
            request::NOP_OUT
                | request::SCSI_COMMAND
                | request::TASK_MANAGEMENT
                | request::TEXT
                | request::LOGOUT
        );
        if !numbered || header.opcode & IMMEDIATE != 0 {
            return Turn::Now;
        }
        let number = header.cmd_sn.get();
        if !self.is_in_window(number) {
            tracing::debug!(
                peer = %self.peer, number,
                "ignored a command outside of the command window"
            );
            return Turn::Ignored;
        }
        if number != self.numbers.exp_cmd_sn {
            return Turn::Broken;
        }
        self.numbers.exp_cmd_sn = number.wrapping_add(1);
        Turn::Now
    }

    /// Handles a PDU that has arrived completely. `intact` is true if its data digest matches.
    pub(super) fn end_pdu(&mut self, cx: &mut Context, intact: bool) {
        let opcode = self.input.bhs[0] & OPCODE;
        if self.input.bhs[0] == IGNORED || self.state != SessionState::Open {
            return;
        }
        if !intact {
            let peer = self.peer;
            cx.complain("iSCSI protocol errors", peer, || {
                tracing::warn!(
                    %peer,
                    "closing the connection: the digest of iSCSI data does not match"
                );
            });
            self.reject(reject::DATA_DIGEST_ERROR);
            self.end(cx);
            return;
        }
        match opcode {
            request::LOGIN if !matches!(self.session, Session::FullFeature) => self.login(cx),
            request::SCSI_COMMAND if !self.parameters.discovery => self.end_command(cx),
            request::DATA_OUT => self.end_data_out(cx),
            request::NOP_OUT => self.nop(),
            request::TEXT => self.text(cx),
            request::TASK_MANAGEMENT if !self.parameters.discovery => self.manage(cx),
            request::LOGOUT => self.logout(cx),
            request::LOGIN | request::SCSI_COMMAND | request::TASK_MANAGEMENT => {
                self.protocol_error(cx, "the request is not allowed in this phase");
            }
            _ => {
                tracing::debug!(peer = %self.peer, "rejected an iSCSI PDU of kind {opcode:#x}");
                self.reject(reject::NOT_SUPPORTED);
            }
        }
    }

    /// Rejects the PDU, logs a warning and closes the connection. After a protocol error, the
    /// target cannot trust later bytes.
    pub(super) fn protocol_error(&mut self, cx: &mut Context, reason: &str) {
        let peer = self.peer;
        cx.complain("iSCSI protocol errors", peer, || {
            tracing::warn!(
                %peer,
                "closing the connection: the initiator broke the iSCSI protocol: {reason}"
            );
        });
        self.reject(reject::PROTOCOL_ERROR);
        self.end(cx);
    }

    fn login(&mut self, cx: &mut Context) {
        let request: LoginRequest = view(&self.input.bhs);
        let data = std::mem::take(&mut self.input.collected);
        let Session::LoggingIn(login) = &mut self.session else {
            unreachable!("the session is logging in")
        };
        let is_first = login.initiator.name.is_empty();
        let answer = login.handle(&request, &data, &cx.unit.identity.target);
        if is_first {
            // The login is an immediate command and uses up no number, so the first command has the
            // same number.
            self.numbers.exp_cmd_sn = request.cmd_sn.get();
            self.numbers.stat_sn = request.exp_stat_sn.get();
        }
        if answer.status != Status::SUCCESS {
            let status = answer.status;
            let name = &login.initiator.name;
            let peer = self.peer;
            cx.complain("iSCSI logins refused", peer, || {
                tracing::warn!(%peer, name, "refused an iSCSI login: {status}");
            });
            self.answer_login(&request, &answer, 0);
            self.end(cx);
        } else if !answer.done {
            self.answer_login(&request, &answer, 0);
        } else {
            let login = std::mem::replace(&mut **login, Login::new());
            self.initiator = login.initiator.clone();
            let is_discovery = login.parameters.discovery;
            self.session = Session::Admitting(Box::new((login, request, answer)));
            match is_discovery {
                true => self.admitted(cx),
                false => cx.ask(Action::Admit(self.key)),
            }
        }
    }

    /// Completes the login after the operations of disconnected sessions have completed.
    pub(crate) fn admitted(&mut self, cx: &mut Context) {
        let Session::Admitting(complete) =
            std::mem::replace(&mut self.session, Session::FullFeature)
        else {
            unreachable!("only a connection with a waiting login is admitted")
        };
        let (login, request, answer) = *complete;
        let number = cx.session_number();
        // The negotiated digests apply only after this answer.
        self.answer_login(&request, &answer, number);
        self.parameters = login.parameters;
        cx.reactor.set_timer(self.task, None);
        let name = &self.initiator.name;
        tracing::debug!(peer = %self.peer, name, parameters = ?self.parameters, "logged in");
        self.attention(Sense::POWER_ON);
        if cx.resized {
            self.attention(Sense::CAPACITY_CHANGED);
        }
        cx.turns.list(self.key);
    }

    fn answer_login(&mut self, request: &LoginRequest, answer: &Answer, session: u16) {
        let mut pdu = LoginResponse {
            opcode: response::LOGIN,
            flags: answer.flags,
            data_length: length(answer.text.len()),
            isid: request.isid,
            tsih: session.into(),
            task_tag: request.task_tag,
            ..LoginResponse::default()
        };
        pdu.stat_sn = self.next_stat_sn().into();
        (pdu.exp_cmd_sn, pdu.max_cmd_sn) =
            (self.numbers.exp_cmd_sn.into(), self.max_cmd_sn().into());
        pdu.status = answer.status.0.into();
        self.put_header(&pdu);
        self.put_data(&answer.text);
    }

    /// Answers a ping (NOP-Out) with the ping's data.
    fn nop(&mut self) {
        let header: AnyRequest = view(&self.input.bhs);
        if header.task_tag.get() == NO_TAG {
            return; // the initiator wants no answer
        }
        let data = std::mem::take(&mut self.input.collected);
        let wanted = data.len().min(self.parameters.send_bytes as usize);
        let mut pdu = self.response(response::NOP_IN, header.task_tag.get());
        pdu.lun = header.lun;
        pdu.data_length = length(wanted);
        self.put_header(&pdu);
        self.put_data(&data[..wanted]);
        self.input.collected = data;
    }

    /// Answers a text request. The only supported key is `SendTargets`, which lists the targets.
    fn text(&mut self, cx: &mut Context) {
        let header: AnyRequest = view(&self.input.bhs);
        if !self.input.text.add(&self.input.collected) {
            self.protocol_error(cx, "a text is too long");
            return;
        }
        let mut out = Vec::new();
        let mut flags = flag::FINAL;
        if header.flags & flag::CONTINUE != 0 {
            flags = 0;
        } else {
            let text = self.input.text.take();
            let Ok(pairs) = text::parse(&text) else {
                self.protocol_error(cx, "a text is malformed");
                return;
            };
            for (key, value) in pairs {
                match key {
                    "SendTargets" => self.send_targets(cx, value, &mut out),
                    _ => text::emit(&mut out, key, "NotUnderstood"),
                }
            }
        }
        if out.len() > self.parameters.send_bytes as usize {
            self.protocol_error(cx, "the answer to a text request would be too long");
            return;
        }
        let mut pdu = self.response(response::TEXT, header.task_tag.get());
        pdu.flags = flags;
        pdu.lun = header.lun;
        pdu.data_length = length(out.len());
        // If the initiator will send more text, the answer has a target tag. The initiator's next
        // PDU repeats this tag.
        pdu.target_tag = if flags == 0 { 1 } else { NO_TAG }.into();
        self.put_header(&pdu);
        self.put_data(&out);
    }

    fn send_targets(&self, cx: &Context, which: &str, out: &mut Vec<u8>) {
        let target = &cx.unit.identity.target;
        let all = which == "All" && self.parameters.discovery;
        let this = which.is_empty() && !self.parameters.discovery;
        if all || this || which.eq_ignore_ascii_case(target) {
            text::emit(out, "TargetName", target);
            text::emit(out, "TargetAddress", &format!("{},1", self.portal));
        }
    }

    fn manage(&mut self, cx: &mut Context) {
        let header: TaskRequest = view(&self.input.bhs);
        let tag = header.task_tag.get();
        let function = header.function & !flag::FINAL;
        let of_target = [function::TARGET_WARM_RESET, function::TARGET_COLD_RESET];
        if Lun::parse(header.lun.get()) == Lun::Other
            && !of_target.contains(&function)
            && function != function::TASK_REASSIGN
        {
            self.answer_function(tag, outcome::NO_LUN);
            return;
        }
        let task = header.referenced_tag.get();
        let what = match function {
            // All earlier requests have arrived. So if the target does not know the task, it has
            // already answered it.
            function::ABORT_TASK if self.find(task).is_none() => {
                self.answer_function(tag, outcome::NO_TASK);
                return;
            }
            function::ABORT_TASK => Abort::Task,
            function::ABORT_TASK_SET => Abort::Session,
            // Each session has its own task set, so this request aborts only the session's tasks.
            function::CLEAR_TASK_SET => Abort::Session,
            function::LUN_RESET | function::TARGET_WARM_RESET => Abort::Everything,
            function::TASK_REASSIGN => {
                self.answer_function(tag, outcome::NO_REASSIGNMENT);
                return;
            }
            function::CLEAR_ACA | function::TARGET_COLD_RESET => {
                self.answer_function(tag, outcome::NOT_SUPPORTED);
                return;
            }
            _ => {
                self.reject(reject::INVALID_FIELD);
                return;
            }
        };
        tracing::info!(peer = %self.peer, ?what, "an initiator requested the abort of commands");
        cx.ask(Action::Manage(self.key, Management { tag, what, task }));
    }

    fn logout(&mut self, cx: &mut Context) {
        const RECOVERY: u8 = 2;
        let header: LogoutRequest = view(&self.input.bhs);
        let tag = header.task_tag.get();
        match header.reason & !flag::FINAL {
            // Reason 0 closes the session. Reason 1 closes this connection, which is the session's
            // only one.
            0 | 1 => {
                let request = Management { tag, what: Abort::Logout, task: NO_TAG };
                cx.ask(Action::Manage(self.key, request));
            }
            RECOVERY => self.answer_logout(tag, NO_RECOVERY),
            _ => self.answer_logout(tag, NO_CONNECTION),
        }
    }

    /// Answers a task management or logout request once the aborted tasks have ended.
    pub(super) fn answer_management(&mut self, cx: &mut Context, request: Management) {
        match request.what {
            Abort::Logout => {
                self.answer_logout(request.tag, 0);
                self.end(cx);
            }
            _ => self.answer_function(request.tag, outcome::COMPLETE),
        }
    }

    fn answer_function(&mut self, tag: u32, code: u8) {
        let mut pdu = self.response(response::TASK_MANAGEMENT, tag);
        pdu.code = code;
        pdu.target_tag = 0.into();
        self.put_header(&pdu);
    }

    fn answer_logout(&mut self, tag: u32, code: u8) {
        let mut pdu = self.response(response::LOGOUT, tag);
        pdu.code = code;
        pdu.target_tag = 0.into();
        self.put_header(&pdu);
    }

    /// Makes a response PDU with its sequence numbers.
    fn response(&mut self, opcode: u8, tag: u32) -> Response {
        let mut pdu = Response::default();
        (pdu.opcode, pdu.flags) = (opcode, flag::FINAL);
        pdu.task_tag = tag.into();
        pdu.target_tag = NO_TAG.into();
        pdu.stat_sn = self.next_stat_sn().into();
        (pdu.exp_cmd_sn, pdu.max_cmd_sn) =
            (self.numbers.exp_cmd_sn.into(), self.max_cmd_sn().into());
        pdu
    }

    /// Sends a REJECT with the header of the current PDU.
    pub(super) fn reject(&mut self, reason: u8) {
        debug_assert!(data_bytes(&self.input.bhs) <= limits::MAX_DATA_SEGMENT_BYTES);
        let mut pdu = self.response(response::REJECT, NO_TAG);
        pdu.code = reason;
        pdu.target_tag = 0.into();
        let bhs = self.input.bhs;
        pdu.data_length = length(bhs.len());
        self.put_header(&pdu);
        self.put_data(&bhs);
    }
}

/// Replaces the opcode of a PDU that the target ignores. No request has this opcode.
const IGNORED: u8 = 0xff;
