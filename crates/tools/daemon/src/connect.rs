//! Connects an attachment's disk, once all commands of an earlier server are over.

use super::folder::Folder;
use super::record::{Recorder, predecessor};
use super::settings::Settings;
use farblock_command::remote;
use farblock_host::disk::Disk;
use std::time::Duration;

/// Connects a disk, with errors that say what to do next. `resume`: the disk may be in use already.
pub(super) fn connect(settings: &Settings, folder: &Folder, resume: bool) -> Result<Disk, String> {
    let mut options = settings.disk_options();
    if resume {
        // The supervisor retries, and can receive a detach request meanwhile.
        options.connect_wait = Duration::ZERO;
    }
    let before = predecessor(folder, settings, resume)?;
    let recorder = Recorder::new(folder, settings, resume);
    Disk::succeed(&settings.urls, &options, before, recorder).map_err(|error| {
        let failure = remote::explain(&error, &settings.urls[0], &options.connection);
        failure.sentence().to_owned()
    })
}
