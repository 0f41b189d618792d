//! The disk that an example serves, given by a specification or a URL. To simulate a resize, the
//! example may serve only the first part of the disk.

use farblock_backends::Spec;
use farblock_block::{BlockError, Change, Changes, Geometry, Namespace, Queue, Watch};
use farblock_host::disk::{Disk, DiskOptions};
use farblock_host::{Options, url::SCHEME};
use farblock_reactor::{EngineKind, Reactor, TaskId};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A namespace that shows only the first part of a disk.
pub(crate) struct ShownPart {
    inner: Arc<dyn Namespace>,
    blocks: AtomicU64,
}

impl ShownPart {
    /// Opens the disk that `disk` names. A remote disk keeps its own block size. Calls `resized`
    /// when the size of the disk changes, until the caller drops the watch.
    pub(crate) fn open(
        disk: &str,
        block_size: u32,
        read_only: bool,
        engine: EngineKind,
        resized: impl Fn() + Send + Sync + 'static,
    ) -> Result<(Arc<ShownPart>, Option<Watch>), Box<dyn Error>> {
        let whole = |inner| Arc::new(ShownPart { inner, blocks: AtomicU64::new(u64::MAX) });
        if !disk.starts_with(SCHEME) {
            return Ok((whole(Spec::parse(disk)?.open(block_size, read_only)?), None));
        }
        let connection = Options { engine, ..Options::default() };
        let reconnect_delay = Duration::from_secs(1);
        let options = DiskOptions { connection, reconnect_delay, ..DiskOptions::default() };
        let disk = Disk::connect(&[disk.parse()?], &options)?;
        let watch = disk.changes().watch(move |change| {
            if change == Change::Geometry {
                resized();
            }
        });
        Ok((whole(Arc::new(disk)), Some(watch)))
    }

    /// Shows only the first `bytes` bytes from now on, or the whole disk if it is shorter.
    pub(crate) fn resize(&self, bytes: u64) {
        let block_size = u64::from(self.inner.geometry().block_size);
        self.blocks.store(bytes / block_size, Ordering::Relaxed);
    }
}

impl Namespace for ShownPart {
    fn geometry(&self) -> Geometry {
        let geometry = self.inner.geometry();
        let blocks = geometry.blocks.min(self.blocks.load(Ordering::Relaxed));
        Geometry { blocks, ..geometry }
    }

    fn changes(&self) -> Option<&Changes> {
        self.inner.changes()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        self.inner.open(reactor, parent)
    }
}
