//! Log pages (NVMe Base Specification 2.0, "Get Log Page command").

use super::limits;
use crate::ids::{CommandId, Lba, NamespaceId, QueueId};
use alloc::collections::{BTreeSet, VecDeque};
use farblock_wire::status::Status;

/// A command that failed, for the error information log ("Error Information").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorRecord {
    /// The queue that it came in on.
    pub queue: QueueId,
    /// Its identifier.
    pub command: CommandId,
    /// What it was completed with.
    pub status: Status,
    /// The namespace that it named, 0 for none.
    pub namespace: NamespaceId,
    /// The first block that could not be accessed.
    pub lba: Option<Lba>,
}

/// What the SMART log page of a subsystem counts ("SMART / Health Information"). Counters only
/// rise.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SmartCounters {
    /// Bytes that Read commands moved (told as Data Units Read).
    pub read_bytes: u128,
    /// Bytes that Write commands moved (told as Data Units Written).
    pub written_bytes: u128,
    /// Read commands that succeeded.
    pub read_commands: u128,
    /// Write commands that succeeded.
    pub write_commands: u128,
    /// Milliseconds in which there was an I/O command outstanding (told in minutes).
    pub busy_ms: u128,
    /// Milliseconds since the target started (told in hours).
    pub uptime_ms: u128,
    /// Times that a backend reported damaged data.
    pub media_errors: u128,
}

/// The last failed commands of a controller.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    /// Newest first, with the number of each.
    entries: VecDeque<(u64, ErrorRecord)>,
    count: u64,
}

impl ErrorLog {
    /// How many commands have failed.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn push(&mut self, record: &ErrorRecord) {
        // Zero would mark the entry as unused, so that counting starts at one.
        self.count += 1;
        self.entries.truncate(usize::from(limits::ERROR_LOG_ENTRIES) - 1);
        self.entries.push_front((self.count, *record));
    }
}

/// The namespaces that changed since the host last read the list ("Changed Namespace List").
#[derive(Debug, Default)]
pub(crate) struct ChangedNamespaces {
    ids: BTreeSet<NamespaceId>,
}

impl ChangedNamespaces {
    pub(crate) fn push(&mut self, id: NamespaceId) {
        self.ids.insert(id);
    }
}

impl super::registry::Registry {
    pub(super) fn log_page(
        &mut self,
        _id: crate::ids::ControllerId,
        _sqe: &farblock_wire::sqe::Sqe,
    ) -> Result<alloc::vec::Vec<u8>, Status> {
        Err(Status::INVALID_FIELD.with_dnr())
    }
}
