//! Starts and stops a WinSpd disk.

use crate::core::Worker;
use crate::library::{self, Library, LoadError, Unit};
use crate::limits;
use crate::shared::{End, UnitShared};
use crate::uapi::{CACHE_SUPPORTED, EJECT_DISABLED, Params, UNMAP_SUPPORTED, WRITE_PROTECTED};
use farblock_block::{Geometry, Namespace};
use farblock_frontend::{self as frontend, Cores, Disk, GeometryWatch, Plan};
use farblock_reactor::{Config as ReactorConfig, EngineKind, Polling};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use uuid::Uuid;
use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_ALREADY_EXISTS, ERROR_CANNOT_MAKE, ERROR_FILE_NOT_FOUND,
    ERROR_NO_SUCH_DEVINST, ERROR_PATH_NOT_FOUND, ERROR_PIPE_BUSY,
};

/// The prefix of the names of all threads of a server. CPU accounting groups threads by this
/// prefix.
pub const THREAD_NAME_PREFIX: &str = "winspd";
const WORKER_NAME_PREFIX: &str = "winspd-";

/// The largest supported block size, in bytes. Windows supports no larger blocks.
const MAX_BLOCK_SIZE_BYTES: u32 = 4096;

/// The place where WinSpd makes the disk available.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Device {
    /// Windows itself, through WinSpd's driver.
    Driver,
    /// A named pipe, `\\.\pipe\NAME`, which WinSpd's library serves without a driver. For tests.
    Pipe(String),
}

/// The configuration of a disk.
#[derive(Clone, Debug)]
pub struct Options {
    /// The place where the disk appears.
    pub device: Device,
    /// The GUID by which Windows recognises the disk. Each disk needs a different GUID.
    pub guid: [u8; 16],
    /// The disk's name, which Windows shows after the name "WinSpd": up to 16 letters, digits and
    /// similar characters.
    pub product: String,
    /// Whether the server refuses writes even if the namespace is writable.
    pub read_only: bool,
    /// The event loop to use.
    pub engine: EngineKind,
    /// The processor time that the server may spend on polling.
    pub polling: Polling,
    /// The folder of WinSpd's library. `None`: the folder where WinSpd is installed.
    pub library: Option<PathBuf>,
}

impl Options {
    /// Default options: writable if the namespace is, with a name and GUID derived from `name`.
    #[must_use]
    pub fn new(device: Device, name: &str) -> Options {
        let product = name.chars().take(PRODUCT_BYTES);
        let product = product.map(|c| if matches!(c, ' '..='~') { c } else { '?' }).collect();
        let guid = guid(name);
        let (engine, polling) = Default::default();
        Options { device, guid, product, read_only: false, engine, polling, library: None }
    }
}

const PRODUCT_BYTES: usize = 16;

/// Derives a GUID from a name. The same name always gives the same GUID. The first half is
/// little-endian, as Windows stores it.
fn guid(name: &str) -> [u8; 16] {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()).to_bytes_le()
}

/// The reason why a disk did not start. Its text tells the user how to fix the problem.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// WinSpd is not installed. Holds the last path tried for its library, and Windows' error.
    NotInstalled(PathBuf, io::Error),
    /// WinSpd's library does not have this function, because its version is too old.
    OtherLibrary(&'static str),
    /// WinSpd's library is installed, but its driver is not.
    NoDriver,
    /// Windows requires administrator rights for this operation.
    Denied,
    /// Another process has a disk with this GUID.
    InUse,
    /// Another process listens on this pipe.
    PipeInUse(String),
    /// WinSpd has reached its limit on the number of disks.
    TooMany,
    /// The pipe name is invalid.
    PipeName(String),
    /// The disk name is invalid.
    Product(String),
    /// Windows does not support this block size, in bytes.
    BlockSize(u32),
    /// The namespace has no blocks.
    Empty,
    /// The threads did not start.
    Cores(frontend::StartError),
    /// The system refused to create a thread or another resource of WinSpd.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::NotInstalled(path, error) => write!(
                f,
                "WinSpd is not installed (cannot open {}: {error}): install its newest \
                 winspd-*.msi from {} as an administrator, or attach with --as iscsi, which needs \
                 no driver",
                path.display(),
                super::RELEASES
            ),
            StartError::OtherLibrary(function) => write!(
                f,
                "the installed WinSpd is too old ({} lacks {function}): install the newest \
                 winspd-*.msi from {}",
                library::FILE_NAME,
                super::RELEASES
            ),
            StartError::NoDriver => write!(
                f,
                "WinSpd's library is installed, but its driver is missing: install WinSpd again \
                 from {}, and restart Windows if the installer requests a restart",
                super::RELEASES
            ),
            StartError::Denied => f.write_str(
                "only administrators can create disks in Windows: start farblock as an \
                 administrator, or as a service",
            ),
            StartError::InUse => f.write_str(
                "another WinSpd disk has this identity: detach that disk first, or choose another \
                 name",
            ),
            StartError::PipeInUse(name) => {
                write!(f, "another program listens at {name}: choose another name")
            }
            StartError::TooMany => {
                f.write_str("WinSpd is at its limit of disks: detach one of them")
            }
            StartError::PipeName(name) => {
                write!(f, "{name:?} is not a pipe name: use a name like \\\\.\\pipe\\farblock")
            }
            StartError::Product(product) => write!(
                f,
                "{product:?} is not a disk name: use 1 to {PRODUCT_BYTES} printable ASCII \
                 characters"
            ),
            StartError::BlockSize(bytes) => write!(
                f,
                "Windows does not support blocks of {bytes} bytes: use a namespace with blocks of \
                 512 or 4096 bytes"
            ),
            StartError::Empty => {
                f.write_str("the disk has no blocks: enlarge it before you attach it")
            }
            StartError::Cores(error) => error.fmt(f),
            StartError::System(error) => write!(f, "cannot start the WinSpd server: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<LoadError> for StartError {
    fn from(error: LoadError) -> StartError {
        match error {
            LoadError::Missing(path, error) => StartError::NotInstalled(path, error),
            LoadError::Without(function) => StartError::OtherLibrary(function),
        }
    }
}

impl StartError {
    /// Maps a Windows error number from WinSpd to an error for this device.
    fn from_number(device: &Device, number: u32) -> StartError {
        match (number, device) {
            // The pipe already exists.
            (ERROR_ACCESS_DENIED | ERROR_PIPE_BUSY, Device::Pipe(name)) => {
                StartError::PipeInUse(name.clone())
            }
            (ERROR_ACCESS_DENIED, _) => StartError::Denied,
            (ERROR_FILE_NOT_FOUND | ERROR_PATH_NOT_FOUND | ERROR_NO_SUCH_DEVINST, _) => {
                StartError::NoDriver
            }
            (ERROR_ALREADY_EXISTS, _) => StartError::InUse,
            (ERROR_CANNOT_MAKE, _) => StartError::TooMany,
            _ => StartError::System(io::Error::from_raw_os_error(number as i32)),
        }
    }
}

/// A running disk. Dropping this value removes the disk at once.
pub struct Server {
    shared: Arc<UnitShared>,
    unit: Arc<Unit>,
    worker: Cores,
    watcher: Option<JoinHandle<()>>,
    changes: Option<GeometryWatch>,
    device: Device,
}

impl Server {
    /// Checks whether WinSpd's library is installed.
    ///
    /// # Errors
    /// Returns the error that [`Server::start`] would return for a missing or unsuitable library.
    pub fn available() -> Result<(), StartError> {
        Library::load(None)?;
        Ok(())
    }

    /// Loads WinSpd, opens the namespace, makes a disk from the namespace, and serves the disk.
    ///
    /// # Errors
    /// Fails if an option is invalid, or the server cannot load WinSpd, open the namespace or start
    /// a thread. No thread then remains.
    pub fn start(options: &Options, namespace: Arc<dyn Namespace>) -> Result<Server, StartError> {
        let geometry = namespace.geometry();
        let params = params(options, &geometry)?;
        let library = Library::load(options.library.as_deref())?;
        tracing::info!("using {}", super::NOTICE);
        let length = params.max_transfer_length;
        let disk = Disk::new(namespace, options.read_only);
        let known = disk.geometry();
        let shared = Arc::new(UnitShared::new(disk.clone(), length));
        let device = match &options.device {
            Device::Driver => None,
            Device::Pipe(name) => Some(name.as_str()),
        };
        let unit = Unit::create(library, device, &params, Arc::clone(&shared))
            .map_err(|number| StartError::from_number(&options.device, number))?;
        let unit = Arc::new(unit);
        let worker =
            start_worker(ReactorConfig::new(options.engine, options.polling), &shared, &unit)?;
        // From here on, dropping `server` also stops the threads and removes the unit.
        let device = options.device.clone();
        let mut server = Server { shared, unit, worker, watcher: None, changes: None, device };
        let told = Arc::clone(&server.shared);
        let changed = move || told.resized();
        server.changes = Some(GeometryWatch::start("winspd-changes", &disk, known, changed));
        server.start_dispatcher()?;
        Ok(server)
    }

    fn start_dispatcher(&mut self) -> Result<(), StartError> {
        // A running unit needs a thread that waits for its end, so start that thread first.
        let (sender, receiver) = mpsc::channel();
        let (shared, unit) = (Arc::clone(&self.shared), Arc::clone(&self.unit));
        let name = format!("{THREAD_NAME_PREFIX}-wait");
        let watcher = thread::Builder::new().name(name).spawn(move || {
            if receiver.recv().is_err() {
                return;
            }
            let error = unit.wait();
            shared.dispatched_all();
            let why = io::Error::from_raw_os_error(error as i32);
            tracing::debug!("WinSpd no longer sends requests: {why}");
        });
        let watcher = watcher.map_err(StartError::System)?;
        let started = self.unit.start(library::dispatchers());
        self.watcher = Some(watcher);
        started.map_err(|number| StartError::from_number(&self.device, number))?;
        sender.send(()).expect("the waiting thread receives the message");
        Ok(())
    }

    /// The disk's location: the full name of a pipe, or WinSpd's name for the disk.
    #[must_use]
    pub fn location(&self) -> String {
        match (&self.device, self.unit.target()) {
            (Device::Driver, target) => format!("WinSpd disk {target}"),
            (Device::Pipe(name), target) => format!("{name}\\{target}"),
        }
    }

    /// The kind of event loop that the server uses.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.worker.engine()
    }

    /// The number of requests that the server has not answered yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.accepted()
    }

    /// True if WinSpd itself removed the disk, because its driver was stopped or removed.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.shared.has_dispatched_all()
    }

    /// Adopts a new size or write protection of the namespace. The server checks requests against
    /// the new values at once. WinSpd cannot notify Windows: detach and attach the disk to show
    /// Windows the new size. Call this only if the namespace does not report its changes.
    pub fn resized(&self) {
        self.shared.resized();
    }

    /// Stops the server. The server refuses new requests, finishes and answers the accepted
    /// requests, flushes the written data, and removes the disk.
    ///
    /// Data that Windows still caches is lost. The caller must dismount the disk's volumes first,
    /// because the server does not check for them.
    ///
    /// With `force`, or after [`limits::DRAIN_TIME`], the server removes the disk at once. The
    /// namespace may or may not execute the unanswered requests.
    ///
    /// # Errors
    /// Returns the error of the event loop or of the final flush.
    pub fn stop(mut self, force: bool) -> io::Result<()> {
        self.stop_threads(force)
    }

    fn stop_threads(&mut self, force: bool) -> io::Result<()> {
        if self.worker.is_empty() {
            return Ok(());
        }
        self.changes = None;
        self.shared.stop(if force { End::Forced } else { End::Drained });
        if !force && !self.shared.wait_finished(limits::DRAIN_TIME) {
            let left = self.shared.accepted();
            tracing::warn!(
                "{left} WinSpd requests did not complete in time: removing the disk from Windows"
            );
        }
        // This also cancels a pending answer, if the client does not read it.
        self.unit.shut_down();
        self.shared.stop(End::Forced);
        let result = self.worker.join();
        if let Some(Err(panic)) = self.watcher.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
        result
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !thread::panicking()
            && let Err(error) = self.stop_threads(true)
        {
            tracing::error!("the event loop of a WinSpd disk failed: {error}");
        }
    }
}

/// The disk's properties for WinSpd. Fails if an option is invalid.
fn params(options: &Options, geometry: &Geometry) -> Result<Params, StartError> {
    let Geometry { block_size, blocks, .. } = *geometry;
    if block_size > MAX_BLOCK_SIZE_BYTES {
        return Err(StartError::BlockSize(block_size));
    }
    if blocks == 0 {
        return Err(StartError::Empty);
    }
    if let Device::Pipe(name) = &options.device
        && name.strip_prefix(r"\\.\pipe\").is_none_or(|rest| rest.is_empty())
    {
        return Err(StartError::PipeName(name.clone()));
    }
    let product = options.product.as_bytes();
    let fits = (1..=PRODUCT_BYTES).contains(&product.len());
    if !fits || !product.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err(StartError::Product(options.product.clone()));
    }
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    let flags = EJECT_DISABLED
        | flag(geometry.read_only || options.read_only, WRITE_PROTECTED)
        | flag(geometry.volatile_cache, CACHE_SUPPORTED)
        | flag(geometry.deallocate, UNMAP_SUPPORTED);
    let most = match geometry.max_blocks {
        0 => limits::MAX_TRANSFER_BYTES,
        blocks => limits::MAX_TRANSFER_BYTES.min(blocks.saturating_mul(block_size)),
    };
    let mut product_id = [b' '; PRODUCT_BYTES];
    product_id[..product.len()].copy_from_slice(product);
    Ok(Params {
        guid: options.guid,
        block_count: blocks,
        block_length: block_size,
        product_id,
        product_revision: *b"1.0 ",
        device_type: 0,
        padding: [0; 3],
        flags,
        max_transfer_length: most,
        padding2: 0,
        reserved: [0; 8],
    })
}

/// Starts the thread that executes requests. The thread records its exit in `shared`.
fn start_worker(
    reactor: ReactorConfig,
    shared: &Arc<UnitShared>,
    unit: &Arc<Unit>,
) -> Result<Cores, StartError> {
    let plan = Plan { prefix: WORKER_NAME_PREFIX, count: 1, reactor, begin: || {} };
    let (theirs, unit) = (Arc::clone(shared), Arc::clone(unit));
    let make = move |seat| Ok(Worker::new(seat, Arc::clone(&theirs), Arc::clone(&unit)));
    let set_waker = |wakers: Vec<_>| wakers.into_iter().for_each(|waker| shared.set_waker(waker));
    Cores::start(&plan, shared.disk().namespace(), make, set_waker, |_| {})
        .map_err(StartError::Cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows recognises a disk by its GUID, and gives it the same drive letters and mount points
    /// as before.
    #[test]
    fn the_disk_guid_depends_only_on_the_name() {
        let hex = |name| guid(name).map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(hex("disk"), "6a1f4836759b1e5a8722d8a0626f1f7c");
        assert_ne!(guid("disk"), guid("disk2"));
        assert_ne!(guid("disk")[..8], guid("disk")[8..]);
    }

    /// A transfer consists of whole blocks, and does not exceed the namespace's limit.
    #[test]
    fn the_transfer_limit_is_whole_blocks_within_the_namespace_limit() {
        let length = |block_size, max_blocks| {
            let geometry = Geometry { max_blocks, ..Geometry::new(block_size, 1024) };
            let options = Options::new(Device::Driver, "disk");
            params(&options, &geometry).expect("a disk").max_transfer_length
        };
        assert_eq!((length(512, 0), length(4096, 0)), (256 << 10, 256 << 10));
        assert_eq!((length(512, 3), length(4096, u32::MAX)), (1536, 256 << 10));
    }
}
