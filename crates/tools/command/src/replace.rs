//! A file that takes another's place: written beside it, made durable, and renamed, so that at
//! every moment there is either the old file or the new one, whole.
//!
//! The file beside it has a name that follows from the old one's, so that what a killed process
//! left is found, and used again, by the next.

use crate::error::{Failure, Result, os};
use farblock_block::size::Size;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Symbolic links that are followed, one after the other, as Linux does.
const LINKS: usize = 40;
/// Bytes of a name, beyond which the name of the file beside it is made from its hash.
const LONG_NAME_BYTES: usize = 200;
/// How long others may have a file open that is to be replaced, on Windows.
const OTHERS_READ: Duration = Duration::from_secs(5);

/// A file that is being written, to take the place of another.
pub struct Replacement {
    file: File,
    /// Where it is being written.
    part: PathBuf,
    /// Where it will be, symbolic links followed.
    place: PathBuf,
    /// What the user calls it.
    name: String,
    /// What is there now, locked so that no target shares it meanwhile.
    old: Option<File>,
    /// Whether what was written outlives a failure.
    kept: bool,
}

impl Replacement {
    /// Makes the file beside `path`: empty, or if it is `kept` as it was left.
    pub fn begin(path: &Path, kept: bool) -> Result<Replacement> {
        let name = path.display().to_string();
        let place = follow(path).map_err(|error| cannot("write to", &name, &error))?;
        let old = match OpenOptions::new().write(true).open(&place) {
            Ok(old) => Some(old),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(cannot("write to", &name, &error)),
        };
        if let Some(old) = &old {
            lock(old, &name, true)?;
        }
        let part = beside(&place, "part");
        let file = open_part(&part, &name)?;
        let one = Replacement { file, part, place, name, old, kept };
        one.prepare()
            .map_err(|error| cannot("write to", &one.part.display().to_string(), &error))?;
        Ok(one)
    }

    fn prepare(&self) -> io::Result<()> {
        if !self.kept {
            self.file.set_len(0)?;
        }
        match &self.old {
            Some(old) => look_like(&self.file, &old.metadata()?),
            None => Ok(()),
        }
    }

    /// The new file, which is not in its place yet.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where to keep what is said about it.
    pub fn beside(&self, kind: &str) -> PathBuf {
        beside(&self.place, kind)
    }

    /// Whether what was written outlives a failure.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// What is in its place while it is written.
    pub fn old(&self) -> Option<&File> {
        self.old.as_ref()
    }

    /// What is true if it ends here: a part of a sentence.
    pub fn unchanged(&self) -> String {
        match self.old {
            Some(_) => format!("{} is as it was", self.name),
            None => format!("{} was not made", self.name),
        }
    }

    /// Writes all of it at once.
    pub fn fill(&self, bytes: &[u8]) -> Result<()> {
        io::Write::write_all(&mut &self.file, bytes).map_err(|error| {
            let (name, error, state) = (&self.name, os(&error), self.unchanged());
            let size = Size(bytes.len() as u64);
            Failure::run(format_args!("cannot write {size} to {name}: {error}; {state}"))
        })
    }

    /// Makes it durable and puts it in its place.
    pub fn commit(mut self) -> Result<()> {
        let renamed = self.rename();
        renamed.map_err(|error| {
            let state = self.unchanged();
            Failure::run(format_args!("cannot replace {}: {}; {state}", self.name, os(&error)))
        })?;
        self.kept = true;
        let folder = self.place.parent().unwrap_or(Path::new("."));
        sync_folder(folder).map_err(|error| {
            let (name, error) = (&self.name, os(&error));
            Failure::run(format_args!(
                "{name} is replaced, but may be the old file again after a power failure: its \
                 folder cannot be synced: {error}"
            ))
        })
    }

    fn rename(&mut self) -> io::Result<()> {
        self.file.sync_all()?;
        if cfg!(windows) {
            // What is open or locked cannot be renamed everywhere. Rust unlocks twice, which Wine
            // takes ill the second time; if it is still locked, the renaming says so.
            self.old = None;
            let _ = self.file.unlock();
        }
        put_over(&self.part, &self.place)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.kept {
            // If it cannot be removed, the next one will take it.
            let _ = std::fs::remove_file(&self.part);
        }
    }
}

/// The error of a file, with what helps.
pub fn cannot(what: &str, name: &str, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => ": change its permissions, or run as another user",
        io::ErrorKind::NotFound if what == "create" => ": make its directory first",
        _ => "",
    };
    Failure::run(format_args!("cannot {what} {name}: {}{hint}", os(error)))
}

/// Makes sure that no target shares the file meanwhile: they hold such a lock too.
pub fn lock(file: &File, name: &str, write: bool) -> Result<()> {
    let locked = if write { file.try_lock() } else { file.try_lock_shared() };
    match locked {
        Err(TryLockError::WouldBlock) => Err(Failure::run(format_args!(
            "{name} is in use by another program, perhaps a target that shares it: stop that \
             first, or reach the disk through its URL"
        ))),
        // A file system without locks has no targets with locks either.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Renames a file over another. Windows refuses while somebody has the old one open, who may have
/// it for a moment only, to index it or to look for viruses: then it is tried again for a while.
pub fn put_over(part: &Path, place: &Path) -> io::Result<()> {
    const ERROR_SHARING_VIOLATION: i32 = 32;
    let begin = Instant::now();
    loop {
        let error = match std::fs::rename(part, place) {
            Err(error) if cfg!(windows) && begin.elapsed() < OTHERS_READ => error,
            done => return done,
        };
        let is_open = error.raw_os_error() == Some(ERROR_SHARING_VIOLATION);
        if !is_open && error.kind() != io::ErrorKind::PermissionDenied {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Makes the names in a folder durable.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    // Windows has nothing to be asked for that.
    if cfg!(windows) {
        return Ok(());
    }
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    match File::open(folder)?.sync_all() {
        // File systems that cannot, such as some network ones, do what they can by themselves.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput) => Ok(()),
        done => done,
    }
}

/// Where a path leads, whether or not there is a file: a link stays, and what it names is replaced.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut place = path.to_owned();
    for _ in 0..LINKS {
        match std::fs::symlink_metadata(&place) {
            Ok(metadata) if metadata.is_symlink() => {
                let link = std::fs::read_link(&place)?;
                place = place.parent().unwrap_or(Path::new("")).join(link);
            }
            _ => return Ok(place),
        }
    }
    Err(io::Error::other("Too many levels of symbolic links"))
}

/// The name of a file beside one.
fn beside(place: &Path, kind: &str) -> PathBuf {
    let name = place.file_name().unwrap_or_default();
    let mut part = OsString::from(".");
    if name.len() > LONG_NAME_BYTES {
        let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_encoded_bytes());
        part.push(id.to_string());
    } else {
        part.push(name);
    }
    part.push(".farblock-");
    part.push(kind);
    place.with_file_name(part)
}

/// Opens the file beside, for one process at a time.
fn open_part(part: &Path, name: &str) -> Result<File> {
    let failed = |error: &io::Error| {
        let shown = part.display();
        match error.kind() {
            io::ErrorKind::NotFound => cannot("create", name, error),
            io::ErrorKind::PermissionDenied => Failure::run(format_args!(
                "cannot create {shown}, from which {name} is made: {}: change the folder's \
                 permissions, or choose another place",
                os(error)
            )),
            _ => Failure::run(format_args!(
                "cannot create {shown}, from which {name} is made: {}",
                os(error)
            )),
        }
    };
    loop {
        let file = open_own(part).map_err(|error| failed(&error))?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(Failure::run(format_args!(
                "another farblock is writing {name}: wait for it, or stop it"
            )));
        }
        // Whoever had it may have renamed or removed it before we had the lock.
        if is_at(&file, part).map_err(|error| failed(&error))? {
            return Ok(file);
        }
    }
}

/// Opens or makes a file that is ours alone: in a folder that others may write to, they could have
/// put a link or a file of theirs there.
#[cfg(unix)]
fn open_own(part: &Path) -> io::Result<File> {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    let file = options.open(part)?;
    let metadata = file.metadata()?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !ours || !metadata.is_file() || metadata.nlink() > 1 {
        return Err(io::Error::other("something that is not ours is there; remove it"));
    }
    Ok(file)
}

#[cfg(not(unix))]
fn open_own(part: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(part)
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (ours, there) = (file.metadata()?, std::fs::symlink_metadata(path));
    Ok(there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())))
}

/// What is open cannot be renamed or removed behind our back there.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

/// Gives the new file the old one's permissions, and its owner as far as we may.
#[cfg(unix)]
fn look_like(file: &File, old: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        let _ = std::os::unix::fs::fchown(file, Some(old.uid()), Some(old.gid()));
    }
    file.set_permissions(old.permissions())
}

#[cfg(not(unix))]
fn look_like(_: &File, _: &Metadata) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, bytes: &[u8]) -> Result<()> {
        let new = Replacement::begin(path, false)?;
        new.fill(bytes)?;
        new.commit()
    }

    #[test]
    fn a_replacement_is_all_or_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "old").unwrap();
        let new = Replacement::begin(&path, false).unwrap();
        new.fill(b"half").unwrap();
        drop(new);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        write(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left");
    }

    #[test]
    fn two_at_once_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let _one = Replacement::begin(&path, false).unwrap();
        let Err(Failure::Run(text)) = Replacement::begin(&path, false) else { panic!("two") };
        assert!(text.contains("another farblock"), "{text}");
    }

    /// Whoever looks at the file for a moment does not make the replacing fail.
    #[test]
    fn a_reader_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "old").unwrap();
        let mut options = OpenOptions::new();
        #[cfg(windows)]
        std::os::windows::fs::OpenOptionsExt::share_mode(&mut options, 1);
        let reader = options.read(true).open(&path).unwrap();
        let reading = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(reader);
        });
        // Its place is opened for writing first, which such a reader forbids too.
        let part = beside(&path, "part");
        std::fs::write(&part, "new").unwrap();
        put_over(&part, &path).unwrap();
        reading.join().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn long_names_have_room_for_ours() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("n".repeat(250)), b"x").unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_and_others_files_are_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let (link, path) = (folder.path().join("link"), folder.path().join("file"));
        std::os::unix::fs::symlink("file", &link).unwrap();
        write(&link, b"new").unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        // A trap: what is written would end elsewhere.
        std::os::unix::fs::symlink("elsewhere", beside(&path, "part")).unwrap();
        assert!(write(&path, b"secret").is_err());
        assert!(!folder.path().join("elsewhere").exists());
    }
}
