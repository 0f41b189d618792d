//! When most of a crowd has gone, the memory that it had is given back to the system: the C
//! library's allocator keeps it for the next ones, who may never come.

use farblock_reactor::{os, trim_heap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Fewer connections are none.
const LEAST: usize = 256;
/// How many times as many there were.
const TIMES: usize = 4;

/// Those that go with the last ones are waited for.
const PAUSE: Duration = Duration::from_secs(1);

/// How many connections there were at most since the last time.
#[derive(Default)]
pub(crate) struct Crowd(AtomicUsize);

impl Crowd {
    /// There are so many now.
    pub(crate) fn has_come(&self, connections: usize) {
        self.0.fetch_max(connections, Ordering::Relaxed);
    }

    /// So many are left.
    pub(crate) fn goes(&self, connections: usize) {
        if self.has_gone(connections) {
            // A core does not wait for it. Without a thread it is kept until the next time.
            let trim = || {
                os::sleep(PAUSE);
                trim_heap();
            };
            let _ = os::spawn("trim".to_owned(), trim);
        }
    }

    /// Whether most have gone with this one. It is said once for each quarter.
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
    fn each_time_that_three_of_four_have_gone() {
        let crowd = Crowd::default();
        let come = |from: usize, to: usize| (from..to).for_each(|n| crowd.has_come(n + 1));
        let go = |from: usize, to: usize| -> Vec<usize> {
            (to..from).rev().filter(|&left| crowd.has_gone(left)).collect()
        };
        come(0, 16_384);
        assert_eq!(go(16_384, 0), [4096, 1024, 256, 64]);
        come(0, 255);
        assert_eq!(go(255, 0), [0; 0], "few are no crowd");
        come(0, 1000);
        assert_eq!(go(1000, 900), [0; 0]);
        come(900, 2000);
        assert_eq!(go(2000, 400), [500]);
    }
}
