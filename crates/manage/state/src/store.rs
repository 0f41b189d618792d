//! Stores the changes made at run time, so that a restart restores them.
//!
//! The store writes a new state to a second file, makes this file durable, and renames it over the
//! old one. So a crash at any moment leaves one of the two files, complete.

use crate::document::Document;
use crate::problem::Problem;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The maximum size of a state, in bytes, which is far above the size of any valid document.
const MAX_BYTES: u64 = 64 << 20;

/// The time to wait for another process with the same state to exit.
const CLAIM_TIME: Duration = Duration::from_secs(3);
const CLAIM_PAUSE: Duration = Duration::from_millis(50);

/// The contents of a stored state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The configuration file's content when the state was stored.
    pub configured: Document,
    /// The document of the target.
    pub shared: Document,
}

/// The last completed stage of storing a state. The stages are in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The temporary file exists, and is empty.
    Created,
    /// The temporary file has all its contents.
    Written,
    /// The contents of the temporary file are durable.
    Synced,
    /// The temporary file has replaced the old file.
    Renamed,
    /// The rename is durable.
    Durable,
}

/// The reason why a state cannot be read or stored.
#[derive(Debug)]
pub enum StoreError {
    /// The system returned an error for this path.
    Io(PathBuf, io::Error),
    /// The file at this path does not contain a valid state.
    Damaged(PathBuf, Problem),
    /// Another process stores its state at this path.
    Claimed(PathBuf),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => {
                // Omit the error number that the standard library appends.
                let text = error.to_string();
                let words = text.split(" (os error ").next().unwrap_or_default();
                write!(f, "cannot read or write the state file {}: {words}", path.display())
            }
            Self::Damaged(path, problem) => write!(
                f,
                "{} is not a valid state file: {problem}; repair it, or remove it to start from \
                 the configuration",
                path.display()
            ),
            Self::Claimed(path) => write!(
                f,
                "another farblock uses the state file {}: give each process its own file",
                path.display()
            ),
        }
    }
}

impl std::error::Error for StoreError {}

/// A file with a state. During a change, a temporary file is in the same folder.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    /// The lock file, if this store is claimed. Dropping the `Store` releases the lock.
    claim: Option<File>,
}

impl Store {
    /// A store in the file `path`. If `path` is a link, the store is the file to which the link
    /// leads.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { path: fs::canonicalize(&path).unwrap_or(path), claim: None }
    }

    /// Prevents other processes from claiming the state until the `Store` is dropped. Each change
    /// replaces the file of the state, so the lock is on another file in the same folder, which
    /// stays.
    ///
    /// # Errors
    /// Another process has claimed the state, or the lock file cannot be opened.
    pub fn claim(&mut self) -> Result<(), StoreError> {
        if fs::metadata(&self.path).is_ok_and(|found| !found.is_file()) {
            // The path is not a regular file: `load` will report that. Do not create a lock file
            // beside a device.
            return Ok(());
        }
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(".lock");
        let path = self.path.with_file_name(name);
        let file = claimed(&path).map_err(|error| StoreError::Io(path, error))?;
        let until = Instant::now() + CLAIM_TIME;
        loop {
            match file.try_lock() {
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(CLAIM_PAUSE);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::Claimed(self.path.clone()));
                }
                // Some file systems have no locks. Use the state without a lock.
                Err(TryLockError::Error(_)) => return Ok(()),
                Ok(()) => break,
            }
        }
        self.claim = Some(file);
        Ok(())
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The stored state; `None` if no state is stored. It may contain
    /// [names](Document::doubtful_names) that only an earlier version accepted.
    ///
    /// # Errors
    /// The file cannot be read, or its state is invalid.
    pub fn load(&self) -> Result<Option<Kept>, StoreError> {
        let Some(text) = self.text()? else { return Ok(None) };
        let damaged = |problem| StoreError::Damaged(self.path.clone(), problem);
        let kept: Kept =
            serde_json::from_str(&text).map_err(|error| damaged(Problem::new("", error)))?;
        kept.shared.check_after(&kept.shared).map_err(damaged)?;
        Ok(Some(kept))
    }

    /// The text of the stored state; `None` if no state is stored.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn text(&self) -> Result<Option<String>, StoreError> {
        let io = |error| StoreError::Io(self.path.clone(), error);
        let found = match fs::metadata(&self.path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        // Reading a pipe would block, and the first change would replace the pipe.
        if !found.is_file() {
            return Err(io(io::Error::other("it is not a regular file: name another file")));
        }
        let mut text = String::new();
        let file = File::open(&self.path).map_err(io)?;
        file.take(MAX_BYTES).read_to_string(&mut text).map_err(io)?;
        Ok(Some(text))
    }

    /// Stores the state. After this has returned, a restart finds it.
    ///
    /// # Errors
    /// The state cannot be written. The old state is then unchanged, unless the error occurred
    /// after the rename.
    pub fn save(&self, kept: &Kept) -> Result<(), StoreError> {
        self.save_until(kept, |_| true).map_err(|error| StoreError::Io(self.path.clone(), error))
    }

    /// Like `save`, but stops when `goes_on` returns false. Tests simulate a crash after each
    /// stage.
    #[doc(hidden)]
    pub fn save_until(&self, kept: &Kept, goes_on: impl FnMut(Stage) -> bool) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(kept).expect("our types serialize to JSON");
        text.push('\n');
        replace_file(&self.path, text.as_bytes(), goes_on)
    }
}

/// Opens the lock file, and creates it if it does not exist. Opens it read-only, so that an
/// administrator can still remount its file system read-only.
fn claimed(path: &Path) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(io::Error::other("it is not a regular file: remove it")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            match options.open(path) {
                // Another process has created the file in the meantime.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => drop(made?),
            }
        }
        Err(error) => return Err(error),
    }
    File::open(path)
}

/// Replaces the file at `path` by one with `bytes`. Stops when `goes_on` returns false. A crash at
/// any moment leaves one of the two files, complete. Only the user of this process can read the
/// file.
///
/// # Errors
/// The file cannot be written. The old file is then unchanged, unless the error occurred after the
/// rename.
pub fn replace_file(
    path: &Path,
    bytes: &[u8],
    mut goes_on: impl FnMut(Stage) -> bool,
) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // Remove the leftovers of a crash. Do not follow a link that another user may have put there.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let done = put(&new, path, bytes, &mut goes_on);
    if done.is_err() {
        // Free the space on a full disk. After the rename this file no longer exists.
        let _ = fs::remove_file(&new);
    }
    done
}

/// Writes the new file and renames it over the old one.
fn put(
    new: &Path,
    path: &Path,
    bytes: &[u8],
    goes_on: &mut impl FnMut(Stage) -> bool,
) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(new)?;
    if !goes_on(Stage::Created) {
        return Ok(());
    }
    file.write_all(bytes)?;
    if !goes_on(Stage::Written) {
        return Ok(());
    }
    file.sync_all()?;
    drop(file);
    if !goes_on(Stage::Synced) {
        return Ok(());
    }
    fs::rename(new, path)?;
    if !goes_on(Stage::Renamed) {
        return Ok(());
    }
    sync_folder(path)?;
    goes_on(Stage::Durable);
    Ok(())
}

/// Removes a file durably.
///
/// # Errors
/// The file cannot be removed. A missing file is not an error.
pub fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        done => done?,
    }
    // Do this even if no file existed: a crash may have interrupted an earlier removal before its
    // sync.
    sync_folder(path)
}

/// Makes the entries of a folder durable.
#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Does nothing: on this system a rename is durable anyway, or cannot be made durable.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}
