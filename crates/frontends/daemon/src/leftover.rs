//! Records of the controllers that a removed attachment used, if their targets may still execute
//! commands. Such a command could undo a write of a later attachment of the same disk. So a file
//! beside the removed folder keeps the names of these controllers until the danger is over. The
//! next attachment of the disk first resets them. The commands `attach`, `list` and `detach` remove
//! expired files, and the oldest files if there are too many.

use super::folder::{Folder, Role};
use super::record::{CONTROLLERS, assumed, assumed_time, lives, lives_in};
use super::settings::Settings;
use farblock_host::disk::ControllerLife;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The suffix of these files. Their names start with a dot, unlike names of attachments.
const SUFFIX: &str = ".controllers";
/// Maximum number of files. A limit is necessary because some controllers are dangerous until a
/// host resets them, so their files never expire.
const MAX_FILES: usize = 1024;

/// Keeps the record of controllers of an attachment whose folder is about to be removed.
pub(super) fn keep(folder: &Folder) {
    let path = folder.path(CONTROLLERS);
    let Ok(file) = File::options().append(true).open(&path) else { return };
    let Some(runtime) = folder.0.parent() else { return };
    if lives_in(&path).is_ok_and(|lives| lives.is_empty()) {
        return;
    }
    // The time until these controllers are harmless starts now.
    let now = SystemTime::now();
    let stamp = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let kept = runtime.join(format!(".{}-{stamp}{SUFFIX}", folder.name()));
    if let Err(error) = file.set_modified(now).and_then(|()| fs::rename(&path, kept)) {
        tracing::warn!("{}: {error}", path.display());
    }
}

/// Returns the controllers of dead or removed attachments whose targets may still execute commands.
pub(super) fn of_others(folder: &Folder, settings: &Settings) -> Vec<ControllerLife> {
    let Some(runtime) = folder.0.parent() else { return Vec::new() };
    sweep(runtime);
    let mut all: Vec<ControllerLife> = Vec::new();
    for path in files(runtime) {
        // Treat a file of a newer version as unreadable.
        all.extend(lives(&path, settings).unwrap_or_else(|_| assumed(settings)));
    }
    let is_dead = |other: &Folder| !other.is_held(Role::Supervisor) && !other.is_held(Role::Server);
    for other in Folder::all(runtime) {
        if other != *folder && other.path(CONTROLLERS).exists() && is_dead(&other) {
            all.extend(lives(&other.path(CONTROLLERS), settings).unwrap_or_default());
        }
    }
    // A quiesce time (the wait until commands have no more effect) of zero marks writes that were
    // not flushed. Skip such records: only the attachment that sent these writes must report their
    // loss.
    all.retain(|life| !life.quiesce_time.is_zero());
    all
}

/// Removes expired files.
pub(super) fn sweep(runtime: &Path) {
    let mut kept = Vec::new();
    // Use one timestamp for all files, so that the time to read them does not change their order.
    let now = SystemTime::now();
    for path in files(runtime) {
        let age = age(&path, now);
        match age >= harmful_time(&path) {
            true => drop(fs::remove_file(path)),
            false => kept.push((age, path)),
        }
    }
    kept.sort();
    for (_, path) in kept.drain(MAX_FILES.min(kept.len())..) {
        tracing::warn!(
            "removing {}: more than {MAX_FILES} attachments have left unfinished controllers",
            path.display()
        );
        let _ = fs::remove_file(path);
    }
}

/// The time, from its last change, after which a file can be removed.
fn harmful_time(path: &Path) -> Duration {
    match lives_in(path) {
        Ok(lives) => lives.iter().map(|life| life.quiesce_time).max().unwrap_or_default(),
        // An attachment that finds an unreadable file assumes this time, too.
        Err(_) => assumed_time(&Settings::default()),
    }
}

fn files(runtime: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(runtime).into_iter().flatten().flatten();
    let is_ours = |name: &str| name.starts_with('.') && name.ends_with(SUFFIX);
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_ours))
        .map(|entry| entry.path())
        .collect()
}

/// The age of a file at `now`, or zero if the clock was set back.
fn age(path: &Path, now: SystemTime) -> Duration {
    let kept = fs::metadata(path).and_then(|file| file.modified());
    kept.ok().and_then(|kept| now.duration_since(kept).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::record::{Recorder, predecessor};
    use super::*;
    use farblock_host::disk::Record;

    #[test]
    fn controller_records_are_kept_while_the_controllers_may_write() {
        let place = tempfile::tempdir().expect("a folder");
        let urls = vec!["nvme+tcp://127.0.0.1/nqn.2024-01.example:a".parse().expect("a URL")];
        let settings = Settings { urls, ..Settings::default() };
        let (url, name, origin) = (settings.urls[0].clone(), None, None);
        let quiesce_time = Duration::from_secs(3600);
        let life = ControllerLife { url, name, quiesce_time, origin };
        let claim = |name| Folder::claim(place.path(), Some(name)).expect("the name is free");
        let found = |folder: &Folder| {
            predecessor(folder, &settings, false).expect("a readable record").controllers
        };
        let (dead, lock) = claim("dead");
        let recorder = Recorder::new(&dead, &settings, true);
        recorder.controllers(std::slice::from_ref(&life)).expect("the record is written");
        let (next, _lock) = claim("next");
        assert_eq!(found(&next), [], "a live server's controllers count as leftover");
        drop(lock);
        assert_eq!(
            found(&next),
            std::slice::from_ref(&life),
            "a dead server's controllers do not count as leftover"
        );
        dead.remove_unfinished(dead.lock(Role::Supervisor).expect("the lock is free"));
        assert!(!dead.0.exists());
        assert_eq!(found(&next), std::slice::from_ref(&life));
        assert_eq!(found(&claim("dead").0), [life], "the controllers are forgotten");
        let file = files(place.path()).pop().expect("a record file exists");
        let long_ago = SystemTime::now() - Duration::from_secs(4000);
        let kept = File::options().append(true).open(&file).expect("the record file opens");
        kept.set_modified(long_ago).expect("the file's time is set");
        // On Windows, a file can only be removed after its lock is released.
        drop(kept);
        assert_eq!((found(&next), file.exists()), (Vec::new(), false));
    }

    #[test]
    fn kept_controller_records_expire_and_are_limited() {
        let place = tempfile::tempdir().expect("a folder");
        let keep = |name: &str, text: &str, seconds: u64| {
            let path = place.path().join(format!(".{name}{SUFFIX}"));
            fs::write(&path, text).expect("the file is written");
            let kept = File::options().append(true).open(&path).expect("the record file opens");
            kept.set_modified(SystemTime::now() - Duration::from_secs(seconds))
                .expect("the file's time is set");
            path
        };
        let life = |quiesce_ms: u64| {
            format!(
                "[{{\"url\":\"nvme+tcp://a/nqn.a\",\"name\":null,\"quiesce_ms\":{quiesce_ms}}}]"
            )
        };
        let over = [
            keep("nothing", "[]", 0),
            keep("past", &life(15_000), 60),
            keep("torn", "[{", 60),
            keep("newer", "[{\"version\":9}]", 60),
        ];
        let not_over =
            [keep("soon", &life(3_600_000), 60), keep("torn2", "[{", 1), keep("x", &life(5000), 0)];
        sweep(place.path());
        assert!(over.iter().all(|path| !path.exists()), "{:?}", files(place.path()));
        assert!(not_over.iter().all(|path| path.exists()), "{:?}", files(place.path()));
        // These files never expire. If there are too many, `sweep` removes the oldest.
        let (forever, oldest) = (life(u64::MAX), 100_000);
        for number in 0..MAX_FILES as u64 {
            keep(&format!("forever{number}"), &forever, oldest - number);
        }
        sweep(place.path());
        assert_eq!(files(place.path()).len(), MAX_FILES);
        let is_there = |number| place.path().join(format!(".forever{number}{SUFFIX}")).exists();
        assert_eq!([0, 2, 3].map(is_there), [false, false, true]);
        assert!(not_over.iter().all(|path| path.exists()), "a newer file was removed");
    }

    /// An attachment must assume the worst case for a record that it cannot read.
    #[test]
    fn an_unreadable_controller_record_counts_as_the_worst_case() {
        let place = tempfile::tempdir().expect("a folder");
        let urls = vec!["nvme+tcp://127.0.0.1/nqn.2024-01.example:a".parse().expect("a URL")];
        let settings = Settings { urls, ..Settings::default() };
        let folder = Folder(place.path().join("next"));
        for text in ["[{", "[{\"version\":9}]"] {
            fs::write(place.path().join(format!(".x{SUFFIX}")), text).expect("the file is written");
            let found = of_others(&folder, &settings);
            assert!(matches!(&found[..], [life] if life.url == settings.urls[0]), "{found:?}");
        }
    }
}
