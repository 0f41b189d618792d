//! Parses SCSI commands, and makes the answers (SPC-4, SBC-3). Does no I/O.

pub(super) mod cdb;
pub(super) mod inquiry;
pub(super) mod mode;
pub(super) mod opcodes;
pub(super) mod reservation;
pub(super) mod sense;

pub(super) use cdb::{Command, Compare, Extent};
pub(super) use sense::{Failure, Sense, status};
