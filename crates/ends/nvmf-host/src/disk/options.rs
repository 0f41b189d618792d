//! Options of a disk.

use crate::options::Options;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Options of a disk. nvme-cli uses the same names, and the Linux kernel has the same defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskOptions {
    /// Options of each connection, such as keep alive. For a disk with several paths, the default
    /// of `path_timeout` is [`limits::PATH_TIMEOUT`](crate::limits::PATH_TIMEOUT).
    pub connection: Options,
    /// If no path connects at first, the host retries for this time. Zero means a single attempt.
    pub connect_wait: Duration,
    /// The longest pause between attempts to reconnect. The first attempt follows the loss at once.
    /// After that each pause is twice the previous one, up to this value.
    pub reconnect_delay: Duration,
    /// The time after which the host gives up a lost path. The disk is dead when the host has given
    /// up all paths. `None` means never.
    pub ctrl_loss_timeout: Option<Duration>,
    /// Operations fail if for this time no path was usable, or every usable path refused them. The
    /// host continues to reconnect. `None` means that operations wait until the host has given up
    /// all paths.
    pub fast_io_fail_timeout: Option<Duration>,
    /// Operations fail if for this time the paths were connected, but their targets denied access
    /// (ANA) or answered each attempt with a path error. `None` means the same time as for lost
    /// paths.
    pub denied_timeout: Option<Duration>,
    /// How the disk chooses the path of an operation.
    pub policy: Policy,
    /// The time that the disk waits before it repeats the writes of a lost controller, if no other
    /// controller can close that controller. `None` means that the disk waits until the lost
    /// controller must have stopped (NVMe Base 2.1, "Communication Loss Handling"). This takes two
    /// or three times `keep_alive` plus the time that the controller reports as CQT. With a shorter
    /// wait, a command that is stuck in the target can undo later writes.
    pub quiesce: Option<Duration>,
    /// The host gives up a path after the target broke the protocol in the same way this many times
    /// in a row while no operation succeeded. `None` means never, because an administrator may
    /// replace the target.
    pub breaches_max: Option<u32>,
    /// The required UUID of the namespace. The disk refuses a namespace with another UUID or none.
    pub uuid: Option<[u8; 16]>,
}

impl Default for DiskOptions {
    fn default() -> DiskOptions {
        DiskOptions {
            connection: Options::default(),
            connect_wait: Duration::ZERO,
            reconnect_delay: Duration::from_secs(10),
            ctrl_loss_timeout: Some(Duration::from_secs(600)),
            fast_io_fail_timeout: None,
            denied_timeout: None,
            policy: Policy::Numa,
            quiesce: None,
            breaches_max: None,
            uuid: None,
        }
    }
}

impl DiskOptions {
    /// The time that operations wait for a usable path; `None` without limit.
    pub(super) fn wait_limit(&self) -> Option<Duration> {
        [self.fast_io_fail_timeout, self.ctrl_loss_timeout].into_iter().flatten().min()
    }

    /// The time that operations wait while paths are connected but the target denies access; `None`
    /// without limit.
    pub(super) fn denial_limit(&self) -> Option<Duration> {
        [self.denied_timeout, self.wait_limit()].into_iter().flatten().min()
    }
}

/// How the disk chooses among usable paths. The Linux kernel uses the same names. Optimized paths
/// always have priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// The first usable path in the order given.
    #[default]
    Numa,
    /// Each usable path in turn.
    RoundRobin,
    /// The usable path with the fewest operations of the same queue in flight.
    QueueDepth,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Numa => "numa",
            Policy::RoundRobin => "round-robin",
            Policy::QueueDepth => "queue-depth",
        })
    }
}

/// The error for a text that is not the name of a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParsePolicyError(String);

impl fmt::Display for ParsePolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not an I/O policy: use numa, round-robin or queue-depth", self.0)
    }
}

impl std::error::Error for ParsePolicyError {}

impl FromStr for Policy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Policy, ParsePolicyError> {
        let all = [Policy::Numa, Policy::RoundRobin, Policy::QueueDepth];
        let found = all.into_iter().find(|policy| policy.to_string() == text);
        found.ok_or_else(|| ParsePolicyError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_limit_is_none_without_a_timeout() {
        let limit = |seconds| Some(Duration::from_secs(seconds));
        let mut options = DiskOptions { ctrl_loss_timeout: None, ..DiskOptions::default() };
        assert_eq!(options.wait_limit(), None);
        options.ctrl_loss_timeout = limit(60);
        assert_eq!(options.wait_limit(), limit(60));
        options.fast_io_fail_timeout = limit(1);
        assert_eq!(options.wait_limit(), limit(1));
    }

    #[test]
    fn path_policies_have_the_names_of_the_kernel() {
        for name in ["numa", "round-robin", "queue-depth"] {
            assert_eq!(name.parse::<Policy>().map(|policy| policy.to_string()), Ok(name.into()));
        }
        let error = "fastest".parse::<Policy>().expect_err("no policy").to_string();
        assert!(error.contains("round-robin"), "{error}");
    }
}
