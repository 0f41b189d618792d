//! Connect: assigns queues to controllers, or refuses them (NVMe Base Specification 2.0, "Connect
//! Command and Response"). Linux nvmet makes the same checks in the same order.

use super::config::{PortId, SubsystemConfig, SubsystemId};
use super::limits;
use super::namespace::NamespaceTable;
use super::properties::Lifecycle;
use super::registry::Registry;
use super::reservations::{HostId, Rights};
use super::reset::Instance;
use super::state::{Beginning, Controller, Traffic};
use crate::capsule::RemoteForm;
use crate::ids::{ControllerId, NamespaceId, QueueId};
use crate::time::Instant;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::offset_of;
use farblock_wire::fabrics::{
    CATTR_DISABLE_SQ_FLOW, CNTLID_DYNAMIC, ConnectCommand, ConnectData, ConnectInvalidParameter,
    ConnectResult,
};
use farblock_wire::nqn::{DISCOVERY_NQN, parse_field_text};
use farblock_wire::status::Status;

/// A Connect command, its data, and its connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest<'a> {
    /// The submission queue entry. The transport has checked that the entry is a Connect command.
    pub command: &'a ConnectCommand,
    /// The command's data.
    pub data: &'a ConnectData,
    /// The local address of the connection, without port and brackets: printable ASCII. The
    /// discovery log page shows it instead of a listener's wildcard address.
    pub local_address: &'a str,
    /// The listener that accepted the connection, if known.
    pub port: Option<PortId>,
    /// The type of SGL descriptor that the transport uses for data outside capsules.
    pub remote: RemoteForm,
}

/// The kind of commands on a queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QueueKind {
    /// Admin commands, on queue 0.
    Admin,
    /// I/O commands.
    Io,
}

/// A queue after a successful Connect.
#[derive(Clone, Debug)]
pub struct Connected {
    /// The controller that the queue belongs to.
    pub controller: ControllerId,
    /// The controller instance, unique in the registry.
    pub instance: Instance,
    /// The queue's identifier.
    pub queue: QueueId,
    /// The kind of commands on the queue.
    pub kind: QueueKind,
    /// The number of queue entries: SQSIZE + 1. At most `depth - 1` commands are in flight, or
    /// `depth` if the host disabled flow control.
    pub depth: u16,
    /// The subsystem; `None` on a discovery controller.
    pub subsystem: Option<SubsystemId>,
    /// The port through which the controller's admin queue connected. The ANA states of the
    /// namespaces depend on this port; see [`NamespaceTable::seen_from`].
    pub port: Option<PortId>,
    /// The current namespaces; empty on a discovery controller.
    pub namespaces: Arc<NamespaceTable>,
    /// The host's identifier, by which reservations distinguish hosts.
    pub host_id: HostId,
    /// The host's current rights in the namespaces that other hosts have reserved.
    pub restrictions: Vec<(NamespaceId, Rights)>,
    /// Records traffic for the keep-alive timer. The target must mark it whenever commands arrive.
    pub traffic: Arc<Traffic>,
    /// Whether completions report the submission queue's head (CATTR bit 2 is clear). If false,
    /// SQHD is `0xffff`.
    pub flow_control: bool,
    /// The completion's result: the controller identifier. The caller adds the authentication
    /// requirements.
    pub result: u64,
}

impl Connected {
    /// Whether this is a discovery controller's queue.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.subsystem.is_none()
    }
}

/// The content of the completion of a Connect command that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The completion's status.
    pub status: Status,
    /// The completion's result. With Connect Invalid Parameters, it is the position of the invalid
    /// parameter.
    pub result: u64,
}

impl Refusal {
    fn plain(status: Status) -> Self {
        Self { status, result: 0 }
    }

    fn at(status: Status, parameter: ConnectInvalidParameter) -> Self {
        Self { status, result: parameter.emit() }
    }

    /// Refuses an invalid parameter in the submission queue entry.
    pub(crate) fn in_command(offset: usize) -> Self {
        let parameter = ConnectInvalidParameter::in_command(offset);
        Self::at(Status::CONNECT_INVALID_PARAMETERS.with_dnr(), parameter)
    }

    /// Refuses an invalid parameter in the data.
    pub(crate) fn in_data(offset: usize) -> Self {
        let parameter = ConnectInvalidParameter::in_data(offset);
        Self::at(Status::CONNECT_INVALID_PARAMETERS.with_dnr(), parameter)
    }
}

/// The two names in a Connect command's data.
struct Names<'a> {
    subsystem: &'a str,
    host: &'a str,
}

impl<'a> Names<'a> {
    fn parse(data: &'a ConnectData) -> Result<Self, Refusal> {
        // Some hosts have names that are not NQNs, so check only that the name is text.
        let subsystem = parse_field_text(&data.subnqn)
            .map_err(|_| Refusal::in_data(offset_of!(ConnectData, subnqn)))?;
        let host = parse_field_text(&data.hostnqn)
            .map_err(|_| Refusal::in_data(offset_of!(ConnectData, hostnqn)))?;
        Ok(Self { subsystem, host })
    }
}

impl Registry {
    /// Connects a queue: an admin queue to a new controller, an I/O queue to an existing
    /// controller.
    ///
    /// # Errors
    /// Returns the content of the completion if the controller refuses the queue.
    pub fn connect(
        &mut self,
        request: &ConnectRequest<'_>,
        now: Instant,
    ) -> Result<Connected, Refusal> {
        if request.command.recfmt.get() != 0 {
            let parameter = ConnectInvalidParameter::in_command(offset_of!(ConnectCommand, recfmt));
            let status = Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr();
            return Err(Refusal::at(status, parameter));
        }
        match QueueId(request.command.qid.get()) {
            QueueId(0) => self.connect_admin(request, now),
            queue => self.connect_io(request, queue),
        }
    }

    fn connect_admin(
        &mut self,
        request: &ConnectRequest<'_>,
        now: Instant,
    ) -> Result<Connected, Refusal> {
        let (command, data) = (request.command, request.data);
        if data.cntlid.get() != CNTLID_DYNAMIC {
            return Err(Refusal::in_data(offset_of!(ConnectData, cntlid)));
        }
        let names = Names::parse(data)?;
        let subsystem = self.named_subsystem(&names)?;
        let depth = queue_depth(command, limits::ADMIN_QUEUE_ENTRIES)?;
        let others = || self.controllers.values().filter(|other| other.is_discovery()).count();
        let too_many = subsystem.is_none() && others() >= limits::MAX_DISCOVERY_CONTROLLERS;
        if too_many || self.controllers.len() >= limits::MAX_CONTROLLERS {
            return Err(Refusal::plain(Status::CONNECT_CONTROLLER_BUSY));
        }
        let id = self
            .unused_controller_id(subsystem)
            .ok_or(Refusal::plain(Status::CONNECT_CONTROLLER_BUSY))?;
        let beginning = Beginning {
            id,
            instance: self.next_instance(),
            subsystem,
            host_nqn: names.host,
            host_id: data.hostid,
            local_address: request.local_address,
            port: request.port,
            remote: request.remote,
            keep_alive_ms: command.kato.get(),
            soonest: &self.soonest,
            admin_depth: depth,
        };
        let controller = Controller::new(&beginning, now);
        let connected = self.connected(&controller, command, depth);
        self.controllers.insert(id, controller);
        Ok(connected)
    }

    fn connect_io(
        &mut self,
        request: &ConnectRequest<'_>,
        queue: QueueId,
    ) -> Result<Connected, Refusal> {
        let (command, data) = (request.command, request.data);
        let names = Names::parse(data)?;
        let subsystem = self.named_subsystem(&names)?;
        let controller = self
            .controllers
            .get(&ControllerId(data.cntlid.get()))
            .filter(|controller| controller.subsystem == subsystem)
            .ok_or(Refusal::in_data(offset_of!(ConnectData, cntlid)))?;
        if controller.host_nqn != names.host {
            return Err(Refusal::in_data(offset_of!(ConnectData, hostnqn)));
        }
        if controller.host_id != data.hostid {
            return Err(Refusal::in_data(offset_of!(ConnectData, hostid)));
        }
        let config = subsystem.and_then(|id| self.subsystem(id));
        let granted = config.map_or(0, |config| granted_queues(controller, config));
        if queue.0 > granted {
            return Err(Refusal::in_command(offset_of!(ConnectCommand, qid)));
        }
        if controller.lifecycle != Lifecycle::Ready || controller.queues.contains_key(&queue) {
            return Err(Refusal::plain(Status::COMMAND_SEQUENCE_ERROR.with_dnr()));
        }
        let depth = queue_depth(command, config.map_or(0, |config| config.max_queue_depth))?;
        let connected = self.connected(controller, command, depth);
        let controller = self.controllers.get_mut(&connected.controller);
        controller.expect("the lookup above found the controller").queues.insert(queue, depth);
        Ok(connected)
    }

    /// Returns the subsystem that the host requests, if the host may use it; `None` for discovery.
    fn named_subsystem(&self, names: &Names<'_>) -> Result<Option<SubsystemId>, Refusal> {
        if names.subsystem == DISCOVERY_NQN {
            return Ok(None);
        }
        let (id, config) = self
            .subsystems()
            .find(|(_, config)| config.nqn == names.subsystem)
            .ok_or(Refusal::in_data(offset_of!(ConnectData, subnqn)))?;
        if !config.allows(names.host) {
            let parameter = ConnectInvalidParameter::in_data(offset_of!(ConnectData, hostnqn));
            return Err(Refusal::at(Status::CONNECT_INVALID_HOST.with_dnr(), parameter));
        }
        Ok(Some(id))
    }

    fn connected(
        &self,
        controller: &Controller,
        command: &ConnectCommand,
        depth: u16,
    ) -> Connected {
        let queue = QueueId(command.qid.get());
        let result = ConnectResult { cntlid: controller.id.0, authreq: 0 };
        Connected {
            controller: controller.id,
            instance: controller.instance,
            queue,
            kind: if queue == QueueId(0) { QueueKind::Admin } else { QueueKind::Io },
            depth,
            subsystem: controller.subsystem,
            port: controller.port,
            namespaces: self.table_seen_by(controller).seen_from(controller.port),
            host_id: controller.host_id,
            restrictions: self.restrictions(controller.subsystem, &controller.host_id),
            traffic: controller.keep_alive.traffic().clone(),
            flow_control: command.cattr & CATTR_DISABLE_SQ_FLOW == 0,
            result: result.emit(),
        }
    }
}

/// Returns the number of I/O queues that a controller may have: the number that the target granted,
/// or the subsystem's limit if the host requested no number.
fn granted_queues(controller: &Controller, config: &SubsystemConfig) -> u16 {
    controller.features.granted_queues().unwrap_or(config.max_io_queues)
}

/// Returns the number of entries of the requested queue. Fails if the number is below two or above
/// `max_entries`.
fn queue_depth(command: &ConnectCommand, max_entries: u16) -> Result<u16, Refusal> {
    let sqsize_z = command.sqsize_z.get();
    if sqsize_z == 0 || sqsize_z >= max_entries {
        return Err(Refusal::in_command(offset_of!(ConnectCommand, sqsize_z)));
    }
    Ok(sqsize_z + 1)
}
