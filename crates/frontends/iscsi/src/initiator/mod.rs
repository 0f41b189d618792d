//! An iSCSI initiator that benchmarks and tests use, so that all targets get the same load. A
//! comparison then shows protocols and targets, not load generators.
//!
//! **Overview.** [`Initiator::connect`] logs in once for each queue, and is a [`Namespace`]: an
//! operation becomes a READ(16), WRITE(16) or SYNCHRONIZE CACHE(16). One send transmits all pending
//! output, and commands wait in the initiator while the target's window is closed. A write's
//! command carries as much data as the target accepts, and the rest follows on R2T.
//!
//! **Contract.** The contract of [`farblock_block`], without write zeroes. A session belongs to one
//! queue and ends with it, so at most [`Config::sessions`] queues can ever be opened. When a
//! session is lost, its operations fail. The initiator checks a target's answers, and ends the
//! session if one is invalid.
//!
//! **Not implemented.** Authentication, digests, discovery, aborts, logouts and reconnecting. It is
//! for benchmarks and tests, not for production disks.

mod queue;
mod session;

use farblock_block::{BlockError, Geometry, Namespace, Queue};
use farblock_reactor::{Reactor, TaskId};
use queue::SessionQueue;
use session::Session;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

/// The most data of one command, in bytes.
pub const TRANSFER_BYTES: u32 = 1 << 20;

/// The target to log in to.
#[derive(Clone, Debug)]
pub struct Config {
    /// The target's address.
    pub address: SocketAddr,
    /// The target's iSCSI name.
    pub target: String,
    /// The logical unit.
    pub lun: u8,
    /// The number of sessions, and therefore of queues.
    pub sessions: usize,
    /// The most commands of each session in progress.
    pub depth: u16,
}

/// A logical unit as a namespace.
pub struct Initiator {
    geometry: Geometry,
    config: Config,
    /// Sessions that no queue has taken yet.
    sessions: Mutex<Vec<Session>>,
}

impl Initiator {
    /// Logs in.
    ///
    /// # Errors
    /// If the target does not exist, or refuses the login.
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
