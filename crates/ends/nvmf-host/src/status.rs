//! Translation of NVMe status codes to errors of block devices.

use crate::limits;
use farblock_block::{BlockError, Command};
use farblock_reactor::os;
use farblock_wire::Status;
use farblock_wire::status::StatusType;
use std::time::Instant;

/// Returns the error of an operation whose command ended with `status`. The caller logs the status
/// itself.
pub(crate) fn block_error(status: Status, command: Command) -> BlockError {
    let failed = if command.reads() { BlockError::ReadFailed } else { BlockError::WriteFailed };
    match Status(status.code()) {
        Status::INVALID_OPCODE => BlockError::Unsupported,
        Status::LBA_OUT_OF_RANGE | Status::INVALID_NAMESPACE => BlockError::OutOfRange,
        Status::CAPACITY_EXCEEDED => BlockError::NoSpace,
        Status::NAMESPACE_WRITE_PROTECTED | Status::WRITE_TO_READ_ONLY => BlockError::ReadOnly,
        Status::RESERVATION_CONFLICT => BlockError::Conflict,
        Status::ACCESS_DENIED | Status::OPERATION_DENIED | Status::PROHIBITED_BY_LOCKDOWN => {
            BlockError::Denied
        }
        Status::NAMESPACE_NOT_READY
        | Status::FORMAT_IN_PROGRESS
        | Status::SANITIZE_IN_PROGRESS
        | Status::ADMIN_MEDIA_NOT_READY => BlockError::NotReady,
        Status::ATOMIC_WRITE_UNIT_EXCEEDED => BlockError::AtomicExceeded,
        Status::ABORT_REQUESTED | Status::ABORTED_SQ_DELETION | Status::ABORTED_BY_HOST => {
            BlockError::Aborted
        }
        _ if status.status_type() == StatusType::Path => BlockError::Disconnected,
        _ => failed,
    }
}

/// Limits the log lines about failed commands. These lines have the NVMe status; the caller of an
/// operation gets only a block error.
#[derive(Default)]
pub(crate) struct Failures {
    since: Option<Instant>,
    logged: u32,
    suppressed: u64,
}

impl Failures {
    /// Calls `log`, or counts a suppressed line.
    pub(crate) fn log(&mut self, log: impl FnOnce()) {
        let now = os::now();
        let over = |since| now.saturating_duration_since(since) >= limits::LOG_PERIOD;
        if self.since.is_none_or(over) {
            if self.suppressed > 0 {
                tracing::info!("{} more commands failed", self.suppressed);
            }
            *self = Failures { since: Some(now), ..Failures::default() };
        }
        if self.logged < limits::LOGGED_FAILURES {
            self.logged += 1;
            log();
        } else {
            self.suppressed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvme_statuses_become_block_errors() {
        let read = |status| block_error(status, Command::Read);
        let write = |status: Status| block_error(status.with_dnr(), Command::Write);
        assert_eq!(read(Status::UNRECOVERED_READ_ERROR), BlockError::ReadFailed);
        assert_eq!(write(Status::WRITE_FAULT), BlockError::WriteFailed);
        assert_eq!(write(Status::LBA_OUT_OF_RANGE), BlockError::OutOfRange);
        assert_eq!(write(Status::CAPACITY_EXCEEDED), BlockError::NoSpace);
        assert_eq!(write(Status::NAMESPACE_WRITE_PROTECTED), BlockError::ReadOnly);
        assert_eq!(write(Status::RESERVATION_CONFLICT), BlockError::Conflict);
        assert_eq!(read(Status::RESERVATION_CONFLICT), BlockError::Conflict);
        assert_eq!(read(Status::ACCESS_DENIED), BlockError::Denied);
        assert_eq!(write(Status::OPERATION_DENIED), BlockError::Denied);
        assert_eq!(read(Status::NAMESPACE_NOT_READY), BlockError::NotReady);
        assert_eq!(write(Status::FORMAT_IN_PROGRESS), BlockError::NotReady);
        assert_eq!(write(Status::ATOMIC_WRITE_UNIT_EXCEEDED), BlockError::AtomicExceeded);
        assert_eq!(write(Status::ANA_INACCESSIBLE), BlockError::Disconnected);
        assert_eq!(read(Status::INVALID_OPCODE), BlockError::Unsupported);
        assert_eq!(read(Status::ABORT_REQUESTED), BlockError::Aborted);
        assert_eq!(read(Status::new(7, 0xff)), BlockError::ReadFailed);
    }

    #[test]
    fn only_the_first_failures_are_logged() {
        let (mut failures, mut logged) = (Failures::default(), 0);
        for _ in 0..1000 {
            failures.log(|| logged += 1);
        }
        assert_eq!(logged, limits::LOGGED_FAILURES);
    }
}
