//! A cluster agent on a node: it executes the orders to register its node, to reserve the namespace
//! and to fence other nodes. It uses its own connections, which faults also break, and retries each
//! order until it knows the result.

use super::super::server::NQN;
use farblock_proto::tcp::host_end::{Event, HostEnd, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_reactor::os::{self, Socket};
use farblock_wire::fabrics::{ConnectCommand, ConnectData, PropertySetCommand, PropertySize};
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::property::offset;
use farblock_wire::reservation::{
    AcquireAction, REPORT_EXTENDED, RegisterAction, Registrant, ReservationControl,
    ReservationStatus, ReservationType,
};
use farblock_wire::{IntoBytes, SglDescriptor, Sqe, Status};
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// The agent waits at most this long for an answer. Then it drops the connection and tries again.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// A time longer than any delay of data that was sent on a lost connection.
pub(super) const STRAY_TIME: Duration = Duration::from_secs(10);
const REPORT_BYTES: u32 = 1024;

#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) hostid: [u8; 16],
    pub(super) hostnqn: String,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// Register the node with this key.
    Register(u64),
    /// Reserve the namespace with this type.
    Acquire(ReservationType),
    /// Preempt the node with this key. If that node held the reservation, this node gets it.
    Fence { victim: u64, rtype: ReservationType, abort: bool },
}

/// The result of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// The order succeeded, and the agent noticed this at this time.
    Done(Instant),
    /// Another node has fenced this one.
    Fenced,
}

/// The agent of a node; see the [module](self). Dropping this ends the agent.
pub(super) struct Agent {
    orders: Sender<Order>,
    outcomes: Receiver<Outcome>,
}

impl Agent {
    pub(super) fn start(identity: Identity, addresses: Vec<SocketAddr>, persist: bool) -> Agent {
        let (orders, given) = channel();
        let (answers, outcomes) = channel();
        let name = format!("agent of {}", identity.hostnqn);
        let mut worker = Worker {
            identity,
            addresses,
            persist,
            tries: 0,
            key: 0,
            queues: None,
            was_lost: false,
        };
        let body = move || {
            while let Ok(order) = os::recv(&given) {
                let outcome = worker.carry_out(order);
                if answers.send(outcome).is_err() {
                    return;
                }
            }
        };
        os::spawn(name, body).expect("a thread");
        Agent { orders, outcomes }
    }

    pub(super) fn order(&self, order: Order) {
        self.orders.send(order).expect("the agent receives orders until it is dropped");
    }

    /// Returns the result of the order once; `None` until the result is known.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.outcomes.try_recv().ok()
    }
}

struct Worker {
    identity: Identity,
    addresses: Vec<SocketAddr>,
    persist: bool,
    tries: usize,
    /// The registered key of the node.
    key: u64,
    /// The queues of the agent's controller: the admin queue, and a queue for reservation commands.
    queues: Option<(Queue, Queue)>,
    /// Whether a lost connection may still deliver a command of the current order to the target.
    was_lost: bool,
}

/// The reservation of a namespace, as a report describes it.
struct Report {
    rtype: ReservationType,
    /// The registered keys, and for each whether it holds the reservation.
    registrants: Vec<(u64, bool)>,
}

impl Worker {
    fn carry_out(&mut self, order: Order) -> Outcome {
        self.was_lost = false;
        loop {
            match self.attempt(order) {
                Ok(Some(outcome)) => {
                    if let (Order::Register(_), true) = (order, self.was_lost) {
                        // Without this wait, a late command could undo the fence of another node.
                        os::sleep(STRAY_TIME);
                    }
                    return outcome;
                }
                Ok(None) => {}
                Err(_) => {
                    self.was_lost = true;
                    self.queues = None;
                }
            }
            os::sleep(PAUSE);
        }
    }

    /// Attempts an order. Returns the result, or `None` if the result is unknown.
    fn attempt(&mut self, order: Order) -> io::Result<Option<Outcome>> {
        let control = ReservationControl::default();
        let (opcode, control, keys) = match order {
            Order::Register(key) => {
                self.key = key;
                let cptpl = if self.persist { ReservationControl::CPTPL_SET } else { 0 };
                let control = control.with_action(RegisterAction::REGISTER.0).with_cptpl(cptpl);
                (NvmOpcode::RESERVATION_REGISTER, control, [0, key])
            }
            Order::Acquire(rtype) => {
                let control = control.with_action(AcquireAction::ACQUIRE.0).with_rtype(rtype.0);
                (NvmOpcode::RESERVATION_ACQUIRE, control, [self.key, 0])
            }
            Order::Fence { victim, rtype, abort } => {
                let action =
                    if abort { AcquireAction::PREEMPT_ABORT } else { AcquireAction::PREEMPT };
                let control = control.with_action(action.0).with_rtype(rtype.0);
                (NvmOpcode::RESERVATION_ACQUIRE, control, [self.key, victim])
            }
        };
        let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        let sqe = Sqe { cdw10: control.0.into(), ..Sqe::new(opcode.0, 0, 1) };
        let (status, _) = self.io()?.run(sqe, Transfer::InCapsule(data.len() as u32), &data)?;
        match Status(status.code()) {
            Status::SUCCESS => Ok(Some(Outcome::Done(os::now()))),
            Status::RESERVATION_CONFLICT => self.look(order),
            // The result is unknown. For example, the target could not store the reservation.
            _ => Ok(None),
        }
    }

    /// Finds out from a report, after a reservation conflict, whether an earlier command took
    /// effect.
    fn look(&mut self, order: Order) -> io::Result<Option<Outcome>> {
        let Report { rtype, registrants } = self.report()?;
        let own = registrants.iter().find(|(key, _)| *key == self.key);
        let Some((_, holds)) = own else { return Ok(Some(Outcome::Fenced)) };
        let is_done = match order {
            Order::Register(_) => true,
            Order::Acquire(wanted) => *holds && rtype == wanted,
            Order::Fence { victim, .. } => registrants.iter().all(|(key, _)| *key != victim),
        };
        Ok(is_done.then(|| Outcome::Done(os::now())))
    }

    fn report(&mut self) -> io::Result<Report> {
        let sqe = Sqe {
            cdw10: (REPORT_BYTES / 4 - 1).into(),
            cdw11: REPORT_EXTENDED.into(),
            dptr: SglDescriptor::transport(REPORT_BYTES),
            ..Sqe::new(NvmOpcode::RESERVATION_REPORT.0, 0, 1)
        };
        let (status, page) = self.io()?.run(sqe, Transfer::FromController(REPORT_BYTES), &[])?;
        if status != Status::SUCCESS {
            return Err(ErrorKind::Other.into());
        }
        let head = ReservationStatus::parse(&page).expect("enough bytes");
        let entries = page[ReservationStatus::LEN..].chunks(Registrant::LEN);
        let registrants = entries.take(head.regctl.get().into()).map(|entry| {
            let entry = Registrant::parse(entry).expect("the chunk has the size of an entry");
            (entry.rkey.get(), entry.rcsts & Registrant::RCSTS_HOLDS != 0)
        });
        let registrants = registrants.collect();
        Ok(Report { rtype: ReservationType(head.rtype), registrants })
    }

    fn io(&mut self) -> io::Result<&mut Queue> {
        if self.queues.is_none() {
            let address = self.addresses[self.tries % self.addresses.len()];
            self.tries += 1;
            self.queues = Some(self.connect(address)?);
        }
        Ok(&mut self.queues.as_mut().expect("the queue was opened above").1)
    }

    fn connect(&self, address: SocketAddr) -> io::Result<(Queue, Queue)> {
        let mut admin = Queue::new(address)?;
        let controller = self.join(&mut admin, 0, 0xffff)?;
        // The controller configuration: enabled, with entries of 64 and 16 bytes.
        let configuration = 1 | 6 << 16 | 4 << 20;
        let size = PropertySize::Four;
        let set = PropertySetCommand::new(0, offset::CC, size, configuration).to_sqe();
        admin.succeed(set, Transfer::None, &[])?;
        let mut io = Queue::new(address)?;
        self.join(&mut io, 1, controller)?;
        Ok((admin, io))
    }

    fn join(&self, queue: &mut Queue, number: u16, controller: u16) -> io::Result<u16> {
        let Identity { hostid, hostnqn } = &self.identity;
        let data = ConnectData::new(*hostid, controller, NQN, hostnqn);
        let sqe = ConnectCommand::new(0, number, 31, 0).to_sqe();
        let sqe = Sqe { dptr: SglDescriptor::in_capsule(0, 1024), ..sqe };
        let result = queue.succeed(sqe, Transfer::InCapsule(1024), data.as_bytes())?;
        Ok(result as u16)
    }
}

/// A queue pair with at most one command in flight.
struct Queue {
    socket: Socket,
    end: HostEnd,
    pending: Vec<u8>,
}

impl Queue {
    fn new(address: SocketAddr) -> io::Result<Queue> {
        let socket = Socket::connect_timeout(&address, TIMEOUT)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        let end = HostEnd::new(Digests::NONE, 32);
        let mut queue = Queue { socket, end, pending: Vec::new() };
        let mut out = Vec::new();
        queue.end.start(&mut out);
        queue.socket.write_all(&out)?;
        queue.hear(|event| matches!(event, Event::Initialized).then_some(()))?;
        Ok(queue)
    }

    /// Like [`Queue::run`], but returns an error unless the command succeeded. Returns the result
    /// value.
    fn succeed(&mut self, sqe: Sqe, transfer: Transfer, data: &[u8]) -> io::Result<u64> {
        self.submit(sqe, transfer, data)?;
        let completed = |event: &Event| match event {
            Event::Completed { cqe, .. } => Some(*cqe),
            _ => None,
        };
        let cqe = self.hear(completed)?;
        match cqe.status() {
            Status::SUCCESS => Ok(cqe.result()),
            // Any other status is an error. For example, the previous controller still exists.
            _ => Err(ErrorKind::Other.into()),
        }
    }

    /// Sends a command, and waits for its answer. Returns the status and the data.
    fn run(&mut self, sqe: Sqe, transfer: Transfer, data: &[u8]) -> io::Result<(Status, Vec<u8>)> {
        self.submit(sqe, transfer, data)?;
        let length = if let Transfer::FromController(length) = transfer { length } else { 0 };
        let mut read = vec![0; length as usize];
        let status = self.hear(|event| match event {
            Event::Data { offset, bytes, .. } => {
                read[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
                None
            }
            Event::Completed { cqe, .. } => Some(cqe.status()),
            _ => None,
        })?;
        Ok((status, read))
    }

    fn submit(&mut self, sqe: Sqe, transfer: Transfer, data: &[u8]) -> io::Result<()> {
        let sqe = match transfer {
            Transfer::InCapsule(bytes) => Sqe { dptr: SglDescriptor::in_capsule(0, bytes), ..sqe },
            _ => sqe,
        };
        let mut out = Vec::new();
        self.end.submit(SlotId(0), &sqe, transfer, &mut out);
        out.extend_from_slice(data);
        self.socket.write_all(&out)
    }

    fn hear<T>(&mut self, mut pick: impl FnMut(&Event) -> Option<T>) -> io::Result<T> {
        loop {
            let pending = std::mem::take(&mut self.pending);
            let mut input = &pending[..];
            while let Some(event) = self.end.next(&mut input).map_err(|_| ErrorKind::InvalidData)? {
                if let Some(picked) = pick(&event) {
                    self.pending = input.to_vec();
                    return Ok(picked);
                }
            }
            self.pending = input.to_vec();
            let mut bytes = [0; 4096];
            match self.socket.read(&mut bytes)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.pending.extend_from_slice(&bytes[..count]),
            }
        }
    }
}
