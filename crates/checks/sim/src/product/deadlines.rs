//! When operations have to have ended, by what the disk's options say.
//!
//! Whatever was submitted ends within a time that the options give, counted from when it was
//! submitted or from when the world last changed: each further fault may cost it as much again.
//! Without a usable path that holds only where operations are to fail fast.

use super::Plan;
use farblock_host::disk::DiskOptions;
use farblock_host::limits as host;
use farblock_target::limits as target;
use std::collections::BTreeMap;
use std::time::Duration;

/// For what takes no time by itself: messages on their way, a queue's turn.
const SLACK: Duration = Duration::from_secs(1);

/// See the module's text.
pub(super) struct Deadlines {
    begun: BTreeMap<u64, Duration>,
    changed: Duration,
    within: Duration,
    /// The same where there is no target, which ends all connections.
    within_alone: Duration,
}

impl Deadlines {
    pub(super) fn new(plan: &Plan, options: &DiskOptions) -> Deadlines {
        let within = within(plan, options);
        // An attempt to connect may still be under way.
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

    /// Nobody waits for anything any more.
    pub(super) fn forget(&mut self) {
        self.begun.clear();
    }

    /// Something goes wrong until then, or is as it was again.
    pub(super) fn change(&mut self, until: Duration) {
        self.changed = self.changed.max(until);
    }

    /// All connections have ended, and what was wrong with them does not matter any more.
    pub(super) fn begin_anew(&mut self, at: Duration) {
        self.changed = at;
    }

    /// An operation that should have ended, and how long ago it was begun.
    pub(super) fn overdue(&self, now: Duration, is_there: bool) -> Option<(u64, Duration)> {
        let within = if is_there { self.within } else { self.within_alone };
        let is_late = |begun: Duration| now > begun.max(self.changed) + within;
        let late = self.begun.iter().find(|(_, begun)| is_late(**begun));
        late.map(|(token, begun)| (*token, now - *begun))
    }
}

/// How long an operation may take while nothing changes.
fn within(plan: &Plan, options: &DiskOptions) -> Duration {
    let connection = &options.connection;
    // A queue looks eight times in the time that a command has, and once more for the one that is
    // under way; the keep alive is sent halfway, and then has its time.
    let notice = (connection.io_timeout * 10 / 8).max(connection.keep_alive * 3 / 2);
    // An attempt that began before, the pause, and one that succeeds.
    let reconnect =
        options.reconnect_delay + connection.connect_timeout * 2 + host::BUSY_RETRY_TIME;
    // Each path may be lost with the operation; then the controller may be silent that is to end
    // those.
    let lost = notice * (plan.paths as u32 + 1) + reconnect * 2;
    // Memory that the lost ones hold at the target comes back when they are given up there.
    let memory = plan.core_buffer_bytes.map_or(Duration::ZERO, |_| target::TRANSFER_TIMEOUT);
    let patience = options.fast_io_fail_timeout.unwrap_or_default();
    lost + patience + memory + plan.disk.delay + plan.disk.late + SLACK
}
