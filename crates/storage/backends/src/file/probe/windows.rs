//! Files and raw disks of Windows.
//!
//! A raw disk (`\\.\PhysicalDrive1`) or volume (`\\.\D:`) is not a file. It has no metadata, no end
//! to seek to and no locks, and only administrators can open it. Windows itself refuses writes to
//! the parts of a raw disk that belong to a mounted volume.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, Prefix};

use farblock_reactor::{ALIGNMENT_BYTES, Buffer, raw_disk};
use windows_sys::Win32::Foundation::{ERROR_HANDLE_EOF, ERROR_SHARING_VIOLATION};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_ATTRIBUTE_SPARSE_FILE, FILE_FLAG_NO_BUFFERING, FILE_FLAG_OVERLAPPED, FILE_SHARE_READ,
    FILE_SHARE_WRITE,
};

use super::{Abilities, FileKind, FileOptions, Obstacle};

/// True: on Windows, direct I/O must be requested at open.
pub(super) const DIRECT_SINCE_OPENING: bool = true;

/// Whether the path is `\\.\NAME` without further components.
pub(super) fn names_a_device(path: &Path) -> bool {
    let mut components = path.components();
    let device = matches!(
        components.next(),
        Some(Component::Prefix(prefix)) if matches!(prefix.kind(), Prefix::DeviceNS(_))
    );
    device && components.all(|rest| rest == Component::RootDir)
}

pub(super) fn is_block_device(_: &Metadata) -> bool {
    false
}

/// Sets the flag for overlapped I/O, because Windows serializes the operations of handles without
/// this flag.
pub(super) fn set_flags(options: &mut OpenOptions, wanted: &FileOptions, kind: FileKind) {
    let direct = if wanted.direct { FILE_FLAG_NO_BUFFERING } else { 0 };
    options.custom_flags(FILE_FLAG_OVERLAPPED | direct);
    if kind == FileKind::Device {
        // Windows itself has handles open to every disk, so the open must allow other handles to
        // read and write.
        options.share_mode(FILE_SHARE_READ | FILE_SHARE_WRITE);
    }
}

pub(super) fn is_write_protected(_: &Path) -> bool {
    false
}

pub(super) fn is_immutable(_: &io::Error) -> bool {
    false
}

/// Always `None`: Windows refuses to write-protect a file that is open for writing.
pub(super) fn obstacle(_: &File, _: FileKind) -> Option<Obstacle> {
    None
}

pub(super) fn is_shared_otherwise(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_SHARING_VIOLATION as i32)
}

pub(super) fn size_bytes(file: &File, kind: FileKind) -> io::Result<u64> {
    match kind {
        FileKind::Regular => file.metadata().map(|found| found.len()),
        FileKind::Device => raw_disk::size_bytes(file),
    }
}

/// Returns the alignment of buffers, or why the file cannot be used without the cache.
pub(super) fn direct(file: &File, kind: FileKind, block_size: u32) -> Result<usize, String> {
    if let Some(sector) = sector_bytes(file, kind)
        && sector > block_size
    {
        return Err(format!("direct I/O on this disk needs blocks of {sector} bytes"));
    }
    // Try a read of the second block, or of the only one: no other block has a less aligned offset.
    let mut buffer = Buffer::new(block_size as usize);
    let trial = file.seek_read(&mut buffer, u64::from(block_size));
    match trial {
        Err(error) if error.raw_os_error() != Some(ERROR_HANDLE_EOF as i32) => {
            Err(format!("a trial of direct I/O failed: {error}"))
        }
        _ => Ok(ALIGNMENT_BYTES),
    }
}

/// The sector size of a raw disk, in bytes. `None` for a file: a trial read finds the sector size.
fn sector_bytes(file: &File, kind: FileKind) -> Option<u32> {
    match kind {
        FileKind::Regular => None,
        FileKind::Device => raw_disk::sector_bytes(file).ok(),
    }
}

/// A file supports zeroing, until the file system refuses it. A sparse file supports holes, too:
/// zeroing a range deallocates its space. A raw disk supports neither.
pub(super) fn abilities(file: &File, kind: FileKind, _: u32) -> Abilities {
    let sparse = |found: Metadata| found.file_attributes() & FILE_ATTRIBUTE_SPARSE_FILE != 0;
    match kind {
        FileKind::Regular => Abilities { punch: file.metadata().is_ok_and(sparse), zero: true },
        FileKind::Device => Abilities { punch: false, zero: false },
    }
}

pub(super) fn granularity_bytes(file: &File, kind: FileKind) -> u32 {
    sector_bytes(file, kind).unwrap_or(4096)
}
