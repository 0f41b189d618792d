//! The front end of a vhost-user disk, for tests and benchmarks. It plays two roles: the virtual
//! machine monitor, and the virtio-blk driver in the guest.
//!
//! **Overview.** [`FrontEnd::connect`] shares memory with a back end, starts rings in this memory,
//! and returns a [`Namespace`]. An operation becomes a virtio-blk request in a ring. The front end
//! kicks (notifies) the back end if the back end wants a kick. The operation completes when an
//! interrupt reports its answer. As in Linux's driver, each request uses one descriptor of the
//! ring, which points to the request's own descriptor table. Each side states the ring index at
//! which it wants the next notification (`VIRTIO_F_EVENT_IDX`).
//!
//! **Contract.** The namespace fulfils the contract of [`farblock_block`]. Each open queue has its
//! own ring, so at most [`Config::queues`] queues can be open. Operations that do not fit into the
//! ring wait in the front end. The front end copies data between the operation's buffer and the
//! shared memory.
//!
//! **Not implemented.** Reconnecting: if the back end dies, operations wait forever. Noticing a new
//! size of the disk. Deallocating.

mod monitor;
mod queue;

use super::blk::{SECTOR_BYTES, feature};
use super::limits::MAX_SEGMENT_BYTES;
use farblock_block::size::Size;
use farblock_block::{BlockError, Geometry, Namespace, Queue};
use farblock_reactor::{Reactor, TaskId};
use monitor::Monitor;
use queue::{FrontQueue, Ring};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// The number of descriptors of a ring, as in QEMU. A ring holds at most this many requests.
pub const RING_SIZE: u16 = 128;
/// The maximum length of one request, in bytes. Linux's driver has a similar limit.
pub const REQUEST_BYTES: u32 = 1 << 20;
/// The limit on the shared memory, in bytes.
pub const MEMORY_BYTES: u64 = 4 << 30;

/// The address of a disk, and the number and size of its rings and requests.
#[derive(Clone, Debug)]
pub struct Config {
    /// The path of the back end's socket.
    pub socket: PathBuf,
    /// The number of rings, and so the maximum number of open queues.
    pub queues: usize,
    /// The maximum number of requests in a ring at once: 1 to [`RING_SIZE`].
    pub depth: u16,
    /// The maximum length of a request, in bytes: 1 to [`REQUEST_BYTES`]. The front end rounds it
    /// up to whole blocks.
    pub request_bytes: u32,
}

impl Config {
    /// The memory that a front end with this configuration shares with the back end, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        Layout::of(self).ring_bytes().saturating_mul(self.queues as u64)
    }
}

/// A disk that a vhost-user back end serves.
pub struct FrontEnd {
    shared: Arc<FrontEndShared>,
    socket: PathBuf,
}

/// The state that all rings share.
struct FrontEndShared {
    geometry: Geometry,
    /// The rings that belong to no open queue.
    rings: Mutex<Vec<Ring>>,
    /// The back end serves the disk only while this connection is open.
    _monitor: Monitor,
}

impl FrontEnd {
    /// Connects to the back end that listens on the configured socket.
    ///
    /// # Errors
    /// Fails if no back end listens on the socket, the back end refuses a request, or no memory is
    /// available.
    pub fn connect(config: &Config) -> io::Result<FrontEnd> {
        let is_fit = config.queues > 0
            && (1..=RING_SIZE).contains(&config.depth)
            && (1..=REQUEST_BYTES).contains(&config.request_bytes)
            && config.memory_bytes() <= MEMORY_BYTES;
        if !is_fit {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the configuration of the vhost-user disk is out of range: {config:?}"),
            ));
        }
        let layout = Layout::of(config);
        let bytes = config.memory_bytes();
        let (file, memory) = lendable(bytes)?;
        let mut monitor = Monitor::connect(&config.socket)?;
        let features = monitor.begin()?;
        monitor.lend(&file, bytes)?;
        let rings = (0..config.queues).map(|index| {
            let ring = Ring::new(&memory, layout, index)?;
            monitor.start_ring(index, RING_SIZE, layout.places(ring.base()), &ring)?;
            Ok(ring)
        });
        let rings = rings.collect::<io::Result<Vec<_>>>()?;
        let geometry = geometry(features, &monitor.config_space()?, layout.request_bytes)?;
        let rings = Mutex::new(rings);
        let shared = Arc::new(FrontEndShared { geometry, rings, _monitor: monitor });
        Ok(FrontEnd { shared, socket: config.socket.clone() })
    }
}

impl Namespace for FrontEnd {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn describe(&self) -> String {
        let Geometry { block_size, .. } = self.shared.geometry;
        let size = Size(self.shared.geometry.capacity_bytes());
        format!("vhost-user disk {} ({size}, {block_size}-byte blocks)", self.socket.display())
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let ring = self.shared.rings().pop().ok_or(BlockError::NoResources)?;
        Ok(Box::new(FrontQueue::new(Arc::clone(&self.shared), ring, reactor, parent)?))
    }
}

impl FrontEndShared {
    fn rings(&self) -> std::sync::MutexGuard<'_, Vec<Ring>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes memory from a file, whose descriptor the front end can pass to the back end.
fn lendable(bytes: u64) -> io::Result<(File, GuestMemoryMmap<()>)> {
    let file = File::from(rustix::fs::memfd_create("farblock-guest", MemfdFlags::CLOEXEC)?);
    file.set_len(bytes)?;
    let length = usize::try_from(bytes).map_err(io::Error::other)?;
    let offset = FileOffset::new(file.try_clone()?, 0);
    let region = MmapRegion::from_file(offset, length).map_err(io::Error::other)?;
    let region = GuestRegionMmap::new(region, GuestAddress(0));
    let region =
        region.ok_or_else(|| io::Error::other("the memory region exceeds the address space"))?;
    let memory = GuestMemoryMmap::from_regions(vec![region]).map_err(io::Error::other)?;
    Ok((file, memory))
}

/// Reads the geometry from the configuration space.
fn geometry(features: u64, space: &[u8], request_bytes: u32) -> io::Result<Geometry> {
    let word = |at: usize| u32::from_le_bytes(space[at..at + 4].try_into().expect("4 bytes"));
    let sectors = u64::from(word(4)) << 32 | u64::from(word(0));
    let has = |feature: u64| features & feature != 0;
    let block_size = if has(feature::BLK_SIZE) { word(20) } else { SECTOR_BYTES as u32 };
    let bytes = sectors.checked_mul(SECTOR_BYTES).filter(|bytes| i64::try_from(*bytes).is_ok());
    let bytes = bytes.filter(|_| Geometry::is_block_size(block_size));
    let bytes = bytes.ok_or_else(|| {
        let why = format!(
            "the disk reports an invalid size: {sectors} sectors, in blocks of {block_size} bytes"
        );
        io::Error::new(io::ErrorKind::InvalidData, why)
    })?;
    Ok(Geometry {
        read_only: has(feature::RO),
        volatile_cache: has(feature::FLUSH) && space[super::blk::WRITEBACK_OFFSET as usize] != 0,
        max_blocks: (request_bytes / block_size).max(1),
        ..Geometry::new(block_size, bytes / u64::from(block_size))
    })
}

/// The offsets of a ring's parts, from the start of the ring:
///
/// ```text
/// descriptors | available | used | a frame for each request | the data of each
/// ```
#[derive(Clone, Copy, Debug)]
struct Layout {
    depth: u16,
    request_bytes: u32,
}

const AVAILABLE_AT: u64 = 4096;
const USED_AT: u64 = 8192;
const FRAMES_AT: u64 = 12288;
/// The length of a request's frame in bytes: its descriptor table, header, status byte, and discard
/// range.
const FRAME_BYTES: u64 = 256;
const PAGE_BYTES: u64 = 4096;
/// The minimum length of a request's data area in bytes: one block of the largest size.
const LEAST_BYTES: u32 = farblock_block::MAX_BLOCK_SIZE_BYTES;

impl Layout {
    fn of(config: &Config) -> Layout {
        let request_bytes = config.request_bytes.clamp(LEAST_BYTES, REQUEST_BYTES);
        let request_bytes = request_bytes.next_multiple_of(LEAST_BYTES);
        Layout { depth: config.depth, request_bytes }
    }

    fn data_at(self) -> u64 {
        (FRAMES_AT + u64::from(self.depth) * FRAME_BYTES).next_multiple_of(PAGE_BYTES)
    }

    fn ring_bytes(self) -> u64 {
        self.data_at() + u64::from(self.depth) * u64::from(self.request_bytes)
    }

    /// The addresses of the descriptors, available ring and used ring of the ring at `base`.
    fn places(self, base: u64) -> [u64; 3] {
        [base, base + AVAILABLE_AT, base + USED_AT]
    }

    /// The addresses of the frame and the data of a request.
    fn slot(self, base: u64, slot: u16) -> (u64, u64) {
        let data = self.data_at() + u64::from(slot) * u64::from(self.request_bytes);
        (base + FRAMES_AT + u64::from(slot) * FRAME_BYTES, base + data)
    }
}

/// The number of descriptors of the largest request: its header, its data and its status byte.
const MOST_PARTS: usize = (REQUEST_BYTES / MAX_SEGMENT_BYTES) as usize + 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_areas_of_a_ring_do_not_overlap() {
        let config = Config { socket: "x".into(), queues: 3, depth: RING_SIZE, request_bytes: 1 };
        let layout = Layout::of(&config);
        assert_eq!(layout.request_bytes, LEAST_BYTES);
        let ends = [
            (16 * u64::from(RING_SIZE), AVAILABLE_AT),
            (AVAILABLE_AT + 6 + 2 * u64::from(RING_SIZE), USED_AT),
            (USED_AT + 6 + 8 * u64::from(RING_SIZE), FRAMES_AT),
            (FRAMES_AT + u64::from(RING_SIZE) * FRAME_BYTES, layout.data_at()),
            (16 * MOST_PARTS as u64, queue::HEADER_AT),
        ];
        assert!(ends.iter().all(|(end, next)| end <= next), "{ends:?}");
        let (_, last) = layout.slot(layout.ring_bytes(), RING_SIZE - 1);
        assert_eq!(last + u64::from(layout.request_bytes), 2 * layout.ring_bytes());
        assert_eq!(config.memory_bytes(), 3 * layout.ring_bytes());
    }

    #[test]
    fn the_geometry_is_read_from_the_configuration_space() {
        let told = Geometry { volatile_cache: true, ..Geometry::new(4096, 1000) };
        let space = super::super::blk::config_space(&told, 2, true);
        let features = super::super::blk::features(&told, 2);
        let geometry = geometry(features, &space, 1 << 20).unwrap();
        assert_eq!(geometry, Geometry { max_blocks: 256, ..told });
        let mut odd = space;
        odd[20] = 3;
        assert!(super::geometry(features, &odd, 1 << 20).is_err());
    }
}
