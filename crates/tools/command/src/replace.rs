//! Replaces a file atomically. The new file is written beside the old one, made durable, and
//! renamed, so that at every moment either the old or the new file exists, complete.
//!
//! The new file's temporary name is derived from the old one's, so that the next process finds and
//! reuses a killed process's leftovers.

use crate::error::{Failure, Result, os};
use farblock_backends::{FileProblem, OpenError};
use farblock_block::size::Size;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The limit of symbolic links to follow, as on Linux.
const LINKS: usize = 40;
/// Longer names are replaced by their hash in the temporary name.
const LONG_NAME_BYTES: usize = 200;
/// Time limit for other programs to close the old file, on Windows.
const OTHERS_READ: Duration = Duration::from_secs(5);

/// A file that is being written to replace another.
pub struct Replacement {
    file: File,
    part: PathBuf,
    /// The final path, with symbolic links resolved.
    place: PathBuf,
    /// The user's name for it.
    name: String,
    /// The old file, locked so that no target shares it meanwhile.
    old: Option<File>,
    /// Whether the written data is kept after a failure.
    kept: bool,
}

impl Replacement {
    /// Makes the file beside `path`: empty, or with its previous contents if `kept`.
    pub fn begin(path: &Path, kept: bool) -> Result<Replacement> {
        let name = path.display().to_string();
        let place = follow(path).map_err(|error| cannot("write to", &name, &error))?;
        let old = match open_old(&place) {
            Ok(old) => Some(old),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(cannot("write to", &name, &error)),
        };
        if let Some(old) = &old {
            lock(old, path, true)?;
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

    /// The new file, which is not in place yet.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The path of another file in the same folder, for data of this `kind`.
    pub fn beside(&self, kind: &str) -> PathBuf {
        beside(&self.place, kind)
    }

    /// Whether the written data is kept after a failure.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// The old file.
    pub fn old(&self) -> Option<&File> {
        self.old.as_ref()
    }

    /// For an error message: the state of both files if the replacement stops here.
    pub fn unchanged(&self) -> String {
        match self.old {
            Some(_) => format!("{} is as it was", self.name),
            None => format!("{} was not made", self.name),
        }
    }

    /// Writes the whole contents at once.
    pub fn fill(&self, bytes: &[u8]) -> Result<()> {
        io::Write::write_all(&mut &self.file, bytes).map_err(|error| {
            let (name, error, state) = (&self.name, os(&error), self.unchanged());
            let size = Size(bytes.len() as u64);
            Failure::run(format_args!("cannot write {size} to {name}: {error}; {state}"))
        })
    }

    /// Makes the file durable and puts it in place.
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
            // Windows may refuse to rename an open or locked file. Rust unlocks twice, and Wine
            // fails the second time; if the file is still locked, the rename fails.
            self.old = None;
            let _ = self.file.unlock();
        }
        put_over(&self.part, &self.place)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.kept {
            // If removal fails, the next replacement reuses the file.
            let _ = std::fs::remove_file(&self.part);
        }
    }
}

/// An error about a file, with advice.
pub fn cannot(what: &str, name: &str, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => ": change its permissions, or run as another user",
        io::ErrorKind::NotFound if what == "create" => ": make its directory first",
        _ => "",
    };
    Failure::run(format_args!("cannot {what} {name}: {}{hint}", os(error)))
}

/// Ensures that no target, virtual machine or loop device uses the file, by taking a disk's locks.
pub fn lock(file: &File, path: &Path, write: bool) -> Result<()> {
    let by = match farblock_backends::file::lock(file, path, !write) {
        Err(FileProblem::InUse { by, .. }) => by,
        Err(FileProblem::Locked { .. }) => {
            "another program, perhaps a target that shares it".to_owned()
        }
        Err(problem) => return Err(refused(path, problem)),
        Ok(()) => return Ok(()),
    };
    let name = path.display();
    let why = if write { "two writers would destroy it" } else { "which may write to it" };
    Err(Failure::run(format_args!(
        "{name} is in use by {by} ({why}): stop that first; a disk that a target shares can be \
         reached through its URL"
    )))
}

/// The error for a file in use, in the words that a target uses for its disks.
pub fn refused(path: &Path, problem: FileProblem) -> Failure {
    Failure::run(OpenError::File { path: path.to_owned(), problem })
}

/// Renames a file over another. Windows refuses while another program has the old file open, such
/// as an indexer or a virus scanner, so it retries for a while.
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
    // Windows has no such call.
    if cfg!(windows) {
        return Ok(());
    }
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    match File::open(folder)?.sync_all() {
        // File systems without this call, such as some network ones, make names durable as well as
        // they can.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput) => Ok(()),
        done => done,
    }
}

/// Opens the old file: readable if possible, because only then can its bytes be locked against
/// QEMU.
fn open_old(place: &Path) -> io::Result<File> {
    let opened = OpenOptions::new().read(true).write(true).open(place);
    match opened {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            OpenOptions::new().write(true).open(place)
        }
        opened => opened,
    }
}

/// The file that a path leads to, even if it does not exist: a link stays, and its destination is
/// replaced.
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

/// The name of a file beside another.
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

/// Opens the temporary file, for one process at a time.
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
        // Another process may have renamed or removed the file before this process had the lock.
        if is_at(&file, part).map_err(|error| failed(&error))? {
            return Ok(file);
        }
    }
}

/// Opens or makes a file of this user. In a folder that others can write to, another user could
/// have planted a link or a file.
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

/// On Windows, an open file cannot be renamed or removed.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

/// Gives the new file the old one's permissions, and its owner if permitted.
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

    /// A program that briefly has the file open does not make the replacement fail.
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
        // Not by `Replacement::begin`: while the reader has the old file open, it cannot open it
        // for writing.
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
        // A planted link would redirect the data.
        std::os::unix::fs::symlink("elsewhere", beside(&path, "part")).unwrap();
        assert!(write(&path, b"secret").is_err());
        assert!(!folder.path().join("elsewhere").exists());
    }
}
