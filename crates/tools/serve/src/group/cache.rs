//! Refuses disks that a member of a group would use through the page cache of its machine.
//!
//! The next leader, on another machine, would not see the data in that cache, and the kernel could
//! write the data after the next leader has begun.

use crate::error::{Failure, Result};
use farblock_backends::file::FileDisk;
use farblock_block::Namespace;
use std::fs::File;
use std::path::Path;

/// The types (statfs(2)) of file systems that only one machine can mount, so all members share its
/// page cache: tmpfs, ext4, XFS, Btrfs, F2FS and overlayfs.
const LOCAL: [u64; 6] = [0x0102_1994, 0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x794c_7630];

/// Checks at the start that the blocks are not smaller than the sectors of a device. Otherwise only
/// the page cache could write them.
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

/// Refuses an opened disk that uses the page cache, unless all members share that cache.
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
