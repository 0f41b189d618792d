//! What the target's thread shares with whoever started it: a mailbox, and a count.

use super::scsi::inquiry::Identity;
use super::scsi::reservation::Reservations;
use super::unit::Unit;
use farblock_block::{Geometry, Namespace};
use farblock_reactor::Waker;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What the thread is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// The namespace has another size.
    Resized,
    /// Let everybody log out, or do not wait for that, and end.
    Stop {
        /// Do not wait.
        force: bool,
    },
}

/// See the module's text.
pub(super) struct Shared {
    namespace: Arc<dyn Namespace>,
    identity: Identity,
    read_only: bool,
    messages: Mutex<Vec<Message>>,
    waker: OnceLock<Waker>,
    connections: AtomicUsize,
}

impl Shared {
    pub(super) fn new(
        namespace: Arc<dyn Namespace>,
        identity: Identity,
        read_only: bool,
    ) -> Shared {
        Shared {
            namespace,
            identity,
            read_only,
            messages: Mutex::default(),
            waker: OnceLock::new(),
            connections: AtomicUsize::new(0),
        }
    }

    pub(super) fn set_waker(&self, waker: Waker) {
        assert!(self.waker.set(waker).is_ok(), "the waker is set once");
    }

    pub(super) fn namespace(&self) -> &dyn Namespace {
        &*self.namespace
    }

    /// As of now, and as writable as it is to be.
    pub(super) fn geometry(&self) -> Geometry {
        let mut geometry = self.namespace.geometry();
        geometry.read_only |= self.read_only;
        geometry
    }

    pub(super) fn unit(&self) -> Unit {
        Unit {
            geometry: self.geometry(),
            identity: self.identity.clone(),
            reservations: Reservations::default(),
            is_lost: false,
        }
    }

    pub(super) fn post(&self, message: Message) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(message);
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    pub(super) fn take_messages(&self) -> Vec<Message> {
        std::mem::take(&mut self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn disconnected(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
