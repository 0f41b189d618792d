//! An operator's orders to a group of targets, of which each target is a member.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An operator's order for a group. Any member of the group accepts it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "order", rename_all = "kebab-case", deny_unknown_fields)]
pub enum GroupOrder {
    /// Makes this member lead the ANA group whenever it is alive.
    Move {
        /// The ANA group.
        ana_group: u32,
        /// The member.
        member: String,
    },
    /// Lets the group choose the leader of the ANA group again.
    Unpin {
        /// The ANA group.
        ana_group: u32,
    },
    /// Lets the member lead ANA groups again, after a drain or pause.
    Resume {
        /// The member.
        member: String,
    },
    /// Makes the member hand over its ANA groups as soon as another member can lead them.
    Drain {
        /// The member.
        member: String,
    },
    /// Makes the member stop leading, even if no other member can lead.
    Pause {
        /// The member.
        member: String,
    },
    /// Begins a rolling upgrade: the group records its members. Has no effect while an earlier
    /// upgrade has not ended.
    BeginUpgrade,
    /// Makes the member's process exit as soon as the member leads no ANA group. A supervisor, such
    /// as systemd, must start it again.
    Restart {
        /// The member.
        member: String,
    },
    /// Ends the rolling upgrade.
    EndUpgrade,
    /// Removes a dead member and its controller identifiers from the group.
    Forget {
        /// The member.
        member: String,
    },
}

impl fmt::Display for GroupOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Move { ana_group, member } => {
                write!(f, "{member} is to lead ANA group {ana_group}")
            }
            Self::Unpin { ana_group } => {
                write!(f, "the group chooses the leader of ANA group {ana_group}")
            }
            Self::Resume { member } => write!(f, "{member} may lead again"),
            Self::Drain { member } => write!(f, "{member} hands its ANA groups over"),
            Self::Pause { member } => write!(f, "{member} stops leading"),
            Self::BeginUpgrade => f.write_str("a rolling upgrade has begun"),
            Self::Restart { member } => {
                write!(f, "the process of {member} exits, and its supervisor starts it again")
            }
            Self::EndUpgrade => f.write_str("the rolling upgrade has ended"),
            Self::Forget { member } => write!(f, "the group has forgotten {member}"),
        }
    }
}
