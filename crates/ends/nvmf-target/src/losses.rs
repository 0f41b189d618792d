//! Counts failed flushes, and reports each failure to every host that uses the namespace.
//!
//! A failed flush may have lost writes of any host that uses the namespace, but the store reports
//! the failure only once. So the target fails the next flush of every other host as well. Otherwise
//! another host would consider its own writes durable although they may be lost.

use crate::limits;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(crate) struct Losses {
    count: AtomicU64,
    /// The number of failures reported to each host, by the hash of its name. At most
    /// [`limits::FLUSHING_HOSTS`] hosts have an entry. Hosts without an entry learn only of
    /// failures of their own flushes.
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

    /// Registers a host that starts to use the namespace. The target does not report earlier
    /// failures to this host.
    pub(crate) fn meet(&self, host: &str) {
        let mut heard = self.heard();
        let count = self.count.load(Ordering::Acquire);
        if heard.len() < limits::FLUSHING_HOSTS {
            heard.entry(key(host)).or_insert(count);
        }
    }

    /// Records a failed flush. `told` is the host that receives the error in the response to its
    /// flush; `None` if it has disconnected.
    pub(crate) fn add(&self, told: Option<&str>) {
        let mut heard = self.heard();
        let before = self.count.fetch_add(1, Ordering::AcqRel);
        let known = told.and_then(|host| heard.get_mut(&key(host)));
        // If the host has not received an earlier failure, its next flush must still fail.
        if let Some(known) = known.filter(|known| **known == before) {
            *known = before + 1;
        }
    }

    /// Returns whether the target must fail this host's flush, which succeeded at the store, to
    /// report an earlier loss. If so, all earlier losses count as reported to the host.
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
    fn each_host_learns_of_each_loss_once() {
        let losses = Losses::default();
        losses.meet("a");
        losses.meet("b");
        assert!(!losses.take("a"));
        losses.add(Some("a"));
        // Host b already uses the namespace, and opens another connection.
        losses.meet("b");
        losses.meet("later");
        assert!([losses.take("a"), losses.take("b"), losses.take("later")] == [false, true, false]);
        assert!(!losses.take("b"));
        // The host that sent the failed flush has disconnected.
        losses.add(None);
        assert!([losses.take("a"), losses.take("b"), losses.take("later")] == [true; 3]);
        // A host that has missed two failures receives one error for both.
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
