//! SCSI: what the commands that a transport brings mean, and what they are answered (SPC-4, SBC-3).
//! No I/O happens here.

pub(super) mod cdb;
pub(super) mod inquiry;
pub(super) mod mode;
pub(super) mod opcodes;
pub(super) mod reservation;
pub(super) mod sense;

pub(super) use cdb::{Command, Compare, Extent};
pub(super) use sense::{Failure, Sense, status};
