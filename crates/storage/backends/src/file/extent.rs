//! Detects that another program has truncated an open file.
//!
//! A write beyond the end of a truncated file extends the file again, and the gap then reads as
//! zeroes. Without a check, data whose write was acknowledged would turn into zeroes without an
//! error. So before a batch of finished writes completes, one check compares the size of the file
//! with the size of the namespace. On network file systems and devices only the growth thread
//! compares the sizes, once a second.

use super::{FileKind, FileShared, probe};
use crate::error::FileProblem;
use farblock_block::size::Size;
use farblock_block::{BlockError, Change, Command, Op};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The part of a file that exists, and whether another program has truncated the file.
pub(super) struct Extent {
    /// The first missing block; `u64::MAX` if no block is missing.
    end_blocks: AtomicU64,
    /// Whether a write has started since `look_for_cut` last ran.
    is_written: AtomicBool,
    /// Set if two successive checks of a truncated file found the same size, or no write started
    /// between them. Then this namespace no longer extends the file, so a file that has its full
    /// size again was restored by another program.
    is_quiet: AtomicBool,
    /// Whether an event loop can query the size without blocking for long.
    is_near: bool,
    /// The path at open, or the name of a simulated file.
    name: String,
}

impl Default for Extent {
    fn default() -> Extent {
        let (end_blocks, is_written) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
        let is_quiet = AtomicBool::new(false);
        Extent { end_blocks, is_written, is_quiet, is_near: false, name: String::new() }
    }
}

impl Extent {
    pub(super) fn new(file: &File, kind: FileKind, path: &Path) -> Extent {
        let is_near = kind == FileKind::Regular && is_near(file, path);
        Extent { is_near, name: path.display().to_string(), ..Extent::default() }
    }

    /// The extent of a simulated file. Its size is in memory, so a query never blocks.
    #[cfg(feature = "sim")]
    pub(super) fn simulated() -> Extent {
        Extent { is_near: true, ..Extent::default() }
    }

    /// Forgets the truncation, after the operator has restored the size of the file.
    pub(super) fn restore(&self) {
        self.is_quiet.store(false, Ordering::SeqCst);
        self.end_blocks.store(u64::MAX, Ordering::SeqCst);
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_cut(&self) -> bool {
        self.end_blocks.load(Ordering::SeqCst) != u64::MAX
    }

    /// Returns an error for an operation that touches missing blocks.
    pub(super) fn check(&self, op: &Op) -> Result<(), BlockError> {
        let end = self.end_blocks.load(Ordering::Relaxed);
        if end == u64::MAX {
            return Ok(());
        }
        let is_there = op.lba.saturating_add(u64::from(op.blocks)) <= end;
        match op.command {
            // All blocks are missing, perhaps with data that this flush must make durable.
            Command::Flush if end == 0 => Err(BlockError::WriteFailed),
            Command::Flush => Ok(()),
            _ if is_there => Ok(()),
            command if command.reads() => Err(BlockError::ReadFailed),
            _ => Err(BlockError::WriteFailed),
        }
    }

    /// Records that a write is about to start.
    pub(super) fn note_write(&self) {
        // Read the flag first and store only if needed: a store would take the cache line away from
        // the other cores.
        if !self.is_written.load(Ordering::Relaxed) {
            self.is_written.store(true, Ordering::SeqCst);
        }
    }
}

/// Whether the file system keeps the sizes of files in memory, so that a query does not block.
#[cfg(target_os = "linux")]
fn is_near(file: &File, _: &Path) -> bool {
    const EXT: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683e;
    const TMPFS: u64 = 0x0102_1994;
    const F2FS: u64 = 0xf2f5_2010;
    const ZFS: u64 = 0x2fc1_2fc1;
    const OVERLAY: u64 = 0x794c_7630;
    let near = [EXT, XFS, BTRFS, TMPFS, F2FS, ZFS, OVERLAY];
    rustix::fs::fstatfs(file).is_ok_and(|found| near.contains(&(found.f_type as u64)))
}

/// Whether the file is local. Windows resolves the path of a file on a network drive to the share,
/// `\\?\UNC\SERVER\SHARE`.
#[cfg(windows)]
fn is_near(_: &File, path: &Path) -> bool {
    use std::path::{Component, Prefix};

    let resolved = path.canonicalize();
    let prefix = resolved.as_ref().ok().and_then(|path| path.components().next());
    matches!(prefix, Some(Component::Prefix(it)) if matches!(it.kind(), Prefix::VerbatimDisk(_)))
}

#[cfg(not(any(target_os = "linux", windows)))]
fn is_near(_: &File, _: &Path) -> bool {
    false
}

impl FileShared {
    /// Returns an error for an operation that touches missing blocks, before the operation starts.
    /// For a write of the last block, compares the sizes first, since this write would hide that
    /// the file was truncated.
    pub(super) fn check_extent(&self, op: &Op) -> Result<(), BlockError> {
        let end = op.lba.saturating_add(u64::from(op.blocks));
        let reaches_end = op.blocks > 0 && end >= self.blocks.load(Ordering::Relaxed);
        if op.command.writes() && reaches_end && self.extent.is_near && !self.extent.is_cut() {
            self.look_for_cut(FileKind::Regular);
        }
        self.extent.check(op)
    }

    /// Checks whether the file still has its full length. A queue calls this after writes, before
    /// it returns their completions.
    pub(super) fn is_whole_after_writes(&self) -> bool {
        if !self.extent.is_near || self.extent.is_cut() {
            return !self.extent.is_cut();
        }
        let system = || Some(self.system()?.metadata().ok()?.len());
        let Some(bytes) = self.file.simulated_size().or_else(system) else { return true };
        let blocks = bytes / u64::from(self.geometry.block_size);
        if blocks >= self.blocks.load(Ordering::Relaxed) {
            return true;
        }
        self.cut(blocks, true);
        false
    }

    /// Checks the size after a failed read, since the read may have touched missing blocks.
    pub(super) fn look_after_failed_read(&self) {
        if self.extent.is_near {
            self.look_for_cut(FileKind::Regular);
        }
    }

    /// Compares the size of the file with the namespace, and handles a truncated or restored file.
    pub(super) fn look_for_cut(&self, kind: FileKind) {
        let block_size = self.geometry.block_size;
        let found = match (self.system(), self.file.simulated_size()) {
            (Some(file), _) => probe::whole_blocks(file, kind, block_size),
            (None, Some(bytes)) => Ok(bytes / u64::from(block_size)),
            (None, None) => return,
        };
        let was_written = self.extent.is_written.swap(false, Ordering::SeqCst);
        let blocks = match found {
            Ok(blocks) => blocks,
            Err(FileProblem::Empty) => 0,
            Err(_) => return,
        };
        if blocks < self.blocks.load(Ordering::Relaxed) {
            let end = self.extent.end_blocks.load(Ordering::SeqCst);
            if blocks != end {
                self.cut(blocks, was_written);
            }
            // Operations that start after the call of `cut` do not reach beyond the new end.
            let is_quiet = blocks == end || (end != u64::MAX && !was_written);
            self.extent.is_quiet.fetch_or(is_quiet, Ordering::SeqCst);
        } else if self.extent.is_quiet.load(Ordering::SeqCst) {
            self.extent.restore();
            let path = &self.extent.name;
            tracing::warn!(
                "{path} was truncated while it was in use, and has its former size again"
            );
        }
    }

    /// Records the new end of the file, in blocks. If `was_written`, a write may have extended the
    /// file again after the truncation, so no block can be trusted.
    fn cut(&self, blocks: u64, was_written: bool) {
        let end = if was_written { 0 } else { blocks };
        let before = self.extent.end_blocks.fetch_min(end, Ordering::SeqCst);
        if before > end {
            self.changes.tell(Change::Contents);
        }
        if before == u64::MAX {
            tracing::error!("{}", self.cut_text().unwrap_or_default());
        }
    }

    /// A sentence for the operator about a truncated file; `None` if the file has its full length.
    pub(super) fn cut_text(&self) -> Option<String> {
        let end = self.extent.end_blocks.load(Ordering::SeqCst);
        let name = &self.extent.name;
        let size = |blocks| Size(self.geometry.offset(blocks));
        let before = size(self.blocks.load(Ordering::Relaxed));
        match end {
            u64::MAX => None,
            0 => Some(format!(
                "another program truncated {name} from {before} while it was in use and written, \
                 so farblock uses none of its data: restore the file, then open it again"
            )),
            end => Some(format!(
                "another program truncated {name} from {before} to {} while it was in use: restore \
                 the file, then open it again",
                size(end)
            )),
        }
    }
}
