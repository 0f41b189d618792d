//! A session of a path: a connected controller and its namespace.

use super::fencing::{ControllerLife, Fencing};
use crate::controller::Controller;
use crate::namespace::RemoteNamespace;
use crate::shared::Notice;
use crate::url::Url;
use farblock_wire::log::AnaState;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// Events of a session that the path's keeper has not processed yet, as bits.
#[derive(Default)]
pub(super) struct Inbox(AtomicU8);

impl Inbox {
    const NAMESPACE: u8 = 1 << 0;
    const ACCESS: u8 = 1 << 1;

    pub(super) fn put(&self, notice: Notice) {
        let bit = match notice {
            // No event is necessary, because the path's keeper checks for a loss anyway.
            Notice::Lost => return,
            Notice::Namespace(_) => Inbox::NAMESPACE,
            Notice::Access => Inbox::ACCESS,
        };
        self.0.fetch_or(bit, Ordering::AcqRel);
    }

    /// Takes the events. Returns whether the admin queue has identified the namespace again, and
    /// whether the access state of the namespace may have changed.
    pub(super) fn take(&self) -> (bool, bool) {
        let bits = self.0.swap(0, Ordering::AcqRel);
        (bits & Inbox::NAMESPACE != 0, bits & Inbox::ACCESS != 0)
    }
}

/// How well the host can reach a namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Reach {
    Optimized,
    NonOptimized,
    /// The target denies access at present.
    Blocked,
    /// The namespace is permanently inaccessible through this controller.
    Gone,
}

pub(super) struct Session {
    /// The path's number in the disk.
    pub(super) path: usize,
    pub(super) controller: Controller,
    pub(super) namespace: RemoteNamespace,
    pub(super) inbox: Arc<Inbox>,
    pub(super) fencing: Arc<Fencing>,
    access: AtomicU8,
}

impl Session {
    pub(super) fn new(
        path: usize,
        url: &Url,
        controller: Controller,
        namespace: RemoteNamespace,
        inbox: Arc<Inbox>,
        access: AnaState,
        quiesce_time: Duration,
    ) -> Session {
        let info = controller.info();
        let (name, origin) = (info.life, info.origin);
        let life = ControllerLife { url: url.clone(), name, quiesce_time, origin };
        let fencing = Arc::new(Fencing::new(life));
        Session { path, controller, namespace, inbox, fencing, access: AtomicU8::new(access.0) }
    }

    pub(super) fn access(&self) -> AnaState {
        AnaState(self.access.load(Ordering::Relaxed))
    }

    pub(super) fn set_access(&self, access: AnaState) {
        self.access.store(access.0, Ordering::Relaxed);
    }

    pub(super) fn reach(&self) -> Reach {
        match self.access() {
            AnaState::OPTIMIZED => Reach::Optimized,
            AnaState::NON_OPTIMIZED => Reach::NonOptimized,
            AnaState::PERSISTENT_LOSS => Reach::Gone,
            _ => Reach::Blocked,
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.controller.association().shared().is_lost()
    }

    /// The maximum number of commands in flight on each I/O queue of this session.
    pub(super) fn queue_depth(&self) -> u16 {
        self.controller.queue_depth()
    }

    /// Closes all connections of the session at once.
    pub(super) fn abort(&self, reason: &str) {
        self.controller.association().shared().abort(reason);
    }
}
