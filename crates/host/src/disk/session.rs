//! One life of a path: a controller that was connected, and its namespace.

use crate::controller::Controller;
use crate::namespace::RemoteNamespace;
use crate::shared::Notice;
use farblock_wire::log::AnaState;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Instant;

/// What happened to a session that its keeper has not looked at yet, as bits.
#[derive(Default)]
pub(super) struct Inbox(AtomicU8);

impl Inbox {
    const NAMESPACE: u8 = 1 << 0;
    const ACCESS: u8 = 1 << 1;

    pub(super) fn put(&self, notice: Notice) {
        let bit = match notice {
            // That can be seen at any time.
            Notice::Lost => return,
            Notice::Namespace(_) => Inbox::NAMESPACE,
            Notice::Access => Inbox::ACCESS,
        };
        self.0.fetch_or(bit, Ordering::AcqRel);
    }

    /// Whether the namespace was read anew, and whether its access state may have changed.
    pub(super) fn take(&self) -> (bool, bool) {
        let bits = self.0.swap(0, Ordering::AcqRel);
        (bits & Inbox::NAMESPACE != 0, bits & Inbox::ACCESS != 0)
    }
}

/// How well a namespace can be reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Reach {
    Optimized,
    NonOptimized,
    /// Not now.
    Blocked,
    /// Never again through this controller.
    Gone,
}

/// See the module's text.
pub(super) struct Session {
    /// The path's place among the disk's.
    pub(super) path: usize,
    pub(super) controller: Controller,
    pub(super) namespace: RemoteNamespace,
    pub(super) inbox: Arc<Inbox>,
    access: AtomicU8,
    finished: AtomicBool,
    tainted: AtomicBool,
    lost_since: OnceLock<Instant>,
}

impl Session {
    pub(super) fn new(
        path: usize,
        controller: Controller,
        namespace: RemoteNamespace,
        inbox: Arc<Inbox>,
        access: AnaState,
    ) -> Session {
        Session {
            path,
            controller,
            namespace,
            inbox,
            access: AtomicU8::new(access.0),
            finished: AtomicBool::new(false),
            tainted: AtomicBool::new(false),
            lost_since: OnceLock::new(),
        }
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
        self.controller.inner().shared().is_lost()
    }

    /// Commands in flight on each of its queues.
    pub(super) fn queue_depth(&self) -> u16 {
        let controller = self.controller.inner();
        controller.info().queue_depth(controller.options().queue_depth)
    }

    /// Closes every connection of the session at once.
    pub(super) fn abort(&self, reason: &str) {
        self.controller.inner().shared().abort(reason);
    }

    /// When it was seen that the session is lost.
    pub(super) fn lost_since(&self) -> Instant {
        *self.lost_since.get_or_init(Instant::now)
    }

    /// Nothing that was sent on the session is carried out any more.
    pub(super) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// A write that may yet be carried out was reported as failed. Gives whether it was so before.
    pub(super) fn taint(&self) -> bool {
        self.tainted.swap(true, Ordering::AcqRel)
    }

    pub(super) fn is_tainted(&self) -> bool {
        self.tainted.load(Ordering::Acquire)
    }

    pub(super) fn set_finished(&self) {
        self.finished.store(true, Ordering::Release);
    }
}
