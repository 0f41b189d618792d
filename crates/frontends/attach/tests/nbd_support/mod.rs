//! An NBD server for tests, and a client that sends exactly the bytes that a test gives it.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this module")]

pub mod sluice;

use farblock_attach::nbd::{Address, Config, Server};
use farblock_backends::Spec;
use farblock_block::testing::Elastic;
use farblock_block::{BlockError, Changes, Command, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{EngineKind, Reactor, TaskId};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const ZEROES: u16 = 6;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const FAST_ZERO: u16 = 16;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const ENOTSUP: u32 = 95;

pub const ENGINES: [EngineKind; 2] = [EngineKind::Uring, EngineKind::Portable];

/// The longest wait for an answer. Every expected answer arrives sooner.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Opens the disk that a specification describes.
pub fn disk(spec: &str, block_size: u32) -> Arc<dyn Namespace> {
    Spec::parse(spec).expect("a disk").open(block_size, false).expect("the disk opens")
}

/// Starts a server with two threads and without a listening socket.
pub fn serve(engine: EngineKind, namespace: Arc<dyn Namespace>) -> Server {
    let config = Config { engine, threads: 2, export: "disk".into(), ..Config::new(None) };
    Server::start(&config, namespace).expect("the server starts")
}

/// Starts a server on a free TCP port.
pub fn serve_tcp(engine: EngineKind, namespace: Arc<dyn Namespace>) -> Server {
    let listen = Some(Address::Tcp(([127, 0, 0, 1], 0).into()));
    let config = Config { engine, threads: 2, ..Config::new(listen) };
    Server::start(&config, namespace).expect("the server starts")
}

/// The client's end of a connection.
pub struct Client {
    pub stream: UnixStream,
    structured: bool,
}

/// An answer to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    pub cookie: u64,
    /// The error number; 0 for success.
    pub errno: u32,
    /// The read data; empty in simple replies.
    pub data: Vec<u8>,
}

impl Client {
    /// Connects and reads the server's greeting. Sends nothing.
    pub fn raw(server: &Server) -> Client {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        server.adopt(theirs);
        ours.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        ours.set_write_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        let mut client = Client { stream: ours, structured: false };
        let greeting = client.take(18);
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(greeting[16..], [0, 3], "not the flags for fixed newstyle without zeroes");
        client
    }

    /// Connects and negotiates, without a query of the block sizes.
    pub fn simple(server: &Server) -> Client {
        let mut client = Client::raw(server);
        client.flags(3);
        let (info, _) = client.go(b"", &[]).expect("an export");
        assert_eq!(info.len(), 1, "the server sent information that was not requested");
        client
    }

    /// Connects and negotiates structured replies and the block sizes.
    pub fn structured(server: &Server) -> Client {
        let mut client = Client::raw(server);
        client.flags(3);
        client.structure();
        client.go(b"disk", &[3]).expect("an export");
        client
    }

    pub fn structure(&mut self) {
        self.option(8, b"");
        assert_eq!(self.option_reply(8), (1, Vec::new()));
        self.structured = true;
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    pub fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).expect("the server answers");
        bytes
    }

    /// True if no data arrives within 100 ms.
    pub fn hears_nothing(&mut self) -> bool {
        self.stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        let heard = self.stream.read(&mut [0]);
        self.stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        heard.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Checks that the server closes the connection without sending more data.
    pub fn expect_end(&mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => assert!(
                rest.is_empty(),
                "the server sent {} bytes before it closed the connection",
                rest.len()
            ),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}"),
        }
    }

    pub fn flags(&mut self, flags: u32) {
        self.send(&flags.to_be_bytes());
    }

    pub fn option(&mut self, code: u32, data: &[u8]) {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend(code.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.send(&bytes);
    }

    /// Receives the next option reply. Returns its type and data.
    pub fn option_reply(&mut self, code: u32) -> (u32, Vec<u8>) {
        let header = self.take(20);
        assert_eq!(header[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
        assert_eq!(number(&header[8..12]), u64::from(code));
        (number(&header[12..16]) as u32, self.take(number(&header[16..]) as usize))
    }

    /// Sends INFO (6) or GO (7). Returns the server's information items, or the error.
    pub fn ask(&mut self, code: u32, name: &[u8], wanted: &[u16]) -> Result<Vec<Vec<u8>>, u32> {
        let mut data = (name.len() as u32).to_be_bytes().to_vec();
        data.extend(name);
        data.extend((wanted.len() as u16).to_be_bytes());
        wanted.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
        self.option(code, &data);
        let mut found = Vec::new();
        loop {
            match self.option_reply(code) {
                (3, item) => found.push(item),
                (1, _) => return Ok(found),
                (error, _) => return Err(error),
            }
        }
    }

    /// Sends GO. Returns all information items and the transmission flags.
    pub fn go(&mut self, name: &[u8], wanted: &[u16]) -> Result<(Vec<Vec<u8>>, u16), u32> {
        let found = self.ask(7, name, wanted)?;
        let export = found.iter().find(|item| item[..2] == [0, 0]).expect("an export");
        let flags = number(&export[10..12]) as u16;
        Ok((found, flags))
    }

    pub fn request(&mut self, flags: u16, code: u16, cookie: u64, offset: u64, length: u32) {
        self.send(&request(flags, code, cookie, offset, length));
    }

    /// Sends one request, and returns its answer.
    pub fn call(&mut self, flags: u16, code: u16, offset: u64, length: u32) -> Reply {
        self.request(flags, code, 77, offset, length);
        self.reply(if code == READ { length } else { 0 })
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let reply = self.call(0, READ, offset, length);
        assert_eq!(reply.errno, 0, "reading {length} bytes at {offset}");
        reply.data
    }

    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        self.request(flags, WRITE, 78, offset, data.len() as u32);
        self.send(data);
        self.reply(0).errno
    }

    /// Receives the next answer. After a simple reply to a read, also receives `read_bytes` of
    /// data.
    pub fn reply(&mut self, read_bytes: u32) -> Reply {
        let magic = number(&self.take(4));
        if magic == 0x6744_6698 {
            let rest = self.take(12);
            let (errno, cookie) = (number(&rest[..4]) as u32, number(&rest[4..]));
            assert!(!self.structured || read_bytes == 0 || errno != 0, "a read got a simple reply");
            let data = if errno == 0 { self.take(read_bytes as usize) } else { Vec::new() };
            return Reply { cookie, errno, data };
        }
        assert_eq!(magic, 0x668e_33ef, "a wrong magic number");
        assert!(self.structured, "the server sent a structured reply without a request for it");
        let rest = self.take(16);
        assert_eq!(rest[..2], [0, 1], "the only chunk is not marked as the last");
        let (kind, cookie) = (number(&rest[2..4]), number(&rest[4..12]));
        let body = self.take(number(&rest[12..]) as usize);
        match kind {
            0 => Reply { cookie, errno: 0, data: Vec::new() },
            1 => Reply { cookie, errno: 0, data: body[8..].to_vec() },
            0x8001 => {
                let text = &body[6..];
                assert_eq!(text.len(), number(&body[4..6]) as usize);
                assert!(std::str::from_utf8(text).is_ok_and(|text| !text.is_empty()));
                Reply { cookie, errno: number(&body[..4]) as u32, data: Vec::new() }
            }
            other => panic!("unexpected chunk of type {other}"),
        }
    }
}

pub fn request(flags: u16, code: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(code.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// Reads a big-endian integer.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// A disk that counts its reads and writes, and whose size can change.
pub struct Spy {
    pub disk: Arc<Elastic>,
    pub reads: Arc<AtomicUsize>,
    pub writes: Arc<AtomicUsize>,
}

impl Spy {
    pub fn new(inner: Arc<dyn Namespace>) -> Arc<Spy> {
        let (reads, writes) = (Arc::default(), Arc::default());
        Arc::new(Spy { disk: Elastic::new(inner), reads, writes })
    }
}

impl Namespace for Spy {
    fn changes(&self) -> Option<&Changes> {
        self.disk.changes()
    }

    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn describe(&self) -> String {
        format!("a spy on {}", self.disk.describe())
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let inner = self.disk.open(reactor, parent)?;
        let (reads, writes) = (Arc::clone(&self.reads), Arc::clone(&self.writes));
        Ok(Box::new(SpyQueue { inner, reads, writes }))
    }
}

struct SpyQueue {
    inner: Box<dyn Queue>,
    reads: Arc<AtomicUsize>,
    writes: Arc<AtomicUsize>,
}

impl Queue for SpyQueue {
    fn submit(&mut self, op: Op) {
        self.reads.fetch_add(usize::from(op.command == Command::Read), Ordering::Relaxed);
        self.writes.fetch_add(usize::from(op.command == Command::Write), Ordering::Relaxed);
        self.inner.submit(op);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}
