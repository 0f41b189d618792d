//! Why a namespace could not be opened: sentences for the person who named it.

use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;

use farblock_block::{Geometry, MAX_BLOCK_SIZE_BYTES, MIN_BLOCK_SIZE_BYTES};

use crate::spec::SpecError;
use farblock_block::size::Size;

/// Why a namespace could not be opened. Each says what to do in one sentence.
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
        /// The requested capacity.
        bytes: u64,
        /// The block size that does not divide it.
        block_size: u32,
    },
    /// The capacity is beyond what a namespace of this kind can have.
    TooLarge {
        /// The requested capacity.
        bytes: u64,
        /// The largest capacity allowed.
        max_bytes: u64,
    },
    /// A file or device cannot be opened.
    File {
        /// The path.
        path: PathBuf,
        /// The reason.
        problem: FileProblem,
    },
    /// Disks do not fit together, or a part does not fit into its disk.
    Set(String),
    /// The disks do not make a mirror, for this reason.
    Mirror(String),
    /// A remote disk cannot be opened, for this reason.
    Remote(String),
    /// An image of a Ceph cluster cannot be opened, for this reason.
    Rbd(String),
}

/// The problem of a file or device.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileProblem {
    /// It does not exist.
    NotFound,
    /// It may not be read.
    MayNotRead,
    /// It may not be written, though it may be read.
    MayNotWrite,
    /// It is a raw disk, and this user is not an administrator.
    NeedsAdministrator,
    /// It is on a read-only file system, or a write-protected device.
    ReadOnly,
    /// It is a directory.
    Directory,
    /// It is neither a regular file nor a block device.
    NoDisk,
    /// It has no bytes.
    Empty,
    /// Its size is not a whole number of blocks.
    PartialBlock {
        /// Its size.
        bytes: u64,
        /// The block size that does not divide it.
        block_size: u32,
    },
    /// Another process holds a lock that excludes this open.
    Locked {
        /// Whether this open was read-only.
        read_only: bool,
    },
    /// Another program or device uses it.
    InUse {
        /// The user, as the subject of a sentence: `process 4123 (qemu-system-x86)`.
        by: String,
        /// Whether this open was read-only.
        read_only: bool,
    },
    /// Its attributes forbid writes (`chattr +i` or `+a`).
    Immutable,
    /// The device is mounted, or belongs to a RAID, LVM or another program.
    Busy,
    /// The operating system cannot extend it, for this reason.
    Longer(io::Error),
    /// farblock opened it read-only, and so cannot extend it.
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
            OpenError::NoCapacity => f.write_str("a disk of 0 bytes is of no use: give it a size"),
            OpenError::PartialBlock { bytes, block_size } => write!(
                f,
                "{bytes} bytes are not a whole number of {block_size}-byte blocks: make the size a \
                 multiple of {block_size}"
            ),
            OpenError::TooLarge { bytes, max_bytes } => write!(
                f,
                "{} are too much: the largest size that works is {}",
                Size(*bytes),
                Size(*max_bytes)
            ),
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
            // No advice to create it: the file system of an existing disk may not be mounted, and a
            // new empty disk would take its place.
            FileProblem::NotFound => f.write_str(
                "does not exist: check the name, and that its device is connected and its file \
                 system mounted",
            ),
            FileProblem::NeedsAdministrator => {
                f.write_str("opens for administrators only: start this as one")
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
                "is empty: check that its data are where they should be, and give a new disk its \
                 size first",
            ),
            FileProblem::PartialBlock { bytes, block_size } => {
                if let Some(contents) = contents(self.path) {
                    return write!(f, "holds {contents}, and is no disk: name another file");
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
                "cannot be made longer: {}: ask for less, or make room in its file system",
                words(error)
            ),
            FileProblem::OpenedToRead => f.write_str(
                "is opened to be read only, and cannot be made longer: let hosts write to it first",
            ),
            FileProblem::Other(error) => write!(f, "cannot be opened: {}", words(error)),
        }
    }
}

/// The text that follows the path of a disk that is in use.
fn used(problem: &FileProblem) -> String {
    match problem {
        FileProblem::InUse { by, read_only: false } => format!(
            "is in use by {by}: stop that use first (two writers would destroy it), or share it \
             with --read-only if the other one only reads"
        ),
        FileProblem::InUse { by, read_only: true } => format!(
            "is in use by {by}, which may write to it: stop that use first, since the contents \
             would change underneath"
        ),
        FileProblem::Locked { read_only: true } => {
            "is being written by another program or elsewhere here: stop its writer, since what it \
             shows would change underneath"
                .to_owned()
        }
        FileProblem::Locked { read_only: false } => {
            "is in use, by another program or twice here: stop its other user (two writers would \
             destroy it)"
                .to_owned()
        }
        _ => "is in use by the system: unmount it, or take it out of its RAID or volume group"
            .to_owned(),
    }
}

/// If the file is a text file: "text", or the kind of file that farblock itself keeps. Extending it
/// to a whole number of blocks, as for a disk, would damage it.
fn contents(path: &std::path::Path) -> Option<&'static str> {
    const LOOK_BYTES: u64 = 512;
    let mut start = Vec::new();
    let path = Some(path).filter(|path| path.is_file())?;
    std::fs::File::open(path).ok()?.take(LOOK_BYTES).read_to_end(&mut start).ok()?;
    let text = match std::str::from_utf8(&start) {
        Ok(text) => text,
        // A character may be cut off at the end.
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
            "the state that a farblock target keeps"
        }
        text if text.contains("DHHC-1:") || text.contains("NVMeTLSkey-1:") => "keys",
        text if text.lines().any(is_token) => "tokens of a farblock target",
        _ => "text",
    })
}

/// The text of a system error, without the number that the standard library adds.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ").next().unwrap_or_default().to_owned()
}

/// The command that gives a file a size.
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

/// Converts a capacity to blocks. It must be a whole number of blocks within the file offset range.
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
