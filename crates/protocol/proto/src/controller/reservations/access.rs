//! The access rights of hosts under a reservation (NVMe Base Specification 2.0, "Command Behavior
//! in the Presence of a Reservation"; NVM Command Set Specification 1.0, "Reservations").

use super::HostId;
use alloc::vec::Vec;
use farblock_wire::reservation::ReservationType;

/// The kind of access that a command needs, for reservations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// Read, Compare, Verify.
    Read,
    /// Write, Write Zeroes, Dataset Management, Flush.
    Write,
}

/// A host's rights in a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Rights {
    /// Read and write: no reservation restricts the host.
    #[default]
    All,
    /// Read only.
    Read,
    /// Neither read nor write.
    None,
}

impl Rights {
    /// Whether the host may execute a command of this kind. If false, the command fails with
    /// Reservation Conflict.
    #[must_use]
    pub fn allow(self, kind: AccessKind) -> bool {
        match self {
            Self::All => true,
            Self::Read => kind == AccessKind::Read,
            Self::None => false,
        }
    }
}

/// The effect of a reservation on reads and writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// The type of the reservation.
    pub(super) rtype: ReservationType,
    /// The hosts that the reservation does not restrict.
    pub(super) hosts: Vec<HostId>,
}

impl Access {
    /// No host may read or write.
    pub(super) fn none() -> Self {
        Self { rtype: ReservationType::EXCLUSIVE_ACCESS, hosts: Vec::new() }
    }

    /// Returns the rights of a host.
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
