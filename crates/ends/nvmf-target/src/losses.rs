//! Flushes that failed, and who has heard of it.
//!
//! What a failed flush did not make durable may have been any host's that uses the namespace, and
//! what stores it tells of it once. So each of the others is told by its own next flush, which is
//! its last chance to hear that what it believes durable then may be lost.

use crate::limits;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Those of one namespace.
#[derive(Default)]
pub(crate) struct Losses {
    count: AtomicU64,
    /// Of how many each host has heard, by its name's hash. A host beyond the limit hears of those
    /// that its own flushes meet.
    heard: Mutex<HashMap<u64, u64>>,
}

fn key(host: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    host.hash(&mut hasher);
    hasher.finish()
}

impl Losses {
    fn heard(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A host begins to use the namespace, if it has not before: what was lost so far was not its.
    pub(crate) fn meet(&self, host: &str) {
        let mut heard = self.heard();
        let count = self.count.load(Ordering::Acquire);
        if heard.len() < limits::FLUSHING_HOSTS {
            heard.entry(key(host)).or_insert(count);
        }
    }

    /// A flush has failed, and this host, if there is one, is told so.
    pub(crate) fn add(&self, told: Option<&str>) {
        let mut heard = self.heard();
        let before = self.count.fetch_add(1, Ordering::AcqRel);
        let known = told.and_then(|host| heard.get_mut(&key(host)));
        // Of one that it has not heard of it still has to hear.
        if let Some(known) = known.filter(|known| **known == before) {
            *known = before + 1;
        }
    }

    /// Whether a flush that has succeeded is to fail, since this host has to hear of a loss. Then
    /// it has.
    pub(crate) fn take(&self, host: &str) -> bool {
        let count = self.count.load(Ordering::Acquire);
        if count == 0 {
            return false;
        }
        let mut heard = self.heard();
        let Some(known) = heard.get_mut(&key(host)) else { return false };
        std::mem::replace(known, count) < count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_hears_of_each_loss_once() {
        let losses = Losses::default();
        losses.meet("a");
        losses.meet("b");
        assert!(!losses.take("a"));
        losses.add(Some("a"));
        // It was there before, and comes again.
        losses.meet("b");
        losses.meet("later");
        assert!([losses.take("a"), losses.take("b"), losses.take("later")] == [false, true, false]);
        assert!(!losses.take("b"));
        // Whoever it was for is gone.
        losses.add(None);
        assert!([losses.take("a"), losses.take("b"), losses.take("later")] == [true; 3]);
        // Two that one has not heard of are one to it.
        losses.add(Some("a"));
        losses.add(Some("a"));
        assert!([losses.take("b"), losses.take("b"), losses.take("a")] == [true, false, false]);
    }

    #[test]
    fn hosts_beyond_the_limit_are_not_remembered() {
        let losses = Losses::default();
        (0..2 * limits::FLUSHING_HOSTS).for_each(|host| losses.meet(&host.to_string()));
        assert_eq!(losses.heard().len(), limits::FLUSHING_HOSTS);
        losses.add(Some("first"));
        assert!(losses.take("0") && !losses.take("first") && !losses.take("100000"));
    }
}
