//! Refuses a second writable attachment of the same namespace on this machine, unless `--shared`
//! allows it. Otherwise two mounts of the same file system, each with its own cache, would corrupt
//! it.

use super::folder::{Folder, Role};
use super::record;
use super::settings::Settings;
use super::system;
use farblock_host::disk::KnownNamespace;
use std::time::{Duration, Instant};

/// The longest wait for the lock of this check, while another attachment starts.
const WAIT_LIMIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Runs `act`, which records that this attachment writes to its namespace. Returns an error if
/// another attachment already writes to that namespace.
pub(super) fn claim(
    folder: &Folder,
    settings: &Settings,
    known: &KnownNamespace,
    act: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let Some(runtime) = folder.0.parent() else { return act() };
    let deadline = Instant::now() + WAIT_LIMIT;
    let _lock = loop {
        match system::lock_folder(runtime) {
            Some(lock) => break lock,
            None if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
            None => return Err(format!("cannot lock {}: try again", runtime.display())),
        }
    };
    if !settings.shared && !settings.read_only {
        let all = Folder::all(runtime);
        let other = all.iter().find(|other| *other != folder && writes(other, settings, known));
        if let Some(other) = other {
            let name = other.name();
            return Err(format!(
                "this namespace is already attached as {name}, and two writers corrupt most file \
                 systems: use {name}, attach with --read-only, or use --shared if the software on \
                 the disk supports several writers"
            ));
        }
    }
    act()
}

/// Like [`claim`], for an attachment that resumes after its processes died.
pub(super) fn claim_again(folder: &Folder, settings: &Settings) -> Result<(), String> {
    match record::known(folder) {
        Ok(known) => claim(folder, settings, &known, || Ok(())),
        // Ignore this error here: the server reports it.
        Err(_) => Ok(()),
    }
}

/// Whether a live attachment writes to this namespace.
fn writes(other: &Folder, settings: &Settings, known: &KnownNamespace) -> bool {
    let Ok(its) = record::known(other) else { return false };
    let its_settings = other.read_json::<Settings>("settings.json");
    let only_reads = its_settings.as_ref().is_some_and(|settings| settings.read_only);
    let is_alive = || other.is_held(Role::Server) || other.is_held(Role::Supervisor);
    let place = |settings: &Settings| {
        let url = settings.urls.first();
        url.map(|url| (url.subsystem.clone(), url.namespace.unwrap_or(1)))
    };
    let in_one_place = || its_settings.as_ref().is_some_and(|its| place(its) == place(settings));
    !only_reads && is_same(&its, known, in_one_place) && is_alive()
}

fn is_same(
    one: &KnownNamespace,
    other: &KnownNamespace,
    in_one_place: impl FnOnce() -> bool,
) -> bool {
    let shares = one.uuid.is_some() && one.uuid == other.uuid
        || one.nguid.is_some() && one.nguid == other.nguid
        || one.eui64.is_some() && one.eui64 == other.eui64;
    let nameless = !one.is_named() && !other.is_named() && one.serial == other.serial;
    shares || nameless && in_one_place()
}

#[cfg(test)]
mod tests {
    use super::super::record::Recorder;
    use super::*;
    use farblock_host::disk::Record;

    fn settings(read_only: bool, shared: bool) -> Settings {
        let urls = vec!["nvme+tcp://127.0.0.1/nqn.2024-01.example:a".parse().expect("a URL")];
        Settings { urls, read_only, shared, ..Settings::default() }
    }

    #[test]
    fn a_second_writer_is_refused_unless_shared() {
        let runtime = tempfile::tempdir().expect("a folder");
        let named = KnownNamespace { nguid: Some([1; 16]), ..Default::default() };
        let known = |uuid| KnownNamespace { uuid: Some([uuid; 16]), ..Default::default() };
        let begin = |known: &KnownNamespace, read_only, shared| {
            let (folder, lock) = Folder::claim(runtime.path(), None).expect("a name");
            let settings = settings(read_only, shared);
            folder.write_json("settings.json", &settings).expect("the file is written");
            let recorder = Recorder::new(&folder, &settings, false);
            let recorded = recorder.namespace(known).map(|()| recorder.namespace(known));
            recorded.and_then(|again| again).map(|()| (folder, lock))
        };
        let (first, lock) = begin(&known(1), false, false).expect("the first claim");
        let refused = begin(&known(1), false, false).expect_err("the disk is attached already");
        assert!(refused.contains("as fb0") && refused.contains("--shared"), "{refused}");
        begin(&known(2), false, false).expect("no attachment writes to this namespace");
        begin(&named, false, false).expect("no attachment writes to this namespace");
        let _reads = begin(&known(1), true, false).expect("a read-only claim");
        let _shares = begin(&known(1), false, true).expect("a shared claim was requested");
        // The first attachment was made before the shared attachment, so it may still write its
        // record. But if its processes die, it cannot resume while another attachment writes.
        let recorder = Recorder::new(&first, &settings(false, false), true);
        recorder.namespace(&known(1)).expect("the record is written");
        assert!(claim_again(&first, &settings(false, false)).is_err());
        // Neither dead nor read-only attachments count as writers.
        drop((lock, _shares));
        begin(&known(1), false, false).expect("no other process writes");
        // If the target reports no identifier of the namespace, the check compares the subsystem's
        // name and the namespace ID.
        let nameless = KnownNamespace::default();
        let _first = begin(&nameless, false, false).expect("the first claim");
        assert!(begin(&nameless, false, false).is_err());
    }
}
