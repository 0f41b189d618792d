//! Errors of opening a namespace, as sentences for the person who named the namespace.

use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;

use farblock_block::{Geometry, MAX_BLOCK_SIZE_BYTES, MIN_BLOCK_SIZE_BYTES};

use crate::spec::SpecError;
use farblock_block::size::Size;

/// The reason why a namespace could not be opened, as one sentence that says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The text is not a valid name of a namespace.
    Spec(SpecError),
    /// The block size, in bytes, is not supported.
    BlockSize(u32),
    /// The capacity is zero.
    NoCapacity,
    /// The capacity is not a whole number of blocks.
    PartialBlock {
        /// The requested capacity in bytes.
        bytes: u64,
        /// The block size in bytes, which does not divide the capacity.
        block_size: u32,
    },
    /// The capacity exceeds the maximum of this kind of namespace.
    TooLarge {
        /// The requested capacity in bytes.
        bytes: u64,
        /// The largest allowed capacity in bytes.
        max_bytes: u64,
    },
    /// A file or device cannot be opened.
    File {
        /// The path of the file or device.
        path: PathBuf,
        /// Why the file or device cannot be opened.
        problem: FileProblem,
    },
    /// The disks of a set do not fit together, or a range does not fit into its disk.
    Set(String),
    /// The disks do not form a mirror, for the given reason.
    Mirror(String),
    /// A remote disk cannot be opened, for the given reason.
    Remote(String),
    /// An image of a Ceph cluster cannot be opened, for the given reason.
    Rbd(String),
}

/// The reason why a file or device cannot be opened, shared or extended.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileProblem {
    /// The path does not exist.
    NotFound,
    /// This user may not read the file.
    MayNotRead,
    /// This user may read the file, but not write it.
    MayNotWrite,
    /// The path is a raw disk, and this user is not an administrator.
    NeedsAdministrator,
    /// The file is on a read-only file system, or the device is write-protected.
    ReadOnly,
    /// The path is a directory.
    Directory,
    /// The path is neither a regular file nor a block device.
    NoDisk,
    /// The file is empty.
    Empty,
    /// The size of the file is not a whole number of blocks.
    PartialBlock {
        /// The size of the file in bytes.
        bytes: u64,
        /// The block size in bytes, which does not divide the size of the file.
        block_size: u32,
    },
    /// Another process holds a lock on the file, so it cannot be opened.
    Locked {
        /// Whether this open was read-only.
        read_only: bool,
    },
    /// Another program or device uses the file.
    InUse {
        /// The other program or device, as the subject of a sentence:
        /// `process 4123 (qemu-system-x86)`.
        by: String,
        /// Whether this open was read-only.
        read_only: bool,
    },
    /// The attributes of the file forbid writes (`chattr +i` or `+a`).
    Immutable,
    /// The device is mounted, or a RAID, LVM or another program uses it.
    Busy,
    /// The operating system cannot extend the file, for the given reason.
    Longer(io::Error),
    /// The file cannot be extended, because farblock has opened it read-only.
    OpenedToRead,
    /// Another error of the operating system.
    Other(io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Spec(error) => error.fmt(f),
            OpenError::BlockSize(bytes) => write!(
                f,
                "blocks cannot have {bytes} bytes: the block size is a power of two from \
                 {MIN_BLOCK_SIZE_BYTES} to {MAX_BLOCK_SIZE_BYTES}, usually 512 or 4096"
            ),
            OpenError::NoCapacity => f.write_str("a disk cannot have 0 bytes: give it a size"),
            OpenError::PartialBlock { bytes, block_size } => write!(
                f,
                "{bytes} bytes are not a whole number of {block_size}-byte blocks: make the size a \
                 multiple of {block_size}"
            ),
            OpenError::TooLarge { bytes, max_bytes } => {
                write!(f, "{} is too large: the maximum is {}", Size(*bytes), Size(*max_bytes))
            }
            OpenError::File { path, problem } => {
                write!(f, "{} {}", path.display(), Sentence { path, problem })
            }
            OpenError::Set(sentence)
            | OpenError::Mirror(sentence)
            | OpenError::Remote(sentence)
            | OpenError::Rbd(sentence) => f.write_str(sentence),
        }
    }
}

/// The part of a message that follows the path.
struct Sentence<'a> {
    path: &'a PathBuf,
    problem: &'a FileProblem,
}

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path.display();
        match self.problem {
            FileProblem::Locked { .. } | FileProblem::InUse { .. } | FileProblem::Busy => {
                f.write_str(&used(self.problem))
            }
            // Do not advise the user to create the file. It may exist on a file system that is not
            // mounted now, and a new, empty disk would then take its place.
            FileProblem::NotFound => f.write_str(
                "does not exist: check the name, and that its device is connected and its file \
                 system mounted",
            ),
            FileProblem::NeedsAdministrator => {
                f.write_str("can be opened only by an administrator: run farblock as administrator")
            }
            FileProblem::MayNotRead => {
                f.write_str("may not be read by this user: change its permissions or its owner")
            }
            FileProblem::MayNotWrite => f.write_str(
                "may not be written by this user: change its permissions, or open it read-only",
            ),
            FileProblem::ReadOnly => {
                f.write_str("is write-protected, or its file system is: open it read-only")
            }
            FileProblem::Directory => f.write_str("is a directory: name a file in it"),
            FileProblem::NoDisk => f.write_str("is neither a regular file nor a block device"),
            FileProblem::Empty => f.write_str(
                "is empty: check that the name is right, and give a new disk its size first",
            ),
            FileProblem::PartialBlock { bytes, block_size } => {
                if let Some(contents) = contents(self.path) {
                    return write!(f, "contains {contents}, and is not a disk: name another file");
                }
                write!(
                    f,
                    "has {bytes} bytes, which is not a whole number of {block_size}-byte blocks: "
                )?;
                if !self.path.is_file() {
                    return f.write_str("choose smaller blocks");
                }
                let command = extend(path, bytes.next_multiple_of(u64::from(*block_size)));
                write!(f, "extend it with `{command}`, or choose smaller blocks")
            }
            FileProblem::Immutable => write!(
                f,
                "cannot be written because of its attributes: share it with --read-only, or remove \
                 them with `chattr -i -a {path}`"
            ),
            FileProblem::Longer(error) => write!(
                f,
                "cannot be extended: {}: choose a smaller size, or free space in its file system",
                words(error)
            ),
            FileProblem::OpenedToRead => f.write_str(
                "is open read-only, and cannot be extended: make the namespace writable first",
            ),
            FileProblem::Other(error) => write!(f, "cannot be opened: {}", words(error)),
        }
    }
}

/// The part of a message that follows the path of a disk in use.
fn used(problem: &FileProblem) -> String {
    match problem {
        FileProblem::InUse { by, read_only: false } => format!(
            "is in use by {by}: stop this use first (two writers would destroy it), or share the \
             disk with --read-only if the other user only reads"
        ),
        FileProblem::InUse { by, read_only: true } => format!(
            "is in use by {by}, which may write to it: stop this use first, because the data could \
             change at any time"
        ),
        FileProblem::Locked { read_only: true } => {
            "is being written by another program, or is another disk of this process: stop the \
             writer, because the data could change at any time"
                .to_owned()
        }
        FileProblem::Locked { read_only: false } => {
            "is in use by another program, or is another disk of this process: stop the other user \
             (two writers would destroy it)"
                .to_owned()
        }
        _ => "is in use by the system: unmount it, or remove it from its RAID or volume group"
            .to_owned(),
    }
}

/// The kind of a text file: "text", or the kind of a file that farblock itself writes. `None` for
/// binary files. The error must not advise the user to extend a text file to a whole number of
/// blocks, because this would damage the file.
fn contents(path: &std::path::Path) -> Option<&'static str> {
    const LOOK_BYTES: u64 = 512;
    let mut start = Vec::new();
    let path = Some(path).filter(|path| path.is_file())?;
    std::fs::File::open(path).ok()?.take(LOOK_BYTES).read_to_end(&mut start).ok()?;
    let text = match std::str::from_utf8(&start) {
        Ok(text) => text,
        // The sample of the file may end in the middle of a character, which does not make it
        // binary.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&start[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    if text.chars().any(|c| c.is_control() && !c.is_whitespace()) {
        return None;
    }
    let is_token = |line: &str| {
        matches!(line.split_whitespace().nth(1), Some("read-only" | "admin"))
            && line.split_whitespace().count() == 3
    };
    Some(match text.trim_start() {
        text if text.starts_with('{') && text.contains("\"configured\"") => {
            "the state of a farblock target"
        }
        text if text.contains("DHHC-1:") || text.contains("NVMeTLSkey-1:") => "keys",
        text if text.lines().any(is_token) => "tokens of a farblock target",
        _ => "text",
    })
}

/// The text of a system error, without the error number that the standard library appends.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ").next().unwrap_or_default().to_owned()
}

/// The command that sets the size of a file.
fn extend(path: &impl fmt::Display, bytes: u64) -> String {
    if cfg!(windows) {
        format!("fsutil file seteof {path} {bytes}")
    } else {
        format!("truncate -s {bytes} {path}")
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Spec(error) => Some(error),
            OpenError::File {
                problem: FileProblem::Longer(error) | FileProblem::Other(error),
                ..
            } => Some(error),
            _ => None,
        }
    }
}

impl From<SpecError> for OpenError {
    fn from(error: SpecError) -> OpenError {
        OpenError::Spec(error)
    }
}

/// Checks that the block size is supported.
pub(crate) fn check_block_size(block_size: u32) -> Result<(), OpenError> {
    if Geometry::is_block_size(block_size) { Ok(()) } else { Err(OpenError::BlockSize(block_size)) }
}

/// Converts a capacity to blocks. Returns an error if the capacity is not a whole number of blocks,
/// or exceeds the range of a file offset.
pub(crate) fn whole_blocks(block_size: u32, bytes: u64) -> Result<u64, OpenError> {
    check_block_size(block_size)?;
    let max_bytes = i64::MAX as u64;
    if bytes == 0 {
        Err(OpenError::NoCapacity)
    } else if !bytes.is_multiple_of(u64::from(block_size)) {
        Err(OpenError::PartialBlock { bytes, block_size })
    } else if bytes > max_bytes {
        Err(OpenError::TooLarge { bytes, max_bytes })
    } else {
        Ok(bytes / u64::from(block_size))
    }
}
