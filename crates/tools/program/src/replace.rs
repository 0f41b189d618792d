//! Replaces a file atomically. A process writes the new file next to the old one, makes it durable,
//! and renames it. At every moment the path has either the old or the new file, complete.
//!
//! The temporary name derives from the final name, so that the next process finds and reuses the
//! temporary file of a killed process.

use crate::error::{Failure, Result, os};
use farblock_backends::{FileProblem, OpenError};
use farblock_block::size::Size;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The maximum number of symbolic links to follow, as on Linux.
const LINKS: usize = 40;
/// The maximum length in bytes of a file name that the temporary name contains. A longer file name
/// is replaced by its hash there.
const LONG_NAME_BYTES: usize = 200;
/// On Windows, the time to wait until other programs close the old file.
const OTHERS_READ: Duration = Duration::from_secs(5);

/// A new file that will replace another.
pub struct Replacement {
    file: File,
    part: PathBuf,
    /// The final path, with symbolic links resolved.
    place: PathBuf,
    /// The path as the user wrote it, for messages.
    name: String,
    /// The old file, locked so that no target shares it during the replacement.
    old: Option<File>,
    /// Whether the temporary file remains after a failure.
    kept: bool,
}

impl Replacement {
    /// Opens the temporary file for `path`. With `kept`, the file still contains the data of an
    /// earlier attempt that failed.
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

    /// Returns the new file, before it is in place.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the path of a helper file in the same folder, whose name ends with `kind`.
    pub fn beside(&self, kind: &str) -> PathBuf {
        beside(&self.place, kind)
    }

    /// Whether the temporary file remains after a failure.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Returns the old file, if there was one.
    pub fn old(&self) -> Option<&File> {
        self.old.as_ref()
    }

    /// Says for an error message that the destination is unchanged or was not created.
    pub fn unchanged(&self) -> String {
        match self.old {
            Some(_) => format!("{} is unchanged", self.name),
            None => format!("{} was not created", self.name),
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

    /// Makes the file durable and renames it into place.
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
                "{name} is replaced, but the old file may return after a power failure, because \
                 its folder cannot be synced: {error}"
            ))
        })
    }

    fn rename(&mut self) -> io::Result<()> {
        self.file.sync_all()?;
        if cfg!(windows) {
            // Windows may refuse to rename an open or locked file. Ignore errors of `unlock`: Rust
            // makes two calls there, and under Wine the second fails. If the file is still locked,
            // the rename below reports it.
            self.old = None;
            let _ = self.file.unlock();
        }
        put_over(&self.part, &self.place)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.kept {
            // Ignore errors: the next replacement reuses the file.
            let _ = std::fs::remove_file(&self.part);
        }
    }
}

/// Returns the failure of the operation `what` on a file, with advice.
pub fn cannot(what: &str, name: &str, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => ": change its permissions, or run as another user",
        io::ErrorKind::NotFound if what == "create" => ": make its directory first",
        _ => "",
    };
    Failure::run(format_args!("cannot {what} {name}: {}{hint}", os(error)))
}

/// Takes the locks by which targets, virtual machines and loop devices mark a disk file as in use.
/// Fails if one of them uses the file.
pub fn lock(file: &File, path: &Path, write: bool) -> Result<()> {
    let by = match farblock_backends::file::lock(file, path, !write) {
        Err(FileProblem::InUse { by, .. }) => by,
        Err(FileProblem::Locked { .. }) => "another program, perhaps a farblock target".to_owned(),
        Err(problem) => return Err(refused(path, problem)),
        Ok(()) => return Ok(()),
    };
    let name = path.display();
    let why = if write { "two writers would destroy it" } else { "which may write to it" };
    Err(Failure::run(format_args!(
        "{name} is in use by {by} ({why}): stop it first; a disk that a target shares can be used \
         through its URL"
    )))
}

/// Returns the error for a file in use, in the same words that a target uses for its disks.
pub fn refused(path: &Path, problem: FileProblem) -> Failure {
    Failure::run(OpenError::File { path: path.to_owned(), problem })
}

/// Renames a file over another. Retries for a while on Windows, which refuses while another
/// program, such as a virus scanner, has the old file open.
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

/// Makes created and renamed names in a folder durable.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    // Windows cannot sync a folder.
    if cfg!(windows) {
        return Ok(());
    }
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    match File::open(folder)?.sync_all() {
        // Some network file systems cannot sync a folder. There is no other way, so accept that.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput) => Ok(()),
        done => done,
    }
}

/// Opens the old file for writing, and if permitted also for reading, which the locks against QEMU
/// need.
fn open_old(place: &Path) -> io::Result<File> {
    let opened = OpenOptions::new().read(true).write(true).open(place);
    match opened {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            OpenOptions::new().write(true).open(place)
        }
        opened => opened,
    }
}

/// Resolves the symbolic links of a path, even if the file does not exist. So the replacement keeps
/// a link and replaces the file that it names.
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

/// Returns the path of a hidden file next to `place`: its name with the suffix `.farblock-` and
/// `kind`.
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

/// Opens the temporary file for this process alone.
fn open_part(part: &Path, name: &str) -> Result<File> {
    let failed = |error: &io::Error| {
        let shown = part.display();
        match error.kind() {
            io::ErrorKind::NotFound => cannot("create", name, error),
            io::ErrorKind::PermissionDenied => Failure::run(format_args!(
                "cannot create {shown}, the temporary file for {name}: {}: change the folder's \
                 permissions, or choose another place",
                os(error)
            )),
            _ => Failure::run(format_args!(
                "cannot create {shown}, the temporary file for {name}: {}",
                os(error)
            )),
        }
    };
    loop {
        let file = open_own(part).map_err(|error| failed(&error))?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(Failure::run(format_args!(
                "another farblock process is writing {name}: wait for that process, or stop it"
            )));
        }
        // Another process may have renamed or removed the file before this process locked it.
        if is_at(&file, part).map_err(|error| failed(&error))? {
            return Ok(file);
        }
    }
}

/// Opens or creates a file of this user. Refuses a link, and a file of another user, who could have
/// planted it in a shared folder.
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
        return Err(io::Error::other(
            "a link, or a file of another user, has this name; remove it",
        ));
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

/// Returns true: on Windows, an open file cannot be renamed or removed.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

/// Gives the new file the permissions of the old file, and its owner if possible.
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
    fn an_abandoned_replacement_keeps_the_old_file_and_removes_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "old").unwrap();
        let new = Replacement::begin(&path, false).unwrap();
        new.fill(b"half").unwrap();
        drop(new);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        write(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "a temporary file remains"
        );
    }

    #[test]
    fn a_second_concurrent_replacement_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let _one = Replacement::begin(&path, false).unwrap();
        let Err(Failure::Run(text)) = Replacement::begin(&path, false) else {
            panic!("a second replacement of the file began")
        };
        assert!(text.contains("another farblock"), "{text}");
    }

    /// Checks that on Windows the rename waits for a program that briefly has the file open.
    #[test]
    fn the_replacement_waits_for_a_reader() {
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
        // Do not use `Replacement::begin`: it opens the old file for writing, which fails while the
        // reader has it open.
        let part = beside(&path, "part");
        std::fs::write(&part, "new").unwrap();
        put_over(&part, &path).unwrap();
        reading.join().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_file_with_a_long_name_can_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("n".repeat(250)), b"x").unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_the_file_is_kept_and_a_link_at_the_temporary_name_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (link, path) = (folder.path().join("link"), folder.path().join("file"));
        std::os::unix::fs::symlink("file", &link).unwrap();
        write(&link, b"new").unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        // An attacker's link at the temporary name would redirect the data.
        std::os::unix::fs::symlink("elsewhere", beside(&path, "part")).unwrap();
        assert!(write(&path, b"secret").is_err());
        assert!(!folder.path().join("elsewhere").exists());
    }
}
