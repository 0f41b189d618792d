//! An iSCSI initiator for benchmarks and tests. It puts the same load on farblock's and other
//! targets, so that a benchmark compares targets, not load generators.
//!
//! **Overview.** [`Initiator::connect`] logs in once for each queue, and returns a [`Namespace`].
//! An operation becomes a READ(16), WRITE(16) or SYNCHRONIZE CACHE(16). One send transmits all
//! pending output. Commands wait in the initiator while the target's command window is full. A
//! write command carries as much immediate data as the target accepts. The target requests the rest
//! by R2Ts.
//!
//! **Contract.** The namespace fulfils the contract of [`farblock_block`], but does not support
//! Write Zeroes. Each queue uses up one session, which closes with the queue. So at most
//! [`Config::sessions`] queues can be opened in total. When a session disconnects, its operations
//! fail. The initiator checks the target's answers, and closes the session after an invalid answer.
//!
//! **Not implemented.** Authentication, digests, discovery, aborts, logouts and reconnecting. The
//! initiator is not for production disks.

mod queue;
mod session;

use farblock_block::{BlockError, Geometry, Namespace, Queue};
use farblock_reactor::{Reactor, TaskId};
use queue::SessionQueue;
use session::Session;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

/// The maximum length of one command's data, in bytes.
pub const TRANSFER_BYTES: u32 = 1 << 20;

/// The logical unit to use, and the number of sessions.
#[derive(Clone, Debug)]
pub struct Config {
    /// The target's address.
    pub address: SocketAddr,
    /// The target's iSCSI name.
    pub target: String,
    /// The number of the logical unit.
    pub lun: u8,
    /// The number of sessions, and so the maximum number of queues.
    pub sessions: usize,
    /// The maximum number of commands in flight of each session.
    pub depth: u16,
}

/// A logical unit as a namespace.
pub struct Initiator {
    geometry: Geometry,
    config: Config,
    /// The sessions that no queue has taken yet.
    sessions: Mutex<Vec<Session>>,
}

impl Initiator {
    /// Connects to the target and logs in with each session.
    ///
    /// # Errors
    /// Fails if the host cannot connect, or the target refuses a login or reports an invalid
    /// capacity.
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
