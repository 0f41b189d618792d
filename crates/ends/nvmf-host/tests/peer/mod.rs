//! A scripted target with one thread per connection. A hook can replace the answer to every
//! command. The same scripts also run [in memory] and [over RDMA].
//!
//! [in memory]: in_memory::Near
//! [over RDMA]: over_rdma::OverRdma

#![allow(dead_code, unreachable_pub, reason = "every test uses a part of it")]

pub mod connection;
#[cfg(feature = "memory")]
pub mod in_memory;
#[cfg(feature = "memory")]
pub mod over_rdma;

pub use connection::{Capsule, Connection};

use farblock_host::{HostId, Options, TcpOptions};
use farblock_reactor::EngineKind;
use farblock_wire::fabrics::{ConnectCommand, FabricsCommandType, PropertyGetCommand};
use farblock_wire::fabrics::{PropertySetCommand, SQHD_NO_FLOW_CONTROL};
use farblock_wire::opcode::{AdminOpcode, NvmOpcode};
use farblock_wire::property::{Cap, Cc, Csts, offset};
use farblock_wire::tcp::DigestFlags;
use farblock_wire::{Sqe, Status};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const SUBSYSTEM: &str = "nqn.2024-01.example:disk";
pub const CNTLID: u16 = 7;

/// The result of a hook.
pub enum Handled {
    /// The hook did nothing: process the command as usual.
    No,
    /// The hook has processed the command.
    Yes,
    Close,
}

/// A controller's side of a connection, over any transport.
pub trait Carries {
    fn command(&mut self) -> io::Result<Capsule>;

    fn respond(&mut self, cid: u16, status: Status, result: u64) -> io::Result<()>;

    /// Sends all data of a command, in pieces if so configured, then reports success.
    fn push_all(
        &mut self,
        cid: u16,
        data: &[u8],
        piece_bytes: usize,
        success_flag: bool,
    ) -> io::Result<()>;

    /// Receives a part of the data of a write command.
    fn pull(&mut self, capsule: &Capsule, offset: u32, length: u32) -> io::Result<Vec<u8>>;

    fn succeed(&mut self, cid: u16) -> io::Result<()> {
        self.respond(cid, Status::SUCCESS, 0)
    }
}

/// A function that the target calls before it processes a command. The number is the queue
/// identifier.
pub type Hook<C> = Box<dyn Fn(&mut C, u16, &Capsule) -> io::Result<Handled> + Send + Sync>;

/// The behaviour of the target.
pub struct Script<C = Connection> {
    pub block_size: u32,
    pub blocks: u64,
    pub mdts: u8,
    pub ioccsz: u32,
    pub oncs: u16,
    pub vwc: bool,
    pub oaes: u32,
    pub cntrltype: u8,
    /// The controller's identifier. Two paths of one disk need different identifiers.
    pub cntlid: u16,
    pub mqes_z: u16,
    pub queues: u16,
    pub digests: DigestFlags,
    pub max_h2c_bytes: u32,
    /// Data bytes per C2HData.
    pub c2h_bytes: usize,
    pub r2t_bytes: u32,
    pub success_flag: bool,
    /// If not 0, the target sends pieces of this many bytes.
    pub piece_bytes: usize,
    pub read_only: bool,
    /// The limits WZSL and DMRSL.
    pub most: (u8, u32),
    pub hook: Hook<C>,
}

impl<C> Default for Script<C> {
    fn default() -> Script<C> {
        Script {
            block_size: 512,
            blocks: (16 << 20) / 512,
            mdts: 5,
            ioccsz: (64 + 8192) / 16,
            oncs: 1 << 2 | 1 << 3,
            vwc: true,
            oaes: 0,
            cntrltype: 1,
            cntlid: CNTLID,
            mqes_z: 127,
            queues: 8,
            digests: DigestFlags::BOTH,
            max_h2c_bytes: 128 << 10,
            c2h_bytes: 128 << 10,
            r2t_bytes: 128 << 10,
            success_flag: true,
            piece_bytes: 0,
            read_only: false,
            most: (0, 0),
            hook: Box::new(|_, _, _| Ok(Handled::No)),
        }
    }
}

/// A target that runs until it is dropped.
pub struct Peer {
    pub address: SocketAddr,
    shared: Arc<PeerShared<Connection>>,
}

struct PeerShared<C> {
    script: Script<C>,
    disk: Mutex<Vec<u8>>,
    stop: AtomicBool,
    connections: AtomicUsize,
    streams: Mutex<Vec<std::net::TcpStream>>,
    /// Whether the host has set CC.SHN.
    shut_down: AtomicBool,
}

impl Peer {
    pub fn new(script: Script) -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(PeerShared::new(script));
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.stop.load(Ordering::Acquire) {
                    return;
                }
                let shared = Arc::clone(&accepting);
                let stream = stream.unwrap();
                shared.streams.lock().unwrap().push(stream.try_clone().unwrap());
                let mut connection = Connection::new(stream);
                std::thread::spawn(move || {
                    shared.connections.fetch_add(1, Ordering::AcqRel);
                    // The host disconnects when a test ends.
                    let _ = shared.begin(&mut connection);
                    let _ = connection.stream.shutdown(std::net::Shutdown::Both);
                    shared.connections.fetch_sub(1, Ordering::AcqRel);
                });
            }
        });
        Peer { address, shared }
    }

    /// Starts a target with a hook for commands and otherwise the default script.
    pub fn with_hook<F>(hook: F) -> Peer
    where
        F: Fn(&mut Connection, u16, &Capsule) -> io::Result<Handled> + Send + Sync + 'static,
    {
        Peer::new(Script { hook: Box::new(hook), ..Script::default() })
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    pub fn disk(&self) -> Vec<u8> {
        self.shared.disk.lock().unwrap().clone()
    }

    /// Changes the contents of the disk, as a late command might.
    pub fn overwrite(&self, at: usize, bytes: &[u8]) {
        self.shared.disk.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Acquire)
    }

    /// Closes all connections.
    pub fn cut(&self) {
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    pub fn was_shut_down(&self) -> bool {
        self.shared.shut_down.load(Ordering::Acquire)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = std::net::TcpStream::connect(self.address);
    }
}

/// Options for tests. They do not depend on this machine's identity, and have timeouts for busy
/// machines.
pub fn options() -> Options {
    Options {
        hostnqn: Some("nqn.2014-08.org.example:tester".to_owned()),
        hostid: Some(HostId(*b"farblock-testing")),
        connect_timeout: Duration::from_secs(30),
        keep_alive: Duration::from_secs(60),
        ..Options::default()
    }
}

pub fn digests(header_digest: bool, data_digest: bool) -> TcpOptions {
    TcpOptions { header_digest, data_digest, ..TcpOptions::default() }
}

pub fn engines() -> Vec<EngineKind> {
    let works = |engine: &EngineKind| {
        let config = farblock_reactor::Config { engine: *engine, ..Default::default() };
        farblock_reactor::Reactor::new(&config).is_ok()
    };
    let engines: Vec<_> =
        [EngineKind::Portable, EngineKind::Uring].into_iter().filter(works).collect();
    assert!(engines.contains(&EngineKind::Portable));
    engines
}

impl PeerShared<Connection> {
    fn begin(&self, connection: &mut Connection) -> io::Result<()> {
        connection.initialize(self.script.digests, self.script.max_h2c_bytes)?;
        connection.piece_bytes = self.script.piece_bytes;
        self.serve(connection)
    }
}

impl<C: Carries> PeerShared<C> {
    fn new(script: Script<C>) -> PeerShared<C> {
        let bytes = (script.blocks * u64::from(script.block_size)) as usize;
        PeerShared {
            script,
            disk: Mutex::new(vec![0; bytes]),
            stop: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            streams: Mutex::default(),
            shut_down: AtomicBool::new(false),
        }
    }

    fn serve(&self, connection: &mut C) -> io::Result<()> {
        let script = &self.script;
        let connect = connection.command()?;
        assert_eq!(connect.sqe.fctype(), FabricsCommandType::CONNECT.0);
        let qid = ConnectCommand::from_sqe(&connect.sqe).qid.get();
        match (script.hook)(connection, qid, &connect)? {
            Handled::No => {
                connection.respond(connect.cid(), Status::SUCCESS, script.cntlid.into())?;
            }
            Handled::Yes => {}
            Handled::Close => return Ok(()),
        }
        let mut csts = Csts::default();
        loop {
            let capsule = connection.command()?;
            match (script.hook)(connection, qid, &capsule)? {
                Handled::No if qid == 0 => self.admin(connection, &capsule, &mut csts)?,
                Handled::No => self.io(connection, &capsule)?,
                Handled::Yes => {}
                Handled::Close => return Ok(()),
            }
        }
    }

    fn admin(&self, connection: &mut C, capsule: &Capsule, csts: &mut Csts) -> io::Result<()> {
        let (sqe, cid) = (&capsule.sqe, capsule.cid());
        match AdminOpcode(sqe.opcode) {
            AdminOpcode::FABRICS if sqe.fctype() == FabricsCommandType::PROPERTY_GET.0 => {
                let value = match PropertyGetCommand::from_sqe(sqe).ofst.get() {
                    offset::CAP => self.cap().0,
                    offset::VS => 0x0002_0000,
                    offset::CSTS => csts.0.into(),
                    other => panic!("the host read property {other:#x}"),
                };
                connection.respond(cid, Status::SUCCESS, value)
            }
            AdminOpcode::FABRICS if sqe.fctype() == FabricsCommandType::PROPERTY_SET.0 => {
                let command = PropertySetCommand::from_sqe(sqe);
                assert_eq!(command.ofst.get(), offset::CC);
                let cc = Cc(command.value.get() as u32);
                assert_eq!((cc.iosqes(), cc.iocqes(), cc.en()), (6, 4, true));
                *csts = csts.with_rdy(true);
                if cc.shn() == Cc::SHN_NORMAL {
                    *csts = csts.with_shst(Csts::SHST_COMPLETE);
                    self.shut_down.store(true, Ordering::Release);
                }
                connection.succeed(cid)
            }
            AdminOpcode::IDENTIFY => match self.identify(sqe.cdw10.get() as u8, sqe.nsid.get()) {
                Some(data) => connection.push_all(cid, &data, 4096, self.script.success_flag),
                None => connection.respond(cid, Status::INVALID_FIELD.with_dnr(), 0),
            },
            AdminOpcode::SET_FEATURES if sqe.cdw10.get() == 7 => {
                let granted = u64::from(self.script.queues) - 1;
                connection.respond(cid, Status::SUCCESS, granted << 16 | granted)
            }
            AdminOpcode::SET_FEATURES | AdminOpcode::KEEP_ALIVE => connection.succeed(cid),
            AdminOpcode::ASYNC_EVENT_REQUEST => Ok(()),
            _ => connection.respond(cid, Status::INVALID_OPCODE.with_dnr(), 0),
        }
    }

    fn cap(&self) -> Cap {
        Cap::default().with_mqes_z(self.script.mqes_z).with_to(2).with_css(Cap::CSS_NVM)
    }

    fn identify(&self, cns: u8, nsid: u32) -> Option<Vec<u8>> {
        let mut data = vec![0; 4096];
        match cns {
            0 if nsid == 1 => identify_namespace(&self.script, &mut data),
            0 => {}
            1 => identify_controller(&self.script, &mut data),
            2 if nsid < 1 => data[0] = 1,
            2 => {}
            3 if nsid == 1 => {
                data[..4].copy_from_slice(&[3, 16, 0, 0]);
                data[4..20].copy_from_slice(b"uuid-of-the-disk");
            }
            6 => {
                let (wzsl, dmrsl) = self.script.most;
                data[1] = wzsl;
                data[4..8].copy_from_slice(&dmrsl.to_le_bytes());
            }
            _ => return None,
        }
        Some(data)
    }

    fn io(&self, connection: &mut C, capsule: &Capsule) -> io::Result<()> {
        let (sqe, cid, script) = (&capsule.sqe, capsule.cid(), &self.script);
        let (start, end) = self.range(sqe);
        match NvmOpcode(sqe.opcode) {
            NvmOpcode::FLUSH => connection.succeed(cid),
            NvmOpcode::READ => {
                let data = self.disk.lock().unwrap()[start..end].to_vec();
                connection.push_all(cid, &data, script.c2h_bytes, script.success_flag)
            }
            NvmOpcode::WRITE => {
                let data = self.written(connection, capsule)?;
                self.disk.lock().unwrap()[start..end].copy_from_slice(&data);
                connection.succeed(cid)
            }
            NvmOpcode::WRITE_ZEROES => {
                let most = if script.most.0 == 0 { usize::MAX } else { 4096 << script.most.0 };
                assert!(end - start <= most, "the host exceeds WZSL");
                self.disk.lock().unwrap()[start..end].fill(0);
                connection.succeed(cid)
            }
            NvmOpcode::DATASET_MANAGEMENT => {
                let data = self.written(connection, capsule)?;
                assert_eq!((data.len(), sqe.cdw10.get(), sqe.cdw11.get()), (16, 0, 4));
                let blocks = u32::from_le_bytes(data[4..8].try_into().unwrap()) as usize;
                let most = if script.most.1 == 0 { u32::MAX } else { script.most.1 };
                assert!(blocks <= most as usize, "the host exceeds DMRSL");
                let lba = u64::from_le_bytes(data[8..16].try_into().unwrap()) as usize;
                let block_size = script.block_size as usize;
                self.disk.lock().unwrap()[lba * block_size..][..blocks * block_size].fill(0);
                connection.succeed(cid)
            }
            other => panic!("unexpected command {other}"),
        }
    }

    /// The range of the disk that a command uses.
    fn range(&self, sqe: &Sqe) -> (usize, usize) {
        let block_size = self.script.block_size as usize;
        let lba = sqe.cdw10.get() as usize | (sqe.cdw11.get() as usize) << 32;
        let blocks = (sqe.cdw12.get() & 0xffff) as usize + 1;
        (lba.saturating_mul(block_size), lba.saturating_add(blocks).saturating_mul(block_size))
    }

    fn written(&self, connection: &mut C, capsule: &Capsule) -> io::Result<Vec<u8>> {
        let length = match capsule.sqe.dptr.keyed_block() {
            Some(block) => block.length_bytes,
            None => capsule.sqe.dptr.length.get(),
        };
        if capsule.sqe.dptr.is_in_capsule() {
            assert!(length + 64 <= self.script.ioccsz * 16, "the host exceeds IOCCSZ");
            assert_eq!(capsule.data.len(), length as usize);
            return Ok(capsule.data.clone());
        }
        assert!(capsule.data.is_empty());
        let mut all = Vec::new();
        while all.len() < length as usize {
            let offset = all.len() as u32;
            let wanted = self.script.r2t_bytes.min(length - offset);
            all.extend(connection.pull(capsule, offset, wanted)?);
        }
        Ok(all)
    }
}

pub fn identify_controller<C>(script: &Script<C>, data: &mut [u8]) {
    let mut put = |at: usize, bytes: &[u8]| data[at..at + bytes.len()].copy_from_slice(bytes);
    put(4, b"SERIAL              ");
    put(24, b"A scripted disk                         ");
    put(64, b"1.0     ");
    put(77, &[script.mdts]);
    put(78, &script.cntlid.to_le_bytes());
    put(92, &script.oaes.to_le_bytes());
    put(111, &[script.cntrltype]);
    put(259, &[3]);
    put(320, &10u16.to_le_bytes());
    put(514, &128u16.to_le_bytes());
    put(516, &1u32.to_le_bytes());
    put(520, &script.oncs.to_le_bytes());
    put(525, &[u8::from(script.vwc)]);
    put(536, &0x0010_0005u32.to_le_bytes());
    put(768, SUBSYSTEM.as_bytes());
    put(1792, &script.ioccsz.to_le_bytes());
    put(1796, &1u32.to_le_bytes());
}

pub fn identify_namespace<C>(script: &Script<C>, data: &mut [u8]) {
    data[..8].copy_from_slice(&script.blocks.to_le_bytes());
    data[8..16].copy_from_slice(&script.blocks.to_le_bytes());
    data[99] = script.read_only.into();
    data[130] = script.block_size.ilog2() as u8;
}

/// The value of SQHD without flow control, for responses that a hook sends.
pub const SQHD: u16 = SQHD_NO_FLOW_CONTROL;
