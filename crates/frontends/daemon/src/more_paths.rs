//! Adds a path to an attached disk when `farblock attach` is run with another address of it, as the
//! kernel's NVMe host does.

use super::control::{self, Answer, ControlRequest};
use super::folder::{Folder, Role};
use super::settings::Settings;
use super::status::Offer;
use super::ways::StopError;
use farblock_host::Url;
use farblock_program::error::{Failure, Result, os};
use std::path::Path;
use std::time::Duration;

/// Time limit for connecting the new path.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Adds the new addresses to the attachment of the same namespace. `None` if no attachment has this
/// namespace, or all addresses are known.
pub(super) fn add(runtime: &Path, settings: &Settings) -> Result<Option<Offer>> {
    if settings.shared || settings.read_only {
        return Ok(None);
    }
    let is_meant = |folder: &Folder| {
        settings.name.as_ref().is_none_or(|name| *name == folder.name())
            && folder.is_held(Role::Server)
    };
    for folder in Folder::attached(runtime).into_iter().filter(is_meant) {
        let Some(before) = folder.read_json::<Settings>("settings.json") else { continue };
        let place = |url: &Url| (url.subsystem.clone(), url.namespace.unwrap_or(1));
        let first = before.urls.first().map(place);
        let is_same = settings.urls.iter().all(|url| Some(place(url)) == first);
        let new = settings.urls.iter().filter(|url| !before.urls.contains(url));
        let new: Vec<&Url> = new.collect();
        if before.read_only || !is_same || new.is_empty() {
            continue;
        }
        let mut offer = None;
        for url in new {
            match ask(&folder, url)? {
                Some(said) => offer = Some(said),
                None => break,
            }
        }
        if offer.is_some() {
            return Ok(offer);
        }
    }
    Ok(None)
}

/// Asks the server of an attachment to add a path. Returns `None` if the address leads to another
/// disk.
fn ask(folder: &Folder, url: &Url) -> Result<Option<Offer>> {
    let name = folder.name();
    let request = ControlRequest::AddPath { url: url.to_string() };
    let failed = |why: String| {
        let url = url.without_keys();
        Failure::run(format_args!(
            "cannot add {url} as a path to {name}, which is already attached: {why}"
        ))
    };
    match control::ask(folder, &request, Some(WAIT_LIMIT)) {
        Ok(Answer::PathAdded(offer)) => Ok(Some(offer)),
        Ok(Answer::OtherNamespace) => Ok(None),
        Ok(Answer::Refused(StopError::Failed(why))) => Err(failed(why)),
        Ok(_) => Err(failed("its server has another version".to_owned())),
        Err(error) => Err(failed(format!("its server does not answer ({})", os(&error)))),
    }
}
