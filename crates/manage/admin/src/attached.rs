//! Disks attached to the machine that serves the dashboard, and their paths.
//!
//! A disk's daemon answers on a socket in its own folder, only to its own user, and not in HTTP.
//! The process that serves the dashboard asks it and passes the answer on.

use crate::events::{json, written};
use serde::Serialize;
use std::sync::Arc;

/// An attached disk.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct AttachedStatus {
    /// The attachment's name.
    pub name: String,
    /// Where the disk can be used: a device, a file, a socket or a URL.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
    /// The state as in `farblock list`: `live`, `degraded`, `reconnecting`, …
    pub state: String,
    /// The reason for a bad state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The paths to the disk.
    pub paths: Vec<AttachedPath>,
}

/// A path to an attached disk.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct AttachedPath {
    /// The path's URL.
    pub url: String,
    /// `live`, `connecting`, `reconnecting` or `failed`.
    pub state: String,
    /// Seconds in this state.
    pub since_seconds: u64,
    /// The ANA state that the target reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// The target's address, while connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Number of reconnects.
    pub reconnects: u64,
    /// The reason for the last loss or failed connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Reads the state of all attached disks. May take a second for each daemon that does not answer.
pub type ReadAttached = Arc<dyn Fn() -> Vec<AttachedStatus> + Send + Sync>;

/// The states last sent.
#[derive(Default)]
pub(crate) struct LastAttached(Option<Vec<AttachedStatus>>);

impl LastAttached {
    /// The event with the new states; `None` if only times changed.
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
    fn time_alone_is_no_news() {
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
