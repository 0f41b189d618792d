//! Keeps what was changed at run time, so that a restart brings it back.
//!
//! A new state is written beside the old one, made durable, and renamed over it: a crash at any
//! moment leaves one of the two, whole.

use crate::check::Problem;
use crate::document::Document;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The most bytes that a state may have: far more than the limits of a document allow.
const MAX_BYTES: u64 = 64 << 20;

/// How long another process may take to end that has the state still.
const CLAIM_TIME: Duration = Duration::from_secs(3);
const CLAIM_PAUSE: Duration = Duration::from_millis(50);

/// What is kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// What the configuration said when this was kept.
    pub configured: Document,
    /// What was shared.
    pub shared: Document,
}

/// What was done last, of keeping a state; each is followed by the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// A temporary file is there, empty.
    Created,
    /// It has everything in it.
    Written,
    /// It is durable.
    Synced,
    /// It has taken the old one's place.
    Renamed,
    /// That is durable.
    Durable,
}

/// Why a state could not be read or kept.
#[derive(Debug)]
pub enum StoreError {
    /// The system said no.
    Io(PathBuf, io::Error),
    /// What is there is no state.
    Damaged(PathBuf, Problem),
    /// Another process keeps its state there.
    Claimed(PathBuf),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => {
                // Without the number that the standard library adds.
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

/// Where a state is kept: one file, and another beside it for a moment.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    /// Locked as long as this lives, if it was claimed.
    claim: Option<File>,
}

impl Store {
    /// A state in the file `path`; if that is a link, in the file that it leads to.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { path: fs::canonicalize(&path).unwrap_or(path), claim: None }
    }

    /// Has no other process claim it as long as this lives. The state itself is another file after
    /// each change: what is locked is one beside it, which stays.
    ///
    /// # Errors
    /// When another process has it, or that cannot be found out.
    pub fn claim(&mut self) -> Result<(), StoreError> {
        if fs::metadata(&self.path).is_ok_and(|found| !found.is_file()) {
            // Whoever reads it is told; nothing is put beside a device.
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

    /// What is kept; `None` if nothing is.
    ///
    /// # Errors
    /// When it cannot be read, or is none.
    pub fn load(&self) -> Result<Option<Kept>, StoreError> {
        let Some(text) = self.text()? else { return Ok(None) };
        let damaged = |problem| StoreError::Damaged(self.path.clone(), problem);
        let kept: Kept =
            serde_json::from_str(&text).map_err(|error| damaged(Problem::new("", error)))?;
        kept.shared.check().map_err(damaged)?;
        Ok(Some(kept))
    }

    /// What is kept, as it was written; `None` if nothing is.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn text(&self) -> Result<Option<String>, StoreError> {
        let io = |error| StoreError::Io(self.path.clone(), error);
        let found = match fs::metadata(&self.path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        // A pipe would be waited for, and replaced by the first change that is kept.
        if !found.is_file() {
            return Err(io(io::Error::other("it is not a regular file, so name another one")));
        }
        let mut text = String::new();
        let file = File::open(&self.path).map_err(io)?;
        file.take(MAX_BYTES).read_to_string(&mut text).map_err(io)?;
        Ok(Some(text))
    }

    /// Keeps it; when this returns, a restart finds it.
    ///
    /// # Errors
    /// When it cannot be written; what was kept before is as it was, unless the error came after
    /// the new one took its place.
    pub fn save(&self, kept: &Kept) -> Result<(), StoreError> {
        self.save_until(kept, |_| true).map_err(|error| StoreError::Io(self.path.clone(), error))
    }

    /// The same, for as long as `goes_on`: a crash after each stage, for tests.
    #[doc(hidden)]
    pub fn save_until(&self, kept: &Kept, goes_on: impl FnMut(Stage) -> bool) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(kept).expect("our own types are JSON");
        text.push('\n');
        replace_file(&self.path, text.as_bytes(), goes_on)
    }
}

/// Opens what is locked, new if it is not there. For reading: a file system can be made read-only
/// as long as nobody writes to it.
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
                // Somebody else was here first, and has the lock or will.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => drop(made?),
            }
        }
        Err(error) => return Err(error),
    }
    File::open(path)
}

/// Puts a file with `bytes` in the place of what is at `path`, for as long as `goes_on`: a crash at
/// any moment leaves the one or the other, whole. Only who runs this can read it.
///
/// # Errors
/// When it cannot be written; what was there before is as it was, unless the error came after the
/// new one took its place.
pub fn replace_file(
    path: &Path,
    bytes: &[u8],
    mut goes_on: impl FnMut(Stage) -> bool,
) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // What a crash left is in nobody's way; a link that somebody put there is not followed.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let done = put(&new, path, bytes, &mut goes_on);
    if done.is_err() {
        // A full disk is not to be fuller. After the rename there is none.
        let _ = fs::remove_file(&new);
    }
    done
}

/// Writes the new file and gives it the old one's name.
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

/// Takes a file away for good.
///
/// # Errors
/// When that cannot be done; it is no error that there is none.
pub fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        done => done?,
    }
    // Also when there was none: the crash may have come between this and the last time.
    sync_folder(path)
}

/// Makes a folder's names durable.
#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// There a rename is durable by itself, or nothing makes it so.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}
