//! Claims: a fused Compare and Write needs exclusive use of its blocks, so that no other command
//! changes them between its compare and its write.
//!
//! ```text
//!   claimed --> first in its namespace's line --> spreads to every core --> granted --> given up
//!                                                       |                                  |
//!                    each core: new changes are parked, those under way end;    parked ones resume
//! ```
//!
//! Each namespace has one active claim, so that claims cannot deadlock: the active claim waits only
//! for operations that were already submitted. Reads continue. A queue has at most one claim in a
//! line, even if several of its pairs need one, so that each queue gets its turn.
//!
//! Without claims, each write costs one branch.

use crate::backings::BackingId;
use crate::claim::Claim;
use crate::mailbox::{Mailbox, Message};
use crate::route::Route;
use farblock_proto::controller::SubsystemId;
use farblock_proto::ids::NamespaceId;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// A namespace's claims in order; the first is active.
#[derive(Default)]
struct Line {
    claims: VecDeque<Arc<Claim>>,
    /// Cores that still have changes of the first claim's blocks under way.
    cores_left: usize,
}

#[derive(Default)]
pub(crate) struct Claims {
    lines: Mutex<HashMap<BackingId, Line>>,
    last_id: AtomicU64,
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<BackingId, Line>> {
        self.lines.lock().expect("no holder panics")
    }

    /// Queues a claim; the connection receives a message once it is granted.
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

    /// A core reports that it parks changes of the claimed blocks and that none are under way
    /// there.
    pub(crate) fn applied(&self, mailboxes: &[Mailbox], claim: &Arc<Claim>) {
        let mut lines = self.lock();
        let Some(line) = lines.get_mut(&claim.backing) else { return };
        if line.claims.front() != Some(claim) {
            // The connection has given the claim up meanwhile.
            return;
        }
        line.cores_left -= 1;
        if line.cores_left == 0 {
            let Route { core, .. } = claim.route;
            mailboxes[core].post(Message::Granted(claim.route, Arc::clone(claim)));
        }
    }

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
