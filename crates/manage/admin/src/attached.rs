//! The disks that are attached to the machine that serves the dashboard, and their paths.
//!
//! The daemon of a disk serves a socket in its own folder, for its own user only, and without HTTP.
//! The process that serves the dashboard queries the daemon and forwards the answer.

use crate::events::{json, written};
use serde::Serialize;
use std::sync::Arc;

/// The state of an attached disk.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct AttachedStatus {
    /// The name of the attachment.
    pub name: String,
    /// The place where programs can use the disk: a device, a file, a socket or a URL.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
    /// The state of the disk as in `farblock list`: `live`, `degraded`, `reconnecting`, …
    pub state: String,
    /// The reason, if the state is bad.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The paths to the disk.
    pub paths: Vec<AttachedPath>,
}

/// The state of a path to an attached disk.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct AttachedPath {
    /// The URL of the path.
    pub url: String,
    /// `live`, `connecting`, `reconnecting` or `failed`.
    pub state: String,
    /// The time in this state, in seconds.
    pub since_seconds: u64,
    /// The ANA state of the path, as the target reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// The address of the target, while the path is connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The number of reconnects.
    pub reconnects: u64,
    /// The reason for the last disconnect or failed connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A function that reads the states of all attached disks. It waits up to a second for each daemon
/// that does not answer.
pub type ReadAttached = Arc<dyn Fn() -> Vec<AttachedStatus> + Send + Sync>;

/// The states in the last event.
#[derive(Default)]
pub(crate) struct LastAttached(Option<Vec<AttachedStatus>>);

impl LastAttached {
    /// Returns an event with the new states, or `None` if only times have changed.
    pub(crate) fn event(&mut self, now: Vec<AttachedStatus>) -> Option<String> {
        let mut timeless = now.clone();
        timeless.iter_mut().flat_map(|it| &mut it.paths).for_each(|it| it.since_seconds = 0);
        let is_new = self.0.as_ref() != Some(&timeless);
        self.0 = Some(timeless);
        let data = || format!("{{\"node\":\"\",\"data\":{}}}", json(&now));
        is_new.then(|| written("attached", &data()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_time_alone_sends_no_event() {
        let path = |state: &str, since_seconds| AttachedPath {
            url: "nvme+tcp://a/n".to_owned(),
            state: state.to_owned(),
            since_seconds,
            ..AttachedPath::default()
        };
        let disk = |paths| vec![AttachedStatus { paths, ..AttachedStatus::default() }];
        let mut last = LastAttached::default();
        assert!(last.event(Vec::new()).is_some(), "that there is none is said once");
        assert!(last.event(Vec::new()).is_none());
        assert!(last.event(disk(vec![path("live", 1)])).is_some());
        assert!(last.event(disk(vec![path("live", 2)])).is_none());
        let lost = last.event(disk(vec![path("reconnecting", 3)])).expect("it is another state");
        assert!(lost.contains("\"since_seconds\":3") && lost.contains("\"node\":\"\""), "{lost}");
        assert!(last.event(Vec::new()).is_some(), "and when it is gone");
    }
}
