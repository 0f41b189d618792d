//! A temporary folder for the drives of a running plan that are files.

use crate::error::{Failure, Result, os};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const PREFIX: &str = "farblock-fleet-";

/// A folder that this process removes when it ends, and keeps locked until then. If the process is
/// killed, a later process finds the folder unlocked, and removes it.
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
            Failure::run(format_args!("cannot make {path}: {error}; set TMPDIR to another folder"))
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
        // Until this process has locked the folder, another process may remove it as abandoned.
        let Ok(lock) = File::open(path) else { continue };
        lock.lock()?;
        let locked = lock.metadata()?.ino();
        if fs::symlink_metadata(path).is_ok_and(|found| found.ino() == locked) {
            return Ok(lock);
        }
    }
}

/// Removes the folders of this user whose processes have died. Ignores errors.
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
