//! Connects an attachment's disk, after all commands of an earlier server have completed or can no
//! longer take effect.

use super::folder::Folder;
use super::record::{Recorder, predecessor};
use super::settings::Settings;
use farblock_host::disk::Disk;
use farblock_program::remote;
use std::time::Duration;

/// Connects a disk. An error states what to do. With `resume`, programs already use the disk.
pub(super) fn connect(settings: &Settings, folder: &Folder, resume: bool) -> Result<Disk, String> {
    let mut options = settings.disk_options();
    if resume {
        // Make one attempt. The supervisor retries, and can receive a detach request between
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
