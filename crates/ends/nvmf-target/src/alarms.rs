//! When connections of a core want to be called.

use crate::session::ConnectionKey;
use std::collections::BTreeSet;
use std::time::Instant;

/// Moments, and whose they are.
#[derive(Default)]
pub(crate) struct Alarms {
    set: BTreeSet<(Instant, u32)>,
    /// The first was another one when that was last asked.
    is_news: bool,
}

impl Alarms {
    pub(crate) fn set(&mut self, at: Instant, key: ConnectionKey) {
        self.is_news |= self.first().is_none_or(|first| at < first);
        self.set.insert((at, key.0));
    }

    /// It does not want to be called then any more.
    pub(crate) fn unset(&mut self, at: Instant, key: ConnectionKey) {
        self.set.remove(&(at, key.0));
    }

    /// The first moment.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.set.first().map(|(at, _)| *at)
    }

    /// Whether there is an earlier one than when this was last asked.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_news)
    }

    /// Whose moment has come.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<ConnectionKey> {
        let (at, _) = self.set.first()?;
        if *at > now {
            return None;
        }
        self.set.pop_first().map(|(_, key)| ConnectionKey(key))
    }
}
