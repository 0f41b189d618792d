//! Parses reservation commands (NVMe Base Specification 2.0, "Reservation Acquire command",
//! "Reservation Register command", "Reservation Release command", "Reservation Report command").

use farblock_wire::opcode::NvmOpcode;
use farblock_wire::reservation::{
    AcquireAction, AcquireData, REPORT_EXTENDED, RegisterAction, RegisterData, ReleaseAction,
    ReleaseData, ReservationControl, ReservationType,
};
use farblock_wire::sqe::Sqe;
use farblock_wire::status::Status;

/// A reservation command without the keys in its data. Every field has a value that the
/// specification defines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReservationCommand {
    /// Reservation Register.
    Register {
        /// The action (RREGA).
        action: RegisterAction,
        /// Whether to ignore the current key (IEKEY).
        ignore_key: bool,
        /// Whether reservations will persist through a power loss (CPTPL); `None`: unchanged.
        persist: Option<bool>,
    },
    /// Reservation Acquire.
    Acquire {
        /// The action (RACQA).
        action: AcquireAction,
        /// The type of the reservation (RTYPE).
        rtype: ReservationType,
    },
    /// Reservation Release.
    Release {
        /// The action (RRELA).
        action: ReleaseAction,
        /// The type of the reservation (RTYPE).
        rtype: ReservationType,
    },
    /// Reservation Report, with the extended data structure.
    Report {
        /// The size of the host's buffer, in bytes (NUMD).
        bytes: u32,
    },
}

impl ReservationCommand {
    /// Whether an opcode belongs to a reservation command.
    pub(crate) fn is_one(opcode: NvmOpcode) -> bool {
        matches!(
            opcode,
            NvmOpcode::RESERVATION_REGISTER
                | NvmOpcode::RESERVATION_ACQUIRE
                | NvmOpcode::RESERVATION_RELEASE
                | NvmOpcode::RESERVATION_REPORT
        )
    }

    /// Parses a command's dwords.
    ///
    /// # Errors
    /// Returns the status with which to complete the command.
    pub(crate) fn parse(sqe: &Sqe) -> Result<Self, Status> {
        const INVALID: Status = Status::INVALID_FIELD.with_dnr();
        let control = ReservationControl(sqe.cdw10.get());
        let rtype = ReservationType(control.rtype());
        match NvmOpcode(sqe.opcode) {
            NvmOpcode::RESERVATION_REGISTER => {
                let action = RegisterAction(control.action());
                let persist = match control.cptpl() {
                    ReservationControl::CPTPL_KEEP => None,
                    ReservationControl::CPTPL_CLEAR => Some(false),
                    ReservationControl::CPTPL_SET => Some(true),
                    _ => return Err(INVALID),
                };
                action.name().ok_or(INVALID)?;
                Ok(Self::Register { action, ignore_key: control.iekey(), persist })
            }
            // IEKEY is valid only in Reservation Register, according to the 1.3 definition that
            // RESCAP bit 7 announces.
            _ if control.iekey() && sqe.opcode != NvmOpcode::RESERVATION_REPORT.0 => Err(INVALID),
            NvmOpcode::RESERVATION_ACQUIRE => {
                let action = AcquireAction(control.action());
                let known = action.name().is_some() && rtype != ReservationType::NONE;
                rtype.name().filter(|_| known).ok_or(INVALID)?;
                Ok(Self::Acquire { action, rtype })
            }
            NvmOpcode::RESERVATION_RELEASE => {
                let action = ReleaseAction(control.action());
                action.name().ok_or(INVALID)?;
                Ok(Self::Release { action, rtype })
            }
            // Fabrics hosts have 128-bit identifiers, which do not fit in the short data structure.
            _ if sqe.cdw11.get() & REPORT_EXTENDED == 0 => {
                Err(Status::HOST_ID_INCONSISTENT.with_dnr())
            }
            _ => {
                let bytes = sqe.cdw10.get().checked_add(1).and_then(|dwords| dwords.checked_mul(4));
                Ok(Self::Report { bytes: bytes.ok_or(INVALID)? })
            }
        }
    }

    /// Returns the number of data bytes that the command transfers.
    #[must_use]
    pub fn data_bytes(&self) -> u32 {
        match *self {
            Self::Register { .. } => RegisterData::LEN as u32,
            Self::Acquire { .. } => AcquireData::LEN as u32,
            Self::Release { .. } => ReleaseData::LEN as u32,
            Self::Report { bytes } => bytes,
        }
    }

    /// Adds the keys from the command's `data`.
    ///
    /// # Errors
    /// Data SGL Length Invalid if `data` is too short.
    pub fn with_keys(self, data: &[u8]) -> Result<KeyedCommand, Status> {
        const SHORT: Status = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
        Ok(match self {
            Self::Register { action, ignore_key, persist } => {
                let keys = RegisterData::parse(data).ok_or(SHORT)?;
                let (current, new) = (keys.crkey.get(), keys.nrkey.get());
                let current = (!ignore_key).then_some(current);
                KeyedCommand::Register { action, current, new, persist }
            }
            Self::Acquire { action, rtype } => {
                let keys = AcquireData::parse(data).ok_or(SHORT)?;
                KeyedCommand::Acquire {
                    action,
                    rtype,
                    current: keys.crkey.get(),
                    preempted: keys.prkey.get(),
                }
            }
            Self::Release { action, rtype } => {
                let keys = ReleaseData::parse(data).ok_or(SHORT)?;
                KeyedCommand::Release { action, rtype, current: keys.crkey.get() }
            }
            Self::Report { bytes } => KeyedCommand::Report { bytes },
        })
    }
}

/// A reservation command, with its keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyedCommand {
    /// Reservation Register.
    Register {
        /// The action.
        action: RegisterAction,
        /// The current key according to the host (CRKEY); `None`: any key matches.
        current: Option<u64>,
        /// The host's new key (NRKEY).
        new: u64,
        /// Whether reservations will persist through a power loss; `None`: unchanged.
        persist: Option<bool>,
    },
    /// Reservation Acquire.
    Acquire {
        /// The action.
        action: AcquireAction,
        /// The type of the reservation.
        rtype: ReservationType,
        /// The current key according to the host (CRKEY).
        current: u64,
        /// The key of the reservation or registration to preempt (PRKEY).
        preempted: u64,
    },
    /// Reservation Release.
    Release {
        /// The action.
        action: ReleaseAction,
        /// The type of the reservation.
        rtype: ReservationType,
        /// The current key according to the host (CRKEY).
        current: u64,
    },
    /// Reservation Report.
    Report {
        /// The size of the host's buffer, in bytes.
        bytes: u32,
    },
    /// Set Features for Reservation Persistence.
    Persist {
        /// Whether reservations will persist through a power loss.
        persist: bool,
    },
}
