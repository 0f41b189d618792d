//! The state that the target's thread and its starter share: a mailbox, and the number of
//! connections.

use crate::scsi::inquiry::Identity;
use crate::scsi::reservation::Reservations;
use crate::unit::Unit;
use farblock_block::Geometry;
use farblock_frontend::{Disk, Mailboxes};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of the target's only thread.
const CORE: usize = 0;

/// A message to the target's thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    /// The namespace's geometry has changed.
    Resized,
    /// Exit after all initiators have logged out.
    Stop {
        /// Exit without waiting for logouts.
        force: bool,
    },
}

/// The state shared with the target's thread.
pub(crate) struct PortalShared {
    disk: Disk,
    identity: Identity,
    pub(crate) mailboxes: Mailboxes<Message>,
    connections: AtomicUsize,
}

impl PortalShared {
    pub(crate) fn new(disk: Disk, identity: Identity) -> PortalShared {
        PortalShared {
            disk,
            identity,
            mailboxes: Mailboxes::default(),
            connections: AtomicUsize::new(0),
        }
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    pub(crate) fn unit(&self) -> Unit {
        Unit {
            geometry: self.geometry(),
            identity: self.identity.clone(),
            reservations: Reservations::default(),
            is_lost: false,
        }
    }

    pub(crate) fn post(&self, message: Message) {
        self.mailboxes.post(CORE, message);
    }

    pub(crate) fn take_messages(&self) -> Vec<Message> {
        self.mailboxes.take(CORE)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn disconnected(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
