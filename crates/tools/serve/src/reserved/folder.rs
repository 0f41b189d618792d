//! Stores the reservations of disks without file attributes: block devices, stripe sets, mirrors
//! and Ceph images. The target's state folder has one file for each disk, named by the disk's
//! identity.
//!
//! The file also contains that identity. A file that was copied or renamed therefore counts as
//! damaged.

use crate::error::{Failure, Result, os};
use farblock_state::{Stage, remove_file, replace_file};
use farblock_target::ReservationStore;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The size limit of a file in bytes.
const MOST_BYTES: u64 = 16 << 10;
/// The time limit for locking the folder: the kernel may release a killed target's lock late.
const LOCK_TIME: Duration = Duration::from_secs(3);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

static FOLDER: OnceLock<(PathBuf, File)> = OnceLock::new();

/// Returns the state folder: from the command line, or from systemd for a service.
pub(crate) fn wanted(asked_for: Option<&Path>) -> Option<PathBuf> {
    asked_for.map(Path::to_owned).or_else(|| {
        // systemd separates several folders by colons. Use the first.
        let all = std::env::var_os("STATE_DIRECTORY")?;
        std::env::split_paths(&all).next().filter(|path| path.is_absolute())
    })
}

/// Selects the folder for reservations, and locks it.
pub(crate) fn keep_in(folder: &Path) -> Result<()> {
    let refused = |error: io::Error| {
        Failure::run(format_args!(
            "cannot store reservations in {}: {}; name another folder with --state-dir",
            folder.display(),
            os(&error)
        ))
    };
    let own = folder.join("reservations");
    std::fs::create_dir_all(&own).map_err(refused)?;
    let mut options = OpenOptions::new();
    let lock = options.create(true).append(true).open(own.join("lock")).map_err(refused)?;
    let until = Instant::now() + LOCK_TIME;
    while let Err(error) = lock.try_lock() {
        match error {
            TryLockError::Error(error) => return Err(refused(error)),
            TryLockError::WouldBlock if Instant::now() < until => std::thread::sleep(LOCK_PAUSE),
            TryLockError::WouldBlock => {
                return Err(Failure::run(format_args!(
                    "another target stores its reservations in {}: give this target its own \
                     folder with --state-dir",
                    folder.display()
                )));
            }
        }
    }
    crate::journal::keep_in(folder).map_err(refused)?;
    FOLDER.set((own, lock)).expect("a process has one target");
    Ok(())
}

/// Whether [`keep_in`] selected a folder.
pub(super) fn is_there() -> bool {
    FOLDER.get().is_some()
}

/// Returns the store for the disk with this identity, or `None` without a folder.
pub(super) fn of(identity: Uuid) -> Option<Arc<dyn ReservationStore>> {
    FOLDER.get().map(|(folder, _)| Arc::new(Kept::new(folder, identity)) as Arc<_>)
}

/// The file with the reservations of one disk.
struct Kept {
    path: PathBuf,
    identity: Uuid,
}

impl Kept {
    fn new(folder: &Path, identity: Uuid) -> Self {
        Self { path: folder.join(identity.to_string()), identity }
    }

    /// Writes `text`. Stops after the first stage for which `goes_on` returns false, for tests.
    fn save_until(&self, text: &str, goes_on: impl FnMut(Stage) -> bool) -> io::Result<()> {
        match text {
            "" => remove_file(&self.path),
            text => {
                let text = format!("{}\n{text}", self.identity);
                replace_file(&self.path, text.as_bytes(), goes_on)
            }
        }
    }

    fn damaged(&self) -> io::Error {
        io::Error::other(format!(
            "{} is damaged: remove it once no fenced host can reconnect",
            self.path.display()
        ))
    }
}

impl ReservationStore for Kept {
    fn load(&self) -> io::Result<String> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut bytes)?;
        let text = String::from_utf8(bytes).map_err(|_| self.damaged())?;
        let whose = |text: &str| text.parse::<Uuid>().is_ok_and(|uuid| uuid == self.identity);
        // A disk without reservations has no file. So an empty file is damaged.
        match text.split_once('\n') {
            Some((identity, text)) if whose(identity) && !text.is_empty() => Ok(text.to_owned()),
            _ => Err(self.damaged()),
        }
    }

    fn save(&self, text: &str) -> io::Result<()> {
        self.save_until(text, |_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Uuid = Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef);

    #[test]
    fn each_disk_with_reservations_has_one_file_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (Kept::new(folder.path(), DISK), Kept::new(folder.path(), Uuid::nil()));
        assert_eq!(one.load().unwrap(), "");
        one.save("something\n").unwrap();
        assert_eq!(
            (one.load().unwrap().as_str(), other.load().unwrap().as_str()),
            ("something\n", "")
        );
        one.save(&"x".repeat(8000)).unwrap();
        assert_eq!(one.load().unwrap().len(), 8000);
        one.save("").unwrap();
        one.save("").unwrap();
        assert_eq!(one.load().unwrap(), "");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_reservation_file_that_is_damaged_or_names_another_disk_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::new(folder.path(), DISK);
        let anothers = format!("{}\nhosts\n", Uuid::nil());
        let cut = format!("{DISK}\n");
        for damaged in [&b""[..], b"\n", &[0; 64], &[0xff; 9], anothers.as_bytes(), cut.as_bytes()]
        {
            std::fs::write(&kept.path, damaged).unwrap();
            let said = kept.load().expect_err("the record is damaged").to_string();
            assert!(said.contains("is damaged") && said.contains(&DISK.to_string()), "{said}");
        }
    }

    /// The child process of the next test: kills itself after stage `RESERVED_STAGE` of a save.
    #[cfg(unix)]
    #[test]
    fn dies_during_a_save() {
        let Some(folder) = std::env::var_os("RESERVED_FOLDER") else { return };
        let after: usize = std::env::var("RESERVED_STAGE").unwrap().parse().unwrap();
        let mut stages = 0;
        let kept = Kept::new(Path::new(&folder), DISK);
        let saved = kept.save_until("new\n", |_| {
            if stages == after {
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
            }
            stages += 1;
            true
        });
        unreachable!("the process was not killed: {saved:?}");
    }

    #[cfg(unix)]
    #[test]
    fn a_process_killed_during_a_save_leaves_the_old_or_the_new_file() {
        use std::os::unix::process::ExitStatusExt;
        for stage in 0..5 {
            let folder = tempfile::tempdir().unwrap();
            let kept = Kept::new(folder.path(), DISK);
            kept.save("old\n").unwrap();
            let ended = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "reserved::folder::tests::dies_during_a_save"])
                .env("RESERVED_FOLDER", folder.path())
                .env("RESERVED_STAGE", stage.to_string())
                .output()
                .unwrap();
            assert_eq!(ended.status.signal(), Some(9), "{stage}: {ended:?}");
            let expected = if stage < 3 { "old\n" } else { "new\n" };
            assert_eq!(kept.load().unwrap(), expected, "{stage}");
            // Temporary files of the dead process do not disturb the next save.
            kept.save("next\n").unwrap();
            assert_eq!(kept.load().unwrap(), "next\n");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }
}
