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
    /// How long connecting the disk goes on trying when no path can be connected, as if it had been
    /// lost. Zero: one attempt tells.
    pub connect_wait: Duration,
    /// The longest pause between two attempts to reconnect. The first attempt is made at once,
    /// the next ones with pauses that double up to this.
    pub reconnect_delay: Duration,
    /// A path is given up when it was lost for this long; the disk is dead when its last path is
    /// given up. `None`: never.
    pub ctrl_loss_timeout: Option<Duration>,
    /// Operations fail when no path was usable for this long, or none that they were given to has
    /// carried them out, while reconnecting goes on. `None`: they wait for as long as there is
    /// hope.
    pub fast_io_fail_timeout: Option<Duration>,
    /// Which path an operation takes.
    pub policy: Policy,
    /// How long to wait before writes are sent anew that were lost with a controller that cannot
    /// be ended by another one. `None`: until it must have ended itself (NVMe Base 2.1,
    /// "Communication Loss Handling"), which takes two or three times `keep_alive`, and the time
    /// that the controller asks for (CQT). Less is quicker, and a command that is stuck in such a
    /// target for longer undoes what was written after it.
    pub quiesce: Option<Duration>,
    /// The namespace's UUID: another one, or one without, is refused.
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
            policy: Policy::Numa,
            quiesce: None,
            uuid: None,
        }
    }
}

impl DiskOptions {
    /// How long operations wait for a path to be usable; `None`: for ever.
    pub(super) fn patience(&self) -> Option<Duration> {
        [self.fast_io_fail_timeout, self.ctrl_loss_timeout].into_iter().flatten().min()
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
    fn never_is_never() {
        let limit = |seconds| Some(Duration::from_secs(seconds));
        let mut options = DiskOptions { ctrl_loss_timeout: None, ..DiskOptions::default() };
        assert_eq!(options.patience(), None);
        options.ctrl_loss_timeout = limit(60);
        assert_eq!(options.patience(), limit(60));
        options.fast_io_fail_timeout = limit(1);
        assert_eq!(options.patience(), limit(1));
    }

    #[test]
    fn policies_have_the_kernels_names() {
        for name in ["numa", "round-robin", "queue-depth"] {
            assert_eq!(name.parse::<Policy>().map(|policy| policy.to_string()), Ok(name.into()));
        }
        let error = "fastest".parse::<Policy>().expect_err("no policy").to_string();
        assert!(error.contains("round-robin"), "{error}");
    }
}
