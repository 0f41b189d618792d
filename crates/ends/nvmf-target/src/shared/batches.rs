//! Batches: changes of namespaces that reach the cores together.
//!
//! Each change sends the cores a new list of all namespaces of the subsystem. Without batches, ten
//! thousand added namespaces would need ten thousand such lists, with fifty million entries.

use super::{Management, TargetShared};
use crate::backings::{Backing, BackingId};
use crate::mailbox::Message;
use crate::removal::{Removal, Share};
use std::sync::mpsc;

/// The number of open batches, and the stores to release when the last of them ends.
#[derive(Default)]
pub(crate) struct Batches {
    open: usize,
    retiring: Vec<(BackingId, Share)>,
}

impl Batches {
    /// Schedules the release of a store that was removed from the lists, once every core has a new
    /// list.
    pub(super) fn retire(&mut self, backing: Backing) -> Removal {
        let (share, shares) = mpsc::channel();
        self.retiring.push((backing.id, share));
        Removal::new(shares, backing.namespace)
    }
}

impl TargetShared {
    pub(crate) fn begin_batch(&self) {
        self.lock().batches.open += 1;
    }

    pub(crate) fn end_batch(&self) {
        let mut management = self.lock();
        management.batches.open -= 1;
        self.act_after_batch(&mut management);
    }

    /// Sends the cores all changes that were made so far.
    pub(crate) fn send_changes(&self) {
        self.act(&mut self.lock());
    }

    /// Executes the registry's actions, or delays them until the open batch ends. If a host's
    /// command needs them, they execute earlier.
    pub(super) fn act_after_batch(&self, management: &mut Management) {
        if management.batches.open == 0 {
            self.act(management);
        }
    }

    /// Makes every core close its queues into the removed stores. Each core has received its new
    /// lists before these messages, so no connection can access the stores any more.
    pub(super) fn retire_stores(&self, management: &mut Management) {
        for (backing, share) in management.batches.retiring.drain(..) {
            for mailbox in self.mailboxes() {
                mailbox.post(Message::Retire(backing, share.clone()));
            }
        }
    }
}
