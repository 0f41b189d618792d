//! A scripted host: a socket, and the protocol crate's state machine for a host (`HostEnd`).

use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_proto::controller::SubsystemConfig;
use farblock_proto::ids::NamespaceId;
use farblock_proto::tcp::host_end::{Event, HostEnd, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_reactor::EngineKind;
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use farblock_wire::fabrics::{
    ConnectCommand, ConnectData, PropertyGetCommand, PropertySetCommand, PropertySize,
};
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::property::offset;
use farblock_wire::reservation::ReservationControl;
use farblock_wire::{Cqe, IntoBytes, SglDescriptor, Sqe, Status};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const NQN: &str = "nqn.2026-11.org.farblock:test";
pub const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";
pub const BLOCK: usize = 512;
pub const BLOCKS: u64 = 2048;

pub fn target(engine: EngineKind, change: impl FnOnce(&mut SubsystemConfig)) -> Target {
    let disk = Arc::new(Mem::new(BLOCK as u32, BLOCKS * BLOCK as u64).expect("a size"));
    target_of(engine, [disk as Arc<dyn Namespace>], change)
}

/// Starts a target that shares these disks, numbered from 1.
pub fn target_of(
    engine: EngineKind,
    disks: impl IntoIterator<Item = Arc<dyn Namespace>>,
    change: impl FnOnce(&mut SubsystemConfig),
) -> Target {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    change(&mut subsystem.config);
    for (nsid, namespace) in (1..).zip(disks) {
        let export = Export { namespace, identity: format!("disk {nsid}") };
        subsystem.exports.insert(NamespaceId(nsid), export);
    }
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec!["127.0.0.1:0".parse().expect("an address")],
        engine,
        ..TargetConfig::default()
    };
    Target::start(&config).expect("the target starts")
}

/// A queue pair that has one command in flight at a time.
pub struct Queue {
    pub stream: TcpStream,
    pub end: HostEnd,
    pub pending: Vec<u8>,
    /// Completions of slots other than the awaited slot.
    pub told: Vec<Cqe>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: Status,
    pub result: u64,
    pub data: Vec<u8>,
}

impl Queue {
    pub fn new(address: SocketAddr, digests: Digests) -> Self {
        let stream = TcpStream::connect(address).expect("the target listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        let end = HostEnd::new(digests, 64);
        let mut out = Vec::new();
        end.start(&mut out);
        let mut queue = Self { stream, end, pending: Vec::new(), told: Vec::new() };
        queue.stream.write_all(&out).expect("sent");
        queue.wait_initialized();
        queue
    }

    pub fn receive(&mut self) -> bool {
        let mut bytes = [0; 65536];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.pending.extend_from_slice(&bytes[..count]);
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
            // The close of an io_uring in this thread can interrupt the read.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => self.receive(),
            Err(error) => panic!("no answer: {error}"),
        }
    }

    pub fn wait_initialized(&mut self) {
        loop {
            assert!(self.receive(), "the target closed the connection");
            let mut input = &self.pending[..];
            if let Some(Event::Initialized) = self.end.next(&mut input).expect("well formed") {
                self.pending.clear();
                return;
            }
        }
    }

    /// Sends a command and waits for its response.
    pub fn run(&mut self, sqe: Sqe, transfer: Transfer, data: &[u8]) -> Answer {
        self.try_run(sqe, transfer, data).expect("the connection closed before the answer")
    }

    /// Like [`Queue::run`], but returns `None` if the connection closes first.
    pub fn try_run(&mut self, sqe: Sqe, transfer: Transfer, data: &[u8]) -> Option<Answer> {
        let mut out = Vec::new();
        self.end.submit(SlotId(0), &sqe, transfer, &mut out);
        if matches!(transfer, Transfer::InCapsule(_)) {
            out.extend_from_slice(data);
            out.extend(self.end.data_digest(data).into_iter().flatten());
        }
        self.stream.write_all(&out).ok()?;
        let expected = if let Transfer::FromController(length) = transfer { length } else { 0 };
        let mut read = vec![0; expected as usize];
        loop {
            let pending = std::mem::take(&mut self.pending);
            let mut input = &pending[..];
            while let Some(event) = self.end.next(&mut input).expect("well formed") {
                match event {
                    Event::Data { offset, bytes, .. } => {
                        read[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                    }
                    Event::Wanted(mut grant) => {
                        let mut out = Vec::new();
                        while let Some(range) = self.end.data_header(&mut grant, &mut out) {
                            out.extend_from_slice(&data[range.clone()]);
                            let digest = self.end.data_digest(&data[range]);
                            out.extend(digest.into_iter().flatten());
                        }
                        self.stream.write_all(&out).expect("sent");
                    }
                    Event::Completed { slot, cqe, .. } if slot != SlotId(0) => self.told.push(cqe),
                    Event::Completed { cqe, intact, .. } => {
                        assert!(intact);
                        self.pending = input.to_vec();
                        let (status, result) = (cqe.status(), cqe.result());
                        return Some(Answer { status, result, data: read });
                    }
                    other => panic!("{other:?}"),
                }
            }
            if !self.receive() {
                return None;
            }
        }
    }

    /// Waits for `count` successful completions. Returns the number of data bytes that arrived with
    /// them.
    pub fn completions(&mut self, count: usize) -> usize {
        let (mut completed, mut brought) = (0, 0);
        while completed < count {
            assert!(self.receive(), "the connection closed before the answers");
            let pending = std::mem::take(&mut self.pending);
            let mut input = &pending[..];
            while let Some(event) = self.end.next(&mut input).expect("well formed") {
                match event {
                    Event::Data { bytes, .. } => brought += bytes.len(),
                    Event::Completed { cqe, .. } => {
                        assert_eq!(cqe.status(), Status::SUCCESS);
                        completed += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        brought
    }

    pub fn connect(&mut self, command: ConnectCommand, data: ConnectData) -> Answer {
        let sqe = Sqe { dptr: SglDescriptor::in_capsule(0, 1024), ..command.to_sqe() };
        self.run(sqe, Transfer::InCapsule(1024), data.as_bytes())
    }

    pub fn property(&mut self, ofst: u32) -> u64 {
        let size = if ofst == offset::CAP { PropertySize::Eight } else { PropertySize::Four };
        let answer = self.run(PropertyGetCommand::new(0, ofst, size).to_sqe(), Transfer::None, &[]);
        assert_eq!(answer.status, Status::SUCCESS);
        answer.result
    }

    /// Waits until the target closes the connection, possibly after more output. Returns true.
    pub fn is_closed(&mut self) -> bool {
        while self.receive() {}
        true
    }
}

/// The host identifier for tests that need only one host.
const HOST_ID: [u8; 16] = [7; 16];

pub fn connect_data(cntlid: u16) -> ConnectData {
    ConnectData::new(HOST_ID, cntlid, NQN, HOST_NQN)
}

/// Connects and enables a controller. Returns its admin queue and its controller identifier.
pub fn admin(address: SocketAddr, digests: Digests) -> (Queue, u16) {
    admin_of(HOST_ID, address, digests)
}

/// Like [`admin`], for the host with this host identifier.
pub fn admin_of(hostid: [u8; 16], address: SocketAddr, digests: Digests) -> (Queue, u16) {
    let mut queue = Queue::new(address, digests);
    let data = ConnectData { hostid, ..connect_data(0xffff) };
    let answer = queue.connect(ConnectCommand::new(0, 0, 31, 0), data);
    assert_eq!(answer.status, Status::SUCCESS);
    let cc = 1 | 6 << 16 | 4 << 20;
    let set = PropertySetCommand::new(0, offset::CC, PropertySize::Four, cc).to_sqe();
    assert_eq!(queue.run(set, Transfer::None, &[]).status, Status::SUCCESS);
    assert_eq!(queue.property(offset::CSTS) & 1, 1);
    (queue, answer.result as u16)
}

pub fn io(address: SocketAddr, digests: Digests, controller: u16, flow_control: bool) -> Queue {
    io_of(HOST_ID, address, digests, controller, flow_control)
}

/// Like `io`, for the host with this host identifier.
pub fn io_of(
    hostid: [u8; 16],
    address: SocketAddr,
    digests: Digests,
    controller: u16,
    flow_control: bool,
) -> Queue {
    let mut queue = Queue::new(address, digests);
    let mut command = ConnectCommand::new(0, 1, 63, 0);
    command.cattr = if flow_control { 0 } else { 4 };
    let answer = queue.connect(command, ConnectData { hostid, ..connect_data(controller) });
    assert_eq!(answer.status, Status::SUCCESS);
    queue
}

pub fn blocks(opcode: u8, lba: u64, count: u32, dptr: SglDescriptor) -> Sqe {
    let mut sqe = Sqe { dptr, ..Sqe::new(opcode, 0, 1) };
    sqe.cdw10 = (lba as u32).into();
    sqe.cdw11 = ((lba >> 32) as u32).into();
    sqe.cdw12 = (count - 1).into();
    sqe
}

pub fn write(queue: &mut Queue, lba: u64, data: &[u8], in_capsule: bool) -> Status {
    let length = data.len() as u32;
    let (dptr, transfer) = if in_capsule {
        (SglDescriptor::in_capsule(0, length), Transfer::InCapsule(length))
    } else {
        (SglDescriptor::transport(length), Transfer::ToController(length))
    };
    queue.run(blocks(1, lba, length / BLOCK as u32, dptr), transfer, data).status
}

/// Sends a fused Compare and Write of one block. Returns their statuses.
pub fn fused(queue: &mut Queue, lba: u64, old: &[u8], new: &[u8]) -> [Status; 2] {
    let mut out = Vec::new();
    let length = BLOCK as u32;
    for (slot, opcode, data) in [(0, NvmOpcode::COMPARE, old), (1, NvmOpcode::WRITE, new)] {
        let mut sqe = blocks(opcode.0, lba, 1, SglDescriptor::in_capsule(0, length));
        sqe.flags |= slot as u8 + 1;
        queue.end.submit(SlotId(slot), &sqe, Transfer::InCapsule(length), &mut out);
        out.extend_from_slice(data);
        out.extend(queue.end.data_digest(data).into_iter().flatten());
    }
    queue.stream.write_all(&out).expect("sent");
    let mut statuses = [None; 2];
    while statuses.contains(&None) {
        assert!(queue.receive(), "the connection closed before the answers");
        let pending = std::mem::take(&mut queue.pending);
        let mut input = &pending[..];
        while let Some(event) = queue.end.next(&mut input).expect("well formed") {
            let Event::Completed { slot, cqe, .. } = event else { panic!("{event:?}") };
            statuses[usize::from(slot.0)] = Some(cqe.status());
        }
    }
    statuses.map(|status| status.expect("every status"))
}

/// Sends a reservation command with its keys. Returns its status.
pub fn reservation(
    queue: &mut Queue,
    opcode: NvmOpcode,
    control: ReservationControl,
    keys: &[u64],
) -> Status {
    let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let length = data.len() as u32;
    let dptr = SglDescriptor::in_capsule(0, length);
    let sqe = Sqe { cdw10: control.0.into(), dptr, ..Sqe::new(opcode.0, 0, 1) };
    queue.run(sqe, Transfer::InCapsule(length), &data).status
}

pub fn read(queue: &mut Queue, lba: u64, length: u32) -> Answer {
    let sqe = blocks(2, lba, length / BLOCK as u32, SglDescriptor::transport(length));
    queue.run(sqe, Transfer::FromController(length), &[])
}

pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) ^ (i >> 8) as u8).collect()
}

pub fn wait_for_connections(target: &Target, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while target.connections() != count {
        let found = target.connections();
        assert!(Instant::now() < deadline, "{found} connections, expected {count}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
