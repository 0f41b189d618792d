//! A peer that can break the protocol. It sends only what a test requests.

use farblock_proto::tcp::host_end::{Event, Grant, HostEnd, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_wire::fabrics::{ConnectCommand, ConnectData, PropertySetCommand, PropertySize};
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::property::offset;
use farblock_wire::{IntoBytes, SglDescriptor, Sqe, Status};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub const NQN: &str = "nqn.2026-11.org.farblock:strangers";
pub const MIB: usize = 1 << 20;
pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Returns the resident memory of this process, in bytes.
pub fn resident() -> usize {
    resident_of(std::process::id())
}

pub fn resident_of(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

/// Connects from 127.0.`net`.`number`, an address other than 127.0.0.1.
pub fn from(net: u8, number: u8, to: SocketAddr) -> TcpStream {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let own: SocketAddr = ([127, 0, net, number], 0).into();
    socket.bind(&own.into()).expect("an address of 127.0.0.0/8");
    socket.connect(&to.into()).expect("the target listens");
    socket.into()
}

/// Returns whether the target has left the connection open.
pub fn is_open(stream: &TcpStream) -> bool {
    let _ = stream.set_nonblocking(true);
    let peeked = stream.peek(&mut [0]);
    let _ = stream.set_nonblocking(false);
    matches!(peeked, Ok(1)) || matches!(peeked, Err(e) if e.kind() == ErrorKind::WouldBlock)
}

pub fn write_command(bytes: usize, dptr: SglDescriptor) -> Sqe {
    let mut sqe = Sqe { dptr, ..Sqe::new(1, 0, 1) };
    sqe.cdw12 = (bytes as u32 / 512 - 1).into();
    sqe
}

pub fn host(number: usize) -> String {
    format!("nqn.2026-11.org.farblock:host{number}")
}

/// A queue pair that sends only what a test requests.
pub struct Peer {
    pub stream: TcpStream,
    pub end: HostEnd,
    pub next: u16,
}

impl Peer {
    pub fn new(address: SocketAddr) -> Self {
        Self::on(TcpStream::connect(address).expect("the target listens"))
    }

    pub fn on(stream: TcpStream) -> Self {
        Self::try_on(stream).expect("the target admits the connection")
    }

    /// Returns a queue on this connection; `None` if the target closes the connection.
    pub fn try_on(stream: TcpStream) -> Option<Self> {
        stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        stream.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        let end = HostEnd::new(Digests::NONE, 128);
        let mut peer = Self { stream, end, next: 0 };
        let mut out = Vec::new();
        peer.end.start(&mut out);
        peer.stream.write_all(&out).ok()?;
        peer.until(|event| matches!(event, Event::Initialized).then_some(()))?;
        Some(peer)
    }

    /// Receives until `wanted` accepts an event. Returns `None` if the connection closes or times
    /// out.
    pub fn until<R>(&mut self, mut wanted: impl FnMut(&Event<'_>) -> Option<R>) -> Option<R> {
        let mut bytes = [0; 65536];
        loop {
            let count = match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return None,
                Err(error) => panic!("{error}"),
            };
            let mut input = &bytes[..count];
            let mut found = None;
            while let Some(event) = self.end.next(&mut input).expect("well formed") {
                found = found.or_else(|| wanted(&event));
            }
            if found.is_some() {
                return found;
            }
        }
    }

    /// Sends a command. Returns false if the connection fails.
    pub fn send(&mut self, sqe: Sqe, transfer: Transfer, data: &[u8]) -> bool {
        let slot = SlotId(self.next);
        self.next = (self.next + 1) % 128;
        let mut out = Vec::new();
        self.end.submit(slot, &sqe, transfer, &mut out);
        if matches!(transfer, Transfer::InCapsule(_)) {
            out.extend_from_slice(data);
        }
        self.stream.write_all(&out).is_ok()
    }

    pub fn status(&mut self) -> Option<(Status, u64)> {
        self.until(|event| match event {
            Event::Completed { cqe, .. } => Some((cqe.status(), cqe.result())),
            _ => None,
        })
    }

    pub fn connect(&mut self, nqn: &str, host: &str, queue: u16, controller: u16) -> u16 {
        self.try_connect(nqn, host, queue, controller).expect("the target admits the connection")
    }

    /// Connects the queue. Returns `None` if the target refuses or closes it.
    pub fn try_connect(
        &mut self,
        nqn: &str,
        host: &str,
        queue: u16,
        controller: u16,
    ) -> Option<u16> {
        let data = ConnectData::new([7; 16], controller, nqn, host);
        let command = ConnectCommand::new(0, queue, 127, 0);
        let sqe = Sqe { dptr: SglDescriptor::in_capsule(0, 1024), ..command.to_sqe() };
        if !self.send(sqe, Transfer::InCapsule(1024), data.as_bytes()) {
            return None;
        }
        let (status, result) = self.status()?;
        status.is_success().then_some(result as u16)
    }

    /// Connects and enables a controller, with this queue as its admin queue. Returns the
    /// controller identifier, or `None` if the target closes the connection.
    pub fn try_enable(&mut self, nqn: &str, host: &str) -> Option<u16> {
        let controller = self.try_connect(nqn, host, 0, 0xffff)?;
        let cc = 1 | 6 << 16 | 4 << 20;
        let set = PropertySetCommand::new(0, offset::CC, PropertySize::Four, cc).to_sqe();
        if !self.send(set, Transfer::None, &[]) {
            return None;
        }
        self.status()?.0.is_success().then_some(controller)
    }

    /// Connects a discovery controller.
    pub fn discover(&mut self) -> Status {
        let data = ConnectData::new([7; 16], 0xffff, DISCOVERY_NQN, &host(0));
        let sqe = ConnectCommand::new(0, 0, 31, 0).to_sqe();
        let sqe = Sqe { dptr: SglDescriptor::in_capsule(0, 1024), ..sqe };
        assert!(self.send(sqe, Transfer::InCapsule(1024), data.as_bytes()));
        self.status().expect("an answer").0
    }

    /// Returns the admin queue of an enabled controller, and its controller identifier.
    pub fn admin(address: SocketAddr, nqn: &str, host: &str) -> (Peer, u16) {
        let mut peer = Peer::new(address);
        let controller = peer.try_enable(nqn, host).expect("the target admits the connection");
        (peer, controller)
    }

    /// Returns an admin queue and an I/O queue of a new controller.
    pub fn io(address: SocketAddr, host: &str) -> (Peer, Peer) {
        let (admin, controller) = Peer::admin(address, NQN, host);
        let mut peer = Peer::new(address);
        peer.connect(NQN, host, 1, controller);
        (admin, peer)
    }

    pub fn ask_to_write(&mut self, bytes: usize) -> bool {
        let dptr = SglDescriptor::transport(bytes as u32);
        self.send(write_command(bytes, dptr), Transfer::ToController(bytes as u32), &[])
    }

    pub fn granted(&mut self) -> Option<Grant> {
        self.until(|event| match event {
            Event::Wanted(grant) => Some(*grant),
            _ => None,
        })
    }

    /// Sends the requested data without their last `bytes` bytes.
    pub fn withhold(&mut self, grant: Grant, bytes: usize) {
        let zeroes = vec![0; MIB];
        let (mut grant, mut out) = (grant, Vec::new());
        if let Some(range) = self.end.data_header(&mut grant, &mut out) {
            out.extend_from_slice(&zeroes[..range.len() - bytes]);
            // The target may have closed the connection in the meantime.
            let _ = self.stream.write_all(&out);
        }
    }

    /// Executes a write of this many bytes, following the protocol.
    pub fn write(&mut self, bytes: usize) -> Status {
        self.stream.set_write_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        assert!(self.ask_to_write(bytes));
        let grant = self.granted().expect("the target sends R2T");
        self.withhold(grant, 0);
        self.status().expect("an answer").0
    }
}
