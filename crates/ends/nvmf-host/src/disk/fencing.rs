//! Fencing of lost controllers, which may still execute commands. A journal lets the process that
//! takes over the disk of a dead process (its successor) continue the fencing.

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

/// A controller instance that a disk uses. It holds the data that another process needs to close
/// the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerLife {
    /// The URL of the path over which the host connected the controller.
    pub url: Url,
    /// The controller's name in a Cross-Controller Reset; `None` if the target does not support
    /// this command.
    pub name: Option<CrossControllerReset>,
    /// The time for which the controller may execute commands after its loss, unless the target
    /// closes the controller. During this time the disk does not resend writes. [`Duration::MAX`]
    /// means forever.
    pub quiesce_time: Duration,
    /// The controller's origin; `None` if its target is not farblock.
    pub origin: Option<ControllerOrigin>,
}

/// The commands that a lost controller may still execute.
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

    /// Returns the time at which the disk noticed the loss of the controller.
    pub(super) fn lost_since(&self) -> Instant {
        *self.lost_since.get_or_init(os::now)
    }

    /// Whether the quiesce time since the loss has passed.
    pub(super) fn has_waited(&self) -> bool {
        os::elapsed(self.lost_since()) >= self.life.quiesce_time
    }

    /// Whether all commands of the controller have ended.
    pub(super) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    pub(super) fn set_finished(&self) {
        self.finished.store(true, Ordering::Release);
    }

    /// Records that the disk reported a write as failed while the controller may still execute it.
    /// Returns whether this was recorded before.
    pub(super) fn mark_indeterminate(&self) -> bool {
        self.indeterminate.swap(true, Ordering::AcqRel)
    }

    pub(super) fn has_indeterminate_writes(&self) -> bool {
        self.indeterminate.load(Ordering::Acquire)
    }
}

/// Returns whether all commands of a lost controller have ended. Asks the target to close that
/// controller. If the target cannot do this, the quiesce time decides.
pub(super) async fn is_over(through: &Association, lost: &Fencing) -> bool {
    if os::has_mistake("host: a lost controller counts as finished") {
        return true;
    }
    let info = through.info();
    let may_end = info.life.is_some();
    let may_end = may_end && !os::has_mistake("host: a lost controller is not closed");
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
            tracing::debug!("the target cannot close a lost controller: {error}");
            lost.has_waited()
        }
        // The path's keeper asks again through the next connected controller. Do not rely on the
        // quiesce time here: if this machine's clock has jumped ahead, both the answer and the end
        // of the quiesce time came too early.
        Err(error) => {
            tracing::debug!("cannot find out whether a lost controller has ended: {error}");
            false
        }
    }
}

/// Whether the target `found`, which does not know the lost controller, has replaced that
/// controller's target. If not, it may be an unrelated target: an address can move, and a name can
/// resolve to several addresses.
fn is_succeeded(lost: Option<ControllerOrigin>, found: Option<ControllerOrigin>) -> bool {
    lost.zip(found).is_some_and(|(lost, found)| lost.is_succeeded_at(&found))
}

/// The state that a dead process left for its successor: the last state that its [`Record`] stored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Predecessor {
    /// The namespace that the process served to its users; `None` if it had no users.
    pub namespace: Option<KnownNamespace>,
    /// The controllers that may still execute commands.
    pub controllers: Vec<ControllerLife>,
}

/// Stores the state that a disk's successor needs. The disk's threads call these functions and wait
/// for them. If a call before the first use of a controller fails, the disk does not use the
/// controller's path. It reports the error in the [`PathStatus`](super::PathStatus), and retries.
pub trait Record: Send + Sync {
    /// Stores the disk's namespace before the disk uses it.
    ///
    /// # Errors
    /// Returns one sentence with the reason why the state is not stored safely.
    fn namespace(&self, known: &KnownNamespace) -> Result<(), String>;

    /// Stores all controllers that may still execute commands. The disk calls this function before
    /// it uses another controller, and after all commands of a lost controller have ended.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Record::namespace`].
    fn controllers(&self, lives: &[ControllerLife]) -> Result<(), String>;
}

/// The recorded state that a successor needs.
#[derive(Default)]
pub(super) struct Journal {
    lives: Mutex<Vec<ControllerLife>>,
    record: Option<Box<dyn Record>>,
    /// Whether a later process creates a new disk instead of taking over this state.
    is_of_its_own: bool,
}

impl Journal {
    pub(super) fn new(lives: Vec<ControllerLife>, record: Box<dyn Record>) -> Journal {
        Journal { lives: Mutex::new(lives), record: Some(record), is_of_its_own: false }
    }

    /// Creates the journal of a disk that no later process takes over.
    pub(super) fn of_its_own(record: Box<dyn Record>) -> Journal {
        Journal { is_of_its_own: true, ..Journal::new(Vec::new(), record) }
    }

    /// Whether the journal removes a controller that has answered all commands when the disk
    /// closes. Other journals keep it, because a successor needs the controller's boot identifier.
    pub(super) fn ends_in_order(&self) -> bool {
        self.is_of_its_own
    }

    /// Whether the journal stores changes, which takes as long as file I/O.
    pub(super) fn is_kept(&self) -> bool {
        self.record.is_some()
    }

    pub(super) fn namespace(&self, known: &KnownNamespace) -> Result<(), Error> {
        let Some(record) = &self.record else { return Ok(()) };
        record.namespace(known).map_err(Error::Record)
    }

    /// Records a controller before its first use. If this fails, the disk must not use the
    /// controller.
    pub(super) fn add(&self, life: &ControllerLife) -> Result<(), Error> {
        let Some(record) = &self.record else { return Ok(()) };
        // Hold the lock while the record stores a change, so that it stores changes in order.
        let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        lives.push(life.clone());
        record.controllers(&lives).map_err(|reason| {
            lives.pop();
            Error::Record(reason)
        })
    }

    /// Removes a controller that the disk did not use, or whose commands have ended.
    pub(super) fn remove(&self, life: &ControllerLife) {
        let Some(record) = &self.record else { return };
        let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        // Remove only one entry: several controllers without a name may have equal entries.
        if let Some(at) = lives.iter().position(|other| other == life) {
            lives.swap_remove(at);
        }
        // If the entry stays in the record, this does no harm: a later process finds out that the
        // controller has ended.
        if let Err(reason) = record.controllers(&lives) {
            tracing::warn!("cannot remove a controller that has ended from the record: {reason}");
        }
    }
}
