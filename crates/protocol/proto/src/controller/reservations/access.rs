//! Who may do what while there is a reservation (NVMe Base Specification 2.0, "Command Behavior in
//! the Presence of a Reservation"; NVM Command Set Specification 1.0, "Reservations").

use super::HostId;
use alloc::vec::Vec;
use farblock_wire::reservation::ReservationType;

/// What a command does to a namespace, as reservations see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// Read, Compare, Verify.
    Read,
    /// Write, Write Zeroes, Dataset Management, Flush.
    Write,
}

/// What a host may do with a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Rights {
    /// Everything: no reservation stands in the way.
    #[default]
    All,
    /// Read, but not write.
    Read,
    /// Neither.
    None,
}

impl Rights {
    /// Whether a command of this kind is carried out. If not: Reservation Conflict.
    #[must_use]
    pub fn allow(self, kind: AccessKind) -> bool {
        match self {
            Self::All => true,
            Self::Read => kind == AccessKind::Read,
            Self::None => false,
        }
    }
}

/// A reservation as the data path sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// Its type.
    pub(super) rtype: ReservationType,
    /// Whom it lets do everything.
    pub(super) hosts: Vec<HostId>,
}

impl Access {
    /// What a host may do.
    #[must_use]
    pub fn rights(&self, host: &HostId) -> Rights {
        if self.hosts.contains(host) {
            return Rights::All;
        }
        match self.rtype {
            ReservationType::WRITE_EXCLUSIVE
            | ReservationType::WRITE_EXCLUSIVE_REGISTRANTS
            | ReservationType::WRITE_EXCLUSIVE_ALL => Rights::Read,
            _ => Rights::None,
        }
    }
}
