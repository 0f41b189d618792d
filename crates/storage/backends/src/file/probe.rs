//! Opens a file, and finds out which operations it supports, or why it cannot be used.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::protection::Obstacle;
use super::{Caching, FileKind, FileOptions};
use crate::error::FileProblem;

/// The time for which to retry a lock. The io_uring of a killed process keeps its files open for a
/// while after the process has exited. Also, udev opens a device briefly to examine it.
const LOCK_TIME: Duration = Duration::from_secs(3);
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The operations on ranges that the system supports, as far as farblock can find out without
/// changing data.
pub(super) struct Abilities {
    pub(super) punch: bool,
    pub(super) zero: bool,
}

#[cfg(target_os = "linux")]
mod beneath;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod loops;
#[cfg(target_os = "linux")]
pub(super) mod others;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(windows)]
use windows as system;

/// Opens and locks a file or device. Turns direct I/O on if `options` request it and it works.
pub(super) fn open(
    path: &Path,
    options: &FileOptions,
) -> Result<(File, FileKind, Caching), FileProblem> {
    let kind = kind_at(path)?;
    let file = open_locked(path, options, kind)?;
    if !options.direct {
        return Ok((file, kind, Caching::Buffered { reason: "as requested".to_owned() }));
    }
    match system::direct(&file, kind, options.block_size) {
        Ok(memory_alignment) => Ok((file, kind, Caching::Direct { memory_alignment })),
        // Windows allows only unbuffered access to a raw disk, so do not fall back to the page
        // cache: report the failure as an error of the device.
        Err(reason) if system::DIRECT_SINCE_OPENING && kind == FileKind::Device => {
            Err(FileProblem::Other(io::Error::other(reason)))
        }
        Err(reason) if system::DIRECT_SINCE_OPENING => {
            drop(file);
            let file = open_locked(path, &options.buffered(), kind)?;
            Ok((file, kind, Caching::Buffered { reason }))
        }
        Err(reason) => Ok((file, kind, Caching::Buffered { reason })),
    }
}

fn open_locked(path: &Path, options: &FileOptions, kind: FileKind) -> Result<File, FileProblem> {
    patiently(path, || {
        let file = open_file(path, options, kind)?;
        lock(&file, path, options.read_only).map(|()| file)
    })
}

/// Locks an open file. Waits up to [`LOCK_TIME`] for the previous user to release it.
pub(super) fn lock_patiently(file: &File, path: &Path, read_only: bool) -> Result<(), FileProblem> {
    patiently(path, || lock(file, path, read_only))
}

fn patiently<T>(
    path: &Path,
    attempt: impl Fn() -> Result<T, FileProblem>,
) -> Result<T, FileProblem> {
    let until = Instant::now() + LOCK_TIME;
    loop {
        match attempt() {
            Err(FileProblem::Locked { .. } | FileProblem::Busy | FileProblem::InUse { .. })
                if Instant::now() < until =>
            {
                std::thread::sleep(LOCK_PAUSE);
            }
            done => return done.map_err(|problem| named(problem, path)),
        }
    }
}

/// The capacity in blocks.
pub(super) fn blocks(file: &File, kind: FileKind, block_size: u32) -> Result<u64, FileProblem> {
    let bytes = system::size_bytes(file, kind).map_err(FileProblem::Other)?;
    if bytes == 0 {
        return Err(FileProblem::Empty);
    }
    if !bytes.is_multiple_of(u64::from(block_size)) {
        return Err(FileProblem::PartialBlock { bytes, block_size });
    }
    Ok(bytes / u64::from(block_size))
}

/// Like [`blocks`], but ignores a partial block at the end: another program may be extending the
/// file.
pub(super) fn whole_blocks(
    file: &File,
    kind: FileKind,
    block_size: u32,
) -> Result<u64, FileProblem> {
    let bytes = system::size_bytes(file, kind).map_err(FileProblem::Other)?;
    match bytes / u64::from(block_size) {
        0 => Err(FileProblem::Empty),
        blocks => Ok(blocks),
    }
}

/// Finds out whether the system can deallocate ranges, or mark them as zero.
pub(super) fn abilities(file: &File, kind: FileKind, options: &FileOptions) -> Abilities {
    if options.read_only {
        return Abilities { punch: false, zero: false };
    }
    system::abilities(file, kind, options.block_size)
}

/// The reason why an open file or device cannot be written at present; `None` if the system reports
/// no obstacle.
pub(super) fn obstacle(file: &File, kind: FileKind) -> Option<Obstacle> {
    system::obstacle(file, kind)
}

/// The unit of writes, in bytes, for which the storage needs no read-modify-write.
pub(super) fn granularity_bytes(file: &File, kind: FileKind) -> u32 {
    system::granularity_bytes(file, kind)
}

/// The kind of the file at `path`. The caller checks it before the open, since opening a pipe would
/// wait for the other end.
fn kind_at(path: &Path) -> Result<FileKind, FileProblem> {
    if system::names_a_device(path) {
        return Ok(FileKind::Device);
    }
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => FileProblem::MayNotRead,
        io::ErrorKind::NotFound => FileProblem::NotFound,
        _ => FileProblem::Other(error),
    })?;
    if metadata.is_file() {
        Ok(FileKind::Regular)
    } else if metadata.is_dir() {
        Err(FileProblem::Directory)
    } else if system::is_block_device(&metadata) {
        Ok(FileKind::Device)
    } else {
        Err(FileProblem::NoDisk)
    }
}

fn open_file(path: &Path, wanted: &FileOptions, kind: FileKind) -> Result<File, FileProblem> {
    let read_only = wanted.read_only;
    if !read_only && kind == FileKind::Device && system::is_write_protected(path) {
        return Err(FileProblem::ReadOnly);
    }
    let mut options = OpenOptions::new();
    options.read(true).write(!read_only);
    system::set_flags(&mut options, wanted, kind);
    options.open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => FileProblem::NotFound,
        io::ErrorKind::ReadOnlyFilesystem => FileProblem::ReadOnly,
        io::ErrorKind::ResourceBusy => FileProblem::Busy,
        _ if system::is_shared_otherwise(&error) => FileProblem::Locked { read_only },
        io::ErrorKind::PermissionDenied if kind == FileKind::Device && cfg!(windows) => {
            FileProblem::NeedsAdministrator
        }
        _ if !read_only && system::is_immutable(&error) => FileProblem::Immutable,
        io::ErrorKind::PermissionDenied if !read_only && File::open(path).is_ok() => {
            FileProblem::MayNotWrite
        }
        io::ErrorKind::PermissionDenied => FileProblem::MayNotRead,
        _ => FileProblem::Other(error),
    })
}

/// Adds the name of the process that has locked the file, if the system reports the name.
fn named(problem: FileProblem, path: &Path) -> FileProblem {
    #[cfg(target_os = "linux")]
    if let FileProblem::Locked { read_only } = problem {
        return FileProblem::InUse { by: others::holder(path, 0), read_only };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = path;
    problem
}

/// Releases the locks of an open file.
pub(super) fn unlock(file: &File) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    others::release(file);
    file.unlock()
}

/// Takes the locks that exclude other programs while the file is open.
pub(super) fn lock(file: &File, path: &Path, read_only: bool) -> Result<(), FileProblem> {
    lock_whole(file, read_only)?;
    #[cfg(target_os = "linux")]
    others::claim(file, path, read_only)?;
    #[cfg(not(target_os = "linux"))]
    let _ = path;
    Ok(())
}

fn lock_whole(file: &File, read_only: bool) -> Result<(), FileProblem> {
    let locked = if read_only { file.try_lock_shared() } else { file.try_lock() };
    match locked {
        Ok(()) => Ok(()),
        Err(TryLockError::Error(error)) => {
            // Some network file systems have no locks. Serve such a file anyway.
            tracing::warn!(%error, "the file cannot be locked against other programs");
            Ok(())
        }
        Err(TryLockError::WouldBlock) => Err(FileProblem::Locked { read_only }),
    }
}

#[cfg(not(any(target_os = "linux", windows)))]
mod system {
    use std::fs::{File, Metadata, OpenOptions};
    use std::io;
    use std::path::Path;

    use super::{Abilities, FileKind, FileOptions, Obstacle};

    pub(super) const DIRECT_SINCE_OPENING: bool = false;

    pub(super) fn names_a_device(_: &Path) -> bool {
        false
    }

    pub(super) fn set_flags(_: &mut OpenOptions, _: &FileOptions, _: FileKind) {}

    pub(super) fn is_shared_otherwise(_: &io::Error) -> bool {
        false
    }

    pub(super) fn is_write_protected(_: &Path) -> bool {
        false
    }

    pub(super) fn is_immutable(_: &io::Error) -> bool {
        false
    }

    pub(super) fn obstacle(_: &File, _: FileKind) -> Option<Obstacle> {
        None
    }

    pub(super) fn size_bytes(file: &File, _: FileKind) -> io::Result<u64> {
        file.metadata().map(|found| found.len())
    }

    pub(super) fn is_block_device(_: &Metadata) -> bool {
        false
    }

    pub(super) fn direct(_: &File, _: FileKind, _: u32) -> Result<usize, String> {
        Err("farblock uses direct I/O only on Linux and Windows".to_owned())
    }

    /// Zeroing ranges counts as supported until the reactor refuses it.
    pub(super) fn abilities(_: &File, _: FileKind, _: u32) -> Abilities {
        Abilities { punch: false, zero: true }
    }

    pub(super) fn granularity_bytes(_: &File, _: FileKind) -> u32 {
        4096
    }
}
