//! The events about the disks that are attached to the machine that serves the dashboard.

use crate::events::{json, written};
use farblock_admin_api::AttachedStatus;

/// The disk states that the last event reported.
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
    use farblock_admin_api::AttachedPath;

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
        assert!(last.event(Vec::new()).is_some(), "an empty list is reported once");
        assert!(last.event(Vec::new()).is_none());
        assert!(last.event(disk(vec![path("live", 1)])).is_some());
        assert!(last.event(disk(vec![path("live", 2)])).is_none());
        let lost =
            last.event(disk(vec![path("reconnecting", 3)])).expect("a changed state is an event");
        assert!(lost.contains("\"since_seconds\":3") && lost.contains("\"node\":\"\""), "{lost}");
        assert!(last.event(Vec::new()).is_some(), "a detached disk is reported");
    }
}
