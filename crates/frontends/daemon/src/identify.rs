//! Resumes an attachment whose server cannot start, because the identity of its namespace is
//! missing. `farblock attach --name NAME --uuid UUID` supplies the identity, and the supervisor
//! then starts a server with it.

use super::folder::{Folder, Role};
use super::list;
use super::record;
use super::settings::Settings;
use super::status::Offer;
use farblock_program::error::{Failure, Result, os};
use std::path::Path;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Time limit until the next server is ready: the supervisor's longest pause plus the time to
/// connect.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Finds the attachment with these settings, if it has a supervisor but its server cannot start.
pub(super) fn in_vain(runtime: &Path, settings: &Settings) -> Option<Folder> {
    let folder = Folder(runtime.join(settings.name.as_ref()?));
    settings.uuid?;
    let before = folder.read_json::<Settings>("settings.json")?;
    let is_its = before.urls == settings.urls && before.way == settings.way;
    let is_in_vain = folder.is_held(Role::Supervisor) && record::known(&folder).is_err();
    (is_its && is_in_vain && !list::is_served(&folder)).then_some(folder)
}

/// Writes the UUID to the settings, then waits until a server serves the disk.
pub(super) fn go_on(folder: &Folder, uuid: Option<Uuid>) -> Result<Offer> {
    let name = folder.name();
    let Some(before) = folder.read_json::<Settings>("settings.json") else {
        return Err(Failure::run(format_args!("the settings of {name} are unreadable: detach it")));
    };
    folder.write_json("settings.json", &Settings { uuid, ..before }).map_err(|error| {
        Failure::run(format_args!("cannot write to {}: {}", folder.0.display(), os(&error)))
    })?;
    let deadline = Instant::now() + WAIT_LIMIT;
    while Instant::now() < deadline {
        if let Some(status) = list::status(folder).filter(|_| list::is_served(folder)) {
            return Ok(status.offer);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let why = folder.read("trouble").unwrap_or_else(|| "its processes are dead".to_owned());
    Err(Failure::run(format_args!("{name} does not start: {why}")))
}
