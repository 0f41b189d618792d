//! A regular file or a block device.
//!
//! Direct I/O bypasses the page cache, so that data is not held in memory twice. If a trial read at
//! open fails with the namespace's block size, farblock uses the page cache, and
//! [`describe`](Namespace::describe) gives the reason. Operations whose buffers are not aligned for
//! direct I/O use a bounce buffer.
//!
//! Once the file system has refused to zero ranges or punch holes, farblock writes zeroes as data,
//! and deallocate does nothing.
//!
//! An open file is locked (`flock`), exclusively if writable, shared if read-only, so that two
//! targets do not write one disk by accident. On Linux farblock also takes QEMU's byte locks, and
//! refuses files that a loop device or swap area uses. A writable block device must not be mounted
//! or otherwise in use by the system. A read-only one may be mounted read-only.
//!
//! When a file grows or a device is enlarged, the open namespace grows within two seconds: a thread
//! per file system checks the sizes. Only whole blocks count.
//!
//! When another program truncates the file, the namespace keeps its size. Reads, writes and flushes
//! of missing blocks fail, and no write extends the file. When the file system of a sparse file is
//! full, writes that need space fail with [`BlockError::NoSpace`]; other operations continue.
//!
//! When an open file or device becomes write-protected, its namespace turns read-only within one or
//! two seconds, and writable again after the protection ends.

mod extent;
mod growth;
mod overlaps;
mod probe;
mod protection;
mod queue;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use farblock_block::{BlockError, Change, Changes, Geometry, Namespace, Queue};
use farblock_reactor::os::File;
use farblock_reactor::{Reactor, TaskId};

use crate::error::{self, FileProblem, OpenError};
use farblock_block::size::Size;

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// Block size in bytes; the file size must be a multiple.
    pub block_size: u32,
    /// Open for reading only.
    pub read_only: bool,
    /// Use direct I/O where it works.
    pub direct: bool,
    /// The file is unlinked while it is open; do not warn about it.
    pub temporary: bool,
}

impl FileOptions {
    /// Writable, with direct I/O where it works.
    pub fn new(block_size: u32) -> FileOptions {
        FileOptions { block_size, read_only: false, direct: true, temporary: false }
    }

    /// For reading only.
    pub fn read_only(self) -> FileOptions {
        FileOptions { read_only: true, ..self }
    }

    /// For a file that is deliberately unlinked while it is open: its contents need not last.
    pub fn temporary(self) -> FileOptions {
        FileOptions { temporary: true, ..self }
    }

    /// Through the page cache, even where direct I/O works.
    pub fn buffered(self) -> FileOptions {
        FileOptions { direct: false, ..self }
    }
}

/// Locks a file as if it were a disk, until it is closed. For a file that this process reads or
/// writes but does not export. Waits a few seconds for the previous user.
///
/// # Errors
/// [`FileProblem::InUse`], with the other user, or [`FileProblem::Locked`].
pub fn lock(file: &std::fs::File, path: &Path, read_only: bool) -> Result<(), FileProblem> {
    probe::lock_patiently(file, path, read_only)
}

/// Whether another program holds QEMU's byte locks on an open file that forbid to read it, or also
/// to write it. Needs a file that is open for reading.
#[cfg(target_os = "linux")]
pub fn has_byte_locks(file: &std::fs::File, read_only: bool) -> bool {
    probe::others::is_refused(file, read_only)
}

/// A regular file or a block device as a namespace.
pub struct FileDisk {
    path: PathBuf,
    kind: FileKind,
    caching: Caching,
    shared: Arc<FileShared>,
    /// Keeps the growth check running until it is dropped.
    _growth: Option<growth::Attention>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    Regular,
    Device,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Caching {
    /// Bypasses the page cache; buffers must start at a multiple of this.
    Direct { memory_alignment: usize },
    /// Uses the page cache, for this reason.
    Buffered { reason: String },
}

/// State that all queues share.
struct FileShared {
    file: File,
    /// The geometry at open; only the number of blocks may have changed.
    geometry: Geometry,
    blocks: AtomicU64,
    changes: Changes,
    /// Buffers must start at a multiple of this many bytes.
    memory_alignment: usize,
    /// `None` with direct I/O. The page cache does not read and write blocks atomically.
    overlaps: Option<overlaps::Overlaps>,
    /// The system has not refused `PunchHole` yet.
    can_punch: AtomicBool,
    /// The system has not refused `ZeroRange` yet.
    can_zero: AtomicBool,
    /// The part of the file that exists, should another program truncate it.
    extent: extent::Extent,
    /// Whether it became write-protected.
    protection: protection::Protection,
    /// Whether its path leads to it; see [`growth`].
    name: AtomicU8,
}

impl FileShared {
    fn geometry(&self) -> Geometry {
        // Relaxed: no other data is published through this value.
        let blocks = self.blocks.load(Ordering::Relaxed);
        let read_only = self.geometry.read_only || self.protection.is_set();
        Geometry { blocks, read_only, ..self.geometry }
    }

    fn may(&self, ability: &AtomicBool) -> bool {
        // Relaxed: with a stale value the system refuses once more.
        ability.load(Ordering::Relaxed)
    }
}

impl FileDisk {
    /// Opens and locks a file or device and finds out what works with it.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<FileDisk, OpenError> {
        error::check_block_size(options.block_size)?;
        let path = path.as_ref();
        Self::open_checked(path, options)
            .map_err(|problem| OpenError::File { path: path.to_owned(), problem })
    }

    /// Whether operations bypass the page cache.
    pub fn is_direct(&self) -> bool {
        matches!(self.caching, Caching::Direct { .. })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the size of the file or device and updates [`geometry`](Namespace::geometry). Ignores
    /// a partial block at the end. The caller must notify the users of the namespace.
    pub fn measure(&self) -> Result<(), OpenError> {
        self.measure_checked().map_err(|problem| self.error(problem))
    }

    /// Whether the file or device has grown. If so, [`geometry`](Namespace::geometry) is updated.
    pub fn has_grown(&self) -> bool {
        let has_grown = self.shared.has_grown(self.kind);
        if has_grown {
            self.shared.changes.tell(Change::Geometry);
        }
        has_grown
    }

    /// Whether the file was opened for reading only. A file that was opened for writing may still
    /// be write-protected: [`geometry`](Namespace::geometry) says so.
    pub fn is_opened_to_read(&self) -> bool {
        self.shared.geometry.read_only
    }

    /// Whether the file has been unlinked, so that its contents are lost when it is closed.
    pub fn is_deleted(&self) -> bool {
        self.shared.is_deleted()
    }

    /// Whether the path now leads to another file or device than the open one.
    ///
    /// # Errors
    /// If the path does not exist.
    #[cfg(unix)]
    pub fn is_replaced(&self) -> Result<bool, OpenError> {
        use std::os::unix::fs::MetadataExt;
        let Some(file) = self.shared.system() else { return Ok(false) };
        // udev may create a device's nodes again, so compare device numbers instead of inodes.
        let which = |found: std::fs::Metadata| match self.kind {
            FileKind::Regular => (found.dev(), found.ino()),
            FileKind::Device => (found.rdev(), 0),
        };
        let found = std::fs::metadata(&self.path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => FileProblem::NotFound,
            _ => FileProblem::Other(error),
        });
        let found = found.map_err(|problem| self.error(problem))?;
        Ok(file.metadata().is_ok_and(|ours| which(ours) != which(found)))
    }

    /// Always false on this system: an open file cannot lose its name.
    ///
    /// # Errors
    /// None.
    #[cfg(not(unix))]
    pub fn is_replaced(&self) -> Result<bool, OpenError> {
        Ok(false)
    }

    /// Extends a file to at least this length; new bytes read as zeroes. A device keeps its size.
    pub fn lengthen(&self, bytes: u64) -> Result<(), OpenError> {
        self.lengthen_while(bytes, || true)
    }

    /// Like [`FileDisk::lengthen`], but checks `is_wanted` once the current size is known. Hung
    /// storage blocks the size query, so a caller that times out can still cancel.
    pub fn lengthen_while(
        &self,
        bytes: u64,
        is_wanted: impl Fn() -> bool,
    ) -> Result<(), OpenError> {
        let lengthen = || match &self.shared.file {
            File::System(file) if self.kind == FileKind::Regular => {
                let is_shorter = file.metadata().map_err(FileProblem::Longer)?.len() < bytes;
                if is_shorter && self.shared.geometry.read_only {
                    return Err(FileProblem::OpenedToRead);
                }
                let wanted = is_shorter && is_wanted();
                if wanted { file.set_len(bytes).map_err(FileProblem::Longer) } else { Ok(()) }
            }
            _ => Ok(()),
        };
        lengthen().map_err(|problem| self.error(problem))?;
        self.measure()
    }

    /// Releases the lock that excludes other programs and other opens of this file. The caller is
    /// about to open the file again.
    pub fn unlock(&self) {
        if let Some(file) = self.shared.system()
            && let Err(error) = probe::unlock(file)
        {
            tracing::debug!(%error, "the file was not locked");
        }
    }

    /// Takes the lock again after [`FileDisk::unlock`].
    pub fn lock(&self) -> Result<(), OpenError> {
        let Some(file) = self.shared.system() else { return Ok(()) };
        probe::lock(file, &self.path, self.shared.geometry.read_only)
            .map_err(|problem| self.error(problem))
    }

    fn error(&self, problem: FileProblem) -> OpenError {
        OpenError::File { path: self.path.clone(), problem }
    }

    fn measure_checked(&self) -> Result<(), FileProblem> {
        if let Some(file) = self.shared.system() {
            let blocks = probe::whole_blocks(file, self.kind, self.shared.geometry.block_size)?;
            self.shared.extent.restore();
            if self.shared.blocks.swap(blocks, Ordering::Relaxed) != blocks {
                self.shared.changes.tell(Change::Geometry);
            }
        }
        Ok(())
    }

    fn open_checked(path: &Path, options: &FileOptions) -> Result<FileDisk, FileProblem> {
        let (file, kind, caching) = probe::open(path, options)?;
        let blocks = probe::blocks(&file, kind, options.block_size)?;
        let abilities = probe::abilities(&file, kind, options);
        let geometry = Geometry {
            read_only: options.read_only,
            volatile_cache: true,
            deallocate: abilities.punch,
            preferred_blocks: probe::granularity_bytes(&file, kind) / options.block_size,
            ..Geometry::new(options.block_size, blocks)
        };
        let (memory_alignment, overlaps) = match &caching {
            Caching::Direct { memory_alignment } => (*memory_alignment, None),
            Caching::Buffered { reason } => {
                tracing::info!(path = %path.display(), reason, "using the page cache");
                (1, Some(overlaps::Overlaps::default()))
            }
        };
        let extent = extent::Extent::new(&file, kind, path);
        let shared = FileShared {
            extent,
            file: file.into(),
            geometry,
            blocks: AtomicU64::new(blocks),
            changes: Changes::new(),
            memory_alignment,
            overlaps,
            can_punch: AtomicBool::new(abilities.punch),
            can_zero: AtomicBool::new(abilities.zero),
            protection: protection::Protection::default(),
            name: AtomicU8::default(),
        };
        let (path, shared) = (path.to_owned(), Arc::new(shared));
        let growth = growth::attend(&shared, kind, &path, !options.temporary);
        Ok(FileDisk { path, kind, caching, shared, _growth: Some(growth) })
    }

    /// Like [`FileDisk::simulated`], with checks for growth.
    #[cfg(feature = "sim")]
    pub fn simulated_and_watched(
        medium: farblock_reactor::sim::Medium,
        block_size: u32,
        blocks: u64,
    ) -> FileDisk {
        let disk = FileDisk::simulated(medium, block_size, blocks);
        growth::attend_simulated(&disk.shared);
        disk
    }

    /// A disk of a simulated world, as if it were a file with direct I/O.
    #[cfg(feature = "sim")]
    pub fn simulated(medium: farblock_reactor::sim::Medium, block_size: u32, blocks: u64) -> Self {
        const MEMORY_ALIGNMENT: usize = 512;
        let geometry = Geometry {
            volatile_cache: true,
            deallocate: true,
            ..Geometry::new(block_size, blocks)
        };
        let shared = FileShared {
            extent: extent::Extent::simulated(),
            file: File::Sim(medium),
            geometry,
            blocks: AtomicU64::new(blocks),
            changes: Changes::new(),
            memory_alignment: MEMORY_ALIGNMENT,
            can_punch: AtomicBool::new(true),
            can_zero: AtomicBool::new(true),
            protection: protection::Protection::default(),
            name: AtomicU8::default(),
            overlaps: Default::default(),
        };
        FileDisk {
            path: PathBuf::from("simulated"),
            kind: FileKind::Regular,
            caching: Caching::Direct { memory_alignment: MEMORY_ALIGNMENT },
            shared: Arc::new(shared),
            _growth: None,
        }
    }
}

impl Namespace for FileDisk {
    fn geometry(&self) -> Geometry {
        self.shared.geometry()
    }

    fn changes(&self) -> Option<&Changes> {
        Some(&self.shared.changes)
    }

    fn trouble(&self) -> Option<String> {
        let shared = &self.shared;
        shared.cut_text().or_else(|| shared.protection_text()).or_else(|| shared.loss_text())
    }

    fn describe(&self) -> String {
        let geometry = self.shared.geometry();
        let kind = match self.kind {
            FileKind::Regular => "file",
            FileKind::Device => "block device",
        };
        let caching = match &self.caching {
            Caching::Direct { .. } => "direct I/O".to_owned(),
            Caching::Buffered { reason } => format!("page cache: {reason}"),
        };
        format!(
            "{kind} {} ({}, {}-byte blocks, {}{caching})",
            self.path.display(),
            Size(geometry.capacity_bytes()),
            geometry.block_size,
            if geometry.read_only { "read-only, " } else { "" },
        )
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let file = self.shared.file.clone();
        let queue = queue::FileQueue::new(file, Arc::clone(&self.shared), reactor, parent);
        Ok(Box::new(queue.map_err(|_| BlockError::NoResources)?))
    }
}
