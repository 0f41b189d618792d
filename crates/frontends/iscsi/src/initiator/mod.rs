//! The other end: an initiator, by which an iSCSI target is driven by the same loads as everything
//! else, so that a comparison compares protocols and targets and not load generators.
//!
//! **What it is.** [`Initiator::connect`] logs in once for each queue that is wanted, and is a
//! [`Namespace`]: an operation becomes a READ(16), WRITE(16) or SYNCHRONIZE CACHE(16). All that is
//! to be said goes out with one send, and commands wait here while the target's window is closed.
//! What comes along with a command is as much as the target takes, the rest of a write goes out
//! when it asks for it.
//!
//! **Contract.** That of [`farblock_block`], without zeroes. A session belongs to one queue and
//! ends with it: there are as many as [`Config::sessions`] says. When a session is lost, its
//! operations fail. Whatever a target sends is checked, and ends the session if it makes no sense.
//!
//! **What it does not do.** Authenticate, take digests, discover, abort, log out, or connect again.
//! It is for measuring and testing, not for disks that matter.

mod queue;
mod session;

use farblock_block::{BlockError, Geometry, Namespace, Queue};
use farblock_reactor::{Reactor, TaskId};
use queue::SessionQueue;
use session::Session;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

/// Data of one command at most, in bytes.
pub const TRANSFER_BYTES: u32 = 1 << 20;

/// What to log in to.
#[derive(Clone, Debug)]
pub struct Config {
    /// The target's address.
    pub address: SocketAddr,
    /// Its name.
    pub target: String,
    /// The logical unit.
    pub lun: u8,
    /// Sessions, and so queues that can be opened.
    pub sessions: usize,
    /// Commands that each has under way at most.
    pub depth: u16,
}

/// A logical unit as a namespace.
pub struct Initiator {
    geometry: Geometry,
    config: Config,
    /// Those that no queue had yet.
    sessions: Mutex<Vec<Session>>,
}

impl Initiator {
    /// Logs in.
    ///
    /// # Errors
    /// If the target is not there, or does not let us in.
    pub fn connect(config: &Config) -> io::Result<Initiator> {
        let sessions = (0..config.sessions.max(1)).map(|_| Session::log_in(config));
        let mut sessions = sessions.collect::<io::Result<Vec<_>>>()?;
        let geometry = sessions[0].geometry()?;
        Ok(Initiator { geometry, config: config.clone(), sessions: Mutex::new(sessions) })
    }
}

impl Namespace for Initiator {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn describe(&self) -> String {
        let Config { address, target, lun, .. } = &self.config;
        format!("iscsi://{address}/{target}/{lun}")
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let session = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let session = session.ok_or(BlockError::NoResources)?;
        let depth = usize::from(self.config.depth.max(1));
        Ok(Box::new(SessionQueue::new(session, self.geometry, depth, reactor, parent)?))
    }
}
