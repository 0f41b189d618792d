//! An operator's orders for the group of a target.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An operator's order for a group. Any member accepts it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "order", rename_all = "kebab-case", deny_unknown_fields)]
pub enum GroupOrder {
    /// This member leads the ANA group whenever it is alive.
    Move {
        /// The ANA group.
        ana_group: u32,
        /// The member.
        member: String,
    },
    /// The group itself chooses the leader of the ANA group again.
    Unpin {
        /// The ANA group.
        ana_group: u32,
    },
    /// The member leads ANA groups again.
    Resume {
        /// The member.
        member: String,
    },
    /// The member hands its ANA groups over as soon as another member can lead them.
    Drain {
        /// The member.
        member: String,
    },
    /// The member stops leading, even if no other member can lead.
    Pause {
        /// The member.
        member: String,
    },
    /// The group notes its members for a rolling upgrade. If an earlier upgrade has not ended,
    /// nothing changes.
    BeginUpgrade,
    /// The process of the member ends as soon as the member leads nothing. Its supervisor, such as
    /// systemd, starts the member again.
    Restart {
        /// The member.
        member: String,
    },
    /// The rolling upgrade has ended.
    EndUpgrade,
    /// The group removes a dead member and its controller identifiers.
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
            Self::Unpin { ana_group } => write!(f, "the group chooses the leader of {ana_group}"),
            Self::Resume { member } => write!(f, "{member} may lead again"),
            Self::Drain { member } => write!(f, "{member} hands its ANA groups over"),
            Self::Pause { member } => write!(f, "{member} stops leading"),
            Self::BeginUpgrade => f.write_str("a rolling upgrade has begun"),
            Self::Restart { member } => write!(f, "{member} ends, to be started again"),
            Self::EndUpgrade => f.write_str("the rolling upgrade has ended"),
            Self::Forget { member } => write!(f, "the group has forgotten {member}"),
        }
    }
}
