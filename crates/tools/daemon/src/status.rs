//! How an attachment is: what the server says of it, and `farblock list` shows.

use farblock_admin::Confinement;
use farblock_block::{Geometry, LatencyCounts, Namespace};
use farblock_host::disk::{Disk, DiskLatency, DiskState, PathState, PathStatus};
use farblock_wire::log::AnaState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How [`Use::behind`] begins where a loop device stands on a file.
#[cfg(target_os = "linux")]
pub(super) const LOOP_ON: &str = "loop on ";

/// What is used of a way: a path or an address.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(super) struct Use {
    pub(super) kind: UseKind,
    pub(super) path: String,
    /// What is behind it, if there is something to be told.
    pub(super) behind: Option<String>,
}

impl Use {
    /// Where the file is mounted, if it is one or a loop device stands on one.
    #[cfg(target_os = "linux")]
    pub(super) fn directory(&self) -> Option<&std::path::Path> {
        let file = match self.kind {
            UseKind::File => Some(self.path.as_str()),
            _ => self.behind.as_ref().and_then(|behind| behind.strip_prefix(LOOP_ON)),
        };
        file.and_then(|file| std::path::Path::new(file).parent())
    }

    /// Nothing is mounted on this system.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn directory(&self) -> Option<&std::path::Path> {
        None
    }
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum UseKind {
    /// A block device.
    Device,
    File,
    /// A Unix socket.
    Socket,
    /// What programs that know the protocol connect to.
    Url,
}

/// What is offered.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(super) struct Offer {
    pub(super) name: String,
    pub(super) way: String,
    #[serde(rename = "use")]
    pub(super) used: Use,
    pub(super) size_bytes: u64,
    pub(super) block_size: u32,
    pub(super) read_only: bool,
}

impl Offer {
    /// In a sentence, as `farblock attach` says it.
    pub(super) fn sentence(&self) -> String {
        let Offer { name, way, used, block_size, .. } = self;
        let size = farblock_block::size::Size(self.size_bytes);
        let only = if self.read_only { ", read-only" } else { "" };
        let behind = used.behind.as_ref().map_or(String::new(), |it| format!(", {it}"));
        format!("{name}: {} ({way}{behind}, {size}, {block_size}-byte blocks{only})", used.path)
    }
}

/// An attachment as it is at the moment.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Status {
    #[serde(flatten)]
    pub(super) offer: Offer,
    pub(super) state: AttachmentState,
    /// For how long it has been so.
    pub(super) since_seconds: u64,
    /// Why it is so, if it is not well.
    pub(super) trouble: Option<String>,
    pub(super) paths: Vec<Path>,
    /// The supervisor's process, if it lives.
    pub(super) pid: Option<u32>,
    pub(super) server_pid: Option<u32>,
    /// Processor time that the server's process has used, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cpu_ms: Option<u64>,
    pub(super) users: Vec<String>,
    /// What the server's process cannot do (Linux).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) confinement: Option<Confinement>,
    /// What its event loops may spend on latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) spin: Option<String>,
    /// How long operations took, if that is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) latency: Option<Latency>,
}

/// How long operations took, by what they did.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Latency {
    pub(super) reads: Counts,
    pub(super) writes: Counts,
    pub(super) flushes: Counts,
    pub(super) others: Counts,
}

/// How many took how long: each count is of what took up to twice as long as the one before, the
/// first of up to 1 µs, and the last of all that took longer.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Counts {
    pub(super) sum_ns: u64,
    pub(super) counts: Vec<u64>,
}

impl From<LatencyCounts> for Counts {
    fn from(it: LatencyCounts) -> Counts {
        Counts { sum_ns: it.sum_ns, counts: it.counts.to_vec() }
    }
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AttachmentState {
    /// All is well.
    Live,
    /// Some path is lost, or the target refuses some operations.
    Degraded,
    /// Every path is lost; I/O waits.
    Reconnecting,
    /// Every path was given up; I/O fails.
    Failed,
    /// The server died, and the next one does not serve yet; I/O waits, where it can.
    Restarting,
    /// It is served, and what this machine had of it is gone: its mount, or its loop device.
    Unusable,
    /// Its processes are gone.
    Stale,
}

impl AttachmentState {
    pub(super) fn name(self) -> &'static str {
        match self {
            AttachmentState::Live => "live",
            AttachmentState::Degraded => "degraded",
            AttachmentState::Reconnecting => "reconnecting",
            AttachmentState::Failed => "failed",
            AttachmentState::Restarting => "restarting",
            AttachmentState::Unusable => "unusable",
            AttachmentState::Stale => "stale",
        }
    }
}

/// A path to the disk.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Path {
    pub(super) url: String,
    pub(super) state: String,
    pub(super) since_seconds: u64,
    /// How the namespace can be reached through it (ANA).
    pub(super) access: Option<String>,
    pub(super) address: Option<String>,
    pub(super) controller: Option<u16>,
    pub(super) reconnects: u64,
    /// How often its access has changed (ANA).
    #[serde(default)]
    pub(super) access_changes: u64,
    /// How often it was lost or could not be connected, by the reason.
    #[serde(default)]
    pub(super) failures: BTreeMap<String, u64>,
    /// Why it was lost or could not be connected, the last time.
    pub(super) error: Option<String>,
}

/// As the kernel has it in `ana_state`.
fn access_name(access: AnaState) -> String {
    let name = match access {
        AnaState::OPTIMIZED => "optimized",
        AnaState::NON_OPTIMIZED => "non-optimized",
        AnaState::INACCESSIBLE => "inaccessible",
        AnaState::PERSISTENT_LOSS => "persistent-loss",
        AnaState::CHANGE => "change",
        other => return other.to_string(),
    };
    name.to_owned()
}

impl From<PathStatus> for Path {
    fn from(status: PathStatus) -> Path {
        let state = match status.state {
            PathState::Connecting => "connecting",
            PathState::Live => "live",
            PathState::Reconnecting => "reconnecting",
            PathState::Dead => "failed",
        };
        Path {
            url: status.url.to_string(),
            state: state.to_owned(),
            since_seconds: status.since.as_secs(),
            access: status.access.map(access_name),
            address: status.controller.map(|(address, _)| address.to_string()),
            controller: status.controller.map(|(_, id)| id),
            reconnects: status.reconnects,
            access_changes: status.access_changes,
            failures: status.failures.into_iter().map(|(why, it)| (why.to_owned(), it)).collect(),
            error: status.error,
        }
    }
}

/// The state of a disk, for how long, and why.
pub(super) fn of_disk(disk: &Disk) -> (AttachmentState, u64, Option<String>) {
    let paths = disk.paths();
    // Since the last of them changed: before that, it was another one.
    let since = paths.iter().map(|path| path.since).min().unwrap_or_default();
    let trouble = trouble(&paths);
    match disk.state() {
        DiskState::Live => match disk.refusal() {
            Some(refusal) => (AttachmentState::Degraded, since.as_secs(), Some(refusal)),
            None => (AttachmentState::Live, since.as_secs(), None),
        },
        DiskState::Degraded => (AttachmentState::Degraded, since.as_secs(), trouble),
        DiskState::Waiting => (AttachmentState::Reconnecting, since.as_secs(), trouble),
        DiskState::Dead => (AttachmentState::Failed, since.as_secs(), Some(given_up(trouble))),
    }
}

/// Why a disk fails that is not tried any more: what was the reason may be over.
fn given_up(last: Option<String>) -> String {
    let last = last.map_or(String::new(), |last| format!("; before that: {last}"));
    format!("it was given up, and is not tried any more: detach it, and attach it again{last}")
}

/// Why a disk is not well: for what it lost last. What was lost before did not make it what it is.
fn trouble(paths: &[PathStatus]) -> Option<String> {
    let lost = paths.iter().filter(|path| path.state != PathState::Live && path.error.is_some());
    lost.min_by_key(|path| path.since)?.error.clone()
}

/// How long a disk's operations took, if that is measured.
pub(super) fn latency(disk: &Disk) -> Option<Latency> {
    let DiskLatency { reads, writes, flushes, others } =
        disk.measures_latency().then(|| disk.latency())?;
    Some(Latency {
        reads: reads.into(),
        writes: writes.into(),
        flushes: flushes.into(),
        others: others.into(),
    })
}

/// What a disk looks like through a way.
pub(super) fn geometry(disk: &Disk, read_only: bool) -> Geometry {
    let geometry = disk.geometry();
    Geometry { read_only: geometry.read_only || read_only, ..geometry }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_was_lost_last_is_the_reason() {
        let path = |state, seconds, error: &str| PathStatus {
            url: "nvme+tcp://127.0.0.1/nqn.2026-11.org.example:disk?ns=1".parse().expect("a URL"),
            state,
            since: Duration::from_secs(seconds),
            controller: None,
            queues: 0,
            queue_depth: 0,
            access: None,
            reconnects: 0,
            access_changes: 0,
            failures: BTreeMap::new(),
            error: Some(error.to_owned()),
        };
        let [first, last] =
            [path(PathState::Dead, 900, "long ago"), path(PathState::Dead, 5, "just now")];
        assert_eq!(trouble(&[first.clone(), last.clone()]).as_deref(), Some("just now"));
        assert_eq!(trouble(&[last, first]).as_deref(), Some("just now"));
        // It has overcome that.
        assert_eq!(trouble(&[path(PathState::Live, 1, "a pause")]), None);
    }
}
