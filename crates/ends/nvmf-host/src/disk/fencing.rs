//! Fencing of lost controllers, which may still carry out commands: in this process and, through a
//! journal, in its successor.

use crate::association::Association;
use crate::error::Error;
use crate::known::KnownNamespace;
use crate::url::Url;
use farblock_reactor::os;
use farblock_wire::Status;
use farblock_wire::origin::ControllerOrigin;
use farblock_wire::reset::CrossControllerReset;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A controller instance that a disk uses: the data that another process needs to close it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerLife {
    /// The path over which the controller was connected.
    pub url: Url,
    /// The controller's name in a Cross-Controller Reset, if its target supports this command.
    pub name: Option<CrossControllerReset>,
    /// The time for which the lost controller may carry out commands unless it is closed. Until
    /// then the disk does not resend writes. [`Duration::MAX`]: forever.
    pub quiesce_time: Duration,
    /// The controller's origin, if its target is farblock.
    pub origin: Option<ControllerOrigin>,
}

/// Commands that a lost controller may still carry out.
pub(super) struct Fencing {
    pub(super) life: ControllerLife,
    finished: AtomicBool,
    indeterminate: AtomicBool,
    lost_since: OnceLock<Instant>,
}

impl Fencing {
    pub(super) fn new(life: ControllerLife) -> Fencing {
        Fencing {
            life,
            finished: AtomicBool::new(false),
            indeterminate: AtomicBool::new(false),
            lost_since: OnceLock::new(),
        }
    }

    /// When the disk noticed the loss of the controller.
    pub(super) fn lost_since(&self) -> Instant {
        *self.lost_since.get_or_init(os::now)
    }

    /// Whether the quiesce time since the loss has passed.
    pub(super) fn has_waited(&self) -> bool {
        os::elapsed(self.lost_since()) >= self.life.quiesce_time
    }

    /// Whether all commands sent to the controller have ended.
    pub(super) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    pub(super) fn set_finished(&self) {
        self.finished.store(true, Ordering::Release);
    }

    /// Notes that a write which may yet be carried out was reported as failed. Returns whether this
    /// was noted before.
    pub(super) fn mark_indeterminate(&self) -> bool {
        self.indeterminate.swap(true, Ordering::AcqRel)
    }

    pub(super) fn has_indeterminate_writes(&self) -> bool {
        self.indeterminate.load(Ordering::Acquire)
    }
}

/// Whether all commands of a lost controller have ended. Asks the target to close it; if that is
/// impossible, the caller must wait.
pub(super) async fn is_over(through: &Association, lost: &Fencing) -> bool {
    if os::has_mistake("host: a lost controller counts as finished") {
        return true;
    }
    let info = through.info();
    let may_end = info.life.is_some();
    let may_end = may_end && !os::has_mistake("host: a lost controller is only waited for");
    let (Some(life), true) = (lost.life.name, may_end) else { return lost.has_waited() };
    match through.end_other(life).await {
        Ok(gone) => gone,
        Err(Error::Command { status, .. })
            if Status(status.code()) == Status::INVALID_FIELD
                && is_succeeded(lost.life.origin, info.origin) =>
        {
            // The lost controller's process has ended, and all its commands with it.
            true
        }
        Err(error @ Error::Command { .. }) => {
            tracing::debug!("a lost controller cannot be ended: {error}");
            lost.has_waited()
        }
        // The keeper asks the next connected controller again. Do not rely on an expired wait
        // instead: the clock may have jumped ahead, which may also be why no answer arrived.
        Err(error) => {
            tracing::debug!("nobody says whether a lost controller has ended: {error}");
            false
        }
    }
}

/// Whether a target that does not know a lost controller has replaced the target that did. If not,
/// it may be an unrelated target: an address can move, and a name can resolve to several addresses.
fn is_succeeded(lost: Option<ControllerOrigin>, found: Option<ControllerOrigin>) -> bool {
    lost.zip(found).is_some_and(|(lost, found)| lost.is_succeeded_at(&found))
}

/// State of a dead process for its successor, as last stored by its [`Record`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Predecessor {
    /// The namespace that the process's users know. `None`: it had no users.
    pub namespace: Option<KnownNamespace>,
    /// The controllers that may still carry out commands.
    pub controllers: Vec<ControllerLife>,
}

/// Stores the state that a disk's successor needs. The disk's threads call these functions and wait
/// for them. If one fails, the disk does not use the path, reports the error in its
/// [`PathStatus`](super::PathStatus), and retries.
pub trait Record: Send + Sync {
    /// Stores the disk's namespace before the disk uses it.
    ///
    /// # Errors
    /// One sentence: why the state is not stored safely.
    fn namespace(&self, known: &KnownNamespace) -> Result<(), String>;

    /// Stores all controllers that may still carry out commands. The disk calls it before it uses
    /// another controller, and after a lost one is finished.
    ///
    /// # Errors
    /// As [`Record::namespace`].
    fn controllers(&self, lives: &[ControllerLife]) -> Result<(), String>;
}

/// The state that a successor needs.
#[derive(Default)]
pub(super) struct Journal {
    lives: Mutex<Vec<ControllerLife>>,
    record: Option<Box<dyn Record>>,
    /// Whether no disk succeeds this one: the next user makes a new disk.
    is_of_its_own: bool,
}

impl Journal {
    pub(super) fn new(lives: Vec<ControllerLife>, record: Box<dyn Record>) -> Journal {
        Journal { lives: Mutex::new(lives), record: Some(record), is_of_its_own: false }
    }

    /// For a disk without a successor.
    pub(super) fn of_its_own(record: Box<dyn Record>) -> Journal {
        Journal { is_of_its_own: true, ..Journal::new(Vec::new(), record) }
    }

    /// Whether closing the disk removes a controller that has answered all commands. Only a
    /// successor would need this controller's boot.
    pub(super) fn ends_in_order(&self) -> bool {
        self.is_of_its_own
    }

    /// Whether a record is stored, which takes the time of file I/O.
    pub(super) fn is_kept(&self) -> bool {
        self.record.is_some()
    }

    pub(super) fn namespace(&self, known: &KnownNamespace) -> Result<(), Error> {
        let Some(record) = &self.record else { return Ok(()) };
        record.namespace(known).map_err(Error::Record)
    }

    /// Stores a controller that is about to be used. After an error it must not be used.
    pub(super) fn add(&self, life: &ControllerLife) -> Result<(), Error> {
        let Some(record) = &self.record else { return Ok(()) };
        // Keep the lock while storing, so that changes are stored in order.
        let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        lives.push(life.clone());
        record.controllers(&lives).map_err(|reason| {
            lives.pop();
            Error::Record(reason)
        })
    }

    /// Removes a controller that was not used or is finished.
    pub(super) fn remove(&self, life: &ControllerLife) {
        let Some(record) = &self.record else { return };
        let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        // Remove only one: entries without a name may be equal.
        if let Some(at) = lives.iter().position(|other| other == life) {
            lives.swap_remove(at);
        }
        // A surplus entry is harmless: the successor finds that the controller is finished.
        if let Err(reason) = record.controllers(&lives) {
            tracing::warn!("a finished controller stays recorded: {reason}");
        }
    }
}
