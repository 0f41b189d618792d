//! A virtual machine for tests, with one vhost-user disk. It consists of memory, a monitor (the
//! front end of the `vhost` crate), and a driver that puts exactly the given descriptors into a
//! ring.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this module")]

use farblock_attach::vhost_user::{Config, Server};
use farblock_backends::Spec;
use farblock_block::Namespace;
use farblock_reactor::EngineKind;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub const ENGINES: [EngineKind; 2] = [EngineKind::Uring, EngineKind::Portable];

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const ZEROES: u32 = 13;

pub const OK: u8 = 0;
pub const IOERR: u8 = 1;
pub const UNSUPP: u8 = 2;
/// The value of the status byte before the device writes it.
pub const UNTOUCHED: u8 = 0xa5;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

pub const F_RO: u64 = 1 << 5;
pub const F_LOG_ALL: u64 = 1 << 26;
pub const F_FLUSH: u64 = 1 << 9;
pub const F_DISCARD: u64 = 1 << 13;
pub const F_INDIRECT: u64 = 1 << 28;
pub const F_EVENT_IDX: u64 = 1 << 29;

/// The longest wait for an answer. Every expected answer arrives sooner.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
pub const MEMORY_BYTES: u64 = 64 << 20;
/// The number of descriptors of a ring.
pub const SIZE: u16 = 128;
/// The address at which the monitor claims to have mapped the guest's memory.
const MONITOR: u64 = 0x7000_0000_0000;
/// The distance between rings in memory, in bytes. The first 64 KiB of memory are empty.
const RING_BYTES: u64 = 64 << 10;
const AVAIL: u64 = 4096;
const USED: u64 = 8192;
/// The offset of the requests' headers and status bytes from the start of their ring.
const HEADERS: u64 = 32 << 10;
/// The address of the tests' data.
pub const DATA: u64 = 2 << 20;

/// Opens the disk that a specification describes.
pub fn disk(spec: &str, block_size: u32) -> Arc<dyn Namespace> {
    Spec::parse(spec).expect("a disk").open(block_size, false).expect("the disk opens")
}

/// A server with two rings, and the folder of its socket.
pub struct Served {
    pub server: Option<Server>,
    pub config: Config,
    folder: TempDir,
}

pub fn serve(engine: EngineKind, namespace: Arc<dyn Namespace>) -> Served {
    serve_with(namespace, |config| config.engine = engine)
}

pub fn serve_with(namespace: Arc<dyn Namespace>, change: impl FnOnce(&mut Config)) -> Served {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = Config::new(folder.path().join("disk.sock"));
    config.queues = 2;
    config.serial = "serial-1".to_owned();
    change(&mut config);
    let server = Some(Server::start(&config, namespace).expect("the server starts"));
    Served { server, config, folder }
}

impl Served {
    pub fn stop(mut self) {
        self.server.take().expect("the server runs").stop().expect("the server stops");
    }

    pub fn connect(&self) -> UnixStream {
        let stream =
            UnixStream::connect(&self.config.socket).expect("the server accepts the connection");
        stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        stream
    }

    /// Makes a virtual machine that is connected to the server and running.
    pub fn boot(&self) -> Vm {
        let mut vm = Vm::new();
        vm.attach(self, u64::MAX);
        vm
    }
}

/// A descriptor in memory: address, length, flags, next.
pub type Descriptor = (u64, u32, u16, u16);

pub struct Ring {
    pub index: usize,
    pub kick: EventFd,
    pub call: EventFd,
    pub error: EventFd,
    avail: u16,
    used: u16,
    next: u16,
}

impl Ring {
    /// Makes the next request start at this descriptor of a completed request.
    pub fn reuse(&mut self, descriptor: u16) {
        self.next = descriptor;
    }
}

pub struct Vm {
    pub memory: GuestMemoryMmap,
    file: Arc<File>,
    pub rings: Vec<Ring>,
    pub frontend: Option<Frontend>,
    pub inflight: Option<(VhostUserInflight, File)>,
}

/// An entry of the used ring: the head of a chain, and the number of bytes that the device wrote.
pub type Used = (u32, u32);

impl Vm {
    pub fn new() -> Vm {
        let flags = MemfdFlags::CLOEXEC;
        let file = File::from(rustix::fs::memfd_create("guest", flags).expect("memory"));
        file.set_len(MEMORY_BYTES).expect("memory");
        let file = Arc::new(file);
        let offset = FileOffset::from_arc(Arc::clone(&file), 0);
        let map = MmapRegion::from_file(offset, MEMORY_BYTES as usize).expect("a map");
        let region = GuestRegionMmap::new(map, GuestAddress(0)).expect("a region");
        let memory = GuestMemoryMmap::from_regions(vec![region]).expect("memory");
        let event = || EventFd::new(EFD_NONBLOCK).expect("an event");
        let rings = (0..2).map(|index| {
            let (kick, call, error) = (event(), event(), event());
            Ring { index, kick, call, error, avail: 0, used: 0, next: 0 }
        });
        Vm { memory, file, rings: rings.collect(), frontend: None, inflight: None }
    }

    /// Connects, accepts those `wanted` features that the back end offers, and starts the rings.
    pub fn attach(&mut self, served: &Served, wanted: u64) {
        self.attach_to(&served.config.socket, wanted);
    }

    /// Like `attach`, but connects to the back end on `socket`, which must have two rings.
    pub fn attach_to(&mut self, socket: &Path, wanted: u64) {
        let mut frontend = Frontend::connect(socket, 2).expect("the server accepts the connection");
        frontend.set_owner().expect("an owner");
        let features = frontend.get_features().expect("features");
        frontend.set_features(features & wanted | 1 << 30).expect("features");
        let offered = frontend.get_protocol_features().expect("protocol features");
        let known = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        assert_eq!(offered, known);
        frontend.set_protocol_features(known).expect("protocol features");
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        self.frontend = Some(frontend);
        self.lend();
        self.keep_notes();
        for index in 0..self.rings.len() {
            self.start(index, self.rings[index].used);
        }
    }

    fn lend(&mut self) {
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY_BYTES,
            userspace_addr: MONITOR,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        };
        self.frontend().set_mem_table(&[region]).expect("memory");
    }

    /// Gets the in-flight records once, and passes them to the server at every start, as QEMU does.
    fn keep_notes(&mut self) {
        if self.inflight.is_none() {
            let wanted = VhostUserInflight::new(0, 0, 2, SIZE);
            self.inflight = Some(
                self.frontend()
                    .get_inflight_fd(&wanted)
                    .expect("the server creates in-flight records"),
            );
        }
        let (notes, file) = self.inflight.take().expect("the buffer exists");
        self.frontend()
            .set_inflight_fd(&notes, file.as_fd().as_raw_fd())
            .expect("the server adopts the in-flight records");
        self.inflight = Some((notes, file));
    }

    pub fn start(&mut self, index: usize, base: u16) {
        let at = MONITOR + ring_at(index);
        let config = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: at,
            used_ring_addr: at + USED,
            avail_ring_addr: at + AVAIL,
            log_addr: None,
        };
        let ring = &self.rings[index];
        let mut frontend = self.frontend.clone().expect("the monitor is connected");
        frontend.set_vring_num(index, SIZE).expect("a size");
        frontend.set_vring_base(index, base).expect("a base");
        frontend.set_vring_addr(index, &config).expect("addresses");
        frontend.set_vring_call(index, &ring.call).expect("a call");
        frontend.set_vring_err(index, &ring.error).expect("an error event");
        frontend.set_vring_kick(index, &ring.kick).expect("a kick");
        frontend.set_vring_enable(index, true).expect("the ring starts");
    }

    pub fn frontend(&mut self) -> &mut Frontend {
        self.frontend.as_mut().expect("the monitor is connected")
    }

    /// Closes the connection without a message to the server.
    pub fn disconnect(&mut self) {
        self.frontend = None;
    }

    /// Reads a part of the configuration space.
    pub fn config(&mut self, offset: usize, length: usize) -> Vec<u8> {
        let flags = VhostUserConfigFlags::empty();
        // The front end counts offsets from the start of the configuration space.
        let whole = vec![0; 60];
        let (_, space) = self.frontend().get_config(0, 60, flags, &whole).expect("configuration");
        space[offset..offset + length].to_vec()
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(address)).expect("memory");
    }

    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_slice(&mut bytes, GuestAddress(address)).expect("memory");
        bytes
    }

    pub fn descriptor(&self, at: u64, (address, length, flags, next): Descriptor) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.write(at, &bytes);
    }

    /// Puts descriptors into a ring's table, one after the other, and the first descriptor into the
    /// available ring. A descriptor with the flag `NEXT`, but without a next index, links to the
    /// following descriptor.
    pub fn offer(&mut self, ring: usize, chain: &[Descriptor]) -> u16 {
        let head = self.rings[ring].next;
        for &(address, length, flags, next) in chain {
            let index = self.rings[ring].next;
            self.rings[ring].next = (index + 1) % SIZE;
            let next = if flags & NEXT != 0 && next == 0 { (index + 1) % SIZE } else { next };
            let at = ring_at(ring) + u64::from(index) * 16;
            self.descriptor(at, (address, length, flags, next));
        }
        self.offer_head(ring, head);
        head
    }

    pub fn offer_head(&mut self, ring: usize, head: u16) {
        let avail = self.rings[ring].avail;
        let at = ring_at(ring) + AVAIL;
        self.write(at + 4 + u64::from(avail % SIZE) * 2, &head.to_le_bytes());
        self.rings[ring].avail = avail.wrapping_add(1);
        self.set_avail(ring, avail.wrapping_add(1));
    }

    pub fn set_avail(&self, ring: usize, index: u16) {
        let at = GuestAddress(ring_at(ring) + AVAIL + 2);
        self.memory.store(index, at, Ordering::SeqCst).expect("memory");
    }

    pub fn kick(&self, ring: usize) {
        self.rings[ring].kick.write(1).expect("a kick");
    }

    /// Waits for the next entry in the used ring. `None` on timeout.
    pub fn used(&mut self, ring: usize) -> Option<Used> {
        self.used_within(ring, WAIT_LIMIT)
    }

    pub fn used_within(&mut self, ring: usize, patience: Duration) -> Option<Used> {
        let deadline = Instant::now() + patience;
        let used = self.rings[ring].used;
        let at = ring_at(ring) + USED;
        while self.used_index(ring) == used {
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let element = self.read(at + 4 + u64::from(used % SIZE) * 8, 8);
        self.rings[ring].used = used.wrapping_add(1);
        // Request an interrupt for the next entry.
        self.write(ring_at(ring) + AVAIL + 4 + u64::from(SIZE) * 2, &(used + 1).to_le_bytes());
        let word = |at: usize| u32::from_le_bytes(element[at..at + 4].try_into().expect("4"));
        Some((word(0), word(4)))
    }

    pub fn used_index(&self, ring: usize) -> u16 {
        let at = GuestAddress(ring_at(ring) + USED + 2);
        self.memory.load(at, Ordering::SeqCst).expect("memory")
    }

    /// The header and status descriptors for the next request. Each request has its own memory for
    /// them.
    pub fn frame(&self, ring: usize, kind: u32, sector: u64) -> (Descriptor, Descriptor) {
        let at = ring_at(ring) + HEADERS + u64::from(self.rings[ring].next) * 32;
        let mut header = kind.to_le_bytes().to_vec();
        header.extend([0; 4]);
        header.extend(sector.to_le_bytes());
        self.write(at, &header);
        self.write(at + 16, &[UNTOUCHED]);
        ((at, 16, NEXT, 0), (at + 16, 1, WRITE, 0))
    }

    /// Truncates the guest's memory file. The rings remain, but the test must no longer access the
    /// data area.
    pub fn take_data_away(&self) {
        self.file.set_len(DATA / 2).expect("the file is truncated");
    }

    /// Starts a request with these data segments. Returns its head and the address of its status
    /// byte.
    pub fn submit(
        &mut self,
        ring: usize,
        kind: u32,
        sector: u64,
        pieces: &[(u64, u32)],
    ) -> (u16, u64) {
        let placed = self.place(ring, kind, sector, pieces);
        self.kick(ring);
        placed
    }

    /// Puts a request into the ring without a kick.
    pub fn place(
        &mut self,
        ring: usize,
        kind: u32,
        sector: u64,
        pieces: &[(u64, u32)],
    ) -> (u16, u64) {
        let (header, status) = self.frame(ring, kind, sector);
        let flags = if matches!(kind, IN | GET_ID) { NEXT | WRITE } else { NEXT };
        let mut chain = vec![header];
        chain.extend(pieces.iter().map(|&(address, length)| (address, length, flags, 0)));
        chain.push(status);
        let head = self.offer(ring, &chain);
        (head, status.0)
    }

    /// Executes a request. Returns its status, and the number of bytes that the device wrote.
    pub fn call(
        &mut self,
        ring: usize,
        kind: u32,
        sector: u64,
        pieces: &[(u64, u32)],
    ) -> (u8, u32) {
        let (head, status) = self.submit(ring, kind, sector, pieces);
        let (id, written) = self.used(ring).expect("an answer");
        assert_eq!(id, u32::from(head));
        (self.read(status, 1)[0], written)
    }

    /// Writes these bytes to the disk. Returns the status.
    pub fn store(&mut self, sector: u64, bytes: &[u8]) -> u8 {
        self.write(DATA, bytes);
        self.call(0, OUT, sector, &[(DATA, bytes.len() as u32)]).0
    }

    /// Reads from the disk. Returns the data.
    pub fn load(&mut self, sector: u64, length: u32) -> Vec<u8> {
        assert_eq!(self.call(0, IN, sector, &[(DATA, length)]), (OK, length + 1));
        self.read(DATA, length as usize)
    }

    /// Sends a discard or Write Zeroes request with these ranges (sector, number of sectors,
    /// flags). Returns the status.
    pub fn ranges(&mut self, kind: u32, ranges: &[(u64, u32, u32)]) -> u8 {
        let mut bytes = Vec::new();
        for (sector, sectors, flags) in ranges {
            bytes.extend(sector.to_le_bytes());
            bytes.extend(sectors.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
        }
        self.write(DATA, &bytes);
        self.call(0, kind, 0, &[(DATA, bytes.len() as u32)]).0
    }
}

pub fn ring_at(index: usize) -> u64 {
    RING_BYTES * (index as u64 + 1)
}
