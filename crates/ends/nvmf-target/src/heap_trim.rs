//! Returns heap memory to the system after most connections have closed. Otherwise the C library's
//! allocator keeps the memory for later connections, which may never arrive.

use farblock_reactor::{os, trim_heap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// After a peak of fewer connections than this, the target does not trim its heap.
const LEAST: usize = 256;
/// The target trims its heap when the peak number of connections is at least this many times the
/// remaining number.
const TIMES: usize = 4;

/// The pause before a trim, in which more connections can close.
const PAUSE: Duration = Duration::from_secs(1);

/// The peak number of connections since the last trim.
#[derive(Default)]
pub(crate) struct HeapTrim(AtomicUsize);

impl HeapTrim {
    /// Notes that a connection was opened. `connections` connections are open now.
    pub(crate) fn has_come(&self, connections: usize) {
        self.0.fetch_max(connections, Ordering::Relaxed);
    }

    /// Notes that a connection was closed. `connections` connections remain open.
    pub(crate) fn goes(&self, connections: usize) {
        if self.has_gone(connections) {
            // Trim on a separate thread, since trimming blocks. If the thread cannot start, the
            // memory stays allocated until the next drop in connections.
            let trim = || {
                os::sleep(PAUSE);
                trim_heap();
            };
            let _ = os::spawn("trim".to_owned(), trim);
        }
    }

    /// Returns whether to trim the heap: the peak was at least [`LEAST`], and at most a quarter of
    /// it remains. If so, the remaining number becomes the new peak.
    fn has_gone(&self, connections: usize) -> bool {
        let most = self.0.load(Ordering::Relaxed);
        let is_much = most >= LEAST && connections <= most / TIMES;
        let order = Ordering::Relaxed;
        is_much && self.0.compare_exchange(most, connections, order, order).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_is_trimmed_when_three_quarters_of_the_connections_are_closed() {
        let trim = HeapTrim::default();
        let come = |from: usize, to: usize| (from..to).for_each(|n| trim.has_come(n + 1));
        let go = |from: usize, to: usize| -> Vec<usize> {
            (to..from).rev().filter(|&left| trim.has_gone(left)).collect()
        };
        come(0, 16_384);
        assert_eq!(go(16_384, 0), [4096, 1024, 256, 64]);
        come(0, 255);
        assert_eq!(go(255, 0), [0; 0], "a trim after a small peak");
        come(0, 1000);
        assert_eq!(go(1000, 900), [0; 0]);
        come(900, 2000);
        assert_eq!(go(2000, 400), [500]);
    }
}
