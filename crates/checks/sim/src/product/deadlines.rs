//! The deadlines of operations, derived from the options of the disk.
//!
//! The options limit the duration of every operation. The time counts from the operation's
//! submission or, if that is later, from the last start or end of a fault, because each fault may
//! delay the operation again. While no path is usable, the limit applies only if the options make
//! operations fail fast.

use super::Plan;
use farblock_host::disk::DiskOptions;
use farblock_host::limits as host;
use farblock_target::limits as target;
use std::collections::BTreeMap;
use std::time::Duration;

/// Additional time for steps that no option limits: messages in transit, and a poll of a queue.
const SLACK: Duration = Duration::from_secs(1);

/// The deadlines of the operations in flight; see the [module](self).
pub(super) struct Deadlines {
    begun: BTreeMap<u64, Duration>,
    changed: Duration,
    within: Duration,
    /// The limit while no target process runs. It is shorter, because the host notices closed
    /// connections at once.
    within_alone: Duration,
}

impl Deadlines {
    pub(super) fn new(plan: &Plan, options: &DiskOptions) -> Deadlines {
        let within = within(plan, options);
        // Add the time of an attempt to connect that may be in progress.
        let alone = |patience| patience + options.connection.connect_timeout + SLACK;
        let within_alone = options.fast_io_fail_timeout.map_or(within, alone);
        Deadlines { begun: BTreeMap::new(), changed: Duration::ZERO, within, within_alone }
    }

    pub(super) fn begin(&mut self, token: u64, now: Duration) {
        self.begun.insert(token, now);
    }

    pub(super) fn end(&mut self, token: u64) {
        self.begun.remove(&token);
    }

    /// Forgets all operations, because the process of their caller has died.
    pub(super) fn forget(&mut self) {
        self.begun.clear();
    }

    /// Registers the start or the end of a fault. `until`: when the fault ends.
    pub(super) fn change(&mut self, until: Duration) {
        self.changed = self.changed.max(until);
    }

    /// Counts the time limits of all pending operations from `at`. All connections have closed by
    /// then, so earlier faults have no more effect.
    pub(super) fn begin_anew(&mut self, at: Duration) {
        self.changed = at;
    }

    /// The token of an operation past its deadline, and the time since the operation was submitted.
    pub(super) fn overdue(&self, now: Duration, is_there: bool) -> Option<(u64, Duration)> {
        let within = if is_there { self.within } else { self.within_alone };
        let is_late = |begun: Duration| now > begun.max(self.changed) + within;
        let late = self.begun.iter().find(|(_, begun)| is_late(**begun));
        late.map(|(token, begun)| (*token, now - *begun))
    }
}

/// The longest duration of an operation while no fault starts or ends.
fn within(plan: &Plan, options: &DiskOptions) -> Duration {
    let connection = &options.connection;
    // A queue checks for late commands eight times per command timeout, and one check may be in
    // progress. The host sends a keep-alive after half of its interval, and then waits for another
    // whole interval.
    let notice = (connection.io_timeout * 10 / 8).max(connection.keep_alive * 3 / 2);
    // The time for an attempt that fails, the pause, and an attempt that succeeds.
    let reconnect =
        options.reconnect_delay + connection.connect_timeout * 2 + host::BUSY_RETRY_TIME;
    // An operation may lose each path in turn. Then the controller through which the host resets a
    // lost controller may not answer either.
    let lost = notice * (plan.paths as u32 + 1) + reconnect * 2;
    // The target frees the memory of lost commands only when their transfers time out.
    let memory = plan.core_buffer_bytes.map_or(Duration::ZERO, |_| target::TRANSFER_TIMEOUT);
    let patience = options.fast_io_fail_timeout.unwrap_or_default();
    lost + patience + memory + plan.disk.delay + plan.disk.late + SLACK
}
