//! `farblock list`: what is attached, and how it is.

use super::args::ListArgs;
use super::control::{self, Answer, ControlRequest};
use super::folder::{Folder, Role, runtime};
use super::leftover;
use super::metrics;
use super::server::Saved;
use super::settings::Settings;
use super::status::{Offer, State, Status};
use super::system;
use super::ways::{self, StopError};
use crate::error::Result;
use crate::output;
use crate::table::{Align, Table, printable};
use farblock_block::size::Size;
use std::path::Path;
use std::time::Duration;

/// How long a server may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(3);

/// Runs the command.
pub(crate) fn run(args: &ListArgs) -> Result<()> {
    let runtime = runtime(args.runtime.runtime_dir.as_deref())?;
    leftover::sweep(&runtime);
    let look = if args.metrics { measured } else { status };
    let all: Vec<Status> = Folder::all(&runtime).iter().filter_map(look).collect();
    if args.json {
        return output::print_json(&all);
    }
    if args.metrics {
        return output::print(&metrics::render(&all));
    }
    if all.is_empty() {
        return output::print("nothing is attached\n");
    }
    output::print(&table(&all))
}

/// What the attachments are called, without asking how they are.
pub(crate) fn names(folder: Option<&Path>) -> Result<Vec<String>> {
    let runtime = runtime(folder)?;
    Ok(Folder::attached(&runtime).iter().map(Folder::name).collect())
}

/// How an attachment is; `None` if it is none, or not yet. What a daemon left that is gone is
/// cleaned up, if nobody uses it.
pub(super) fn status(folder: &Folder) -> Option<Status> {
    if folder.is_held(Role::Server) {
        if let Ok(Answer::Status(status)) =
            control::ask(folder, &ControlRequest::Status, Some(PATIENCE))
        {
            return Some(*status);
        }
        let trouble = "the process that serves it does not answer".to_owned();
        return gone(folder, State::Restarting, Some(trouble), Vec::new());
    }
    if folder.is_held(Role::Supervisor) {
        // The reason cannot be written down either if that is the reason.
        let full = || format!("there is no room in {}: make some", folder.0.display());
        let trouble = folder.read("trouble");
        let trouble = trouble.or_else(|| system::is_full(&folder.0).then(full));
        return gone(folder, State::Restarting, trouble, Vec::new());
    }
    let why = folder.read("trouble").unwrap_or_else(|| "its daemon is gone".to_owned());
    let name = folder.name();
    // Nobody attaches a disk of this name meanwhile.
    let lock = folder.lock(Role::Supervisor)?;
    match clean_up(folder, false) {
        Ok(()) => {
            let trouble = format!("{why}; it was cleaned up");
            let status = gone(folder, State::Stale, Some(trouble), Vec::new());
            folder.remove_unfinished(lock);
            status
        }
        Err(StopError::InUse(users)) => {
            let trouble = format!(
                "{why}, and it is in use: attach it as {name} again, or `farblock detach {name} \
                 --force`"
            );
            gone(folder, State::Stale, Some(trouble), users)
        }
        Err(StopError::Failed(error)) => {
            gone(folder, State::Stale, Some(format!("{why}; {error}")), Vec::new())
        }
    }
}

/// The same, with how long operations take, which is measured as of the first time.
fn measured(folder: &Folder) -> Option<Status> {
    let status = status(folder)?;
    // One of before that request answers nothing to it, and one that died has a successor soon.
    match status.server_pid.map(|_| control::ask(folder, &ControlRequest::Measure, Some(PATIENCE)))
    {
        Some(Ok(Answer::Status(measured))) => Some(*measured),
        _ => Some(status),
    }
}

/// Whether a server answers.
pub(super) fn is_served(folder: &Folder) -> bool {
    folder.is_held(Role::Server)
        && control::ask(folder, &ControlRequest::Status, Some(PATIENCE)).is_ok()
}

/// Clears away what processes that are gone have left.
pub(super) fn clean_up(folder: &Folder, force: bool) -> Result<(), StopError> {
    let saved = folder.read_json::<Saved>("state.json");
    let settings = folder.read_json::<Settings>("settings.json");
    match (saved, settings) {
        (Some(saved), Some(settings)) => ways::clean_up(folder, &settings, &saved.state, force),
        // One that died before it said what it has made.
        (None, Some(settings)) if force => {
            ways::clean_up(folder, &settings, &serde_json::Value::Null, force)
        }
        _ => Ok(()),
    }
}

/// An attachment that has no server to say how it is.
fn gone(
    folder: &Folder,
    state: State,
    trouble: Option<String>,
    users: Vec<String>,
) -> Option<Status> {
    let offer: Offer = folder.read_json::<Saved>("state.json")?.offer;
    let pid = folder.pid().filter(|_| state != State::Stale);
    let paths = Vec::new();
    Some(Status {
        offer,
        state,
        since_seconds: 0,
        trouble,
        paths,
        pid,
        server_pid: None,
        users,
        confinement: None,
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
        ("PID", Right),
    ];
    let mut table = Table::new(&columns);
    let mut notes = String::new();
    for status in all {
        let Status { offer, state, since_seconds, trouble, paths, pid, users, .. } = status;
        let since = match state {
            State::Degraded | State::Reconnecting | State::Failed => {
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
            pid.map_or("-".to_owned(), |pid| pid.to_string()),
        ]);
        let mut note = |text: String| notes.push_str(&format!("  {}\n", printable(&text)));
        let heading = paths.len() + users.len() + usize::from(trouble.is_some()) > 0;
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
            // One path's is the disk's.
            let why = path.error.as_ref().filter(|_| path.state != "live" && paths.len() > 1);
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            note(format!("  path {}: {}{since}{access}{why}", path.url, path.state));
        }
        users.iter().for_each(|user| note(format!("  used: {user}")));
    }
    let between = if notes.is_empty() { "" } else { "\n" };
    format!("{}{between}{notes}", table.render(0))
}
