//! The SCSI status of a request. A failure is always CHECK CONDITION with a sense key and code,
//! because WinSpd's driver supports no other status.

use crate::uapi::{INFORMATION_VALID, Status};
use farblock_block::BlockError;

/// `CHECK CONDITION` (SAM-5, 5.3).
const CHECK_CONDITION: u8 = 2;

/// Success.
pub(crate) const GOOD: Status = Status { scsi_status: 0, ..check(0, 0) };
/// The disk is being removed. Sense: medium not present (SPC-4, table F.2).
pub(crate) const GONE: Status = check(0x2, 0x3a00);
/// The request is too large, or its count is impossible. Sense: invalid field in CDB.
pub(crate) const INVALID_FIELD: Status = check(0x5, 0x2400);

const fn check(key: u8, code: u16) -> Status {
    let [asc, ascq] = code.to_be_bytes();
    Status {
        scsi_status: CHECK_CONDITION,
        sense_key: key,
        asc,
        ascq,
        padding: 0,
        information: 0,
        reserved_csi: 0,
        reserved_sks: 0,
        flags: 0,
    }
}

/// The status for an operation that failed with `error` at the block `lba`.
pub(crate) fn failed(error: BlockError, lba: u64) -> Status {
    let status = match error {
        BlockError::OutOfRange => check(0x5, 0x2100),
        BlockError::ReadOnly => check(0x7, 0x2700),
        BlockError::NoSpace => check(0x7, 0x2707),
        BlockError::ReadFailed => check(0x3, 0x1100),
        BlockError::WriteFailed => check(0x3, 0x0c00),
        BlockError::TooLarge | BlockError::AtomicExceeded | BlockError::Unsupported => {
            INVALID_FIELD
        }
        // Sense: access denied, no access rights. WinSpd's driver does not support SCSI's
        // reservation conflict.
        BlockError::Conflict | BlockError::Denied => check(0x5, 0x2002),
        // Sense: logical unit is in process of becoming ready.
        BlockError::NotReady | BlockError::Disconnected => check(0x2, 0x0401),
        // Sense: aborted command, after which Windows retries. Also covers errors that later
        // versions of `BlockError` may add.
        _ => check(0xb, 0x0000),
    };
    let of_a_block =
        matches!(error, BlockError::OutOfRange | BlockError::ReadFailed | BlockError::WriteFailed);
    // WinSpd's driver passes only 32 bits of the block number to Windows.
    match u32::try_from(lba) {
        Ok(lba) if of_a_block => {
            Status { information: u64::from(lba), flags: INFORMATION_VALID, ..status }
        }
        _ => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_errors_become_scsi_statuses() {
        let said = |error| {
            let status = failed(error, 7);
            let Status { scsi_status, sense_key, asc, ascq, .. } = status;
            (scsi_status, sense_key, asc, ascq)
        };
        assert_eq!(said(BlockError::OutOfRange), (2, 5, 0x21, 0));
        assert_eq!(said(BlockError::ReadOnly), (2, 7, 0x27, 0));
        assert_eq!(said(BlockError::NoSpace), (2, 7, 0x27, 7));
        assert_eq!(said(BlockError::ReadFailed), (2, 3, 0x11, 0));
        assert_eq!(said(BlockError::WriteFailed), (2, 3, 0x0c, 0));
        assert_eq!(said(BlockError::TooLarge), (2, 5, 0x24, 0));
        assert_eq!(said(BlockError::Conflict), (2, 5, 0x20, 2));
        assert_eq!(said(BlockError::Denied), (2, 5, 0x20, 2));
        assert_eq!(said(BlockError::AtomicExceeded), (2, 5, 0x24, 0));
        assert_eq!(said(BlockError::NotReady), (2, 2, 4, 1));
        assert_eq!(said(BlockError::Disconnected), (2, 2, 4, 1));
        assert_eq!(said(BlockError::NoResources), (2, 0xb, 0, 0));
        assert_eq!(said(BlockError::Aborted), (2, 0xb, 0, 0));
        assert_eq!(GOOD, Status::default());
    }

    /// The status contains the number of the failed block if the number fits into 32 bits.
    #[test]
    fn the_status_has_the_failed_block_if_it_fits() {
        let told = |error, lba| {
            let Status { information, flags, .. } = failed(error, lba);
            (flags != 0).then_some(information)
        };
        let last = u64::from(u32::MAX);
        assert_eq!(told(BlockError::ReadFailed, 0), Some(0));
        assert_eq!(told(BlockError::WriteFailed, last), Some(last));
        assert_eq!(told(BlockError::OutOfRange, last + 1), None);
        assert_eq!(told(BlockError::ReadOnly, 1), None);
    }
}
