//! I/O counters that one core writes and any thread reads.
//!
//! Only the core that owns a meter writes it. An increment is therefore a load and a store in a
//! cache line of that core, without a lock and without contention.

use farblock_block::{Latency, LatencyCounts};
use farblock_wire::Status;
use farblock_wire::status::StatusType;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of failed commands by Status Code Type.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ErrorCounts {
    /// Generic Command Status.
    pub generic: u64,
    /// Command Specific Status.
    pub command_specific: u64,
    /// Media and Data Integrity Errors.
    pub media: u64,
    /// Path Related Status.
    pub path: u64,
    /// Vendor Specific and reserved types.
    pub vendor: u64,
}

/// The sums of the waiting times of commands, in nanoseconds. Ten commands that wait one second
/// each add ten seconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WaitCounts {
    /// Waits for a rate limit of the namespace.
    pub namespace_limit_ns: u64,
    /// Waits for a rate limit of the host.
    pub host_limit_ns: u64,
    /// Waits of connections for their host's turn, on a core that several hosts keep busy. These
    /// waits are not counted per namespace, since the waiting commands are not parsed yet.
    pub turn_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    NamespaceLimit,
    HostLimit,
    Turn,
}

/// A snapshot of I/O counters. The counters never decrease.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct IoCounts {
    /// Successful Read commands.
    pub reads: u64,
    /// Successful Write commands.
    pub writes: u64,
    /// Other successful I/O commands: Flush, Compare, deallocation and so on.
    pub others: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Failed I/O commands.
    pub errors: ErrorCounts,
    /// Failed operations of the namespace's store.
    pub storage_errors: u64,
    /// The number of `storage_errors` that are media errors.
    pub media_errors: u64,
    /// The waits of commands for rate limits, and of connections for their host's turn.
    pub waited: WaitCounts,
    /// The latencies of the reads that were measured; see
    /// [`Control::measure_latency`](crate::Control::measure_latency).
    pub read_latency: LatencyCounts,
    /// The latencies of the writes that were measured.
    pub write_latency: LatencyCounts,
}

impl AddAssign<&Self> for IoCounts {
    fn add_assign(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.others += other.others;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.errors.generic += other.errors.generic;
        self.errors.command_specific += other.errors.command_specific;
        self.errors.media += other.errors.media;
        self.errors.path += other.errors.path;
        self.errors.vendor += other.errors.vendor;
        self.storage_errors += other.storage_errors;
        self.media_errors += other.media_errors;
        self.waited.namespace_limit_ns += other.waited.namespace_limit_ns;
        self.waited.host_limit_ns += other.waited.host_limit_ns;
        self.waited.turn_ns += other.waited.turn_ns;
        self.read_latency += &other.read_latency;
        self.write_latency += &other.write_latency;
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub(crate) kind: MeterKind,
    pub(crate) bytes: u64,
    pub(crate) status: Status,
    pub(crate) took: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MeterKind {
    Read,
    Write,
    Other,
}

/// The live counters behind [`IoCounts`]. The alignment prevents false sharing: two meters are
/// never in one cache line, or in two lines that a processor fetches together.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Meter {
    reads: AtomicU64,
    writes: AtomicU64,
    others: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    storage_errors: AtomicU64,
    media_errors: AtomicU64,
    /// Errors by type, in the order of [`ErrorCounts`].
    errors: [AtomicU64; 5],
    /// Waiting times in nanoseconds by cause, in the order of [`WaitCounts`].
    waited: [AtomicU64; 3],
    read_latency: Latency,
    write_latency: Latency,
}

/// Adds to a counter. Only the owner writes, so a load and a store suffice.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn error_place(status: Status) -> usize {
    match status.status_type() {
        StatusType::Generic => 0,
        StatusType::CommandSpecific => 1,
        StatusType::Media => 2,
        StatusType::Path => 3,
        StatusType::Vendor | StatusType::Reserved(_) => 4,
    }
}

impl Meter {
    /// Counts a command. Only the owning core may call this.
    pub(crate) fn count(&self, answered: &Answered) {
        let Answered { kind, bytes, status, took } = *answered;
        if !status.is_success() {
            return add(&self.errors[error_place(status)], 1);
        }
        let (commands, sum, latency) = match kind {
            MeterKind::Read => (&self.reads, &self.read_bytes, &self.read_latency),
            MeterKind::Write => (&self.writes, &self.written_bytes, &self.write_latency),
            MeterKind::Other => return add(&self.others, 1),
        };
        add(commands, 1);
        add(sum, bytes);
        if let Some(took) = took {
            latency.count(took);
        }
    }

    /// Counts a failed operation of the store. Only the owning core may call this.
    pub(crate) fn count_storage_error(&self, is_media_error: bool) {
        add(&self.storage_errors, 1);
        add(&self.media_errors, u64::from(is_media_error));
    }

    /// Counts a wait. Only the owning core may call this.
    pub(crate) fn count_wait(&self, wait: Wait, ns: u64) {
        let place = match wait {
            Wait::NamespaceLimit => 0,
            Wait::HostLimit => 1,
            Wait::Turn => 2,
        };
        add(&self.waited[place], ns);
    }

    pub(crate) fn counts(&self) -> IoCounts {
        let [namespace_limit_ns, host_limit_ns, turn_ns] = self.waited.each_ref().map(load);
        let [generic, command_specific, media, path, vendor] = self.errors.each_ref().map(load);
        IoCounts {
            reads: load(&self.reads),
            writes: load(&self.writes),
            others: load(&self.others),
            read_bytes: load(&self.read_bytes),
            written_bytes: load(&self.written_bytes),
            errors: ErrorCounts { generic, command_specific, media, path, vendor },
            storage_errors: load(&self.storage_errors),
            media_errors: load(&self.media_errors),
            waited: WaitCounts { namespace_limit_ns, host_limit_ns, turn_ns },
            read_latency: self.read_latency.counts(),
            write_latency: self.write_latency.counts(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_counted_by_kind_and_outcome() {
        let meter = Meter::default();
        let took = Some(Duration::from_micros(3));
        let read = Answered { kind: MeterKind::Read, bytes: 4096, status: Status::SUCCESS, took };
        meter.count(&read);
        meter.count(&Answered { kind: MeterKind::Write, bytes: 512, took: None, ..read });
        meter.count(&Answered { kind: MeterKind::Other, ..read });
        let errors = [
            Status::INVALID_NAMESPACE,
            Status::WRITE_TO_READ_ONLY,
            Status::WRITE_FAULT,
            Status::INTERNAL_PATH_ERROR,
            Status::new(7, 1),
            Status::new(5, 1),
        ];
        for status in errors {
            meter.count(&Answered { status: status.with_dnr(), ..read });
        }
        meter.count_storage_error(true);
        meter.count_storage_error(false);
        let mut twice = meter.counts();
        twice += &meter.counts();
        let IoCounts { reads, writes, others, read_bytes, written_bytes, .. } = twice;
        assert_eq!([reads, writes, others, read_bytes, written_bytes], [2, 2, 2, 8192, 1024]);
        let ErrorCounts { generic, command_specific, media, path, vendor } = twice.errors;
        assert_eq!([generic, command_specific, media, path, vendor], [2, 2, 2, 2, 4]);
        assert_eq!((twice.storage_errors, twice.media_errors), (4, 2));
        assert_eq!(twice.read_latency.sum_ns, 6000);
        assert_eq!(twice.read_latency.counts[2], 2);
        assert_eq!(twice.write_latency, LatencyCounts::default());
    }
}
