//! Claims: locks on blocks for fused Compare and Write. While the command holds its claim, no other
//! command changes the claimed blocks between the compare and the write.
//!
//! ```text
//!   claimed --> first in its namespace's line --> spreads to every core --> granted --> given up
//!                                                       |                                  |
//!                    each core: new changes are parked, those under way end;    parked ones resume
//! ```
//!
//! Each namespace has at most one active claim. The active claim waits only for operations that
//! were submitted earlier, so claims cannot deadlock. Reads do not wait for claims. At most one
//! claim of a queue waits at a time, even if several of its fused pairs need one, so that each
//! queue gets its turn.
//!
//! A write to a namespace without claims costs one additional branch.

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

/// The claims on a namespace, in order of arrival. The first claim is active.
#[derive(Default)]
struct Line {
    claims: VecDeque<Arc<Claim>>,
    /// The number of cores that still execute changes of the first claim's blocks.
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

    /// Queues a claim. The connection receives a message once the claim is granted.
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

    /// Notes that a core parks changes of the claimed blocks and has none under way.
    pub(crate) fn applied(&self, mailboxes: &[Mailbox], claim: &Arc<Claim>) {
        let mut lines = self.lock();
        let Some(line) = lines.get_mut(&claim.backing) else { return };
        if line.claims.front() != Some(claim) {
            // The connection gave up the claim before this core answered.
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
