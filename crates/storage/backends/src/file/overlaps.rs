//! Serializes overlapping reads and writes of a file.
//!
//! NVMe promises that a reader sees either all of a write to a logical block or none of it. (The
//! least possible AWUN is one block: NVM Command Set Specification 1.0, "Atomic Operation".) Direct
//! I/O keeps this promise. The page cache of most file systems does not: a reader can see part of a
//! write. So if two operations overlap and one of them writes, the later one waits here until the
//! earlier one has ended. All queues of a file share one table behind a lock. Files with direct I/O
//! have no table.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farblock_reactor::Waker;

/// The number of a claim: an operation's reservation of a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// The table of claims; see the [module](self).
#[derive(Default)]
pub(super) struct Overlaps(Mutex<Table>);

#[derive(Default)]
struct Table {
    next_ticket: u64,
    /// The claims in order of arrival. Of two conflicting claims, the earlier one is granted first.
    claims: VecDeque<Claim>,
    /// The number of claims for writes.
    changes: usize,
}

struct Claim {
    ticket: Ticket,
    range: Range<u64>,
    changes: bool,
    /// The waker to call when the claim is granted; `None` if the claim has been granted.
    waits: Option<Arc<Waker>>,
}

impl Claim {
    fn conflicts(&self, other: &Claim) -> bool {
        let overlap = self.range.start < other.range.end && other.range.start < self.range.end;
        overlap && (self.changes || other.changes)
    }
}

impl Table {
    /// Whether `claim` conflicts with one of the first `earlier` claims.
    fn is_blocked(&self, claim: &Claim, earlier: usize) -> bool {
        // Skip the search in the usual case that all claims are for reads.
        let may_be = claim.changes || self.changes > 0;
        may_be && self.claims.iter().take(earlier).any(|other| other.conflicts(claim))
    }

    fn position(&self, ticket: Ticket) -> usize {
        // Binary search works, because ticket numbers ascend.
        self.claims
            .binary_search_by_key(&ticket.0, |claim| claim.ticket.0)
            .expect("the ticket has a claim")
    }
}

impl Overlaps {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a range of bytes. Returns false if the claim must wait; [`Self::release`] calls
    /// `waker` when it grants the claim.
    pub(super) fn claim(
        &self,
        range: Range<u64>,
        changes: bool,
        waker: &Arc<Waker>,
    ) -> (Ticket, bool) {
        let mut table = self.table();
        let ticket = Ticket(table.next_ticket);
        table.next_ticket += 1;
        let mut claim = Claim { ticket, range, changes, waits: None };
        let is_blocked = table.is_blocked(&claim, usize::MAX);
        claim.waits = is_blocked.then(|| Arc::clone(waker));
        table.changes += usize::from(changes);
        table.claims.push_back(claim);
        (ticket, !is_blocked)
    }

    /// Whether a waiting claim has been granted.
    pub(super) fn is_granted(&self, ticket: Ticket) -> bool {
        let table = self.table();
        table.claims[table.position(ticket)].waits.is_none()
    }

    /// Releases a claim, and grants the claims that no other claim blocks any more.
    pub(super) fn release(&self, ticket: Ticket) {
        let mut table = self.table();
        let at = table.position(ticket);
        let released = table.claims.remove(at).expect("the search found this claim");
        table.changes -= usize::from(released.changes);
        for later in at..table.claims.len() {
            let claim = &table.claims[later];
            let waited = claim.waits.is_some() && claim.conflicts(&released);
            if waited
                && !table.is_blocked(claim, later)
                && let Some(waker) = table.claims[later].waits.take()
            {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_reactor::{Config, Reactor};

    #[test]
    fn overlapping_writes_run_in_order_and_reads_together() {
        let reactor = Reactor::new(&Config::default()).unwrap();
        let waker = Arc::new(reactor.waker(reactor.add_task()));
        let overlaps = Overlaps::default();
        let claim = |range, changes| overlaps.claim(range, changes, &waker);
        let (first, granted) = claim(0..10, false);
        assert!(granted);
        let (second, granted) = claim(5..6, false);
        assert!(granted);
        let (write, granted) = claim(9..20, true);
        assert!(!granted);
        // The later read must not overtake the waiting write, and a write that overlaps this read
        // waits for it. A claim that overlaps no other claim does not wait.
        let (late, granted) = claim(19..21, false);
        assert!(!granted);
        let (elsewhere, granted) = claim(20..30, true);
        assert!(!granted, "a write passed a waiting read of the same bytes");
        let (free, granted) = claim(30..31, true);
        assert!(granted);
        overlaps.release(second);
        assert!(!overlaps.is_granted(write));
        overlaps.release(first);
        assert!(overlaps.is_granted(write) && !overlaps.is_granted(late));
        overlaps.release(write);
        assert!(overlaps.is_granted(late) && !overlaps.is_granted(elsewhere));
        overlaps.release(late);
        assert!(overlaps.is_granted(elsewhere));
        overlaps.release(elsewhere);
        overlaps.release(free);
        let table = overlaps.table();
        assert_eq!((table.claims.len(), table.changes), (0, 0));
    }
}
