//! The folder for drives that are files, while a plan runs.

use crate::error::{Failure, Result, os};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const PREFIX: &str = "farblock-fleet-";

/// A folder of this process, removed when the process ends. It stays locked while the process runs,
/// so that a later process can find and remove the folders of killed ones.
pub(super) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    pub(super) fn new() -> Result<Folder> {
        let place = std::env::temp_dir();
        remove_left_behind(&place);
        let path = place.join(format!("{PREFIX}{}", std::process::id()));
        let lock = make(&path).map_err(|error| {
            let (path, error) = (path.display(), os(&error));
            Failure::run(format_args!("{path} cannot be made: {error}; choose TMPDIR"))
        })?;
        Ok(Folder { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Makes a folder and locks it.
fn make(path: &Path) -> io::Result<File> {
    loop {
        DirBuilder::new().mode(0o700).create(path)?;
        // Before it is locked, another process may take the folder for an abandoned one and remove
        // it.
        let Ok(lock) = File::open(path) else { continue };
        lock.lock()?;
        let locked = lock.metadata()?.ino();
        if fs::symlink_metadata(path).is_ok_and(|found| found.ino() == locked) {
            return Ok(lock);
        }
    }
}

/// Removes this user's folders whose process has died, as far as possible.
fn remove_left_behind(place: &Path) {
    let us = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == us);
        if !is_ours {
            continue;
        }
        if let Ok(folder) = File::open(entry.path())
            && folder.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
