//! The status of an attachment, as its server reports it and `farblock list` shows it.

use farblock_admin_api::Confinement;
use farblock_block::{Availability, Geometry, LatencyCounts, Namespace};
use farblock_host::disk::{Disk, DiskLatency, DiskState, PathState, PathStatus};
use farblock_wire::log::AnaState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The prefix of [`Use::behind`] for a loop device on a file.
#[cfg(target_os = "linux")]
pub(super) const LOOP_ON: &str = "loop on ";

/// The path or address under which programs use the disk.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(super) struct Use {
    pub(super) kind: UseKind,
    pub(super) path: String,
    /// The object that the path shows, for example the file of a loop device.
    pub(super) behind: Option<String>,
}

impl Use {
    /// The mountpoint of the file, or the file under a loop device.
    #[cfg(target_os = "linux")]
    pub(super) fn directory(&self) -> Option<&std::path::Path> {
        let file = match self.kind {
            UseKind::File => Some(self.path.as_str()),
            _ => self.behind.as_ref().and_then(|behind| behind.strip_prefix(LOOP_ON)),
        };
        file.and_then(|file| std::path::Path::new(file).parent())
    }

    /// Returns `None`: this system has no such mounts.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn directory(&self) -> Option<&std::path::Path> {
        None
    }
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum UseKind {
    Device,
    File,
    Socket,
    /// The URL or address of a network server, for its clients.
    Url,
}

/// A disk that programs can use: its path, size and settings.
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
    /// The sentence that `farblock attach` prints.
    pub(super) fn sentence(&self) -> String {
        let Offer { name, way, used, block_size, .. } = self;
        let size = farblock_block::size::Size(self.size_bytes);
        let only = if self.read_only { ", read-only" } else { "" };
        let behind = used.behind.as_ref().map_or(String::new(), |it| format!(", {it}"));
        format!("{name}: {} ({way}{behind}, {size}, {block_size}-byte blocks{only})", used.path)
    }
}

/// The current status of an attachment.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Status {
    #[serde(flatten)]
    pub(super) offer: Offer,
    pub(super) state: AttachmentState,
    /// Seconds since the last change of state.
    pub(super) since_seconds: u64,
    /// The reason, if the state is not `live`.
    pub(super) trouble: Option<String>,
    /// The commands that the target refuses although the disk is connected, with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refusal: Option<String>,
    pub(super) paths: Vec<Path>,
    /// The supervisor's process ID. `None` if no supervisor runs.
    pub(super) pid: Option<u32>,
    pub(super) server_pid: Option<u32>,
    /// The server's processor time in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cpu_ms: Option<u64>,
    pub(super) users: Vec<String>,
    /// The rights that the server has dropped (Linux).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) confinement: Option<Confinement>,
    /// The busy-polling mode of the server's event loops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) spin: Option<String>,
    /// Latencies, if the server measures them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) latency: Option<Latency>,
}

/// Latencies by kind of operation.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Latency {
    pub(super) reads: Counts,
    pub(super) writes: Counts,
    pub(super) flushes: Counts,
    pub(super) others: Counts,
}

/// A latency histogram. The first bucket's upper bound is 1 µs, and each further bound is twice the
/// previous one. The last bucket has no upper bound.
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
    /// Everything works.
    Live,
    /// A path is lost, or the target refuses some operations.
    Degraded,
    /// Every path is lost; I/O waits.
    Reconnecting,
    /// The host has given up every path; I/O fails.
    Failed,
    /// The server died, and the next server is not ready yet; I/O waits where possible.
    Restarting,
    /// The server works, but its mount or loop device is gone from this machine.
    Unusable,
    /// The attachment's processes are dead.
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

#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Path {
    pub(super) url: String,
    pub(super) state: String,
    pub(super) since_seconds: u64,
    /// The namespace's ANA state on this path.
    pub(super) access: Option<String>,
    pub(super) address: Option<String>,
    pub(super) controller: Option<u16>,
    pub(super) reconnects: u64,
    /// Number of ANA state changes.
    #[serde(default)]
    pub(super) access_changes: u64,
    /// Number of lost connections and failed connects, by reason.
    #[serde(default)]
    pub(super) failures: BTreeMap<String, u64>,
    /// The reason for the last lost connection or failed connect.
    pub(super) error: Option<String>,
    /// The number of times that the target recently broke the protocol.
    #[serde(default)]
    pub(super) breaches: u64,
    /// The last protocol violation, as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) breach: Option<String>,
}

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
            breaches: status.breaches.as_ref().map_or(0, |(count, _)| *count),
            breach: status.breaches.map(|(_, how)| how),
        }
    }
}

/// Returns the state of a disk, the seconds since its last change, and the reason.
pub(super) fn of_disk(disk: &Disk) -> (AttachmentState, u64, Option<String>) {
    let paths = disk.paths();
    // The disk's state last changed together with a path's state.
    let since = paths.iter().map(|path| path.since).min().unwrap_or_default();
    let trouble = trouble(&paths);
    match disk.state() {
        // Every connected target denies access (ANA), so I/O waits.
        DiskState::Live | DiskState::Degraded if disk.availability() != Availability::Ready => {
            (AttachmentState::Degraded, since.as_secs(), disk.trouble())
        }
        DiskState::Live => match disk.refusal() {
            Some(refusal) => (AttachmentState::Degraded, since.as_secs(), Some(refusal)),
            None => (AttachmentState::Live, since.as_secs(), None),
        },
        DiskState::Degraded => {
            let all: Vec<_> = disk.refusal().into_iter().chain(trouble).collect();
            let trouble = (!all.is_empty()).then(|| all.join("; "));
            (AttachmentState::Degraded, since.as_secs(), trouble)
        }
        DiskState::Waiting => (AttachmentState::Reconnecting, since.as_secs(), trouble),
        DiskState::Dead => (AttachmentState::Failed, since.as_secs(), Some(given_up(trouble))),
    }
}

/// The trouble text of a disk after the host has given up all paths. Includes the last error, which
/// may be outdated.
fn given_up(last: Option<String>) -> String {
    let last = last.map_or(String::new(), |last| format!("; before that: {last}"));
    format!("the host has given up the disk: detach it, and attach it again{last}")
}

/// A sentence about targets that have broken the protocol repeatedly.
pub(super) fn breaches(paths: &[PathStatus]) -> Option<String> {
    let of_path = |path: &PathStatus| {
        let (count, how) = path.breaches.as_ref().filter(|(count, _)| *count > 1)?;
        let url = path.url.without_keys();
        Some(format!("{url} has broken the protocol {count} times, most recently: {how}"))
    };
    let all: Vec<String> = paths.iter().filter_map(of_path).collect();
    (!all.is_empty())
        .then(|| format!("{}; see the log of that target, or update it", all.join("; ")))
}

/// The reason for a disk's bad state: the error of the path that was lost last.
fn trouble(paths: &[PathStatus]) -> Option<String> {
    let lost = paths.iter().filter(|path| path.state != PathState::Live && path.error.is_some());
    lost.min_by_key(|path| path.since)?.error.clone()
}

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

pub(super) fn geometry(disk: &Disk, read_only: bool) -> Geometry {
    let geometry = disk.geometry();
    Geometry { read_only: geometry.read_only || read_only, ..geometry }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_error_of_the_path_lost_last_is_reported() {
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
            breaches: None,
        };
        let [first, last] =
            [path(PathState::Dead, 900, "long ago"), path(PathState::Dead, 5, "just now")];
        assert_eq!(trouble(&[first.clone(), last.clone()]).as_deref(), Some("just now"));
        assert_eq!(trouble(&[last, first]).as_deref(), Some("just now"));
        let mut breaking = path(PathState::Live, 1, "");
        assert_eq!(breaches(std::slice::from_ref(&breaking)), None);
        breaking.breaches = Some((1, "it lies".to_owned()));
        assert_eq!(breaches(std::slice::from_ref(&breaking)), None, "a single breach is reported");
        breaking.breaches = Some((7, "it lies".to_owned()));
        let told = breaches(&[breaking]).expect("a sentence");
        assert!(told.contains("broken the protocol 7 times, most recently: it lies"), "{told}");
        // A recovered path has no trouble.
        assert_eq!(trouble(&[path(PathState::Live, 1, "a pause")]), None);
    }
}
