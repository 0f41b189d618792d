//! Sentences for people about events and records.

use crate::action::Report;
use crate::keys::Key;
use crate::records::{Reason, VERSION};
use std::fmt;

/// The beginning of [`FailedRecord::problem`](crate::FailedRecord::problem) for a disk.
pub(crate) const CANNOT_OPEN: &str = "cannot open its disk";

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::New => "the ANA group is new",
            Self::Order => "an operator's order",
            Self::Balance => "the member that should lead has been alive for long enough",
            Self::Lost => "the earlier leader is lost",
            Self::Restart => "the leader has restarted",
            Self::FenceFailed => "the fence or the disk failed",
            Self::Leave => "the leader leaves the group",
        })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member(name) => write!(f, "member/{name}"),
            Self::Alive(name) => write!(f, "alive/{name}"),
            Self::Suspect(name) => write!(f, "suspect/{name}"),
            Self::Range(number) => write!(f, "range/{number}"),
            Self::Order(name) => write!(f, "order/{name}"),
            Self::Ana(number) => write!(f, "ana/{number}"),
            Self::Pin(number) => write!(f, "pin/{number}"),
            Self::Leader(number) => write!(f, "leader/{number}"),
            Self::Reservation(name) => write!(f, "reservation/{name}"),
            Self::Ack(name) => write!(f, "ack/{name}"),
            Self::Hosts(name) => write!(f, "hosts/{name}"),
            Self::Upgrade => f.write_str("upgrade/rolling"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { incarnation } => {
                write!(f, "joined the group as incarnation {incarnation}")
            }
            Self::LeaseLost => f.write_str("etcd ended this member's lease"),
            Self::Superseded => {
                f.write_str("another process has this member's name, or the group has forgotten it")
            }
            Self::NoRange => f.write_str(
                "all ranges of controller identifiers are assigned: remove a dead member with \
                 farblock ctl group forget",
            ),
            Self::Takes { group, epoch, reason } => {
                write!(f, "takes ANA group {group}, epoch {epoch}: {reason}")
            }
            Self::WaitsOut { group, .. } => {
                write!(f, "waits until the earlier leader of ANA group {group} has stopped")
            }
            Self::Leads { group, epoch } => write!(f, "leads ANA group {group}, epoch {epoch}"),
            Self::Left { group, reason } => {
                write!(f, "does not lead ANA group {group} any more: {reason}")
            }
            Self::CannotOpen { group, problem } => {
                write!(f, "leads ANA group {group}, but {CANNOT_OPEN}: {problem}")
            }
            Self::WatchdogLost => f.write_str(
                "the watchdog process has ended; this member hands its ANA groups over and leaves",
            ),
            Self::HoldsOver { group, .. } => {
                write!(f, "etcd has no quorum; ANA group {group} continues under its leader")
            }
            Self::Unreadable(key) => write!(
                f,
                "cannot read the record {key} in etcd: it is damaged, or a much newer farblock \
                 has written it (this farblock reads record versions up to {})",
                VERSION + 1
            ),
        }
    }
}
