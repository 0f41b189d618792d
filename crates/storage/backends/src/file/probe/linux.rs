//! Files and block devices of Linux.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use farblock_reactor::Buffer;
use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatVfsMountFlags, StatxAttributes, StatxFlags};

use super::{Abilities, FileKind, FileOptions, Obstacle};

/// A buffer alignment that suffices for every known device. The buffers of the pool have this
/// alignment.
const SAFE_ALIGNMENT: u32 = 4096;
/// The `statx` flag that requests the alignment of direct I/O (Linux 6.1).
const STATX_DIOALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);

pub(super) fn is_block_device(metadata: &Metadata) -> bool {
    metadata.file_type().is_block_device()
}

/// False: Linux can turn direct I/O on after the open.
pub(super) const DIRECT_SINCE_OPENING: bool = false;

/// Always false: on Linux a path alone does not show whether a file is a device.
pub(super) fn names_a_device(_: &Path) -> bool {
    false
}

pub(super) fn set_flags(options: &mut OpenOptions, wanted: &FileOptions, kind: FileKind) {
    if kind == FileKind::Device && !wanted.read_only {
        // `O_EXCL` without `O_CREAT`: the open fails while the kernel uses the device, for example
        // for a mount.
        options.custom_flags(OFlags::EXCL.bits() as i32);
    }
}

/// Always false: Linux does not refuse to open a file because other programs have opened it.
pub(super) fn is_shared_otherwise(_: &io::Error) -> bool {
    false
}

/// Whether the device is write-protected. Reads the flag (`BLKROGET`) from sysfs, without an open.
pub(super) fn is_write_protected(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| is_protected_device(found.rdev()))
}

fn is_protected_device(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    text.is_ok_and(|text| text.trim() == "1")
}

/// The reason why the file cannot be written. Checks `chattr +i`, too: some file systems accept
/// writes through a file that was opened before the attribute was set.
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

/// Whether the error means that the attributes of a file forbid writes (`chattr +i` or `+a`). Linux
/// returns EPERM then, even for root, and EACCES for missing permissions.
pub(super) fn is_immutable(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error())
}

/// The size in bytes. Seeks to the end to find it, because the metadata of a device does not
/// contain its size.
pub(super) fn size_bytes(mut file: &File, _: FileKind) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// Turns direct I/O on. Returns the alignment of buffers, or the reason why direct I/O cannot work.
pub(super) fn direct(file: &File, kind: FileKind, block_size: u32) -> Result<usize, String> {
    let (memory, offset) = alignments(file, kind)?;
    if offset.is_some_and(|offset| offset > block_size) {
        let offset = offset.unwrap_or_default();
        return Err(format!("direct I/O on this disk needs blocks of {offset} bytes"));
    }
    let set = |direct: bool| {
        let mut flags = rustix::fs::fcntl_getfl(file)?;
        flags.set(OFlags::DIRECT, direct);
        rustix::fs::fcntl_setfl(file, flags)
    };
    set(true).map_err(|_| "the file system does not support direct I/O".to_owned())?;
    match trial_read(file, block_size) {
        Ok(()) => Ok(memory as usize),
        Err(error) => {
            set(false).map_err(|error| error.to_string())?;
            Err(format!("a trial of direct I/O failed: {error}"))
        }
    }
}

/// The alignment of memory, and the alignment of file offsets if the system reports it.
fn alignments(file: &File, kind: FileKind) -> Result<(u32, Option<u32>), String> {
    if let Ok(found) = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, STATX_DIOALIGN)
        && found.stx_mask & STATX_DIOALIGN.bits() != 0
    {
        return match (found.stx_dio_mem_align, found.stx_dio_offset_align) {
            (0, _) | (_, 0) => Err("the file does not support direct I/O".to_owned()),
            (memory, offset) => Ok((memory, Some(offset))),
        };
    }
    let sector = match kind {
        FileKind::Device => rustix::fs::ioctl_blksszget(file).ok(),
        FileKind::Regular => None,
    };
    Ok((SAFE_ALIGNMENT, sector))
}

/// Tries a direct read of the second block, or of the only one: no other block has a less aligned
/// offset.
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
            // The system punches and zeroes only whole sectors.
            let sector = rustix::fs::ioctl_blksszget(file).unwrap_or(u32::MAX);
            let whole = block_size >= sector;
            Abilities { punch: whole && can_unmap(file), zero: whole }
        }
    }
}

/// Whether the file system supports holes. Punches a hole beyond the end, which changes no data.
fn can_punch(file: &File) -> bool {
    let page = u64::from(SAFE_ALIGNMENT);
    let Ok(metadata) = file.metadata() else { return false };
    let Some(beyond) = metadata.len().checked_next_multiple_of(page) else { return false };
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, mode, beyond, page).is_ok()
}

/// Whether the device can zero a range without a data transfer. The device may deallocate the range
/// when it does so.
fn can_unmap(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    // For a partition, the directory is one level higher.
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
