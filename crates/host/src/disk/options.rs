//! How a disk is kept.

use crate::options::Options;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How a disk is kept. The names are nvme-cli's, the defaults those of the Linux kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskOptions {
    /// How each connection is made, keep alive included. With several paths its `path_timeout` is
    /// short unless it is given.
    pub connection: Options,
    /// The longest pause between two attempts to reconnect. The first attempt is made at once,
    /// the next ones with pauses that double up to this.
    pub reconnect_delay: Duration,
    /// A path is given up when it was lost for this long; the disk is dead when its last path is
    /// given up. `None`: never.
    pub ctrl_loss_timeout: Option<Duration>,
    /// Operations fail when no path was usable for this long, while reconnecting goes on. `None`:
    /// they wait for as long as there is hope.
    pub fast_io_fail_timeout: Option<Duration>,
    /// Which path an operation takes.
    pub policy: Policy,
    /// How long to wait before writes are sent anew that were lost with a controller that cannot
    /// be ended by another one, besides the time that it asks for (CQT).
    pub quiesce: Duration,
}

impl Default for DiskOptions {
    fn default() -> DiskOptions {
        DiskOptions {
            connection: Options::default(),
            reconnect_delay: Duration::from_secs(10),
            ctrl_loss_timeout: Some(Duration::from_secs(600)),
            fast_io_fail_timeout: None,
            policy: Policy::Numa,
            quiesce: Duration::ZERO,
        }
    }
}

/// Which of the usable paths an operation takes; the names are the kernel's. Optimized paths come
/// before others, always.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// The first in the order given, for as long as it is usable.
    #[default]
    Numa,
    /// One after the other.
    RoundRobin,
    /// The one with the fewest operations of the same queue in flight.
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

/// The text names no policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParsePolicyError(String);

impl fmt::Display for ParsePolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no I/O policy: use numa, round-robin or queue-depth", self.0)
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
    fn policies_have_the_kernels_names() {
        for name in ["numa", "round-robin", "queue-depth"] {
            assert_eq!(name.parse::<Policy>().map(|policy| policy.to_string()), Ok(name.into()));
        }
        let error = "fastest".parse::<Policy>().expect_err("no policy").to_string();
        assert!(error.contains("round-robin"), "{error}");
    }
}
