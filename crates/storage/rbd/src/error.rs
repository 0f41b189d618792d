//! Reasons why an image could not be opened. Each text is for the operator who requested the image.

use std::fmt;
use std::io;

use farblock_block::{BlockError, Command};

use crate::limits;
use crate::name::Name;

/// The reason why an image could not be opened. Each text is one sentence with the problem and its
/// fix.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// librbd is missing or too old.
    NoLibrary(String),
    /// The configuration does not contain the cluster's address.
    Configuration(String),
    /// The cluster does not answer.
    Unreachable(String),
    /// The cluster refuses this client or the requested access.
    Refused(String),
    /// The pool, the image or the snapshot does not exist.
    NotFound(String),
    /// The image allows only reads, and the caller requested writes.
    ReadOnly(String),
    /// The settings of the cluster make librbd cache writes in memory.
    Cached(String),
    /// The size of the image is not a whole number of blocks.
    Size(String),
    /// Any other error. The text contains the system's message.
    Other(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NoLibrary(text)
            | OpenError::Configuration(text)
            | OpenError::Unreachable(text)
            | OpenError::Refused(text)
            | OpenError::NotFound(text)
            | OpenError::ReadOnly(text)
            | OpenError::Cached(text)
            | OpenError::Size(text)
            | OpenError::Other(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for OpenError {}

pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const EACCES: i32 = 13;
pub(crate) const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
pub(crate) const EROFS: i32 = 30;
pub(crate) const ERANGE: i32 = 34;
const ESHUTDOWN: i32 = 108;
const ETIMEDOUT: i32 = 110;
const EDQUOT: i32 = 122;

fn words(number: i32) -> String {
    io::Error::from_raw_os_error(number).to_string()
}

/// Returns the path of the configuration file.
fn conf(name: &Name) -> String {
    name.conf.clone().unwrap_or_else(|| "/etc/ceph/ceph.conf".to_owned())
}

/// Returns the error for an unreadable configuration.
pub(crate) fn configuration(name: &Name, number: i32) -> OpenError {
    let (conf, words) = (conf(name), words(number));
    OpenError::Configuration(format!(
        "rbd:{name}: cannot read the Ceph configuration {conf} ({words}): give its path with \
         ?conf=FILE"
    ))
}

/// Returns the error for a failed connection to the cluster.
pub(crate) fn connect(name: &Name, number: i32) -> OpenError {
    let (conf, user) = (conf(name), name.user());
    match number {
        ENOENT => OpenError::Refused(format!(
            "rbd:{name}: this machine has no keyring for client.{user}: store its key where {conf} \
             expects it, or name another user with id=USER"
        )),
        EPERM | EACCES => OpenError::Refused(format!(
            "rbd:{name}: the cluster refused client.{user}: check its key (`ceph auth get \
             client.{user}`), or name another user with id=USER"
        )),
        EINVAL => OpenError::Configuration(format!(
            "rbd:{name}: {conf} does not name the cluster's monitors: add a `mon host` line"
        )),
        ETIMEDOUT => OpenError::Unreachable(format!(
            "rbd:{name}: no monitor of the cluster in {conf} answered in {} s: check the network \
             and the monitors",
            limits::CONNECT_SECONDS
        )),
        _ => OpenError::Other(format!(
            "rbd:{name}: cannot connect to the cluster: {}",
            words(number)
        )),
    }
}

/// Returns the error for a pool that does not exist or that this client may not use.
pub(crate) fn pool(name: &Name, number: i32) -> OpenError {
    let pool = &name.pool;
    match number {
        ENOENT => OpenError::NotFound(format!(
            "rbd:{name}: the cluster has no pool {pool}: `ceph osd pool ls` lists its pools"
        )),
        _ => opened(name, number),
    }
}

/// Returns the error for an image that cannot be opened.
pub(crate) fn opened(name: &Name, number: i32) -> OpenError {
    let (pool, user) = (&name.pool, name.user());
    match number {
        ENOENT if name.snapshot.is_some() => OpenError::NotFound(format!(
            "rbd:{name}: the snapshot does not exist: `rbd snap ls {pool}/{}` lists the image's \
             snapshots",
            name.image
        )),
        ENOENT => OpenError::NotFound(format!(
            "rbd:{name}: the image does not exist: create it with `rbd create --size 1G {name}`, \
             or name an image that `rbd ls {pool}` lists"
        )),
        EPERM | EACCES => OpenError::Refused(format!(
            "rbd:{name}: client.{user} may not use the image: grant it access (`ceph auth caps \
             client.{user} mon 'profile rbd' osd 'profile rbd pool={pool}'`)"
        )),
        _ => OpenError::Other(format!("cannot open rbd:{name}: {}", words(number))),
    }
}

/// Returns the error if the monitors answered, but the OSDs did not.
pub(crate) fn stuck(name: &Name) -> OpenError {
    OpenError::Unreachable(format!(
        "rbd:{name} did not open in {} s: check the cluster's OSDs (`ceph status`)",
        limits::OPEN.as_secs()
    ))
}

/// Returns the error for an image that this client may only read.
pub(crate) fn read_only(name: &Name) -> OpenError {
    let why = match name.snapshot {
        Some(_) => "a snapshot is read-only".to_owned(),
        None => format!("client.{} may not write it", name.user()),
    };
    OpenError::ReadOnly(format!("rbd:{name}: {why}: share it read-only"))
}

/// Returns the error for an image with a cache. Settings that the cluster stores for an image or
/// its pool override the settings of this crate.
pub(crate) fn cached(name: &Name) -> OpenError {
    let image = Name { snapshot: None, ..name.clone() };
    OpenError::Cached(format!(
        "rbd:{name}: rbd_cache is on for this image or its pool, so acknowledged writes may be \
         lost: turn it off with `rbd config image set {image} rbd_cache false`"
    ))
}

/// Returns the error for a size that is not a whole number of blocks.
pub(crate) fn size(name: &Name, bytes: u64, block_size: u32) -> OpenError {
    OpenError::Size(if bytes == 0 {
        format!("rbd:{name} is empty: give it a size with `rbd resize --size 1G {name}`")
    } else {
        format!(
            "rbd:{name} has {bytes} bytes, which is not a whole number of {block_size}-byte \
             blocks: resize it, or choose smaller blocks"
        )
    })
}

/// Converts `code`, the value that librbd returned for `command`. `bytes` is the size of the
/// command's data. A `code` below zero is a negated error number. Otherwise the `code` of a read is
/// the number of bytes that librbd read.
pub(crate) fn result(command: Command, bytes: usize, code: isize) -> Result<(), BlockError> {
    if let Ok(read) = usize::try_from(code) {
        // A short read means that the image has shrunk. The rest of the buffer holds old data, so
        // the read must fail.
        let is_whole = !command.reads() || read >= bytes;
        return is_whole.then_some(()).ok_or(BlockError::OutOfRange);
    }
    let number = i32::try_from(-code).unwrap_or_default();
    Err(match number {
        ESHUTDOWN | ETIMEDOUT => BlockError::Disconnected,
        // Do not report a failed flush as `ReadOnly`. A flush changes no blocks, and its failure
        // means that earlier writes are lost.
        EROFS | EPERM | EACCES if command.writes() => BlockError::ReadOnly,
        ENOSPC | EDQUOT if !command.reads() => BlockError::NoSpace,
        EINVAL => BlockError::OutOfRange,
        _ if command.reads() => BlockError::ReadFailed,
        _ => BlockError::WriteFailed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn librbd_errors_become_block_errors() {
        use Command::{Read, Write};
        assert_eq!(result(Write, 4096, 0), Ok(()));
        assert_eq!(result(Read, 4096, 4096), Ok(()));
        assert_eq!(result(Read, 4096, -5), Err(BlockError::ReadFailed));
        assert_eq!(result(Write, 4096, -5), Err(BlockError::WriteFailed));
        assert_eq!(result(Write, 4096, -28), Err(BlockError::NoSpace));
        assert_eq!(result(Write, 4096, -30), Err(BlockError::ReadOnly));
        assert_eq!(result(Command::Flush, 0, -30), Err(BlockError::WriteFailed));
        assert_eq!(result(Write, 4096, -108), Err(BlockError::Disconnected));
        assert_eq!(result(Read, 4096, -22), Err(BlockError::OutOfRange));
    }

    /// librbd leaves the old content in the part of the buffer that it does not fill.
    #[test]
    fn a_short_read_of_a_shrunken_image_fails() {
        assert_eq!(result(Command::Read, 4096, 512), Err(BlockError::OutOfRange));
        assert_eq!(result(Command::Read, 4096, 0), Err(BlockError::OutOfRange));
        assert_eq!(result(Command::Read, 0, 0), Ok(()));
        assert_eq!(result(Command::Flush, 0, 0), Ok(()));
    }

    #[test]
    fn each_open_error_names_the_next_step() {
        let name: Name = "p/i?id=me".parse().unwrap();
        for (error, step) in [
            (configuration(&name, ENOENT), "?conf=FILE"),
            (connect(&name, ENOENT), "id=USER"),
            (connect(&name, EACCES), "ceph auth get client.me"),
            (connect(&name, ETIMEDOUT), "10 s"),
            (pool(&name, ENOENT), "ceph osd pool ls"),
            (opened(&name, ENOENT), "rbd create"),
            (opened(&name, EPERM), "ceph auth caps client.me"),
            (stuck(&name), "ceph status"),
            (read_only(&name), "read-only"),
            (cached(&name), "rbd config image set p/i rbd_cache false"),
            (size(&name, 0, 512), "rbd resize"),
            (size(&name, 5, 512), "smaller blocks"),
        ] {
            let text = error.to_string();
            assert!(text.starts_with("rbd:p/i") && text.contains(step), "{text}");
        }
    }
}
