//! Refuses disks that a member of a group would use through the page cache of its machine.
//!
//! The next leader, on another machine, would not see data in that cache. The kernel of the earlier
//! leader could even write the data to the disk after the next leader has started.

use crate::error::{Failure, Result};
use farblock_backends::file::FileDisk;
use farblock_block::Namespace;
use std::fs::File;
use std::path::Path;

/// The types (statfs(2)) of file systems that only one machine can mount: tmpfs, ext4, XFS, Btrfs,
/// F2FS and overlayfs. All members with such a disk are on one machine and share its page cache.
const LOCAL: [u64; 6] = [0x0102_1994, 0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x794c_7630];

/// Checks at the start that the blocks are not smaller than the sectors of a device. Smaller blocks
/// need the page cache.
pub(super) fn check_sectors(path: &Path, block_size: u32) -> Result<()> {
    let sector = File::open(path).ok().and_then(|file| rustix::fs::ioctl_blksszget(file).ok());
    match sector {
        Some(sector) if sector > block_size => Err(Failure::usage(format_args!(
            "{} has sectors of {sector} bytes: use --block-size {sector}, because the disks of a \
             group must bypass the page cache",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Refuses an open disk that uses the page cache. Accepts a disk on a [`LOCAL`] file system.
pub(super) fn check_direct(path: &Path, disk: &FileDisk) -> Result<(), String> {
    if disk.is_direct() || is_local(path) {
        return Ok(());
    }
    let (path, how) = (path.display(), disk.describe());
    Err(format!("{path}: the disks of a group must bypass the page cache, and this is {how}"))
}

fn is_local(path: &Path) -> bool {
    let kind = rustix::fs::statfs(path).ok().and_then(|it| u64::try_from(it.f_type).ok());
    path.is_file() && kind.is_some_and(|kind| LOCAL.contains(&kind))
}

#[cfg(test)]
#[path = "tests/cache.rs"]
mod tests;
