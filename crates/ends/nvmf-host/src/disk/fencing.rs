//! What a lost controller may still carry out, and what it takes to have that ended. In this
//! process and, by way of a journal, in one that takes its place.

use super::identity::KnownNamespace;
use crate::controller::Inner;
use crate::error::Error;
use crate::url::Url;
use farblock_reactor::os;
use farblock_wire::Status;
use farblock_wire::origin::ControllerOrigin;
use farblock_wire::reset::CrossControllerReset;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// One life of a controller that a disk uses: what another process needs to have it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerLife {
    /// The path over which it was connected.
    pub url: Url,
    /// Its name for a Cross-Controller Reset, if it can be ended so.
    pub name: Option<CrossControllerReset>,
    /// How long what it was sent may still be carried out after it was lost, if it is not ended:
    /// nothing is sent again before. [`Duration::MAX`]: for ever.
    pub quiesce_time: Duration,
    /// Where it is, if it is one of farblock's.
    pub origin: Option<ControllerOrigin>,
}

/// What may be left of a controller when it is lost.
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

    /// When it was seen that the controller is lost.
    pub(super) fn lost_since(&self) -> Instant {
        *self.lost_since.get_or_init(os::now)
    }

    /// What it was sent cannot be carried out any more, for as long as it is lost.
    pub(super) fn has_waited(&self) -> bool {
        os::elapsed(self.lost_since()) >= self.life.quiesce_time
    }

    /// Nothing that was sent to the controller is carried out any more.
    pub(super) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    pub(super) fn set_finished(&self) {
        self.finished.store(true, Ordering::Release);
    }

    /// A write that may yet be carried out was reported as failed. Gives whether it was so before.
    pub(super) fn mark_indeterminate(&self) -> bool {
        self.indeterminate.swap(true, Ordering::AcqRel)
    }

    pub(super) fn has_indeterminate_writes(&self) -> bool {
        self.indeterminate.load(Ordering::Acquire)
    }
}

/// Whether nothing that was sent to a lost controller is carried out any more. Asks the target
/// to end it; if that cannot be had, what is left is to wait.
pub(super) async fn is_over(through: &Inner, lost: &Fencing) -> bool {
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
            // The process of which it was has ended, and all that it did.
            true
        }
        Err(error @ Error::Command { .. }) => {
            tracing::debug!("a lost controller cannot be ended: {error}");
            lost.has_waited()
        }
        // Whoever is connected next is asked again. To have waited is not as good as an answer: a
        // clock that jumped ahead, which may be why there is none, says the same.
        Err(error) => {
            tracing::debug!("nobody says whether a lost controller has ended: {error}");
            false
        }
    }
}

/// Whether a target that does not know a lost controller took the place of the one that did. It
/// may as well be another one: an address can be moved, and a name lead to several.
fn is_succeeded(lost: Option<ControllerOrigin>, found: Option<ControllerOrigin>) -> bool {
    lost.zip(found).is_some_and(|(lost, found)| lost.is_succeeded_at(&found))
}

/// What a process that has died has left for the one that takes its place: what its [`Record`] was
/// told last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Predecessor {
    /// The namespace that its users know. `None`: it had no users yet.
    pub namespace: Option<KnownNamespace>,
    /// The controllers that may carry out something.
    pub controllers: Vec<ControllerLife>,
}

/// Where a disk writes down what its successor has to know. Threads of the disk's call it, and wait
/// for it. What cannot be written down is not used: the reason is the path's, which is tried again.
pub trait Record: Send + Sync {
    /// What the disk is made of, before that is used.
    ///
    /// # Errors
    /// When it is not safe with a successor, in a sentence.
    fn namespace(&self, known: &KnownNamespace) -> Result<(), String>;

    /// All controllers that may carry out something: each time before another one is used, and
    /// when one is finished.
    ///
    /// # Errors
    /// As [`Record::namespace`].
    fn controllers(&self, lives: &[ControllerLife]) -> Result<(), String>;
}

/// What a successor has to know.
#[derive(Default)]
pub(super) struct Journal {
    lives: Mutex<Vec<ControllerLife>>,
    record: Option<Box<dyn Record>>,
    /// Whoever comes after it is another disk.
    is_of_its_own: bool,
}

impl Journal {
    pub(super) fn new(lives: Vec<ControllerLife>, record: Box<dyn Record>) -> Journal {
        Journal { lives: Mutex::new(lives), record: Some(record), is_of_its_own: false }
    }

    /// For a disk that nobody succeeds to.
    pub(super) fn of_its_own(record: Box<dyn Record>) -> Journal {
        Journal { is_of_its_own: true, ..Journal::new(Vec::new(), record) }
    }

    /// Whether a controller that has answered everything is forgotten when the disk is closed: a
    /// successor would have to know on which boot it was, nobody else has.
    pub(super) fn ends_in_order(&self) -> bool {
        self.is_of_its_own
    }

    /// Whether anybody keeps it, who takes the time that files take.
    pub(super) fn is_kept(&self) -> bool {
        self.record.is_some()
    }

    /// This is what the disk is made of.
    pub(super) fn namespace(&self, known: &KnownNamespace) -> Result<(), Error> {
        let Some(record) = &self.record else { return Ok(()) };
        record.namespace(known).map_err(Error::Record)
    }

    /// This one is about to be used, and must not be after an error.
    pub(super) fn add(&self, life: &ControllerLife) -> Result<(), Error> {
        let Some(record) = &self.record else { return Ok(()) };
        // In the order of the changes: under the lock.
        let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        lives.push(life.clone());
        record.controllers(&lives).map_err(|reason| {
            lives.pop();
            Error::Record(reason)
        })
    }

    /// This one was not used, or is finished.
    pub(super) fn remove(&self, life: &ControllerLife) {
        let Some(record) = &self.record else { return };
        let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        // One of them: lives without a name may be equal.
        if let Some(at) = lives.iter().position(|other| other == life) {
            lives.swap_remove(at);
        }
        // A successor that has one too many ended finds that it is over.
        if let Err(reason) = record.controllers(&lives) {
            tracing::warn!("a finished controller stays recorded: {reason}");
        }
    }
}
