//! The NVMe status codes for block errors.

use farblock_block::BlockError;
use farblock_wire::Status;

/// Returns the status for `error`, with Do Not Retry if a retry cannot succeed.
pub(crate) fn of(error: BlockError) -> Status {
    match error {
        BlockError::OutOfRange => Status::LBA_OUT_OF_RANGE.with_dnr(),
        BlockError::TooLarge => Status::INVALID_FIELD.with_dnr(),
        BlockError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        BlockError::NoSpace => Status::CAPACITY_EXCEEDED.with_dnr(),
        BlockError::Conflict => Status::RESERVATION_CONFLICT.with_dnr(),
        BlockError::Denied => Status::ACCESS_DENIED.with_dnr(),
        BlockError::NotReady => Status::NAMESPACE_NOT_READY,
        BlockError::AtomicExceeded => Status::ATOMIC_WRITE_UNIT_EXCEEDED.with_dnr(),
        BlockError::ReadFailed => Status::UNRECOVERED_READ_ERROR,
        BlockError::WriteFailed => Status::WRITE_FAULT,
        BlockError::Unsupported => Status::INVALID_OPCODE.with_dnr(),
        // After a path error, a multipath host retries at once on another path.
        BlockError::Disconnected => Status::INTERNAL_PATH_ERROR,
        BlockError::Aborted => Status::ABORT_REQUESTED,
        _ => Status::INTERNAL_ERROR,
    }
}

pub(crate) fn of_result(result: Result<(), BlockError>) -> Status {
    result.map_or_else(of, |()| Status::SUCCESS)
}
