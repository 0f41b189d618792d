//! The runtime directory, with one folder for each attachment.
//!
//! ```text
//! /run/farblock/fb0/
//!   settings.json   the requested settings
//!   supervisor      locked while the supervisor runs
//!   server          locked while the server runs
//!   pid             the supervisor's process
//!   server-pid      the server's process
//!   state.json      the server's offer and state, for the next server and for cleanup
//!   identity.json   the namespace's identity, for the next server
//!   controllers.json  controllers that may still execute commands, for the next server
//!   trouble         the reason why no server runs at present
//!   control         the server's control socket
//!   log, log.old    the log of both processes
//! ```
//! Locks, not process IDs, show which processes run and which to kill: the kernel may have reused
//! an ID for another process.

use super::leftover;
use super::settings::Settings;
use super::system::{self, Descriptor};
use farblock_host::Url;
use farblock_program::error::{Failure, Result, os};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MAX_NAME_BYTES: usize = 32;
/// Prefix of generated names: `fb0`, `fb1`, …
const DERIVED: &str = "fb";
/// Maximum number of attachments with generated names.
const MAX_DERIVED: u32 = 1024;
/// Maximum size of the log, in bytes. A longer log is copied to `log.old` and truncated.
const MAX_LOG_BYTES: u64 = 4 << 20;
/// Polling interval while waiting.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Time limit for the exit of a process that has nothing left to do.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks a name, which must also be valid as a file name, unit name and serial number.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let fits = (1..=MAX_NAME_BYTES).contains(&name.len());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if fits && name.bytes().all(plain) && !name.starts_with(['.', '-']) {
        return Ok(());
    }
    Err(format!(
        "{name:?} is not a name for an attachment: use 1 to {MAX_NAME_BYTES} letters, digits, \
         '.', '-' and '_', the first a letter or digit"
    ))
}

/// Returns the runtime directory. Fails if other users can change an existing directory.
pub(super) fn runtime(given: Option<&Path>) -> Result<PathBuf> {
    let variable = std::env::var_os("FARBLOCK_RUNTIME_DIR").map(PathBuf::from);
    let path = match (given, variable.filter(|path| path.is_absolute())) {
        (Some(path), _) => std::path::absolute(path)
            .map_err(|error| Failure::run(format_args!("{}: {}", path.display(), os(&error))))?,
        (None, Some(path)) => path,
        (None, None) => system::runtime()?,
    };
    match fs::symlink_metadata(&path) {
        Ok(found) if found.is_file() => {
            return Err(Failure::run(format_args!(
                "{} is a file, but attachments need a directory: choose another \
                 --runtime-dir",
                path.display()
            )));
        }
        Ok(_) => check_private(&path, false)?,
        // If the directory cannot be created, the command that creates it reports the reason.
        Err(_) => {}
    }
    Ok(path)
}

/// Fails if other users can change the folder, or, with `closed`, read it. Such a user could choose
/// the devices that root creates, serves and removes.
fn check_private(folder: &Path, closed: bool) -> Result<()> {
    system::check_private(folder, closed).map_err(|problem| {
        Failure::run(format_args!(
            "{}: {problem}, or choose another --runtime-dir",
            folder.display()
        ))
    })
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Folder(pub(super) PathBuf);

/// The lock that a process of an attachment holds while it runs.
#[derive(Debug)]
pub(super) struct Lock(Descriptor);

impl Lock {
    /// Takes over a lock from the process that passed this descriptor.
    pub(super) fn inherited(descriptor: Descriptor) -> Lock {
        Lock(descriptor)
    }

    /// The lock's descriptor, to pass the lock to another process.
    pub(super) fn descriptor(&self) -> &Descriptor {
        &self.0
    }
}

/// A kind of process of an attachment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Supervisor,
    Server,
}

impl Role {
    fn file(self) -> &'static str {
        match self {
            Role::Supervisor => "supervisor",
            Role::Server => "server",
        }
    }

    /// The name of the file with the process ID. On Linux, users read it to send signals.
    pub(super) fn record(self) -> &'static str {
        match self {
            Role::Supervisor => "pid",
            Role::Server => "server-pid",
        }
    }
}

/// The result of an attempt to kill a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// No such process runs.
    Nobody,
    /// The process was killed.
    Ended,
    /// The process runs, but its ID is unknown.
    Unknown,
}

impl Folder {
    pub(super) fn name(&self) -> String {
        self.0.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    /// Claims the folder with this name, or a new folder with a generated name. Returns the folder
    /// and its supervisor lock.
    pub(super) fn claim(runtime: &Path, name: Option<&str>) -> Result<(Folder, Lock)> {
        let derived = (0..MAX_DERIVED).map(|number| format!("{DERIVED}{number}"));
        let names: Vec<String> = match name {
            Some(name) => vec![name.to_owned()],
            None => derived.collect(),
        };
        for candidate in names {
            let folder = Folder(runtime.join(&candidate));
            // Skip the folder of a dead attachment: only an attach with its name may resume it.
            if name.is_none() && folder.0.exists() {
                continue;
            }
            folder.make()?;
            match folder.lock(Role::Supervisor) {
                Some(_) if folder.is_held(Role::Server) => {}
                Some(lock) => return Ok((folder, lock)),
                None => {}
            }
        }
        Err(match name {
            Some(name) => Folder(runtime.join(name)).refused_twice(),
            None => Failure::run(format_args!("{MAX_DERIVED} disks are already attached")),
        })
    }

    /// The error for a second disk under this name.
    fn refused_twice(&self) -> Failure {
        let attached = self.read_json::<Settings>("settings.json");
        let url = attached.and_then(|it| it.urls.first().map(Url::without_keys));
        let to = url.map_or_else(String::new, |url| format!(" to {url}"));
        let name = self.name();
        Failure::usage(format_args!(
            "{name} is already attached{to}: choose another --name, or `farblock detach {name}`"
        ))
    }

    fn make(&self) -> Result<()> {
        let cannot = |error| {
            let error: &io::Error = &error;
            let (path, error) = (self.0.display(), os(error));
            Failure::run(format_args!(
                "cannot create {path}: {error}; choose another --runtime-dir"
            ))
        };
        if let Some(runtime) = self.0.parent() {
            system::make_private(runtime).map_err(cannot)?;
            check_private(runtime, false)?;
        }
        system::make_private(&self.0).map_err(cannot)?;
        check_private(&self.0, true)
    }

    /// The folders of all attachments, sorted by name.
    pub(super) fn all(runtime: &Path) -> Vec<Folder> {
        let entries = fs::read_dir(runtime).into_iter().flatten().flatten();
        let mut all: Vec<Folder> = entries
            .filter(|entry| entry.file_name().to_str().is_some_and(|it| check_name(it).is_ok()))
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| Folder(entry.path()))
            .filter(|folder| system::check_private(&folder.0, true).is_ok())
            .collect();
        all.sort_by_key(Folder::name);
        all
    }

    pub(super) fn attached(runtime: &Path) -> Vec<Folder> {
        let mut all = Folder::all(runtime);
        all.retain(|folder| folder.path("settings.json").exists());
        all
    }

    /// Takes this role's lock; `None` if another process holds it, or if the lock file cannot be
    /// opened.
    pub(super) fn lock(&self, role: Role) -> Option<Lock> {
        system::lock(&self.path(role.file())).map(Lock)
    }

    /// Whether a process holds this role's lock.
    pub(super) fn is_held(&self, role: Role) -> bool {
        system::is_locked(&self.path(role.file()))
    }

    pub(super) fn kill(&self, role: Role) -> Found {
        let record = self.read(role.record()).unwrap_or_default();
        let is_ended = system::kill_holder(&self.path(role.file()), &record);
        match self.is_held(role) {
            _ if is_ended => Found::Ended,
            true => Found::Unknown,
            false => Found::Nobody,
        }
    }

    /// Records this process's ID.
    pub(super) fn write_process(&self, role: Role) -> io::Result<()> {
        self.write(role.record(), &system::own_process())
    }

    /// Waits until the supervisor and the server have exited. Returns false if either still runs
    /// after `patience`.
    pub(super) fn wait_for_end(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            if !self.is_held(Role::Supervisor) && !self.is_held(Role::Server) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Replaces a file atomically.
    pub(super) fn write(&self, file: &str, text: &str) -> io::Result<()> {
        let (new, path) = (self.path(&format!("{file}.new")), self.path(file));
        fs::write(&new, text)?;
        farblock_program::replace::put_over(&new, &path)
    }

    pub(super) fn write_json(&self, file: &str, value: &impl Serialize) -> io::Result<()> {
        self.write(
            file,
            &serde_json::to_string_pretty(value).expect("the value serializes to JSON"),
        )
    }

    pub(super) fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.path(file)).ok()
    }

    pub(super) fn read_json<T: DeserializeOwned>(&self, file: &str) -> Option<T> {
        serde_json::from_str(&self.read(file)?).ok()
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.read(Role::Supervisor.record())?.split_whitespace().next()?.parse().ok()
    }

    /// Opens the log for appending.
    pub(super) fn log(&self) -> io::Result<File> {
        system::append(&self.path("log"))
    }

    /// Copies a long log to `log.old` and truncates it. Processes append to the log, so they
    /// continue at its new end.
    pub(super) fn bound_log(&self) {
        let path = self.path("log");
        if fs::metadata(&path).is_ok_and(|log| log.len() > MAX_LOG_BYTES) {
            let kept = fs::copy(&path, self.path("log.old"));
            let begun = File::options().write(true).truncate(true).open(&path);
            if let Err(error) = kept.and(begun.map(drop)) {
                tracing::warn!("cannot truncate the log: {}", os(&error));
            }
        }
    }

    /// Removes the attachment. The caller holds its lock. A directory in the folder that still has
    /// a mount stays.
    pub(super) fn remove(&self, lock: Lock) {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        // Remove the lock files last. A folder without them belongs to no process, and can be
        // claimed.
        let (mut locks, mut first) = (Vec::new(), Vec::new());
        for entry in entries {
            let name = entry.file_name();
            let is_lock = [Role::Supervisor, Role::Server].iter().any(|role| name == role.file());
            if is_lock { &mut locks } else { &mut first }.push(entry.path());
        }
        let mut lock = Some(lock);
        for path in first.iter().chain(&locks) {
            // Windows cannot remove a locked file, so release the lock first. If another process
            // takes the lock at this moment, the file stays.
            if cfg!(windows) && locks.contains(path) {
                drop(lock.take());
            }
            // `remove_dir` removes only empty directories, so this loop never deletes files of a
            // mount.
            let removed = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
            if let Err(error) = removed {
                tracing::debug!("cannot remove {}: {error}", path.display());
            }
        }
        let _ = fs::remove_dir(&self.0);
    }

    /// Removes the attachment, but keeps the record of controllers whose targets may still execute
    /// commands.
    pub(super) fn remove_unfinished(&self, lock: Lock) {
        leftover::keep(self);
        self.remove(lock);
    }

    /// Removes the files that Windows could not remove while the attachment's processes had them
    /// open: the log.
    pub(super) fn remove_rest(&self) {
        // The last process releases its locks just before it removes the folder. Wait, so that the
        // folder is gone when the command reports "detached".
        let _ = fs::remove_dir(&self.0);
        let deadline = Instant::now() + END_TIMEOUT;
        while cfg!(windows) && self.0.exists() && Instant::now() < deadline {
            match self.lock(Role::Supervisor) {
                Some(lock) if !self.is_held(Role::Server) => self.remove(lock),
                // The folder is gone, or another attachment has claimed it.
                _ => return,
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachment_names_are_validated() {
        for name in ["fb0", "data-1", "a.b_c", "0"] {
            assert_eq!(check_name(name), Ok(()));
        }
        for name in ["", ".", "..", "a/b", "-x", ".x", "a b", "ä", &"x".repeat(33), "a\n"] {
            assert!(check_name(name).expect_err(name).contains("is not a name"), "{name}");
        }
    }

    #[test]
    fn a_long_log_is_truncated() {
        use std::io::Write;
        let runtime = tempfile::tempdir().expect("a folder");
        let (folder, _lock) = Folder::claim(runtime.path(), None).expect("the name is free");
        let mut log = folder.log().expect("a log");
        log.write_all(b"kept").expect("the data is written");
        folder.bound_log();
        assert_eq!(folder.read("log").as_deref(), Some("kept"));
        log.set_len(MAX_LOG_BYTES + 1).expect("a length");
        folder.bound_log();
        log.write_all(b"new").expect("the data is written");
        assert_eq!(folder.read("log").as_deref(), Some("new"));
        assert!(folder.read("log.old").is_some_and(|old| old.starts_with("kept")));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_runtime_folder_open_to_other_users_is_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let place = tempfile::tempdir().expect("a folder");
        let refused = |path: &Path, part: &str| {
            let sentence = |failure: Failure| failure.sentence().to_owned();
            let asked =
                runtime(Some(path)).map(drop).expect_err("other users can change the folder");
            let claimed = Folder::claim(path, Some("x"))
                .map(drop)
                .expect_err("other users can change the folder");
            for sentence in [sentence(asked), sentence(claimed)] {
                assert!(sentence.contains(part), "{sentence}");
            }
        };
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))
                .expect("the folder's mode changes");
        };
        let open = place.path().join("open");
        fs::create_dir(&open).expect("a folder");
        for wrong in [0o777, 0o775, 0o702] {
            mode(&open, wrong);
            refused(&open, "chmod 700");
        }
        mode(&open, 0o700);
        let link = place.path().join("link");
        symlink(&open, &link).expect("a link");
        refused(&link, "symbolic link");
        assert!(runtime(Some(&open)).is_ok());
        // The attachment's own folder is checked, too.
        symlink(place.path(), open.join("x")).expect("a link");
        assert!(Folder::claim(&open, Some("x")).is_err());
        fs::create_dir(open.join("y")).expect("a folder");
        mode(&open.join("y"), 0o770);
        assert!(Folder::claim(&open, Some("y")).is_err());
        assert_eq!(Folder::all(&open), []);
        assert!(Folder::claim(&open, Some("z")).is_ok());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&open, Some(65534), None).expect("root may change the owner");
            refused(&open, "belongs to another user");
        }
    }

    #[test]
    fn an_attachment_name_is_claimed_once() {
        let runtime = tempfile::tempdir().expect("a folder");
        let path = runtime.path();
        let (first, lock) = Folder::claim(path, None).expect("the name is free");
        assert_eq!(first.name(), "fb0");
        let (second, _lock) = Folder::claim(path, None).expect("the name is free");
        assert_eq!(second.name(), "fb1");
        assert!(first.is_held(Role::Supervisor) && !first.is_held(Role::Server));
        let Err(Failure::Usage(error)) = Folder::claim(path, Some("fb0")) else {
            panic!("the folder is claimed");
        };
        assert!(error.contains("already attached"), "{error}");
        drop(lock);
        assert!(first.wait_for_end(Duration::ZERO));
        let (_, lock) = Folder::claim(path, Some("fb0")).expect("the name is free again");
        assert_eq!(Folder::all(path), [first.clone(), second]);
        first.remove(lock);
        assert!(!first.0.exists());
    }
}
