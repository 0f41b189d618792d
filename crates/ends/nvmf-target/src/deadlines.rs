//! The deadlines of a core's connections.

use crate::route::ConnectionKey;
use std::collections::BTreeSet;
use std::time::Instant;

#[derive(Default)]
pub(crate) struct Deadlines {
    set: BTreeSet<(Instant, u32)>,
    /// Whether the earliest deadline has become earlier since [`Self::take_news`].
    is_news: bool,
}

impl Deadlines {
    pub(crate) fn set(&mut self, at: Instant, key: ConnectionKey) {
        self.is_news |= self.first().is_none_or(|first| at < first);
        self.set.insert((at, key.0));
    }

    pub(crate) fn unset(&mut self, at: Instant, key: ConnectionKey) {
        self.set.remove(&(at, key.0));
    }

    pub(crate) fn first(&self) -> Option<Instant> {
        self.set.first().map(|(at, _)| *at)
    }

    /// Returns whether the earliest deadline has become earlier since the last call.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_news)
    }

    /// Removes and returns the next connection whose deadline has passed.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<ConnectionKey> {
        let (at, _) = self.set.first()?;
        if *at > now {
            return None;
        }
        self.set.pop_first().map(|(_, key)| ConnectionKey(key))
    }
}
