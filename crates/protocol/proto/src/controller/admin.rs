//! Executes admin and fabrics commands, and checks the states in which each command is allowed
//! (NVMe Base Specification 2.0, "Admin Command Set", "Fabrics Command Set").

use super::io::data_pointer;
use super::logs::ErrorRecord;
use super::properties::{self, Lifecycle, Properties};
use super::registry::{Action, Registry, Teardown, TeardownReason};
use super::reservations::KeyedCommand;
use super::reset::Instance;
use super::state::Controller;
use crate::ids::{CommandId, ControllerId, NamespaceId, QueueId};
use crate::time::Instant;
use alloc::vec::Vec;
use farblock_wire::IDENTIFY_BYTES;
use farblock_wire::fabrics::{DisconnectCommand, PropertyGetCommand, PropertySetCommand};
use farblock_wire::opcode::{AdminOpcode, FabricsCommandType};
use farblock_wire::sqe::Sqe;
use farblock_wire::status::Status;

/// The next step for an admin or Fabrics command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AdminOutcome {
    /// Complete the command.
    Respond {
        /// The completion's status.
        status: Status,
        /// The completion's result: dwords 0 and 1.
        result: u64,
    },
    /// Push these bytes to the host, then complete the command with success.
    Push {
        /// The data, exactly as long as the host requested.
        bytes: Vec<u8>,
        /// The completion's result: dwords 0 and 1.
        result: u64,
    },
    /// Hold the command until [`Action::Complete`](super::Action::Complete) completes it.
    Pending,
    /// Try to abort the command that the host names, then complete the Abort command with success.
    /// The result is 0 if the target aborted the named command and 1 otherwise ("Abort command").
    Abort {
        /// The I/O queue of the command to abort.
        queue: QueueId,
        /// The command to abort.
        command: CommandId,
    },
    /// Complete the Cross-Controller Reset with success. The result is
    /// [`CrossControllerReset::IMMEDIATE`] if all operations of the instance have ended in every
    /// namespace, and no more can arrive. Otherwise the result is 0, and the host sends the command
    /// again.
    ///
    /// [`CrossControllerReset::IMMEDIATE`]: farblock_wire::reset::CrossControllerReset::IMMEDIATE
    Reset {
        /// The controller instance, which has ended.
        instance: Instance,
    },
    /// Pass the request to [`Registry::reserve`], whose result completes the command.
    Reserve {
        /// The namespace.
        namespace: NamespaceId,
        /// The reservation command.
        request: KeyedCommand,
    },
    /// Complete the command with success, then close the queue's connection ("Disconnect Command").
    Disconnect,
}

impl AdminOutcome {
    /// Completes the command with success and this result.
    pub(super) fn success(result: u64) -> Self {
        Self::Respond { status: Status::SUCCESS, result }
    }

    /// Pushes this data to the host, and completes the command with success.
    pub(super) fn push(bytes: Vec<u8>) -> Self {
        Self::Push { bytes, result: 0 }
    }
}

/// Disconnect: Invalid Queue Type ("Disconnect Command and Response").
const INVALID_QUEUE_TYPE: Status = Status::new(1, 0x85);

impl Registry {
    /// Returns the number of bytes to pull from the host before the caller calls
    /// [`Registry::admin`]. The number is zero for most commands, and for commands that `admin`
    /// will refuse.
    #[must_use]
    pub fn admin_data_bytes(&self, controller: ControllerId, sqe: &Sqe) -> u32 {
        let Some(controller) = self.controllers.get(&controller) else { return 0 };
        let is_ready = !controller.is_discovery() && controller.lifecycle == Lifecycle::Ready;
        if !is_ready || sqe.opcode != AdminOpcode::SET_FEATURES.0 {
            return 0;
        }
        let bytes = super::features::set_data_bytes(sqe);
        if data_pointer(sqe, bytes, controller.remote).is_ok() { bytes } else { 0 }
    }

    /// Executes a command of an admin queue. `data` is the command's data from the host.
    pub fn admin(
        &mut self,
        controller: ControllerId,
        sqe: &Sqe,
        data: &[u8],
        now: Instant,
    ) -> AdminOutcome {
        let outcome = self.dispatch(controller, sqe, data, now);
        self.finish(controller, QueueId(0), sqe, outcome)
    }

    /// Executes a Fabrics command of an I/O queue ([`IoCommand::Fabrics`](super::IoCommand)).
    pub fn fabrics_on_io_queue(
        &mut self,
        controller: ControllerId,
        queue: QueueId,
        sqe: &Sqe,
    ) -> AdminOutcome {
        let outcome = match FabricsCommandType(sqe.fctype()) {
            FabricsCommandType::DISCONNECT => disconnect(sqe),
            FabricsCommandType::CONNECT => Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        };
        self.finish(controller, queue, sqe, outcome)
    }

    /// If the command failed, adds it to the error information log, and returns a response with its
    /// status.
    fn finish(
        &mut self,
        controller: ControllerId,
        queue: QueueId,
        sqe: &Sqe,
        outcome: Result<AdminOutcome, Status>,
    ) -> AdminOutcome {
        outcome.unwrap_or_else(|status| {
            let record = ErrorRecord {
                queue,
                command: CommandId(sqe.cid.get()),
                status,
                namespace: NamespaceId(0),
                lba: None,
            };
            self.record_error(controller, &record);
            AdminOutcome::Respond { status, result: 0 }
        })
    }

    fn dispatch(
        &mut self,
        id: ControllerId,
        sqe: &Sqe,
        data: &[u8],
        now: Instant,
    ) -> Result<AdminOutcome, Status> {
        // The association may have ended before this call, and the registry has then removed the
        // controller.
        let controller = self.controllers.get_mut(&id).ok_or(Status::ABORTED_SQ_DELETION)?;
        controller.keep_alive.traffic().mark();
        if sqe.opcode == AdminOpcode::FABRICS.0 {
            return self.fabrics(id, sqe, now);
        }
        check_flags(sqe)?;
        if controller.lifecycle != Lifecycle::Ready {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        match AdminOpcode(sqe.opcode) {
            AdminOpcode::IDENTIFY => {
                data_pointer(sqe, IDENTIFY_BYTES as u32, controller.remote)?;
                self.identify(id, sqe).map(AdminOutcome::push)
            }
            AdminOpcode::GET_LOG_PAGE => self.log_page(id, sqe).map(AdminOutcome::push),
            AdminOpcode::GET_FEATURES => self.feature(id, sqe, now),
            AdminOpcode::SET_FEATURES => self.set_feature(id, sqe, data, now),
            AdminOpcode::KEEP_ALIVE => keep_alive(controller, now),
            AdminOpcode::ASYNC_EVENT_REQUEST => {
                if !controller.events.hold(CommandId(sqe.cid.get())) {
                    return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr());
                }
                self.with_pending_events.insert(id);
                Ok(AdminOutcome::Pending)
            }
            AdminOpcode::ABORT if !controller.is_discovery() => Ok(self.abort(id, sqe)),
            AdminOpcode::CROSS_CONTROLLER_RESET if !controller.is_discovery() => self
                .cross_controller_reset(id, sqe)
                .map(|instance| AdminOutcome::Reset { instance }),
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    /// Executes a Fabrics command of the admin queue. These commands are allowed in every state.
    fn fabrics(
        &mut self,
        id: ControllerId,
        sqe: &Sqe,
        now: Instant,
    ) -> Result<AdminOutcome, Status> {
        match FabricsCommandType(sqe.fctype()) {
            FabricsCommandType::PROPERTY_GET => {
                let value = self.properties(id).read(&PropertyGetCommand::from_sqe(sqe))?;
                Ok(AdminOutcome::success(value))
            }
            FabricsCommandType::PROPERTY_SET => {
                let cc = properties::written_cc(&PropertySetCommand::from_sqe(sqe))?;
                self.write_cc(id, cc, now);
                Ok(AdminOutcome::success(0))
            }
            FabricsCommandType::CONNECT => Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
            FabricsCommandType::DISCONNECT => Err(INVALID_QUEUE_TYPE.with_dnr()),
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    fn properties(&self, id: ControllerId) -> Properties {
        let controller = &self.controllers[&id];
        let config = controller.subsystem.and_then(|id| self.subsystem(id));
        let depth = config.map_or(super::limits::ADMIN_QUEUE_ENTRIES, |c| c.max_queue_depth);
        Properties { cap: properties::cap(depth), cc: controller.cc, csts: controller.csts() }
    }

    fn write_cc(&mut self, id: ControllerId, cc: farblock_wire::property::Cc, now: Instant) {
        let subsystem = self.controllers[&id].subsystem;
        let config = subsystem.and_then(|id| self.subsystem(id));
        let must_flush = config.is_some_and(|config| {
            config.flush_on_shutdown && config.namespaces.values().any(|info| info.volatile_cache)
        });
        let controller =
            self.controllers.get_mut(&id).expect("the caller looked up the controller");
        let before = controller.lifecycle;
        let unanswered = controller.write_cc(cc, must_flush, now);
        let after = controller.lifecycle;
        let queues: Vec<_> = controller.io_queues().collect();
        // A reset or a shutdown ends held event requests without a response, because some hosts
        // treat a response as a protocol error. Linux and SPDK behave in the same way. The
        // transport still frees the slots of these requests, because the admin queue stays
        // connected.
        for command in unanswered {
            self.act(Action::Forget { controller: id, command });
        }
        if before == Lifecycle::Ready && after != Lifecycle::Ready && !queues.is_empty() {
            let reason = TeardownReason::Disabled;
            self.act(Action::Close(Teardown { controller: id, queues, reason }));
        }
        if let (Lifecycle::ShuttingDown, Some(subsystem)) = (after, subsystem)
            && before != after
        {
            self.act(Action::Flush { controller: id, subsystem });
        }
    }

    /// Executes Abort ("Abort command"). On the admin queue, only Asynchronous Event Requests can
    /// be aborted: all other commands complete when they arrive.
    fn abort(&mut self, id: ControllerId, sqe: &Sqe) -> AdminOutcome {
        const NOT_ABORTED: u64 = 1;
        let queue = QueueId(sqe.cdw10.get() as u16);
        let command = CommandId((sqe.cdw10.get() >> 16) as u16);
        let controller =
            self.controllers.get_mut(&id).expect("the caller looked up the controller");
        if queue != QueueId(0) && controller.queues.contains_key(&queue) {
            return AdminOutcome::Abort { queue, command };
        }
        if queue == QueueId(0) && controller.events.abort(command) {
            let (controller, status) = (id, Status::ABORT_REQUESTED);
            self.act(Action::Complete { controller, command, status, result: 0 });
            return AdminOutcome::success(0);
        }
        AdminOutcome::success(NOT_ABORTED)
    }
}

/// Checks that a command is not fused and uses SGLs ("Common Command Format"). The command must not
/// be a Fabrics command.
pub(super) fn check_flags(sqe: &Sqe) -> Result<(), Status> {
    match sqe.fuse() {
        0 => check_pointer(sqe),
        _ => Err(Status::INVALID_FIELD.with_dnr()),
    }
}

/// Checks that the command describes its data with an SGL.
pub(super) fn check_pointer(sqe: &Sqe) -> Result<(), Status> {
    match sqe.psdt() {
        1 | 2 => Ok(()),
        _ => Err(Status::INVALID_FIELD.with_dnr()),
    }
}

fn keep_alive(controller: &mut Controller, now: Instant) -> Result<AdminOutcome, Status> {
    if controller.keep_alive.deadline().is_none() {
        return Err(Status::KEEP_ALIVE_INVALID.with_dnr());
    }
    controller.keep_alive.restart(now);
    Ok(AdminOutcome::success(0))
}

fn disconnect(sqe: &Sqe) -> Result<AdminOutcome, Status> {
    if DisconnectCommand::from_sqe(sqe).recfmt.get() != 0 {
        return Err(Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr());
    }
    Ok(AdminOutcome::Disconnect)
}
