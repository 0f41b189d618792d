//! Blocks that one command has for itself for a moment: what a fused Compare and Write compares
//! must be the same until it is written.
//!
//! ```text
//!   claimed --> first in its namespace's line --> spreads to every core --> granted --> given up
//!                                                       |                                  |
//!                    each core: changes that come now are parked, those under way end;  they go on
//! ```
//!
//! A namespace has one claim at a time, so that none waits for another in a circle: what a claim
//! waits for is with the namespace, and ends by itself. Reads go on. A queue has one claim in the
//! line, however many commands it has that need one: lines are fair between queues.
//!
//! Without claims it is one branch for each change of a namespace.

use crate::backings::BackingId;
use crate::shared::{Mailbox, Message, Route};
use farblock_proto::controller::SubsystemId;
use farblock_proto::ids::NamespaceId;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Blocks of a namespace that nobody else is to change.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    id: u64,
    pub(crate) backing: BackingId,
    pub(crate) subsystem: SubsystemId,
    pub(crate) namespace: NamespaceId,
    pub(crate) blocks: Range<u64>,
    /// Whose it is.
    route: Route,
}

/// A namespace's claims, the first one's turn.
#[derive(Default)]
struct Line {
    claims: VecDeque<Arc<Claim>>,
    /// Cores on which changes of what the first claims are under way.
    cores_left: usize,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Claims {
    lines: Mutex<HashMap<BackingId, Line>>,
    last_id: AtomicU64,
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<BackingId, Line>> {
        self.lines.lock().expect("no holder panics")
    }

    /// Claims blocks; when they are granted, the connection hears of it.
    pub(crate) fn claim(
        &self,
        mailboxes: &[Mailbox],
        route: Route,
        backing: BackingId,
        (subsystem, namespace): (SubsystemId, NamespaceId),
        blocks: Range<u64>,
    ) -> Arc<Claim> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let claim = Arc::new(Claim { id, backing, subsystem, namespace, blocks, route });
        let mut lines = self.lock();
        let line = lines.entry(backing).or_default();
        line.claims.push_back(Arc::clone(&claim));
        if line.claims.len() == 1 {
            line.spread(mailboxes);
        }
        claim
    }

    /// A core parks changes of what is claimed, and has none under way.
    pub(crate) fn heeded(&self, mailboxes: &[Mailbox], claim: &Arc<Claim>) {
        let mut lines = self.lock();
        let Some(line) = lines.get_mut(&claim.backing) else { return };
        if line.claims.front() != Some(claim) {
            // It was given up meanwhile.
            return;
        }
        line.cores_left -= 1;
        if line.cores_left == 0 {
            let Route { core, .. } = claim.route;
            mailboxes[core].post(Message::Granted(claim.route, Arc::clone(claim)));
        }
    }

    /// A claim is not needed any more, whether it was granted or not.
    pub(crate) fn give_up(&self, mailboxes: &[Mailbox], claim: &Arc<Claim>) {
        let mut lines = self.lock();
        let Some(line) = lines.get_mut(&claim.backing) else { return };
        if line.claims.front() != Some(claim) {
            line.claims.retain(|other| other != claim);
            return;
        }
        line.claims.pop_front();
        for mailbox in mailboxes {
            mailbox.post(Message::Unclaimed(Arc::clone(claim)));
        }
        match line.claims.is_empty() {
            true => drop(lines.remove(&claim.backing)),
            false => line.spread(mailboxes),
        }
    }
}

impl Line {
    fn spread(&mut self, mailboxes: &[Mailbox]) {
        self.cores_left = mailboxes.len();
        for mailbox in mailboxes {
            mailbox.post(Message::Claimed(Arc::clone(&self.claims[0])));
        }
    }
}
