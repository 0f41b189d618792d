//! An iSCSI target for tests, and an initiator that sends exactly the bytes that a test gives it.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this module")]

use farblock_backends::Spec;
use farblock_block::{BlockError, Completion, Geometry, Namespace, Op, Queue};
use farblock_iscsi::{Config, Server};
use farblock_reactor::{EngineKind, Reactor, TaskId, Waker};
use farblock_testkit::eventually;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const ENGINES: &[EngineKind] = EngineKind::HERE;
pub const NAME: &str = "iqn.2026-11.org.farblock:disk";

/// The longest wait for an answer. Every expected answer arrives sooner.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

pub const READ: u8 = 0x40;
pub const WRITE: u8 = 0x20;
pub const FINAL: u8 = 0x80;

/// Sense keys with their additional sense codes.
pub const POWER_ON: (u8, u16) = (6, 0x2900);
pub const RESET: (u8, u16) = (6, 0x2903);
pub const CAPACITY_CHANGED: (u8, u16) = (6, 0x2a09);
pub const OUT_OF_RANGE: (u8, u16) = (5, 0x2100);
pub const WRITE_PROTECTED: (u8, u16) = (7, 0x2700);
pub const NOT_READY: (u8, u16) = (2, 0x0401);
pub const MISCOMPARE: (u8, u16) = (14, 0x1d00);

/// Opens the disk that a specification describes.
pub fn disk(spec: &str, block_size: u32) -> Arc<dyn Namespace> {
    Spec::parse(spec).expect("a disk").open(block_size, false).expect("the disk opens")
}

pub fn config(engine: EngineKind) -> Config {
    Config { engine, ..Config::new(([127, 0, 0, 1], 0).into(), NAME) }
}

/// Starts a target on a free port.
pub fn serve(engine: EngineKind, namespace: Arc<dyn Namespace>) -> Server {
    Server::start(&config(engine), namespace).expect("the server starts")
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pdu {
    pub bhs: [u8; 48],
    pub data: Vec<u8>,
}

impl Pdu {
    pub fn opcode(&self) -> u8 {
        self.bhs[0]
    }

    pub fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bhs[at..at + 4].try_into().expect("4 bytes"))
    }
}

/// The target's answer to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    pub status: u8,
    pub sense: Option<(u8, u16)>,
    /// The offset of the data byte at which the command failed.
    pub offset: Option<u32>,
    pub data: Vec<u8>,
    /// The residual count in bytes; positive for an overflow.
    pub residual: i64,
}

/// The settings that the initiator proposes at login.
#[derive(Clone, Debug)]
pub struct Wishes {
    pub isid: [u8; 6],
    pub header_digest: bool,
    pub data_digest: bool,
    pub immediate: bool,
    pub initial_r2t: bool,
    pub max_burst: u32,
    pub first_burst: u32,
    pub receive_bytes: u32,
    pub max_r2t: u32,
}

impl Default for Wishes {
    fn default() -> Wishes {
        Wishes {
            isid: [0x80, 0, 0, 0, 0, 1],
            header_digest: false,
            data_digest: false,
            immediate: true,
            initial_r2t: true,
            max_burst: 262_144,
            first_burst: 65_536,
            receive_bytes: 262_144,
            max_r2t: 1,
        }
    }
}

/// The initiator's end of a connection.
pub struct Client {
    pub stream: TcpStream,
    pub name: String,
    pub wishes: Wishes,
    digests: bool,
    pub cmd_sn: u32,
    pub tag: u32,
}

impl Client {
    /// Connects without sending a login.
    pub fn raw(server: &Server) -> Client {
        let stream =
            TcpStream::connect(server.address()).expect("the server accepts the connection");
        stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        stream.set_write_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        let name = "iqn.2026-11.test:host".to_owned();
        Client { stream, name, wishes: Wishes::default(), digests: false, cmd_sn: 1, tag: 100 }
    }

    /// Connects, logs in, and receives the unit attention of a new session.
    pub fn new(server: &Server, wishes: &Wishes) -> Client {
        let mut client = Client::raw(server);
        client.wishes = wishes.clone();
        client.send_login(&[]);
        client.expect_login();
        client
    }

    /// Receives the login's answer, and then the unit attention that every new session gets.
    pub fn expect_login(&mut self) {
        let answer = self.take_login();
        assert_eq!(answer.bhs[36..38], [0, 0], "the login failed");
        assert_eq!(self.call(&[0; 6], 0, 0, &[]).sense, Some(POWER_ON));
    }

    /// Logs in with a single request. Returns the answer.
    pub fn log_in(&mut self, more: &[&str]) -> Pdu {
        self.send_login(more);
        self.take_login()
    }

    fn take_login(&mut self) -> Pdu {
        let answer = self.take();
        assert_eq!(answer.opcode(), 0x23);
        self.digests = answer.bhs[36..38] == [0, 0];
        answer
    }

    pub fn send_login(&mut self, more: &[&str]) {
        let wishes = self.wishes.clone();
        let yes_or_no = |yes| if yes { "Yes" } else { "No" };
        let digest = |wanted| if wanted { "CRC32C" } else { "None" };
        let mut keys = vec![
            format!("InitiatorName={}", self.name),
            format!("TargetName={NAME}"),
            format!("HeaderDigest={}", digest(wishes.header_digest)),
            format!("DataDigest={}", digest(wishes.data_digest)),
            format!("ImmediateData={}", yes_or_no(wishes.immediate)),
            format!("InitialR2T={}", yes_or_no(wishes.initial_r2t)),
            format!("MaxBurstLength={}", wishes.max_burst),
            format!("FirstBurstLength={}", wishes.first_burst),
            format!("MaxRecvDataSegmentLength={}", wishes.receive_bytes),
            format!("MaxOutstandingR2T={}", wishes.max_r2t),
        ];
        keys.extend(more.iter().map(|key| (*key).to_owned()));
        let text: Vec<u8> = keys.iter().flat_map(|key| [key.as_bytes(), &[0]].concat()).collect();
        let mut bhs = header(0x43, 0x87);
        bhs[8..14].copy_from_slice(&wishes.isid);
        bhs[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        self.send(bhs, &text);
    }

    /// Sends a PDU with the negotiated digests.
    pub fn send(&mut self, mut bhs: [u8; 48], data: &[u8]) {
        bhs[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        let mut bytes = bhs.to_vec();
        if self.digests && self.wishes.header_digest {
            bytes.extend(crc32c::crc32c(&bhs).to_le_bytes());
        }
        let mut data = data.to_vec();
        data.resize(data.len().next_multiple_of(4), 0);
        bytes.extend(&data);
        if self.digests && self.wishes.data_digest && !data.is_empty() {
            bytes.extend(crc32c::crc32c(&data).to_le_bytes());
        }
        self.send_bytes(&bytes);
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the target reads");
    }

    pub fn take_bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).expect("the target answers");
        bytes
    }

    /// Receives the next PDU, and checks its digests.
    pub fn take(&mut self) -> Pdu {
        let bhs: [u8; 48] = self.take_bytes(48).try_into().expect("48 bytes");
        if self.digests && self.wishes.header_digest {
            assert_eq!(
                self.take_bytes(4),
                crc32c::crc32c(&bhs).to_le_bytes(),
                "the header digest is wrong"
            );
        }
        let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
        assert!(
            length <= self.wishes.receive_bytes.max(8192) as usize,
            "the target sent too much data: {length} bytes"
        );
        let mut data = self.take_bytes(length.next_multiple_of(4));
        if self.digests && self.wishes.data_digest && length > 0 {
            assert_eq!(
                self.take_bytes(4),
                crc32c::crc32c(&data).to_le_bytes(),
                "the data digest is wrong"
            );
        }
        assert!(data.split_off(length).iter().all(|&byte| byte == 0), "the padding is not zero");
        Pdu { bhs, data }
    }

    /// Checks that the target sends nothing for a while.
    pub fn expect_silence(&mut self) {
        self.stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        match self.stream.peek(&mut [0]) {
            Ok(_) => panic!("the target answers, or closes the connection: {:?}", self.take()),
            Err(error) => {
                let kinds = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
                assert!(kinds.contains(&error.kind()), "{error}");
            }
        }
        self.stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
    }

    /// Checks that the target closes the connection without sending more data.
    pub fn expect_end(&mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => assert!(
                rest.is_empty(),
                "the target sent {} bytes before it closed the connection",
                rest.len()
            ),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}"),
        }
    }

    /// Checks that the target rejects the last PDU for this reason, and then closes the connection.
    pub fn expect_reject_and_end(&mut self, reason: u8) {
        let pdu = self.take();
        assert_eq!((pdu.opcode(), pdu.bhs[2]), (0x3f, reason));
        assert_eq!(pdu.data.len(), 48, "the REJECT lacks the rejected header");
        self.expect_end();
    }

    /// Sends a command with immediate data. Returns the command's tag.
    pub fn command(&mut self, cdb: &[u8], flags: u8, expected: u32, data: &[u8]) -> u32 {
        let bhs = self.next_command(cdb, flags, expected);
        self.send(bhs, data);
        self.tag
    }

    /// Sends `count` copies of a command without data in one write. The session must not use
    /// digests.
    pub fn commands(&mut self, count: usize, cdb: &[u8], flags: u8, expected: u32) {
        let all = (0..count).flat_map(|_| self.next_command(cdb, flags, expected));
        let all: Vec<u8> = all.collect();
        self.send_bytes(&all);
    }

    fn next_command(&mut self, cdb: &[u8], flags: u8, expected: u32) -> [u8; 48] {
        self.tag += 1;
        let mut bhs = header(0x01, flags);
        bhs[16..20].copy_from_slice(&self.tag.to_be_bytes());
        bhs[20..24].copy_from_slice(&expected.to_be_bytes());
        bhs[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        bhs[32..32 + cdb.len()].copy_from_slice(cdb);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        bhs
    }

    pub fn data_out(
        &mut self,
        tag: u32,
        transfer: u32,
        place: (u32, u32),
        data: &[u8],
        last: bool,
    ) {
        let (data_sn, offset) = place;
        let mut bhs = header(0x05, if last { FINAL } else { 0 });
        bhs[16..20].copy_from_slice(&tag.to_be_bytes());
        bhs[20..24].copy_from_slice(&transfer.to_be_bytes());
        bhs[36..40].copy_from_slice(&data_sn.to_be_bytes());
        bhs[40..44].copy_from_slice(&offset.to_be_bytes());
        self.send(bhs, data);
    }

    /// Sends a command, and returns its answer. Sends `data` as negotiated: with the command,
    /// unsolicited, and on R2T.
    pub fn call(&mut self, cdb: &[u8], flags: u8, expected: u32, data: &[u8]) -> Reply {
        let wishes = self.wishes.clone();
        let first = wishes.first_burst.min(wishes.max_burst) as usize;
        let first = first.min(data.len());
        let along = if wishes.immediate { first.min(30_000) } else { 0 };
        let unasked = !wishes.initial_r2t && along < first;
        let last = if unasked { 0 } else { FINAL };
        let tag = self.command(cdb, flags | last, expected, &data[..along]);
        if unasked {
            self.send_sequence(tag, u32::MAX, along..first, data);
        }
        self.answer(tag, data)
    }

    fn send_sequence(
        &mut self,
        tag: u32,
        transfer: u32,
        range: std::ops::Range<usize>,
        data: &[u8],
    ) {
        let (mut offset, mut data_sn) = (range.start, 0);
        while offset < range.end {
            let now = (range.end - offset).min(100_000);
            let last = offset + now == range.end;
            let place = (data_sn, offset as u32);
            self.data_out(tag, transfer, place, &data[offset..offset + now], last);
            (offset, data_sn) = (offset + now, data_sn + 1);
        }
    }

    /// Receives a command's answer, and sends the data that the target requests meanwhile.
    pub fn answer(&mut self, tag: u32, data: &[u8]) -> Reply {
        let mut read = Vec::new();
        loop {
            let pdu = self.take();
            assert_eq!(pdu.word(16), tag, "the target answered another task: {pdu:?}");
            match pdu.opcode() {
                0x31 => {
                    let (offset, bytes) = (pdu.word(40) as usize, pdu.word(44) as usize);
                    assert!(bytes <= self.wishes.max_burst as usize);
                    self.send_sequence(tag, pdu.word(20), offset..offset + bytes, data);
                }
                0x25 => {
                    assert_eq!(
                        pdu.word(40) as usize,
                        read.len(),
                        "the read data arrives out of order"
                    );
                    read.extend(&pdu.data);
                    if pdu.bhs[1] & 1 != 0 {
                        return reply(&pdu, pdu.bhs[3], read);
                    }
                }
                0x21 => return reply(&pdu, pdu.bhs[3], read),
                other => panic!("unexpected answer {other:#x} to a command"),
            }
        }
    }

    pub fn read(&mut self, lba: u64, blocks: u32, block_size: u32) -> Vec<u8> {
        let reply = self.call(&cdb16(0x88, 0, lba, blocks), READ, blocks * block_size, &[]);
        assert_eq!((reply.status, reply.residual), (0, 0), "{:?}", reply.sense);
        reply.data
    }

    pub fn write(&mut self, lba: u64, data: &[u8], block_size: u32) -> Reply {
        let blocks = data.len() as u32 / block_size;
        self.call(&cdb16(0x8a, 0, lba, blocks), WRITE, data.len() as u32, data)
    }

    /// Sends a task management request without waiting for the answer. Returns its tag.
    pub fn manage(&mut self, function: u8, referenced: u32) -> u32 {
        self.tag += 1;
        let mut bhs = header(0x42, FINAL | function);
        bhs[16..20].copy_from_slice(&self.tag.to_be_bytes());
        bhs[20..24].copy_from_slice(&referenced.to_be_bytes());
        bhs[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        self.send(bhs, &[]);
        self.tag
    }

    pub fn log_out(&mut self) {
        let mut bhs = header(0x46, FINAL);
        bhs[16..20].copy_from_slice(&9_u32.to_be_bytes());
        bhs[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        self.send(bhs, &[]);
        let answer = self.take();
        assert_eq!((answer.opcode(), answer.bhs[2]), (0x26, 0));
        self.expect_end();
    }

    /// Sends a ping with data. Returns the data of the answer.
    pub fn ping(&mut self, data: &[u8]) -> Vec<u8> {
        let mut bhs = header(0x40, FINAL);
        bhs[16..20].copy_from_slice(&8_u32.to_be_bytes());
        bhs[20..24].fill(0xff);
        bhs[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        self.send(bhs, data);
        let answer = self.take();
        assert_eq!((answer.opcode(), answer.word(16)), (0x20, 8));
        answer.data
    }
}

fn reply(pdu: &Pdu, status: u8, read: Vec<u8>) -> Reply {
    let sense = (pdu.opcode() == 0x21 && !pdu.data.is_empty()).then(|| {
        assert_eq!(pdu.data[..2], [0, 18]);
        (pdu.data[4], u16::from_be_bytes([pdu.data[14], pdu.data[15]]))
    });
    let offset = sense
        .filter(|_| pdu.data[2] & 0x80 != 0)
        .map(|_| u32::from_be_bytes(pdu.data[5..9].try_into().expect("4 bytes")));
    let residual = match pdu.bhs[1] & 6 {
        0 => 0,
        4 => i64::from(pdu.word(44)),
        2 => -i64::from(pdu.word(44)),
        _ => panic!("the answer reports overflow and underflow"),
    };
    Reply { status, sense, offset, data: read, residual }
}

pub fn header(opcode: u8, flags: u8) -> [u8; 48] {
    let mut bhs = [0; 48];
    (bhs[0], bhs[1]) = (opcode, flags);
    bhs
}

/// Makes a 16-byte command that addresses blocks.
pub fn cdb16(opcode: u8, flags: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (opcode, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// A disk that can hold back its writes until the test releases them.
pub struct Gate {
    inner: Arc<dyn Namespace>,
    shared: Arc<GateShared>,
}

#[derive(Default)]
struct GateShared {
    is_shut: AtomicBool,
    waiting: AtomicUsize,
    wakers: Mutex<Vec<Waker>>,
}

struct GateQueue {
    inner: Box<dyn Queue>,
    shared: Arc<GateShared>,
    waiting: Vec<Op>,
}

impl Gate {
    pub fn new(inner: Arc<dyn Namespace>) -> Arc<Gate> {
        Arc::new(Gate { inner, shared: Arc::default() })
    }

    pub fn shut(&self) {
        self.shared.is_shut.store(true, Ordering::SeqCst);
    }

    pub fn open(&self) {
        self.shared.is_shut.store(false, Ordering::SeqCst);
        self.shared.wakers.lock().expect("no panic").iter().for_each(Waker::wake);
    }

    /// Waits until the disk holds back this many writes.
    pub fn holds(&self, count: usize) {
        let waiting = || self.shared.waiting.load(Ordering::SeqCst);
        eventually("the disk receives the writes", || waiting() == count);
    }
}

impl Namespace for Gate {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        self.shared.wakers.lock().expect("no panic").push(reactor.waker(parent));
        let (inner, shared) = (self.inner.open(reactor, parent)?, Arc::clone(&self.shared));
        Ok(Box::new(GateQueue { inner, shared, waiting: Vec::new() }))
    }
}

impl Queue for GateQueue {
    fn submit(&mut self, op: Op) {
        if op.command.writes() && self.shared.is_shut.load(Ordering::SeqCst) {
            self.waiting.push(op);
            self.shared.waiting.store(self.waiting.len(), Ordering::SeqCst);
        } else {
            self.inner.submit(op);
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if !self.shared.is_shut.load(Ordering::SeqCst) {
            self.waiting.drain(..).for_each(|op| self.inner.submit(op));
            self.shared.waiting.store(0, Ordering::SeqCst);
        }
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() + self.inner.in_flight()
    }
}

impl Drop for GateQueue {
    fn drop(&mut self) {
        self.waiting.drain(..).for_each(|op| drop(op.abandon()));
    }
}
