//! Opening a file: what is wrong with it, and what works with it.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use super::{Caching, FileOptions, Kind};
use crate::error::FileProblem;

/// How often a device's lock is tried: udev holds it for a moment while it looks at a device.
const DEVICE_LOCK_TRIES: u32 = 10;
const DEVICE_LOCK_PAUSE: Duration = Duration::from_millis(50);

/// What the system can do with a range, as far as is known without trying it on data.
pub(super) struct Abilities {
    pub(super) punch: bool,
    pub(super) zero: bool,
}

/// Opens a file or device and takes its lock.
pub(super) fn open_locked(path: &Path, read_only: bool) -> Result<(File, Kind), FileProblem> {
    // Before opening, since opening a pipe would wait for its other end.
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => FileProblem::MayNotRead,
        io::ErrorKind::NotFound => FileProblem::NotFound,
        _ => FileProblem::Other(error),
    })?;
    let kind = kind_of(&metadata)?;
    let file = open_file(path, read_only, kind)?;
    lock(&file, read_only, kind)?;
    Ok((file, kind))
}

/// The capacity in blocks.
pub(super) fn blocks(mut file: &File, block_size: u32) -> Result<u64, FileProblem> {
    // Seeking tells a device's size, too, which its metadata does not.
    let bytes = file.seek(SeekFrom::End(0)).map_err(FileProblem::Other)?;
    if bytes == 0 {
        return Err(FileProblem::Empty);
    }
    if !bytes.is_multiple_of(u64::from(block_size)) {
        return Err(FileProblem::PartialBlock { bytes, block_size });
    }
    Ok(bytes / u64::from(block_size))
}

/// Turns direct I/O on if it is wanted and works.
pub(super) fn caching(file: &File, kind: Kind, options: &FileOptions) -> Caching {
    if !options.direct {
        return Caching::Buffered { reason: "as asked".to_owned() };
    }
    match system::direct(file, kind, options.block_size) {
        Ok(memory_alignment) => Caching::Direct { memory_alignment },
        Err(reason) => Caching::Buffered { reason },
    }
}

/// Finds out whether ranges can be given back or marked as zero.
pub(super) fn abilities(file: &File, kind: Kind, options: &FileOptions) -> Abilities {
    if options.read_only {
        return Abilities { punch: false, zero: false };
    }
    system::abilities(file, kind, options.block_size)
}

/// Writes of multiples of this need no reading underneath.
pub(super) fn granularity_bytes(file: &File, kind: Kind) -> u32 {
    system::granularity_bytes(file, kind)
}

fn kind_of(metadata: &Metadata) -> Result<Kind, FileProblem> {
    if metadata.is_file() {
        Ok(Kind::Regular)
    } else if metadata.is_dir() {
        Err(FileProblem::Directory)
    } else if system::is_block_device(metadata) {
        Ok(Kind::Device)
    } else {
        Err(FileProblem::NoDisk)
    }
}

fn open_file(path: &Path, read_only: bool, kind: Kind) -> Result<File, FileProblem> {
    let mut options = OpenOptions::new();
    options.read(true).write(!read_only);
    if kind == Kind::Device && !read_only {
        system::open_exclusively(&mut options);
    }
    options.open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => FileProblem::NotFound,
        io::ErrorKind::ReadOnlyFilesystem => FileProblem::ReadOnly,
        io::ErrorKind::ResourceBusy => FileProblem::Busy,
        io::ErrorKind::PermissionDenied if !read_only && File::open(path).is_ok() => {
            FileProblem::MayNotWrite
        }
        io::ErrorKind::PermissionDenied => FileProblem::MayNotRead,
        _ => FileProblem::Other(error),
    })
}

fn lock(file: &File, read_only: bool, kind: Kind) -> Result<(), FileProblem> {
    let tries = if kind == Kind::Device { DEVICE_LOCK_TRIES } else { 1 };
    for attempt in 1..=tries {
        let locked = if read_only { file.try_lock_shared() } else { file.try_lock() };
        match locked {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => {
                // Some network file systems have no locks. That is no reason to refuse the file.
                tracing::warn!(%error, "the file cannot be locked against other programs");
                return Ok(());
            }
            Err(TryLockError::WouldBlock) if attempt < tries => {
                std::thread::sleep(DEVICE_LOCK_PAUSE);
            }
            Err(TryLockError::WouldBlock) => {}
        }
    }
    Err(FileProblem::Locked { read_only })
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs::{File, Metadata, OpenOptions};
    use std::io;
    use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};

    use farblock_reactor::Buffer;
    use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags};

    use super::{Abilities, Kind};

    /// Enough for any device that is known; the pool's buffers have it.
    const SAFE_ALIGNMENT: u32 = 4096;
    /// Asks `statx` for the alignment of direct I/O (Linux 6.1).
    const STATX_DIOALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);

    pub(super) fn is_block_device(metadata: &Metadata) -> bool {
        metadata.file_type().is_block_device()
    }

    /// Without creation, `O_EXCL` on a device means: fail while the system itself uses it.
    pub(super) fn open_exclusively(options: &mut OpenOptions) {
        options.custom_flags(OFlags::EXCL.bits() as i32);
    }

    /// Turns direct I/O on and says how buffers must be aligned, or says why not.
    pub(super) fn direct(file: &File, kind: Kind, block_size: u32) -> Result<usize, String> {
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
    fn alignments(file: &File, kind: Kind) -> Result<(u32, Option<u32>), String> {
        if let Ok(found) = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, STATX_DIOALIGN)
            && found.stx_mask & STATX_DIOALIGN.bits() != 0
        {
            return match (found.stx_dio_mem_align, found.stx_dio_offset_align) {
                (0, _) | (_, 0) => Err("the file takes no direct I/O".to_owned()),
                (memory, offset) => Ok((memory, Some(offset))),
            };
        }
        let sector = match kind {
            Kind::Device => rustix::fs::ioctl_blksszget(file).ok(),
            Kind::Regular => None,
        };
        Ok((SAFE_ALIGNMENT, sector))
    }

    /// Reads the second block if there is one: its offset is the least aligned that there is.
    fn trial_read(file: &File, block_size: u32) -> io::Result<()> {
        let mut buffer = Buffer::new(block_size as usize);
        let read = file.read_at(&mut buffer, u64::from(block_size))?;
        if read == 0 {
            file.read_exact_at(&mut buffer, 0)?;
        }
        Ok(())
    }

    pub(super) fn abilities(file: &File, kind: Kind, block_size: u32) -> Abilities {
        match kind {
            Kind::Regular => Abilities { punch: can_punch(file), zero: true },
            Kind::Device => {
                // The system wants whole sectors for both.
                let sector = rustix::fs::ioctl_blksszget(file).unwrap_or(u32::MAX);
                let whole = block_size >= sector;
                Abilities { punch: whole && can_unmap(file), zero: whole }
            }
        }
    }

    /// Makes a hole beyond the end, which changes nothing, but is refused where no hole can be
    /// made.
    fn can_punch(file: &File) -> bool {
        let page = u64::from(SAFE_ALIGNMENT);
        let Ok(metadata) = file.metadata() else { return false };
        let Some(beyond) = metadata.len().checked_next_multiple_of(page) else { return false };
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, mode, beyond, page).is_ok()
    }

    /// Whether the device zeroes (and may give back) without data being sent.
    fn can_unmap(file: &File) -> bool {
        let Ok(metadata) = file.metadata() else { return false };
        let (major, minor) =
            (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
        // A partition has the directory one level higher.
        ["queue", "../queue"].iter().any(|queue| {
            let path = format!("/sys/dev/block/{major}:{minor}/{queue}/write_zeroes_max_bytes");
            std::fs::read_to_string(path).is_ok_and(|text| text.trim() != "0")
        })
    }

    pub(super) fn granularity_bytes(file: &File, kind: Kind) -> u32 {
        match kind {
            Kind::Regular => file.metadata().map_or(0, |found| found.blksize() as u32),
            Kind::Device => rustix::fs::ioctl_blkpbszget(file).unwrap_or(0),
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::fs::{File, Metadata, OpenOptions};

    use super::{Abilities, Kind};

    pub(super) fn is_block_device(_: &Metadata) -> bool {
        false
    }

    pub(super) fn open_exclusively(_: &mut OpenOptions) {}

    pub(super) fn direct(_: &File, _: Kind, _: u32) -> Result<usize, String> {
        Err("direct I/O is for Linux only".to_owned())
    }

    /// `zero` is refused at its first use if the reactor has none.
    pub(super) fn abilities(_: &File, _: Kind, _: u32) -> Abilities {
        Abilities { punch: false, zero: true }
    }

    pub(super) fn granularity_bytes(_: &File, _: Kind) -> u32 {
        4096
    }
}
