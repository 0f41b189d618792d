//! Counts I/O responses by error status, for the whole target. The table has a counter for every
//! possible status (2048). A table for each namespace or host would take too much memory.

use farblock_wire::Status;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of combinations of Status Code Type and Status Code.
const CODES: usize = 1 << 11;

pub(crate) struct ByStatus(Box<[AtomicU64]>);

impl Default for ByStatus {
    fn default() -> Self {
        Self((0..CODES).map(|_| AtomicU64::new(0)).collect())
    }
}

impl ByStatus {
    pub(crate) fn count(&self, status: Status) {
        if let Some(count) = self.0.get(usize::from(status.code())) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> BTreeMap<u16, u64> {
        let counts = (0..).zip(&self.0).map(|(code, it)| (code, it.load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_counted_without_their_retry_bits() {
        let all = ByStatus::default();
        let last = Status(0x7ff);
        for status in [Status::INVALID_FIELD, Status::INVALID_FIELD.with_dnr(), last] {
            all.count(status);
        }
        let expected = BTreeMap::from([(Status::INVALID_FIELD.code(), 2), (last.code(), 1)]);
        assert_eq!(all.counts(), expected);
    }
}
