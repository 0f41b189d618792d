//! Changes of namespaces that reach the cores together.
//!
//! Each list of a subsystem's namespaces is built and read in a time proportional to its length. So
//! ten thousand changes, each with its own list, would take a hundred million steps.

use super::{Management, TargetShared};
use crate::backings::{Backing, BackingId};
use crate::mailbox::Message;
use crate::removal::{Removal, Share};
use std::sync::mpsc;

/// The open batches, and the stores to release at the end of the next one.
#[derive(Default)]
pub(crate) struct Batches {
    open: usize,
    retiring: Vec<(BackingId, Share)>,
}

impl Batches {
    /// Releases a store that was removed from the lists, once every core has its new list.
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

    /// Sends the cores all changes so far.
    pub(crate) fn send_changes(&self) {
        self.act(&mut self.lock());
    }

    /// Executes the registry's actions, or leaves them to the end of the open batch. A host's
    /// command may execute them sooner.
    pub(super) fn act_after_batch(&self, management: &mut Management) {
        if management.batches.open == 0 {
            self.act(management);
        }
    }

    /// Lets every core close its queues into stores that were removed from the lists. Each core has
    /// received its new lists before these messages, so no connection can reach the stores any
    /// more.
    pub(super) fn retire_stores(&self, management: &mut Management) {
        for (backing, share) in management.batches.retiring.drain(..) {
            for mailbox in self.mailboxes() {
                mailbox.post(Message::Retire(backing, share.clone()));
            }
        }
    }
}
