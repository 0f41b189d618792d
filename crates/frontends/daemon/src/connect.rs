//! Connects an attachment's disk after all commands of an earlier server have ended.

use super::folder::Folder;
use super::record::{Recorder, predecessor};
use super::settings::Settings;
use farblock_host::disk::Disk;
use farblock_program::remote;
use std::time::Duration;

/// Connects a disk. Errors include the remedy. With `resume`, programs may already use the disk.
pub(super) fn connect(settings: &Settings, folder: &Folder, resume: bool) -> Result<Disk, String> {
    let mut options = settings.disk_options();
    if resume {
        // Make one attempt only: the supervisor retries, and can receive a detach request between
        // attempts.
        options.connect_wait = Duration::ZERO;
    }
    let before = predecessor(folder, settings, resume)?;
    let recorder = Recorder::new(folder, settings, resume);
    Disk::succeed(&settings.urls, &options, before, recorder).map_err(|error| {
        let failure = remote::explain(&error, &settings.urls[0], &options.connection);
        failure.sentence().to_owned()
    })
}
