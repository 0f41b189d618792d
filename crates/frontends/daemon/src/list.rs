//! `farblock list`: all attachments and their states.

use super::args::ListArgs;
use super::control::{self, ControlRequest};
use super::folder::{Folder, Role, runtime};
use super::leftover;
use super::metrics;
use super::server::Saved;
use super::settings::Settings;
use super::status::{AttachmentState, Offer, Status};
use super::supervisor::GIVEN_UP;
use super::system;
use super::ways::{self, StopError};
use farblock_admin_api::Confinement;
use farblock_block::size::Size;
use farblock_program::error::Result;
use farblock_program::output;
use farblock_program::table::{Align, Table, printable};
use farblock_reactor::Polling;
use std::path::Path;
use std::time::Duration;

/// Time limit for a server to report its status.
const WAIT_LIMIT: Duration = Duration::from_secs(3);
pub(super) const SILENT: &str = "its server does not answer";

/// Runs `farblock list`.
pub fn run(args: &ListArgs) -> Result<()> {
    let runtime = runtime(args.runtime.runtime_dir.as_deref())?;
    leftover::sweep(&runtime);
    // With `--metrics`, servers start to measure latencies.
    let asked = if args.metrics { ControlRequest::Measure } else { ControlRequest::Status };
    let look = |folder: &Folder| status_by(folder, &asked);
    let all: Vec<Status> = Folder::all(&runtime).iter().filter_map(look).collect();
    if args.json {
        return output::print_json(&all);
    }
    if args.metrics {
        return output::print_exact(&metrics::render(&all));
    }
    if all.is_empty() {
        return output::print("nothing is attached\n");
    }
    output::print(&table(&all))
}

/// Returns the names of all attachments. Does not ask their servers.
pub fn names(folder: Option<&Path>) -> Result<Vec<String>> {
    let runtime = runtime(folder)?;
    Ok(Folder::attached(&runtime).iter().map(Folder::name).collect())
}

/// Returns the status of an attachment; `None` if the attachment is being created or removed.
/// Cleans up after a dead daemon if no process uses the disk.
pub(super) fn status(folder: &Folder) -> Option<Status> {
    status_by(folder, &ControlRequest::Status)
}

/// Like [`status`], but sends this request to the server.
fn status_by(folder: &Folder, request: &ControlRequest) -> Option<Status> {
    if folder.is_held(Role::Server) {
        if let Some(status) = said(folder, request) {
            return Some(status);
        }
        let trouble = Some(SILENT.to_owned());
        return gone(folder, AttachmentState::Restarting, trouble, Vec::new());
    }
    if folder.is_held(Role::Supervisor) {
        // A full file system may have prevented writing the file `trouble`.
        let trouble = folder.read("trouble").or_else(|| full(&folder.0));
        return gone(folder, AttachmentState::Restarting, trouble, Vec::new());
    }
    let why = why_gone(folder.read("trouble"));
    let name = folder.name();
    // While this lock is held, no other process can attach a disk with this name.
    let lock = folder.lock(Role::Supervisor)?;
    match clean_up(folder, false) {
        Ok(()) => {
            let trouble = format!("{why}; its remains were cleaned up");
            let status = gone(folder, AttachmentState::Stale, Some(trouble), Vec::new());
            folder.remove_unfinished(lock);
            status
        }
        Err(StopError::InUse(users)) => {
            let trouble = match is_broken(folder) {
                true => format!(
                    "{why}, and processes still use the disk, but all their I/O fails: \
                     unmount or close it first, then attach it as {name} again"
                ),
                false => format!(
                    "{why}, and the disk is in use: attach it as {name} again, or `farblock detach \
                     {name} --force`"
                ),
            };
            gone(folder, AttachmentState::Stale, Some(trouble), users)
        }
        Err(StopError::Failed(error)) => {
            gone(folder, AttachmentState::Stale, Some(format!("{why}; {error}")), Vec::new())
        }
    }
}

/// Whether programs or the kernel use a device that no later server can resume.
fn is_broken(folder: &Folder) -> bool {
    !users_of_broken(folder).is_empty()
}

/// Describes the users of a device that no later server can resume (see [`ways::users_of_broken`]).
pub(super) fn users_of_broken(folder: &Folder) -> Vec<String> {
    let settings = folder.read_json::<Settings>("settings.json");
    settings.map(|settings| ways::users_of_broken(folder, &settings)).unwrap_or_default()
}

/// The sentence about a full file system; `None` if it has room.
pub(super) fn full(folder: &Path) -> Option<String> {
    system::is_full(folder)
        .then(|| format!("the file system of {} is full: free some space", folder.display()))
}

/// The reason why a daemon is dead. Only a daemon that gave up wrote the reason for its exit. After
/// any other problem that it recorded, it retried.
fn why_gone(last: Option<String>) -> String {
    match last {
        Some(last) if last.starts_with(GIVEN_UP) => last,
        Some(last) => format!("its daemon is dead; its last trouble was: {last}"),
        None => "its daemon is dead".to_owned(),
    }
}

/// The status that the server reports, and the server's processor time.
fn said(folder: &Folder, request: &ControlRequest) -> Option<Status> {
    let status = control::status(folder, request, WAIT_LIMIT)?;
    let cpu_ms = status.server_pid.and_then(cpu_ms);
    Some(Status { cpu_ms, ..status })
}

/// The processor time of a process, in milliseconds.
#[cfg(any(target_os = "linux", windows))]
fn cpu_ms(pid: u32) -> Option<u64> {
    use farblock_bench::cpu::{CpuSource, OtherProcess};
    u64::try_from(OtherProcess::new(pid).ok()?.cpu_time().as_millis()).ok()
}

#[cfg(not(any(target_os = "linux", windows)))]
fn cpu_ms(_: u32) -> Option<u64> {
    None
}

/// Whether a server answers.
pub(super) fn is_served(folder: &Folder) -> bool {
    folder.is_held(Role::Server)
        && control::ask(folder, &ControlRequest::Status, Some(WAIT_LIMIT)).is_ok()
}

/// Cleans up after dead processes.
pub(super) fn clean_up(folder: &Folder, force: bool) -> Result<(), StopError> {
    let saved = folder.read_json::<Saved>("state.json");
    let settings = folder.read_json::<Settings>("settings.json");
    match (saved, settings) {
        (Some(saved), Some(settings)) => ways::clean_up(folder, &settings, &saved.state, force),
        // The server died before it recorded which devices and mounts it had created.
        (None, Some(settings)) if force => {
            ways::clean_up(folder, &settings, &serde_json::Value::Null, force)
        }
        _ => Ok(()),
    }
}

/// The status of an attachment without a server.
fn gone(
    folder: &Folder,
    state: AttachmentState,
    trouble: Option<String>,
    users: Vec<String>,
) -> Option<Status> {
    let offer: Offer = folder.read_json::<Saved>("state.json")?.offer;
    let pid = folder.pid().filter(|_| state != AttachmentState::Stale);
    let paths = Vec::new();
    Some(Status {
        offer,
        state,
        since_seconds: 0,
        trouble,
        refusal: None,
        paths,
        pid,
        server_pid: None,
        cpu_ms: None,
        users,
        confinement: None,
        spin: None,
        latency: None,
    })
}

fn table(all: &[Status]) -> String {
    use Align::{Left, Right};
    let columns = [
        ("NAME", Left),
        ("WAY", Left),
        ("USE", Left),
        ("SIZE", Right),
        ("STATE", Left),
        ("SANDBOX", Left),
        ("CPU", Right),
        ("PID", Right),
    ];
    let mut table = Table::new(&columns);
    let mut notes = String::new();
    for status in all {
        let Status { offer, state, since_seconds, trouble, paths, pid, users, .. } = status;
        let (sandbox, lacks) = sandbox(status.confinement.as_ref());
        let since = match state {
            AttachmentState::Degraded | AttachmentState::Reconnecting | AttachmentState::Failed => {
                format!(" for {since_seconds} s")
            }
            _ => String::new(),
        };
        table.row(vec![
            offer.name.clone(),
            offer.way.clone(),
            offer.used.path.clone(),
            Size(offer.size_bytes).to_string(),
            format!("{}{since}", state.name()),
            sandbox.to_owned(),
            status.cpu_ms.map_or("-".to_owned(), |ms| format!("{:.1} s", ms as f64 / 1e3)),
            pid.map_or("-".to_owned(), |pid| pid.to_string()),
        ]);
        let mut note = |text: String| notes.push_str(&format!("  {}\n", printable(&text)));
        let spin = status.spin.as_deref().filter(|spin| *spin != Polling::default().name());
        let told = usize::from(trouble.is_some()) + usize::from(spin.is_some());
        let heading = paths.len() + users.len() + lacks.len() + told > 0;
        if heading {
            note(format!("{}:", offer.name));
        }
        trouble.iter().for_each(|trouble| note(format!("  {trouble}")));
        for path in paths {
            let access = path.access.as_ref().map_or(String::new(), |it| format!(", {it}"));
            let since = match path.state.as_str() {
                "live" => String::new(),
                _ => format!(" for {} s", path.since_seconds),
            };
            // With a single path, the path's error is the disk's trouble, printed above.
            let why = path.error.as_ref().filter(|_| path.state != "live" && paths.len() > 1);
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            note(format!("  path {}: {}{since}{access}{why}", path.url, path.state));
        }
        users.iter().for_each(|user| note(format!("  used: {user}")));
        #[cfg(target_os = "linux")]
        super::swap::trouble(offer)
            .iter()
            .for_each(|(swapped, advice)| note(format!("  {swapped}: {advice}")));
        spin.iter().for_each(|spin| note(format!("  spin: {spin}")));
        lacks.iter().for_each(|lack| note(format!("  sandbox: {lack}")));
    }
    let between = if notes.is_empty() { "" } else { "\n" };
    format!("{}{between}{notes}", table.render(0))
}

/// Whether the server has dropped its rights, and the rights that it could not drop. Only `--json`
/// shows why a server keeps all rights.
fn sandbox(confinement: Option<&Confinement>) -> (&'static str, &[String]) {
    match confinement {
        None => ("-", &[]),
        Some(it) if !it.sandboxed => ("no", &[]),
        Some(it) if it.lacks.is_empty() => ("yes", &[]),
        Some(it) => ("partly", &it.lacks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_shows_incomplete_sandboxes() {
        let lacks = vec!["no Landlock".to_owned()];
        let of = |sandboxed: bool, lacks: &[String]| Confinement {
            sandboxed,
            lacks: lacks.to_vec(),
            ..Confinement::default()
        };
        assert_eq!(sandbox(None).0, "-");
        assert_eq!(sandbox(Some(&of(false, &lacks))), ("no", &[][..]));
        assert_eq!(sandbox(Some(&of(true, &[]))), ("yes", &[][..]));
        assert_eq!(sandbox(Some(&of(true, &lacks))), ("partly", &lacks[..]));
    }

    #[test]
    fn the_last_trouble_of_a_dead_daemon_is_not_reported_as_the_cause() {
        let said = |last: &str| why_gone(Some(last.to_owned()));
        assert_eq!(said("given up: nothing listens"), "given up: nothing listens");
        assert!(said("nothing listens").starts_with("its daemon is dead; its last trouble was: "));
        assert_eq!(why_gone(None), "its daemon is dead");
    }
}
