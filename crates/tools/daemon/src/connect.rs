//! Connects an attachment's disk, after everything that a server before us asked for is over.

use super::folder::Folder;
use super::record::{Recorder, predecessor};
use super::settings::Settings;
use farblock_command::remote;
use farblock_host::disk::Disk;
use std::time::Duration;

/// Connects a disk, with errors that say what to do next. `resume`: somebody uses it already.
pub(super) fn connect(settings: &Settings, folder: &Folder, resume: bool) -> Result<Disk, String> {
    let mut options = settings.disk_options();
    if resume {
        // The supervisor tries again, and hears of detaching meanwhile.
        options.connect_wait = Duration::ZERO;
    }
    let before = predecessor(folder, settings, resume)?;
    let recorder = Recorder::new(folder, settings, resume);
    Disk::succeed(&settings.urls, &options, before, recorder).map_err(|error| {
        let failure = remote::explain(&error, &settings.urls[0], &options.connection);
        failure.sentence().to_owned()
    })
}
