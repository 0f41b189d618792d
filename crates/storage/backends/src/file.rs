//! A regular file or a block device.
//!
//! Direct I/O bypasses the page cache, which would only hold a second copy of the data. At open,
//! farblock tries a direct read with the block size of the namespace. If the read fails, farblock
//! uses the page cache, and [`describe`](Namespace::describe) gives the reason. Operations whose
//! buffers are not aligned for direct I/O use a bounce buffer.
//!
//! If the file system refuses to zero ranges or to punch holes, farblock writes zeroes as data from
//! then on, and deallocate does nothing.
//!
//! farblock locks an open file with `flock`: exclusively if it is writable, shared if it is
//! read-only. So two targets cannot write to one disk by accident. On Linux farblock also takes
//! QEMU's byte locks, and refuses files that a loop device or swap area uses. To be opened
//! writable, a block device must not be mounted or otherwise in use by the system. To be opened
//! read-only, it may be mounted read-only.
//!
//! When a file or device grows, the open namespace grows within two seconds: one thread per file
//! system checks the sizes. The namespace ignores a partial block at the end.
//!
//! When another program truncates the file, the namespace keeps its size. Reads and writes of
//! missing blocks fail, and no later write extends the file. If a write may have extended the file
//! again before farblock noticed the truncation, lost data would read as zeroes. All reads, writes
//! and flushes then fail. When the file system of a sparse file is full, writes that need space
//! fail with [`BlockError::NoSpace`]; other operations continue.
//!
//! When an open file or device becomes write-protected, its namespace turns read-only within two
//! seconds. The namespace becomes writable again after the protection ends.

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

/// Options for opening a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// The block size in bytes. The size of the file must be a multiple of it.
    pub block_size: u32,
    /// Open the file read-only.
    pub read_only: bool,
    /// Use direct I/O if the file system supports it.
    pub direct: bool,
    /// Whether the caller unlinks the file on purpose while it is open. If so, farblock does not
    /// warn about the deleted file.
    pub temporary: bool,
}

impl FileOptions {
    /// Opens the file writable, with direct I/O if the file system supports it.
    pub fn new(block_size: u32) -> FileOptions {
        FileOptions { block_size, read_only: false, direct: true, temporary: false }
    }

    /// Opens the file read-only.
    pub fn read_only(self) -> FileOptions {
        FileOptions { read_only: true, ..self }
    }

    /// Logs no warning if the caller unlinks the open file, because its contents need not last.
    pub fn temporary(self) -> FileOptions {
        FileOptions { temporary: true, ..self }
    }

    /// Uses the page cache, even if direct I/O works.
    pub fn buffered(self) -> FileOptions {
        FileOptions { direct: false, ..self }
    }
}

/// Locks a file, as if it were a disk, until the file is closed. Use this for a file that this
/// process reads or writes but does not share as a disk. Waits up to three seconds for the previous
/// user to release it.
///
/// # Errors
/// Returns [`FileProblem::InUse`], which names the other user, or [`FileProblem::Locked`].
pub fn lock(file: &std::fs::File, path: &Path, read_only: bool) -> Result<(), FileProblem> {
    probe::lock_patiently(file, path, read_only)
}

/// Whether byte locks in QEMU's format forbid this program to read an open file, or (unless
/// `read_only`) to write it. The file must be open for reading.
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
    /// While this exists, a thread checks whether the file has grown.
    _growth: Option<growth::Attention>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    Regular,
    Device,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Caching {
    /// Direct I/O, which bypasses the page cache. Buffers must start at a multiple of this many
    /// bytes.
    Direct { memory_alignment: usize },
    /// The page cache, with the reason why farblock does not use direct I/O.
    Buffered { reason: String },
}

/// The state that all queues of a file share.
struct FileShared {
    file: File,
    /// The geometry at open. The number of blocks and the write protection may have changed since;
    /// see `blocks` and `protection`.
    geometry: Geometry,
    blocks: AtomicU64,
    changes: Changes,
    /// Buffers must start at a multiple of this many bytes.
    memory_alignment: usize,
    /// Makes overlapping operations run one after the other, because the page cache does not read
    /// and write blocks atomically. `None` with direct I/O.
    overlaps: Option<overlaps::Overlaps>,
    /// False once the system has refused `PunchHole`.
    can_punch: AtomicBool,
    /// False once the system has refused `ZeroRange`.
    can_zero: AtomicBool,
    /// The part of the file that still exists if another program has truncated the file.
    extent: extent::Extent,
    /// Whether the file has become write-protected.
    protection: protection::Protection,
    /// Whether the path still leads to the open file; see [`growth`].
    name: AtomicU8,
}

impl FileShared {
    fn geometry(&self) -> Geometry {
        // Relaxed ordering suffices, since no other data depends on this value.
        let blocks = self.blocks.load(Ordering::Relaxed);
        let read_only = self.geometry.read_only || self.protection.is_set();
        Geometry { blocks, read_only, ..self.geometry }
    }

    fn may(&self, ability: &AtomicBool) -> bool {
        // Relaxed ordering suffices: with an outdated value, the system only refuses one more
        // operation.
        ability.load(Ordering::Relaxed)
    }
}

impl FileDisk {
    /// Opens and locks a file or device, and finds out which operations it supports.
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

    /// The path under which the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the size of the file or device and updates [`geometry`](Namespace::geometry). Ignores
    /// a partial block at the end. Does not notify the users of the namespace: the caller must do
    /// that.
    pub fn measure(&self) -> Result<(), OpenError> {
        self.measure_checked().map_err(|problem| self.error(problem))
    }

    /// Whether the file or device has grown. If so, this updates [`geometry`](Namespace::geometry)
    /// and notifies the watchers of the namespace.
    pub fn has_grown(&self) -> bool {
        let has_grown = self.shared.has_grown(self.kind);
        if has_grown {
            self.shared.changes.tell(Change::Geometry);
        }
        has_grown
    }

    /// Whether the file was opened read-only. Even if it was opened writable, the file may be
    /// write-protected by now; see [`geometry`](Namespace::geometry).
    pub fn is_opened_to_read(&self) -> bool {
        self.shared.geometry.read_only
    }

    /// Whether the file has been unlinked. The contents of such a file are lost when it is closed.
    pub fn is_deleted(&self) -> bool {
        self.shared.is_deleted()
    }

    /// Whether the path now leads to another file or device than the open one.
    ///
    /// # Errors
    /// Fails if the path does not exist.
    #[cfg(unix)]
    pub fn is_replaced(&self) -> Result<bool, OpenError> {
        use std::os::unix::fs::MetadataExt;
        let Some(file) = self.shared.system() else { return Ok(false) };
        // For a device, compare device numbers instead of inodes, since udev may replace the
        // device's node in `/dev`.
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

    /// Always false on this system: an open file keeps its path.
    ///
    /// # Errors
    /// Never fails on this system.
    #[cfg(not(unix))]
    pub fn is_replaced(&self) -> Result<bool, OpenError> {
        Ok(false)
    }

    /// Extends a file to at least `bytes`; the new bytes read as zeroes. A device keeps its size.
    pub fn lengthen(&self, bytes: u64) -> Result<(), OpenError> {
        self.lengthen_while(bytes, || true)
    }

    /// Like [`FileDisk::lengthen`], but calls `is_wanted` after it has read the current size. The
    /// file is extended only if `is_wanted` returns true. The size query hangs if the storage
    /// hangs. A caller that has timed out meanwhile then returns false, and the file keeps its
    /// size.
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

    /// Releases the lock that excludes other programs and other opens of this file. A caller that
    /// opens the file a second time must call this first.
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

    /// Like [`FileDisk::simulated`], but also checks for growth.
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

    /// A simulated disk, which behaves like a file with direct I/O.
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
