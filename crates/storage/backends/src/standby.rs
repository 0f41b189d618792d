//! A namespace for a disk that this machine cannot open while another machine uses it. DRBD, for
//! example, lets only the primary machine open its device.
//!
//! Until this machine becomes the primary, [`Standby`] is a namespace of the same size whose
//! operations fail with [`BlockError::Disconnected`]. So hosts use another path to the same disk. A
//! thread tries repeatedly to open the device, and exits once the device is open. From then on the
//! device executes all operations and stays open. Stop the program before you make this machine
//! secondary again.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use farblock_block::{
    Availability, BlockError, Change, Changes, Completion, Geometry, Namespace, Op, Queue, Watch,
};
use farblock_reactor::{Reactor, TaskId};

use crate::error::OpenError;
use crate::file::{FileDisk, FileOptions};

/// The interval between attempts to open the device. A failover takes up to this much longer.
const PERIOD: Duration = Duration::from_millis(100);

/// Returns a standby for a file or device whose open failed with `error`. The standby opens the
/// device as soon as another machine releases it.
///
/// # Errors
/// Returns `error` unless the open failed because another machine uses the device.
pub fn instead_of(
    error: OpenError,
    path: &Path,
    options: &FileOptions,
) -> Result<Arc<dyn Namespace>, OpenError> {
    let Some(bytes) = drbd::bytes_elsewhere(path, &error) else { return Err(error) };
    let (path, options) = (path.to_owned(), *options);
    let name = format!("DRBD device {}", path.display());
    tracing::info!("{name} is secondary on this node: the target serves it once it is primary");
    let blocks = bytes / u64::from(options.block_size);
    let geometry = Geometry {
        read_only: options.read_only,
        volatile_cache: true,
        // Report that deallocate is supported. If it turns out that the device does not support it,
        // deallocate does nothing.
        deallocate: !options.read_only,
        ..Geometry::new(options.block_size, blocks)
    };
    let open = move || {
        let device = FileDisk::open(&path, &options)?;
        tracing::info!(
            "DRBD device {} is primary on this node: the target serves it",
            path.display()
        );
        Ok(Arc::new(device) as Arc<dyn Namespace>)
    };
    Ok(Arc::new(Standby::new(name, geometry, open)))
}

type Opening = dyn Fn() -> Result<Arc<dyn Namespace>, OpenError> + Send + Sync;

/// A namespace for a device that another machine uses; see the [module](self).
pub struct Standby(Arc<StandbyShared>);

struct StandbyShared {
    name: String,
    /// The geometry to report until the device is open.
    geometry: Geometry,
    device: OnceLock<Arc<dyn Namespace>>,
    changes: Changes,
    /// The watch on changes of the device.
    watch: Mutex<Option<Watch>>,
    is_dropped: Mutex<bool>,
    dropped: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Standby {
    /// Creates a standby for a device that `open` cannot open yet. When the device opens, only its
    /// capacity may differ from `geometry`.
    pub fn new(
        name: String,
        geometry: Geometry,
        open: impl Fn() -> Result<Arc<dyn Namespace>, OpenError> + Send + Sync + 'static,
    ) -> Standby {
        let shared = Arc::new(StandbyShared {
            name,
            geometry,
            device: OnceLock::new(),
            changes: Changes::new(),
            watch: Mutex::new(None),
            is_dropped: Mutex::new(false),
            dropped: Condvar::new(),
        });
        let waiting = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("standby".to_owned());
        if let Err(error) = thread.spawn(move || waiting.wait(&open)) {
            tracing::warn!("cannot watch whether {} becomes primary: {error}", shared.name);
        }
        Standby(shared)
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        *lock(&self.0.is_dropped) = true;
        self.0.dropped.notify_all();
    }
}

impl StandbyShared {
    /// Retries until the device is open or the standby is dropped.
    fn wait(self: Arc<Self>, open: &Opening) {
        let mut said = None;
        loop {
            let waited =
                self.dropped
                    .wait_timeout_while(lock(&self.is_dropped), PERIOD, |is_dropped| !*is_dropped);
            if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                return;
            }
            match open() {
                Ok(device) => return self.begin(device),
                // Log each new reason once, not ten times a second.
                Err(error) if said.replace(error.to_string()) != Some(error.to_string()) => {
                    tracing::debug!("{error}");
                }
                Err(_) => {}
            }
        }
    }

    fn begin(self: Arc<Self>, device: Arc<dyn Namespace>) {
        let changes = self.changes.clone();
        let watch = device.changes().map(|of| of.watch(move |change| changes.tell(change)));
        *lock(&self.watch) = watch;
        let is_first = self.device.set(device).is_ok();
        assert!(is_first, "the device opened twice");
        self.changes.tell(Change::Availability);
        self.changes.tell(Change::Geometry);
    }
}

impl Namespace for Standby {
    fn geometry(&self) -> Geometry {
        let device = self.0.device.get().map(|device| device.geometry());
        let blocks = device.map_or(self.0.geometry.blocks, |geometry| geometry.blocks);
        let read_only = self.0.geometry.read_only || device.is_some_and(|it| it.read_only);
        Geometry { blocks, read_only, ..self.0.geometry }
    }

    fn describe(&self) -> String {
        match self.0.device.get() {
            Some(device) => device.describe(),
            None => format!("{} (secondary on this node)", self.0.name),
        }
    }

    fn changes(&self) -> Option<&Changes> {
        Some(&self.0.changes)
    }

    fn availability(&self) -> Availability {
        let device = self.0.device.get();
        device.map_or(Availability::Waiting, |device| device.availability())
    }

    fn trouble(&self) -> Option<String> {
        self.0.device.get().and_then(|device| device.trouble())
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        Ok(Box::new(StandbyQueue {
            shared: Arc::clone(&self.0),
            reactor: reactor.clone(),
            parent,
            inner: None,
            refused: Vec::new(),
        }))
    }
}

struct StandbyQueue {
    shared: Arc<StandbyShared>,
    reactor: Reactor,
    parent: TaskId,
    /// The queue to the device; `None` until the first operation after the device was opened.
    inner: Option<Box<dyn Queue>>,
    /// The completions of failed operations that `poll` has not returned yet.
    refused: Vec<Completion>,
}

impl StandbyQueue {
    fn inner(&mut self) -> Result<&mut Box<dyn Queue>, BlockError> {
        if self.inner.is_none() {
            let device = self.shared.device.get().ok_or(BlockError::Disconnected)?;
            self.inner = Some(device.open(&self.reactor, self.parent)?);
        }
        Ok(self.inner.as_mut().expect("the queue was opened above"))
    }
}

impl Queue for StandbyQueue {
    fn submit(&mut self, op: Op) {
        match self.inner() {
            Ok(inner) => inner.submit(op),
            Err(error) => self.refused.push(op.complete(Err(error))),
        }
    }

    fn abandon(&mut self, unwanted: &mut dyn FnMut(u64) -> bool) {
        if let Some(inner) = &mut self.inner {
            inner.abandon(unwanted);
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.refused);
        if let Some(inner) = &mut self.inner {
            inner.poll(done);
        }
    }

    fn in_flight(&self) -> usize {
        self.refused.len() + self.inner.as_ref().map_or(0, |inner| inner.in_flight())
    }
}

#[cfg(target_os = "linux")]
mod drbd {
    use crate::error::{FileProblem, OpenError};
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    use std::path::Path;

    /// The major device number of DRBD.
    const MAJOR: u32 = 147;
    /// The error of a read-only open on a secondary. A writable open fails with EROFS.
    const EMEDIUMTYPE: i32 = 124;
    /// The unit of sizes in sysfs, in bytes.
    const SECTOR_BYTES: u64 = 512;

    /// The size of a device that cannot be opened because another machine uses it, in bytes.
    pub(super) fn bytes_elsewhere(path: &Path, error: &OpenError) -> Option<u64> {
        let is_secondary = match error {
            OpenError::File { problem: FileProblem::ReadOnly, .. } => true,
            OpenError::File { problem: FileProblem::Other(error), .. } => {
                error.raw_os_error() == Some(EMEDIUMTYPE)
            }
            _ => false,
        };
        let metadata = std::fs::metadata(path).ok().filter(|_| is_secondary)?;
        let (major, minor) =
            (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
        if !metadata.file_type().is_block_device() || major != MAJOR {
            return None;
        }
        let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/size")).ok()?;
        let sectors: u64 = text.trim().parse().ok()?;
        // A size of zero means unknown: DRBD has neither attached its local disk nor connected to
        // its peer.
        sectors.checked_mul(SECTOR_BYTES).filter(|bytes| *bytes > 0)
    }
}

#[cfg(not(target_os = "linux"))]
mod drbd {
    use crate::error::OpenError;
    use std::path::Path;

    pub(super) fn bytes_elsewhere(_: &Path, _: &OpenError) -> Option<u64> {
        None
    }
}
