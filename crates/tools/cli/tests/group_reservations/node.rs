//! A host with a connection to each member.

use crate::group::Group;
use crate::scripted::{BLOCK, Queue, blocks, connect_data};
use farblock_proto::tcp::host_end::{Event, HostEnd, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_wire::fabrics::{ConnectCommand, ConnectData, PropertySetCommand, PropertySize};
use farblock_wire::log::LogPageId;
use farblock_wire::opcode::{AdminOpcode, NvmOpcode};
use farblock_wire::property::offset;
use farblock_wire::reservation::{
    AcquireAction, REPORT_EXTENDED, RegisterAction, Registrant, ReleaseAction, ReservationControl,
    ReservationStatus, ReservationType,
};
use farblock_wire::{IntoBytes, SglDescriptor, Sqe, Status};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The queues of a controller.
struct Link {
    admin: Queue,
    io: Queue,
}

impl Link {
    /// Writes a number to a block; `None`: the connection closed first.
    fn write(&mut self, lba: u64, number: u64) -> Option<Status> {
        let data: Vec<u8> = number.to_le_bytes().repeat(BLOCK / 8);
        let length = data.len() as u32;
        let sqe = blocks(NvmOpcode::WRITE.0, lba, 1, SglDescriptor::in_capsule(0, length));
        Some(self.io.try_run(sqe, Transfer::InCapsule(length), &data)?.status)
    }
}

pub(crate) struct Node {
    hostid: [u8; 16],
    pub(crate) key: u64,
    addresses: Vec<SocketAddr>,
    links: Vec<Option<Link>>,
}

/// Opens a queue pair; `None`: no target listens.
fn open(address: SocketAddr) -> Option<Queue> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    stream.set_nodelay(true).ok()?;
    let end = HostEnd::new(Digests::NONE, 64);
    let mut out = Vec::new();
    end.start(&mut out);
    stream.write_all(&out).ok()?;
    let mut queue = Queue { stream, end, pending: Vec::new(), told: Vec::new() };
    loop {
        if !queue.receive() {
            return None;
        }
        let mut input = &queue.pending[..];
        if let Some(Event::Initialized) = queue.end.next(&mut input).expect("the PDU is valid") {
            queue.pending.clear();
            return Some(queue);
        }
    }
}

fn link(address: SocketAddr, hostid: [u8; 16]) -> Option<Link> {
    let connect = |queue: &mut Queue, command: ConnectCommand, controller: u16| {
        let sqe = Sqe { dptr: SglDescriptor::in_capsule(0, 1024), ..command.to_sqe() };
        let data = ConnectData { hostid, ..connect_data(controller) };
        let answer = queue.try_run(sqe, Transfer::InCapsule(1024), data.as_bytes())?;
        answer.status.is_success().then_some(answer.result as u16)
    };
    let mut admin = open(address)?;
    let controller = connect(&mut admin, ConnectCommand::new(0, 0, 31, 0), 0xffff)?;
    let enabled = 1 | 6 << 16 | 4 << 20;
    let set = PropertySetCommand::new(0, offset::CC, PropertySize::Four, enabled).to_sqe();
    admin.try_run(set, Transfer::None, &[])?.status.is_success().then_some(())?;
    let mut io = open(address)?;
    connect(&mut io, ConnectCommand::new(0, 1, 63, 0), controller)?;
    Some(Link { admin, io })
}

fn keyed(opcode: NvmOpcode, control: ReservationControl, keys: &[u64]) -> (Sqe, Vec<u8>) {
    let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let dptr = SglDescriptor::in_capsule(0, data.len() as u32);
    (Sqe { cdw10: control.0.into(), dptr, ..Sqe::new(opcode.0, 0, 1) }, data)
}

fn registers() -> ReservationControl {
    ReservationControl::default()
        .with_action(RegisterAction::REPLACE.0)
        .with_iekey(true)
        .with_cptpl(ReservationControl::CPTPL_SET)
}

impl Node {
    pub(crate) fn new(number: u8, group: &Group) -> Self {
        let addresses = group.addresses.clone();
        let key = u64::from(number) << 32 | 1;
        Self { hostid: [number; 16], key, addresses, links: vec![None, None] }
    }

    /// Connects to a member, unless there is a connection. Returns whether there is one.
    pub(crate) fn connect(&mut self, member: usize) -> bool {
        if self.links[member].is_none() {
            self.links[member] = link(self.addresses[member], self.hostid);
        }
        self.links[member].is_some()
    }

    /// Calls `run` with the queues to a member. Connects again if the connection has closed.
    fn with<T>(&mut self, member: usize, mut run: impl FnMut(&mut Link) -> Option<T>) -> T {
        let mut answer = None;
        crate::support::until("an answer", || {
            answer = if self.connect(member) {
                run(self.links[member].as_mut().expect("the member is connected"))
            } else {
                None
            };
            if answer.is_none() {
                self.links[member] = None;
            }
            answer.is_some()
        });
        answer.expect("`until` waited for the answer")
    }

    fn send(
        &mut self,
        member: usize,
        opcode: NvmOpcode,
        control: ReservationControl,
        keys: &[u64],
    ) -> Status {
        let (sqe, data) = keyed(opcode, control, keys);
        self.with(member, |link| {
            let answer = link.io.try_run(sqe, Transfer::InCapsule(data.len() as u32), &data)?;
            Some(answer.status)
        })
    }

    /// Registers the key persistently, and replaces an earlier one.
    pub(crate) fn register(&mut self, member: usize) -> Status {
        let key = self.key;
        self.send(member, NvmOpcode::RESERVATION_REGISTER, registers(), &[0, key])
    }

    /// Registers a key, if the host has no other one.
    pub(crate) fn register_as(&mut self, member: usize, key: u64) -> Status {
        let control = ReservationControl::default().with_action(RegisterAction::REGISTER.0);
        self.send(member, NvmOpcode::RESERVATION_REGISTER, control, &[0, key])
    }

    pub(crate) fn unregister(&mut self, member: usize) -> Status {
        let control = ReservationControl::default()
            .with_action(RegisterAction::UNREGISTER.0)
            .with_iekey(true);
        self.send(member, NvmOpcode::RESERVATION_REGISTER, control, &[0, 0])
    }

    pub(crate) fn acquire(&mut self, member: usize, rtype: ReservationType) -> Status {
        let control =
            ReservationControl::default().with_action(AcquireAction::ACQUIRE.0).with_rtype(rtype.0);
        let key = self.key;
        self.send(member, NvmOpcode::RESERVATION_ACQUIRE, control, &[key, 0])
    }

    /// Preempts the registrants with key `other`, and aborts their commands.
    pub(crate) fn preempt(&mut self, member: usize, other: u64, rtype: ReservationType) -> Status {
        let control = ReservationControl::default()
            .with_action(AcquireAction::PREEMPT_ABORT.0)
            .with_rtype(rtype.0);
        let key = self.key;
        self.send(member, NvmOpcode::RESERVATION_ACQUIRE, control, &[key, other])
    }

    pub(crate) fn release(&mut self, member: usize, rtype: ReservationType) -> Status {
        let control =
            ReservationControl::default().with_action(ReleaseAction::RELEASE.0).with_rtype(rtype.0);
        let key = self.key;
        self.send(member, NvmOpcode::RESERVATION_RELEASE, control, &[key])
    }

    pub(crate) fn clear(&mut self, member: usize) -> Status {
        let control = ReservationControl::default().with_action(ReleaseAction::CLEAR.0);
        let key = self.key;
        self.send(member, NvmOpcode::RESERVATION_RELEASE, control, &[key])
    }

    pub(crate) fn report(&mut self, member: usize) -> crate::Seen {
        const LENGTH: u32 = 4096;
        let mut sqe = Sqe::new(NvmOpcode::RESERVATION_REPORT.0, 0, 1);
        sqe.dptr = SglDescriptor::transport(LENGTH);
        sqe.cdw10 = (LENGTH / 4 - 1).into();
        sqe.cdw11 = REPORT_EXTENDED.into();
        let transfer = Transfer::FromController(LENGTH);
        let answer = self.with(member, |link| link.io.try_run(sqe, transfer, &[]));
        assert_eq!(answer.status, Status::SUCCESS);
        let head = ReservationStatus::parse(&answer.data).expect("the structure is complete");
        let entries = answer.data[ReservationStatus::LEN..].chunks(Registrant::LEN);
        let registrants = entries.take(head.regctl.get().into()).map(|entry| {
            let entry = Registrant::parse(entry).expect("the entry is complete");
            (entry.rkey.get(), entry.rcsts & Registrant::RCSTS_HOLDS != 0)
        });
        (head.rtype, head.ptpls == 1, registrants.collect())
    }

    /// Sends a registration and does not wait for its answer.
    pub(crate) fn begin_to_register(&mut self, member: usize) {
        let (sqe, data) = keyed(NvmOpcode::RESERVATION_REGISTER, registers(), &[0, self.key]);
        let io = &mut self.links[member].as_mut().expect("the member is connected").io;
        let mut out = Vec::new();
        io.end.submit(SlotId(0), &sqe, Transfer::InCapsule(data.len() as u32), &mut out);
        out.extend(data);
        io.stream.write_all(&out).expect("the bytes are sent");
    }

    /// Whether bytes have arrived on the I/O queue.
    pub(crate) fn has_answer(&mut self, member: usize) -> bool {
        let io = &self.links[member].as_ref().expect("the member is connected").io;
        io.stream.set_nonblocking(true).expect("the socket accepts the option");
        let peeked = io.stream.peek(&mut [0]);
        io.stream.set_nonblocking(false).expect("the socket accepts the option");
        peeked.is_ok()
    }

    /// Waits for the answer to [`Self::begin_to_register`].
    pub(crate) fn wait_for_answer(&mut self, member: usize) -> Status {
        let io = &mut self.links[member].as_mut().expect("the member is connected").io;
        loop {
            assert!(io.receive(), "the member closed the connection");
            let pending = std::mem::take(&mut io.pending);
            let mut input = &pending[..];
            if let Some(Event::Completed { cqe, .. }) =
                io.end.next(&mut input).expect("the PDU is valid")
            {
                return cqe.status();
            }
            io.pending = pending;
        }
    }

    /// Writes a number to the first block.
    pub(crate) fn write(&mut self, member: usize, number: u64) -> Status {
        self.with(member, |link| link.write(0, number))
    }

    /// The optional commands (ONCS) and the reservation capabilities (RESCAP).
    pub(crate) fn identify(&mut self, member: usize) -> (u16, u8) {
        let mut page = |nsid, cns: u32| {
            let mut sqe = Sqe::new(AdminOpcode::IDENTIFY.0, 0, nsid);
            sqe.dptr = SglDescriptor::transport(4096);
            sqe.cdw10 = cns.into();
            let transfer = Transfer::FromController(4096);
            let answer = self.with(member, |link| link.admin.try_run(sqe, transfer, &[]));
            assert_eq!(answer.status, Status::SUCCESS);
            answer.data
        };
        let (controller, namespace) = (page(0, 1), page(1, 0));
        (u16::from_le_bytes([controller[520], controller[521]]), namespace[31])
    }

    pub(crate) fn log(&mut self, member: usize, id: LogPageId) -> Vec<u8> {
        let mut sqe = Sqe::new(AdminOpcode::GET_LOG_PAGE.0, 0, 0);
        sqe.dptr = SglDescriptor::transport(64);
        sqe.cdw10 = (u32::from(id.0) | 15 << 16).into();
        let transfer = Transfer::FromController(64);
        let answer = self.with(member, |link| link.admin.try_run(sqe, transfer, &[]));
        assert_eq!(answer.status, Status::SUCCESS);
        answer.data
    }
}

/// A host that writes a block all the time, through each member that accepts the write.
pub(crate) struct Hammer {
    ends: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    thread: JoinHandle<Node>,
}

impl Hammer {
    pub(crate) fn start(mut node: Node, lba: u64) -> Self {
        let (ends, written) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (until, count) = (Arc::clone(&ends), Arc::clone(&written));
        let thread = std::thread::spawn(move || {
            let mut number = 0;
            while !until.load(Ordering::Relaxed) {
                for member in 0..2 {
                    if !node.connect(member) {
                        continue;
                    }
                    number += 1;
                    let link = node.links[member].as_mut().expect("the member is connected");
                    match link.write(lba, number) {
                        Some(status) if status.is_success() => {
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                        Some(_) => std::thread::sleep(Duration::from_millis(1)),
                        None => node.links[member] = None,
                    }
                }
            }
            node
        });
        Self { ends, written, thread }
    }

    pub(crate) fn wait_for_writes(&self) {
        let before = self.written.load(Ordering::Relaxed);
        crate::support::until("writes", || self.written.load(Ordering::Relaxed) > before + 10);
    }

    pub(crate) fn stop(self) -> Node {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("the host does not fail")
    }
}
