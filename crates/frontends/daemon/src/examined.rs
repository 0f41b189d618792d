//! Inspects an attachment for `farblock doctor` and `status`, without changing it.

use super::control::{self, ControlRequest};
use super::folder::{Folder, Role, runtime};
use super::list::{self, SILENT};
#[cfg(target_os = "linux")]
use super::server::Saved;
use super::settings::Settings;
use super::status::{AttachmentState, Status};
use super::ways;
#[cfg(target_os = "linux")]
use farblock_admin_api::{AttachedPath, AttachedStatus, ReadAttached};
use farblock_host::Options;
use farblock_host::url::Url;
use farblock_program::error::Result;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::sync::Arc;
use std::time::Duration;

/// Time limit for a server to report its status.
const WAIT_LIMIT: Duration = Duration::from_secs(3);
/// The same limit for the summary of all attachments.
#[cfg(target_os = "linux")]
const BRIEF_TIMEOUT: Duration = Duration::from_secs(1);

/// The state and the settings of an attachment.
pub struct Examined {
    /// The attachment's name.
    pub name: String,
    /// The attachment's state, as `farblock list` shows it: `live`, `degraded`…
    pub state: &'static str,
    /// The attachment's problem, if it has one.
    pub trouble: Option<String>,
    /// The commands that the target refuses, with the reason.
    pub refusal: Option<String>,
    /// Whether the disk is write-protected although the attachment is not `--read-only`.
    pub is_protected: bool,
    /// The path or address at which programs use the disk, if the server reports it.
    pub used: Option<String>,
    /// The disk's users, as sentences.
    pub users: Vec<String>,
    /// A description of swap on this disk that can hang the machine, and advice.
    pub swap: Option<(String, &'static str)>,
    /// The paths to the disk.
    pub paths: Vec<Way>,
    /// The disk's connection options.
    pub options: Options,
    /// The daemon's log file.
    pub log: PathBuf,
}

/// One path to the disk of an attachment.
pub struct Way {
    /// The path's address.
    pub url: Url,
    /// `live`, `connecting`, `reconnecting` or `failed`; `None` if the server does not answer.
    pub state: Option<String>,
    /// Seconds in this state.
    pub since_seconds: u64,
    /// The ANA state that the target reports for this path.
    pub access: Option<String>,
    /// Number of reconnects.
    pub reconnects: u64,
    /// The reason why the path is not live, as a sentence.
    pub error: Option<String>,
}

/// Looks up an attachment by its name or the path of its disk. `None` if no attachment matches.
pub fn examined(given: Option<&Path>, name: &str) -> Result<Option<Examined>> {
    let runtime = runtime(given)?;
    let all = Folder::attached(&runtime);
    let found = all.iter().find(|folder| folder.name() == name || serves(folder, name));
    Ok(found.map(examine))
}

/// The summary of an attachment.
#[cfg(target_os = "linux")]
pub struct Brief {
    /// The attachment's name.
    pub name: String,
    /// The path or address at which programs use the disk, if the server or its saved state reports
    /// it.
    pub used: Option<String>,
    /// The state, as `farblock list` shows it.
    pub state: &'static str,
    /// The attachment's problem, if it has one.
    pub trouble: Option<String>,
}

/// Returns the summaries of this user's attachments, or an empty list if the runtime directory is
/// unreadable.
#[cfg(target_os = "linux")]
pub fn brief() -> Vec<Brief> {
    let runtime = runtime(None).unwrap_or_default();
    let brief = |folder: &Folder| {
        let status = ask(folder, BRIEF_TIMEOUT);
        let state = state(folder, status.as_ref()).name();
        let trouble = status.as_ref().map_or_else(|| unserved(folder), |it| it.trouble.clone());
        let said = status.map(|it| it.offer);
        let offer = said.or_else(|| Some(folder.read_json::<Saved>("state.json")?.offer));
        Brief { name: folder.name(), used: offer.map(|offer| offer.used.path), state, trouble }
    };
    Folder::attached(&runtime).iter().map(brief).collect()
}

/// Returns a function that reports the states of all attachments in a runtime directory.
#[cfg(target_os = "linux")]
pub fn watch(given: Option<&Path>) -> Result<ReadAttached> {
    let runtime = runtime(given)?;
    Ok(Arc::new(move || Folder::attached(&runtime).iter().map(watched).collect()))
}

#[cfg(target_os = "linux")]
fn watched(folder: &Folder) -> AttachedStatus {
    let status = ask_for(folder, &ControlRequest::Paths, BRIEF_TIMEOUT);
    let state = state(folder, status.as_ref());
    let path = |it: super::status::Path| AttachedPath {
        url: without_keys(&it.url),
        state: it.state,
        since_seconds: it.since_seconds,
        access: it.access,
        address: it.address,
        reconnects: it.reconnects,
        error: it.error,
    };
    let gone = || match state {
        AttachmentState::Stale => Some("its daemon is dead".to_owned()),
        _ => unserved(folder),
    };
    let trouble = status.as_ref().map_or_else(gone, |it| it.trouble.clone());
    let said = status.map(|it| (it.offer.used.path, it.paths));
    let (used, paths) = said.map_or((None, Vec::new()), |(used, paths)| (Some(used), paths));
    AttachedStatus {
        name: folder.name(),
        used,
        state: state.name().to_owned(),
        trouble,
        paths: paths.into_iter().map(path).collect(),
    }
}

/// Removes the file names of keys from a URL: every reader of the status page sees the URL.
#[cfg(target_os = "linux")]
fn without_keys(url: &str) -> String {
    // A newer version may have written a URL that this version cannot parse. Drop all its
    // parameters.
    let bare = || url.split('?').next().unwrap_or_default().to_owned();
    url.parse::<Url>().map_or_else(|_| bare(), |url| url.without_keys().to_string())
}

fn serves(folder: &Folder, path: &str) -> bool {
    ask(folder, WAIT_LIMIT).is_some_and(|it| it.offer.used.path == path)
}

/// The attachment's state, from its folder if its server does not answer.
fn state(folder: &Folder, status: Option<&Status>) -> AttachmentState {
    match status {
        Some(status) => status.state,
        None if folder.is_held(Role::Supervisor) || folder.is_held(Role::Server) => {
            AttachmentState::Restarting
        }
        None => AttachmentState::Stale,
    }
}

fn ask(folder: &Folder, patience: Duration) -> Option<Status> {
    ask_for(folder, &ControlRequest::Status, patience)
}

fn ask_for(folder: &Folder, request: &ControlRequest, patience: Duration) -> Option<Status> {
    let is_there = folder.is_held(Role::Server);
    is_there.then(|| control::status(folder, request, patience)).flatten()
}

/// The reason why the server does not answer, in the words of `farblock list`.
fn unserved(folder: &Folder) -> Option<String> {
    match folder.is_held(Role::Server) {
        true => Some(SILENT.to_owned()),
        false => folder.read("trouble").or_else(|| list::full(&folder.0)),
    }
}

/// A warning if the file system of the runtime directory is full; otherwise `None`.
pub fn no_room(given: Option<&Path>) -> Result<Option<String>> {
    Ok(list::full(&runtime(given)?))
}

fn examine(folder: &Folder) -> Examined {
    let settings = folder.read_json::<Settings>("settings.json").unwrap_or_default();
    let status = ask(folder, WAIT_LIMIT);
    let state = state(folder, status.as_ref());
    let said = status.as_ref().map(|status| status.paths.as_slice()).unwrap_or_default();
    let users = match &status {
        Some(status) => status.users.clone(),
        None if state == AttachmentState::Stale => ways::users_of_broken(folder, &settings),
        None => Vec::new(),
    };
    Examined {
        name: folder.name(),
        state: state.name(),
        trouble: match &status {
            Some(status) => status.trouble.clone(),
            None => unserved(folder),
        },
        refusal: status.as_ref().and_then(|status| status.refusal.clone()),
        is_protected: status.as_ref().is_some_and(|it| it.offer.read_only) && !settings.read_only,
        used: status.as_ref().map(|status| status.offer.used.path.clone()),
        users,
        #[cfg(target_os = "linux")]
        swap: status.as_ref().and_then(|status| super::swap::trouble(&status.offer)),
        #[cfg(not(target_os = "linux"))]
        swap: None,
        paths: settings.urls.iter().enumerate().map(|(at, url)| way(url, said, at)).collect(),
        options: settings.disk_options().connection,
        log: folder.path("log"),
    }
}

/// Returns the path with this address, and the state that the server reports for it.
fn way(url: &Url, said: &[super::status::Path], at: usize) -> Way {
    let text = url.to_string();
    // Both lists have the same order. The URLs can differ: the server adds the namespace ID.
    let known = said.iter().find(|path| path.url == text).or(said.get(at)).cloned();
    Way {
        url: url.clone(),
        state: known.as_ref().map(|path| path.state.clone()),
        since_seconds: known.as_ref().map_or(0, |path| path.since_seconds),
        access: known.as_ref().and_then(|path| path.access.clone()),
        reconnects: known.as_ref().map_or(0, |path| path.reconnects),
        error: known.and_then(|path| path.error),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn shown_urls_omit_the_paths_of_keys() {
        let there = "nvme+tcp://192.0.2.7:4420/nqn.2026-11.org.example:a?ns=1";
        let shown = without_keys(&format!("{there}&dhchap-secret=/root/host.key"));
        assert_eq!(shown, there);
        let unknown = format!("{there}&new-secret=/root/host.key");
        assert!(there.starts_with(&without_keys(&unknown)), "{unknown}");
    }
}
