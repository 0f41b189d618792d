//! Stores the changes made at run time, so that a restart restores them.
//!
//! It writes a new state to a second file, makes it durable, and renames it over the old one: a
//! crash at any moment leaves one of the two, whole.

use crate::document::Document;
use crate::problem::Problem;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Limit for the size of a state, in bytes: far above the limits of a document.
const MAX_BYTES: u64 = 64 << 20;

/// Time for another process that still holds the state to exit.
const CLAIM_TIME: Duration = Duration::from_secs(3);
const CLAIM_PAUSE: Duration = Duration::from_millis(50);

/// The stored state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The configuration at the time of storing.
    pub configured: Document,
    /// The shared document.
    pub shared: Document,
}

/// The last completed stage of storing a state, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The temporary file exists, and is empty.
    Created,
    /// The file has all its content.
    Written,
    /// The content is durable.
    Synced,
    /// It has replaced the old file.
    Renamed,
    /// The rename is durable.
    Durable,
}

/// Why a state could not be read or stored.
#[derive(Debug)]
pub enum StoreError {
    /// The system returned an error.
    Io(PathBuf, io::Error),
    /// The file does not contain a state.
    Damaged(PathBuf, Problem),
    /// Another process stores its state there.
    Claimed(PathBuf),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => {
                // Without the error number that the standard library adds.
                let text = error.to_string();
                let words = text.split(" (os error ").next().unwrap_or_default();
                write!(f, "the state {} cannot be read or written: {words}", path.display())
            }
            Self::Damaged(path, problem) => write!(
                f,
                "{} holds no state of farblock: {problem}; mend it, or remove it to start from \
                 the configuration",
                path.display()
            ),
            Self::Claimed(path) => write!(
                f,
                "another farblock keeps its state in {}: each needs a file of its own",
                path.display()
            ),
        }
    }
}

impl std::error::Error for StoreError {}

/// Where a state is stored: one file. While a change is stored, a second one is beside it.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    /// The lock, if it was claimed; dropping the `Store` releases it.
    claim: Option<File>,
}

impl Store {
    /// A state in the file `path`; if that is a link, in the file at its end.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { path: fs::canonicalize(&path).unwrap_or(path), claim: None }
    }

    /// Keeps other processes from claiming the state until the `Store` is dropped. Each change
    /// replaces the state's file, so the lock is on a second file beside it, which stays.
    ///
    /// # Errors
    /// If another process holds it, or that cannot be determined.
    pub fn claim(&mut self) -> Result<(), StoreError> {
        if fs::metadata(&self.path).is_ok_and(|found| !found.is_file()) {
            // Reading it reports the error; do not create a file beside a device.
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
                // Some file systems have no locks.
                Err(TryLockError::Error(_)) => return Ok(()),
                Ok(()) => break,
            }
        }
        self.claim = Some(file);
        Ok(())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The stored state; `None` without one. It may have [names](Document::doubtful_names) that
    /// only an earlier version accepted.
    ///
    /// # Errors
    /// If it cannot be read, or is invalid.
    pub fn load(&self) -> Result<Option<Kept>, StoreError> {
        let Some(text) = self.text()? else { return Ok(None) };
        let damaged = |problem| StoreError::Damaged(self.path.clone(), problem);
        let kept: Kept =
            serde_json::from_str(&text).map_err(|error| damaged(Problem::new("", error)))?;
        kept.shared.check_after(&kept.shared).map_err(damaged)?;
        Ok(Some(kept))
    }

    /// The text of the stored state; `None` without one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn text(&self) -> Result<Option<String>, StoreError> {
        let io = |error| StoreError::Io(self.path.clone(), error);
        let found = match fs::metadata(&self.path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        // Reading a pipe would block, and the first change would replace it.
        if !found.is_file() {
            return Err(io(io::Error::other("it is not a regular file, so name another one")));
        }
        let mut text = String::new();
        let file = File::open(&self.path).map_err(io)?;
        file.take(MAX_BYTES).read_to_string(&mut text).map_err(io)?;
        Ok(Some(text))
    }

    /// Stores the state; when this returns, a restart finds it.
    ///
    /// # Errors
    /// If it cannot be written. The old state is then unchanged, unless the error came after the
    /// rename.
    pub fn save(&self, kept: &Kept) -> Result<(), StoreError> {
        self.save_until(kept, |_| true).map_err(|error| StoreError::Io(self.path.clone(), error))
    }

    /// Like `save`, while `goes_on` is true: tests simulate a crash after each stage.
    #[doc(hidden)]
    pub fn save_until(&self, kept: &Kept, goes_on: impl FnMut(Stage) -> bool) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(kept).expect("our own types are JSON");
        text.push('\n');
        replace_file(&self.path, text.as_bytes(), goes_on)
    }
}

/// Opens the lock file, and creates it if it does not exist. Opens it only for reading, so that an
/// administrator can still remount its file system read-only.
fn claimed(path: &Path) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(io::Error::other("it is not a regular file, so remove it")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            match options.open(path) {
                // Another process was faster, and has or will get the lock.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => drop(made?),
            }
        }
        Err(error) => return Err(error),
    }
    File::open(path)
}

/// Replaces the file at `path` by one with `bytes`, while `goes_on` is true. A crash at any moment
/// leaves one of the two, whole. Only the user of this process can read it.
///
/// # Errors
/// If it cannot be written. The old file is then unchanged, unless the error came after the rename.
pub fn replace_file(
    path: &Path,
    bytes: &[u8],
    mut goes_on: impl FnMut(Stage) -> bool,
) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // Remove the leftovers of a crash, and do not follow a link that another user put there.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let done = put(&new, path, bytes, &mut goes_on);
    if done.is_err() {
        // Free the space of a full disk. After the rename the file no longer exists.
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
/// If that fails; a missing file is not an error.
pub fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        done => done?,
    }
    // Even without a file: a crash may have interrupted an earlier removal before its sync.
    sync_folder(path)
}

/// Makes a folder's entries durable.
#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// On this system a rename is durable without further steps, or cannot be made durable.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}
