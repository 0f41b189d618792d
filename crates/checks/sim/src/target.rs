//! A target without a network, with a disk in memory. The caller passes the bytes that a host
//! sends, and takes the bytes that the target answers.

use farblock_proto::capsule::{DataPointer, RemoteForm};
use farblock_proto::controller::{
    Action, AddressFamily, AdminOutcome, ConnectRequest, DeallocateRanges, IoCommand, Listener,
    NamespaceInfo, NamespaceTable, PortId, QueueKind, Registry, SubsystemConfig, Teardown,
    data_pointer,
};
use farblock_proto::ids::{CommandId, ControllerId, Lba, NamespaceId, QueueId};
use farblock_proto::limits::IN_CAPSULE_BYTES;
use farblock_proto::tcp::SlotId;
use farblock_proto::tcp::controller_end::{self, ControllerEnd, Event, PushPart};
use farblock_proto::time::Instant;
use farblock_random::Random;
use farblock_wire::fabrics::{ConnectCommand, ConnectData, FabricsCommandType};
use farblock_wire::log::TransportType;
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::{Cqe, Sqe, Status};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The NQN of the subsystem.
pub const NQN: &str = "nqn.2026-11.org.farblock:sim";
/// The size of a block, in bytes.
pub const BLOCK_BYTES: u32 = 512;
/// The number of blocks of the disk.
pub const BLOCKS: u64 = 256;

/// The disk: its contents, and its delays.
pub struct Disk {
    /// The contents of the disk.
    pub bytes: Vec<u8>,
    /// The maximum duration of an operation.
    pub max_delay: Duration,
}

/// The state of a command slot.
#[derive(Clone, Copy)]
enum Work {
    Idle,
    Connect,
    Admin,
    Held,
    Io(IoCommand),
}

struct Request {
    work: Work,
    sqe: Sqe,
    data: Vec<u8>,
}

enum Session {
    None,
    Admin(ControllerId),
    Io(ControllerId, QueueId, Arc<NamespaceTable>),
}

struct Connection {
    end: ControllerEnd,
    session: Session,
    requests: Vec<Request>,
    out: Vec<u8>,
    open: bool,
}

/// An operation on the disk, and when it is due.
struct Operation {
    due: Instant,
    connection: u64,
    slot: SlotId,
    command: IoCommand,
    data: Vec<u8>,
}

/// A target without a network; see the [module](self).
pub struct Target {
    registry: Registry,
    connections: BTreeMap<u64, Connection>,
    operations: VecDeque<Operation>,
    /// The disk.
    pub disk: Disk,
    random: Random,
}

impl Target {
    /// Creates a target with one subsystem, which has one disk.
    #[must_use]
    pub fn new(seed: u64, max_delay: Duration) -> Self {
        let mut config = SubsystemConfig::new(NQN, "SIM0");
        config.allow_any_host = true;
        config.max_queue_depth = 32;
        let mut info = NamespaceInfo::new(BLOCK_BYTES, BLOCKS);
        info.volatile_cache = true;
        info.deallocate = true;
        config.namespaces.insert(NamespaceId(1), info);
        let mut registry = Registry::new();
        registry.add_subsystem(config).expect("a valid configuration");
        registry
            .add_listener(Listener {
                port: PortId(1),
                number: None,
                transport: TransportType::TCP,
                family: AddressFamily::V4,
                address: "127.0.0.1".to_owned(),
                service: "4420".to_owned(),
            })
            .expect("a valid listener");
        Self {
            registry,
            connections: BTreeMap::new(),
            operations: VecDeque::new(),
            disk: Disk { bytes: vec![0; (BLOCKS * u64::from(BLOCK_BYTES)) as usize], max_delay },
            random: Random::new(seed),
        }
    }

    /// Accepts a connection. The caller identifies the connection by `id`.
    pub fn accept(&mut self, id: u64) {
        let connection = Connection {
            end: ControllerEnd::new(controller_end::Config {
                max_h2c_data_bytes: 4096,
                ..controller_end::Config::default()
            }),
            session: Session::None,
            requests: vec![Request::idle()],
            out: Vec::new(),
            open: true,
        };
        self.connections.insert(id, connection);
    }

    /// Whether the connection is open at the target.
    #[must_use]
    pub fn is_open(&self, id: u64) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.open)
    }

    /// The number of live controllers.
    #[must_use]
    pub fn controllers(&self) -> usize {
        self.registry.controllers().count()
    }

    /// Takes the bytes to send on a connection.
    pub fn take_output(&mut self, id: u64) -> Vec<u8> {
        self.connections.get_mut(&id).map(|c| std::mem::take(&mut c.out)).unwrap_or_default()
    }

    /// Handles the loss of a connection.
    pub fn cut(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else { return };
        let queue = match connection.session {
            Session::None => return,
            Session::Admin(controller) => (controller, QueueId(0)),
            Session::Io(controller, queue, _) => (controller, queue),
        };
        let teardown = self.registry.queue_closed(queue.0, queue.1);
        teardown.iter().for_each(|teardown| self.tear_down(teardown));
        self.act();
    }

    /// Handles bytes received on a connection.
    pub fn feed(&mut self, id: u64, mut input: &[u8], now: Instant) {
        loop {
            let Some(connection) = self.connections.get_mut(&id).filter(|c| c.open) else { return };
            let event = match connection.end.next(&mut input, &mut connection.out) {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(fault) => {
                    connection.end.terminate(&fault, &mut connection.out);
                    connection.open = false;
                    return;
                }
            };
            match event {
                Event::Initialized => {}
                Event::Command { slot, sqe } => self.command(id, slot, sqe, now),
                Event::Data { slot, offset, bytes } => {
                    let data = &mut connection.requests[usize::from(slot.0)].data;
                    data[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                Event::Pulled { slot, intact: true } => self.pulled(id, slot, now),
                Event::Pulled { slot, intact: false } => {
                    self.respond(id, slot, Status::TRANSIENT_TRANSPORT_ERROR, 0);
                }
                Event::Terminated { .. } => connection.open = false,
            }
        }
    }

    /// The time of the next scheduled event.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let operation = self.operations.iter().map(|operation| operation.due).min();
        [operation, self.registry.next_deadline()].into_iter().flatten().min()
    }

    /// Handles the events that are due at `now`.
    pub fn tick(&mut self, now: Instant) {
        for teardown in self.registry.tick(now) {
            self.tear_down(&teardown);
        }
        self.act();
        while let Some(index) = self.operations.iter().position(|operation| operation.due <= now) {
            let operation = self.operations.remove(index).expect("found");
            self.execute(operation);
        }
    }

    fn connection(&mut self, id: u64) -> &mut Connection {
        self.connections.get_mut(&id).expect("a connection that sent a command")
    }

    fn respond(&mut self, id: u64, slot: SlotId, status: Status, result: u64) {
        let connection = self.connection(id);
        connection.end.respond(slot, &Cqe::new(0, 0, status, result), &mut connection.out);
        connection.requests[usize::from(slot.0)] = Request::idle();
    }

    fn command(&mut self, id: u64, slot: SlotId, sqe: Sqe, now: Instant) {
        let connection = self.connection(id);
        connection.requests[usize::from(slot.0)] = Request { work: Work::Idle, sqe, data: vec![] };
        match &connection.session {
            Session::None => {
                if sqe.opcode != AdminOpcode::FABRICS.0
                    || sqe.fctype() != FabricsCommandType::CONNECT.0
                {
                    self.respond(id, slot, Status::COMMAND_SEQUENCE_ERROR.with_dnr(), 0);
                    return;
                }
                let length = ConnectData::LEN as u32;
                self.pull(
                    id,
                    slot,
                    Work::Connect,
                    data_pointer(&sqe, length, RemoteForm::Transport),
                );
            }
            &Session::Admin(controller) => match self.registry.admin_data_bytes(controller, &sqe) {
                0 => self.admin(id, slot, now),
                bytes => self.pull(
                    id,
                    slot,
                    Work::Admin,
                    data_pointer(&sqe, bytes, RemoteForm::Transport),
                ),
            },
            Session::Io(controller, queue, table) => {
                match IoCommand::parse(&sqe, table, RemoteForm::Transport) {
                    Ok(IoCommand::Fabrics) => {
                        let (controller, queue) = (*controller, *queue);
                        let outcome = self.registry.fabrics_on_io_queue(controller, queue, &sqe);
                        self.outcome(id, slot, outcome);
                    }
                    Ok(command) => match command.data_from_host() {
                        Some(pointer) => self.pull(id, slot, Work::Io(command), Ok(pointer)),
                        None => self.submit(id, slot, command, now),
                    },
                    Err(status) => self.respond(id, slot, status, 0),
                }
            }
        }
    }

    fn pull(&mut self, id: u64, slot: SlotId, work: Work, pointer: Result<DataPointer, Status>) {
        let connection = self.connection(id);
        let pulled = pointer.and_then(|pointer| {
            connection.end.pull(slot, pointer, &mut connection.out)?;
            let request = &mut connection.requests[usize::from(slot.0)];
            request.work = work;
            request.data = vec![0xa5; pointer.length() as usize];
            Ok(())
        });
        if let Err(status) = pulled {
            self.respond(id, slot, status, 0);
        }
    }

    fn pulled(&mut self, id: u64, slot: SlotId, now: Instant) {
        match self.connection(id).requests[usize::from(slot.0)].work {
            Work::Connect => self.connect(id, slot, now),
            Work::Admin => self.admin(id, slot, now),
            Work::Io(command) => self.submit(id, slot, command, now),
            Work::Idle | Work::Held => unreachable!("only commands that wait for data pull it"),
        }
    }

    fn connect(&mut self, id: u64, slot: SlotId, now: Instant) {
        let request = &self.connections[&id].requests[usize::from(slot.0)];
        let command = ConnectCommand::from_sqe(&request.sqe);
        let data = ConnectData::parse(&request.data).expect("enough bytes for Connect");
        let request = ConnectRequest {
            command: &command,
            data: &data,
            local_address: "127.0.0.1",
            port: None,
            remote: RemoteForm::Transport,
        };
        match self.registry.connect(&request, now) {
            Err(refusal) => self.respond(id, slot, refusal.status, refusal.result),
            Ok(connected) => {
                self.act();
                let connection = self.connection(id);
                connection.end.set_depth(connected.depth);
                connection.end.set_success_flag(!connected.flow_control);
                if connected.kind == QueueKind::Io {
                    connection.end.set_in_capsule_bytes(IN_CAPSULE_BYTES);
                }
                connection.requests.resize_with(usize::from(connected.depth), Request::idle);
                connection.session = match connected.kind {
                    QueueKind::Admin => Session::Admin(connected.controller),
                    QueueKind::Io => {
                        Session::Io(connected.controller, connected.queue, connected.namespaces)
                    }
                };
                self.respond(id, slot, Status::SUCCESS, connected.result);
            }
        }
    }

    fn admin(&mut self, id: u64, slot: SlotId, now: Instant) {
        let connection = &self.connections[&id];
        let Session::Admin(controller) = connection.session else {
            unreachable!("this is an admin queue")
        };
        let request = &connection.requests[usize::from(slot.0)];
        let outcome = self.registry.admin(controller, &request.sqe, &request.data, now);
        self.outcome(id, slot, outcome);
    }

    fn outcome(&mut self, id: u64, slot: SlotId, outcome: AdminOutcome) {
        match outcome {
            AdminOutcome::Respond { status, result } => self.respond(id, slot, status, result),
            AdminOutcome::Push { bytes, result } => self.push(id, slot, &bytes, result),
            AdminOutcome::Pending => {
                self.connection(id).requests[usize::from(slot.0)].work = Work::Held;
            }
            AdminOutcome::Abort { .. } => self.respond(id, slot, Status::SUCCESS, 1),
            AdminOutcome::Reset { .. } => self.respond(id, slot, Status::SUCCESS, 0),
            AdminOutcome::Reserve { .. } => self.respond(id, slot, Status::INVALID_FIELD, 0),
            AdminOutcome::Disconnect => {
                self.respond(id, slot, Status::SUCCESS, 0);
                self.connection(id).open = false;
            }
        }
        self.act();
    }

    fn push(&mut self, id: u64, slot: SlotId, bytes: &[u8], result: u64) {
        let connection = self.connection(id);
        let part = if result == 0 { PushPart::Final } else { PushPart::Last };
        let length = bytes.len() as u32;
        let ended = connection.end.push_header(slot, 0, length, part, &mut connection.out);
        connection.out.extend_from_slice(bytes);
        connection.out.extend(connection.end.data_digest(bytes).into_iter().flatten());
        if ended {
            connection.requests[usize::from(slot.0)] = Request::idle();
        } else {
            self.respond(id, slot, Status::SUCCESS, result);
        }
    }

    fn submit(&mut self, connection: u64, slot: SlotId, command: IoCommand, now: Instant) {
        let delay = self.random.below(self.disk.max_delay.as_nanos() as u64 + 1);
        let due = now.saturating_add(Duration::from_nanos(delay));
        let request = &mut self.connection(connection).requests[usize::from(slot.0)];
        let data = std::mem::take(&mut request.data);
        self.operations.push_back(Operation { due, connection, slot, command, data });
    }

    fn range(lba: Lba, blocks: u32) -> std::ops::Range<usize> {
        let block = u64::from(BLOCK_BYTES);
        (lba.0 * block) as usize..((lba.0 + u64::from(blocks)) * block) as usize
    }

    /// Executes a due operation, even if the connection is closed, like a real disk.
    fn execute(&mut self, operation: Operation) {
        let Operation { connection, slot, command, data, .. } = operation;
        let disk = &mut self.disk.bytes;
        let mut read = None;
        let mut status = Status::SUCCESS;
        match command {
            IoCommand::Read { lba, blocks, .. } => {
                read = Some(disk[Self::range(lba, blocks.0)].to_vec());
            }
            IoCommand::Write { lba, blocks, .. } => {
                disk[Self::range(lba, blocks.0)].copy_from_slice(&data);
            }
            IoCommand::Compare { lba, blocks, .. } => {
                if disk[Self::range(lba, blocks.0)] != data {
                    status = Status::COMPARE_FAILURE.with_dnr();
                }
            }
            IoCommand::WriteZeroes { lba, blocks, .. } => {
                disk[Self::range(lba, blocks.0)].fill(0);
            }
            IoCommand::Deallocate { ranges, .. } => {
                let info = NamespaceInfo::new(BLOCK_BYTES, BLOCKS);
                match DeallocateRanges::parse(&data, ranges, &info) {
                    Ok(ranges) => {
                        ranges.for_each(|(lba, blocks)| disk[Self::range(lba, blocks.0)].fill(0))
                    }
                    Err(error) => status = error,
                }
            }
            IoCommand::Flush { .. } | IoCommand::Verify { .. } | IoCommand::Advise { .. } => {}
            IoCommand::Copy { .. } => status = Status::INVALID_OPCODE.with_dnr(),
            // This target has no reservations. The simulation of the whole product tests them.
            IoCommand::Reserve { .. } => status = Status::INVALID_OPCODE.with_dnr(),
            IoCommand::Fabrics => unreachable!("a fabrics command does no I/O"),
        }
        if !self.is_open(connection) {
            return;
        }
        match read {
            Some(bytes) => self.push(connection, slot, &bytes, 0),
            None => self.respond(connection, slot, status, 0),
        }
    }

    fn tear_down(&mut self, teardown: &Teardown) {
        for connection in self.connections.values_mut() {
            let queue = match &connection.session {
                Session::None => continue,
                Session::Admin(controller) => (*controller, QueueId(0)),
                Session::Io(controller, queue, _) => (*controller, *queue),
            };
            if queue.0 == teardown.controller && teardown.queues.contains(&queue.1) {
                connection.open = false;
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.registry.poll_action() {
            match action {
                Action::Complete { controller, command, status, result } => {
                    self.complete_held(controller, command, status, result);
                }
                Action::Forget { controller, command } => {
                    if let Some((id, slot)) = self.held(controller, command) {
                        let connection = self.connections.get_mut(&id).expect("a connection");
                        connection.requests[usize::from(slot.0)].work = Work::Idle;
                        connection.end.forget(slot);
                    }
                }
                Action::Close(teardown) => self.tear_down(&teardown),
                Action::Namespaces { .. }
                | Action::Flush { .. }
                | Action::SaveReservations { .. }
                | Action::ConsultReservations { .. }
                | Action::ProposeReservations { .. }
                | Action::SharedApplied { .. }
                | Action::Access(_)
                | Action::Reserved { .. } => {}
            }
        }
    }

    fn complete_held(
        &mut self,
        controller: ControllerId,
        command: CommandId,
        status: Status,
        result: u64,
    ) {
        if let Some((id, slot)) = self.held(controller, command) {
            self.respond(id, slot, status, result);
        }
    }

    fn held(&self, controller: ControllerId, command: CommandId) -> Option<(u64, SlotId)> {
        let (&id, connection) = self.connections.iter().find(|(_, connection)| {
            connection.open && matches!(connection.session, Session::Admin(id) if id == controller)
        })?;
        let slot = connection.end.find(command)?;
        let is_held = matches!(connection.requests[usize::from(slot.0)].work, Work::Held);
        is_held.then_some((id, slot))
    }
}

impl Request {
    fn idle() -> Self {
        Self { work: Work::Idle, sqe: Sqe::zeroed(), data: Vec::new() }
    }
}
