//! Disks that are attached to the machine of the page: what their daemons say of the paths to them.
//!
//! A daemon answers on a socket in a folder of its own, to its own user, and in no HTTP. Whoever
//! offers the page asks it, and says here what it said.

use crate::events::{json, written};
use serde::Serialize;
use std::sync::Arc;

/// A disk that is attached.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct AttachedStatus {
    /// What it is called.
    pub name: String,
    /// What is used of it: a device, a file, a socket or a URL.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
    /// As `farblock list` has it: `live`, `degraded`, `reconnecting`, …
    pub state: String,
    /// Why it is not well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The ways to it.
    pub paths: Vec<AttachedPath>,
}

/// One way to such a disk.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct AttachedPath {
    /// Where it leads.
    pub url: String,
    /// `live`, `connecting`, `reconnecting` or `failed`.
    pub state: String,
    /// For how long it has been in this state.
    pub since_seconds: u64,
    /// How the target tells hosts to use it (ANA).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// The address of the target, while it is connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// How often it was connected again.
    pub reconnects: u64,
    /// Why it was lost or could not be connected, the last time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Says how all disks are that are attached; it may take a second for each that does not answer.
pub type ReadAttached = Arc<dyn Fn() -> Vec<AttachedStatus> + Send + Sync>;

/// How they were when that was told the last time.
#[derive(Default)]
pub(crate) struct LastAttached(Option<Vec<AttachedStatus>>);

impl LastAttached {
    /// The event that says how they are; none if that is how they were, but for the time.
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
