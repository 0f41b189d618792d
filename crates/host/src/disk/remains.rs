//! What a lost controller may still carry out, and what it takes to have that ended. In this
//! process and, by way of a journal, in one that takes its place.

use crate::url::Url;
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
    /// How long its commands may go on when its connections are gone (CQT).
    pub quiesce_time: Duration,
}

/// What may be left of a controller when it is lost.
pub(super) struct Remains {
    /// The path's place among the disk's, if it is one of them.
    pub(super) path: Option<usize>,
    pub(super) life: ControllerLife,
    /// What is waited for at least, where the controller cannot be ended.
    pub(super) patience: Duration,
    finished: AtomicBool,
    tainted: AtomicBool,
    lost_since: OnceLock<Instant>,
}

impl Remains {
    pub(super) fn new(path: Option<usize>, life: ControllerLife, patience: Duration) -> Remains {
        Remains {
            path,
            life,
            patience,
            finished: AtomicBool::new(false),
            tainted: AtomicBool::new(false),
            lost_since: OnceLock::new(),
        }
    }

    /// When it was seen that the controller is lost.
    pub(super) fn lost_since(&self) -> Instant {
        *self.lost_since.get_or_init(Instant::now)
    }

    /// Nothing that was sent to the controller is carried out any more.
    pub(super) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    pub(super) fn set_finished(&self) {
        self.finished.store(true, Ordering::Release);
    }

    /// A write that may yet be carried out was reported as failed. Gives whether it was so before.
    pub(super) fn taint(&self) -> bool {
        self.tainted.swap(true, Ordering::AcqRel)
    }

    pub(super) fn is_tainted(&self) -> bool {
        self.tainted.load(Ordering::Acquire)
    }
}

/// Is told of all controllers that may carry out something whenever there is another one, before
/// that is used.
pub(super) type Record = Box<dyn Fn(&[ControllerLife]) + Send + Sync>;

/// The controllers that may carry out something.
#[derive(Default)]
pub(super) struct Journal {
    lives: Mutex<Vec<ControllerLife>>,
    record: Option<Record>,
}

impl Journal {
    pub(super) fn new(lives: Vec<ControllerLife>, record: Option<Record>) -> Journal {
        Journal { lives: Mutex::new(lives), record }
    }

    /// This one is about to be used.
    pub(super) fn add(&self, life: &ControllerLife) {
        self.change(|lives| lives.push(life.clone()));
    }

    /// This one was not used, or is finished.
    pub(super) fn remove(&self, life: &ControllerLife) {
        self.change(|lives| lives.retain(|other| other != life));
    }

    fn change(&self, change: impl FnOnce(&mut Vec<ControllerLife>)) {
        let Some(record) = &self.record else { return };
        // In the order of the changes: under the lock.
        let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut lives);
        record(&lives);
    }
}
