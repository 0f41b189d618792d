//! The end of a supervisor whose disk is still in use.
//!
//! On a machine that shuts down, the disk has to outlive its users, and its users have to go.
//! systemd unmounts what was mounted by hand only after all services have stopped, this one too. So
//! the supervisor waits until the other services have stopped and then ends the uses itself. At its
//! deadline it writes back what it can, reports who still uses the disk, and detaches it by force:
//! otherwise systemd would kill it without any of that.

use super::control::{self, ControlRequest};
use super::folder::Folder;
use super::release;
use super::status::Status;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// A service waits this long for users. Its unit gives it five minutes (TimeoutStopSec).
const SERVICE_TIME: Duration = Duration::from_secs(180);
/// The same of a disk that a shell attached, whose scope systemd may kill after 45 seconds.
const SHELL_TIME: Duration = Duration::from_secs(30);
/// Between two looks who still uses it, or still stops.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Time for ending the uses once, before the next look at the services that stop.
const ROUND: Duration = Duration::from_secs(5);
/// A server answers within this time.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long it may take to detach by force.
const FORCED_PATIENCE: Duration = Duration::from_secs(30);
/// What the names of our own services begin with.
const OWN_SERVICES: &str = "farblock-attach@";

/// Sees to it that a server that was asked to end does. `is_service`: a service manager waits for
/// it and kills it in the end.
pub(super) fn see_to_end(folder: &Folder, is_service: bool) {
    let stopping = is_stopping();
    let time = match (is_service, stopping) {
        (true, _) => SERVICE_TIME,
        (false, true) => SHELL_TIME,
        // It waits for its users for as long as they like.
        (false, false) => return,
    };
    let deadline = Instant::now() + time;
    while let Some(status) = status(folder) {
        let now = Instant::now();
        if now >= deadline {
            return end(folder, &status);
        }
        if stopping && !status.users.is_empty() && !do_others_stop() {
            release::release(&status.offer.used, deadline.min(now + ROUND));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Syncs, reports who still uses the disk, and detaches it.
fn end(folder: &Folder, status: &Status) {
    let written = match release::sync(&status.offer.used) {
        true => "what they had written is safe",
        false => "not all that they had written is safe",
    };
    let users = status.users.join("; ");
    tracing::error!(
        "{} is detached by force, since it is still in use: {users}; {written}",
        folder.name()
    );
    let request = ControlRequest::Detach { force: true };
    if let Err(error) = control::ask(folder, &request, Some(FORCED_PATIENCE)) {
        tracing::error!("{} is not detached: {error}", folder.name());
    }
}

fn status(folder: &Folder) -> Option<Status> {
    control::status(folder, &ControlRequest::Status, PATIENCE)
}

/// Whether systemd shuts the machine down.
fn is_stopping() -> bool {
    systemctl(&["is-system-running"]).is_some_and(|said| said.trim() == "stopping")
}

/// Whether another service is being stopped, which may yet write to the disk. Those that wait for
/// this one are not.
fn do_others_stop() -> bool {
    let jobs = systemctl(&["list-jobs", "--plain", "--no-legend"]).unwrap_or_default();
    is_any_stopping(&jobs)
}

fn is_any_stopping(jobs: &str) -> bool {
    jobs.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, unit, "stop", "running"] = words[..] else { return false };
        // A scope may be that of the shell that attached this disk, which waits for us.
        unit.ends_with(".service") && !unit.starts_with(OWN_SERVICES)
    })
}

/// What systemd says; `None` if this system has none that answers.
fn systemctl(args: &[&str]) -> Option<String> {
    if !Path::new("/run/systemd/system").exists() {
        return None;
    }
    let output = Command::new("systemctl").args(args).output().ok()?;
    String::from_utf8(output.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_services_that_stop_are_waited_for() {
        assert!(!is_any_stopping(""));
        assert!(is_any_stopping("12 postgresql.service stop running\n"));
        for line in [
            "12 postgresql.service stop waiting",
            "12 farblock-attach@data.service stop running",
            "12 session-1.scope stop running",
            "12 poweroff.target start waiting",
            "12 systemd-poweroff.service start waiting",
            "12 mnt.mount stop running",
        ] {
            assert!(!is_any_stopping(line), "{line}");
        }
    }
}
