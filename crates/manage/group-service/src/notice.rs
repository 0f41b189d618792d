//! The messages of a member to its watchdog, one in each packet of a socket.

use crate::etcd::EtcdConfig;
use rustix::net::{SendFlags, send};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum size of a message, in bytes. Usual certificates for etcd fit.
pub(crate) const MAX_BYTES: usize = 128 << 10;

/// A message. The byte 0 alone is no message: it only wakes the watchdog.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Notice {
    /// The member's process, and its settings for etcd.
    Enlist(Box<Enlisted>),
    /// The member opens a disk of an ANA group. Without a path, the watchdog cannot check whether
    /// operations on the disk have ended.
    Opened { group: u32, path: Option<PathBuf> },
    /// The member has closed the disks of an ANA group.
    Closed { group: u32 },
    /// The member needs no watchdog any more.
    Farewell,
}

/// The process whose leaderships the watchdog releases in etcd when the process has ended.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Enlisted {
    pub(crate) etcd: EtcdConfig,
    pub(crate) group: String,
    pub(crate) name: String,
    /// The random number of the process.
    pub(crate) process: u64,
    /// The member's [`Timing::hold`](farblock_group::Timing::hold), in milliseconds.
    pub(crate) hold_ms: u64,
}

/// Tells the watchdog which disks the member opens.
#[derive(Clone, Debug)]
pub struct Reporter {
    socket: Arc<OwnedFd>,
}

impl Reporter {
    pub(crate) fn new(socket: Arc<OwnedFd>) -> Self {
        Self { socket }
    }

    /// Reports a disk of an ANA group: after it was opened, and before the member does I/O on it.
    /// `path`: the file or device, which the member has locked exclusively with `flock` until it
    /// closes it. `None`: no lock shows whether operations are in flight.
    ///
    /// # Errors
    /// The watchdog has ended. The member gets no more permits.
    pub fn opened(&self, group: u32, path: Option<&Path>) -> io::Result<()> {
        // JSON cannot contain a path that is not Unicode.
        let path = path.filter(|path| path.to_str().is_some());
        let path = path.and_then(|path| std::path::absolute(path).ok());
        self.send(&Notice::Opened { group, path })
    }

    pub(crate) fn send(&self, notice: &Notice) -> io::Result<()> {
        let bytes = serde_json::to_vec(notice)?;
        if bytes.len() > MAX_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        send(&self.socket, &bytes, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}
