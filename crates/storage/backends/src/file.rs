//! A regular file or a block device.
//!
//! Direct I/O (past the page cache, so that nothing is held in memory twice) is used where a trial
//! at opening shows that it works with the namespace's block size; otherwise the page cache is
//! used, and [`describe`](Namespace::describe) says why. Buffers that are not aligned enough for
//! direct I/O are copied through one that is.
//!
//! What the file system cannot do is learnt at the first refusal and replaced: zeroes are written
//! out, and deallocating does nothing.
//!
//! A file is locked (`flock`) while it is open: exclusively if writable, shared if read-only, so
//! that two targets do not write one disk by accident. A writable block device must not be mounted
//! or otherwise in use by the system.
//!
//! When somebody cuts the file short meanwhile, reads beyond its end fail with
//! [`BlockError::ReadFailed`]. When a sparse file's file system is full, the write that finds no
//! room fails with [`BlockError::NoSpace`], and other operations go on.

mod overlaps;
mod probe;
mod queue;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farblock_block::{BlockError, Geometry, Namespace, Queue};
use farblock_reactor::os::File;
use farblock_reactor::{Reactor, TaskId};

use crate::error::{self, FileProblem, OpenError};
use crate::size::Size;

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// Bytes in a block; the file must be a whole number of them.
    pub block_size: u32,
    /// Open for reading only.
    pub read_only: bool,
    /// Use direct I/O where it works.
    pub direct: bool,
}

impl FileOptions {
    /// Writable, with direct I/O where it works.
    pub fn new(block_size: u32) -> FileOptions {
        FileOptions { block_size, read_only: false, direct: true }
    }

    /// For reading only.
    pub fn read_only(self) -> FileOptions {
        FileOptions { read_only: true, ..self }
    }

    /// Through the page cache, even where direct I/O works.
    pub fn buffered(self) -> FileOptions {
        FileOptions { direct: false, ..self }
    }
}

/// A regular file or a block device as a namespace.
pub struct FileDisk {
    path: PathBuf,
    file: File,
    kind: Kind,
    caching: Caching,
    shared: Arc<Shared>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Regular,
    Device,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Caching {
    /// Past the page cache; buffers must begin at a multiple of this.
    Direct { memory_alignment: usize },
    /// Through the page cache, and why.
    Buffered { reason: String },
}

/// What the queues share.
struct Shared {
    geometry: Geometry,
    /// Buffers must begin at a multiple of this many bytes.
    memory_alignment: usize,
    /// Where blocks are not read and written as a whole by themselves: the page cache.
    overlaps: Option<overlaps::Overlaps>,
    /// `PunchHole` has not been refused yet.
    can_punch: AtomicBool,
    /// `ZeroRange` has not been refused yet.
    can_zero: AtomicBool,
}

impl Shared {
    fn may(&self, ability: &AtomicBool) -> bool {
        // Relaxed: a stale value costs one more refusal.
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

    /// Whether operations go past the page cache.
    pub fn is_direct(&self) -> bool {
        matches!(self.caching, Caching::Direct { .. })
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
        let shared = Shared {
            geometry,
            memory_alignment,
            overlaps,
            can_punch: AtomicBool::new(abilities.punch),
            can_zero: AtomicBool::new(abilities.zero),
        };
        let (path, file) = (path.to_owned(), file.into());
        Ok(FileDisk { path, file, kind, caching, shared: Arc::new(shared) })
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
        let shared = Shared {
            geometry,
            memory_alignment: MEMORY_ALIGNMENT,
            can_punch: AtomicBool::new(true),
            can_zero: AtomicBool::new(true),
            overlaps: Default::default(),
        };
        FileDisk {
            path: PathBuf::from("simulated"),
            file: File::Sim(medium),
            kind: Kind::Regular,
            caching: Caching::Direct { memory_alignment: MEMORY_ALIGNMENT },
            shared: Arc::new(shared),
        }
    }
}

impl Namespace for FileDisk {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn describe(&self) -> String {
        let geometry = self.shared.geometry;
        let kind = match self.kind {
            Kind::Regular => "file",
            Kind::Device => "block device",
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
        // A duplicate is the same open file: it shares the lock, and direct I/O.
        let file = self.file.try_clone().map_err(|_| BlockError::NoResources)?;
        let queue = queue::FileQueue::new(file, Arc::clone(&self.shared), reactor, parent);
        Ok(Box::new(queue.map_err(|_| BlockError::NoResources)?))
    }
}
