//! Stops the uses of a disk (mounts, swap, stacked devices) when its supervisor has to exit during
//! a shutdown.
//!
//! During a shutdown, programs must finish their writes before the disk is detached. systemd stops
//! all services, including the supervisor's, before it unmounts file systems that an administrator
//! mounted. So the supervisor waits until the other services have stopped, and then stops the uses
//! itself. At its deadline it writes back as much data as it can, logs the remaining users, and
//! detaches the disk by force, before systemd kills it.

use super::control::{self, ControlRequest};
use super::folder::{Folder, Role};
use super::release;
use super::status::Status;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// A supervisor that runs as a service gives the disk's users this time after a request to exit.
/// Its unit allows five minutes (TimeoutStopSec).
const SERVICE_TIME: Duration = Duration::from_secs(180);
/// A supervisor that a shell started gives the disk's users this time during a shutdown. systemd
/// may kill the shell's scope after 45 seconds.
const SHELL_TIME: Duration = Duration::from_secs(30);
/// Polling interval for users and for services that stop.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Time for one attempt to stop the uses. The supervisor then checks again whether other services
/// are still stopping.
const ROUND: Duration = Duration::from_secs(5);
/// Time limit for the server's answer.
const WAIT_LIMIT: Duration = Duration::from_secs(3);
const FORCED_TIMEOUT: Duration = Duration::from_secs(30);
const OWN_SERVICES: &str = "farblock-attach@";

/// Ensures that a server exits in time after a request to exit. With `is_service`, this process
/// runs under a service manager, which kills it after a time limit.
pub(super) fn see_to_end(folder: &Folder, is_service: bool) {
    let stopping = is_stopping();
    let time = match (is_service, stopping) {
        (true, _) => SERVICE_TIME,
        (false, true) => SHELL_TIME,
        // Without a shutdown, the server waits for its users without a time limit.
        (false, false) => return,
    };
    let deadline = Instant::now() + time;
    while folder.is_held(Role::Server) {
        // `None`: the server was too busy to answer in time.
        let status = status(folder);
        let now = Instant::now();
        if now >= deadline {
            return end(folder, status.as_ref());
        }
        if let Some(status) = status
            && stopping
            && !status.users.is_empty()
            && !do_others_stop()
        {
            release::release(&status.offer.used, deadline.min(now + ROUND));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Writes data back, logs the remaining users, and detaches the disk by force.
fn end(folder: &Folder, status: Option<&Status>) {
    let written = match status.is_some_and(|status| release::sync(&status.offer.used)) {
        true => "all of their writes are safe",
        false => "some of their writes may be lost",
    };
    let users = match status {
        Some(status) => status.users.join("; "),
        None => "its server does not report the users".to_owned(),
    };
    tracing::error!(
        "detaching {} by force while it is still in use: {users}; {written}",
        folder.name()
    );
    let request = ControlRequest::Detach { force: true };
    if let Err(error) = control::ask(folder, &request, Some(FORCED_TIMEOUT)) {
        tracing::error!("cannot detach {}: {error}", folder.name());
    }
}

fn status(folder: &Folder) -> Option<Status> {
    control::status(folder, &ControlRequest::Status, WAIT_LIMIT)
}

/// Whether systemd is shutting the machine down.
fn is_stopping() -> bool {
    systemctl(&["is-system-running"]).is_some_and(|said| said.trim() == "stopping")
}

/// Whether another service is stopping, which may still write to the disk. Services of attachments
/// do not count: they would wait for each other.
fn do_others_stop() -> bool {
    let jobs = systemctl(&["list-jobs", "--plain", "--no-legend"]).unwrap_or_default();
    is_any_stopping(&jobs)
}

fn is_any_stopping(jobs: &str) -> bool {
    jobs.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, unit, "stop", "running"] = words[..] else { return false };
        // Scopes do not count. This process may run in the scope of the shell that attached the
        // disk, and that scope waits for this process.
        unit.ends_with(".service") && !unit.starts_with(OWN_SERVICES)
    })
}

/// Returns the output of systemctl; `None` without a working systemd.
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
    fn only_stopping_services_delay_the_shutdown() {
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
