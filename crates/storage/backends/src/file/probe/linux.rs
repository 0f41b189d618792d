//! Files and block devices of Linux.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use farblock_reactor::Buffer;
use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatVfsMountFlags, StatxAttributes, StatxFlags};

use super::{Abilities, FileKind, FileOptions, Obstacle};

/// Alignment of buffers that suffices for any known device; the pool's buffers have it.
const SAFE_ALIGNMENT: u32 = 4096;
/// Asks `statx` for the alignment of direct I/O (Linux 6.1).
const STATX_DIOALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);

pub(super) fn is_block_device(metadata: &Metadata) -> bool {
    metadata.file_type().is_block_device()
}

/// Direct I/O is turned on after opening.
pub(super) const DIRECT_SINCE_OPENING: bool = false;

/// Always false: on Linux a name does not show whether the file is a device.
pub(super) fn names_a_device(_: &Path) -> bool {
    false
}

pub(super) fn set_flags(options: &mut OpenOptions, wanted: &FileOptions, kind: FileKind) {
    if kind == FileKind::Device && !wanted.read_only {
        // `O_EXCL` on a device, without `O_CREAT`: the open fails while the system itself uses it.
        options.custom_flags(OFlags::EXCL.bits() as i32);
    }
}

/// Linux never refuses an open because of other users.
pub(super) fn is_shared_otherwise(_: &io::Error) -> bool {
    false
}

/// Whether the device is write-protected (`BLKROGET`, read from sysfs without opening it).
pub(super) fn is_write_protected(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| is_protected_device(found.rdev()))
}

fn is_protected_device(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    text.is_ok_and(|text| text.trim() == "1")
}

/// Why the file cannot be written. Checks `chattr +i`, too: some file systems accept writes through
/// a file that was opened before it.
pub(super) fn obstacle(file: &File, kind: FileKind) -> Option<Obstacle> {
    if kind == FileKind::Device {
        let is_protected = file.metadata().is_ok_and(|found| is_protected_device(found.rdev()));
        return is_protected.then_some(Obstacle::Device);
    }
    let mount = rustix::fs::fstatvfs(file);
    if mount.is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        return Some(Obstacle::FileSystem);
    }
    let found = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::empty());
    let protects = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    let is_protected = found.is_ok_and(|found| found.stx_attributes.intersects(protects));
    is_protected.then_some(Obstacle::Attribute)
}

/// Whether the error means that a file's attributes forbid writes (`chattr +i` or `+a`): EPERM,
/// even for root. Missing permissions give EACCES.
pub(super) fn is_immutable(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error())
}

/// The size in bytes. Seeks to the end, because the metadata of a device lacks the size.
pub(super) fn size_bytes(mut file: &File, _: FileKind) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// Turns direct I/O on and returns the alignment of buffers, or the reason why it cannot.
pub(super) fn direct(file: &File, kind: FileKind, block_size: u32) -> Result<usize, String> {
    let (memory, offset) = alignments(file, kind)?;
    if offset.is_some_and(|offset| offset > block_size) {
        let offset = offset.unwrap_or_default();
        return Err(format!("direct I/O needs blocks of {offset} bytes here"));
    }
    let set = |direct: bool| {
        let mut flags = rustix::fs::fcntl_getfl(file)?;
        flags.set(OFlags::DIRECT, direct);
        rustix::fs::fcntl_setfl(file, flags)
    };
    set(true).map_err(|_| "the file system has no direct I/O".to_owned())?;
    match trial_read(file, block_size) {
        Ok(()) => Ok(memory as usize),
        Err(error) => {
            set(false).map_err(|error| error.to_string())?;
            Err(format!("a trial of direct I/O failed: {error}"))
        }
    }
}

/// The alignments of memory and, if it is known, of file offsets.
fn alignments(file: &File, kind: FileKind) -> Result<(u32, Option<u32>), String> {
    if let Ok(found) = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, STATX_DIOALIGN)
        && found.stx_mask & STATX_DIOALIGN.bits() != 0
    {
        return match (found.stx_dio_mem_align, found.stx_dio_offset_align) {
            (0, _) | (_, 0) => Err("the file takes no direct I/O".to_owned()),
            (memory, offset) => Ok((memory, Some(offset))),
        };
    }
    let sector = match kind {
        FileKind::Device => rustix::fs::ioctl_blksszget(file).ok(),
        FileKind::Regular => None,
    };
    Ok((SAFE_ALIGNMENT, sector))
}

/// Reads the second block, if it exists: its offset has the smallest alignment.
fn trial_read(file: &File, block_size: u32) -> io::Result<()> {
    let mut buffer = Buffer::new(block_size as usize);
    let read = file.read_at(&mut buffer, u64::from(block_size))?;
    if read == 0 {
        file.read_exact_at(&mut buffer, 0)?;
    }
    Ok(())
}

pub(super) fn abilities(file: &File, kind: FileKind, block_size: u32) -> Abilities {
    match kind {
        FileKind::Regular => Abilities { punch: can_punch(file), zero: true },
        FileKind::Device => {
            // For punching and zeroing, the system requires whole sectors.
            let sector = rustix::fs::ioctl_blksszget(file).unwrap_or(u32::MAX);
            let whole = block_size >= sector;
            Abilities { punch: whole && can_unmap(file), zero: whole }
        }
    }
}

/// Punches a hole beyond the end, which changes nothing but fails where holes are unsupported.
fn can_punch(file: &File) -> bool {
    let page = u64::from(SAFE_ALIGNMENT);
    let Ok(metadata) = file.metadata() else { return false };
    let Some(beyond) = metadata.len().checked_next_multiple_of(page) else { return false };
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, mode, beyond, page).is_ok()
}

/// Whether the device zeroes (and may deallocate) without a data transfer.
fn can_unmap(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    // A partition has the directory one level higher.
    ["queue", "../queue"].iter().any(|queue| {
        let path = format!("/sys/dev/block/{major}:{minor}/{queue}/write_zeroes_max_bytes");
        std::fs::read_to_string(path).is_ok_and(|text| text.trim() != "0")
    })
}

pub(super) fn granularity_bytes(file: &File, kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => file.metadata().map_or(0, |found| found.blksize() as u32),
        FileKind::Device => rustix::fs::ioctl_blkpbszget(file).unwrap_or(0),
    }
}
