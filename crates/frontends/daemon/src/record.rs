//! The records that a server writes for the next server, which replaces it after a crash: the
//! namespace's identity, and the controllers that may still execute commands. The server writes a
//! record before it uses the namespace or controller.
//!
//! This version can read the files of older versions, and ignores unknown keys. It refuses a file
//! of a newer version, because it would not understand all of it.

use super::claim::claim;
use super::folder::Folder;
use super::leftover;
use super::settings::Settings;
use farblock_host::disk::{ControllerLife, KnownNamespace, Predecessor, Record};
use farblock_program::error::os;
use farblock_program::lives::{Life, VERSION, bytes, hex};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uuid::Uuid;

const NAMESPACE: &str = "identity.json";
pub(super) const CONTROLLERS: &str = "controllers.json";
/// A [`KnownNamespace`] as stored in its file.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    version: u64,
    uuid: Option<Uuid>,
    nguid: Option<String>,
    eui64: Option<String>,
    serial: String,
    block_size: u32,
    volatile_cache: bool,
}

impl Identity {
    fn new(known: &KnownNamespace) -> Identity {
        Identity {
            version: VERSION,
            uuid: known.uuid.map(Uuid::from_bytes),
            nguid: known.nguid.map(|id| hex(&id)),
            eui64: known.eui64.map(|id| hex(&id)),
            serial: known.serial.clone(),
            block_size: known.block_size,
            volatile_cache: known.volatile_cache,
        }
    }

    /// `None` if an identifier is malformed.
    fn known(&self) -> Option<KnownNamespace> {
        Some(KnownNamespace {
            uuid: self.uuid.map(Uuid::into_bytes),
            nguid: maybe(self.nguid.as_deref())?,
            eui64: maybe(self.eui64.as_deref())?,
            serial: self.serial.clone(),
            block_size: self.block_size,
            volatile_cache: self.volatile_cache,
        })
    }
}

/// Parses an optional identifier. `None` if it is malformed; `Some(None)` if it is missing.
fn maybe<const N: usize>(text: Option<&str>) -> Option<Option<[u8; N]>> {
    text.map_or(Some(None), |text| bytes(text).map(Some))
}

/// Writes the disk's identity and its controllers to the attachment's folder.
pub(super) struct Recorder {
    folder: Folder,
    settings: Settings,
    /// Whether this attachment is recorded as a writer of the namespace (see
    /// [`claim`](super::claim)).
    claimed: AtomicBool,
}

impl Recorder {
    /// Creates a recorder. With `resume`, this server replaces a dead server, which has already
    /// claimed the namespace.
    pub(super) fn new(folder: &Folder, settings: &Settings, resume: bool) -> Recorder {
        let (folder, settings) = (folder.clone(), settings.clone());
        Recorder { folder, settings, claimed: AtomicBool::new(resume) }
    }

    fn write(&self, file: &str, value: &impl Serialize) -> Result<(), String> {
        self.folder.write_json(file, value).map_err(|error| {
            let (path, error) = (self.folder.path(file), os(&error));
            format!("cannot write {}, which the next server would need: {error}", path.display())
        })
    }
}

impl Record for Recorder {
    fn namespace(&self, known: &KnownNamespace) -> Result<(), String> {
        let write = || self.write(NAMESPACE, &Identity::new(known));
        if self.claimed.load(Ordering::Acquire) {
            return write();
        }
        claim(&self.folder, &self.settings, known, write)?;
        self.claimed.store(true, Ordering::Release);
        Ok(())
    }

    fn controllers(&self, lives: &[ControllerLife]) -> Result<(), String> {
        self.write(CONTROLLERS, &lives.iter().map(Life::new).collect::<Vec<_>>())
    }
}

/// The reason why a record file is unusable.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    Missing,
    /// The file is incomplete, or farblock did not write it.
    Broken(String),
    Newer(u64),
}

/// Reads a record file. Fails if a newer version wrote it.
fn read(path: &Path) -> Result<Value, Unread> {
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Unread::Missing,
        _ => Unread::Broken(os(&error)),
    })?;
    let value: Value =
        serde_json::from_str(&text).map_err(|error| Unread::Broken(error.to_string()))?;
    let entries = value.as_array().map_or(std::slice::from_ref(&value), Vec::as_slice);
    let newest = entries.iter().filter_map(|entry| entry["version"].as_u64()).max();
    match newest {
        Some(version) if version > VERSION => Err(Unread::Newer(version)),
        _ => Ok(value),
    }
}

/// Reads the identity of an attachment's namespace.
pub(super) fn known(folder: &Folder) -> Result<KnownNamespace, Unread> {
    let value = read(&folder.path(NAMESPACE))?;
    let identity: Identity =
        serde_json::from_value(value).map_err(|error| Unread::Broken(error.to_string()))?;
    identity.known().ok_or_else(|| Unread::Broken("an identifier is malformed".to_owned()))
}

/// Reads the records of an earlier server. With `resume`, programs already use the disk, so this
/// fails unless the namespace's identity is known.
pub(super) fn predecessor(
    folder: &Folder,
    settings: &Settings,
    resume: bool,
) -> Result<Predecessor, String> {
    let namespace = match resume.then(|| known(folder)).transpose() {
        Ok(namespace) => namespace,
        // The user has supplied the UUID, so the recorded identity is not necessary.
        Err(Unread::Missing | Unread::Broken(_)) if settings.uuid.is_some() => None,
        Err(unread) => return Err(unknown(folder, &unread)),
    };
    let mut controllers = controllers(folder, settings, resume)?;
    controllers.extend(leftover::of_others(folder, settings));
    Ok(Predecessor { namespace, controllers })
}

fn unknown(folder: &Folder, unread: &Unread) -> String {
    let path = folder.path(NAMESPACE);
    let (path, name) = (path.display(), folder.name());
    let why = match unread {
        Unread::Newer(version) => return newer(NAMESPACE, *version),
        Unread::Missing => format!("{path} is missing (old versions of farblock did not write it)"),
        Unread::Broken(error) => format!("{path} cannot be read ({error})"),
    };
    format!(
        "{why}, so it is unknown whether the target still has the namespace that was attached: \
         end this attachment with `farblock detach {name} --force`, or attach it again as {name} \
         with --uuid"
    )
}

fn newer(file: &str, version: u64) -> String {
    format!(
        "a newer farblock wrote {file} (version {version}, but this one supports {VERSION}): \
         attach the disk with the newer one"
    )
}

/// Returns the controllers that may still execute commands.
fn controllers(
    folder: &Folder,
    settings: &Settings,
    resume: bool,
) -> Result<Vec<ControllerLife>, String> {
    let path = folder.path(CONTROLLERS);
    if !resume && !path.exists() {
        return Ok(Vec::new());
    }
    lives(&path, settings)
}

/// Reads the controllers from a file. If it is unreadable, assumes one unknown controller per path,
/// with the longest usual quiesce time (the wait until its commands have no more effect).
pub(super) fn lives(path: &Path, settings: &Settings) -> Result<Vec<ControllerLife>, String> {
    match lives_in(path) {
        Ok(lives) => Ok(lives),
        Err(Unread::Newer(version)) => Err(newer(CONTROLLERS, version)),
        Err(unread) => {
            tracing::warn!(
                "{CONTROLLERS}: {unread:?}; waiting until all earlier commands must have ended"
            );
            Ok(assumed(settings))
        }
    }
}

pub(super) fn lives_in(path: &Path) -> Result<Vec<ControllerLife>, Unread> {
    let lives: Vec<Life> =
        serde_json::from_value(read(path)?).map_err(|error| Unread::Broken(error.to_string()))?;
    let lives: Option<Vec<_>> = lives.iter().map(Life::life).collect();
    lives.ok_or_else(|| Unread::Broken("a value is malformed".to_owned()))
}

/// One unknown controller for each path, for use when no readable record exists.
pub(super) fn assumed(settings: &Settings) -> Vec<ControllerLife> {
    let quiesce_time = assumed_time(settings);
    let life = |url: &farblock_host::Url| ControllerLife {
        url: url.clone(),
        name: None,
        quiesce_time,
        origin: None,
    };
    settings.urls.iter().map(life).collect()
}

/// The quiesce time of unknown controllers.
pub(super) fn assumed_time(settings: &Settings) -> Duration {
    let options = settings.disk_options();
    let usual = farblock_host::Options::default().keep_alive;
    let keep_alive = options.connection.keep_alive.max(usual);
    options.quiesce.unwrap_or(keep_alive * 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_host::disk::{ControllerOrigin, CrossControllerReset};

    fn settings() -> Settings {
        let urls = vec!["nvme+tcp://127.0.0.1/nqn.2024-01.example:a".parse().expect("a URL")];
        Settings { urls, ..Settings::default() }
    }

    fn recorder() -> (tempfile::TempDir, Recorder) {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder(place.path().to_path_buf());
        (place, Recorder::new(&folder, &settings(), true))
    }

    fn namespace() -> KnownNamespace {
        KnownNamespace {
            uuid: Some([0xa5; 16]),
            nguid: Some([0x66; 16]),
            eui64: Some([7; 8]),
            serial: "S".to_owned(),
            block_size: 4096,
            volatile_cache: true,
        }
    }

    #[test]
    fn records_round_trip() {
        let (_place, recorder) = recorder();
        let url: farblock_host::Url =
            "nvme+tcp://[::1]:4420/nqn.2024-01.example:a?ns=2".parse().expect("a URL");
        let name = CrossControllerReset { icid: 7, ciu: 3, cirn: u64::MAX };
        let life = |name: Option<CrossControllerReset>| {
            let quiesce_time = Duration::from_millis(1500);
            let origin = name.map(|_| ControllerOrigin { place: [1; 16], boot: [0xfe; 16] });
            ControllerLife { url: url.clone(), name, quiesce_time, origin }
        };
        let lives = vec![life(Some(name)), life(None)];
        recorder.controllers(&lives).expect("the record is written");
        for namespace in [namespace(), KnownNamespace { uuid: None, nguid: None, ..namespace() }] {
            recorder.namespace(&namespace).expect("the record is written");
            let read = predecessor(&recorder.folder, &settings(), true)
                .expect("the recorder's own records are readable");
            let namespace = Some(namespace);
            assert_eq!(read, Predecessor { namespace, controllers: lives.clone() });
        }
        // A new attachment (without `resume`) may use another namespace. But it must wait until the
        // commands of these controllers have ended.
        let read = predecessor(&recorder.folder, &settings(), false)
            .expect("the recorder's own records are readable");
        assert_eq!(read, Predecessor { namespace: None, controllers: lives });
    }

    #[test]
    fn a_missing_or_invalid_namespace_record_is_refused() {
        let (_place, recorder) = recorder();
        let folder = &recorder.folder;
        let whole = serde_json::to_string(&Identity::new(&namespace())).expect("JSON");
        let newer = whole.replace("\"version\":1", "\"version\":2");
        for (text, said) in [
            (None, "is missing"),
            (Some(""), "cannot be read"),
            (Some(&whole[..whole.len() / 2]), "cannot be read"),
            (Some(whole.replace("6666", "6").as_str()), "malformed"),
            (Some(newer.as_str()), "a newer farblock"),
        ] {
            text.into_iter()
                .for_each(|text| folder.write(NAMESPACE, text).expect("the file is written"));
            let error = predecessor(folder, &settings(), true).expect_err(said);
            assert!(error.contains(said), "{error}");
            let asked = Settings { uuid: Some(Uuid::from_bytes([1; 16])), ..settings() };
            assert_eq!(predecessor(folder, &asked, true).is_ok(), !said.contains("newer"));
        }
        let more = whole.replace("\"version\":1", "\"version\":1,\"colour\":\"red\"");
        folder.write(NAMESPACE, &more).expect("the file is written");
        let read = predecessor(folder, &settings(), true).expect("an unknown field is ignored");
        assert_eq!(read.namespace, Some(namespace()));
    }

    #[test]
    fn unknown_controllers_get_the_longest_wait() {
        let (_place, recorder) = recorder();
        let folder = &recorder.folder;
        recorder.namespace(&namespace()).expect("the record is written");
        assert_eq!(controllers(folder, &settings(), false), Ok(Vec::new()));
        for text in [None, Some("[{]"), Some("{\"version\":1}")] {
            text.into_iter()
                .for_each(|text| folder.write(CONTROLLERS, text).expect("the file is written"));
            let lives = controllers(folder, &settings(), true).expect("the records are readable");
            assert!(matches!(&lives[..], [life] if life.name.is_none()), "{lives:?}");
            assert!(!lives[0].quiesce_time.is_zero());
        }
        // The oldest format, without a version.
        let url = settings().urls[0].to_string();
        let old = format!("[{{\"url\":\"{url}\",\"name\":[1,2,3],\"quiesce_ms\":4}}]");
        folder.write(CONTROLLERS, &old).expect("the file is written");
        let lives = controllers(folder, &settings(), true).expect("the record is readable");
        assert!(lives[0].name.is_some_and(|name| name.cirn == 3));
        folder.write(CONTROLLERS, "[{\"version\":9}]").expect("the file is written");
        let error = controllers(folder, &settings(), true).expect_err("a newer version");
        assert!(error.contains("version 9"), "{error}");
    }

    #[test]
    fn a_failed_write_of_a_record_is_reported() {
        let recorder = Recorder::new(&Folder("/none/at/all".into()), &settings(), true);
        let error = recorder.namespace(&namespace()).expect_err("the folder does not exist");
        assert!(error.contains("cannot write") && error.contains("identity.json"), "{error}");
        assert!(recorder.controllers(&[]).is_err());
    }
}
